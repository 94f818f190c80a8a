"""The statuses of events and the states of orders: which verb leads where, as two tables.

    Planned --publish--> Scheduled --start--> Started --finish---> Completed
       |                     |                 ^  |
       |                     |                 |  +----abandon---> Abandoned
       +---------------------|------start------+
       +--cancel, reschedule-+-----------------------------------> Cancelled

A verb that is missing from a status is illegal in it. Approval is a fact on an event, not a status.
"""

from enum import StrEnum

from forewarn.core.errors import IllegalTransition
from forewarn.core.model import ENDED, OVER, Event, Order, OrderState, Status

HAS_ENDED = " (it has ended: for further work, schedule a new maintenance)"


class Verb(StrEnum):
    PUBLISH = "publish"
    APPROVE = "approve"
    START = "start"
    CANCEL = "cancel"
    RESCHEDULE = "reschedule"
    FAIL = "fail"
    RETRY = "retry"
    FINISH = "finish"
    ABANDON = "abandon"


TRANSITIONS: dict[Status, dict[Verb, Status]] = {
    # Guests cannot see a Planned event, so nobody can approve it.
    Status.PLANNED: {
        Verb.PUBLISH: Status.SCHEDULED,
        Verb.START: Status.STARTED,
        Verb.CANCEL: Status.CANCELLED,
        Verb.RESCHEDULE: Status.CANCELLED,
    },
    Status.SCHEDULED: {
        Verb.APPROVE: Status.SCHEDULED,
        Verb.START: Status.STARTED,
        Verb.CANCEL: Status.CANCELLED,
        Verb.RESCHEDULE: Status.CANCELLED,
    },
    # "Approved before, already Started, or ended: nothing changes: repeating is safe."
    Status.STARTED: {
        Verb.APPROVE: Status.STARTED,
        Verb.FAIL: Status.STARTED,
        Verb.RETRY: Status.STARTED,
        Verb.FINISH: Status.COMPLETED,
        Verb.ABANDON: Status.ABANDONED,
    },
    Status.COMPLETED: {Verb.APPROVE: Status.COMPLETED},
    Status.CANCELLED: {Verb.APPROVE: Status.CANCELLED},
    Status.ABANDONED: {Verb.APPROVE: Status.ABANDONED},
}


class OrderVerb(StrEnum):
    OPEN = "open"
    TAKE = "take"
    TAKE_OVER = "take-over"
    DOUBT = "doubt"
    STOP = "stop"
    FINISH = "finish"
    FAIL = "fail"
    RETRY = "retry"
    CANCEL = "cancel"
    ABANDON = "abandon"


# Only the order of a host is cancelled or abandoned. "stop" is what an order of in-place maintenance reports first: its machines
# are shut down, and it is planned again, to start them after the work on the host.
# An order in doubt runs again when the node that has its work returns. Only an operator lets it begin again, as a new attempt.
# An executor may report success after its order timed out: then the work is done all the same.
ORDER_TRANSITIONS: dict[OrderState, dict[OrderVerb, OrderState]] = {
    OrderState.PLANNED: {
        OrderVerb.OPEN: OrderState.OPEN,
        OrderVerb.FAIL: OrderState.FAILED,
        OrderVerb.CANCEL: OrderState.CANCELLED,
        OrderVerb.ABANDON: OrderState.ABANDONED,
    },
    OrderState.OPEN: {
        OrderVerb.TAKE: OrderState.RUNNING,
        OrderVerb.STOP: OrderState.PLANNED,
        OrderVerb.FINISH: OrderState.DONE,
        OrderVerb.FAIL: OrderState.FAILED,
        OrderVerb.CANCEL: OrderState.CANCELLED,
    },
    OrderState.RUNNING: {
        OrderVerb.TAKE_OVER: OrderState.RUNNING,
        OrderVerb.DOUBT: OrderState.IN_DOUBT,
        OrderVerb.STOP: OrderState.PLANNED,
        OrderVerb.FINISH: OrderState.DONE,
        OrderVerb.FAIL: OrderState.FAILED,
    },
    OrderState.IN_DOUBT: {
        OrderVerb.TAKE_OVER: OrderState.RUNNING,
        OrderVerb.STOP: OrderState.PLANNED,
        OrderVerb.FINISH: OrderState.DONE,
        OrderVerb.FAIL: OrderState.FAILED,
        OrderVerb.RETRY: OrderState.OPEN,
        OrderVerb.ABANDON: OrderState.ABANDONED,
    },
    OrderState.FAILED: {
        OrderVerb.STOP: OrderState.PLANNED,
        OrderVerb.FINISH: OrderState.DONE,
        OrderVerb.RETRY: OrderState.OPEN,
        OrderVerb.ABANDON: OrderState.ABANDONED,
    },
    OrderState.DONE: {},
    OrderState.CANCELLED: {},
    OrderState.ABANDONED: {},
}


def status_after(event: Event, verb: Verb) -> Status:
    """Return the status the verb leads to; raise IllegalTransition if there is none."""
    try:
        return TRANSITIONS[event.status][verb]
    except KeyError:
        raise IllegalTransition(
            f"event {event.id} is {event.status}: '{verb}' is not possible in this status{_instead(event)}"
        ) from None


def _instead(event: Event) -> str:
    """Return what an operator can do with the event, or why there is nothing to do."""
    if event.status is Status.STARTED:
        return " (it has started: it is too late)"
    if event.replaced_by:
        return "" if event.host else f" (event {event.replaced_by} replaces it)"
    if event.status in ENDED:
        return HAS_ENDED
    legal = [verb for verb in (Verb.APPROVE, Verb.CANCEL, Verb.RESCHEDULE) if verb in TRANSITIONS[event.status]]
    return f" (possible: {', '.join(legal)})"


def require_legal(event: Event, verb: Verb) -> None:
    """Raise IllegalTransition if the verb is not possible in the event's status."""
    status_after(event, verb)


def order_after(order: Order, verb: OrderVerb) -> OrderState:
    """Return the state the verb leads to; raise IllegalTransition if there is none."""
    try:
        return ORDER_TRANSITIONS[order.state][verb]
    except KeyError:
        instead = HAS_ENDED if order.state in OVER else ""
        raise IllegalTransition(
            f"order {order.id} is {order.state}: '{verb}' is not possible in this state{instead}"
        ) from None
