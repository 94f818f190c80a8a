"""Resolve the selectors of a request: the names of the machines or hosts that they choose in the fleet as it is now.

`core.selectors` holds the rules. The maintenance keeps the selectors as they were written, and its events the machines.
"""

from forewarn.core.errors import NotFound
from forewarn.core.formatting import names
from forewarn.core.model import MAX_HOSTS_PER_MAINTENANCE, MaintenanceRequest, Targets, require
from forewarn.core.selectors import Selection
from forewarn.service.placement import every_host
from forewarn.store import Focus, Store


def resolved_targets(store: Store, request: MaintenanceRequest) -> Targets | None:
    """Return the targets as names, or None if they are names already. Raise NotFound and say what matches nothing."""
    targets = request.targets
    if not targets.selects:
        return None
    if targets.on_hosts:
        return Targets(hosts=_hosts(store, targets, empty_too=request.host_mode is not None))
    return Targets(machines=_machines(store, targets))


def _machines(store: Store, targets: Targets) -> tuple[tuple[str, str], ...]:
    scopes = targets.scopes or ((targets.scope,) if targets.scope else ())
    domain = targets.update_domain
    _refuse_unknown(store, scopes)
    selection = Selection(targets.names, targets.labels)
    chosen = tuple(
        m.key
        for m in store.labelled_machines(scopes or None)
        if domain in (None, m.update_domain) and selection.takes(f"{m.scope}/{m.name}", m.labels, m.host_labels)
    )
    where = (f" of {names(scopes)}" if scopes else "") + ("" if domain is None else f" in update domain {domain}")
    selection.refuse_unmatched(f"machine{where}", chosen)
    return chosen


def _refuse_unknown(store: Store, scopes: tuple[str, ...]) -> None:
    focus = Focus(scopes=scopes, whole_maintenances=False, open_events=False, document_only=True)
    known = store.snapshot(focus).scopes
    for scope in scopes:
        if scope not in known:
            raise NotFound(f"there is no scope {scope!r}: check the name in the fleet", scope=scope)


def _hosts(store: Store, targets: Targets, *, empty_too: bool) -> tuple[str, ...]:
    """Return hosts by name, among those that carry machines and, with `empty_too`, those that the fleet lists."""
    selection = Selection(targets.hosts, targets.host_labels)
    candidates = (each.host for each in every_host(store) if each.machines or (empty_too and each.host.listed))
    chosen = tuple(host.name for host in candidates if selection.takes(host.name, host.labels))
    selection.refuse_unmatched("host" if empty_too else "host with machines", chosen)
    most = MAX_HOSTS_PER_MAINTENANCE
    require(len(chosen) <= most, f"the targets are {len(chosen)} hosts: submit several maintenances of at most {most}")
    return chosen
