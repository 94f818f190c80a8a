"""Which buttons pages show."""

import re

from tests.support.portal_client import HOSTILE, PortalClient
from tests.support.running_service import RunningService, running_service


def test_a_page_has_the_buttons_that_the_status_allows() -> None:
    """Approve and cancel before the start, then the order's buttons, then those for a failed order, none at the end."""
    with running_service() as service:
        operator = PortalClient(service)
        service.enable("blog")
        made = service.schedule("blog/db", source="Platform", type_="Freeze")
        event = made["waves"][0]["events"][0]["id"]

        def offered(path: str = "") -> list[str]:
            page = operator.get(path or f"/events/{event}").raw.decode()
            return re.findall(r'<form method="(?:get|post)" action="/\w+/[^/"]+/(\w+)"', page)

        assert offered() == ["approve", "cancel"]
        assert offered(f"/maintenances/{made['id']}") == ["pause", "cancel"]
        assert operator.post(f"/events/{event}/retry", {}).status == 409
        operator.post(f"/maintenances/{made['id']}/pause", {})
        assert offered(f"/maintenances/{made['id']}") == ["resume", "cancel"]
        operator.post(f"/maintenances/{made['id']}/resume", {})
        assert operator.post(f"/events/{event}/approve", {}).status == 303
        service.service.ticker.advance(1)
        started = offered()
        assert started == ["start", "finish", "fail"]
        assert operator.post(f"/orders/{event}/start", {}).status == 303
        assert offered() == ["finish", "fail"]
        assert operator.post(f"/orders/{event}/fail", {"reason": ""}).status == 422
        assert operator.post(f"/orders/{event}/fail", {"reason": HOSTILE}).status == 303
        assert offered() == ["retry", "finish", "abandon"]
        assert "<script>alert" not in operator.get(f"/events/{event}").raw.decode()
        assert operator.post(f"/events/{event}/finish", {}).status == 303
        assert offered() == []
        service.service.ticker.advance(1)
        assert offered(f"/maintenances/{made['id']}") == []


def test_an_owner_has_no_button_to_cancel_platform_events(fresh_service: RunningService) -> None:
    """It may approve them."""
    made = fresh_service.schedule("blog/db")
    owner = PortalClient(fresh_service, fresh_service.token_of("owner", "blog"))
    event = made["waves"][0]["events"][0]["id"]
    page = owner.get(f"/events/{event}").raw.decode()
    assert f'action="/events/{event}/approve"' in page
    assert f'action="/events/{event}/cancel"' not in page
