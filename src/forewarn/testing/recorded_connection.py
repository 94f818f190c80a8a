"""The emulator's side of a guest's connection: every request is written down, and some go wrong on purpose.

The one seam between the service's listener and the test kit. It answers nothing of its own but faults: all else is the
service's `Connection`, which here remembers no request, so that each is read.
"""

import json
from collections.abc import Callable
from datetime import timedelta
from email.utils import parsedate_to_datetime

from forewarn.core.document import parse_start_requests, rfc1123
from forewarn.core.errors import Invalid
from forewarn.endpoint import protocol
from forewarn.endpoint.connection import Connection
from forewarn.endpoint.endpoint import Endpoint
from forewarn.endpoint.loop import Timer
from forewarn.endpoint.protocol import SCHEDULED_EVENTS, Request
from forewarn.testing.faults import STATUSES, Fault
from forewarn.testing.request_log import RequestLog

END_OF_HEAD = b"\r\n\r\n"
LOSING = ("stall", "cut", "reset")
RETRY_AFTER = (b"Retry-After: 1",)
UNKNOWN_EVENT = {
    "EventId": "00000000-0000-4000-8000-00000000FFFF",
    "EventStatus": "Scheduled",
    "EventType": "Hibernate",
    "ResourceType": "VirtualMachine",
    "Resources": ["somebody-else"],
    "NotBefore": "",
}

Choose = Callable[[str, str], Fault | None]


