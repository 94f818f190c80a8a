"""The guest's connection: an HTTP protocol of our own, with one lane for requests seen before and one for the rest.

A poller sends the same bytes every second. Bytes that were once parsed and checked as one complete GET are remembered, so
that the next time they cost one look-up and one write. What depends on the caller (who, rate, enabled, waiting) is the
connection's and is checked in both lanes. Everything else goes through the parser: same answers, same limits.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import monotonic

from forewarn.core.errors import ForewarnError, NotFound, RequestError
from forewarn.core.model import Actor, ScopeKind
from forewarn.web import answers
from forewarn.web.answers import Answer, Approve, Instance, Poll, Request
from forewarn.web.documents import CLOSE, NOT_MODIFIED, Caller, Moment, View, response_index
from forewarn.web.guests import Guests
from forewarn.web.reader import Reader

MAX_BUFFERED_BYTES = 64 * 1024
LINGER_S = 2.0
NO_LIMIT = float("inf")

REASONS = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    413: b"Payload Too Large",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    503: b"Service Unavailable",
}

log = logging.getLogger("forewarn.guest")


class Connection(asyncio.Protocol):
    """One connection. `busy` while an answer is not there yet; what comes meanwhile waits its turn."""

    # A guest may connect for every poll, and then pays for each attribute set at the start: what only the other lane
    # needs begins as the class's own, and takes room in a connection once it is set.
    __slots__ = (
        "__dict__", "_active_s", "_interface", "_reader", "_since_s", "busy", "caller", "closing", "guests",
        "transport",
    )  # fmt: skip

    transport: asyncio.Transport
    _proxied = _paused = _half_closed = _lingering = False
    _todo: deque[Request | Answer] | None = None
    _buffered: list[bytes] | None = None
    _waiting: tuple[Caller, View, Request, Poll] | None = None
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, guests: Guests, interface: str = "") -> None:
        self.guests = guests
        self._interface = interface
        self.caller: Caller | None = None
        self._reader: Reader | None = None
        self._since_s = monotonic()
        self._active_s = 0.0  # when it was last answered: never yet
        self.busy = self.closing = False

    # -- coming and going

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        guests = self.guests
        limits = guests.limits
        self.transport = transport  # type: ignore[assignment]
        guests.counters.accepted += 1
        peer = transport.get_extra_info("peername")
        # The usual caller, without the calls it takes to find any other.
        caller = guests.usual_callers.get((self._interface, peer[0])) if peer else None
        if caller is None:
            address, trust = self.address, guests.trust
            self._proxied = trust.is_proxy(address)
            caller = trust.connected(guests.documents, self._interface, address)
        share_used = caller is not None and caller.connections >= limits.connections and not guests.trust.every_caller
        if guests.stopping or not peer or share_used or len(guests.connections) >= limits.all_connections:
            guests.counters.refused += 1
            self.closing = True
            self.transport.abort()
            return
        if caller is not None:
            caller.connections += 1
            self.caller = caller
        guests.connections[self] = None

    @property
    def address(self) -> str:
        return _plain_address(self.transport.get_extra_info("peername"))

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self.closing = True
        if self.busy:
            self._stop_waiting()
        # One that was refused never counted.
        if self.guests.connections.pop(self, self) is None and self.caller is not None:
            self.caller.connections -= 1

    def eof_received(self) -> bool:
        """A client may close its half and still wait for the answer; a long poll ends, for most who close have left."""
        if self.closing or not (self.busy or self._paused or self._todo or self._buffered):
            return False
        self._half_closed = True
        if self._waiting is not None:
            self._waited()
        return not self.closing

    def pause_writing(self) -> None:
        """The guest does not read what it is sent: we do not read what it sends."""
        self._paused = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if not self.closing:
            self.transport.resume_reading()
            self._go_on()

    def check_deadline(self, now_s: float) -> None:
        """A request must be complete in time, a connection must not be silent for ever."""
        if self._lingering:
            late = now_s - self._active_s > LINGER_S
        elif self.busy or self._paused:
            late = self._paused and now_s - self._active_s > self.guests.limits.idle_s
            self._since_s = now_s  # what was sent ahead could not be completed meanwhile
        elif (self._reader is not None and self._reader.partial) or not self._active_s:
            late = now_s - self._since_s > self.guests.limits.request_s
        else:
            late = now_s - self._active_s > self.guests.limits.idle_s
        if late:
            self.guests.counters.timed_out += not self._lingering
            self.drop()

    def drop(self) -> None:
        """Without a word, and whatever is under way."""
        self.closing = True
        self.transport.abort()

    def stop(self) -> None:
        """The service stops: waiters get their 304, what is in flight is finished, the rest is closed."""
        if self._waiting is not None:
            self._half_closed = True
            self._waited()
        elif not self.busy:
            self._close()
        else:
            self._half_closed = True

    # -- the lane for requests seen before

    def data_received(self, data: bytes) -> None:
        guests = self.guests
        known = guests.remembered.get(data)
        caller = self.caller
        if known is None or caller is None or self.busy or self.closing or (self._reader and self._reader.partial):
            self._parse(data)
            return
        view = caller.view
        now_s = monotonic()
        burst = guests.burst
        tokens = caller.tokens + (now_s - caller.refilled_s) * burst
        if view is None or tokens < 1.0 or view.held_until_s > now_s or not (state := view.state).enabled:
            self._parse(data)
            return
        caller.tokens = (tokens if tokens < burst else burst) - 1.0
        caller.refilled_s = self._active_s = now_s
        now = guests.now
        moment = now.moment if now_s < now.until_s else now()
        if caller.seen is not moment:
            caller.seen = view.seen = moment
            guests.dirty[id(caller)] = caller
        index, etag, close = known
        guests.counters.remembered += 1
        if etag == state.etag:
            guests.counters.not_modified += 1
            index = NOT_MODIFIED[close]
        # As State.response has it, without the call.
        sent = state.sent.get(index)
        self.transport.write(sent[1] if sent is not None and sent[0] is moment else state.response(index, moment))
        if close:
            self._close()

    def _seen(self, caller: Caller, view: View, moment: Moment) -> None:
        """Noted here, written in batches: never a write per poll."""
        caller.seen = view.seen = moment
        self.guests.dirty[id(caller)] = caller

    # -- the lane for everything else

    def _parse(self, data: bytes) -> None:
        if self.closing:
            return
        if self.busy or self._paused:
            self._buffer(data)
            return
        reader, limits = self._reader, self.guests.limits
        if reader is None:
            reader = self._reader = Reader(
                max_head_bytes=limits.head_bytes, max_headers=limits.headers, max_body_bytes=limits.body_bytes
            )
        fresh = not reader.partial
        if fresh and self._active_s:
            self._since_s = monotonic()
        reader.feed(data)
        requests, reader.requests = reader.requests, []
        todo: deque[Request | Answer] = deque(requests)
        if reader.problem is not None and not (requests and requests[-1].too_large):
            todo.append(reader.problem)
        whole = fresh and len(requests) == 1 and len(todo) == 1 and not reader.partial
        self._todo = todo
        self._go_on(data if whole else None)

    def _buffer(self, data: bytes) -> None:
        """An answer is under way: keep a little of what comes, then stop reading."""
        self._buffered = self._buffered or []
        self._buffered.append(data)
        if sum(map(len, self._buffered)) > MAX_BUFFERED_BYTES:
            self.transport.pause_reading()

    def _go_on(self, raw: bytes | None = None) -> None:
        """Answer what is complete, in order, until an answer must be waited for."""
        while self._todo and not self.busy and not self.closing and not self._paused:
            item = self._todo.popleft()
            if isinstance(item, Answer):
                self._refuse(item)
            else:
                self._handle(item, raw)
        if self.busy or self.closing or self._paused:
            return
        if self._buffered:
            data, self._buffered = b"".join(self._buffered), None
            self.transport.resume_reading()
            self._parse(data)
        elif self._half_closed:
            self._close()
        elif self._reader is not None and self._reader.wants_continue():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse(self, problem: Answer) -> None:
        """What cannot be read has a caller and a rate all the same; nothing after it can be read either."""
        if not self._proxied:
            caller = self._identify()
            if caller is None:
                self.guests.counters.unknown += 1
                problem = answers.NOT_FOUND
            elif not self._within_rate(caller):
                problem = answers.TOO_MANY
        self._send(problem, Request("GET", "", [], keep_alive=False))

    def _handle(self, request: Request, raw: bytes | None) -> None:
        guests = self.guests
        guests.counters.parsed += 1
        caller = self._vouched(request) if self._proxied else self._identify()
        if not request.proxied and any(name.startswith("x-instance-id") for name, _ in request.headers):
            guests.counters.forged += 1
        view = caller.view if caller is not None else None
        if caller is None or view is None:
            guests.counters.unknown += 1
            self._send(answers.NOT_FOUND, request)
            return
        if not self._within_rate(caller):
            self._send(answers.TOO_MANY, request)
            return
        decision = answers.decide(request, lambda: _instance(caller, view), guests.trust.allowed_hosts)
        if isinstance(decision, Answer) and not decision.enables:
            self._send(decision, request)
            return
        if raw is not None and isinstance(decision, Poll) and self._repeatable(request, decision):
            tag, close = answers.plain_tag(decision.if_none_match), not request.keep_alive
            guests.remember(raw, caller, (response_index(decision.version, close), tag, close))
        self._seen(caller, view, guests.now())
        if not view.state.enabled:
            self._later(
                lambda: self._enable(caller, view), lambda: self._held(caller, view, request, decision), request
            )
        else:
            self._held(caller, view, request, decision)

    def _repeatable(self, request: Request, poll: Poll) -> bool:
        """Whether the same bytes will always mean the same poll, answered at once in the usual form."""
        usual = request.method == "GET" and not (request.http_1_0 and request.keep_alive)
        return usual and not poll.wait_s and not self._proxied

    def _identify(self) -> Caller | None:
        """Whose connection it is; looked up again when it was nobody's, or its machine has left or changed."""
        caller = self.caller
        if caller is None or caller.view is None:
            guests = self.guests
            known = guests.trust.connected(guests.documents, self._interface, self.address)
            if known is not caller:
                if caller is not None:
                    caller.connections -= 1
                if known is not None:
                    known.connections += 1
                self.caller = known
        return self.caller if self.caller is not None and self.caller.view is not None else None

    def _vouched(self, request: Request) -> Caller | None:
        caller = self.guests.trust.vouched(self.guests.documents, request)
        request.proxied = caller is not None
        return caller

    def _within_rate(self, caller: Caller) -> bool:
        burst, now_s = self.guests.burst, monotonic()
        if burst == NO_LIMIT:
            return True
        tokens = min(caller.tokens + (now_s - caller.refilled_s) * burst, burst)
        caller.refilled_s = now_s
        caller.tokens = tokens - 1.0 if tokens >= 1.0 else tokens
        return tokens >= 1.0

    def _enable(self, caller: Caller, view: View) -> None:
        """In the writer's thread: durable before anybody of the scope is answered."""
        if view.state.enabled:
            return  # somebody of the scope was first
        # Before the scope shows as enabled: the first answers of others are held back as well.
        view.held_until_s = monotonic() + self.guests.first_call_delay_s
        try:
            self.guests.control.enable(view.name, self._actor(caller))
        except BaseException:
            view.held_until_s = 0.0
            raise

    def _held(self, caller: Caller, view: View, request: Request, decision: Answer | Poll | Approve) -> None:
        """While a scope's first call is being delayed, every answer of it is."""
        delay_s = view.held_until_s - monotonic()
        if delay_s > 0:
            self.busy = True
            self._timer = asyncio.get_running_loop().call_later(
                delay_s, self._answer_held, caller, view, request, decision
            )
        else:
            self._decided(caller, view, request, decision)

    def _answer_held(self, caller: Caller, view: View, request: Request, decision: Answer | Poll | Approve) -> None:
        self.busy, self._timer = False, None
        self._decided(caller, view, request, decision)
        self._go_on()

    def _decided(self, caller: Caller, view: View, request: Request, decision: Answer | Poll | Approve) -> None:
        if isinstance(decision, Answer):
            self._send(decision, request)
        elif isinstance(decision, Poll):
            self._poll(caller, view, request, decision)
        else:
            ids = decision.event_ids
            actor = self._actor(caller)
            self._later(
                lambda: self.guests.control.approve(caller.scope, caller.name, ids, actor),
                lambda: self._send(Answer(200), request),
                request,
            )

    def _later(self, write: Callable[[], None], then: Callable[[], None], request: Request) -> None:
        """Write in the writer's thread, then answer; nothing of this connection is answered meanwhile."""
        self.busy = True
        loop = asyncio.get_running_loop()

        def done(future: "asyncio.Future[None]") -> None:
            self.busy = False
            error = future.exception()
            if self.closing:
                return
            if error is None:
                then()
            else:
                self._send(_told(error), request)
            self._go_on()

        loop.run_in_executor(self.guests.writer, write).add_done_callback(done)

    def _actor(self, caller: Caller) -> Actor:
        """For the audit: who, from which address and interface, known in which way."""
        way = self.guests.trust.way(self._interface, self._proxied)
        where = f"{self.address}@{self._interface}" if self._interface else self.address
        return Actor(f"{caller.scope}/{caller.name}", f"{where} by {way}")

    # -- polls

    def _poll(self, caller: Caller, view: View, request: Request, poll: Poll) -> None:
        state = view.state
        unchanged = answers.matches(poll.if_none_match, state.etag)
        if unchanged and poll.wait_s and caller.waiting < self.guests.limits.waiting and not self.guests.stopping:
            self.busy = True
            caller.waiting += 1
            view.waiters[self] = None
            self._waiting = (caller, view, request, poll)
            self._timer = asyncio.get_running_loop().call_later(poll.wait_s, self._waited)
        else:
            self._send_document(view, request, poll, unchanged=unchanged, waited=False)

    def document_changed(self) -> None:
        if self._waiting is not None:
            _, view, _, poll = self._waiting
            if not answers.matches(poll.if_none_match, view.state.etag):
                self._waited()

    def _waited(self) -> None:
        """The document changed, or the time is up."""
        if self._waiting is None:
            return
        caller, view, request, poll = self._waiting
        self._stop_waiting()
        self.busy = False
        if caller.view is None:
            self._send(answers.NOT_FOUND, request)
        else:
            unchanged = answers.matches(poll.if_none_match, view.state.etag)
            self._send_document(view, request, poll, unchanged=unchanged, waited=True)
        self._go_on()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting is not None:
            caller, view, _, _ = self._waiting
            self._waiting = None
            view.waiters.pop(self, None)
            caller.waiting -= 1
            # "An open long poll counts as seen", to its end.
            self._seen(caller, view, self.guests.now())

    def _send_document(self, view: View, request: Request, poll: Poll, *, unchanged: bool, waited: bool) -> None:
        state, keep = view.state, self._keeps(request)
        if not unchanged and request.method == "GET" and not (keep and request.http_1_0):
            # One change goes to very many who wait for it: the same bytes as to the one before.
            index = response_index(poll.version, not keep, poll.wait_s if waited else 0)
            self._write(200, state.response(index, self.guests.now()), keep=keep)
            return
        extra: tuple[bytes, ...] = (b"ETag: " + state.etag.encode(),)
        if waited:
            extra = (*extra, b"Preference-Applied: wait=%d" % poll.wait_s)
        if unchanged:
            self._send(Answer(304, extra=extra), request)
        else:
            self._send(Answer(200, state.body(poll.version), extra), request)

    # -- sending

    def _send(self, answer: Answer, request: Request) -> None:
        keep = self._keeps(request)
        head = [b"HTTP/1.1 %d %b" % (answer.status, REASONS.get(answer.status, b"Not Modified"))]
        if answer.status != 304:
            head += [b"Content-Type: " + answer.content_type] if answer.body else []
            head.append(b"Content-Length: %d" % len(answer.body))
        head += answer.extra
        head.append(b"Date: " + self.guests.now().date)
        if not keep:
            head.append(CLOSE[2:])
        elif request.http_1_0:
            head.append(b"Connection: keep-alive")
        body = b"" if request.method == "HEAD" else answer.body
        self._write(answer.status, b"\r\n".join(head) + b"\r\n\r\n" + body, keep=keep)

    def _keeps(self, request: Request) -> bool:
        """Whether the connection stays after the answer to this request."""
        last = self._half_closed and not (self._todo or self._buffered)
        return request.keep_alive and not last and not self.guests.stopping

    def _write(self, status: int, data: bytes, *, keep: bool) -> None:
        self.guests.counters.outcomes[status] += 1
        self._active_s = monotonic()
        self.transport.write(data)
        if not keep and self._reader is not None and self._reader.problem is not None:
            self._linger()
        elif not keep:
            self._close()

    def _close(self) -> None:
        self.closing = True
        self.transport.close()

    def _linger(self) -> None:
        """More may be on its way: closing with unread bytes would reset the connection and take the answer with it."""
        self.closing = self._lingering = True
        self._todo = self._buffered = None
        if self._half_closed:
            self.transport.close()
        else:
            self.transport.write_eof()
            self.transport.resume_reading()


def _plain_address(peer: tuple[str, int] | None) -> str:
    """As the fleet has it: no zone, and IPv4 as IPv4; "" when the peer has gone already."""
    if peer is None or ":" not in peer[0]:
        return peer[0] if peer else ""
    return peer[0].partition("%")[0].removeprefix("::ffff:")


def _instance(caller: Caller, view: View) -> Instance:
    placement_group = view.state.scope.kind is ScopeKind.PLACEMENT_GROUP
    return Instance(caller.name, caller.scope, placement_group, caller.update_domain, caller.fault_domain)


def _told(error: BaseException) -> Answer:
    if isinstance(error, NotFound):
        return answers.NOT_FOUND  # the machine or its scope has left meanwhile
    if isinstance(error, RequestError):
        return answers.error(400, str(error))
    if not isinstance(error, ForewarnError):
        log.error("a guest's request failed: %r", error)
    return answers.UNAVAILABLE
