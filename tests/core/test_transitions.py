"""How events and orders may change. The tables here are written by hand from the design, not taken from the code."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from forewarn.core.change import Change
from forewarn.core.errors import IllegalTransition, Invalid, NotFound
from forewarn.core.model import OPEN, EventType, Order, OrderState, Status
from forewarn.core.transitions import ORDER_TRANSITIONS, TRANSITIONS, OrderVerb, Verb, order_after, status_after
from tests.support.builders import START, World, at, event, guid, shop

EVENTS = """
              publish    approve    start    cancel     reschedule fail     retry    finish     abandon
    Planned   Scheduled  -          Started  Cancelled  Cancelled  -        -        -          -
    Scheduled -          Scheduled  Started  Cancelled  Cancelled  -        -        -          -
    Started   -          Started    -        -          -          Started  Started  Completed  Abandoned
    Completed -          Completed  -        -          -          -        -        -          -
    Cancelled -          Cancelled  -        -          -          -        -        -          -
    Abandoned -          Abandoned  -        -          -          -        -        -          -
"""

# "stop" is the first report of an order that stops machines for the work on their host and starts them again later. Orders of
# hosts can also be planned, cancelled and abandoned.
ORDERS = """
              open  take     take-over  doubt     stop     finish  fail    retry  cancel     abandon
    planned   open  -        -          -         -        -       failed  -      cancelled  abandoned
    open      -     running  -          -         planned  done    failed  -      cancelled  -
    running   -     -        running    in-doubt  planned  done    failed  -      -          -
    in-doubt  -     -        running    -         planned  done    failed  open   -          abandoned
    failed    -     -        -          -         planned  done    -       open   -          abandoned
    done      -     -        -          -         -        -       -       -      -          -
    cancelled -     -        -          -         -        -       -       -      -          -
    abandoned -     -        -          -         -        -       -       -      -          -
"""
OF_EVENTS = {"open", "running", "in-doubt", "failed", "done"}

# What each verb of lifecycle makes of an event that stands where the row says: the status it has afterwards, or the
# error. Guests do not see a Planned event, so it is unknown to them; without a start there is no order.
LIFECYCLE = """
                 guest-approves operator-approves cancel    retry   finish    abandon   take    reports-done reports-failed
    Planned      Invalid        Illegal           Cancelled Illegal Illegal   Illegal   Unknown Unknown      Unknown
    Scheduled    Scheduled      Scheduled         Cancelled Illegal Illegal   Illegal   Unknown Unknown      Unknown
    open         Started        Started           Illegal   Illegal Illegal   Illegal   Started Completed    Started
    running      Started        Started           Illegal   Illegal Illegal   Illegal   Illegal Completed    Started
    in-doubt     Started        Started           Illegal   Started Completed Abandoned Illegal Completed    Started
    failed       Started        Started           Illegal   Started Completed Abandoned Illegal Completed    Illegal
    retried      Started        Started           Illegal   Illegal Illegal   Illegal   Started Completed    Started
    Completed    Completed      Completed         Illegal   Illegal Illegal   Illegal   Illegal Illegal      Illegal
    finished     Completed      Completed         Illegal   Illegal Illegal   Illegal   Illegal Illegal      Illegal
    Cancelled    Cancelled      Cancelled         Illegal   Illegal Illegal   Illegal   Unknown Unknown      Unknown
    Abandoned    Abandoned      Abandoned         Illegal   Illegal Illegal   Illegal   Illegal Illegal      Illegal
