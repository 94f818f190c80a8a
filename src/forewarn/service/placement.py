"""Read from the store where the machines of an event may go; `core.placement` holds the rules."""

from forewarn.core.host_orders import UNDER_WAY
from forewarn.core.model import Event, EventType, Host, Machine, OrderState
from forewarn.core.placement import Hosts, targets
from forewarn.store import MAX_PAGE, Focus, HostQuery, Store

MAX_HOSTS = 100_000


def leaves_host(event: Event) -> bool:
    """Whether the machines of the event go to another host."""
    return event.type is EventType.REDEPLOY or is_live(event)


def is_live(event: Event) -> bool:
    """Whether the event empties a host, or brings machines back to it, by live migration."""
    return event.type is EventType.FREEZE and bool(event.host)


def event_targets(store: Store, event: Event, rows: dict[str, Host]) -> dict[str, tuple[str, ...]]:
    """Return the hosts that each machine of the event may go to, the best first; nothing if the machines stay."""
    if not leaves_host(event) or not (event.to_host or any(host.listed for host in rows.values())):
        return {}
    of_scope = _machines_of(store, event.scope)
    leaving = [machine for machine in of_scope if machine.name in event.resources]
    hosts = Hosts(rows=rows, machines=_machines_on_hosts(store), in_maintenance=_in_maintenance(store))
    return targets(leaving, of_scope, hosts, to_host=event.to_host)


def _in_maintenance(store: Store) -> set[str]:
    """Return the hosts whose work may be under way, or failed."""
    return {order.host for order in store.orders({*UNDER_WAY, OrderState.FAILED}, MAX_HOSTS, of_hosts=True)}


def _machines_of(store: Store, scope: str) -> list[Machine]:
    focus = Focus(scopes=(scope,), inventory=True, whole_maintenances=False, open_events=False)
    return list(store.snapshot(focus).machines.values())


def _machines_on_hosts(store: Store) -> dict[str, int]:
    counts: dict[str, int] = {}
    after: str | None = ""
    while after is not None:
        page = store.hosts_page(HostQuery(after=after, limit=MAX_PAGE))
        counts |= {each.name: each.machines for each in page}
        after = page[-1].name if len(page) == MAX_PAGE else None
    return counts
