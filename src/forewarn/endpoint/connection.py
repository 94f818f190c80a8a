"""The guest's connection: HTTP, with one lane for requests seen before and one for the rest.

A poller sends the same bytes every second. Bytes that were once parsed and checked as one complete GET are remembered, so
that the next time they cost one look-up and one write. What depends on the caller (who, rate, enabled, waiting) is the
connection's and is checked in both lanes. Everything else goes through the parser: same answers, same limits.
"""

from collections import deque
from collections.abc import Callable

from forewarn.endpoint import protocol
from forewarn.endpoint.documents import CLOSE, NOT_MODIFIED, Caller
from forewarn.endpoint.endpoint import BURST_S, Endpoint
from forewarn.endpoint.exchange import Exchange, within_rate
from forewarn.endpoint.parser import Parser
from forewarn.endpoint.protocol import Request, Response
from forewarn.endpoint.sockets import Transport

MAX_BUFFERED_BYTES = 64 * 1024
LINGER_S = 2.0

REASONS = {
    200: b"OK",
    304: b"Not Modified",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    410: b"Gone",
    413: b"Payload Too Large",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}


class Connection:
    """One connection. It has a reader from the first byte of a request to its answer; what comes meanwhile waits its turn."""

    # A guest may connect for every poll, and then pays for each attribute set at the start: what only the parser's lane
    # needs begins as the class's own, and takes room in a connection once it is set.
    __slots__ = ("__dict__", "_active_s", "_reader", "_since_s", "caller", "gone", "guests", "interface", "transport")

    proxied = _paused = _half_closed = _lingering = False
    _todo: deque[Request | Response] | None = None
    _buffered: list[bytes] | None = None
    _exchange: Exchange | None = None

    transport: Transport

    def __init__(self, guests: Endpoint, interface: str = "") -> None:
        self.guests = guests
        self.interface = interface
        self.caller: Caller | None = None
        self._reader: Parser | None = None
        self._since_s = guests.monotonic()
        self._active_s = 0.0  # when it was last answered: never yet
        self.gone = False  # or going: nothing more will be answered

    # -- coming and going

    def connection_made(self, transport: Transport) -> bool:
        guests = self.guests
        limits = guests.limits
        self.transport = transport
        guests.counters.accepted += 1
        # The usual caller, without the calls it takes to find any other.
        caller = guests.usual_callers.get((self.interface, transport.host))
        if caller is None:
            address, trust = self.address, guests.trust
            self.proxied = trust.is_proxy(address)
            caller = trust.connected(guests.documents, self.interface, address)
        share_used = caller is not None and caller.connections >= limits.connections and not guests.trust.every_caller
        if guests.stopping or share_used or len(guests.connections) >= limits.all_connections:
            guests.counters.refused += 1
            self.gone = True
            return False
        if caller is not None:
            caller.connections += 1
            self.caller = caller
        guests.connections[self] = None
        return True

    @property
    def address(self) -> str:
        return _plain_address(self.transport.host)

    @property
    def busy(self) -> bool:
        return self._exchange is not None and self._exchange.pending

    def connection_lost(self) -> None:
        self.gone = True
        if self._exchange is not None:
            self._exchange.cancel()
        # One that was refused never counted.
        if self.guests.connections.pop(self, self) is None and self.caller is not None:
            self.caller.connections -= 1

    def eof_received(self) -> bool:
        """A client may close its half and still wait for the answer; a long poll ends, for most who close have left."""
        if self.gone or not (self.busy or self._paused or self._todo or self._buffered):
            return False
        self._half_closed = True
        self._end_wait()
        return not self.gone

    def pause_writing(self) -> None:
        """The guest does not read what it is sent: we do not read what it sends."""
        self._paused = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if not self.gone:
            self.transport.resume_reading()
            self._go_on()

    def check_deadline(self, now_s: float) -> None:
        """A request must be complete in time, a connection must not be silent for ever."""
        if self._lingering:
            late = now_s - self._active_s > LINGER_S
        elif self._paused or self.busy:
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
        self.gone = True
        self.transport.abort()

    def stop(self) -> None:
        """The service stops: waiters get their 304, what is in flight is finished, the rest is closed."""
        if self.busy:
            self._half_closed = True
            self._end_wait()
        else:
            self._close()

    def _end_wait(self) -> None:
        if self._exchange is not None and self._exchange.waiting:
            self._exchange.end_wait()

    # -- the lane for requests seen before

    def data_received(self, data: bytes) -> None:
        guests = self.guests
        known = guests.remembered.get(data)
        caller = self.caller
        if known is None or caller is None or self._reader is not None or self.gone:
            self._parse(data)
            return
        view = caller.view
        now_s = guests.monotonic()
        # As `within_rate` has it, without the call.
        spent_s = caller.spent_until_s
        spent_s = (spent_s if spent_s > now_s else now_s) + guests.request_share_s
        if view is None or spent_s > now_s + BURST_S or view.held_until_s > now_s or not (state := view.state).enabled:
            self._parse(data)
            return
        index, etag, close = known
        now = guests.now
        # Before `until_s` it is the same second, and what is known still counts.
        moment = now.moment if now_s < now.until_s else guests.fresh_moment(now_s)
        unchanged = etag == state.etag
        if moment is None or (not unchanged and etag is not None and guests.behind(state, etag)):
            self._parse(data)
            return
        caller.spent_until_s = spent_s
        self._active_s = guests.about_s
        if caller.seen is not moment:
            caller.seen = view.seen = moment
            if not caller.noted:
                caller.noted = True
                guests.to_write.append(caller)
        if caller.shown is not state:
            guests.shown(caller, state)
        guests.counters.remembered += 1
        if unchanged:
            guests.counters.not_modified += 1
            index = NOT_MODIFIED[close]
        # As State.response has it, without the call.
        sent = state.sent.get(index)
        self.transport.write(sent[1] if sent is not None and sent[0] is moment else state.response(index, moment))
        if close:
            self._close()

    # -- the lane for everything else

    def _parse(self, data: bytes) -> None:
        if self.gone:
            return
        if self.busy or self._paused:
            self._buffer(data)
            return
        reader, limits = self._reader, self.guests.limits
        if reader is None:
            reader = self._reader = Parser(
                max_head_bytes=limits.head_bytes, max_headers=limits.headers, max_body_bytes=limits.body_bytes
            )
        fresh = not reader.partial
        if fresh and self._active_s:
            self._since_s = self.guests.monotonic()
        reader.feed(data)
        requests, reader.requests = reader.requests, []
        todo: deque[Request | Response] = deque(requests)
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
        while self._todo and not self.busy and not self.gone and not self._paused:
            item = self._todo.popleft()
            if isinstance(item, Response):
                self._refuse(item)
            else:
                self.begin(item, raw)
        if self.busy or self.gone or self._paused:
            return
        self._exchange = None
        if self._buffered:
            data, self._buffered = b"".join(self._buffered), None
            self.transport.resume_reading()
            self._parse(data)
        elif self._half_closed:
            self._close()
        elif self._reader is not None and not self._reader.partial:
            self._reader = None  # nothing is left of what was sent
        elif self._reader is not None and self._reader.wants_continue():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def begin(self, request: Request, raw: bytes | None) -> None:
        """On its way to its answer, which leaves through `write`."""
        self._exchange = Exchange(self, request)
        self._exchange.begin(raw)

    def answered(self) -> None:
        """After an answer that had to be waited for: on with what came meanwhile."""
        self._go_on()

    def identify(self) -> Caller | None:
        """Whose connection it is; looked up again when it was nobody's, or its machine has left or changed."""
        caller = self.caller
        if caller is None or caller.view is None:
            guests = self.guests
            known = guests.trust.connected(guests.documents, self.interface, self.address)
            if known is not caller:
                if caller is not None:
                    caller.connections -= 1
                if known is not None:
                    known.connections += 1
                self.caller = known
        return self.caller if self.caller is not None and self.caller.view is not None else None

    def _refuse(self, problem: Response) -> None:
        """What cannot be read has a caller and a rate all the same; nothing after it can be read either."""
        if not self.proxied:
            caller = self.identify()
            if caller is None:
                self.guests.counters.unknown += 1
                problem = protocol.NOT_FOUND
            elif not within_rate(self.guests, caller):
                problem = protocol.TOO_MANY
        self.answer(problem, Request("GET", "", [], keep_alive=False))

    # -- sending

    def answer(self, answer: Response, request: Request) -> None:
        keep = self.keeps(request)
        head = [b"HTTP/1.1 %d %b" % (answer.status, REASONS.get(answer.status, b""))]
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
        self.write(answer.status, b"\r\n".join(head) + b"\r\n\r\n" + body, keep=keep)

    def keeps(self, request: Request) -> bool:
        """Whether the connection stays after the answer to this request."""
        last = self._half_closed and not (self._todo or self._buffered)
        return request.keep_alive and not last and not self.guests.stopping

    def write(self, status: int, data: bytes, *, keep: bool) -> None:
        self.guests.counters.outcomes[status] += 1
        self._active_s = self.guests.monotonic()
        self.transport.write(data)
        if not keep and self._reader is not None and self._reader.problem is not None:
            self._linger()
        elif not keep:
            self._close()

    def _close(self) -> None:
        self.gone = True
        self.transport.close()

    def _linger(self) -> None:
        """More may be on its way: closing with unread bytes would reset the connection and take the answer with it."""
        self.gone = self._lingering = True
        self._todo = self._buffered = None
        if self._half_closed:
            self.transport.close()
        else:
            self.transport.write_eof()
            self.transport.resume_reading()


# What makes a connection, given the guests it belongs to and the interface it came in by.
NewConnection = Callable[[Endpoint, str], Connection]


def _plain_address(host: str) -> str:
    """As the fleet has it: no zone, and IPv4 as IPv4."""
    return host.partition("%")[0].removeprefix("::ffff:")
