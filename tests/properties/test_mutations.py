"""The suite is tested too: each rule is bent on purpose, and the property machine must notice."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from forewarn.core import advance, lifecycle, planning, waiting
from forewarn.core.draft import Draft
from forewarn.core.errors import InvariantBroken
from forewarn.core.model import Event, Scope, Status
from forewarn.core.transitions import TRANSITIONS, Verb
from forewarn.store import Store
from forewarn.store.memory import MemoryStore
from tests.properties.machine import ServiceMachine

Patch = Callable[[pytest.MonkeyPatch], None]


class MemoryMachine(ServiceMachine):
    @staticmethod
    def make_store() -> Store:
        return MemoryStore()


def _blind_to(patch: pytest.MonkeyPatch, code: str) -> None:
    """Whatever started events hold in this way is not seen."""
    taken = waiting._taken
    patch.setattr(waiting, "_taken", lambda draft, wave: (r for r in taken(draft, wave) if r.code != code))


def no_update_domain_guard(patch: pytest.MonkeyPatch) -> None:
    _blind_to(patch, "update-domain")


def no_machine_guard(patch: pytest.MonkeyPatch) -> None:
    _blind_to(patch, "machine")


def start_without_approval(patch: pytest.MonkeyPatch) -> None:
    for module in (waiting, advance):
        patch.setattr(module, "ready", lambda maintenance, event, now: True)


def one_approval_is_enough_for_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(waiting, "approved", lambda event: bool(event.approvals))


def approval_bumps_the_incarnation(patch: pytest.MonkeyPatch) -> None:
    original = Draft._changed_scopes

    def bumped(draft: Draft, moved: list[Event]) -> dict[str, Scope]:
        changed = original(draft, moved)
        for approval in draft._approvals:
            name = draft.events[approval.event_id].scope
            scope = changed.get(name, draft.scopes[name])
            changed[name] = replace(scope, incarnation=scope.incarnation + 1)
        return changed

    patch.setattr(Draft, "_changed_scopes", bumped)


def incarnation_stays(patch: pytest.MonkeyPatch) -> None:
    original = Draft._next

    def stays(draft: Draft, name: str) -> Scope:
        return replace(original(draft, name), incarnation=draft.before.scopes[name].incarnation)

    patch.setattr(Draft, "_next", stays)


def notice_not_applied(patch: pytest.MonkeyPatch) -> None:
    original = planning.publication

    def hasty(*arguments: Any) -> dict[str, planning.Publication]:
        told = original(*arguments)
        return {i: replace(each, not_before=each.published, minimum_notice_s=0) for i, each in told.items()}

    patch.setattr(advance, "publication", hasty)


def raised_notice_not_applied(patch: pytest.MonkeyPatch) -> None:
    original = planning.publication

    def protocol_only(maintenance: Any, events: Any, scopes: dict[str, Scope], now_in: Any) -> Any:
        return original(maintenance, events, {n: replace(s, minimum_notice_s={}) for n, s in scopes.items()}, now_in)

    patch.setattr(advance, "publication", protocol_only)


def notice_counts_from_publication(patch: pytest.MonkeyPatch) -> None:
    for module in (waiting, advance):
        patch.setattr(module, "notice_over", lambda maintenance, event: event.not_before)


def started_events_can_be_cancelled(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(TRANSITIONS[Status.STARTED], Verb.CANCEL, Status.CANCELLED)


def ended_events_can_be_cancelled(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(TRANSITIONS[Status.COMPLETED], Verb.CANCEL, Status.CANCELLED)


def overtaking_in_a_scope(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(waiting, "_due_wave_ahead", lambda draft, maintenance, wave: [])


def earliest_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(waiting, "_before_earliest", lambda draft, maintenance, wave: False)


def waves_do_not_start_together(patch: pytest.MonkeyPatch) -> None:
    original = waiting.current_wave
    patch.setattr(advance, "current_wave", lambda draft, maintenance: original(draft, maintenance)[:1])


def all_waves_published_at_once(patch: pytest.MonkeyPatch) -> None:
    def everything(draft: Draft, maintenance: Any) -> list[Event]:
        return [
            e for e in draft.events_of(maintenance.id) if e.status is Status.PLANNED or e.status is Status.SCHEDULED
        ]

    patch.setattr(advance, "current_wave", everything)


def not_before_moves_after_publication(patch: pytest.MonkeyPatch) -> None:
    original = lifecycle._record_approval

    def moving(draft: Draft, event: Event, machine: str) -> None:
        original(draft, event, machine)
        draft.put(replace(draft.events[event.id], not_before=draft.now_in(event.scope)))

    patch.setattr(lifecycle, "_record_approval", moving)


def nobody_is_woken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Draft, "_wakes", lambda draft, moved: set())


def others_are_not_woken(patch: pytest.MonkeyPatch) -> None:
    """Only the maintenance whose own event changed is looked at again, not those that waited for it."""
    original = Draft._wakes

    def own(draft: Draft, moved: list[Event]) -> set[str]:
        return original(draft, moved) & {e.maintenance_id for e in moved}

    patch.setattr(Draft, "_wakes", own)


def wakes_too_late(patch: pytest.MonkeyPatch) -> None:
    def never(draft: Draft, maintenance: Any) -> datetime | None:
        return None

    patch.setattr(advance, "_wake_at", never)


def enabling_keeps_the_epoch(patch: pytest.MonkeyPatch) -> None:
    original = lifecycle.enable

    def same_epoch(snapshot: Any, scope: str, **options: Any) -> Any:
        change = original(snapshot, scope, **options)
        kept = tuple(replace(s, epoch=snapshot.scopes[s.name].epoch, incarnation=1) for s in change.scopes)
        return replace(change, scopes=kept)

    patch.setattr(lifecycle, "enable", same_epoch)


# Each mutation, and the alarm it must raise: a patch that merely crashes the code has proved nothing.
MUTATIONS: dict[Patch, str] = {
    no_update_domain_guard: "invariant 6: ",
    no_machine_guard: "invariant 6: machine .* at once",
    start_without_approval: "invariant 1: .* without approval",
    one_approval_is_enough_for_all: "invariant 1: .* without approval",
    approval_bumps_the_incarnation: "invariant 4: ",
    incarnation_stays: "invariant 4: ",
    notice_not_applied: "invariant 2: .* less than its minimum notice",
    raised_notice_not_applied: "invariant 2: .* less than its minimum notice",
    notice_counts_from_publication: "invariant 2: .* before guests could see it",
    started_events_can_be_cancelled: "invariant 7: .* Started to Cancelled",
    ended_events_can_be_cancelled: "invariant 7: .* Completed to Cancelled",
    overtaking_in_a_scope: "would overtake",
    earliest_ignored: "invariant 1: .* before the earliest start",
    waves_do_not_start_together: "invariant 8: .* left behind|nobody moves it",
    all_waves_published_at_once: "invariant 8: .* visible at once|invariant 6: ",
    not_before_moves_after_publication: "invariant 2: .* change its NotBefore",
    nobody_is_woken: "nobody moves it",
    others_are_not_woken: "nobody moves it",
    wakes_too_late: "nobody moves it",
    enabling_keeps_the_epoch: "invariant 4: ",
}


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as context:
        yield context


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda each: each.__name__)
def test_a_bent_rule_is_noticed(mutate: Patch, patch: pytest.MonkeyPatch) -> None:
    """The property machine fails when the rule is bent."""
    mutate(patch)
    with pytest.raises((InvariantBroken, AssertionError), match=MUTATIONS[mutate]):
        run_state_machine_as_test(
            MemoryMachine,
            settings=settings(
                max_examples=1_000,
                stateful_step_count=25,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
