"""The emulator's connection to a guest: it logs every request, makes some fail on purpose, and lets a test check approvals.

This is the only interface between the service's listener and the test kit. It answers faults itself; everything else is
answered by the service's `Connection`. It never uses that class's cache of repeated requests, so that every request is logged.
"""

import json
import re
from collections.abc import Callable, Collection
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from forewarn.core.document import parse_start_requests, rfc1123
from forewarn.core.errors import Invalid
from forewarn.core.lazy_dataclass import dataclass
from forewarn.endpoint import protocol
from forewarn.endpoint.connection import Connection
from forewarn.endpoint.endpoint import EndpointState
from forewarn.endpoint.loop import Timer
from forewarn.endpoint.protocol import Approve, Instance, Request, Response
from forewarn.endpoint.sockets import GuestSocket, Transport
from forewarn.testing.approvals import Approvals
from forewarn.testing.faults import NO_BODY, PATHS, Fault, reason
from forewarn.testing.request_log import LoggedRequest, RequestLog

END_OF_HEAD = b"\r\n\r\n"
LOSING_KINDS = ("stall", "cut", "reset")
RETRY_AFTER = (b"Retry-After: 1",)
EVENT_ID = re.compile(rb'(?<="EventId":")[0-9A-F-]*')
NO_INSTANCE = Instance("", "", False, 0, 0)
UNKNOWN_EVENT = {
    "EventId": "00000000-0000-4000-8000-00000000FFFF",
    "EventStatus": "Scheduled",
    "EventType": "Hibernate",
    "ResourceType": "VirtualMachine",
    "Resources": ["somebody-else"],
    "NotBefore": "",
}

