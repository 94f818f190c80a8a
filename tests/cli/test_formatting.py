"""The API's JSON in the sentences of `core.formatting`."""

from typing import Any

import pytest

from forewarn.cli import formatting
from tests.cli.api_bodies import NOW, event, waiting


def test_times_are_read_from_the_apis_text() -> None:
    """Null has no text."""
    later = "2030-01-31T12:15:00Z"
    assert formatting.full_time(later) == "2030-01-31 12:15:00Z"
    assert formatting.distance(later, NOW) == "in 15m"
    assert formatting.distance("2030-01-31T11:00:00Z", NOW) == "1h ago"
    assert formatting.distance(NOW, NOW) == "now"
    assert formatting.when(later, NOW) == "2030-01-31 12:15:00Z (in 15m)"
    assert (formatting.full_time(None), formatting.distance(None, NOW), formatting.when(None, NOW)) == ("", "", "")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {
                "waiting_for": [
                    waiting("approval", "no machine of shop has approved", machines=["web-0"]),
                    waiting("notice", "its notice runs", until="2030-01-31T12:15:00Z"),
                ]
            },
            "Reboot of web-0 in shop has not started: it waits for approval (no machine of shop has approved),"
            " or for the end of its notice at 2030-01-31 12:15:00Z (in 15m).",
        ),
        (
            {"waiting_for": [waiting("paused", "the maintenance is paused")]},
            "Reboot of web-0 in shop has not started: the maintenance is paused.",
        ),
        (
            {
                "status": "Started",
                "started": NOW,
                "waiting_for": [waiting("executor", "its order is being carried out", until="2030-01-31T13:00:00Z")],
            },
            "Reboot of web-0 in shop started at 2030-01-31 12:00:00Z, and its order is being carried out, with a deadline"
            " at 2030-01-31 13:00:00Z (in 1h).",
        ),
        (
            {"status": "Cancelled", "ended": NOW, "reason": "cancelled\nby operator"},
            "Reboot of web-0 in shop was cancelled at 2030-01-31 12:00:00Z: cancelled by operator.",
        ),
        (
            {"resources": [f"web-{n}" for n in range(8)]},
            "Reboot of web-0, web-1, web-2, web-3, web-4 and 3 more in shop has not started: nothing stands in its way.",
        ),
    ],
)
def test_why_is_one_sentence(changed: dict[str, Any], sentence: str) -> None:
    """It names the event first and ends with a full stop, in every status."""
    assert formatting.why(event(**changed), NOW) == sentence


def test_missing_approvals_name_machines_or_an_operator() -> None:
    """No text where no approval is missing."""
    by_machines = event(waiting_for=[waiting("approval", "…", machines=["web-0", "web-1"])])
    by_operator = event(waiting_for=[waiting("approval", "an operator has not approved")])
    assert formatting.missing_approvals(by_machines) == "web-0, web-1"
    assert formatting.missing_approvals(by_operator) == "an operator"
    assert formatting.missing_approvals(event()) == ""


def test_a_failed_order_is_found_among_the_reasons() -> None:
    """Its message, or no text."""
    assert (
        formatting.order_failure(event(waiting_for=[waiting("order-failed", "its order failed")])) == "its order failed"
    )
    assert formatting.order_failure(event()) == ""


def test_an_event_that_is_completed_waits_for_nothing() -> None:
    """How its work ended is not a wait; why an event was cancelled or abandoned is shown in the same column."""
    assert formatting.waits_for(event(status="Completed", reason="exit code 0"), NOW) == ""
    assert formatting.waits_for(event(status="Abandoned", reason="exit code 1"), NOW) == "exit code 1"
    assert formatting.waits_for(event(waiting_for=[waiting("ticker", "nothing holds it back")]), NOW)
