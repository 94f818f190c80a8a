"""Faults: which requests of guests fail, and how. Parsing is strict; the same seed chooses the same requests.

A fault of the kind `status` replaces the answer of the service, and the request has no effect. Every other kind damages the
answer of a request that had its effect. Only requests for the document and the instance can fail. While a fault of the kind
`refuse` is in force, nothing can connect.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any

from forewarn.core.errors import Invalid, InvalidSettings
from forewarn.core.lazy_dataclass import dataclass
from forewarn.testing.durations import seconds_of

KINDS = {
    "status": ("status",),
    "slow": ("delay",),
    "skew": ("by",),
    "stall": (),
    "cut": (),
    "bad-json": (),
    "newer": (),
    "lower-ids": (),
    "reset": (),
    "refuse": (),
}
# Statuses of answers that cannot have a body.
NO_BODY = (204, 205, 304)
STATUSES = {
    404: "Not found",
    410: "Gone",
    429: "Too many requests",
    500: "Internal server error",
    503: "Service unavailable",
}
OPTIONAL = {"slow": ("jitter",)}
WHEN = ("path", "requests", "machine", "method", "after", "for", "probability")
# Connections are refused before there is a request, so only time can be a condition.
WHEN_REFUSED = ("after", "for")
DOCUMENT, INSTANCE = PATHS = ("/metadata/scheduledevents", "/metadata/instance")
# Kinds that only change a document.
OF_DOCUMENTS = ("newer", "lower-ids")
MIN_STATUS, MAX_STATUS = 200, 599
METHODS = ("GET", "HEAD", "POST")
MAX_FAULTS = 100
MAX_LISTED = 8
MAX_FILE_BYTES = 64 * 1024
_NUMBERS = re.compile(r"([1-9][0-9]{0,8})(-([1-9][0-9]{0,8})?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kind of failure, and the conditions that a request must all meet to fail."""

    kind: str
    status: int = 0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    skew_s: int = 0
    first: int = 1
    last: int | None = None
    path: str = DOCUMENT
    machine: str = ""
    method: str = ""
    after_s: float = 0.0
    for_s: float | None = None
    probability: float = 1.0

    def __str__(self) -> str:
        return str(self.status) if self.kind == "status" else self.kind

    def matches(self, machine: str, method: str, path: str) -> bool:
        """Whether the fault concerns requests of the machine (`scope/name`) with this method, for one of PATHS."""
        return (
            self.kind != "refuse"
            and self.path == path
            and self.machine in ("", machine, machine.partition("/")[2])
            and self.method in ("", method)
        )

    def is_active(self, elapsed_s: float) -> bool:
        """Whether the fault is in force this long after the plan began."""
        return elapsed_s >= self.after_s and (self.for_s is None or elapsed_s < self.after_s + self.for_s)


class FaultPlan:
    """Chooses the fault of each request. If several apply, it chooses the first in the list."""

    def __init__(self, faults: Iterable[Fault] = (), *, began: datetime, seed: int = 0) -> None:
        self.faults = tuple(faults)
        self._began = began
        self._seed = seed
        self._matched: Counter[int] = Counter()
        self._drawn: Counter[tuple[int, str]] = Counter()

    def check_machines(self, machines: Collection[str]) -> None:
        """Raise if a fault names a machine that is not in `machines` (`scope/name`), because it would never apply."""
        known = {*machines, *(machine.partition("/")[2] for machine in machines)}
        for number, fault in enumerate(self.faults, 1):
            if fault.machine and fault.machine not in known:
                raise InvalidSettings(
                    f"faults: fault {number}: machine: there is no {fault.machine!r}: {machine_list(machines)}"
                )

    def refuses(self, now: datetime) -> bool:
        """Whether connections are refused now."""
        elapsed_s = (now - self._began).total_seconds()
        return any(fault.kind == "refuse" and fault.is_active(elapsed_s) for fault in self.faults)

    def next_refusal_change(self, now: datetime) -> datetime | None:
        """Return when a fault of the kind `refuse` begins or ends next."""
        refusals = [fault for fault in self.faults if fault.kind == "refuse"]
        bounds_s = [f.after_s for f in refusals] + [f.after_s + f.for_s for f in refusals if f.for_s is not None]
        moments = [self._began + timedelta(seconds=bound_s) for bound_s in bounds_s]
        return min((moment for moment in moments if moment > now), default=None)

    def choose(self, *, machine: str, method: str, path: str = DOCUMENT, now: datetime) -> Fault | None:
        """Return the fault of the machine's (`scope/name`) next request, if any. `now` is the service clock."""
        elapsed_s = (now - self._began).total_seconds()
        chosen = None
        for index, fault in enumerate(self.faults):
            if not fault.matches(machine, method, path):
                continue
            self._matched[index] += 1
            number = self._matched[index]
            applies = fault.first <= number <= (fault.last or number) and fault.is_active(elapsed_s)
            drawn = self._draw(index, fault, machine) if applies else None
            chosen = chosen or drawn
        return chosen

    def _draw(self, index: int, fault: Fault, machine: str) -> Fault | None:
        """Decide by the fault's probability; return the fault with its delay.

        Each machine has its own random numbers, so that the order in which machines send requests makes no difference.
        """
        if fault.probability >= 1.0 and not fault.jitter_s:
            return fault
        self._drawn[index, machine] += 1
        generator = Random(f"{self._seed} {index} {machine} {self._drawn[index, machine]}")  # noqa: S311 - repeatable on purpose
        if generator.random() >= fault.probability:
            return None
        return replace(fault, delay_s=fault.delay_s + generator.random() * fault.jitter_s)