"""

ERRORS = {"Illegal": IllegalTransition, "Invalid": Invalid, "Unknown": NotFound}


def cells(table: str) -> list[tuple[str, str, str]]:
    """(row, column, what stands there) of every cell."""
    head, *rows = (line.split() for line in table.strip().splitlines())
    return [(row[0], column, cell) for row in rows for column, cell in zip(head, row[1:], strict=True)]


# -- the tables themselves


@pytest.mark.parametrize("status, verb, leads_to", cells(EVENTS))
def test_every_verb_on_every_status(status: str, verb: str, leads_to: str) -> None:
    """A verb leads where the table says; every other verb is illegal."""
    subject = event(status=Status(status))
    if leads_to == "-":
        with pytest.raises(IllegalTransition, match=rf"{subject.id} is {status}: '{verb}' is not possible in this"):
            status_after(subject, Verb(verb))
        assert subject == event(status=Status(status))
    else:
        assert status_after(subject, Verb(verb)) is Status(leads_to)


@pytest.mark.parametrize("state, verb, leads_to", cells(ORDERS))
def test_every_verb_on_every_order_state(state: str, verb: str, leads_to: str) -> None:
    """A verb leads where the table says; every other verb is illegal."""
    order = Order(id=guid(1), issued=START, state=OrderState(state))
    if leads_to == "-":
        with pytest.raises(IllegalTransition, match=rf"{order.id} is {state}: '{verb}' is not possible in this"):
            order_after(order, OrderVerb(verb))
        assert order == Order(id=guid(1), issued=START, state=OrderState(state))
    else:
        assert order_after(order, OrderVerb(verb)) is OrderState(leads_to)


def test_the_tables_are_complete() -> None:
    """Every status, state and verb is in the tables above."""
    assert {(row, column) for row, column, _ in cells(EVENTS)} == {(s, v) for s in Status for v in Verb}
    assert {(row, column) for row, column, _ in cells(ORDERS)} == {(s, v) for s in OrderState for v in OrderVerb}
    assert set(TRANSITIONS) == set(Status)
    assert set(ORDER_TRANSITIONS) == set(OrderState)


@pytest.mark.parametrize(
    ("facts", "verb", "end"),
    [
        ({"status": Status.SCHEDULED}, Verb.FINISH, "status (possible: approve, cancel, reschedule)"),
        ({"status": Status.PLANNED}, Verb.APPROVE, "status (possible: cancel, reschedule)"),
        ({"status": Status.STARTED}, Verb.CANCEL, "status (it has started: it is too late)"),
        ({"status": Status.COMPLETED}, Verb.CANCEL, "(it has ended: for further work, schedule a new maintenance)"),
        ({"status": Status.CANCELLED, "replaced_by": "E2"}, Verb.RESCHEDULE, "status (event E2 replaces it)"),
        ({"status": Status.CANCELLED, "replaced_by": "H", "host": "h1"}, Verb.RESCHEDULE, "possible in this status"),
    ],
)
def test_a_refusal_says_what_an_operator_can_do(facts: dict[str, Any], verb: Verb, end: str) -> None:
    """It names verbs of operators only, and the event that replaces a rescheduled one."""
    with pytest.raises(IllegalTransition) as refusal:
        status_after(event(**facts), verb)
    assert str(refusal.value).endswith(end)


# -- through the verbs of lifecycle


def event_that_is(where: str) -> tuple[World, str]:
    """A world at minute 1, and the id of an event in it that stands where a row of LIFECYCLE says."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1")
    world.now = at(1)
    if where == "Planned":
        return world, second.id
    if where == "Cancelled":
        world.cancel_event(first.id)
    elif where != "Scheduled":
        world.start(first.id)
        _work_on(world, first.id, where)
    return world, first.id


def _work_on(world: World, event_id: str, where: str) -> None:
    if where == "running":
        world.take(event_id)
    elif where == "in-doubt":
        world.take(event_id)
        world.doubt(event_id)
    elif where == "Completed":
        world.finish(event_id)
    elif where != "open":
        world.fail(event_id)
        resolved = {"retried": Verb.RETRY, "finished": Verb.FINISH, "Abandoned": Verb.ABANDON}
        if where in resolved:
            world.resolve_failure(event_id, resolved[where])


ACTIONS: dict[str, Callable[[World, str], Change]] = {
    "doubt": lambda world, event_id: world.doubt(event_id),
    "take-over": lambda world, event_id: world.take_over(event_id),
    "guest-approves": lambda world, event_id: world.approve("shop/web-1", event_id),
    "operator-approves": lambda world, event_id: world.approve_as_operator(event_id),
    "cancel": lambda world, event_id: world.cancel_event(event_id),
    "retry": lambda world, event_id: world.resolve_failure(event_id, Verb.RETRY),
    "finish": lambda world, event_id: world.resolve_failure(event_id, Verb.FINISH),
    "abandon": lambda world, event_id: world.resolve_failure(event_id, Verb.ABANDON),
    "take": lambda world, event_id: world.take(event_id),
    "reports-done": lambda world, event_id: world.finish(event_id),
    "reports-failed": lambda world, event_id: world.fail(event_id),
}


