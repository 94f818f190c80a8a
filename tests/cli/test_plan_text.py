"""The plan of a maintenance as text."""

from forewarn.cli import plan_text
from tests.cli.api_bodies import SECOND_ID, event, maintenance


def test_a_plan_shows_waves_machines_and_notice() -> None:
    """A row per event, in the order of their start; no machine is left out."""
    names = [f"web-{n}" for n in range(20)]
    plan = maintenance(event(resources=names), event(SECOND_ID, wave=2, update_domain=1))
    assert plan_text.summary(plan) == "Reboot of 21 machines in 1 scope, 2 waves, one after the other"
    assert plan_text.rows(plan) == [(1, "shop", 0, ", ".join(names), "15m"), (2, "shop", 1, "web-0", "15m")]