ChooseFault = Callable[[str, str, str], Fault | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorParts:
    """What the connections of an emulator share.

    `choose_fault` gets machine (`scope/name`), method and path, and may return a fault. `approvals` may delay an approval, or
    answer it with an error. A guest that connects to one of `machine_hosts` is the machine with that address.
    """

    log: RequestLog
    choose_fault: ChooseFault
    approvals: Approvals
    machine_hosts: Collection[str] = ()


class EmulatedConnection(Connection):
    """A connection that logs each request, makes some fail, and lets the test decide about approvals."""

    _number: int | None = None  # of the current request in the log
    _fault: Fault | None = None
    _answer_held = False
    _undecided = False  # the test decides about the current approval
    _timer: Timer | None = None

    def __init__(self, parts: EmulatorParts, endpoint: EndpointState, interface: str = "") -> None:
        super().__init__(endpoint, interface)
        self._log = parts.log
        self._choose_fault = parts.choose_fault
        self._approvals = parts.approvals
        self._machine_hosts = parts.machine_hosts

    def connection_made(self, transport: Transport) -> bool:
        if isinstance(transport, GuestSocket) and (host := transport.local_host) in self._machine_hosts:
            transport.host = host  # as if the guest came from there
        return super().connection_made(transport)

    @property
    def busy(self) -> bool:
        return self._answer_held or super().busy

    def start_exchange(self, request: Request, raw: bytes | None) -> None:
        del raw  # without it the request is not cached; a cached one would be answered without being logged
        caller = self.identify()
        scope, machine = (caller.scope, caller.name) if caller is not None else ("", "")
        logged = self._log.add_request(
            scope=scope,
            machine=machine,
            method=request.method,
            target=request.target,
            headers=request.headers,
            body=request.body,
            approves=_approved_ids(request),
        )
        self._number = logged.number
        path = next((each for each in PATHS if f"{logged.path}/".startswith(f"{each}/")), None)
        self._fault = self._choose_fault(f"{scope}/{machine}", request.method, path) if path is not None else None
        if self._fault is not None and self._fault.kind == "status":
            self._respond_status(self._fault.status, request)
        elif not (logged.approves and caller is not None and self._asks_test(logged, request)):
            self.pass_on(request)

    def _asks_test(self, logged: LoggedRequest, request: Request) -> bool:
        """Let the test decide about a well-formed approval; return False if the test has no callback."""
        decision = protocol.decide(request, lambda: NO_INSTANCE, self.endpoint.trust.allowed_hosts)
        if not isinstance(decision, Approve):
            return False
        loop = self.endpoint.loop
        self._answer_held = self._undecided = self._approvals.decide(
            logged, lambda status: loop.call_from_thread(lambda: self._decided(status, request))
        )
        return self._undecided

    def _decided(self, status: int | None, request: Request) -> None:
        """Answer the approval as the test decided, unless the guest has hung up: then nothing is recorded."""
        if self.gone:
            return
        self._answer_held = self._undecided = False
        if status is None:
            self.pass_on(request)
        else:
            self._respond_status(status, request)
        self._continue()

    def _respond_status(self, status: int, request: Request) -> None:
        extra = RETRY_AFTER if status in (429, 503) else ()
        without_body = status in NO_BODY
        self.respond(Response(status) if without_body else protocol.error(status, reason(status), *extra), request)

    def pass_on(self, request: Request) -> None:
        """Let the service answer the request."""
        super().start_exchange(request, None)

    def write(self, status: int, data: bytes, *, keep: bool) -> None:
        fault, kind = self._fault, self._fault.kind if self._fault is not None else ""
        if fault is not None and kind == "slow" and not self._answer_held:
            self._answer_held = True
            self._timer = self.endpoint.loop.call_later(fault.delay_s, lambda: self._release(status, data, keep=keep))
            return
        self._log_answer(status, data)
        if kind == "stall":
            self._answer_held = True
        elif kind == "reset":
            self.gone = True
            self.transport.reset()
        else:
            super().write(status, _damaged(data, fault) if fault is not None else data, keep=keep and kind != "cut")

    def eof_received(self) -> bool:
        """Close the connection if the guest hangs up while its answer is held back."""
        return False if self._answer_held else super().eof_received()

    def connection_lost(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._end_unanswered(left=True)
        super().connection_lost()

    def refuse(self) -> None:
        """Close the connection, because the endpoint refuses connections."""
        self._fault = Fault(kind="refuse")
        self._end_unanswered(left=False)
        self.drop()

    def _end_unanswered(self, *, left: bool) -> None:
        if self._number is not None:
            self._log.add_answer(
                self._number, status=None, fault=str(self._fault or ""), left=left, lost=not self._undecided
            )
            self._approvals.guest_left(self._number)
            self._number = None

    def stop(self) -> None:
        if self._answer_held:
            self.drop()
        else:
            super().stop()

    def _release(self, status: int, data: bytes, *, keep: bool) -> None:
        """Send the delayed answer, then handle the requests that arrived in the meantime."""
        self._timer = None
        self.write(status, data, keep=keep)
        self._answer_held = False
        self._continue()

    def _log_answer(self, status: int, data: bytes) -> None:
        """Log the answer before it is sent, so that a guest that has the answer finds it in the log."""
        number, fault = self._number, self._fault
        if number is None:  # a request that could not be parsed is answered too
            caller = self.identify()
            scope, machine = (caller.scope, caller.name) if caller is not None else ("", "")
            number = self._log.add_request(
                scope=scope, machine=machine, method="", target="", headers=(), body=b""
            ).number
        lost = fault is not None and _loses(fault.kind, data)
        incarnation, events = (None, ()) if lost else _document(data)
        # A stalled answer has no status. The request stays current, so that the log also gets it if the guest hangs up.
        stalled = fault is not None and fault.kind == "stall"
        self._log.add_answer(
            number,
            status=None if stalled else status,
            fault=str(fault or ""),
            incarnation=incarnation,
            events=events,
            lost=lost,
        )
        if not stalled:
            self._number = self._fault = None


def _approved_ids(request: Request) -> tuple[str, ...]:
    """Return the ids in StartRequests, or none if the body is invalid."""
    if request.method != "POST":
        return ()
    try:
        return tuple(dict.fromkeys(parse_start_requests(request.body)))
    except Invalid:
        return ()


def _document(data: bytes) -> tuple[int | None, tuple[tuple[str, str], ...]]:
    """Return the incarnation and the events in an answer, or None and no events if it has no document."""
    try:
        document = json.loads(data.partition(END_OF_HEAD)[2])
    except (ValueError, RecursionError):
        return None, ()
    listed = document.get("Events") if isinstance(document, dict) else None
    if not isinstance(listed, list) or not isinstance(document.get("DocumentIncarnation"), int):
        return None, ()
    # A replayed document may contain anything.
    events = [(e.get("EventId"), e.get("EventStatus")) for e in listed if isinstance(e, dict)]
    return document["DocumentIncarnation"], tuple(
        (i.upper(), s) for i, s in events if isinstance(i, str) and isinstance(s, str)
    )


def _loses(kind: str, data: bytes) -> bool:
    """Whether the fault keeps the guest from getting a readable answer."""
    return kind in LOSING_KINDS or (kind == "bad-json" and bad_json(data) != data)


def _damaged(data: bytes, fault: Fault) -> bytes:
    """Return the answer as the fault changes it; faults of some kinds do not change it."""
    if fault.kind == "skew":
        return skewed(data, fault.skew_s)
    change = {"cut": cut, "bad-json": bad_json, "newer": newer, "lower-ids": lower_ids}.get(fault.kind)
    return change(data) if change is not None else data


def cut(data: bytes) -> bytes:
    """Return the answer with half of its body; without a body, with half of its status line."""
    head, end, body = data.partition(END_OF_HEAD)
    return head + end + body[: len(body) // 2] if body else data[: len(b"HTTP/1.1 2")]


def bad_json(data: bytes) -> bytes:
    """Return the answer with invalid JSON of the same length. An answer without a body stays unchanged."""
    return data[:-1] + b"," if data.partition(END_OF_HEAD)[2] else data


def newer(data: bytes) -> bytes:
    """Return the document as a later version could be: unknown fields, an empty EventSource, an event of an unknown type."""

    def change(document: dict[str, Any]) -> None:
        document["Unheard"] = {"Of": [None]}
        document["Events"] = [{**event, "EventSource": "", "Unheard": ["of"]} for event in document["Events"]]
        document["Events"].append({**UNKNOWN_EVENT, "Unheard": 1.5})

    return with_changed_document(data, change)


def with_changed_document(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return the answer after `change` has changed its document. An answer without a document stays unchanged."""
    head, end, body = data.partition(END_OF_HEAD)
    if _document(data)[0] is None:
        return data
    document = json.loads(body)
    change(document)
    changed = json.dumps(document, separators=(",", ":")).encode()
    lines = head.split(b"\r\n")
    lines = [b"Content-Length: %d" % len(changed) if line.startswith(b"Content-Length:") else line for line in lines]
    return b"\r\n".join(lines) + end + changed


def lower_ids(data: bytes) -> bytes:
    """Return the document with its EventIds in lower case. An answer without a document stays unchanged."""
    head, end, body = data.partition(END_OF_HEAD)
    return head + end + EVENT_ID.sub(lambda match: match[0].lower(), body)


def skewed(data: bytes, by_s: int) -> bytes:
    """Return the answer with a Date that is off by `by_s`."""
    head, end, body = data.partition(END_OF_HEAD)
    lines = head.split(b"\r\n")
    for index, line in enumerate(lines):
        if line.startswith(b"Date: "):
            date = parsedate_to_datetime(line.partition(b" ")[2].decode())
            lines[index] = b"Date: " + rfc1123(date + timedelta(seconds=by_s)).encode()
    return b"\r\n".join(lines) + end + body