class RecordedConnection(Connection):
    """`choose` is told machine (`scope/name`) and method and says what goes wrong, if anything."""

    _number: int | None = None  # of the request under way
    _fault: Fault | None = None
    _held = False  # its answer is held back
    _timer: Timer | None = None

    def __init__(self, log: RequestLog, choose: Choose, endpoint: Endpoint, interface: str = "") -> None:
        super().__init__(endpoint, interface)
        self._log = log
        self._choose = choose

    @property
    def busy(self) -> bool:
        return self._held or super().busy

    def start_exchange(self, request: Request, raw: bytes | None) -> None:
        del raw  # nothing is remembered: the lane of remembered requests would answer without telling
        caller = self.identify()
        machine = caller.name if caller is not None else ""
        asked = self._log.asked(
            scope=caller.scope if caller is not None else "",
            machine=machine,
            method=request.method,
            target=request.target,
            headers=request.headers,
            body=request.body,
            approves=_approved(request),
        )
        meant = asked.path == SCHEDULED_EVENTS
        who = f"{asked.scope}/{machine}"
        self._number, self._fault = asked.number, self._choose(who, request.method) if meant else None
        if self._fault is not None and self._fault.kind == "status":
            status = self._fault.status
            extra = RETRY_AFTER if status in (429, 503) else ()
            self.respond(protocol.error(status, STATUSES[status], *extra), request)
        else:
            self.pass_on(request)

    def pass_on(self, request: Request) -> None:
        """To the service, which answers it."""
        super().start_exchange(request, None)

    def write(self, status: int, data: bytes, *, keep: bool) -> None:
        fault, kind = self._fault, self._fault.kind if self._fault is not None else ""
        if fault is not None and kind == "slow" and not self._held:
            self._held = True
            self._timer = self.endpoint.loop.call_later(fault.delay_s, lambda: self._no_longer(status, data, keep=keep))
            return
        self._written_down(status, data)
        if kind == "stall":
            self._held = True
        elif kind == "reset":
            self.gone = True
            self.transport.reset()
        elif kind == "cut":
            super().write(status, cut(data), keep=False)
        elif kind == "bad-json":
            super().write(status, bad_json(data), keep=keep)
        elif kind == "newer":
            super().write(status, newer(data), keep=keep)
        else:
            super().write(status, skewed(data, fault.skew_s) if fault is not None else data, keep=keep)

    def eof_received(self) -> bool:
        """Whoever hangs up on an answer that is held back has left."""
        return False if self._held else super().eof_received()

    def connection_lost(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._number is not None:
            self._log.answered(self._number, status=None, fault=str(self._fault or ""), left=True)
            self._number = None
        super().connection_lost()

    def stop(self) -> None:
        if self._held:
            self.drop()
        else:
            super().stop()

    def _no_longer(self, status: int, data: bytes, *, keep: bool) -> None:
        """The delay is over: the answer leaves, and what came meanwhile has its turn."""
        self._timer = None
        self.write(status, data, keep=keep)
        self._held = False
        self._continue()

    def _written_down(self, status: int, data: bytes) -> None:
        """Before it is sent: whoever has the answer finds it in the log."""
        number, fault = self._number, self._fault
        if number is None:  # what could not be read has an answer all the same
            caller = self.identify()
            scope, machine = (caller.scope, caller.name) if caller is not None else ("", "")
            number = self._log.asked(scope=scope, machine=machine, method="", target="", headers=(), body=b"").number
        lost = fault is not None and _loses(fault.kind, data)
        incarnation, events = (None, ()) if lost else _document(data)
        # A stalled answer has no status; the guest may still hang up, and that is written down too.
        stalled = fault is not None and fault.kind == "stall"
        self._log.answered(
            number,
            status=None if stalled else status,
            fault=str(fault or ""),
            incarnation=incarnation,
            events=events,
            lost=lost,
        )
        if not stalled:
            self._number = self._fault = None


def _approved(request: Request) -> tuple[str, ...]:
    """The ids in StartRequests, as far as they can be read."""
    if request.method != "POST":
        return ()
    try:
        return tuple(dict.fromkeys(parse_start_requests(request.body)))
    except Invalid:
        return ()


def _document(data: bytes) -> tuple[int | None, tuple[tuple[str, str], ...]]:
    """The incarnation and the events in an answer; none where it is no document."""
    try:
        told = json.loads(data.partition(END_OF_HEAD)[2])
    except (ValueError, RecursionError):
        return None, ()
    listed = told.get("Events") if isinstance(told, dict) else None
    if not isinstance(listed, list) or not isinstance(told.get("DocumentIncarnation"), int):
        return None, ()
    # A recorded document need not be as ours are.
    events = [(e.get("EventId"), e.get("EventStatus")) for e in listed if isinstance(e, dict)]
    return told["DocumentIncarnation"], tuple(
        (i.upper(), s) for i, s in events if isinstance(i, str) and isinstance(s, str)
    )


def _loses(kind: str, data: bytes) -> bool:
    """Whether the guest does not have the answer, or not a readable one, whatever was done."""
    return kind in LOSING or (kind == "bad-json" and bad_json(data) != data)


def cut(data: bytes) -> bytes:
    """Half of the body; where there is none, not even a whole status."""
    head, end, body = data.partition(END_OF_HEAD)
    return head + end + body[: len(body) // 2] if body else data[: len(b"HTTP/1.1 2")]


def bad_json(data: bytes) -> bytes:
    """As long as it was, and no JSON any more; an answer without a body stays as it is."""
    return data[:-1] + b"," if data.partition(END_OF_HEAD)[2] else data


def newer(data: bytes) -> bytes:
    """As a later version might have it: fields nobody knows, an EventSource that says nothing, an event of an unknown type."""
    head, end, body = data.partition(END_OF_HEAD)
    if _document(data)[0] is None:
        return data
    told = json.loads(body)
    told["Unheard"] = {"Of": [None]}
    told["Events"] = [{**event, "EventSource": "", "Unheard": ["of"]} for event in told["Events"]]
    told["Events"].append({**UNKNOWN_EVENT, "Unheard": 1.5})
    longer = json.dumps(told, separators=(",", ":")).encode()
    lines = head.split(b"\r\n")
    lengths = [b"Content-Length: %d" % len(longer) if line.startswith(b"Content-Length:") else line for line in lines]
    return b"\r\n".join(lengths) + end + longer


def skewed(data: bytes, by_s: int) -> bytes:
    """With another Date."""
    head, end, body = data.partition(END_OF_HEAD)
    lines = head.split(b"\r\n")
    for index, line in enumerate(lines):
        if line.startswith(b"Date: "):
            date = parsedate_to_datetime(line.partition(b" ")[2].decode())
            lines[index] = b"Date: " + rfc1123(date + timedelta(seconds=by_s)).encode()
    return b"\r\n".join(lines) + end + body
