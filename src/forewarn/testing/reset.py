"""Ends everything that an emulator has under way: maintenances, and the rules that a test added."""

from forewarn.app.service import Service
from forewarn.core.errors import Refused
from forewarn.core.model import UNFINISHED, Actor, Order, OrderState
from forewarn.core.order_verbs import Outcome
from forewarn.core.transitions import Verb
from forewarn.store import MaintenanceQuery

AT_ONCE = 1_000
# Each round ends everything that is open. What an end causes, such as the start of machines after the work on their host, is
# ended by the next round.
MAX_ROUNDS = 20
UNENDED = (OrderState.OPEN, OrderState.RUNNING, OrderState.IN_DOUBT, OrderState.FAILED)


def end_maintenances(service: Service, actor: Actor) -> None:
    """Cancel what has not started and finish what has, until nothing is open."""
    store, control = service.store, service.control
    for _ in range(MAX_ROUNDS):
        service.ticker.cycle_until_idle()
        unfinished = store.maintenances(MaintenanceQuery(statuses=UNFINISHED, limit=AT_ONCE))
        if not unfinished:
            return
        for maintenance in unfinished:
            control.cancel_maintenance(maintenance.id, actor)
        for order in (*store.orders(UNENDED, AT_ONCE), *store.orders(UNENDED, AT_ONCE, of_hosts=True)):
            _finish(service, order, actor)
    raise Refused(f"maintenance {unfinished[0].id} does not end: start another emulator instead of a reset")


def _finish(service: Service, order: Order, actor: Actor) -> None:
    control = service.control
    if order.state in (OrderState.FAILED, OrderState.IN_DOUBT):
        resolve = control.resolve_host if order.host else control.resolve_failure
        resolve(order.id, Verb.FINISH, actor)
        return
    if order.host and order.state is OrderState.OPEN:
        control.take_order(order.id, actor, node=actor.origin)
    control.report_order(order.id, Outcome(ok=True), actor)


def remove_rules(service: Service, actor: Actor) -> None:
    """Remove the windows, no-go times, budgets, hooks and cordons that a test added. No scope may use a window."""
    store, control = service.store, service.control
    rules = store.fleet_rules()
    for name in rules.no_go_times:
        control.remove_no_go_time(name, actor)
    for name in rules.windows:
        control.remove_window(name, actor)
    control.set_budget(actor, max_hosts_down=0, max_machines_down=0)
    for hook in store.hooks():
        control.remove_hook(hook.id, actor)
    for host in store.hosts().values():
        if host.cordoned is not None:
            control.uncordon_host(host.name, actor)
