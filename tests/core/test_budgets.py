"""Budgets: what counts as unavailable, what waits for room, and who can make room."""

import pytest

from forewarn.core.budgets import scope_limit
from forewarn.core.fleet import Fleet
from forewarn.core.fleet_difference import apply_difference, difference
from forewarn.core.model import EventType, OnFailure, Source, Status, Targets
from forewarn.core.needs_operator import needs_operator
from forewarn.core.transitions import Verb
from tests.support.builders import OPERATOR, START, World, machine, scope, shop, two_scopes

CAPACITY = "max_unavailable allows 1 machine of shop at once"


def one_at_a_time(domains: int = 3) -> World:
    """Return a scope with a machine in each update domain, of which one may be unavailable."""
    return shop(domains=domains, max_unavailable="1")


@pytest.mark.parametrize("text, machines, limit", [("", 9, None), ("3", 9, 3), ("50%", 9, 4), ("10%", 9, 1)])
def test_the_limit_of_a_scope(text: str, machines: int, limit: int | None) -> None:
    """A number, or a share of the machines that is rounded down and is at least one."""
    assert scope_limit(scope(max_unavailable=text), machines) == limit


def test_a_published_event_has_reserved_its_share() -> None:
    """The next wave waits unpublished, names the event that uses the budget, and goes on when that event ends."""
    world = one_at_a_time()
    (first,) = world.submit("shop/web-0")
    (second,) = world.submit("shop/web-1")
    (reason,) = world.waiting_for(second.id)
    assert (reason.code, reason.events) == ("budget", (first.id,))
    assert reason.message == f"{CAPACITY}: 1 in use, and this wave needs 1 more"
    assert (world.status(second.id), world.maintenance(second.id).wake_at) == (Status.PLANNED, None)
    change = world.cancel_event(first.id)
    assert second.maintenance_id in change.wakes
    world.tick()
    assert world.status(second.id) is Status.SCHEDULED


def test_the_end_of_an_event_wakes_a_wave_with_an_earliest_start() -> None:
    """A wave that waits for its budget is woken for that too, not only by its earliest start."""
    world = one_at_a_time()
    (first,) = world.submit("shop/web-0")
    (second,) = world.submit("shop/web-1", earliest=START.replace(day=2))
    assert second.maintenance_id in world.cancel_event(first.id).wakes
    world.tick()
    assert world.status(second.id) is Status.SCHEDULED


@pytest.mark.parametrize(
    "options",
    [
        {"source": Source.USER},
        {"type": EventType.REDEPLOY, "source": Source.USER},
        {"emergency": True},
    ],
)
def test_other_events_count_but_never_wait(options: dict[str, object]) -> None:
    """User events and emergencies find no room and are not held back; rolling maintenance then waits for them."""
    world = one_at_a_time()
    (first,) = world.submit("shop/web-0")
    (other,) = world.submit("shop/web-1", **options)
    assert world.status(other.id) in (Status.SCHEDULED, Status.STARTED)
    world.cancel_event(first.id)
    (second,) = world.submit("shop/web-2")
    (reason,) = world.waiting_for(second.id)
    assert (reason.code, reason.events) == ("budget", (other.id,))


def test_machines_that_are_unavailable_already_need_no_room() -> None:
    """A wave for the same machines takes nothing more down, although an emergency has exceeded the budget."""
    world = one_at_a_time()
    world.submit("shop/web-0", "shop/web-1", emergency=True)
    (again,) = world.submit("shop/web-1", type=EventType.FREEZE)
    assert world.status(again.id) is Status.SCHEDULED


def test_a_wave_waits_for_the_budget_of_each_of_its_scopes() -> None:
    """The events of a wave are published together, so one scope without room holds back the others."""
    world = two_scopes(max_unavailable="1")
    world.submit("ship/web-0")
    wave = world.submit("ship/web-1", "shop/web-0")
    assert [world.codes(event.id) for event in wave] == [["budget"], ["budget"]]


def test_a_failed_event_keeps_its_share_until_it_is_resolved() -> None:
    """With on_failure = continue the next wave still waits, and only an operator can free the budget."""
    world = one_at_a_time()
    first, second, _ = world.submit(targets=Targets(scope="shop"), on_failure=OnFailure.CONTINUE)
    world.start(first.id)
    world.fail(first.id)
    world.tick()
    (reason,) = world.waiting_for(second.id)
    assert reason.message == (
        f"{CAPACITY}: 1 in use, and this wave needs 1 more; event {first.id} keeps its share until its failure is"
        " resolved"
    )
    assert needs_operator(world.snapshot(), first.maintenance_id, world.now) == (reason,)
    world.resolve_failure(first.id, Verb.ABANDON)
    world.tick()
    assert world.status(second.id) is Status.SCHEDULED
    assert needs_operator(world.snapshot(), first.maintenance_id, world.now) == ()


def test_a_budget_in_use_by_work_that_goes_on_needs_no_operator() -> None:
    """Time and executors end that work."""
    world = shop(domains=3, max_unavailable="2")
    (failed,) = world.submit("shop/web-0")
    world.start(failed.id)
    world.fail(failed.id)
    world.submit("shop/web-1")
    (third,) = world.submit("shop/web-2")
    (reason,) = world.waiting_for(third.id)
    assert (reason.events[0], len(reason.events)) == (failed.id, 2)
    assert needs_operator(world.snapshot(), third.maintenance_id, world.now) == ()


def test_a_wave_larger_than_the_budget_needs_an_operator() -> None:
    """The budget was lowered after planning: the wave is not published, and says what to do."""
    machines = [machine("shop/web-0"), machine("shop/web-1"), machine("shop/web-2", 1)]
    world = World(scope(max_unavailable="2"), machines=machines)
    (first,) = world.submit("shop/web-2")
    (second,) = world.submit("shop/web-0", "shop/web-1")
    snapshot = world.snapshot()
    diff = difference(Fleet(snapshot.scopes, snapshot.machines), Fleet({"shop": scope(max_unavailable="1")}, {}))
    versions = {"shop": snapshot.scopes["shop"].version}
    change = world.save(apply_difference(snapshot, diff, versions=versions, now=world.now, actor=OPERATOR))
    assert change.wakes == (second.maintenance_id,)
    world.cancel_event(first.id)
    world.tick()
    (reason,) = world.waiting_for(second.id)
    assert reason.message == f"{CAPACITY}, and this wave has 2: it cannot be published before the budget is raised"
    assert reason.events == (second.id,)
    assert needs_operator(world.snapshot(), second.maintenance_id, world.now) == (reason,)
