"""The use cases on the fleet: apply a fleet file, follow an inventory, put and remove scopes and machines, cordon hosts.

`core.fleet_difference` and `core.hosts` hold the rules.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain

from forewarn.core import hosts
from forewarn.core.budgets import set_budget
from forewarn.core.change import Change
from forewarn.core.errors import NotFound, Refused
from forewarn.core.fleet import Fleet
from forewarn.core.fleet_difference import (
    Difference,
    apply_difference,
    changes_labels,
    difference,
    hosts_of_the_inventory,
    refuse_large_removal,
)
from forewarn.core.model import OPEN, Actor, Machine, Scope
from forewarn.core.window_rules import missed_windows
from forewarn.core.window_verbs import refuse_unknown_windows
from forewarn.service.decisions import Decisions, Once, too_many_conflicts, wake_hosts
from forewarn.service.hooks import without_hooks_of
from forewarn.store import Focus, Store


class FleetUseCases(Decisions):
    # Whether an inventory keeps the fleet as another system shows it. The service sets it.
    follows_inventory = False

    def apply_fleet(
        self,
        fleet: Fleet,
        actor: Actor,
        *,
        prune: bool = False,
        large_removal_ok: bool = True,
        dry_run: bool = False,
        once: Once | None = None,
    ) -> Difference:
        """Make the inventory as `fleet` states it. Applying the same fleet again changes nothing."""

        def compare(current: Fleet) -> Difference:
            diff = difference(current, fleet, prune=prune)
            if not large_removal_ok:
                refuse_large_removal(diff)
            warnings = hosts_of_the_inventory(current, diff) if self.follows_inventory else ()
            return replace(diff, warnings=(*diff.warnings, *warnings))

        return self._change_fleet(compare, actor, dry_run=dry_run, once=once)

    def put_scope(self, scope: Scope, actor: Actor) -> tuple[bool, tuple[str, ...]]:
        """Return whether it is new, and warnings."""
        new = False

        def diff(current: Fleet) -> Difference:
            nonlocal new
            new = scope.name not in current.scopes
            return difference(current, Fleet({scope.name: scope}, {}))

        changed = self._change_fleet(
            diff, actor, focus=Focus(scopes=(scope.name,), inventory=True, whole_maintenances=False, open_events=False)
        )
        return new, changed.warnings

    def put_machine(self, machine: Machine, actor: Actor) -> bool:
        """Return whether it is new."""
        new = False

        def diff(current: Fleet) -> Difference:
            nonlocal new
            new = machine.key not in current.machines
            scope = current.scopes.get(machine.scope)
            if scope is None:
                raise NotFound(f"there is no scope {machine.scope!r}", scope=machine.scope)
            return difference(current, Fleet({scope.name: scope}, {machine.key: machine}))

        # Its scope, and the machines that have one of its identities.
        same_identity = Focus(
            identities=machine.identities, instance_ids=(machine.instance_id,) if machine.instance_id else ()
        )
        self._change_fleet(
            diff,
            actor,
            focus=replace(
                same_identity, scopes=(machine.scope,), inventory=True, whole_maintenances=False, open_events=False
            ),
        )
        return new

    def remove_scope(self, name: str, actor: Actor) -> None:
        def diff(current: Fleet) -> Difference:
            if name not in current.scopes:
                raise NotFound(f"there is no scope {name!r}", scope=name)
            left = [str(m) for m in current.machines.values() if m.scope == name]
            if left:
                raise Refused(f"scope {name} has {len(left)} machines, {left[0]} among them: remove them first")
            return Difference(removed_scopes=(name,), lines=(f"- scope {name}",))

        self._change_fleet(
            diff, actor, focus=Focus(scopes=(name,), inventory=True, whole_maintenances=False, open_events=False)
        )

    def remove_machine(self, key: tuple[str, str], actor: Actor) -> None:
        def diff(current: Fleet) -> Difference:
            if key not in current.machines:
                raise NotFound(f"there is no machine {'/'.join(key)}")
            return Difference(removed_machines=(key,), lines=(f"- machine {'/'.join(key)}",))

        self._change_fleet(diff, actor, focus=Focus(machines=(key,), whole_maintenances=False, open_events=False))

    def cordon_host(self, name: str, actor: Actor) -> None:
        self._decide(_on_host(name), lambda s, now: hosts.cordon(s, name, now=now, actor=actor))

    def uncordon_host(self, name: str, actor: Actor) -> None:
        self._decide(_on_host(name), lambda s, now: hosts.uncordon(s, name, now=now, actor=actor))

    def set_budget(
        self, actor: Actor, *, max_hosts_down: int | None = None, max_machines_down: int | None = None
    ) -> None:
        """Limit how many hosts and machines of the fleet are down at once; 0 for any number, None to leave it as it is."""
        limits = {"max_hosts_down": max_hosts_down, "max_machines_down": max_machines_down}
        self._decide(Focus(), lambda s, now: set_budget(s, **limits, now=now, actor=actor))

    def follow_inventory(
        self, compare: Callable[[Fleet, Mapping[tuple[str, str], int]], Difference], actor: Actor
    ) -> Difference:
        """Make the fleet as an inventory shows it.

        `compare` gets the fleet, and the machines in open events with the update domain of the event: its Difference must not
        contain what may not change while an event is open.
        """

        def compared(current: Fleet) -> Difference:
            touched = compare(current, {}).touched
            events = self._store.snapshot(Focus(scopes=touched, whole_maintenances=False)).events.values()
            busy = {(e.scope, name): e.update_domain for e in events if e.status in OPEN for name in e.resources}
            return compare(current, busy)

        return self._change_fleet(compared, actor)

    def _change_fleet(
        self,
        compare: Callable[[Fleet], Difference],
        actor: Actor,
        *,
        focus: Focus | None = None,
        dry_run: bool = False,
        once: Once | None = None,
    ) -> Difference:
        """Save what `compare` finds; `focus` is the part of the fleet that it must see, all of it by default.

        A dry run decides in the same way and saves nothing.
        """
        for _ in self._tries():
            with self._deciding:
                if not dry_run:
                    self.refuse_repetition(once)
                current = self._store.inventory() if focus is None else self._store.snapshot(focus)
                diff = compare(Fleet(current.scopes, current.machines, current.hosts))
                if not diff.lines and (dry_run or once is None):
                    return diff
                now = self._clock.now() if dry_run else self._now()
                snapshot = self._store.snapshot(Focus(scopes=diff.touched, whole_maintenances=False))
                if any(scope.windows for scope in diff.scopes):
                    rules = self._store.fleet_rules()
                    refuse_unknown_windows(rules, diff.scopes)
                    warnings = (*diff.warnings, *missed_windows(snapshot, rules, diff.scopes, now))
                    diff = replace(diff, warnings=warnings)
                versions = {name: scope.version for name, scope in current.scopes.items()}
                change = apply_difference(snapshot, diff, versions=versions, now=now, actor=actor)
                if dry_run:
                    return diff
                change = without_hooks_of(self._store, diff.removed_scopes, change, actor)
                change = waking_hosts(self._store, change, current.machines)
                if changes_labels(Fleet(current.scopes, current.machines, current.hosts), diff):
                    change = self._waking_no_go_times(change)
                if self._save(self._with_receipt(change, once, diff)):
                    return diff
        raise too_many_conflicts()

    def _waking_no_go_times(self, change: Change) -> Change:
        """Return the change with the rules of the fleet, which wakes all maintenances, if a no-go time binds by labels."""
        rules = self._store.fleet_rules()
        by_labels = any(no_go.labels for no_go in rules.no_go_times.values())
        return replace(change, fleet_rules=rules) if by_labels else change


def _on_host(name: str) -> Focus:
    return Focus(hosts=(name,), whole_maintenances=False, open_events=False)


def waking_hosts(store: Store, change: Change, machines: Mapping[tuple[str, str], Machine]) -> Change:
    """Return the change with a wake-up for maintenances that have not begun to work on a host that these machines leave or join.

    A wake-up changes the version of the maintenance: a node that is about to begin the work must read the machines again.
    """
    if not (change.removed_machines or change.machines):
        return change
    keys = chain(change.removed_machines, (machine.key for machine in change.machines))
    left, joined = (
        {machines[key].host for key in keys if key in machines},
        {machine.host for machine in change.machines},
    )
    return wake_hosts(store, change, (left | joined) - {""})