def reason(status: int) -> str:
    """Return the message of an error with this status."""
    return STATUSES.get(status) or (HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error")


def machine_list(machines: Collection[str]) -> str:
    """Return the first names as text, for the error message about an unknown machine."""
    names = sorted(machines)
    return f"there are {', '.join(names[:MAX_LISTED])}" + (" …" if len(names) > MAX_LISTED else "")


def read_faults(path: Path) -> tuple[Fault, ...]:
    """Read a TOML file of faults; raise InvalidSettings if it is wrong."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidSettings(f"{path}: larger than {MAX_FILE_BYTES} bytes: a file of faults is smaller")
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidSettings(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidSettings(f"{path}: this is not TOML: {error}") from None
    unknown = sorted(document.keys() - {"faults"})
    tables = document.get("faults", [])
    if unknown or not isinstance(tables, list):
        raise InvalidSettings(f"{path}: {unknown[0] if unknown else 'faults'}: write each fault as a table [[faults]]")
    return parse_faults(tables, str(path))


def parse_faults(tables: Sequence[object], source: str = "faults") -> tuple[Fault, ...]:
    """Parse the tables; raise InvalidSettings with the number of the wrong fault and what to write instead."""
    if len(tables) > MAX_FAULTS:
        raise InvalidSettings(f"{source}: {len(tables)} faults: at most {MAX_FAULTS} are allowed")
    faults = []
    for number, table in enumerate(tables, 1):
        try:
            faults.append(_fault(table))
        except Invalid as error:
            raise InvalidSettings(f"{source}: fault {number}: {error}") from None
    return tuple(faults)


def _fault(table: object) -> Fault:
    if not isinstance(table, Mapping):
        raise Invalid('a fault must be a table, such as fault = "status", status = 503')
    kind = _one_of(table, "fault", tuple(KINDS))
    known = ("fault", *KINDS[kind], *OPTIONAL.get(kind, ()), *(WHEN if kind != "refuse" else WHEN_REFUSED))
    for key in table:
        if key not in known:
            raise Invalid(f"{key}: a fault of kind {kind} has no such key: use {', '.join(known)}")
    for key in KINDS[kind]:
        if key not in table:
            raise Invalid(f"{key}: missing: a fault of kind {kind} needs it")
    path = _one_of(table, "path", PATHS) if "path" in table else DOCUMENT
    if kind in OF_DOCUMENTS and path != DOCUMENT:
        raise Invalid(f"path: a fault of kind {kind} only changes the document: leave out path")
    first, last = _numbers(table.get("requests", "1-"))
    return Fault(
        kind=kind,
        status=_status(table["status"]) if kind == "status" else 0,
        delay_s=seconds_of(table["delay"], "delay") if kind == "slow" else 0.0,
        jitter_s=_duration_s(table, "jitter") or 0.0,
        skew_s=_skew_s(table["by"]) if kind == "skew" else 0,
        first=first,
        last=last,
        path=path,
        machine=_text(table, "machine"),
        method=_one_of(table, "method", METHODS) if "method" in table else "",
        after_s=_duration_s(table, "after") or 0.0,
        for_s=_duration_s(table, "for"),
        probability=_probability(table.get("probability", 1.0)),
    )


def _one_of(table: Mapping[Any, Any], key: str, choices: Sequence[str]) -> str:
    value = table.get(key)
    if not isinstance(value, str) or value not in choices:
        raise Invalid(f"{key}: {value!r} is not one of {', '.join(choices)}")
    return value


def _text(table: Mapping[Any, Any], key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise Invalid(f'{key}: {value!r} is not a name: write it like "vm-0"')
    return value


def _status(value: object) -> int:
    if not isinstance(value, int) or not MIN_STATUS <= value <= MAX_STATUS:
        raise Invalid(f"status: {value!r} is not a number from {MIN_STATUS} to {MAX_STATUS}")
    return value


def _numbers(value: object) -> tuple[int, int | None]:
    """Return the first and last number of `3`, `"2-4"` or `"5-"`; the last is None if there is no end."""
    match = _NUMBERS.fullmatch(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else None
    if match is None or (match[3] and int(match[3]) < int(match[1])):
        raise Invalid(f'requests: {value!r} is not a range of requests: write a number, "2-4" or "5-", counted from 1')
    first = int(match[1])
    return first, (int(match[3]) if match[3] else None) if match[2] else first


def _duration_s(table: Mapping[Any, Any], key: str) -> float | None:
    return seconds_of(table[key], key) if key in table else None


def _skew_s(value: object) -> int:
    """Return the skew in seconds; it may be negative, like "-90s"."""
    if isinstance(value, str) and value.startswith("-"):
        return -int(seconds_of(value[1:], "by"))
    if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        return int(seconds_of(abs(seconds), "by")) * (-1 if seconds < 0 else 1)
    return int(seconds_of(value, "by"))


def _probability(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise Invalid(f"probability: {value!r} is not a number from 0 to 1")
    return float(value)
