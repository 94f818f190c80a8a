"""The simulation is tested too: each rule is bent on purpose, and some seed must cause the right complaint."""

import re
from dataclasses import replace

import pytest

from tests.sim.mutations import MUTATIONS, Patch, no_invariants
from tests.sim.run import Simulation
from tests.sim.universe import Faults

MAX_SEEDS = 200
# Only a rare seed with the faults it draws would notice these. Every seed has these faults instead.
PROVOKED_BY = {
    "a_restart_forgets_the_clock": Faults(blackout_every_s=200, clock_every_s=600, jump_s=3_600),
    "back_and_forth_is_no_jump": Faults(clock_every_s=150, jump_s=3_600),
    "lost_reports_are_not_repeated": Faults(failover_every_s=100, slow=0.1, slow_s=5, cannot_begin=0.8),
    "limit_of_failures_ignored": Faults(work_fails=0.6),
    "a_rescheduled_host_does_not_wait": Faults(host_work=30),
    "machines_are_stopped_when_announced": Faults(host_work=30),
    "a_cancelled_host_is_worked_on": Faults(host_work=30),
    "machines_that_can_go_nowhere_are_announced": Faults(host_work=30),
    "every_failover_is_one_step": Faults(failover_every_s=200, notification_lost=0.1, slow=0.03, slow_s=5),
}
# A seed that noticed the mutation is tried first, because most seeds do not. Any other seed may notice it instead.
TRIED_FIRST = {
    "one_approval_is_enough_for_all": 20,
    "raised_notice_not_applied": 1,
    "started_events_can_be_cancelled": 16,
    "ended_events_can_be_cancelled": 4,
    "earliest_ignored": 20,
    "deadline_ignored": 9,
    "budget_of_hosts_ignored": 174,
    "rescheduled_past_the_deadline": 59,
    "a_drill_hands_out_an_order": 1,
    "all_waves_published_at_once": 1,
    "nobody_is_woken": 4,
    "others_are_not_woken": 5,
    "a_host_looks_empty": 3,
    "a_cordoned_host_is_chosen": 26,
    "a_cancelled_host_is_worked_on": 4,
    "two_update_domains_in_one_wave": 1,
    "start_outside_a_window": 19,
    "limit_of_failures_ignored": 5,
    "no_version_check": 37,
    "older_than_the_guest": 1,
    "read_before_it_is_taken_in": 6,
    "what_is_forgotten_is_not_read": 1,
    "never_stale": 11,
    "begins_what_may_have_begun": 1,
    "a_jump_is_not_held": 5,
    "a_hold_holds_nothing": 5,
    "back_and_forth_is_no_jump": 4,
    "a_restart_forgets_the_clock": 4,
    "late_readings_count": 78,
    "epochs_are_not_renewed": 29,
    "every_failover_is_one_step": 27,
    "forgets_what_it_may_have_taken": 5,
    "lost_reports_are_not_repeated": 133,
    "only_its_own_guests_count": 49,
    "decisions_never_age": 73,
    "bake_cut_short_by_a_failover": 11,
    "a_rescheduled_host_does_not_wait": 27,
    "machines_that_can_go_nowhere_are_announced": 2,
    "a_host_in_maintenance_is_chosen": 99,
    "others_changes_are_not_looked_after": 18,
}


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda each: each.__name__)
def test_a_bent_rule_is_noticed(
    mutate: Patch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The judge alone notices: the core's own check of its changes is off."""
    no_invariants(monkeypatch)
    mutate(monkeypatch)
    faults = PROVOKED_BY.get(mutate.__name__)
    for seed in (TRIED_FIRST.get(mutate.__name__, 0), *range(MAX_SEEDS)):
        complaints = Simulation(seed, replace(faults) if faults is not None else None).run().complaints
        if any(re.search(MUTATIONS[mutate], sentence) for sentence in complaints):
            with capsys.disabled():
                print(f" {mutate.__name__}: noticed by seed {seed}")
            return
    pytest.fail(f"{MAX_SEEDS} seeds did not notice it")


def test_only_mutations_have_a_seed_of_their_own() -> None:
    """A name that no mutation has any more is removed from the tables."""
    assert {*PROVOKED_BY, *TRIED_FIRST} <= {mutate.__name__ for mutate in MUTATIONS}


def test_the_judge_needs_no_help_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the core's check off and no rule bent, the judge has no complaint."""
    no_invariants(monkeypatch)
    assert [Simulation(seed).run().complaints for seed in range(5)] == [[]] * 5
