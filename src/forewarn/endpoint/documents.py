"""The documents in memory: what every scope's guests are answered from, and who its guests are.

A change reaches memory by one route: control rings the bell naming scopes and machines, they are read again, and the new state
replaces the old in one assignment. Whoever reads sees one or the other, never a mixture. What is read is put into memory under
one lock, a batch at a time: later is newer, and nobody waits for a whole fleet. Per-machine records are small and untracked by
the garbage collector: a million machines must not mean a pause.
"""

import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Protocol, TypeVar

import msgspec

from forewarn.core.change import Change
from forewarn.core.document import VERSIONS, render, rfc1123
from forewarn.core.model import Event, Machine, Scope
from forewarn.service.clock import Clock
from forewarn.store import FeedUpdate, Focus, MachineIdentity, Store

T = TypeVar("T")
CLOSE = b"\r\nConnection: close"
_ROWS = tuple(VERSIONS.values())
_ETAG = re.compile(r'"([1-9][0-9]{0,17})(?:-([1-9][0-9]{0,17}))?"')
# So many scopes or machines are read again at once.
BATCH = 1_000


class Moment:
    """A second of the service clock, and how it reads in a Date header."""

    __slots__ = ("at", "date")

    def __init__(self, at: datetime) -> None:
        self.at = at
        self.date = rfc1123(at).encode()


class Now:
    """The present Moment: the same object for a whole second, so that "still the same second" is one comparison.

    `moment` stays the present one until the monotonic clock reaches `until_s`: whoever has just read that clock, as every
    poll must, need not call. Only a steady clock promises anything; another may be moved, and is asked each time. And never
    beyond `fresh_until_s`: whoever calls, for whatever reason, must not spare a poll the question whether memory still counts.
    """

    __slots__ = ("_clock", "_monotonic", "fresh_until_s", "moment", "until_s")

    def __init__(self, clock: Clock, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self.moment = Moment(clock.glance())
        self.until_s = 0.0
        self.fresh_until_s = math.inf

    def __call__(self) -> Moment:
        read_s = self._monotonic()
        if read_s < self.until_s:
            return self.moment
        now = self._clock.glance()
        if now.replace(microsecond=0) != self.moment.at.replace(microsecond=0):
            self.moment = Moment(now)
        if self._clock.steady:
            self.until_s = min(read_s + 1.0 - now.microsecond / 1e6, self.fresh_until_s)
        return self.moment


# The response indexes of a 304: the connection stays, the connection ends.
NOT_MODIFIED = (-1, -2)


def response_index(version: int, close: bool, wait_s: int = 0) -> int:
    """One number for each way to send a state: a row of the version table, the last of its connection, waited for."""
    return 2 * (len(_ROWS) * wait_s + version) + close


class DocumentState:
    """One state of one scope's document; never changed, only replaced. Responses are rendered when first asked for.

    `sent` holds by `response_index` what was last sent, and in which second.
    """

    __slots__ = ("bodies", "enabled", "etag", "events", "place", "scope", "sent")

    def __init__(self, scope: Scope, events: tuple[Event, ...]) -> None:
        self.scope = scope
        self.enabled = scope.enabled
        self.events = events
        self.place = (max(scope.epoch, 1), scope.incarnation)
        # `"<incarnation>"` in a scope's first epoch, `"<incarnation>-<epoch>"` after.
        self.etag = f'"{scope.incarnation}"' if scope.epoch <= 1 else f'"{scope.incarnation}-{scope.epoch}"'
        self.bodies: dict[int, bytes] = {}
        self.sent: dict[int, tuple[Moment, bytes]] = {}

    def older_than(self, etag: str) -> bool:
        """Whether a tag is one this scope may have had later than this, on another node."""
        found = _ETAG.fullmatch(etag)
        return found is not None and (int(found[2] or 1), int(found[1])) > self.place

    def response(self, index: int, moment: Moment) -> bytes:
        """The whole response, as last sent if that was in this second."""
        sent = self.sent.get(index)
        if sent is not None and sent[0] is moment:
            return sent[1]
        whole = self._render(index, moment)
        self.sent[index] = (moment, whole)
        return whole

    def body(self, version: int) -> bytes:
        body = self.bodies.get(version)
        if body is None:
            body = self.bodies[version] = render(self.scope, self.events, _ROWS[version])
        return body

    def _render(self, index: int, moment: Moment) -> bytes:
        if index in NOT_MODIFIED:
            ending = CLOSE if index == NOT_MODIFIED[True] else b""
            return b"HTTP/1.1 304 Not Modified\r\nETag: %b\r\nDate: %b%b\r\n\r\n" % (
                self.etag.encode(),
                moment.date,
                ending,
            )
        wait_s, rest = divmod(index, 2 * len(_ROWS))
        version, close = divmod(rest, 2)
        body = self.body(version)
        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\nETag: %b%b\r\nDate: "
            % (len(body), self.etag.encode(), b"\r\nPreference-Applied: wait=%d" % wait_s if wait_s else b"")
        )
        return b"".join((head, moment.date, CLOSE if close else b"", b"\r\n\r\n", body))


