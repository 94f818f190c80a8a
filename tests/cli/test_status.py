"""`forewarn status`: its first lines, and the sections of what waits for an operator."""

from typing import Any

import pytest

from forewarn.cli import status
from forewarn.cli.output import Output
from forewarn.cli.session import Session
from forewarn.cli.status import headline
from tests.cli.api_bodies import IN_DOUBT, NOW, ORDER_FAILED, event, waiting


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
    assert headline(state)[2:3] == [
        "now: 1 failed, 1 in progress, 1 scheduled (1 not approved), 1+ in later waves",
    ]
    state["open"]["items"] += [event(status="Started", waiting_for=[IN_DOUBT])]  # type: ignore[index]
    assert headline(state) == [
        "http://127.0.0.1:8170  2030-01-31 12:00:00Z (system clock)",
        "NOT READY: ticker: no cycle lately",
        "now: 1 failed, 1 in doubt, 1 in progress, 1 scheduled (1 not approved), 1+ in later waves",
        "last 24 hours: 1 completed, 0 cancelled, 1 abandoned",
    ]


def test_what_is_in_doubt_has_a_section_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An event in doubt is neither failed nor in progress; its section says what to do."""
    doubtful = event(status="Started", waiting_for=[IN_DOUBT])
    nothing: dict[str, Any] = {"items": [], "next_cursor": None}
    state = {
        "server": "http://127.0.0.1:8170",
        "clock": {"now": NOW, "kind": "system"},
        "store": {"held": None},
        "complaints": {},
        "open": {"items": [doubtful], "next_cursor": None},
        "planned": nothing,
        "ended": nothing,
        "paused": nothing,
    }
    monkeypatch.setattr(status, "read", lambda _: state)
    status.status(Session(Output()))
    printed = capsys.readouterr().out
    assert "IN DOUBT: check the machines, then use `forewarn event retry`, `finish` or `abandon`" in printed
    assert "its work may have begun, and its end is not known" in printed
    assert "FAILED:" not in printed
    assert "IN PROGRESS" not in printed
