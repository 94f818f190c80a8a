"""Which buttons a page shows: actions that the state allows (the core's tables) and the caller may do (the API's rules).

Buttons are a convenience. The API decides on each action when it is requested.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from forewarn.core.formatting import missing_approvals
from forewarn.core.hosts import HostState
from forewarn.core.model import UNSTARTED, OrderState, Status
from forewarn.core.transitions import ORDER_TRANSITIONS, TRANSITIONS, OrderVerb, Verb
from forewarn.operator.api.bodies import EventOut, HostOut, MaintenanceOut, OrderOut
from forewarn.operator.api.client import ApiClient


@dataclass(frozen=True, slots=True)
class Button:
    """A button: the call it makes, its label and its effect; `irreversible` if the effect cannot be undone.

    `asks` says that a page of its own confirms it although the effect can be undone.
    """

    verb: str
    label: str
    effect: str
    irreversible: bool = False
    asks: bool = False

    @property
    def asks_first(self) -> bool:
        """Whether a page of its own confirms it. A live page may change under the pointer; a failure needs a reason anyway."""
        return self.asks or (self.irreversible and self.verb != "fail")


# An operator resolves the event of such an order.
UNRESOLVED = frozenset({OrderState.FAILED, OrderState.IN_DOUBT})
APPROVE = Button("approve", "Approve", "approve it for all its machines: it starts as soon as nothing blocks it")
CANCEL = Button("cancel", "Cancel", "end it before it starts; it disappears for guests", irreversible=True)
RESCHEDULE = Button("reschedule", "Reschedule", "move it to another time: it is planned again under a new id")
RESOLUTIONS = {
    Verb.RETRY: Button("retry", "Retry", "let its order be taken again"),
    Verb.FINISH: Button("finish", "Finish", "the work was done after all: the event ends as completed"),
    Verb.ABANDON: Button("abandon", "Abandon", "give up: the event ends and its work stays undone", irreversible=True),
}
ORDER = {
    OrderVerb.TAKE: Button("start", "Take the order", "you start the work now"),
    OrderVerb.FINISH: Button("finish", "Report as done", "the work is done: the event ends"),
    OrderVerb.FAIL: Button("fail", "Report a failure", "the work failed, for the reason you give", irreversible=True),
}
PAUSE = Button("pause", "Pause", "hold events that have not started; NotBefore stays")
RESUME = Button("resume", "Resume", "continue at once")
CONTINUE = Button("continue", "Continue", "publish the next wave")
RETRY_ALL = Button(
    "retry-failed", "Retry all", "let all its failed orders be taken again; orders in doubt stay as they are"
)
CANCEL_REST = Button(
    "cancel",
    "Cancel the rest",
    "cancel events that have not started; started events run to their end",
    irreversible=True,
)
HOST_ORDER = {
    OrderVerb.TAKE: ORDER[OrderVerb.TAKE],
    OrderVerb.FINISH: Button("finish", "Report as done", "the work on the host is done"),
    OrderVerb.FAIL: ORDER[OrderVerb.FAIL],
}
HOST_RESOLUTIONS = {
    Verb.RETRY: RESOLUTIONS[Verb.RETRY],
    Verb.FINISH: Button("finish", "Finish", "the work on the host was done after all"),
    Verb.ABANDON: Button(
        "abandon", "Abandon", "give up: the work stays undone, and the host stays cordoned", irreversible=True
    ),
}
SKIP = Button(
    "skip",
    "Skip",
    "leave this host out: what has not started is cancelled, machines that left stay away, and the host stays cordoned if"
    " its turn had begun",
    irreversible=True,
)
RESCHEDULE_HOST = Button(
    "reschedule", "Reschedule", "let this host have its turn at another time, after the other hosts"
)
CORDON = Button("cordon", "Cordon", "no machine is sent to this host; its machines stay", asks=True)
UNCORDON = Button("uncordon", "Uncordon", "machines may be sent to this host again", asks=True)
REVOKE = Button("revoke", "Revoke", "the token stops working at once", irreversible=True)


BULK = {button.verb: button for button in (APPROVE, CANCEL, RESOLUTIONS[Verb.RETRY])}


def bulk_buttons(api: ApiClient, verbs: Iterable[str]) -> list[Button]:
    """Return the actions on several events at once that the caller's role allows."""
    return [BULK[verb] for verb in verbs if api.may("POST", f"/v1/events/{{id}}/{verb}")]


