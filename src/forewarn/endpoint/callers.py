"""The machines of the fleet as the endpoint knows them: by name, by source address, by instance id.

Their records are small and untracked by the garbage collector: a million machines must not mean a pause.
"""

from collections.abc import Iterable

import msgspec

from forewarn.endpoint.document_state import DocumentState, Moment, ScopeView
from forewarn.store import MachineIdentity


class Caller(msgspec.Struct, gc=False):
    """One machine: who it is, and how much of its share of the endpoint it has used."""

    scope: str
    name: str
    view: ScopeView | None  # None: the machine has left the inventory
    update_domain: int
    fault_domain: int
    identities: tuple[tuple[str, str], ...]
    instance_id: str
    spent_until_s: float = 0.0  # when its requests so far would end if each took its share of a second
    connections: int = 0
    waiting: int = 0
    remembered: tuple[bytes, ...] = ()
    seen: Moment | None = None
    shown_state: DocumentState | None = None  # the document it last got
    fleet_read: int = 0  # the number of the last read of the whole fleet that found it unchanged
    seen_queued: bool = False  # its last-seen time waits to be written
    # A tag that no node sent, newer than the document it was compared with, and that document.
    unknown_tag: tuple[str, DocumentState] | None = None


class Callers:
    """Every machine. `Documents` changes them under its lock; the listener's thread only looks them up."""

    def __init__(self) -> None:
        self.by_address: dict[tuple[str, str], Caller] = {}
        self.by_instance_id: dict[str, Caller] = {}
        self._by_name: dict[tuple[str, str], Caller] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def named(self, scope: str, name: str) -> Caller | None:
        return self._by_name.get((scope, name))

    def at(self, interface: str, address: str) -> Caller | None:
        """Return the machine at an address, at an interface and address, or at an interface alone."""
        return self.by_address.get((interface, address)) or (
            self.by_address.get((interface, "")) if interface else None
        )

    def put(self, machine: MachineIdentity, view: ScopeView) -> None:
        """Add or update a machine. It keeps its record, which connections hold, unless it lost an identity or its scope."""
        key = (machine.scope, machine.name)
        caller = self._by_name.get(key)
        if caller is not None:
            self._forget_identities(caller)
        if caller is not None and (caller.view is not view or not set(caller.identities) <= set(machine.identities)):
            caller.view = None  # another machine may have its address now: its connections are identified again
            caller = None
        if caller is None:
            caller = self._by_name[key] = Caller(
                scope=machine.scope,
                name=machine.name,
                view=view,
                update_domain=machine.update_domain,
                fault_domain=machine.fault_domain,
                identities=machine.identities,
                instance_id=machine.instance_id,
            )
        caller.update_domain, caller.fault_domain = machine.update_domain, machine.fault_domain
        caller.identities, caller.instance_id = machine.identities, machine.instance_id
        for identity in machine.identities:
            self.by_address[identity] = caller
        if machine.instance_id:
            self.by_instance_id[machine.instance_id] = caller

    def remove(self, key: tuple[str, str]) -> None:
        caller = self._by_name.pop(key, None)
        if caller is not None:
            self._forget_identities(caller)
            caller.view = None

    def differing(
        self, machines: Iterable[MachineIdentity], views: dict[str, ScopeView], fleet_read: int
    ) -> dict[tuple[str, str], None]:
        """Return the keys of machines that differ from their records here; mark the others as found by this read."""
        keys: dict[tuple[str, str], None] = {}
        for machine in machines:
            caller = self._by_name.get((machine.scope, machine.name))
            if caller is not None and caller.view is views.get(machine.scope) and _same(caller, machine):
                caller.fleet_read = fleet_read
            else:
                keys[machine.scope, machine.name] = None
        return keys

    def not_found_by(self, fleet_read: int) -> list[tuple[str, str]]:
        return [key for key, caller in self._by_name.items() if caller.fleet_read != fleet_read]

    def _forget_identities(self, caller: Caller) -> None:
        for identity in caller.identities:
            if self.by_address.get(identity) is caller:  # it may be another machine's by now
                del self.by_address[identity]
        if self.by_instance_id.get(caller.instance_id) is caller:
            del self.by_instance_id[caller.instance_id]


def _same(caller: Caller, machine: MachineIdentity) -> bool:
    """Whether a record has the machine's facts; identities may come in any order."""
    return (
        (caller.update_domain, caller.fault_domain, caller.instance_id)
        == (machine.update_domain, machine.fault_domain, machine.instance_id)
    ) and sorted(caller.identities) == sorted(machine.identities)
