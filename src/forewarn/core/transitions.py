"""How an event and an order may change: the two tables, and nothing that acts on them.

    Planned --publish--> Scheduled --start--> Started --finish---> Completed
       |                     |                 ^  |
       |                     |                 |  +----abandon---> Abandoned
       +---------------------|------start------+
       +--------cancel-------+-----------------------------------> Cancelled

A verb that is missing from a status is illegal there. Approval is a fact on an event, not a status.
"""

from enum import StrEnum

from forewarn.core.errors import IllegalTransition
from forewarn.core.model import Event, Order, OrderState, Status


class Verb(StrEnum):
    PUBLISH = "publish"
    APPROVE = "approve"
    START = "start"
    CANCEL = "cancel"
    FAIL = "fail"
    RETRY = "retry"
    FINISH = "finish"
    ABANDON = "abandon"


# What each verb makes of each status; a verb that is missing is illegal there.
TRANSITIONS: dict[Status, dict[Verb, Status]] = {
    # A Planned event is invisible to guests: nobody can approve what nobody was told.
    Status.PLANNED: {
        Verb.PUBLISH: Status.SCHEDULED,
        Verb.START: Status.STARTED,
        Verb.CANCEL: Status.CANCELLED,
    },
    Status.SCHEDULED: {
        Verb.APPROVE: Status.SCHEDULED,
        Verb.START: Status.STARTED,
        Verb.CANCEL: Status.CANCELLED,
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
    TAKE = "take"
    TAKE_OVER = "take-over"
    FINISH = "finish"
    FAIL = "fail"
    RETRY = "retry"


# An executor that was given up on may still report success: the work is done, whatever the clock said.
ORDER_TRANSITIONS: dict[OrderState, dict[OrderVerb, OrderState]] = {
    OrderState.OPEN: {
        OrderVerb.TAKE: OrderState.RUNNING,
        OrderVerb.FINISH: OrderState.DONE,
        OrderVerb.FAIL: OrderState.FAILED,
    },
    OrderState.RUNNING: {
        OrderVerb.TAKE_OVER: OrderState.RUNNING,
        OrderVerb.FINISH: OrderState.DONE,
        OrderVerb.FAIL: OrderState.FAILED,
    },
    OrderState.FAILED: {OrderVerb.FINISH: OrderState.DONE, OrderVerb.RETRY: OrderState.OPEN},
    OrderState.DONE: {},
}


def after(event: Event, verb: Verb) -> Status:
    """The status the verb leads to, or IllegalTransition."""
    try:
        return TRANSITIONS[event.status][verb]
    except KeyError:
        raise IllegalTransition(
            f"event {event.id} is {event.status}: '{verb}' is not possible there"
            f" (possible: {', '.join(TRANSITIONS[event.status])})"
        ) from None


def order_after(order: Order, verb: OrderVerb) -> OrderState:
    """The state the verb leads to, or IllegalTransition."""
    try:
        return ORDER_TRANSITIONS[order.state][verb]
    except KeyError:
        raise IllegalTransition(f"order {order.id} is {order.state}: '{verb}' is not possible there") from None
