"""The failures on top of a page: orders that failed or are in doubt, by maintenance, with the buttons that resolve them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forewarn.core.model import MaintenanceStatus, OrderState
from forewarn.operator.api.bodies import CountsOut, MaintenanceOut, MaintenanceRow, OrderOut
from forewarn.operator.api.client import ApiClient
from forewarn.operator.portal.buttons import HOST_RESOLUTIONS, RESOLUTIONS, RETRY_ALL, UNRESOLVED, Button
from forewarn.operator.portal.page_request import PageRequest

MAX_ROWS = 10
PAUSED_READ = 100


@dataclass(frozen=True, slots=True)
class MaintenanceFailures:
    """The unresolved orders of one maintenance, the maintenance if they hold it, and the buttons that concern all of them."""

    maintenance_id: str
    held: MaintenanceRow | None
    orders: Sequence[OrderOut]
    buttons: Sequence[Button]


@dataclass(frozen=True, slots=True)
class Failures:
    """What a page shows: `counts` of all unresolved orders, the newest of them by maintenance, and each order's buttons.

    `host_buttons` are those of the orders of hosts.

    `back` is the page to return to after an action. `maintenance_id` is "" unless they are the failures of one maintenance.
    """

    counts: Mapping[OrderState, int]
    groups: Sequence[MaintenanceFailures]
    buttons: Sequence[Button]
    host_buttons: Sequence[Button]
    back: str
    maintenance_id: str = ""

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
    held = {row.id: row for row in paused if row.held}
    by_maintenance: dict[str, list[OrderOut]] = {}
    for order in newest:
        by_maintenance.setdefault(order.maintenance_id, []).append(order)
    may_retry = api.may("POST", "/v1/maintenances/{id}/" + RETRY_ALL.verb)
    groups = [
        MaintenanceFailures(
            maintenance_id,
            held.get(maintenance_id),
            orders,
            [RETRY_ALL] if may_retry and any(order.state is OrderState.FAILED for order in orders) else [],
        )
        for maintenance_id, orders in by_maintenance.items()
    ]
    return Failures(totals, groups, _buttons(api), _host_buttons(api), "/")


def failures_of(request: PageRequest, maintenance: MaintenanceOut) -> Failures | None:
    """Return the failures of one maintenance, or None if there are none."""
    progress, hosts = maintenance.progress, Counter(work.state for work in maintenance.hosts)
    totals = {
        OrderState.FAILED: progress.failed + hosts[OrderState.FAILED],
        OrderState.IN_DOUBT: progress.in_doubt + hosts[OrderState.IN_DOUBT],
    }
    if not any(totals.values()):
        return None
    api = request.api
    orders = api.get("/v1/orders", state=sorted(UNRESOLVED), maintenance=maintenance.id, limit=MAX_ROWS).items
    # Its own page shows its state and its buttons elsewhere.
    group = MaintenanceFailures(str(maintenance.id), None, orders, ())
    back = f"/maintenances/{maintenance.id}"
    return Failures(totals, [group], _buttons(api), _host_buttons(api), back, str(maintenance.id))


def _buttons(api: ApiClient) -> list[Button]:
    return [button for button in RESOLUTIONS.values() if api.may("POST", "/v1/events/{id}/" + button.verb)]


def _host_buttons(api: ApiClient) -> list[Button]:
    return [button for button in HOST_RESOLUTIONS.values() if api.may("POST", "/v1/orders/{id}/" + button.verb)]
