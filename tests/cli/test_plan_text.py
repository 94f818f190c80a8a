"""The plan of a maintenance as text."""

from forewarn.cli import plan_text
from forewarn.cli.maintenance import _deadline
from tests.cli.api_bodies import NOW, SECOND_ID, event, maintenance, waiting


def test_a_plan_shows_waves_machines_hosts_and_notice() -> None:
    """A row per event, in the order of their start; no machine is left out."""
    names = [f"web-{n}" for n in range(20)]
    plan = maintenance(event(resources=names, hosts=["r1", "r2"]), event(SECOND_ID, wave=2, update_domain=1, hosts=[]))
    # web-0 is in both events, as after rescheduling: it is one machine.
    assert plan_text.summary(plan) == "Reboot of 20 machines in 1 scope, 2 waves, one after the other"
    assert plan_text.rows(plan) == [
        (1, "shop", 0, ", ".join(names), "r1, r2", "15m"),
        (2, "shop", 1, "web-0", "", "15m"),
    ]
    grouped = maintenance(event(group="r1", hosts=[]))
    assert plan_text.rows(grouped) == [("1 r1", "shop", 0, "web-0", "", "15m")]


def test_a_calendar_shows_the_bounds_of_each_start() -> None:
    """A time that is not known is called unknown; the end says what it assumes."""
    wave = {"wave": 1, "groups": ["r1"], "events": 2, "machines": 9, "hosts": ["h1"], "may_wait_for": ["bake"]}
    times = {"earliest": "2030-01-01T12:00:00Z", "latest": None}
    calendar = {
        "work_s": 300,
        "waves": [{**wave, **times, "returns": False}],
        "hosts": [],
        "earliest_end": "2030-01-01T13:00:00Z",
        "latest_end": None,
    }
    assert plan_text.calendar_rows(calendar) == [(1, "r1", 2, 9, "h1", "2030-01-01 12:00:00Z", "unknown", "bake")]
    assert plan_text.calendar_end({"calendar": calendar, "drill_hold_s": 0}) == (
        "end: 2030-01-01 13:00:00Z if all is approved at once and work takes no time,"
        " unknown if nothing is approved and the work of each event takes 5m"
    )
    turn = {"turn": 1, "host": "h1", "machines": 9, **times, "earliest_end": None, "latest_end": None}
    of_hosts = {**calendar, "waves": [{**wave, **times, "returns": True}], "hosts": [{**turn, "may_wait_for": []}]}
    assert plan_text.calendar_rows(of_hosts)[0][0] == "1 (back)"
    assert plan_text.calendar_host_rows(of_hosts) == [
        (1, "h1", 9, "2030-01-01 12:00:00Z", "unknown", "unknown", "unknown", "")
    ]
    assert "the work of each event and on each host takes 5m" in plan_text.calendar_end(
        {"calendar": of_hosts, "drill_hold_s": 0}
    )
    assert plan_text.calendar_end({"calendar": calendar, "drill_hold_s": 300}) == (
        "end: 2030-01-01 13:00:00Z if all is approved at once, unknown if nothing is approved;"
        " each event ends 5m after its start"
    )


def test_each_reason_that_blocks_a_plan_is_given_once() -> None:
    """Two events that wait for the same."""
    held = waiting("store-held", "the store is held: restored")
    busy = waiting("machine", "web-0 in shop is in event A, which has started")
    plan = maintenance(event(waiting_for=[held, busy]), event(SECOND_ID, wave=2, waiting_for=[held]))
    assert plan_text.blockers(plan) == [held["message"], busy["message"]]


def test_a_deadline_that_has_passed_is_named() -> None:
    """If the maintenance ended earlier, the deadline has no effect."""
    body = maintenance(not_after="2030-01-31T11:00:00Z", ended=None)
    assert _deadline(body, NOW).startswith("2030-01-31 11:00:00Z")
    assert "passed" not in _deadline({**body, "ended": "2030-01-31T10:00:00Z"}, NOW)
    assert _deadline({**body, "ended": "2030-01-31T11:00:01Z"}, NOW).endswith(
        ", passed: what had not started by then was cancelled"
    )
    assert _deadline({**body, "not_after": None, "ended": NOW}, NOW) == ""
