"""What is said to people: times, names and the one sentence about an event."""

from typing import Any

import pytest

from forewarn.cli import formatting
from forewarn.core.errors import Invalid
from tests.cli.things import NOW, event, waiting


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("+2h", "2030-01-31T14:00:00Z"),
        ("-90s", "2030-01-31T11:58:30Z"),
        ("2030-02-01T00:00:00Z", "2030-02-01T00:00:00Z"),
        ("2030-02-01T00:00:00+02:00", "2030-01-31T22:00:00Z"),
        ("2030-02-01 00:00Z", "2030-02-01T00:00:00Z"),
    ],
)
def test_times_are_moments_or_distances_from_the_services_now(text: str, meant: str) -> None:
    """RFC 3339 in any zone, or a distance; the API is told UTC."""
    assert formatting.resolve_time(text, NOW) == meant


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tomorrow", "is not a time: write it like 2030-01-31T22:00:00Z, or +2h from now"),
        ("2030-02-01T00:00:00", "names no time zone: write it like 2030-02-01T00:00:00Z"),
        ("+2", "is not a duration"),
        ("", "is not a time"),
    ],
)
def test_a_time_that_is_none_is_refused_with_what_to_write(text: str, told: str) -> None:
    """A moment without a zone would be somebody else's moment."""
    with pytest.raises(Invalid) as refused:
        formatting.resolve_time(text, NOW)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("seconds", "told"), [(0, "0s"), (45, "45s"), (900, "15m"), (3_900, "1h 5m"), (90_061, "1d 1h"), (-60, "1m")]
)
def test_a_length_of_time_is_two_units_at_most(seconds: int, told: str) -> None:
    """Enough to decide by."""
    assert formatting.span(seconds) == told


def test_distances_know_before_and_after() -> None:
    """In a while, a while ago, now."""
    assert formatting.distance("2030-01-31T12:15:00Z", NOW) == "in 15m"
    assert formatting.distance("2030-01-31T11:00:00Z", NOW) == "1h ago"
    assert formatting.distance(NOW, NOW) == "now"


def test_ids_are_shortened_only_where_that_names_one_alone() -> None:
    """Two that begin alike are shown whole."""
    ids = ["AAAAAAAA-1", "AAAAAAAA-2", "BBBBBBBB-1"]
    assert formatting.shortened([*ids, None]) == {
        "AAAAAAAA-1": "AAAAAAAA-1",
        "AAAAAAAA-2": "AAAAAAAA-2",
        "BBBBBBBB-1": "BBBBBBBB",
    }


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {
                "waiting_for": [
                    waiting("approval", "no machine of shop has approved", machines=["web-0"]),
                    waiting("notice", "its notice runs", until="2030-01-31T12:15:00Z"),
                ]
            },
            "Reboot of web-0 in shop has not started: no machine of shop has approved, and its notice runs until"
            " 2030-01-31 12:15:00Z (in 15m), and either is enough.",
        ),
        (
            {"waiting_for": [waiting("paused", "the maintenance is paused; resume it")]},
            "Reboot of web-0 in shop has not started: the maintenance is paused; resume it.",
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
            {"status": "Cancelled", "ended": NOW, "reason": "called off by operator"},
            "Reboot of web-0 in shop was cancelled at 2030-01-31 12:00:00Z: called off by operator.",
        ),
        (
            {"resources": [f"web-{n}" for n in range(8)]},
            "Reboot of web-0, web-1, web-2, web-3, web-4 and 3 more in shop has not started: nothing stands in its way.",
        ),
    ],
)
def test_why_is_one_sentence(changed: dict[str, Any], told: str) -> None:
    """It begins with what it is about and ends with a full stop, whatever the status."""
    assert formatting.why(event(**changed), NOW) == told


def test_nothing_from_elsewhere_moves_the_cursor() -> None:
    """Control characters and those that turn text around are shown as what they are not."""
    assert formatting.plain("a\x1b[2Jb\u202ec\x9bd\r") == "a\ufffd[2Jb\ufffdc\ufffdd\ufffd"
    assert "\n" not in formatting.why(event(status="Cancelled", ended=NOW, reason="one\ntwo"), NOW)


def test_who_has_not_approved() -> None:
    """The machines missing, or an operator where only an operator may."""
    assert (
        formatting.missing(event(waiting_for=[waiting("approval", "…", machines=["web-0", "web-1"])])) == "web-0, web-1"
    )
    assert formatting.missing(event(waiting_for=[waiting("approval", "an operator has not approved")])) == "an operator"
    assert formatting.missing(event()) == ""
