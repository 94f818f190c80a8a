"""Hosts: cordon and uncordon them, and the state that is shown.

A cordon is an operator's or a maintenance's wish that forewarn sends no machine to the host. Reports and inventory are facts:
a machine that comes to a cordoned host is recorded there.
"""

from datetime import datetime
from enum import StrEnum

from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import NotFound
from forewarn.core.fast_init import replace
from forewarn.core.model import Actor, AuditEntry, Host, OrderState


class HostState(StrEnum):
    """The state of a host as users see it. It follows from the row and from the orders of the host."""

    UP = "up"
    CORDONED = "cordoned"
    IN_MAINTENANCE = "in-maintenance"


# States of a host's order in which its work may begin or go on.
IN_MAINTENANCE = frozenset({OrderState.OPEN, OrderState.RUNNING, OrderState.IN_DOUBT, OrderState.FAILED})


def host_state(host: Host, *, in_maintenance: bool) -> HostState:
    if in_maintenance:
        return HostState.IN_MAINTENANCE
    return HostState.UP if host.cordoned is None else HostState.CORDONED


def cordon(snapshot: Snapshot, name: str, *, now: datetime, actor: Actor) -> Change:
    """Cordon a host. A host that a maintenance cordoned stays cordoned after the maintenance."""
    host = known_host(snapshot, name)
    if host.cordoned is not None and not host.cordoned_by:
        return Change(at=now)
    detail = name if host.cordoned is None else f"{name}, also after the maintenance that cordoned it"
    return _changed(replace(host, cordoned=host.cordoned or now, cordoned_by=""), "host cordoned", detail, now, actor)


def uncordon(snapshot: Snapshot, name: str, *, now: datetime, actor: Actor) -> Change:
    host = known_host(snapshot, name)
    if host.cordoned is None:
        return Change(at=now)
    return _changed(replace(host, cordoned=None, cordoned_by=""), "host uncordoned", name, now, actor)


def known_host(snapshot: Snapshot, name: str) -> Host:
    """Return a host that has a row or carries machines, or raise NotFound."""
    host = snapshot.hosts.get(name)
    if host is not None:
        return host
    if any(machine.host == name for machine in snapshot.machines.values()):
        return Host(name=name)
    raise NotFound(f"there is no host {name!r}: the fleet does not list it, and no machine is on it")


def _changed(host: Host, action: str, detail: str, now: datetime, actor: Actor) -> Change:
    entry = AuditEntry(at=now, who=actor.name, origin=actor.origin, action=action, detail=detail)
    return Change(at=now, hosts=(host,), audit=(entry,))
