"""What a process recorded, line by line, so that a kill loses at most the line that is being written.

The worker records through a Recorder; the parent reads every run's file back as one History. A line is written only after
the store has acknowledged: what is in a History must be in the database.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forewarn.core.change import Change, Snapshot
from forewarn.core.document import VERSIONS, render
from forewarn.core.model import AuditEntry

OBSERVED_VERSIONS = ("2017-03-01", "2020-07-01")

Audited = tuple[str, ...]


def audited(entry: AuditEntry) -> Audited:
    """Return an audit entry for comparison: everything except the number that the store gave it."""
    origin, about = entry.origin, (entry.scope, entry.maintenance_id, entry.event_id)
    return (entry.at.isoformat(), entry.who, entry.action, origin, *about, entry.detail)


@dataclass(frozen=True, slots=True)
class Document:
    """What a guest was shown."""

    scope: str
    epoch: int
    incarnation: int
    version: str
    content: str


def documents(snapshot: Snapshot) -> list[Document]:
    """Return what the guests of each scope in the snapshot see, in an old and in the newest version."""
    return [
        Document(
            scope.name,
            scope.epoch,
            scope.incarnation,
            version,
            render(scope, (e for e in snapshot.events.values() if e.scope == scope.name), VERSIONS[version]).decode(),
        )
        for scope in snapshot.scopes.values()
        for version in OBSERVED_VERSIONS
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One acknowledged change: what the store must hold from now on, or a later state of it."""

    scopes: tuple[tuple[str, int, int, int], ...] = ()  # name, version, epoch, incarnation
    maintenances: tuple[tuple[str, int, str], ...] = ()  # id, version, status
    events: tuple[tuple[str, str], ...] = ()  # id, status
    approvals: tuple[tuple[str, str], ...] = ()  # event, machine
    orders: tuple[tuple[str, int, str], ...] = ()  # id, attempt, state
    audit: tuple[Audited, ...] = ()


def saved(change: Change) -> Saved:
    return Saved(
        scopes=tuple((s.name, s.version + 1, s.epoch, s.incarnation) for s in change.scopes),
        maintenances=tuple((m.id, m.version + 1, str(m.status)) for m in change.maintenances),
        events=tuple((e.id, str(e.status)) for e in change.events),
        approvals=tuple((a.event_id, a.machine) for a in change.approvals),
        orders=tuple((o.id, o.attempt, str(o.state)) for o in change.orders),
        audit=tuple(audited(entry) for entry in change.audit),
    )


@dataclass(slots=True)
class History:
    """Everything acknowledged, planned and shown in all runs so far, and the faults that the worker noticed."""

    saved: list[Saved] = field(default_factory=list)
    plans: dict[str, tuple[str, ...]] = field(default_factory=dict)
    shown: list[Document] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def read(self, path: Path) -> None:
        """Add what one run wrote; the last line may be incomplete because of the kill."""
        *whole, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
        for line in whole:
            kind, value = json.loads(line)
            if kind == "saved":
                self.saved.append(Saved(**{key: tuple(map(tuple, rows)) for key, rows in value.items()}))
            elif kind == "plan":
                self.plans[value[0]] = tuple(value[1:])
            elif kind == "shown":
                self.shown.append(Document(*value))
            else:
                self.faults.append(value)


class Recorder:
    """Appends to the file of one run; each line is one write, from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._last: dict[tuple[str, str], Document] = {}

    def saved(self, change: Change) -> None:
        """Listen to `Control`: called after a change is saved and before its caller gets the response."""
        self._write("saved", {key: rows for key in Saved.__slots__ if (rows := getattr(saved(change), key))})

    def plan(self, maintenance_id: str, event_ids: list[str]) -> None:
        self._write("plan", [maintenance_id, *event_ids])

    def shown(self, seen: list[Document]) -> None:
        """Record the documents that differ from those shown last. Only one thread calls this."""
        for document in seen:
            key = (document.scope, document.version)
            if self._last.get(key) != document:
                self._last[key] = document
                self._write("shown", [getattr(document, name) for name in Document.__slots__])

    def fault(self, text: str) -> None:
        self._write("fault", text)

    def _write(self, kind: str, value: Any) -> None:
        os.write(self._file, json.dumps([kind, value]).encode() + b"\n")
