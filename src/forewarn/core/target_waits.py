"""Machines that must leave their host, or come back to it, and can go nowhere: they are neither announced nor started."""

from forewarn.core.draft import Draft
from forewarn.core.fast_init import replace
from forewarn.core.model import UNSTARTED, Event, HostMode, Maintenance
from forewarn.core.reason import Waiting


def no_target(draft: Draft, maintenance: Maintenance, host: str, to_host: str) -> list[Waiting]:
    """Return why the machines of a host can go nowhere; nothing if they can, or if the hosts were not read."""
    hosts = draft.before.target_hosts
    if hosts is None or maintenance.host_mode is not HostMode.EVACUATE:
        return []
    why = replace(hosts, rows={**hosts.rows, **draft.hosts}).no_target(host, to_host)
    return [Waiting(code="no-target", message=f"its machines can go to no host: {why}")] if why else []


def target_waits(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Waiting]:
    """Return why the machines of a wave can go to no host."""
    if maintenance.host_mode is None:
        return []
    ways = dict.fromkeys((e.host, e.to_host) for e in wave if e.status in UNSTARTED)
    return [reason for way in ways for reason in no_target(draft, maintenance, *way)][:1]
