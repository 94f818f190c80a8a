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
    keys: str | tuple[str, ...]  # of its identities; most machines have one
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
    """Every machine. `Documents` changes them under its lock; the listener's thread only reads them.

    A machine is found by the key of its identity: its address, behind its interface if that identifies it as well.
    """

    def __init__(self) -> None:
        self.by_key: dict[str, Caller] = {}
        self.by_instance_id: dict[str, Caller] = {}
        self._by_scope: dict[str, dict[str, Caller]] = {}
        self.complete = False  # until all machines are loaded, a caller that is not found may be a machine

    def __len__(self) -> int:
        return sum(map(len, list(self._by_scope.values())))

    def named(self, scope: str, name: str) -> Caller | None:
        return self._by_scope.get(scope, {}).get(name)

    def at(self, interface: str, address: str) -> Caller | None:
        """Return the machine at an address, at an interface and address, or at an interface alone."""
        if not interface:
            return self.by_key.get(address)
        exact = self.by_key.get(_key(interface, address))
        # The machine with this interface and address may not be loaded yet: no other machine may be taken for it.
        return exact or (self.by_key.get(_key(interface, "")) if self.complete else None)

    def put(self, machine: MachineIdentity, view: ScopeView) -> None:
        """Add or update a machine. It keeps its record, which connections hold, unless it lost an identity or its scope."""
        name, instance_id, addresses = machine.name, machine.instance_id, machine.addresses
        # The same as `_keys_of` for most machines, without the call.
        keys = addresses[0] if not machine.interface and len(addresses) == 1 else _keys_of(machine)
        if machine.interface and any(key not in self.by_key for key in _each(keys)):
            self._renew(self.by_key.get(_key(machine.interface, "")))
        of_scope = self._by_scope.get(view.name)
        if of_scope is None:
            of_scope = self._by_scope[view.name] = {}
        caller = of_scope.get(name)
        if caller is not None:
            self._forget_identities(caller)
            if caller.view is not view or not set(_each(caller.keys)) <= set(_each(keys)):
                caller.view = None  # another machine may have its address now: its connections are identified again
                caller = None
        if caller is None:
            caller = of_scope[name] = Caller(
                view.name, name, view, machine.update_domain, machine.fault_domain, keys, instance_id
            )
        else:
            caller.update_domain, caller.fault_domain = machine.update_domain, machine.fault_domain
            caller.keys, caller.instance_id = keys, instance_id
        if isinstance(keys, str):
            self.by_key[keys] = caller
        else:
            self.by_key |= dict.fromkeys(keys, caller)
        if instance_id:
            self.by_instance_id[instance_id] = caller

    def put_all(self, machines: Iterable[MachineIdentity], view: ScopeView) -> None:
        """Put machines of one scope. Fast for new machines with one address. Row of the bench: ready with 1,000,000 machines."""
        of_scope, by_key, scope = self._by_scope.setdefault(view.name, {}), self.by_key, view.name
        for machine in machines:
            name, addresses, instance_id = machine.name, machine.addresses, machine.instance_id
            if machine.interface or instance_id or len(addresses) != 1 or name in of_scope:
                self.put(machine, view)
                continue
            address = addresses[0]
            by_key[address] = of_scope[name] = Caller(
                scope, name, view, machine.update_domain, machine.fault_domain, address, instance_id
            )

    def _renew(self, whole: Caller | None) -> None:
        """Replace the record of a machine with a whole interface, of which another machine gets an address.

        Connections from that address hold the old record, so they are identified again.
        """
        if whole is None or whole.view is None:
            return
        identity = (whole.update_domain, whole.fault_domain, whole.keys, whole.instance_id)
        renewed = self._by_scope[whole.scope][whole.name] = Caller(whole.scope, whole.name, whole.view, *identity)
        self.by_key |= dict.fromkeys(_each(whole.keys), renewed)
        if whole.instance_id:
            self.by_instance_id[whole.instance_id] = renewed
        whole.view = None

    def remove(self, key: tuple[str, str]) -> None:
        scope, name = key
        of_scope = self._by_scope.get(scope, {})
        caller = of_scope.pop(name, None)
        if caller is not None:
            self._forget_identities(caller)
            caller.view = None
            if not of_scope:
                del self._by_scope[scope]

    def differing(
        self, machines: Iterable[MachineIdentity], views: dict[str, ScopeView], fleet_read: int
    ) -> dict[tuple[str, str], None]:
        """Return the keys of machines that differ from their records here; mark the others as found by this read."""
        keys: dict[tuple[str, str], None] = {}
        for machine in machines:
            caller = self.named(machine.scope, machine.name)
            if caller is not None and caller.view is views.get(machine.scope) and _same(caller, machine):
                caller.fleet_read = fleet_read
            else:
                keys[machine.scope, machine.name] = None
        return keys

    def not_found_by(self, fleet_read: int) -> list[tuple[str, str]]:
        of_scopes = list(self._by_scope.values())
        return [(c.scope, c.name) for callers in of_scopes for c in callers.values() if c.fleet_read != fleet_read]

    def _forget_identities(self, caller: Caller) -> None:
        for key in _each(caller.keys):
            if self.by_key.get(key) is caller:  # it may be another machine's by now
                del self.by_key[key]
        if self.by_instance_id.get(caller.instance_id) is caller:
            del self.by_instance_id[caller.instance_id]


def _key(interface: str, address: str) -> str:
    """Return one text for an identity. No interface contains a line feed."""
    return f"{interface}\n{address}" if interface else address


def _keys_of(machine: MachineIdentity) -> str | tuple[str, ...]:
    interface, addresses = machine.interface, machine.addresses
    if len(addresses) == 1:
        return _key(interface, addresses[0]) if interface else addresses[0]
    return tuple(_key(interface, address) for address in addresses)


def _each(keys: str | tuple[str, ...]) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else keys


def _same(caller: Caller, machine: MachineIdentity) -> bool:
    """Whether a record has the machine's facts; identities may come in any order."""
    return (
        (caller.update_domain, caller.fault_domain, caller.instance_id)
        == (machine.update_domain, machine.fault_domain, machine.instance_id)
    ) and sorted(_each(caller.keys)) == sorted(_each(_keys_of(machine)))
