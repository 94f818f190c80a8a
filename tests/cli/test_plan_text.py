"""The plan of a maintenance as text."""

from forewarn.cli import plan_text
from tests.cli.api_bodies import SECOND_ID, event, maintenance, waiting


def test_a_plan_shows_waves_machines_hosts_and_notice() -> None:
    """A row per event, in the order of their start; no machine is left out."""
    names = [f"web-{n}" for n in range(20)]
    plan = maintenance(event(resources=names, hosts=["r1", "r2"]), event(SECOND_ID, wave=2, update_domain=1, hosts=[]))
    assert plan_text.summary(plan) == "Reboot of 21 machines in 1 scope, 2 waves, one after the other"
    assert plan_text.rows(plan) == [
        (1, "shop", 0, ", ".join(names), "r1, r2", "15m"),
        (2, "shop", 1, "web-0", "", "15m"),
    ]
    grouped = maintenance(event(group="r1", hosts=[]))
    assert plan_text.rows(grouped) == [("1 r1", "shop", 0, "web-0", "", "15m")]


def test_each_reason_that_blocks_a_plan_is_given_once() -> None:
    """Two events that wait for the same."""
    held = waiting("store-held", "the store is held: restored")
    busy = waiting("machine", "web-0 in shop is in event A, which has started")
    plan = maintenance(event(waiting_for=[held, busy]), event(SECOND_ID, wave=2, waiting_for=[held]))
    assert plan_text.blockers(plan) == [held["message"], busy["message"]]
