"""What a change can fail with: versions that moved, identities that are taken, references to nothing."""

from collections.abc import Iterable

from forewarn.core.change import Change
from forewarn.core.errors import Conflict, InvariantBroken
from forewarn.core.model import Machine
from forewarn.core.operator_model import Hook
from forewarn.store.memory.tables import MemoryTables, identities_of


class MemoryChecks(MemoryTables):
    def _check(self, change: Change) -> None:
        """Raise whatever the change can fail with, before anything is written."""
        for name, version in change.expect:
            known = self._scopes.get(name)
            if (known.version if known is not None else 0) != version:
                raise Conflict(f"scope {name} was changed by another request or node")
        for maintenance in change.maintenances:
            held = self._maintenances.get(maintenance.id)
            if (held.version if held is not None else 0) != maintenance.version:
                raise Conflict(f"maintenance {maintenance.id} was changed by another request or node")
        for approval in change.approvals:
            event = self._events.get(approval.event_id)
            if event is not None and any(a.machine == approval.machine for a in event.approvals):
                raise Conflict("the same approval is already recorded")
        if change.releases_hold is not None and change.releases_hold != self._hold:
            raise Conflict("the clock is held for another jump than the one confirmed")
        if change.resumes_store is not None and change.resumes_store != self._store_hold:
            raise Conflict("the store is held for another reason than the one that was resumed")
        if change.begins_work and self._store_hold is not None and self._store_hold.resumed is None:
            raise Conflict("the store has been held meanwhile")
        if change.fleet_rules is not None and change.fleet_rules.version != self._fleet_rules.version:
            raise Conflict("the rules of the fleet were changed by another request or node")
        if change.reservations is not None and change.reservations != self._fleet_rules.reservations:
            raise Conflict("another wave was published meanwhile")
        self._check_tokens(change)
        self._check_hooks(change.hooks)
        self._check_hosts(change)
        self._check_identities(change)
        self._check_references(change)

    def _check_tokens(self, change: Change) -> None:
        if change.tokens:
            kept = [token for token in self._tokens.values() if token.id not in change.removed_tokens]
            names = [name for token in (*kept, *change.tokens) for name in (("id", token.id), ("digest", token.digest))]
            if len(set(names)) < len(names):
                raise Conflict("a token with this id or secret exists already")
        keys = [(receipt.token_id, receipt.key) for receipt in change.receipts]
        if len(set(keys)) < len(keys) or any(key in self._receipts for key in keys):
            raise Conflict("a request with this key was answered already")

    def _check_hooks(self, hooks: Iterable[Hook]) -> None:
        for hook in hooks:
            known = self._hooks.get(hook.id)
            if (known.version if known is not None else 0) != hook.version:
                raise Conflict("the hook was changed meanwhile")

    def _check_hosts(self, change: Change) -> None:
        for name, version in (*change.removed_hosts, *((host.name, host.version) for host in change.hosts)):
            known = self._hosts.get(name)
            if (known.version if known is not None else 0) != version:
                raise Conflict("a host was changed by another request or node")

    def _check_identities(self, change: Change) -> None:
        replaced = {m.key for m in change.machines} | set(change.removed_machines)
        claimed: dict[object, Machine] = {}
        for machine in change.machines:
            for identity in identities_of(machine):
                owner = self._identities.get(identity)
                if owner is None or owner.key in replaced:
                    owner = claimed.setdefault(identity, machine)
                if owner.key != machine.key:
                    raise Conflict(f"{machine} claims {identity}, which belongs to {owner}")

    def _check_references(self, change: Change) -> None:
        """Check what foreign keys check in SQL: every reference is to something that exists."""
        scopes = {s.name for s in change.scopes}
        dangling = [str(m) for m in change.machines if m.scope not in scopes and m.scope not in self._scopes]
        removed = set(change.removed_machines)
        for name in change.removed_scopes:
            dangling += [f"{name}/{m}" for m in self._machines.get(name, ()) if (name, m) not in removed]
        maintenances = {m.id for m in change.maintenances}
        for event in change.events:
            if event.maintenance_id not in maintenances and event.maintenance_id not in self._maintenances:
                dangling.append(event.id)
            elif event.id in self._events and self._events[event.id].maintenance_id != event.maintenance_id:
                raise InvariantBroken("invariant 3: an event id is used by another maintenance; nothing was saved")
        events = {e.id for e in change.events}
        named = [*(a.event_id for a in change.approvals), *(o.id for o in change.orders if not o.host)]
        dangling += [i for i in named if i not in events and i not in self._events]
        of_hosts = [o for o in change.orders if o.host]
        dangling += [o.id for o in of_hosts if o.maintenance_id not in maintenances | self._maintenances.keys()]
        if dangling:
            raise InvariantBroken(f"{dangling[0]} would belong to nothing that exists; nothing was saved")
