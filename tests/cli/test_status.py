"""The first lines of `forewarn status`."""

from typing import Any

from forewarn.cli.status import headline
from tests.cli.api_bodies import NOW, ORDER_FAILED, event, waiting


def test_the_headline_has_problems_and_numbers() -> None:
    """Failed checks of the service, then the numbers of events; a plus marks a list that is longer than its page."""

    def page(*items: Any, more: str | None = None) -> dict[str, Any]:
        return {"items": list(items), "next_cursor": more}

    state = {
        "server": "http://127.0.0.1:8170",
        "clock": {"now": NOW, "kind": "system"},
        "store": {"held": None},
        "complaints": {"ticker": "no cycle lately"},
        "open": page(
            event(waiting_for=[waiting("approval", "…", machines=["web-0"])]),
            event(status="Started", waiting_for=[ORDER_FAILED]),
            event(status="Started"),
        ),
        "planned": page(event(status="Planned"), more="x"),
        "ended": page(event(status="Completed"), event(status="Abandoned")),
    }
    assert headline(state) == [
        "http://127.0.0.1:8170  2030-01-31 12:00:00Z (system clock)",
        "NOT READY: ticker: no cycle lately",
        "now: 1 failed, 1 in progress, 1 scheduled (1 not approved), 1+ in later waves",
        "last 24 hours: 1 completed, 0 cancelled, 1 abandoned",
    ]
