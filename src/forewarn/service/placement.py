"""Read from the store where the machines of an event may go; `core.placement` holds the rules."""

from forewarn.core.model import Event, EventType, Host, Machine
from forewarn.core.placement import Hosts, targets
from forewarn.store import MAX_PAGE, Focus, HostQuery, Store


def leaves_host(event: Event) -> bool:
    """Whether the machines of the event go to another host."""
    return event.type is EventType.REDEPLOY


def event_targets(store: Store, event: Event, rows: dict[str, Host]) -> dict[str, tuple[str, ...]]:
    """Return the hosts that each machine of the event may go to, the best first; nothing if the machines stay."""
    if not leaves_host(event) or not any(host.listed for host in rows.values()):
        return {}
    of_scope = _machines_of(store, event.scope)
    leaving = [machine for machine in of_scope if machine.name in event.resources]
    return targets(leaving, of_scope, Hosts(rows=rows, machines=_machines_on_hosts(store)))


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
