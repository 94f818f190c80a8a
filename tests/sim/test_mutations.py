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
    "machines_are_stopped_when_announced": Faults(host_work=30),
    "a_cancelled_host_is_worked_on": Faults(host_work=30),
    "every_failover_is_one_step": Faults(failover_every_s=200, notification_lost=0.1, slow=0.03, slow_s=5),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda each: each.__name__)
def test_a_bent_rule_is_noticed(
    mutate: Patch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The judge alone notices: the core's own check of its changes is off."""
    no_invariants(monkeypatch)
    mutate(monkeypatch)
    faults = PROVOKED_BY.get(mutate.__name__)
    for seed in range(MAX_SEEDS):
        complaints = Simulation(seed, replace(faults) if faults is not None else None).run().complaints
        if any(re.search(MUTATIONS[mutate], sentence) for sentence in complaints):
            with capsys.disabled():
                print(f" {mutate.__name__}: noticed by seed {seed}")
            return
    pytest.fail(f"{MAX_SEEDS} seeds did not notice it")


def test_the_judge_needs_no_help_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the core's check off and no rule bent, the judge has no complaint."""
    no_invariants(monkeypatch)
    assert [Simulation(seed).run().complaints for seed in range(5)] == [[]] * 5
