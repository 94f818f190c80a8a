"""The invariants hold for any requests in any order, on every store."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from forewarn.store import Store
from tests.conftest import STORES
from tests.properties.machine import FleetMachine, HostMachine, ServiceMachine
from tests.properties.window_machine import WindowMachine
from tests.support.budget import BUDGET

EXAMPLES = {"memory": 120, "postgres": 8, "sqlite": 25}
HOST_EXAMPLES = {"memory": 60, "postgres": 3, "sqlite": 8}


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", sorted(STORES))
def test_invariants_hold_for_any_requests(name: str) -> None:
    """No sequence of requests, reports and time breaks an invariant, saves part of a refused request, or loses a wake-up."""
    run(name, FleetMachine, EXAMPLES[name])


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", sorted(STORES))
def test_invariants_hold_for_maintenance_of_hosts(name: str) -> None:
    """The same, with hosts that are evacuated or worked on in place."""
    run(name, HostMachine, HOST_EXAMPLES[name])


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", sorted(STORES))
def test_invariants_hold_with_windows(name: str) -> None:
    """The same, with windows and no-go times that open and close all the time."""
    run(name, WindowMachine, HOST_EXAMPLES[name])


def run(name: str, machine: type[ServiceMachine], examples: int) -> None:
    class Machine(machine):  # type: ignore[valid-type, misc]
        @staticmethod
        def make_store() -> Store:
            return STORES[name](Path(tempfile.mkdtemp(dir=folder)))

    with tempfile.TemporaryDirectory() as folder:
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=examples * BUDGET,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
