"""One action on several selected events: the confirmation, what became of each, and who may."""

import re

from tests.support.portal_client import PortalClient, page_text
from tests.support.running_service import RunningService

ANOTHER = "0123ABCD-0000-4000-8000-000000000000"


def query(verb: str, *events: str) -> str:
    return "/bulk?" + "&".join([f"verb={verb}", *(f"event-{event}=on" for event in events)])


def test_selected_events_are_cancelled_after_one_confirmation(fresh_service: RunningService) -> None:
    """The confirmation lists what it applies to and what not; nothing happens before it."""
    operator = PortalClient(fresh_service)
    events = [fresh_service.schedule(name)["waves"][0]["events"][0]["id"] for name in ("shop/web-0", "blog/db")]
    ended = fresh_service.schedule("shop/web-1")["waves"][0]["events"][0]["id"]
    fresh_service.post(f"/v1/events/{ended}/cancel")
    assert f'form="bulk" name="event-{events[0]}"' in operator.get("/").raw.decode()
    page = operator.get(query("cancel", *events, ended))
    text = page_text(page)
    assert "Cancel 2 events?" in text
    assert "This cannot be undone" in text
    assert text.index("Confirm: cancel 2 events") < text.index("Not possible now") < text.index("Reboot of web-1")
    assert fresh_service.get(f"/v1/events/{events[0]}")["status"] == "Scheduled"
    confirmed = re.findall(r'<input type="hidden" name="(event-[^"]+)" value="on">', page.raw.decode())
    assert confirmed == [f"event-{event}" for event in events]
    done = operator.post("/bulk", {"verb": "cancel", **dict.fromkeys(confirmed, "on")})
    assert "Done for 2 of 2 events." in page_text(done)
    assert {fresh_service.get(f"/v1/events/{event}")["status"] for event in events} == {"Cancelled"}


def test_a_refusal_does_not_stop_the_others(fresh_service: RunningService) -> None:
    """The page says what became of each event."""
    operator = PortalClient(fresh_service)
    event = fresh_service.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
    done = page_text(operator.post("/bulk", {"verb": "approve", f"event-{ANOTHER}": "on", f"event-{event}": "on"}))
    assert "Done for 1 of 2 events; 1 refused." in done
    assert "there is no event" in done
    assert len(fresh_service.get(f"/v1/events/{event}")["approved_by"]) == 1


def test_an_event_that_is_gone_does_not_hide_the_others(fresh_service: RunningService) -> None:
    """Its history may have been removed since the page was loaded."""
    operator = PortalClient(fresh_service)
    event = fresh_service.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
    page = operator.get(query("cancel", ANOTHER, event))
    text = page_text(page)
    assert (page.status, "Confirm: cancel 1 event" in text) == (200, True)
    assert f"do not exist any more: {ANOTHER[:8]}." in text
    assert f'name="event-{ANOTHER}"' not in page.raw.decode()


def test_failed_orders_are_retried_together(fresh_service: RunningService) -> None:
    """From the page of failed orders."""
    operator = PortalClient(fresh_service)
    events = [
        fresh_service.schedule(name, emergency=True)["waves"][0]["events"][0]["id"]
        for name in ("shop/web-0", "blog/db")
    ]
    fresh_service.service.ticker.advance(1)
    for event in events:
        fresh_service.post(f"/v1/orders/{event}/start")
        fresh_service.post(f"/v1/orders/{event}/fail", {"reason": "disk"})
    page = operator.get("/orders?state=failed").raw.decode()
    assert all(f'name="event-{event}"' in page for event in events)
    assert "Confirm: retry 2 events" in page_text(operator.get(query("retry", *events)))
    form = {"verb": "retry", **{f"event-{event}": "on" for event in events}}
    assert "Done for 2 of 2 events." in page_text(operator.post("/bulk", form))
    assert {order["state"] for order in fresh_service.get("/v1/orders")["items"]} == {"open"}


def test_a_selection_has_a_size_and_an_action(operator: PortalClient) -> None:
    """Without either, or with too many events, the page says what to do."""
    many = [f"{number:08X}{ANOTHER[8:]}" for number in range(51)]
    for path, text in (
        (query("cancel"), "select at least one event"),
        (query("abandon", ANOTHER), "select at least one event"),
        (query("cancel", *many), "select at most 50"),
    ):
        reply = operator.get(path)
        assert (reply.status, text in page_text(reply)) == (422, True)


def test_a_viewer_selects_nothing(fresh_service: RunningService) -> None:
    """It has no boxes, and its form is refused event by event."""
    event = fresh_service.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
    viewer = PortalClient(fresh_service, fresh_service.token_of("viewer"))
    assert 'form="bulk"' not in viewer.get("/").raw.decode()
    assert "Cancel 0 events?" in page_text(viewer.get(query("cancel", event)))
    refused = page_text(viewer.post("/bulk", {"verb": "cancel", f"event-{event}": "on"}))
    assert "Done for 0 of 1 event; 1 refused." in refused
    assert fresh_service.get(f"/v1/events/{event}")["status"] == "Scheduled"
