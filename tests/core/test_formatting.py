"""Text for people: times, durations, names, and the sentence about an event."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from forewarn.core import formatting
from forewarn.core.reason import Waiting

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)


def in_minutes(number: float) -> datetime:
    return NOW + timedelta(minutes=number)


@dataclass(frozen=True)
class Shown:
    """An event as `why` reads it."""

    type: str = "Reboot"
    scope: str = "shop"
    resources: tuple[str, ...] = ("web-0",)
    status: str = "Scheduled"
    started: datetime | None = None
    ended: datetime | None = None
    reason: str = ""
    waiting_for: tuple[Waiting, ...] = ()


# -- times and durations


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.4, "0s"),
        (45, "45s"),
        (59.6, "1m"),
        (119, "1m 59s"),
        (900, "15m"),
        (3_900, "1h 5m"),
        (3_601, "1h 1s"),
        (86_400, "1d"),
        (90_061, "1d 1h"),
        (-60, "1m"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    """Its largest two, written as in settings."""
    assert formatting.span(seconds) == text


def test_a_distance_says_before_or_after() -> None:
    """Within a second it is now."""
    assert formatting.distance(in_minutes(12), NOW) == "in 12m"
    assert formatting.distance(in_minutes(-60), NOW) == "1h ago"
    assert formatting.distance(NOW + timedelta(milliseconds=900), NOW) == "now"


def test_times_are_utc_and_say_so() -> None:
    """Whatever zone they come in."""
    tokyo = NOW.astimezone(timezone(timedelta(hours=9)))
    assert formatting.full_time(tokyo) == "2030-01-31 12:00:00Z"
    assert formatting.when(in_minutes(15), NOW) == "2030-01-31 12:15:00Z (in 15m)"
    assert formatting.iso(tokyo) == "2030-01-31T12:00:00Z"
    assert formatting.iso(NOW + timedelta(microseconds=5)) == "2030-01-31T12:00:00.000005Z"


def test_a_short_time_has_the_date_only_on_another_day() -> None:
    """Today goes without saying."""
    assert formatting.short_time(in_minutes(5), NOW) == "12:05:00Z"
    assert formatting.short_time(in_minutes(24 * 60), NOW) == "2030-02-01 12:00:00Z"


# -- names and numbers


def test_names_beyond_the_first_are_counted() -> None:
    """Five are named unless another number is given."""
    assert formatting.names([]) == ""
    assert formatting.names(["a", "b", "c", "d", "e"]) == "a, b, c, d, e"
    assert formatting.names(["a", "b", "c", "d"], 3) == "a, b, c and 1 more"
    assert formatting.names([str(n) for n in range(2_000)], 1) == "0 and 1,999 more"


def test_numbers_agree_with_their_nouns() -> None:
    """One thing, no things, a thousand things."""
    assert formatting.count(1, "machine") == "1 machine"
    assert formatting.count(0, "machine") == "0 machines"
    assert formatting.count(1_000, "entry", "entries") == "1,000 entries"


def test_a_text_is_cut_to_its_limit() -> None:
    """The sign that it was cut counts too."""
    assert formatting.cut("abcd", 4) == "abcd"
    assert formatting.cut("abcdef", 4) == "abc…"


def test_an_id_is_shortened_where_no_other_begins_the_same() -> None:
    """Two that begin the same stay whole; nothing is not an id."""
    ids = ["AAAAAAAA-1", "AAAAAAAA-2", "BBBBBBBB-1", "BBBBBBBB-1", None]
    assert formatting.short_ids(ids) == {
        "AAAAAAAA-1": "AAAAAAAA-1",
        "AAAAAAAA-2": "AAAAAAAA-2",
        "BBBBBBBB-1": "BBBBBBBB",
    }


def test_an_update_domain_is_named_after_its_scope() -> None:
    """A scope and a number."""
    assert formatting.update_domain_name("shop", 0) == "shop#0"


def test_an_action_names_its_actor_once() -> None:
    """Also where its own name ends in the actor."""
    assert formatting.action_by("started", "ticker") == "started by ticker"
    assert formatting.action_by("approved by operator", "alice") == "approved by alice"
    assert formatting.action_by("published", "") == "published"


def test_text_of_others_cannot_move_the_cursor() -> None:
    """Control characters and those that turn text around are replaced; lines and tabs stay."""
    assert formatting.printable("a\x1b[2Jb\u202ec\x9bd\r") == "a\ufffd[2Jb\ufffdc\ufffdd\ufffd"
    assert formatting.printable("a\tb\nc") == "a\tb\nc"


# -- why an event waits

APPROVAL = Waiting(code="approval", message="no machine of shop has approved", machines=("web-0", "web-1"))
NOTICE = Waiting(code="notice", message="its notice runs", until=in_minutes(15))


def test_who_has_not_approved() -> None:
    """The machines, an operator where only an operator may approve, or no text at all."""
    operator = Waiting(code="approval", message="an operator has not approved")
    assert formatting.missing_approvals([NOTICE, APPROVAL]) == "web-0, web-1"
    assert formatting.missing_approvals([operator]) == "an operator"
    assert formatting.missing_approvals([NOTICE]) == ""


def test_equal_reasons_are_named_once() -> None:
    """An owner sees one text for everything outside the own scopes."""
    hidden = [Waiting(code=code, message="it waits for something outside your scopes") for code in ("machine", "queue")]
    assert formatting.reasons(hidden, in_minutes(0)) == "it waits for something outside your scopes"


def test_a_failed_order_is_found_among_the_reasons() -> None:
    """Its sentence, or no text."""
    failed = Waiting(code="order-failed", message="its order failed: no disk")
    assert formatting.order_failure([NOTICE, failed]) == "its order failed: no disk"
    assert formatting.order_failure([NOTICE]) == ""


def test_an_order_in_doubt_is_found_among_the_reasons() -> None:
    """Its sentence, or no text."""
    doubtful = Waiting(code="in-doubt", message="its work may have begun")
    assert formatting.order_doubt([NOTICE, doubtful]) == "its work may have begun"
    assert formatting.order_doubt([NOTICE]) == ""


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"waiting_for": (APPROVAL, NOTICE)},
            "Reboot of web-0 in shop has not started: it waits for approval (no machine of shop has approved),"
            " or for the end of its notice at 2030-01-31 12:15:00Z (in 15m).",
        ),
        (
            {"waiting_for": (Waiting(code="paused", message="the maintenance is paused."),)},
            "Reboot of web-0 in shop has not started: the maintenance is paused.",
        ),
        ({"status": "Planned"}, "Reboot of web-0 in shop has not started: nothing stands in its way."),
        (
            {
                "status": "Started",
                "started": NOW,
                "waiting_for": (
                    Waiting(code="executor", message="its order is being carried out", until=in_minutes(60)),
                ),
            },
            "Reboot of web-0 in shop started at 2030-01-31 12:00:00Z, and its order is being carried out, with a deadline"
            " at 2030-01-31 13:00:00Z (in 1h).",
        ),
        (
            {"status": "Started", "started": NOW},
            "Reboot of web-0 in shop started at 2030-01-31 12:00:00Z, and it is under way.",
        ),
        (
            {"status": "Cancelled", "ended": NOW, "reason": "called off by operator."},
            "Reboot of web-0 in shop was cancelled at 2030-01-31 12:00:00Z: called off by operator.",
        ),
        ({"status": "Completed"}, "Reboot of web-0 in shop was completed."),
        (
            {"status": "Cancelled", "ended": NOW, "reason": "one\ntwo\x1b"},
            "Reboot of web-0 in shop was cancelled at 2030-01-31 12:00:00Z: one two\ufffd.",
        ),
        (
            {"resources": tuple(f"web-{n}" for n in range(8))},
            "Reboot of web-0, web-1, web-2, web-3, web-4 and 3 more in shop has not started: nothing stands in its way.",
        ),
    ],
)
def test_why_is_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    """It begins with what it is about and ends with a full stop, whatever the status."""
    assert formatting.why(Shown(**fields), NOW) == sentence


# -- maintenances


def test_progress_leaves_out_what_is_zero() -> None:
    """What is done is always shown, of all events."""
    none = {"done": 0, "running": 0, "failed": 0, "in_doubt": 0, "left": 0, "undone": 0}
    assert formatting.progress(**none) == "0 of 0 done"
    every = {"done": 1_200, "running": 2, "failed": 3, "in_doubt": 4, "left": 5, "undone": 6}
    assert formatting.progress(**every) == "1,200 of 1,220 done, 2 running, 3 failed, 4 in doubt, 5 left, 6 undone"


def test_targets_are_named_and_the_rest_is_counted() -> None:
    """Machines, scopes or hosts; an owner does not see the names of hosts."""
    assert formatting.target_names(count=1, machines=["shop/web-0"]) == "machine shop/web-0"
    assert formatting.target_names(count=1, scopes=["shop"], update_domain=0) == "scope shop, update domain 0"
    assert formatting.target_names(count=40, hosts=["a", "b", "c"], most=2) == "hosts a, b and 38 more"
    named = formatting.target_names
    assert named(count=0, everything=True) == "every machine"
    assert named(count=0, labels="rack=a3") == "machines with rack=a3"
    assert named(count=0, names=["web-*", "db-*"], labels="!gpu") == "machines like web-* or db-* with !gpu"
    assert named(count=1, scopes=["shop"], names=["web-*"]) == "machines like web-* of scope shop"
    assert named(count=0, host_labels="rack=a3") == "hosts with rack=a3"
    assert named(count=1, hosts=["kvm-*"], host_labels="rack=a3") == "host kvm-* with rack=a3"
    assert formatting.target_names(count=0) == "hosts, whose names only operators and viewers see"


def test_a_maintenance_says_what_is_wrong_with_it() -> None:
    """Without failed and doubtful orders it has only its status."""
    state = formatting.maintenance_state
    assert state("Running", held=False, failed=0, in_doubt=0) == "Running"
    assert state("Paused", held=True, failed=2, in_doubt=0) == "Held: 2 orders failed"
    assert state("Running", held=False, failed=1, in_doubt=1) == "Running: 1 order failed, 1 order in doubt"
    assert (
        state("Paused", held=True, failed=0, in_doubt=0) == "Held: an order of a host, or outside your scopes, failed"
    )
    assert state("Paused", held=True, failed=0, in_doubt=1) == (
        "Held: an order of a host, or outside your scopes, failed, 1 order in doubt"
    )
    held = state("Paused", held=True, failed=1, in_doubt=0, paused=True)
    assert held == "Held: 1 order failed, and it is paused"
    assert state("Paused", held=False, failed=0, in_doubt=0, paused=True) == "Paused"


@pytest.mark.parametrize(
    "codes, expected",
    [
        ([], "Started"),
        (["executor"], "Started"),
        (["order-failed"], "Started, order failed"),
        (["in-doubt"], "Started, order in doubt"),
    ],
)
def test_an_event_says_that_only_an_operator_can_end_it(codes: list[str], expected: str) -> None:
    assert formatting.event_state("Started", codes) == expected


def test_a_strategy_in_words() -> None:
    """Only what differs from the default is named."""
    default: dict[str, Any] = {
        "group_by": "update-domain",
        "max_parallel": 1,
        "canary": 0,
        "bake_s": 0,
        "max_failures": "",
        "pause_after": 0,
    }
    assert formatting.strategy(**default) == ""
    facts = {"group_by": "host", "canary": 1, "bake_s": 1_800, "max_failures": "3", "pause_after": 1}
    assert formatting.strategy(**{**default, **facts}) == (
        "by host, 1 at once, canary 1, bake time 30m, holds at 3 failures, pauses after wave 1"
    )
    assert formatting.strategy(**{**default, "windows": ["nights", "noon"]}) == "in window nights or noon"


def test_a_maintenance_that_waits_for_an_operator() -> None:
    """After the wave at which its strategy stopped it, the state says what is missing, besides failures."""
    state = formatting.maintenance_state("Paused", held=False, failed=1, in_doubt=0, awaits_continue=True)
    assert state == "Paused: an operator must let it continue, 1 order failed"
