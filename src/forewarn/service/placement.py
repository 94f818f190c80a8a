"""Read from the store where the machines of an event may go; `core.placement` holds the rules."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.hosts import IN_MAINTENANCE
from forewarn.core.model import Event, Host, HostMode, Machine
from forewarn.core.placement import Hosts, targets
from forewarn.store import MAX_PAGE, Focus, HostQuery, Store

MAX_HOST_ORDERS = 10_000


def leaves_host(event: Event) -> bool:
    """Whether the machines of the event go to another host."""
    return EVENT_TYPES[event.type].changes_host or is_live(event)


def is_live(event: Event) -> bool:
    """Whether the event moves running machines: it empties a host, or brings machines back, by a type that stops none."""
    rules = EVENT_TYPES[event.type]
    return event.host != "" and HostMode.EVACUATE in rules.host_modes and not rules.changes_host


def event_targets(store: Store, event: Event, rows: dict[str, Host]) -> dict[str, tuple[str, ...]]:
    """Return the hosts that each machine of the event may go to, the best first; nothing if the machines stay."""
    if not leaves_host(event):
        return {}
    of_scope = _machines_of(store, event.scope)
    leaving = [machine for machine in of_scope if machine.name in event.resources]
    return targets(leaving, of_scope, read_hosts(store, rows), to_host=event.to_host)


def no_target(store: Store, event: Event) -> str:
    """Return why the machines of the event cannot go to the host that an operator named, or ""."""
    named = leaves_host(event) and event.to_host
    why = Hosts(rows=store.hosts(), in_maintenance=hosts_in_maintenance(store)).why_not(event.to_host) if named else ""
    return f"{why}, and its machines must go there: uncordon it or wait, then retry" if why else ""


def planned_targets(store: Store, leaving: Iterable[Machine], to_host: str) -> dict[str, tuple[str, ...]]:
    """Return where machines of any scope may go now, by `scope/name`; each is placed as if the ones before had moved."""
    hosts = read_hosts(store, store.hosts())
    found: dict[str, tuple[str, ...]] = {}
    for scope, group in groupby(sorted(leaving, key=lambda machine: machine.key), key=lambda machine: machine.scope):
        placed = targets(group, _machines_of(store, scope), hosts, to_host=to_host)
        found |= {f"{scope}/{name}": names for name, names in placed.items()}
        arrived = Counter(names[0] for names in placed.values() if names)
        hosts = replace(hosts, machines=Counter(hosts.machines) + arrived)
    return found


def read_hosts(store: Store, rows: dict[str, Host]) -> Hosts:
    """Return what placement reads. Without a list of hosts nothing is chosen by their machines, so these are not counted."""
    machines = _machines_on_hosts(store) if any(host.listed for host in rows.values()) else {}
    return Hosts(rows=rows, machines=machines, in_maintenance=hosts_in_maintenance(store))


def hosts_in_maintenance(store: Store) -> frozenset[str]:
    return frozenset(order.host for order in store.orders(IN_MAINTENANCE, MAX_HOST_ORDERS, of_hosts=True))


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
