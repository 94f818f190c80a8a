"""The property machine is tested too: each rule is bent on purpose, and the machine must notice."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from forewarn.core.errors import InvariantBroken
from forewarn.store import Store
from forewarn.store.memory import MemoryStore
from tests.properties.machine import ServiceMachine
from tests.properties.mutations import MUTATIONS, Patch


class MemoryMachine(ServiceMachine):
    @staticmethod
    def make_store() -> Store:
        return MemoryStore()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda each: each.__name__)
def test_a_bent_rule_is_noticed(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The property machine fails when the rule is bent."""
    mutate(monkeypatch)
    with pytest.raises((InvariantBroken, AssertionError), match=MUTATIONS[mutate]):
        run_state_machine_as_test(
            MemoryMachine,
            settings=settings(
                max_examples=3_000,
                stateful_step_count=25,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
