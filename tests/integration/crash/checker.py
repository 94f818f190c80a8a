"""Compares what was acknowledged with what a database holds after a kill.

`complaints` returns a sentence for everything that is wrong. It reads the database through the store, as the service does,
and shares no rule with the core except `check_invariants`.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from forewarn.core.change import Snapshot
from forewarn.core.errors import InvariantBroken
from forewarn.core.fast_init import replace
from forewarn.core.invariants import check_invariants
from forewarn.core.model import UNSTARTED, AuditEntry, Event, MaintenanceStatus, OrderState, Status
from forewarn.store import AuditQuery, EventQuery, Focus, Store
from forewarn.store.sqlite.store import SqliteStore
from tests.integration.crash.history import Document, History, audited, documents

PAGE = 500
FAR_FUTURE = datetime(9000, 1, 1, tzinfo=UTC)

# How far an event or an order has come: it may go forward, never back.
_EVENT_STEP = {"Planned": 0, "Scheduled": 1, "Started": 2, "Completed": 3, "Cancelled": 3, "Abandoned": 3}
_ORDER_STEP = {"planned": 0, "open": 1, "running": 2, "failed": 3, "done": 4, "cancelled": 4, "abandoned": 4}
_HAS_STARTED = frozenset({Status.STARTED, Status.COMPLETED, Status.ABANDONED})
_ENDED_MAINTENANCE = frozenset({MaintenanceStatus.COMPLETED, MaintenanceStatus.CANCELLED, MaintenanceStatus.FAILED})


@dataclass(frozen=True, slots=True)
class StoredState:
    """Everything that a database holds, and the damage of its file."""

    snapshot: Snapshot
    audit: tuple[AuditEntry, ...]
    damage: tuple[str, ...] = ()


def read_database(path: Path) -> StoredState:
    """Open a database after a kill as the service does, and read everything."""
    with closing(SqliteStore(path)) as store:
        stored = read_store(store)
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("PRAGMA integrity_check").fetchall()
        damage = [text for (text,) in rows if text != "ok"]
        damage += [f"a row of {row[0]} refers to nothing" for row in connection.execute("PRAGMA foreign_key_check")]
    return replace(stored, damage=tuple(damage))


def read_store(store: Store) -> StoredState:
    ids = {event.maintenance_id for event in _every_event(store)}
    ids |= {order.maintenance_id for order in store.orders(tuple(OrderState), PAGE, of_hosts=True)}
    scopes = tuple(store.inventory().scopes)
    snapshot = store.snapshot(Focus(scopes=scopes, maintenances=tuple(sorted(ids)), inventory=True))
    return StoredState(snapshot, tuple(_every_entry(store)))


def _every_event(store: Store) -> Iterator[Event]:
    page = store.events(EventQuery(limit=PAGE))
    yield from page.events
    while page.next_before is not None:
        page = store.events(EventQuery(limit=PAGE, before=page.next_before))
        yield from page.events


def _every_entry(store: Store) -> Iterator[AuditEntry]:
    entries = store.audit(AuditQuery(limit=PAGE))
    while entries:
        yield from entries
        entries = store.audit(AuditQuery(limit=PAGE, before=entries[-1].id))


def complaints(history: History, stored: StoredState) -> list[str]:
    """Return a sentence for everything that is wrong."""
    return [
        *(f"the worker itself saw: {fault}" for fault in history.faults),
        *(f"the file is damaged: {text}" for text in stored.damage),
        *_lost(history, stored),
        *_plans(history, stored.snapshot),
        *_starts(stored),
        *_orders(stored.snapshot),
        *_waves(stored.snapshot),
        *_contents([*history.shown, *documents(stored.snapshot)]),
        *_invariants(stored.snapshot),
    ]


def unfinished(stored: StoredState) -> list[str]:
    """Return a sentence for everything that has not ended; call it after everything had time to end."""
    snapshot = stored.snapshot
    return [
        *(f"maintenance {m.id} is still {m.status}" for m in snapshot.maintenances.values() if m.ended is None),
        *(f"event {e.id} is still {e.status}" for e in snapshot.events.values() if e.ended is None),
        *(
            f"the order of event {o.id} is {o.state} and the event is {snapshot.events[o.id].status}"
            for o in snapshot.orders.values()
            if not o.host
            and (o.state, snapshot.events[o.id].status)
            not in ((OrderState.DONE, Status.COMPLETED), (OrderState.FAILED, Status.ABANDONED))
        ),
        *(
            f"the order of host {o.host} is still {o.state}"
            for o in snapshot.orders.values()
            if o.host and o.state not in (OrderState.DONE, OrderState.CANCELLED, OrderState.ABANDONED)
        ),
    ]


# -- every acknowledged change is there


def _lost(history: History, stored: StoredState) -> Iterator[str]:
    snapshot, known = stored.snapshot, Counter(audited(entry) for entry in stored.audit)
    for saved in history.saved:
        yield from _lost_scopes(saved.scopes, snapshot)
        yield from _lost_maintenances(saved.maintenances, snapshot)
        for event_id, status in saved.events:
            event = snapshot.events.get(event_id)
            if event is None or not _reached(_EVENT_STEP, str(event.status), status):
                yield f"event {event_id} was acknowledged as {status} and is {event and event.status}"
        for event_id, machine in saved.approvals:
            event = snapshot.events.get(event_id)
            if event is None or all(a.machine != machine for a in event.approvals):
                yield f"the approval of event {event_id} by {machine or 'an operator'} was acknowledged and is lost"
        for order_id, attempt, state in saved.orders:
            order = snapshot.orders.get(order_id)
            if order is None or not (
                order.attempt > attempt
                or (order.attempt == attempt and _reached(_ORDER_STEP, _step(str(order.state)), _step(state)))
            ):
                yield f"order {order_id} was acknowledged as {state} (attempt {attempt}) and is {order and order.state}"
    for entry, times in Counter(entry for saved in history.saved for entry in saved.audit).items():
        if known[entry] < times:
            yield f"an audit entry was acknowledged and is lost: {' | '.join(entry)}"


def _lost_scopes(scopes: tuple[tuple[str, int, int, int], ...], snapshot: Snapshot) -> Iterator[str]:
    for name, version, epoch, incarnation in scopes:
        scope = snapshot.scopes.get(name)
        if scope is None or scope.version < version or (scope.epoch, scope.incarnation) < (epoch, incarnation):
            yield f"scope {name} was acknowledged at version {version}, epoch {epoch}, incarnation {incarnation}: lost"


def _lost_maintenances(maintenances: tuple[tuple[str, int, str], ...], snapshot: Snapshot) -> Iterator[str]:
    for maintenance_id, version, status in maintenances:
        maintenance = snapshot.maintenances.get(maintenance_id)
        if maintenance is None or maintenance.version < version:
            yield f"maintenance {maintenance_id} was acknowledged at version {version}: lost"
        elif status in _ENDED_MAINTENANCE and maintenance.status != status:
            yield f"maintenance {maintenance_id} was acknowledged as {status} and is {maintenance.status}"


def _step(state: str) -> str:
    """Return the step of an order in doubt: it is under way, and may be running again."""
    return "running" if state == "in-doubt" else state


def _reached(steps: Mapping[str, int], now: str, then: str) -> bool:
    """Return whether the state `then` can have become `now`: later, or the same."""
    return now == then or steps[now] > steps[then]


# -- no event lost or doubled


def _plans(history: History, snapshot: Snapshot) -> Iterator[str]:
    by_maintenance: dict[str, list[Event]] = defaultdict(list)
    for event in snapshot.events.values():
        by_maintenance[event.maintenance_id].append(event)
    for maintenance_id, planned in history.plans.items():
        ids = {event.id for event in by_maintenance[maintenance_id]}
        if ids != set(planned):
            yield f"maintenance {maintenance_id} was planned with {len(planned)} events and has others: {sorted(ids)}"
    for maintenance_id, events in by_maintenance.items():
        if sorted(event.position for event in events) != list(range(len(events))):
            yield f"the events of maintenance {maintenance_id} are not numbered one by one: one is lost or doubled"
        if maintenance_id not in snapshot.maintenances:
            yield f"events of maintenance {maintenance_id} are there without it"


# -- no event started twice, no order skipped


def _starts(stored: StoredState) -> Iterator[str]:
    for action, statuses in (
        ("event started", _HAS_STARTED),
        ("event completed", {Status.COMPLETED}),
        ("event cancelled", {Status.CANCELLED}),
    ):
        times = Counter(entry.event_id for entry in stored.audit if entry.action == action)
        for event in stored.snapshot.events.values():
            expected = 1 if event.status in statuses else 0
            if times[event.id] != expected:
                yield f"{action} {times[event.id]} times in the audit: {event.id}, which is {event.status}"
        for event_id in times.keys() - stored.snapshot.events.keys():
            yield f"{action} in the audit, and there is no event {event_id}"


def _orders(snapshot: Snapshot) -> Iterator[str]:
    for event in snapshot.events.values():
        order = snapshot.orders.get(event.id)
        if (order is not None) != (event.status in _HAS_STARTED):
            yield f"event {event.id} is {event.status} and has {'an' if order else 'no'} order"
        elif order is not None and (order.state is OrderState.DONE) != (event.status is Status.COMPLETED):
            yield f"event {event.id} is {event.status} and its order {order.state}"


def _waves(snapshot: Snapshot) -> Iterator[str]:
    waves: dict[tuple[str, int], set[Status]] = defaultdict(set)
    for event in snapshot.events.values():
        waves[event.maintenance_id, event.wave].add(event.status)
    for (maintenance_id, wave), statuses in waves.items():
        if statuses & _HAS_STARTED and statuses & UNSTARTED:
            yield f"wave {wave} of maintenance {maintenance_id} has started by half"


# -- the documents that guests saw


def _contents(shown: list[Document]) -> Iterator[str]:
    """Check that an incarnation has one content within an epoch, and that neither of them goes back."""
    contents: dict[tuple[str, int, int, str], str] = {}
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for seen in shown:
        content = contents.setdefault((seen.scope, seen.epoch, seen.incarnation, seen.version), seen.content)
        if content != seen.content:
            yield (
                f"incarnation {seen.incarnation} of {seen.scope} in epoch {seen.epoch} had two contents:"
                f" {content} and {seen.content}"
            )
        stage = (seen.epoch, seen.incarnation)
        if stage < last.get((seen.scope, seen.version), stage):
            yield f"the document of {seen.scope} went back to epoch {seen.epoch}, incarnation {seen.incarnation}"
        last[seen.scope, seen.version] = stage


# -- the invariants of the core


def _invariants(snapshot: Snapshot) -> Iterator[str]:
    """Check every event as if it had just been changed: its start, approvals, resources, wave and update domain."""
    events = {i: event for i, event in snapshot.events.items() if event.maintenance_id in snapshot.maintenances}
    untouched = {i: replace(event, reason=f"{event.reason}, untouched") for i, event in events.items()}
    try:
        check_invariants(replace(snapshot, events=untouched), replace(snapshot, events=events), FAR_FUTURE)
    except InvariantBroken as error:
        yield str(error)
    for event in snapshot.events.values():
        promised = timedelta(0) if event.born_approved else timedelta(seconds=event.minimum_notice_s)
        if event.published and event.not_before and event.not_before - event.published < promised:
            yield f"event {event.id} gave less notice than it promised"
