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
# A seed that noticed the mutation is tried first, because most seeds do not. Any other seed may notice it instead.
TRIED_FIRST = {
    "no_update_domain_guard": 2,
    "no_machine_guard": 20,
    "one_approval_is_enough_for_all": 1,
    "raised_notice_not_applied": 6,
    "notice_counts_from_publication": 2,
    "started_events_can_be_cancelled": 1,
    "ended_events_can_be_cancelled": 1,
    "overtaking_in_a_scope": 20,
    "budgets_count_started_events_only": 9,
    "what_is_up_again_wakes_nobody": 13,
    "deadline_ignored": 13,
    "rescheduled_past_the_deadline": 9,
    "a_drill_hands_out_an_order": 1,
    "waves_do_not_start_together": 1,
    "wakes_too_late": 1,
    "enabling_keeps_the_epoch": 1,
    "a_doubt_has_a_time_limit": 6,
    "a_retry_is_no_new_attempt": 1,
    "hold_of_the_store_ignored": 2,
    "bake_time_ignored": 23,
    "limit_of_failures_ignored": 60,
    "no_operator_continues": 3,
    "start_outside_a_window": 12,
    "announced_at_once": 39,
    "announced_beyond_its_window": 19,
    "budget_of_hosts_ignored": 2,
    "a_cordoned_host_is_chosen": 2,
    "machines_are_stopped_when_announced": 4,
    "a_cancelled_host_is_worked_on": 17,
}


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda each: each.__name__)
def test_a_bent_rule_is_noticed(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The property machine fails when the rule is bent."""
    mutate(monkeypatch)
    with pytest.raises((InvariantBroken, AssertionError), match=MUTATIONS[mutate]):
        run_every_seed(mutate, ServiceMachine)


@pytest.mark.parametrize("mutate", HOST_MUTATIONS, ids=lambda each: each.__name__)
def test_a_bent_rule_about_hosts_is_noticed(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The property machine with hosts fails when the rule is bent."""
    mutate(monkeypatch)
    with pytest.raises((InvariantBroken, AssertionError), match=HOST_MUTATIONS[mutate]):
        run_every_seed(mutate, HostMachine)


@pytest.mark.parametrize("mutate", WINDOW_MUTATIONS, ids=lambda each: each.__name__)
def test_a_bent_rule_about_windows_is_noticed(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The property machine with windows fails when the rule is bent."""
    mutate(monkeypatch)
    with pytest.raises((InvariantBroken, AssertionError), match=WINDOW_MUTATIONS[mutate]):
        run_every_seed(mutate, WindowMachine)


def test_only_mutations_have_a_seed_of_their_own() -> None:
    """A name that no mutation has any more is removed from the table."""
    mutations = (*MUTATIONS, *HOST_MUTATIONS, *WINDOW_MUTATIONS)
    assert TRIED_FIRST.keys() <= {mutate.__name__ for mutate in mutations}


def run_every_seed(mutate: Patch, machine: type[ServiceMachine]) -> None:
    for number in (TRIED_FIRST.get(mutate.__name__, 0), *SEEDS):
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
