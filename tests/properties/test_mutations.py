"""The property machine is tested too: each rule is bent on purpose, and the machine must notice."""

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from forewarn.core.errors import InvariantBroken
from forewarn.store import Store
from forewarn.store.memory import MemoryStore
from tests.properties.machine import HostMachine, ServiceMachine
from tests.properties.mutations import HOST_MUTATIONS, MUTATIONS, WINDOW_MUTATIONS, Patch
from tests.properties.window_machine import WindowMachine

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


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutate", HOST_MUTATIONS, ids=lambda each: each.__name__)
def test_a_bent_rule_about_hosts_is_noticed(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The property machine with hosts fails when the rule is bent."""
    mutate(monkeypatch)
    with pytest.raises((InvariantBroken, AssertionError), match=HOST_MUTATIONS[mutate]):
        run_every_seed(HostMachine)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutate", WINDOW_MUTATIONS, ids=lambda each: each.__name__)
def test_a_bent_rule_about_windows_is_noticed(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The property machine with windows fails when the rule is bent."""
    mutate(monkeypatch)
    with pytest.raises((InvariantBroken, AssertionError), match=WINDOW_MUTATIONS[mutate]):
        run_every_seed(WindowMachine)


def run_every_seed(machine: type[ServiceMachine] = ServiceMachine) -> None:
    for number in SEEDS:
        run_examples(number, machine)


def run_examples(number: int, machine: type[ServiceMachine]) -> None:
    """Run the property machine on memory, with examples that are the same in every run."""

    @seed(number)
    class MemoryMachine(machine):  # type: ignore[valid-type, misc]
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
