"""The request log of an emulator: guests' requests with their answers, and the service's changes, each with both clocks.

The listener's thread and the writers of the service add entries; other threads read them and wait for them. The log is
bounded: it keeps the latest entries, and keeps approvals longest, because expectations count them.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from time import monotonic
from typing import TypeVar

from forewarn.core.change import Change
from forewarn.core.durations import duration_text
from forewarn.core.lazy_dataclass import dataclass

MAX_REQUESTS = 10_000
MAX_CHANGES = 10_000
MAX_BODY_BYTES = 4_096
MAX_TIMELINE = 100
# Of more equal polls in a row than this, the timeline shows only the first and the last.
MAX_EQUAL_POLLS = 4
SHOWN_ID_CHARS = 8
# The timeline shows when a poll was received if its answer took at least this long.
LONG_WAIT_S = 0.1

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """A request of a guest. `status` is None until it is answered, and stays None if the answer was stalled.

    `at` is the service clock, `at_s` real seconds since the emulator started. `events` are the ids and statuses in the
    document that the guest got. `approves` are the ids in its StartRequests, whether or not they were approved. `left` means
    that the guest hung up before the answer, `lost` that the request had its effect and the guest got no readable answer.
    """

    number: int
    at: datetime
    at_s: float
    scope: str
    machine: str
    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    approves: tuple[str, ...] = ()
    status: int | None = None
    fault: str = ""
    incarnation: int | None = None
    events: tuple[tuple[str, str], ...] = ()
    answered_at: datetime | None = None
    answered_s: float | None = None
    left: bool = False
    lost: bool = False

    @property
    def path(self) -> str:
        return self.target.partition("?")[0].lower()

    @property
    def polls(self) -> bool:
        """Whether the request is a GET of the document."""
        return self.method == "GET" and self.path == "/metadata/scheduledevents"

    def is_from(self, machine: str | None) -> bool:
        """Whether the machine, as `vm-0` or `scope/vm-0`, sent the request. None matches every machine."""
        return machine is None or machine in (self.machine, f"{self.scope}/{self.machine}")

    def shows(self, event_id: str, status: str = "") -> bool:
        """Whether the answer has the event, in this status if one is given."""
        return any(shown_id == event_id and status in ("", shown) for shown_id, shown in self.events)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name.lower()), None)

    def __str__(self) -> str:
        """Return one line without the real time, so that the same run gives the same lines."""
        machine = self.machine or "unknown"
        unanswered = self.status is None and not (self.lost or self.left)
        answer = "no answer yet" if unanswered else str(self.status or "no answer")
        document = f", document {self.incarnation}: {_event_list(self.events)}" if self.incarnation is not None else ""
        approves = f" approving {', '.join(_short(i) for i in self.approves)}" if self.approves else ""
        fault = f" [{self.fault}]" if self.fault else ""
        left = ", and the guest hung up" if self.left else ""
        # Escaped, because a target may contain control characters for a terminal.
        target = self.target.encode("ascii", "backslashreplace").decode()
        return f"#{self.number} {machine} {self.method or '?'} {target}{approves} -> {answer}{fault}{document}{left}"


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """An entry of the service's audit log, or a step of a scenario, as text."""

    at: datetime
    at_s: float
    text: str


