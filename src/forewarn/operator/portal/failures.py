"""The failures on top of a page: orders that failed or are in doubt, by maintenance, with the buttons that resolve them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from forewarn.core.formatting import maintenance_state
from forewarn.core.model import MaintenanceStatus, OnFailure, OrderState
from forewarn.operator.api.bodies import CountsOut, MaintenanceOut, OrderOut
from forewarn.operator.api.client import ApiClient
from forewarn.operator.portal.buttons import RESOLUTIONS, RETRY_ALL, UNRESOLVED, Button
from forewarn.operator.portal.page_request import PageRequest

MAX_ROWS = 20
PAUSED_READ = 100


@dataclass(frozen=True, slots=True)
class MaintenanceFailures:
    """The unresolved orders of one maintenance, its state in words, and the buttons that concern all of them."""

    maintenance_id: str
    state: str
    orders: Sequence[OrderOut]
    buttons: Sequence[Button]


@dataclass(frozen=True, slots=True)
class Failures:
    """What a page shows: `counts` of all unresolved orders, the newest of them by maintenance, and each order's buttons.

    `back` is the page to return to after an action.
    """

    counts: Mapping[OrderState, int]
    groups: Sequence[MaintenanceFailures]
    buttons: Sequence[Button]
    back: str

    @property
    def hidden(self) -> int:
        """How many orders are not shown."""
        return sum(self.counts.values()) - sum(len(group.orders) for group in self.groups)


def failures_now(request: PageRequest, counts: CountsOut) -> Failures | None:
    """Return the failures that the caller may see, or None if there are none."""
    api, totals = request.api, {OrderState.FAILED: counts.failed, OrderState.IN_DOUBT: counts.in_doubt}
    if not any(totals.values()):
        return None
    newest: list[OrderOut] = api.get("/v1/orders", state=sorted(UNRESOLVED), limit=MAX_ROWS).items
    paused = api.get("/v1/maintenances", status=MaintenanceStatus.PAUSED, limit=PAUSED_READ).items
    holding = {row.id for row in paused if row.on_failure is OnFailure.HOLD}
    complete = len(newest) >= sum(totals.values())
    order_of = {order.maintenance_id: place for place, order in reversed(list(enumerate(newest)))}
    newest.sort(key=lambda order: order_of[order.maintenance_id])
    groups = []
    for maintenance_id, group in groupby(newest, key=lambda order: order.maintenance_id):
        orders = list(group)
        states = Counter(order.state for order in orders)
        held = maintenance_id in holding and states[OrderState.FAILED] > 0
        # Of an incomplete list the numbers of one maintenance are not known.
        failed, in_doubt = (states[each] if complete else 0 for each in (OrderState.FAILED, OrderState.IN_DOUBT))
        state = maintenance_state("Held" if held else "", held=held, failed=failed, in_doubt=in_doubt)
        groups.append(_group(api, maintenance_id, state.removeprefix(": "), orders))
    return Failures(totals, groups, _buttons(api), "/")


def failures_of(request: PageRequest, maintenance: MaintenanceOut) -> Failures | None:
    """Return the failures of one maintenance, or None if there are none."""
    totals = {OrderState.FAILED: maintenance.failed, OrderState.IN_DOUBT: maintenance.in_doubt}
    if not any(totals.values()):
        return None
    api = request.api
    orders = api.get("/v1/orders", state=sorted(UNRESOLVED), maintenance=maintenance.id).items
    # Its own page shows its state and its buttons elsewhere.
    group = MaintenanceFailures(str(maintenance.id), "", orders[:MAX_ROWS], ())
    return Failures(totals, [group], _buttons(api), f"/maintenances/{maintenance.id}")


def _group(api: ApiClient, maintenance_id: str, state: str, orders: Sequence[OrderOut]) -> MaintenanceFailures:
    failed = any(order.state is OrderState.FAILED for order in orders)
    may = failed and api.may("POST", "/v1/maintenances/{id}/" + RETRY_ALL.verb)
    return MaintenanceFailures(maintenance_id, state, orders, [RETRY_ALL] if may else [])


def _buttons(api: ApiClient) -> list[Button]:
    return [button for button in RESOLUTIONS.values() if api.may("POST", "/v1/events/{id}/" + button.verb)]