def event_buttons(api: ApiClient, event: EventOut, order: OrderOut | None) -> list[Button]:
    allowed = TRANSITIONS[event.status]
    buttons = []
    # A second approval is allowed and changes nothing.
    if event.status is Status.SCHEDULED and missing_approvals(event.waiting_for):
        buttons.append(APPROVE)
    if Verb.CANCEL in allowed:
        buttons.append(CANCEL)
    if Verb.RESCHEDULE in allowed:
        buttons.append(RESCHEDULE)
    if order is not None and order.state in UNRESOLVED:
        buttons += [button for verb, button in RESOLUTIONS.items() if verb in allowed]
    return [button for button in buttons if api.may("POST", f"/v1/events/{event.id}/{button.verb}")]


def order_buttons(api: ApiClient, event: EventOut, order: OrderOut | None, *, taken_here: bool) -> list[Button]:
    """Return the actions on an order that other programs take; one that failed or is in doubt is handled with its event."""
    if order is None or taken_here or event.status is not Status.STARTED or order.state in UNRESOLVED:
        return []
    held = any(reason.code == "store-held" for reason in event.waiting_for)
    buttons = [
        button
        for verb, button in ORDER.items()
        if verb in ORDER_TRANSITIONS[order.state] and not (held and verb is OrderVerb.TAKE)
    ]
    return [button for button in buttons if api.may("POST", f"/v1/orders/{order.id}/{button.verb}")]


def maintenance_buttons(api: ApiClient, maintenance: MaintenanceOut) -> list[Button]:
    """Return what helps against failures, and the actions on events that have not started. What failures hold needs no pause."""
    buttons = [RETRY_ALL] if maintenance.progress.failed else []
    if any(reason.code == "continue" for reason in maintenance.needs_operator):
        buttons.append(CONTINUE)
    if UNSTARTED & maintenance.event_counts.keys():
        stop_or_go = [RESUME] if maintenance.paused else [] if maintenance.held else [PAUSE]
        buttons += [*stop_or_go, CANCEL_REST]
    return [button for button in buttons if api.may("POST", f"/v1/maintenances/{maintenance.id}/{button.verb}")]


def host_buttons(api: ApiClient, host: HostOut) -> list[Button]:
    """Return the button that changes the cordon. A host that a maintenance cordoned can be cordoned beyond its end."""
    in_maintenance = host.state == HostState.IN_MAINTENANCE
    effect = "no cordon any more, but the host stays in maintenance: no machine is sent there"
    lift = replace(UNCORDON, effect=effect) if in_maintenance else UNCORDON
    buttons = [lift] if host.cordoned else [CORDON]
    if host.cordoned_by:
        buttons.append(replace(CORDON, effect="keep it cordoned when its maintenance has ended"))
    return [button for button in buttons if api.may("POST", f"/v1/hosts/{host.name}/{button.verb}")]


def host_order_buttons(api: ApiClient, order: OrderOut) -> list[Button]:
    """Return what resolves the order of a host, what reports it, and how the host is left out."""
    if order.state in UNRESOLVED:
        return [button for button in HOST_RESOLUTIONS.values() if api.may("POST", f"/v1/orders/{{id}}/{button.verb}")]
    # An executor of the service reports its orders itself; its name has the name of its node.
    ours = order.state is OrderState.RUNNING and " on " in order.node
    buttons = [button for verb, button in HOST_ORDER.items() if verb in ORDER_TRANSITIONS[order.state] and not ours]
    if order.state is OrderState.PLANNED:
        buttons = []
    if order.state is OrderState.OPEN:
        buttons = [button for button in buttons if button.verb != HOST_ORDER[OrderVerb.FINISH].verb]
    buttons = [button for button in buttons if api.may("POST", f"/v1/orders/{{id}}/{button.verb}")]
    path = f"/v1/maintenances/{{id}}/hosts/{{host}}/{RESCHEDULE_HOST.verb}"
    if order.state is OrderState.PLANNED and api.may("POST", path):
        buttons.append(RESCHEDULE_HOST)
    may_skip = OrderVerb.CANCEL in ORDER_TRANSITIONS[order.state] and api.may(
        "POST", f"/v1/maintenances/{{id}}/hosts/{{host}}/{SKIP.verb}"
    )
    return [*buttons, SKIP] if may_skip else buttons