class RequestLog:
    """Adds entries, returns them, and lets threads wait for them. `now` is the service clock."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._began, self._began_s = now(), monotonic()
        self._updated = threading.Condition()
        self._requests: dict[int, LoggedRequest] = {}
        self._without_approval: deque[int] = deque()  # request numbers
        self._changes: deque[LoggedChange] = deque(maxlen=MAX_CHANGES)
        self._count = 0
        self._gone = self._approvals_gone = 0

    # -- writing

    def add_request(
        self, *, scope: str, machine: str, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes,
        approves: tuple[str, ...] = (),
    ) -> LoggedRequest:  # fmt: skip
        with self._updated:
            self._count += 1
            request = LoggedRequest(
                number=self._count,
                at=self._now(),
                at_s=self._elapsed_s(),
                scope=scope,
                machine=machine,
                method=method,
                target=target,
                headers=tuple(headers),
                body=body[:MAX_BODY_BYTES],
                approves=approves,
            )
            self._requests[request.number] = request
            if not approves:
                self._without_approval.append(request.number)
            if len(self._requests) > MAX_REQUESTS:
                self._drop_one()
            self._updated.notify_all()
        return request

    def clear(self) -> None:
        """Forget the changes and the answered requests. Numbers continue, and requests that wait for an answer stay."""
        with self._updated:
            self._requests = {n: r for n, r in self._requests.items() if r.status is None and not (r.left or r.lost)}
            self._without_approval = deque(n for n in self._without_approval if n in self._requests)
            self._changes.clear()
            self._gone = self._approvals_gone = 0

    def _drop_one(self) -> None:
        self._gone += 1
        if self._without_approval:
            del self._requests[self._without_approval.popleft()]
        else:
            del self._requests[next(iter(self._requests))]
            self._approvals_gone += 1

    def add_answer(
        self, number: int, *, status: int | None, fault: str = "", incarnation: int | None = None,
        events: tuple[tuple[str, str], ...] = (), left: bool = False, lost: bool = False,
    ) -> None:  # fmt: skip
        with self._updated:
            request = self._requests.get(number)
            if request is not None:
                self._requests[number] = replace(
                    request, status=status, fault=fault, incarnation=incarnation, events=events, left=left, lost=lost,
                    answered_at=self._now() if status is not None else None,
                    answered_s=self._elapsed_s() if status is not None else None,
                )  # fmt: skip
                self._updated.notify_all()

    def add_change(self, change: Change) -> None:
        """Add what the service saved. `control` calls this after each change."""
        with self._updated:
            for entry in change.audit:
                event = f" {_short(entry.event_id)}" if entry.event_id else ""
                detail = f": {entry.detail}" if entry.detail else ""
                text = f"{entry.action}{event}{detail}, by {entry.who}"
                self._changes.append(LoggedChange(entry.at, self._elapsed_s(), text))

    def add_note(self, text: str) -> None:
        """Add a line to the timeline."""
        with self._updated:
            self._changes.append(LoggedChange(self._now(), self._elapsed_s(), text))

    # -- reading

    @property
    def last_number(self) -> int:
        with self._updated:
            return self._count

    @property
    def gone(self) -> int:
        """How many requests are no longer kept because there are too many."""
        with self._updated:
            return self._gone

    @property
    def approvals_gone(self) -> int:
        """How many requests with approvals are no longer kept. If there are any, approvals cannot be counted."""
        with self._updated:
            return self._approvals_gone

    def requests(self) -> list[LoggedRequest]:
        """Return the requests in the order in which they came."""
        with self._updated:
            return list(self._requests.values())

    def wait(self, find: Callable[[list[LoggedRequest]], T | None], within_s: float) -> T | None:
        """Return the result of `find` as soon as it is not None; return None when the time is up."""
        __tracebackhide__ = True  # `find` may raise: pytest then shows the line of the test
        deadline_s = monotonic() + within_s
        with self._updated:
            while (result := find(list(self._requests.values()))) is None:
                if not self._updated.wait(max(0.0, deadline_s - monotonic())):
                    return find(list(self._requests.values()))
            return result

    def timeline(self) -> list[str]:
        """Return the latest entries, one line each, with the real time and the service's time.

        A poll appears when it was answered, after the changes in its answer. Other requests appear when they were received,
        before the changes that they caused. Many equal polls in a row are shortened.
        """
        with self._updated:
            entries = [
                *map(_timeline_entry, self._requests.values()),
                *((change.at_s, change.at, change.text, "") for change in self._changes),
            ]
            gone = self._gone
        entries.sort(key=lambda entry: entry[0])
        lines: list[tuple[int, str]] = []  # how many entries a line stands for, and its text
        for poll, equal in groupby(entries, key=lambda entry: entry[3]):
            shown = [(1, f"{at_s:9.3f} s  {self._since_start(at):>8}  {text}") for at_s, at, text, _ in equal]
            if poll and len(shown) > MAX_EQUAL_POLLS:
                shown[1:-1] = [(len(shown) - 2, f"{'':23}… {len(shown) - 2} more polls with this answer")]
            lines += shown
        left_out = sum(count for count, _ in lines[:-MAX_TIMELINE]) + gone
        texts = [text for _, text in lines[-MAX_TIMELINE:]]
        return [f"… {left_out} earlier entries", *texts] if left_out else texts

    def trace(self) -> str:
        """Return a line per request with the service's time: the same seed and the same guests give the same bytes."""
        gone = f"… {self.gone} earlier requests are no longer kept\n" if self.gone else ""
        return gone + "".join(f"{self._since_start(each.at)} {each}\n" for each in self.requests())

    def _elapsed_s(self) -> float:
        return monotonic() - self._began_s

    def _since_start(self, moment: datetime) -> str:
        return f"+{duration_text(int((moment - self._began).total_seconds()))}"


def _timeline_entry(request: LoggedRequest) -> tuple[float, datetime, str, str]:
    """Return the real time, the service's time, the text, and for an answered poll its text without number and times.

    The text of a long poll also says when it was received.
    """
    if not request.polls or request.answered_s is None or request.answered_at is None:
        return request.at_s, request.at, str(request), ""
    received = f" (received at {request.at_s:.3f} s)" if request.answered_s - request.at_s >= LONG_WAIT_S else ""
    return request.answered_s, request.answered_at, f"{request}{received}", str(request).partition(" ")[2]


def _short(event_id: str) -> str:
    return event_id[:SHOWN_ID_CHARS]


def _event_list(events: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{_short(i)} {status}" for i, status in events) or "no events"