class Waiter(Protocol):
    """A long poll that waits for a document to change."""

    def document_changed(self) -> None: ...

    def end_wait(self) -> None: ...


class ScopeView:
    """One scope as its guests meet it. `waiters` belong to the listener's thread alone."""

    __slots__ = ("held_until_s", "name", "read_s", "seen", "since", "state", "waiters")

    def __init__(self, state: DocumentState, since: Moment) -> None:
        self.name = state.scope.name
        self.state = state
        self.waiters: dict[Waiter, None] = {}
        self.seen = since
        self.held_until_s = self.read_s = 0.0
        self.since = since


class Caller(msgspec.Struct, gc=False):
    """One machine as the listener knows it: who it is, and how much of its share it has used."""

    scope: str
    name: str
    view: ScopeView | None  # None: the machine has left the inventory
    update_domain: int
    fault_domain: int
    identities: tuple[tuple[str, str], ...]
    instance_id: str
    spent_until_s: float = 0.0  # its requests, each at its share of a second, laid end to end
    connections: int = 0
    waiting: int = 0
    remembered: tuple[bytes, ...] = ()
    seen: Moment | None = None
    shown: DocumentState | None = None  # the document it last saw
    met: int = 0  # at which reading of the whole fleet it was last there
    noted: bool = False  # in the list of those whose last-seen time is to be written
    unknown: tuple[str, DocumentState] | None = (
        None  # a newer tag it came with that nobody gave, and what was looked up then
    )


@dataclass(slots=True)
class Unread:
    """What is to be read again: scopes, those that were removed (and may have come again), machines."""

    scopes: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    machines: set[tuple[str, str]] = field(default_factory=set)

    def add(self, other: "Unread") -> None:
        self.scopes |= other.scopes
        self.removed |= other.removed
        self.machines |= other.machines

    def __bool__(self) -> bool:
        return bool(self.scopes or self.removed or self.machines)


