"""Which verbs a visitor is offered: those the state allows (the core's tables) and the visitor's role (the API's).

What is offered is a courtesy: whether it is done is decided when it is asked for, by the API.
"""

from dataclasses import dataclass

from forewarn.core.model import Event, Maintenance, Order, OrderState, Status
from forewarn.core.transitions import ORDER_TRANSITIONS, TRANSITIONS, OrderVerb, Verb
from forewarn.core.waiting import approved
from forewarn.operator.api.access import why_not_approve, why_not_cancel
from forewarn.operator.api.client import ApiClient


@dataclass(frozen=True, slots=True)
class Offer:
    """A button: what it does, its label, what happens then; `grave` where it cannot be taken back."""

    verb: str
    label: str
    means: str
    grave: bool = False

    @property
    def asks_first(self) -> bool:
        """Pressed on a page that moves by itself, it is only done after another page; a failure has to be told in words."""
        return self.grave and self.verb != "fail"


APPROVE = Offer("approve", "Approve", "say go for every machine of it: it starts as soon as nothing else is in its way")
CANCEL = Offer("cancel", "Cancel", "end it before it starts; guests see it disappear", grave=True)
SETTLE = {
    Verb.RETRY: Offer("retry", "Retry", "hand its order out again"),
    Verb.FINISH: Offer("finish", "Finish", "its work was done after all: it ends as completed"),
    Verb.ABANDON: Offer("abandon", "Abandon", "give it up: it ends, its work undone", grave=True),
}
ORDERS = {
    OrderVerb.TAKE: Offer("start", "Take the order", "say that you begin the work now"),
    OrderVerb.FINISH: Offer("finish", "Report it done", "say that the work is done: the event ends"),
    OrderVerb.FAIL: Offer("fail", "Report a failure", "say that the work failed, and why", grave=True),
}
PAUSE = Offer("pause", "Pause", "hold what has not started; NotBefore stays")
RESUME = Offer("resume", "Resume", "go on at once")
CANCEL_REST = Offer("cancel", "Cancel the rest", "end what has not started; what has runs to its end", grave=True)
REVOKE = Offer("revoke", "Revoke", "whoever uses it is out at once", grave=True)


def of_event(desk: ApiClient, event: Event, order: Order | None) -> list[Offer]:
    allowed = TRANSITIONS[event.status]
    offers = []
    # Approving again is allowed, and nothing would change.
    if event.status is Status.SCHEDULED and not approved(event) and not why_not_approve(desk.caller, event):
        offers.append(APPROVE)
    if Verb.CANCEL in allowed and not why_not_cancel(desk.caller, event):
        offers.append(CANCEL)
    if order is not None and order.state is OrderState.FAILED:
        offers += [offer for verb, offer in SETTLE.items() if verb in allowed]
    return [offer for offer in offers if desk.may("POST", f"/v1/events/{event.id}/{offer.verb}")]


def of_order(desk: ApiClient, event: Event, order: Order | None, *, taken_here: bool) -> list[Offer]:
    """Offer what may be done with an order that other programs take; a failed order is resolved with its event."""
    if order is None or taken_here or event.status is not Status.STARTED or order.state is OrderState.FAILED:
        return []
    offers = [offer for verb, offer in ORDERS.items() if verb in ORDER_TRANSITIONS[order.state]]
    return [offer for offer in offers if desk.may("POST", f"/v1/orders/{order.id}/{offer.verb}")]


def of_maintenance(desk: ApiClient, maintenance: Maintenance) -> list[Offer]:
    if maintenance.ended is not None:
        return []
    offers = [RESUME if maintenance.paused else PAUSE]
    offers += [] if maintenance.cancelled else [CANCEL_REST]
    return [offer for offer in offers if desk.may("POST", f"/v1/maintenances/{maintenance.id}/{offer.verb}")]
