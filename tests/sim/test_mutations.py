"""The simulation is tested too: each rule is bent on purpose, and some seed must cause the right complaint."""

import re

import pytest

from tests.sim.mutations import MUTATIONS, Patch, no_invariants
from tests.sim.run import Simulation

MAX_SEEDS = 200
# Only a rare seed notices these. It is tried first: on a busy machine all that come before it take longer than the time limit.
NOTICED_BY = {"back_and_forth_is_no_jump": 69, "a_restart_forgets_the_clock": 202}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda each: each.__name__)
def test_a_bent_rule_is_noticed(
    mutate: Patch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The judge alone notices: the core's own check of its changes is off."""
    no_invariants(monkeypatch)
    mutate(monkeypatch)
    first = NOTICED_BY.get(mutate.__name__, 0)
    for tried, seed in enumerate([first, *range(MAX_SEEDS)], 1):
        complaints = Simulation(seed).run().complaints
        if any(re.search(MUTATIONS[mutate], sentence) for sentence in complaints):
            with capsys.disabled():
                print(f" {mutate.__name__}: seed {seed}, {tried} tried")
            return
    pytest.fail(f"{MAX_SEEDS} seeds did not notice it")


def test_the_judge_needs_no_help_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the core's check off and no rule bent, the judge has no complaint."""
    no_invariants(monkeypatch)
    assert [Simulation(seed).run().complaints for seed in range(5)] == [[]] * 5