@pytest.mark.parametrize("where, action, outcome", cells(LIFECYCLE))
def test_every_action_on_every_event(where: str, action: str, outcome: str) -> None:
    """An action leads where the table says, or is refused and changes nothing."""
    world, event_id = event_that_is(where)
    if outcome in ERRORS:
        before = deepcopy(world.snapshot())
        with pytest.raises(ERRORS[outcome]) as refusal:
            ACTIONS[action](world, event_id)
        assert refusal.type is ERRORS[outcome]
        assert world.snapshot() == before
    else:
        ACTIONS[action](world, event_id)
        assert world.status(event_id) is Status(outcome)


@pytest.mark.parametrize(
    "state, verb, leads_to",
    [row for row in cells(ORDERS) if row[0] in OF_EVENTS and row[1] not in ("open", "stop", "cancel", "abandon")],
)
def test_every_action_on_every_order(state: str, verb: str, leads_to: str) -> None:
    """An action leads where the table says, or is refused and changes nothing."""
    world, order_id = event_that_is("Completed" if state == "done" else state)
    actions = {
        "take": "take",
        "take-over": "take-over",
        "doubt": "doubt",
        "finish": "reports-done",
        "fail": "reports-failed",
        "retry": "retry",
    }
    assert world.order(order_id).state is OrderState(state)
    if leads_to == "-":
        before = deepcopy(world.snapshot())
        with pytest.raises(IllegalTransition):
            ACTIONS[actions[verb]](world, order_id)
        assert world.snapshot() == before
    else:
        ACTIONS[actions[verb]](world, order_id)
        assert world.order(order_id).state is OrderState(leads_to)


@pytest.mark.parametrize(
    "where", ["open", "running", "in-doubt", "failed", "retried", "Completed", "finished", "Abandoned"]
)
def test_what_was_started_is_approved_without_effect(where: str) -> None:
    """ "Approved before, already Started, or ended: nothing changes: repeating is safe." """
    world, event_id = event_that_is(where)
    assert world.approve("shop/web-0", event_id).empty
    assert world.approve_as_operator(event_id).empty


@pytest.mark.parametrize("verb", [Verb.PUBLISH, Verb.START, Verb.CANCEL])
def test_a_failure_is_not_resolved_by_illegal_verbs(verb: Verb) -> None:
    """A Started event cannot be published, started or cancelled to resolve its failure."""
    world, event_id = event_that_is("failed")
    before = deepcopy(world.snapshot())
    with pytest.raises(IllegalTransition, match=verb):
        world.resolve_failure(event_id, verb)
    assert world.snapshot() == before


@pytest.mark.parametrize("verb", [Verb.APPROVE, Verb.FAIL])
def test_a_failure_is_resolved_by_retry_finish_or_abandon(verb: Verb) -> None:
    """Other verbs that are legal for a Started event are refused as invalid."""
    world, event_id = event_that_is("failed")
    before = deepcopy(world.snapshot())
    with pytest.raises(Invalid, match=f"resolved by retry, finish or abandon, not by {verb}"):
        world.resolve_failure(event_id, verb)
    assert world.snapshot() == before


@pytest.mark.parametrize("where", [row for row, column, _ in cells(LIFECYCLE) if column == "cancel"])
def test_time_moves_only_what_is_open(where: str) -> None:
    """A tick changes no ended event and moves no open event backwards."""
    world, event_id = event_that_is(where)
    before = world.event(event_id)
    for minutes in (2, 20, 200, 2_000):
        world.tick_at(minutes)
    if before.status in OPEN:
        assert list(Status).index(world.status(event_id)) >= list(Status).index(before.status)
    else:
        assert world.event(event_id) == before


def test_unknown_things_are_not_found() -> None:
    """Every verb names the unknown event, order, maintenance or scope, and changes nothing."""
    world, nothing = shop(), guid(4_711)
    before = deepcopy(world.snapshot())
    for action in ("operator-approves", "cancel", "retry", "take", "reports-done"):
        with pytest.raises(NotFound, match=nothing):
            ACTIONS[action](world, nothing)
    for verb in (world.cancel_maintenance, world.pause, world.resume):
        with pytest.raises(NotFound, match=f"no maintenance {nothing}"):
            verb(nothing)
    for switch in (world.enable, world.disable):
        with pytest.raises(NotFound, match="no scope ship"):
            switch("ship")
    with pytest.raises(NotFound, match=f"no event {nothing}"):
        world.waiting_for(nothing)
    with pytest.raises(NotFound, match="no machine shop/web-9"):
        world.submit("shop/web-9", type=EventType.REBOOT)
    assert world.snapshot() == before
