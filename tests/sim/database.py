"""The simulated PostgreSQL that all nodes share: state, the changes of each transaction, leases, and a wall clock.

It can fail over to another server on a new timeline. The new server has every commit if a standby confirmed them, else it
lacks the last few seconds. `adopt` does what the real store does after a failover.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from forewarn.core.change import Change
from forewarn.core.fast_init import replace
from forewarn.core.model import AuditEntry
from forewarn.store import FeedPosition, FeedUpdate
from forewarn.store.memory import MemoryStore
from tests.sim.history import Adopted, Committed, Entry, FailedOver
from tests.sim.universe import Universe

# The real store keeps changes for an hour. Here a node that was away for a minute must read everything.
KEPT_MS = 60_000
MAX_LOST_MS = 10_000
NO_SCOPES: dict[str, int] = {}
NONE_REMOVED: frozenset[str] = frozenset()


class Row(NamedTuple):
    """The changes of one transaction."""

    number: int
    xid: int
    at_ms: int
    everything: bool
    scopes: dict[str, int]
    machines: tuple[tuple[str, str], ...]


class Tables(MemoryStore):
    """The tables of a server, with an audit that is not chained by hashes: nothing in a run reads them.

    Its methods take no lock, because a run has one thread.
    """

    def _add_audit(self, entries: Iterable[AuditEntry]) -> None:
        for entry in entries:
            self._audit_count += 1
            self._audit.append(replace(entry, id=self._audit_count))


for method_name in dir(MemoryStore):
    without_lock = getattr(getattr(MemoryStore, method_name), "__wrapped__", None)
    if without_lock is not None:
        setattr(Tables, method_name, without_lock)


class Database:
    def __init__(self, universe: Universe, record: Callable[[Entry], None]) -> None:
        self._universe = universe
        self._record = record
        self.memory = Tables()
        # The server's timeline, and the timeline the nodes have agreed on.
        self.timeline = self.agreed = 1
        self._rows: list[Row] = []
        self._last_xid = 0  # the highest of a row so far
        self._numbers = 0
        self._next_xid = 1
        self._open: set[int] = set()
        self._forgotten = 0
        # The holder of each lease, and when it ends by the wall clock.
        self._leases: dict[str, tuple[str, int]] = {}
        # All writes in order: after a failover the new server is built from the ones it kept.
        self._log: list[tuple[int, str, Any]] = []
        self.on_commit: Callable[[Change], None] = lambda _: None

    # -- changes

    def begin(self) -> int:
        """Begin a transaction, which is open until it is committed or rolled back."""
        self._next_xid += 1
        self._open.add(self._next_xid - 1)
        return self._next_xid - 1

    def end(self, xid: int) -> None:
        self._open.discard(xid)

    def commit(self, xid: int, life: str, change: Change) -> None:
        """Check and save a change, or raise Conflict."""
        now_ms = self._universe.now_ms
        self.memory.apply(change)
        self._log.append((now_ms, "apply", change))
        self._record(Committed(now_ms, life, change))
        scopes = {scope.name: scope.version + 1 for scope in change.scopes} | dict.fromkeys(change.removed_scopes, 0)
        machines = (*change.removed_machines, *(machine.key for machine in change.machines))
        too_large = self._universe.chance(self._universe.faults.too_large)
        self._add_row(xid, everything=too_large, scopes={} if too_large else scopes, machines=machines)
        self.end(xid)
        self.on_commit(change)

    def write(self, name: str, *arguments: Any) -> Any:
        """Make a write that needs no version check and notifies nobody."""
        self._log.append((self._universe.now_ms, name, arguments))
        return getattr(self.memory, name)(*arguments)

    def _add_row(
        self, xid: int, *, everything: bool, scopes: dict[str, int], machines: tuple[tuple[str, str], ...]
    ) -> None:
        self._numbers += 1
        self._last_xid = max(self._last_xid, xid)
        self._rows.append(Row(self._numbers, xid, self._universe.now_ms, everything, scopes, machines))

    def poll(self, since: FeedPosition | None, at_ms: int) -> FeedUpdate:
        """What was changed since, as it stood at that moment: whatever came later was still open then."""
        horizon = min(self._open) if self._open else self._next_xid
        for row in reversed(self._rows):
            if row.at_ms <= at_ms:
                break
            horizon = min(horizon, row.xid)
        cluster = ("simulated", self.agreed)
        everything = since is None or since.cluster != cluster or since.horizon <= self._forgotten
        rows = [] if since is None or everything else self._since(since.horizon, at_ms)
        if since is not None and not rows and not everything:
            return self._nothing_new(since, horizon, at_ms)
        scopes: dict[str, int] = {}
        removed: set[str] = set()
        machines: list[tuple[str, str]] = []
        changed = False
        for row in rows:
            if since is not None and row.number not in since.handled:
                scopes |= row.scopes
                removed |= {name for name, version in row.scopes.items() if not version}
                machines += row.machines
                everything = everything or row.everything
                changed = True
        return FeedUpdate(
            position=FeedPosition(cluster, horizon, frozenset([row.number for row in rows if row.xid >= horizon])),
            everything=everything,
            scopes={name: version for name, version in scopes.items() if version} if scopes else scopes,
            removed=frozenset(removed),
            machines=tuple(machines),
            changed=changed or everything,
            now=self._universe.wall(at_ms),
            sent_s=at_ms / 1_000,
            received_s=at_ms / 1_000,
        )

    def _nothing_new(self, since: FeedPosition, horizon: int, at_ms: int) -> FeedUpdate:
        known = since.horizon == horizon and not since.handled
        return FeedUpdate(
            position=since if known else FeedPosition(since.cluster, horizon),
            everything=False,
            scopes=NO_SCOPES,
            removed=NONE_REMOVED,
            machines=(),
            changed=False,
            now=self._universe.wall(at_ms),
            sent_s=at_ms / 1_000,
            received_s=at_ms / 1_000,
        )

    def _since(self, horizon: int, at_ms: int) -> list[Row]:
        if horizon > self._last_xid:
            return []
        return [row for row in self._rows if row.xid >= horizon and row.at_ms <= at_ms]

    def forget_changes(self) -> int:
        """Forget changes older than a minute; a node that has not read them must read everything."""
        old = [row for row in self._rows if row.at_ms < self._universe.now_ms - KEPT_MS]
        if old:
            self._forgotten = max(self._forgotten, *(row.xid for row in old))
            self._rows = self._rows[len(old) :]
        return 0

    # -- leases, by its own clock

    def take_lease(self, name: str, node: str, seconds: float) -> bool:
        now_ms = self._universe.wall_ms
        most_ms = now_ms + int(seconds * 1_000)
        self._shorten_leases(most_ms)
        holder, until_ms = self._leases.get(name, (node, now_ms))
        if holder != node and now_ms <= until_ms:
            return False
        self._leases[name] = (node, most_ms)
        self._log.append((self._universe.now_ms, "lease", (name, self._leases[name])))
        return True

    def _shorten_leases(self, most_ms: int) -> None:
        """Shorten leases granted before the clock moved back."""
        for name in [name for name, (_, until_ms) in self._leases.items() if until_ms > most_ms]:
            self._leases[name] = (self._leases[name][0], most_ms)
            self._log.append((self._universe.now_ms, "lease", (name, self._leases[name])))

    def drop_lease(self, name: str, node: str) -> None:
        if self._leases.get(name, ("", 0))[0] == node:
            del self._leases[name]
            self._log.append((self._universe.now_ms, "lease", (name, None)))

    def live_nodes(self, past_s: float, kind: str) -> set[str]:
        since_ms = self._universe.wall_ms - int(past_s * 1_000)
        return {
            node for name, (node, until_ms) in self._leases.items() if until_ms >= since_ms and name == f"{kind} {node}"
        }

    # -- failing over

    def fail_over(self, lost_ms: int | None = None) -> None:
        """Continue with another server, with all commits or without the last few seconds."""
        universe = self._universe
        if lost_ms is None:
            lost_ms = 0 if universe.faults.standby else universe.choose.randrange(MAX_LOST_MS)
        kept = [entry for entry in self._log if entry[0] <= universe.now_ms - lost_ms]
        gone = self._log[len(kept) :]
        lost = tuple(change for _, name, change in gone if name == "apply")
        self.timeline += 1
        self._open.clear()
        universe.log(f"the database fails over to timeline {self.timeline}: {len(lost)} change(s) are lost")
        if gone:
            self._rebuild(kept)
        agreements = sum(name == "epochs" for _, name, _ in gone)
        self._record(FailedOver(universe.now_ms, lost, agreements, lost_ms))

    def _rebuild(self, kept: list[tuple[int, str, Any]]) -> None:
        self.memory, self._leases, self._log, self.agreed = Tables(), {}, kept, 1
        last_ms = kept[-1][0] if kept else 0
        self._rows = [row for row in self._rows if row.at_ms <= last_ms]
        for _, name, what in kept:
            if name == "apply":
                self.memory.apply(what)
            elif name == "epochs":
                self.agreed += what
                self._begin_epochs(what)
            elif name == "lease" and what[1] is None:
                self._leases.pop(what[0], None)
            elif name == "lease":
                self._leases[what[0]] = what[1]
            else:
                getattr(self.memory, name)(*what)

    def adopt(self) -> bool:
        """Agree on the current server for all nodes; return whether that was necessary."""
        if self.agreed == self.timeline:
            return False
        steps = self._steps()
        self.agreed = self.timeline
        self._log.append((self._universe.now_ms, "epochs", steps))
        self._begin_epochs(steps)
        self._rows.clear()
        xid = self.begin()
        self._forgotten = xid
        self._add_row(xid, everything=True, scopes={}, machines=())
        self.end(xid)
        self._universe.log(f"the nodes agree on timeline {self.agreed}, in new epochs")
        self._record(Adopted(self._universe.now_ms, steps))
        return True

    def _steps(self) -> int:
        """Return the number of timelines since the last agreement, as `adopt` of the store does: a lost agreement counts too."""
        return self.timeline - self.agreed

    def _begin_epochs(self, steps: int) -> None:
        for name, scope in self.memory._scopes.items():
            self.memory._scopes[name] = renewed(scope, steps)


def renewed(scope: Any, steps: int) -> Any:
    """Do what the store's query `begin_epochs` does."""
    version = scope.version + 1_000_000 * steps
    return replace(scope, epoch=scope.epoch + 1_000 * steps, incarnation=1, version=version)
