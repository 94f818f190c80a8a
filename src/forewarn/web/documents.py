"""The documents in memory: what every scope's guests are answered from, and who its guests are.

A change reaches memory by one route: control rings the bell naming the scopes, they are read again, and the new state
replaces the old in one assignment. Whoever reads sees one or the other, never a mixture. Per-machine records are small and
untracked by the garbage collector: a million machines must not mean a pause.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from forewarn.clock import Clock, SystemClock
from forewarn.core.document import VERSIONS, render, rfc1123
from forewarn.core.model import Change, Event, Scope
from forewarn.store import Focus, Known, Store

CLOSE = b"\r\nConnection: close"
_ROWS = tuple(VERSIONS.values())


class Moment:
    """A second of the service clock, and how it reads in a Date header."""

    __slots__ = ("at", "date")

    def __init__(self, at: datetime) -> None:
        self.at = at
        self.date = rfc1123(at).encode()


class Now:
    """The present Moment: the same object for a whole second, so that "still the same second" is one comparison.

    `moment` stays the present one until the monotonic clock reaches `until_s`: whoever has just read that clock, as every
    poll must, need not call. Only the system clock promises anything; another may be moved, and is asked each time.
    """

    __slots__ = ("_clock", "_system", "moment", "until_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._system = isinstance(clock, SystemClock)
        self.moment = Moment(clock.now())
        self.until_s = 0.0

    def __call__(self) -> Moment:
        if time.monotonic() < self.until_s:
            return self.moment
        read_s = time.monotonic()
        now = self._clock.now()
        if now.replace(microsecond=0) != self.moment.at.replace(microsecond=0):
            self.moment = Moment(now)
        if self._system:
            self.until_s = read_s + 1.0 - now.microsecond / 1e6
        return self.moment


# The response indexes of a 304: the connection stays, the connection ends.
NOT_MODIFIED = (-1, -2)


def response_index(version: int, close: bool, wait_s: int = 0) -> int:
    """One number for each way to send a state: a row of the version table, the last of its connection, waited for."""
    return 2 * (len(_ROWS) * wait_s + version) + close


class State:
    """One state of one scope's document; never changed, only replaced. Responses are rendered when first asked for.

    `sent` holds by `response_index` what was last sent, and in which second.
    """

    __slots__ = ("bodies", "enabled", "etag", "events", "scope", "sent")

    def __init__(self, scope: Scope, events: tuple[Event, ...]) -> None:
        self.scope = scope
        self.enabled = scope.enabled
        self.events = events
        # `"<incarnation>"` in a scope's first epoch, `"<incarnation>-<epoch>"` after.
        self.etag = f'"{scope.incarnation}"' if scope.epoch <= 1 else f'"{scope.incarnation}-{scope.epoch}"'
        self.bodies: dict[int, bytes] = {}
        self.sent: dict[int, tuple[Moment, bytes]] = {}

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


class View:
    """One scope as its guests meet it. `waiters` belong to the listener's thread alone."""

    __slots__ = ("held_until_s", "name", "seen", "since", "state", "waiters")

    def __init__(self, state: State, since: Moment) -> None:
        self.name = state.scope.name
        self.state = state
        self.waiters: dict[Waiter, None] = {}
        self.seen = since
        self.held_until_s = 0.0
        self.since = since


class Caller(msgspec.Struct, gc=False):
    """One machine as the listener knows it: who it is, and how much of its share it has used."""

    scope: str
    name: str
    view: View | None  # None: the machine has left the inventory
    update_domain: int
    fault_domain: int
    identities: tuple[tuple[str, str], ...]
    instance_id: str
    spent_until_s: float = 0.0  # its requests, each at its share of a second, laid end to end
    connections: int = 0
    waiting: int = 0
    remembered: tuple[bytes, ...] = ()
    seen: Moment | None = None
    shown: State | None = None  # the document it last saw
    noted: bool = False  # in the list of those whose last-seen time is to be written


class Documents:
    """Every scope and machine. `changed` is called, in the thread that saved a change, with the views that changed."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.now = Now(clock)
        self.views: dict[str, View] = {}
        self.by_address: dict[tuple[str, str], Caller] = {}
        self.by_instance_id: dict[str, Caller] = {}
        self._callers: dict[tuple[str, str], Caller] = {}
        self.changed: Callable[[list[View]], None] = lambda _: None
        self.rendered_states = 0
        self.enablements = 0

    def load(self) -> None:
        """Everything, at start: "every enabled scope's 24 h begin anew"."""
        with self._lock:
            self._read(self._store.scopes())
            for machine in self._store.known():
                self._put(machine)

    def heard(self, change: Change) -> None:
        """The bell: read again what changed; returns when memory shows it."""
        names = [scope.name for scope in change.scopes]
        with self._lock:
            changed = self._read(names) if names else []
            for key in change.removed_machines:
                self._remove(key)
            for machine in change.machines:
                self._forget(machine.key)
            for m in change.machines:
                self._put(Known(m.scope, m.name, m.update_domain, m.fault_domain, m.instance_id, m.identities))
            for name in change.removed_scopes:
                self.views.pop(name, None)
        if changed:
            self.changed(changed)

    def refresh(self, names: Iterable[str]) -> None:
        """Read these again, though no bell named them; returns when memory shows what is saved."""
        names = tuple(names)
        with self._lock:
            changed = self._read(names) if names else []
        if changed:
            self.changed(changed)

    def caller(self, interface: str, address: str) -> Caller | None:
        """By address, or by interface and address, or by the interface alone."""
        return self.by_address.get((interface, address)) or (
            self.by_address.get((interface, "")) if interface else None
        )

    def named(self, scope: str, name: str) -> Caller | None:
        return self._callers.get((scope, name))

    def idle_since(self, view: View) -> datetime:
        """An open long poll counts as asking."""
        return self.now().at if view.waiters else max(view.seen.at, view.since.at)

    def machines_of(self, scopes: Collection[str]) -> list[tuple[str, str]]:
        return [key for key in list(self._callers) if key[0] in scopes]

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

    def _read(self, names: Iterable[str]) -> list[View]:
        """Only newer versions are applied; the views whose document or enablement changed."""
        snapshot = self._store.snapshot(Focus(scopes=tuple(names), whole=False, shown=True))
        events: dict[str, list[Event]] = {}
        for event in snapshot.events.values():
            events.setdefault(event.scope, []).append(event)
        changed = []
        for name, scope in snapshot.scopes.items():
            view = self.views.get(name)
            if view is not None and view.state.scope.version >= scope.version:
                continue
            state = State(scope, tuple(events.get(name, ())))
            self.rendered_states += 1
            if view is None:
                self.views[name] = View(state, self.now())
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

    def _put(self, machine: Known) -> None:
        """A machine keeps its record, which connections hold, as long as it is known in the same way."""
        key = (machine.scope, machine.name)
        caller = self._callers.get(key)
        if caller is not None and not set(caller.identities) <= set(machine.identities):
            caller.view = None  # an address it had may be another's now: its connections are looked up again
            caller = None
        if caller is None:
            caller = self._callers[key] = Caller(
                scope=machine.scope,
                name=machine.name,
                view=self.views[machine.scope],
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

    def _forget(self, key: tuple[str, str]) -> None:
        """Nobody is known as this machine any more."""
        caller = self._callers.get(key)
        if caller is not None:
            for identity in caller.identities:
                self.by_address.pop(identity, None)
            self.by_instance_id.pop(caller.instance_id, None)

    def _remove(self, key: tuple[str, str]) -> None:
        self._forget(key)
        caller = self._callers.pop(key, None)
        if caller is not None:
            caller.view = None
