"""The documents in memory, from which every poll is answered, and the machines that may ask for them.

Control calls `on_change` with every change. A scope that memory has in the version before the change gets the changed events;
every other scope and machine that the change names is read again. The new state replaces the old in one assignment: a poll sees
one or the other, never a mixture. It is put into memory under one lock, a batch at a time: a later read is newer, and no
thread waits for a whole fleet.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby, islice
from operator import attrgetter
from typing import TypeVar

from forewarn.core.change import Change
from forewarn.core.fast_init import replace
from forewarn.core.model import VISIBLE, Event, Machine, Scope, ScopeKind
from forewarn.endpoint.callers import Callers
from forewarn.endpoint.document_state import DocumentState, Moment, Now, ScopeView
from forewarn.service.clock import Clock
from forewarn.store import FeedUpdate, Focus, MachineIdentity, Store

T = TypeVar("T")
# How many scopes or machines one read asks for.
BATCH = 1_000
# A scope with so many visible events is first read without them.
MANY_EVENTS = 32


@dataclass(slots=True)
class PendingReads:
    """What must be read again: scopes, scopes that were removed (and may exist again), machines."""

    scopes: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    machines: set[tuple[str, str]] = field(default_factory=set)

    def add(self, other: "PendingReads") -> None:
        self.scopes |= other.scopes
        self.removed |= other.removed
        self.machines |= other.machines

    def __bool__(self) -> bool:
        return bool(self.scopes or self.removed or self.machines)


class Documents:
    """Every scope and machine. `on_views_changed` is called, in the thread that saved a change, with the views that changed.

    Where other nodes share the store, a follower reports what they change, and memory is valid until `fresh_until_s`. A
    failed read is repeated at the next change or in the next cycle of the ticker.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        max_stale_s: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._monotonic = monotonic
        self._max_stale_s = max_stale_s
        self._fleet_reads = 0
        self._pending = PendingReads()
        self._lock = threading.Lock()
        self.now = Now(clock, monotonic)
        self.views: dict[str, ScopeView] = {}
        self.callers = Callers()
        self.on_views_changed: Callable[[list[ScopeView]], None] = lambda _: None
        self.rendered_states = 0
        self.enablements = 0

    def load(self) -> None:
        """Read everything, at start. The 24 h after which a silent scope is disabled begin anew for every enabled scope.

        Guests of machines that are in memory are answered meanwhile. On a shared store, the follower reads what other nodes
        change meanwhile when it starts, after this returns; a load that takes longer than `max_stale` is answered with 503.
        """
        if self._max_stale_s is not None:
            self.fresh_until_s = self._monotonic() + self._max_stale_s
        for names in _batches(self._store.scope_names()):
            self._read(names)
        for machines in _batches(self._store.machine_identities()):
            with self._lock:
                for scope, of_scope in groupby(machines, attrgetter("scope")):
                    view = self.views.get(scope)
                    if view is not None:  # else the scope was just added, and that change is still to be reported
                        self.callers.put_all(of_scope, view)
        self.callers.complete = True

    @property
    def shared(self) -> bool:
        """Whether other nodes may know something newer."""
        return self._max_stale_s is not None

    @property
    def fresh_until_s(self) -> float:
        return self.now.fresh_until_s

    @fresh_until_s.setter
    def fresh_until_s(self, moment_s: float) -> None:
        self.now.fresh_until_s = moment_s
        self.now.until_s = min(self.now.until_s, moment_s)

    def stale(self, now_s: float) -> bool:
        """Whether the store has been silent for too long to answer from memory."""
        return now_s > self.fresh_until_s

    def follow(self, update: FeedUpdate) -> None:
        """Take in what other nodes changed; returns when memory shows it."""
        changed = self._read_everything() if update.everything else self._read_changes(update)
        if self._max_stale_s is not None:
            self.fresh_until_s = update.sent_s + self._max_stale_s
        if changed:
            self.on_views_changed(changed)

    def read_again(self, view: ScopeView, requested_s: float) -> None:
        """Read a scope of which a guest has seen a newer state, unless a read began after the guest's request."""
        if view.read_s > requested_s:
            return
        started_s = self._monotonic()
        self.refresh([view.name])
        view.read_s = started_s

    def on_change(self, change: Change) -> None:
        """Take in what a change names, or read it again; returns when memory shows it."""
        scopes = {scope.name for scope in change.scopes} - self._take_in(change) if change.scopes else set()
        if not (scopes or change.removed_scopes or change.machines or change.removed_machines or self._pending):
            return  # mostly. Row of the bench: one event per commit
        machines = {machine.key: machine for machine in change.machines}
        named = PendingReads(scopes, set(change.removed_scopes), {*machines, *change.removed_machines})
        # Where no other node writes, changes are reported in the order in which they were saved: what was saved is current.
        self._read_named(named, {} if self.shared else machines)

    def catch_up(self, scopes: Iterable[Scope]) -> None:
        """Read the scopes that memory has in an older version; a request is about to be answered by them."""
        self.refresh(scope.name for scope in scopes if not self._knows(scope.name, scope.version))

    def refresh(self, names: Iterable[str]) -> None:
        """Read these scopes again; returns when memory shows what is saved."""
        if changed := [view for some in _batches(names) for view in self._read(some)]:
            self.on_views_changed(changed)

    def next_due(self) -> datetime | None:
        return self.now().at if self._pending else None

    def do(self, _: datetime) -> int:
        """Repeat the reads that failed."""
        if not self._pending:
            return 0
        self._read_named(PendingReads(), {})
        return 1

    def idle_since(self, view: ScopeView) -> datetime:
        """Return since when a scope has been silent. "An open long poll counts as seen"."""
        return self.now().at if view.waiters else max(view.seen.at, view.since.at)

    def seen_elsewhere(self, scope: str, at: datetime) -> None:
        """Note that a guest of the scope sent a request to another node."""
        view = self.views.get(scope)
        if view is not None and view.seen.at < at:
            view.seen = Moment(at)

    def next_idle(self, disable_after: timedelta) -> datetime | None:
        """Return when the first enabled scope will have been silent for too long."""
        moments = [self.idle_since(v) for v in list(self.views.values()) if v.state.enabled]
        return min(moments) + disable_after if moments else None

    def idle(self, now: datetime, disable_after: timedelta) -> list[str]:
        """Return the enabled scopes whose guests have been silent for that long."""
        return [
            view.name
            for view in list(self.views.values())
            if view.state.enabled and now - self.idle_since(view) >= disable_after
        ]

    def _read_named(self, named: PendingReads, saved: Mapping[tuple[str, str], Machine]) -> None:
        """Read these and what could not be read before; if that fails, all of it is pending. `saved` need not be read."""
        with self._lock:
            named.add(self._pending)
            self._pending = PendingReads()
        changed: list[ScopeView] = []
        try:
            for names in _batches(named.removed):
                changed += self._read(names, anew=True)
            for names in _batches(sorted(named.scopes - named.removed)):
                changed += self._read(names)
            for keys in _batches(sorted(named.machines)):
                self._read_machines(keys, saved)
        except BaseException:
            with self._lock:
                self._pending.add(named)
            raise
        finally:
            if changed:
                self.on_views_changed(changed)

    def _read_everything(self) -> list[ScopeView]:
        """Read the whole fleet and drop what is no longer there.

        Changes are reported meanwhile: an entry of the long list of machines may be old by the time we come to it. So each
        machine that differs from memory is read by itself.
        """
        names = dict.fromkeys((*self._store.scope_names(), *list(self.views)))
        changed = [view for some in _batches(names) for view in self._read(some, anew=True)]
        self._fleet_reads += 1
        keys = self.callers.differing(self._store.machine_identities(), self.views, self._fleet_reads)
        with self._lock:
            keys.update(dict.fromkeys(self.callers.not_found_by(self._fleet_reads)))
        for some_keys in _batches(keys):
            self._read_machines(some_keys, {})
        return changed

    def _read_changes(self, update: FeedUpdate) -> list[ScopeView]:
        """Read scopes that are newer than in memory, and machines that were added, changed or removed; mostly none."""
        if not (update.scopes or update.removed or update.machines):
            return []
        with self._lock:
            for name in update.removed:
                self.views.pop(name, None)
        keys = dict.fromkeys(update.machines)
        names = {name for name, version in update.scopes.items() if not self._knows(name, version)}
        names |= {scope for scope, _ in keys if scope not in self.views}
        changed = [view for batch in _batches(names) for view in self._read(batch)]
        for some in _batches(keys):
            self._read_machines(some, {})
        return changed

    def _knows(self, name: str, version: int) -> bool:
        view = self.views.get(name)
        return view is not None and view.state.scope.version >= version

    def _read(self, names: Iterable[str], *, anew: bool = False) -> list[ScopeView]:
        """Read scopes and drop those that do not exist; return the views whose document changed.

        Only a newer version replaces the one in memory; with `anew` any other version does.
        """
        names = tuple(names)
        with self._lock:
            if not anew:
                unseen = self._read_unseen_changes(names)
                names = tuple(name for name in names if name not in unseen)
            if not names:
                return []
            snapshot = self._store.snapshot(Focus(scopes=names, whole_maintenances=False, document_only=True))
            for name in names:
                if name not in snapshot.scopes:
                    self.views.pop(name, None)
            events: dict[str, list[Event]] = {}
            for event in snapshot.events.values():
                if event.status in VISIBLE:
                    events.setdefault(event.scope, []).append(event)
            changed = []
            for name, scope in snapshot.scopes.items():
                view = self.views.get(name)
                if view is None:
                    self.rendered_states += 1
                    self.views[name] = ScopeView(DocumentState(scope, tuple(events.get(name, ()))), self.now())
                elif view.state.scope != scope if anew else not self._knows(name, scope.version):
                    changed += self._replace_state(view, scope, events.get(name, ()))
            return changed

    def _replace_state(self, view: ScopeView, scope: Scope, events: Iterable[Event]) -> list[ScopeView]:
        """Replace the state of a scope by one with these visible events; return the view if its document changed."""
        state = DocumentState(scope, tuple(events))
        self.rendered_states += 1
        if scope.enabled and not view.state.scope.enabled:
            view.since = self.now()
            self.enablements += 1
        # A scope that changed in a way no guest sees keeps its rendered responses.
        unchanged = (view.state.etag, view.state.scope.kind) == (state.etag, scope.kind)
        if unchanged:
            state.bodies, state.sent = view.state.bodies, view.state.sent
        view.state = state
        return [] if unchanged else [view]

    def _take_in(self, change: Change) -> set[str]:
        """Put a change into memory as far as memory has the version before it; return the scopes that are done."""
        moved: dict[str, dict[str, Event]] = defaultdict(dict)
        for event in change.events:
            moved[event.scope][event.id] = event
        done, changed = set(), []
        for start in range(0, len(change.scopes), BATCH):
            with self._lock:
                for scope in change.scopes[start : start + BATCH]:
                    view = self.views.get(scope.name)
                    if (
                        view is None
                        or scope.name in change.removed_scopes
                        or not self._precedes(view.state.scope, scope)
                    ):
                        continue
                    events = {event.id: event for event in view.state.events} | moved[scope.name]
                    visible = (event for event in events.values() if event.status in VISIBLE)
                    changed += self._replace_state(view, replace(scope, version=scope.version + 1), visible)
                    done.add(scope.name)
        if changed:
            self.on_views_changed(changed)
        return done

    def _precedes(self, known: Scope, changed: Scope) -> bool:
        """Whether a change was decided on the state in memory. A failover that lost commits begins a new epoch.

        It begins none in a scope that was never enabled, so such a scope is read again if other nodes write.
        """
        same = (known.version, known.epoch) == (changed.version, changed.epoch)
        return same and (changed.epoch > 0 or not self.shared)

    def _read_unseen_changes(self, names: Iterable[str]) -> set[str]:
        """Read large scopes without their events; take in and return those whose document is the one in memory.

        The same incarnation of an epoch means the same content, so the events in memory are still right.
        """
        large = tuple(
            name for name in names if name in self.views and len(self.views[name].state.events) >= MANY_EVENTS
        )
        if not large:
            return set()
        focus = Focus(scopes=large, whole_maintenances=False, open_events=False, document_only=True)
        unseen = set()
        for name, scope in self._store.snapshot(focus).scopes.items():
            known = self.views[name].state
            if _document_of(scope) == _document_of(known.scope):
                unseen.add(name)
                if not self._knows(name, scope.version):
                    state = DocumentState(scope, known.events)
                    state.bodies, state.sent = known.bodies, known.sent
                    self.views[name].state = state
        return unseen

    def _read_machines(self, keys: Collection[tuple[str, str]], saved: Mapping[tuple[str, str], Machine]) -> None:
        """Put machines into memory as they are `saved`, or else as the store has them now.

        Where other nodes write, changes may be reported in another order than they were saved: there nothing is in `saved`.
        """
        missing = tuple(key for key in keys if key not in saved)
        with self._lock:
            focus = Focus(machines=missing, whole_maintenances=False, open_events=False, document_only=True)
            stored = self._store.snapshot(focus).machines if missing else {}
            for key in keys:
                machine = saved.get(key) or stored.get(key)
                view = self.views.get(machine.scope) if machine is not None else None
                if machine is not None and view is not None:
                    self.callers.put(MachineIdentity.of(machine), view)
                else:  # removed, or its scope was just added and that change is still to be reported
                    self.callers.remove(key)


def _document_of(scope: Scope) -> tuple[int, int, ScopeKind]:
    """Return what identifies the content of a scope's document. The oldest version shows the kind of the scope."""
    return scope.epoch, scope.incarnation, scope.kind


def _batches(things: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(things)
    while batch := list(islice(rest, BATCH)):
        yield batch
