"""The property machine is tested too: each rule is bent on purpose, and the machine must notice."""

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from forewarn.core.errors import InvariantBroken
from forewarn.store import Store
from forewarn.store.memory import MemoryStore
from tests.properties.machine import ServiceMachine
from tests.properties.mutations import MUTATIONS, Patch

# How soon the examples that show a bent rule come depends on the seed: short runs find them sooner than one long run.
SEEDS = range(256)
EXAMPLES = 15


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda each: each.__name__)
def test_a_bent_rule_is_noticed(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The property machine fails when the rule is bent."""
    mutate(monkeypatch)
    with pytest.raises((InvariantBroken, AssertionError), match=MUTATIONS[mutate]):
        run_every_seed()


def run_every_seed() -> None:
    for number in SEEDS:
        run_examples(number)


def run_examples(number: int) -> None:
    """Run the property machine on memory, with examples that are the same in every run."""

    @seed(number)
    class MemoryMachine(ServiceMachine):
        @staticmethod
        def make_store() -> Store:
            return MemoryStore()

    run_state_machine_as_test(
        MemoryMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=25,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
