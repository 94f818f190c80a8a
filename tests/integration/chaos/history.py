"""The history of a run, seen from outside: every request, fault and piece of work, and the final state.

One JSON line each, written as it happens, so that a failing run can be kept and checked again. Times in `_s` are of the
monotonic clock; moments called `at` are seconds of the wall clock, which is the database's too. `Run` relates the two.
"""

import json
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

# A node's idea of the database's time is late by the transfer; readings that took over 3 s are not used.
BEHIND_S = 3.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The seed of the run and the limits that its nodes were given."""

    seed: int
    wall_minus_monotonic_s: float
    max_stale_s: float
    disturbed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to one life of one node. `status` 0: no answer came.

    `ids` are what it was about (events approved; the maintenance or event of an operator's verb), `answered_ids` what the
    answer named (the maintenance and its events). A poll names its scope and machine, and has the document that came.
    """

    who: str
    node: str
    life: int
    begin_s: float
    end_s: float
    what: str
    status: int
    scope: str = ""
    machine: str = ""
    if_none_match: str = ""
    ids: tuple[str, ...] = ()
    key: str = ""
    answered_ids: tuple[str, ...] = ()
    etag: str = ""
    body: str = ""

    @property
    def acknowledged(self) -> bool:
        return self.status in (200, 201, 304)

    @property
    def refused(self) -> bool:
        """Whether surely nothing was done. A 503 may come after the database saved the change, so it is no refusal."""
        return 400 <= self.status < 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something was done to a node or to the way to its database."""

    at_s: float
    what: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """The executor's own work_log: the command began, or ended."""

    what: str
    order: str
    attempt: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    name: str
    approval: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """As it is in the end. Its description begins with the key of its request."""

    id: str
    status: str
    description: str
    ended: bool

    @property
    def key(self) -> str:
        return self.description.partition(" ")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """As it is in the end."""

    id: str
    maintenance: str
    scope: str
    type: str
    status: str
    resources: tuple[str, ...]
    published_at: float | None = None
    not_before_at: float | None = None
    started_at: float | None = None
    notice_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """One line of the audit."""

    id: int
    at: float
    who: str
    origin: str
    action: str
    scope: str = ""
    maintenance: str = ""
    event: str = ""
    detail: str = ""


Entry = Run | Request | Fault | Worked | Scope | Maintenance | Event | Audited
KINDS: dict[str, type[Entry]] = {
    kind.__name__: kind for kind in (Run, Request, Fault, Worked, Scope, Maintenance, Event, Audited)
}


@dataclass(slots=True)
class History:
    run: Run
    requests: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    worked: list[Worked] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    maintenances: list[Maintenance] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    audit: list[Audited] = field(default_factory=list)

    def at(self, monotonic_s: float) -> float:
        """The same moment by the wall clock."""
        return monotonic_s + self.run.wall_minus_monotonic_s

    def add(self, entry: Entry) -> None:
        match entry:
            case Run():
                self.run = entry
            case Request():
                self.requests.append(entry)
            case Fault():
                self.faults.append(entry)
            case Worked():
                self.worked.append(entry)
            case Scope():
                self.scopes.append(entry)
            case Maintenance():
                self.maintenances.append(entry)
            case Event():
                self.events.append(entry)
            case Audited():
                self.audit.append(entry)


class Recorder:
    """Takes entries from any thread: into a History, and line by line into a file."""

    def __init__(self, run: Run, file: TextIO) -> None:
        self.history = History(run)
        self._file = file
        self._lock = threading.Lock()
        self.record(run)

    def record(self, entry: Entry) -> None:
        line = json.dumps({"kind": type(entry).__name__, **asdict(entry)})
        with self._lock:
            self.history.add(entry)
            self._file.write(line + "\n")


def read(path: Path) -> History:
    """A history that was kept."""
    entries = [_entry(json.loads(line)) for line in path.read_text("utf-8").splitlines()]
    return collected(entries)


def collected(entries: Iterable[Entry]) -> History:
    first, *rest = entries
    if not isinstance(first, Run):
        raise ValueError("a history begins with what the run was")
    history = History(first)
    for entry in rest:
        history.add(entry)
    return history


def _entry(fields: dict[str, Any]) -> Entry:
    kind = KINDS[fields.pop("kind")]
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    return kind(**values)