class Documents:
    """Every scope and machine. `changed` is called, in the thread that saved a change, with the views that changed.

    Where other nodes share the store, what they change is followed, and what is known counts until `fresh_until_s`. What a bell
    could not read is read with the next one, or by the ticker, whose chore it is.
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
        self._readings = 0
        self._unread = Unread()
        self._lock = threading.Lock()
        self.now = Now(clock, monotonic)
        self.views: dict[str, ScopeView] = {}
        self.by_address: dict[tuple[str, str], Caller] = {}
        self.by_instance_id: dict[str, Caller] = {}
        self._callers: dict[tuple[str, str], Caller] = {}
        self.changed: Callable[[list[ScopeView]], None] = lambda _: None
        self.rendered_states = 0
        self.enablements = 0

    def load(self) -> None:
        """Everything, at start: "every enabled scope's 24 h begin anew"."""
        begun_s = self._monotonic()
        for names in _batches(self._store.scopes()):
            self._read(names)
        with self._lock:
            for machine in self._store.machine_identities():
                if machine.scope in self.views:  # else it came meanwhile, and so will the news of it
                    self._put(machine)
        if self._max_stale_s is not None:
            self.fresh_until_s = begun_s + self._max_stale_s

    @property
    def machines(self) -> int:
        return len(self._callers)

    @property
    def shared(self) -> bool:
        """Whether others may know something newer."""
        return self._max_stale_s is not None

    @property
    def fresh_until_s(self) -> float:
        return self.now.fresh_until_s

    @fresh_until_s.setter
    def fresh_until_s(self, moment_s: float) -> None:
        self.now.fresh_until_s = moment_s
        self.now.until_s = min(self.now.until_s, moment_s)

    def stale(self, now_s: float) -> bool:
        """Whether nothing was heard of the store for too long to go by what is known."""
        return now_s > self.fresh_until_s

    def follow(self, news: FeedUpdate) -> None:
        """What other nodes changed; returns when memory shows it."""
        changed = self._read_everything() if news.everything else self._read_changes(news)
        if self._max_stale_s is not None:
            self.fresh_until_s = news.sent_s + self._max_stale_s
        if changed:
            self.changed(changed)

    def read_again(self, view: ScopeView, asked_s: float) -> None:
        """Somebody has seen more than we know: read the scope, unless that was begun since they asked."""
        if view.read_s > asked_s:
            return
        begun_s = self._monotonic()
        self.refresh([view.name])
        view.read_s = begun_s

    def heard(self, change: Change) -> None:
        """The bell: read again what changed; returns when memory shows it."""
        self._read_named(
            Unread(
                scopes={scope.name for scope in change.scopes},
                removed=set(change.removed_scopes),
                machines={machine.key for machine in change.machines} | set(change.removed_machines),
            ),
            # Where nobody else writes, bells ring in the order in which changes were saved: what was saved is what is there.
            {} if self.shared else {machine.key: machine for machine in change.machines},
        )

    def at_least(self, scopes: Iterable[Scope]) -> None:
        """Somebody is answered by these: returns when memory shows nothing older."""
        self.refresh(scope.name for scope in scopes if not self._knows(scope.name, scope.version))

    def refresh(self, names: Iterable[str]) -> None:
        """Read these again, though no bell named them; returns when memory shows what is saved."""
        if changed := [view for some in _batches(names) for view in self._read(some)]:
            self.changed(changed)

    def next_due(self) -> datetime | None:
        return self.now().at if self._unread else None

    def do(self, now: datetime) -> int:
        """Read what a bell could not."""
        del now
        if not self._unread:
            return 0
        self._read_named(Unread(), {})
        return 1

    def caller(self, interface: str, address: str) -> Caller | None:
        """By address, or by interface and address, or by the interface alone."""
        return self.by_address.get((interface, address)) or (
            self.by_address.get((interface, "")) if interface else None
        )

    def named(self, scope: str, name: str) -> Caller | None:
        return self._callers.get((scope, name))

    def idle_since(self, view: ScopeView) -> datetime:
        """An open long poll counts as asking."""
        return self.now().at if view.waiters else max(view.seen.at, view.since.at)

    def seen_elsewhere(self, scope: str, at: datetime) -> None:
        """A guest of the scope asked another node."""
        view = self.views.get(scope)
        if view is not None and view.seen.at < at:
            view.seen = Moment(at)

    def next_idle(self, disable_after: timedelta) -> datetime | None:
        """When the first enabled scope will have been silent for too long."""
        moments = [self.idle_since(v) for v in list(self.views.values()) if v.state.enabled]
        return min(moments) + disable_after if moments else None

    def idle(self, now: datetime, disable_after: timedelta) -> list[str]:
        """Enabled scopes whose guests have not asked for that long."""
        return [
            view.name
            for view in list(self.views.values())
            if view.state.enabled and now - self.idle_since(view) >= disable_after
        ]

    def _read_named(self, named: Unread, told: Mapping[tuple[str, str], Machine]) -> None:
        """These, and what could not be read before; should it fail, all of it the next time."""
        with self._lock:
            named.add(self._unread)
            self._unread = Unread()
        changed: list[ScopeView] = []
        try:
            for names in _batches(named.removed):
                changed += self._read(names, anew=True)
            for names in _batches(sorted(named.scopes - named.removed)):
                changed += self._read(names)
            for keys in _batches(sorted(named.machines)):
                self._read_machines(keys, told)
        except BaseException:
            with self._lock:
                self._unread.add(named)
            raise
        finally:
            if changed:
                self.changed(changed)

    def _read_everything(self) -> list[ScopeView]:
        """The whole fleet; what is no longer there goes. Bells ring meanwhile: what the long list of machines says may be old
        when we come to it, and so whatever is not as in memory is read by itself."""
        names = dict.fromkeys((*self._store.scopes(), *list(self.views)))
        changed = [view for some in _batches(names) for view in self._read(some, anew=True)]
        self._readings += 1
        keys: dict[tuple[str, str], None] = {}
        for machine in self._store.machine_identities():
            caller = self._callers.get((machine.scope, machine.name))
            if caller is not None and caller.view is self.views.get(machine.scope) and _same(caller, machine):
                caller.met = self._readings
            else:
                keys[machine.scope, machine.name] = None
        with self._lock:
            keys.update((key, None) for key, caller in self._callers.items() if caller.met != self._readings)
        for some_keys in _batches(keys):
            self._read_machines(some_keys, {})
        return changed

    def _read_changes(self, news: FeedUpdate) -> list[ScopeView]:
        """Scopes that are newer than what is known, and machines that came, changed or went; mostly there is nothing."""
        with self._lock:
            for name in news.removed:
                self.views.pop(name, None)
        keys = dict.fromkeys(news.machines)
        names = {name for name, version in news.scopes.items() if not self._knows(name, version)}
        names |= {scope for scope, _ in keys if scope not in self.views}
        changed = [view for batch in _batches(names) for view in self._read(batch)]
        for some in _batches(keys):
            self._read_machines(some, {})
        return changed

    def _knows(self, name: str, version: int) -> bool:
        view = self.views.get(name)
        return view is not None and view.state.scope.version >= version

    def _read(self, names: Iterable[str], *, anew: bool = False) -> list[ScopeView]:
        """Only newer versions are applied, or `anew` any other; what is not there goes. The views whose document changed."""
        names = tuple(names)
        with self._lock:
            snapshot = self._store.snapshot(Focus(scopes=names, whole=False, shown=True))
            for name in names:
                if name not in snapshot.scopes:
                    self.views.pop(name, None)
            events: dict[str, list[Event]] = {}
            for event in snapshot.events.values():
                events.setdefault(event.scope, []).append(event)
            changed = []
            for name, scope in snapshot.scopes.items():
                view = self.views.get(name)
                if view is not None and (view.state.scope == scope if anew else self._knows(name, scope.version)):
                    continue
                state = DocumentState(scope, tuple(events.get(name, ())))
                self.rendered_states += 1
                if view is None:
                    self.views[name] = ScopeView(state, self.now())
                    continue
                if scope.enabled and not view.state.scope.enabled:
                    view.since = self.now()
                    self.enablements += 1
                # A scope that changed in a way no guest sees keeps its rendered responses.
                if (view.state.etag, view.state.scope.kind) == (state.etag, scope.kind):
                    state.bodies, state.sent = view.state.bodies, view.state.sent
                else:
                    changed.append(view)
                view.state = state
            return changed

    def _read_machines(self, keys: Collection[tuple[str, str]], told: Mapping[tuple[str, str], Machine]) -> None:
        """As the store has them now, unless that is told: where others write, who saved first may hear of it last."""
        asked = tuple(key for key in keys if key not in told)
        with self._lock:
            focus = Focus(machines=asked, whole=False, shown=True)
            found = self._store.snapshot(focus).machines if asked else {}
            for key in keys:
                machine = told.get(key) or found.get(key)
                if machine is not None and machine.scope in self.views:
                    self._put(_known(machine))
                else:  # or its scope came meanwhile, and so will the news of both
                    self._remove(key)

    def _put(self, machine: MachineIdentity) -> Caller:
        """A machine keeps its record, which connections hold, as long as it is known in the same way."""
        key = (machine.scope, machine.name)
        self._forget(key)
        caller = self._callers.get(key)
        view = self.views[machine.scope]
        if caller is not None and (caller.view is not view or not set(caller.identities) <= set(machine.identities)):
            caller.view = None  # an address it had may be another's now: its connections are looked up again
            caller = None
        if caller is None:
            caller = self._callers[key] = Caller(
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
        return caller

    def _forget(self, key: tuple[str, str]) -> None:
        """Nobody is known as this machine any more."""
        caller = self._callers.get(key)
        if caller is not None:
            for identity in caller.identities:
                if self.by_address.get(identity) is caller:  # and not another's by now
                    del self.by_address[identity]
            if self.by_instance_id.get(caller.instance_id) is caller:
                del self.by_instance_id[caller.instance_id]

    def _remove(self, key: tuple[str, str]) -> None:
        self._forget(key)
        caller = self._callers.pop(key, None)
        if caller is not None:
            caller.view = None


def _same(caller: Caller, machine: MachineIdentity) -> bool:
    """Whether a machine is known as it was; its identities come in any order."""
    return (
        (caller.update_domain, caller.fault_domain, caller.instance_id)
        == (machine.update_domain, machine.fault_domain, machine.instance_id)
    ) and sorted(caller.identities) == sorted(machine.identities)


def _known(m: Machine) -> MachineIdentity:
    return MachineIdentity(m.scope, m.name, m.update_domain, m.fault_domain, m.instance_id, m.identities)


def _batches(things: Iterable[T]) -> Iterator[list[T]]:
    left = iter(things)
    while batch := list(islice(left, BATCH)):
        yield batch
