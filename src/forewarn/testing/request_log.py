"""What the guests of an emulator asked and were answered, and what the service did meanwhile, in order and with both clocks.

Written by the listener's thread and whoever changes the service, read and waited on by everybody else. Bounded: of a long run
the latest is kept, and approvals before anything else, for expectations are about them.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from typing import TypeVar

from forewarn.core.change import Change
from forewarn.core.durations import duration_text

MAX_REQUESTS = 10_000
MAX_NOTES = 10_000
MAX_BODY_BYTES = 4_096
MAX_TIMELINE = 100
SHOWN_ID_CHARS = 8
WAITED_S = 0.1

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request of a guest, numbered as it came. `status` is None while it waits, and for ever if it was stalled.

    `at` is the service clock, `at_s` real seconds since the emulator began. `events` are the ids and statuses in the document
    that the guest got, `approves` the ids in its StartRequests, whatever became of them. `left`: the guest hung up first.
    `lost`: the guest does not have the answer, or not a readable one.
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
        """Whether it asks for the document."""
        return self.method == "GET" and self.path == "/metadata/scheduledevents"

    def is_of(self, machine: str | None) -> bool:
        """`vm-0`, `scope/vm-0`, or anybody."""
        return machine is None or machine in (self.machine, f"{self.scope}/{self.machine}")

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name.lower()), None)

    def __str__(self) -> str:
        """In one line, without the real time: the same run gives the same lines."""
        who = self.machine or "nobody"
        answer = "no answer yet" if self.status is None and not self.lost else str(self.status or "no answer")
        told = f", document {self.incarnation}: {_listed(self.events)}" if self.incarnation is not None else ""
        said = f" approving {', '.join(_short(i) for i in self.approves)}" if self.approves else ""
        fault = f" [{self.fault}]" if self.fault else ""
        left = ", and the guest hung up" if self.left else ""
        target = self.target.encode("ascii", "backslashreplace").decode()  # what a guest says is not for a terminal
        return f"#{self.number} {who} {self.method or '?'} {target}{said} -> {answer}{fault}{told}{left}"


@dataclass(frozen=True, slots=True)
class Noted:
    """Something that happened in the service."""

    at: datetime
    at_s: float
    text: str

    def __str__(self) -> str:
        return self.text


class RequestLog:
    """`now` is the service clock."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._began, self._began_s = now(), monotonic()
        self._news = threading.Condition()
        self._requests: dict[int, Asked] = {}
        self._others: deque[int] = deque()  # the numbers of those that approve nothing
        self._notes: deque[Noted] = deque(maxlen=MAX_NOTES)
        self._count = 0
        self._approvals_gone = 0

    # -- writing

    def asked(
        self, *, scope: str, machine: str, method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes,
        approves: tuple[str, ...] = (),
    ) -> Asked:  # fmt: skip
        with self._news:
            self._count += 1
            asked = Asked(
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
            self._requests[asked.number] = asked
            if not approves:
                self._others.append(asked.number)
            if len(self._requests) > MAX_REQUESTS:
                self._make_room()
            self._news.notify_all()
        return asked

    def _make_room(self) -> None:
        if self._others:
            del self._requests[self._others.popleft()]
        else:
            del self._requests[next(iter(self._requests))]
            self._approvals_gone += 1

    def answered(
        self, number: int, *, status: int | None, fault: str = "", incarnation: int | None = None,
        events: tuple[tuple[str, str], ...] = (), left: bool = False, lost: bool = False,
    ) -> None:  # fmt: skip
        with self._news:
            asked = self._requests.get(number)
            if asked is not None:
                self._requests[number] = replace(
                    asked, status=status, fault=fault, incarnation=incarnation, events=events, left=left,
                    lost=lost or left,
                    answered_at=self._now() if status is not None else None,
                    answered_s=self._elapsed_s() if status is not None else None,
                )  # fmt: skip
                self._news.notify_all()

    def heard(self, change: Change) -> None:
        """The service's bell."""
        with self._news:
            for entry in change.audit:
                event = f" {_short(entry.event_id)}" if entry.event_id else ""
                detail = f": {entry.detail}" if entry.detail else ""
                self._notes.append(Noted(entry.at, self._elapsed_s(), f"{entry.action}{event}{detail}, by {entry.who}"))

    # -- reading

    @property
    def last_number(self) -> int:
        with self._news:
            return self._count

    @property
    def gone(self) -> int:
        """How many requests are no longer kept."""
        with self._news:
            return self._count - len(self._requests)

    @property
    def approvals_gone(self) -> int:
        """How many of those approved something: then nobody can say how often it was approved."""
        with self._news:
            return self._approvals_gone

    def requests(self) -> list[Asked]:
        """In the order they came."""
        with self._news:
            return list(self._requests.values())

    def wait(self, found: Callable[[list[Asked]], T | None], within_s: float) -> T | None:
        """What `found` finds among the requests, as soon as it does; None when the time is up."""
        deadline_s = monotonic() + within_s
        with self._news:
            while (result := found(list(self._requests.values()))) is None:
                if not self._news.wait(max(0.0, deadline_s - monotonic())):
                    return found(list(self._requests.values()))
            return result

    def timeline(self) -> list[str]:
        """The latest of what guests and the service did, one line each, with the real time and the service's.

        A poll stands where it was answered, after what it tells of; anything else where it was asked, before what it led to.
        """
        with self._news:
            entries = [*map(_placed, self._requests.values()), *((n.at_s, n.at, str(n)) for n in self._notes)]
            gone = self._count - len(self._requests)
        entries.sort(key=lambda entry: entry[0])
        lines = [f"{at_s:9.3f} s  {self._since(at):>8}  {text}" for at_s, at, text in entries[-MAX_TIMELINE:]]
        left_out = len(entries) - len(lines) + gone
        return [f"… {left_out} earlier entries", *lines] if left_out else lines

    def trace(self) -> str:
        """Every request in a line with the service's time: the same seed and the same guests give the same bytes."""
        gone = f"… {self.gone} earlier requests are no longer kept\n" if self.gone else ""
        return gone + "".join(f"{self._since(each.at)} {each}\n" for each in self.requests())

    def _elapsed_s(self) -> float:
        return monotonic() - self._began_s

    def _since(self, moment: datetime) -> str:
        return f"+{duration_text(int((moment - self._began).total_seconds()))}"


def _placed(asked: Asked) -> tuple[float, datetime, str]:
    """Where it stands in the timeline, in real time and the service's; whoever waited long is shown to have."""
    if not asked.polls or asked.answered_s is None or asked.answered_at is None:
        return asked.at_s, asked.at, str(asked)
    waited = f" (asked at {asked.at_s:.3f} s)" if asked.answered_s - asked.at_s >= WAITED_S else ""
    return asked.answered_s, asked.answered_at, f"{asked}{waited}"


def _short(event_id: str) -> str:
    return event_id[:SHOWN_ID_CHARS]


def _listed(events: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{_short(i)} {status}" for i, status in events) or "no events"
