"""A guest's HTTP connection, with a fast path for requests that were seen before.

A poller sends the same bytes every second. Bytes that were parsed and checked as one complete GET are remembered; the next time
they cost one search in a table and one write. The connection checks what depends on the caller (identity, rate, enabled, held) on
both paths. All other requests go through the parser, with the same responses and the same limits.
"""

from collections import deque
from collections.abc import Callable

from forewarn.endpoint import protocol
from forewarn.endpoint.callers import Caller
from forewarn.endpoint.document_state import CLOSE, NOT_MODIFIED
from forewarn.endpoint.endpoint import EndpointState
from forewarn.endpoint.exchange import Exchange, Pause, within_rate
from forewarn.endpoint.limits import BURST_S, MAX_REJECTIONS, REJECTION_PAUSE_S
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
    """One connection. It has a parser from the first byte of a request to its response; later requests wait for that."""

    # A guest may connect for every poll and then pays for each attribute that is set at the start. So the attributes that
    # only the parser's path needs start as class attributes.
    __slots__ = (
        "__dict__",
        "_since_s",
        "answered_s",
        "caller",
        "endpoint",
        "gone",
        "interface",
        "parser",
        "transport",
    )

    proxied = over_share = _paused = _half_closed = _lingering = False
    _queue: deque[Request | Response] | None = None
    _buffered: bytearray | None = None
    _exchange: Exchange | Pause | None = None
    _rejections = 0  # rejected requests in a row, at the last one
    _spent_at_rejection_s: float | None = None

    transport: Transport

    def __init__(self, endpoint: EndpointState, interface: str = "") -> None:
        self.endpoint = endpoint
        self.interface = interface
        self.caller: Caller | None = None
        self.parser: Parser | None = None
        self._since_s = endpoint.monotonic()
        self.answered_s = 0.0  # 0: no response yet
        self.gone = False  # closed or closing: no more responses

    # -- opening and closing

    def connection_made(self, transport: Transport) -> bool:
        endpoint = self.endpoint
        limits = endpoint.limits
        self.transport = transport
        endpoint.counters.accepted += 1
        # Finds the usual caller without the calls that find any other.
        caller = endpoint.callers_by_address.get(transport.host) if not self.interface else None
        if caller is None:
            address, trust = self.address, endpoint.trust
            self.proxied = trust.is_proxy(address)
            caller = trust.caller_of_connection(endpoint.callers, self.interface, address)
        if caller is not None:
            share_used = caller.connections >= limits.connections and not endpoint.trust.every_caller
        else:
            share_used = self._limited and endpoint.unknown_connections.is_full(self._source)
        if endpoint.stopping or share_used or len(endpoint.connections) >= limits.all_connections:
            limit = "all" if not share_used else "machine" if caller is not None else "unknown"
            endpoint.counters.refused["stopping" if endpoint.stopping else limit] += 1
            self.gone, self.over_share = True, share_used
            return False
        if caller is not None:
            caller.connections += 1
            self.caller = caller
        else:
            self._enter_share()
        endpoint.connections[self] = None
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
        # A refused connection was never counted.
        if self.endpoint.connections.pop(self, self) is None:
            if self._rejections_in_a_row() and self._limited:
                # Connecting again must not get a caller more rejected requests than it gets on open connections.
                self.parser = self._queue = self._buffered = None
                self.endpoint.loop.call_later(REJECTION_PAUSE_S, self._leave_share)
            elif self.caller is not None:
                self.caller.connections -= 1
            else:
                self._leave_share()

    # -- the share of connections that the caller has

    @property
    def _limited(self) -> bool:
        """Whether the connections of this caller are limited: not those of a proxy, or of an emulator's callers."""
        return not self.proxied and self.endpoint.trust.every_caller is None

    @property
    def _source(self) -> tuple[str, str]:
        return self.interface, self.address

    def _enter_share(self) -> None:
        if self.caller is not None:
            self.caller.connections += 1
        elif self._limited:
            self.endpoint.unknown_connections.add(self._source)

    def _leave_share(self) -> None:
        if self.caller is not None:
            self.caller.connections -= 1
        elif self._limited:
            self.endpoint.unknown_connections.remove(self._source)

    # -- what happens on the socket

    def eof_received(self) -> bool:
        """Return whether a guest that sends no more still gets a response. Most such guests have left: a long poll ends."""
        if self.gone or not (self.busy or self._paused or self._queue or self._buffered):
            return False
        self._half_closed = True
        self._end_wait()
        return not self.gone

    def pause_writing(self) -> None:
        """Stop reading what the guest sends while it does not read what it is sent."""
        self._paused = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if not self.gone:
            if not isinstance(self._exchange, Pause):
                self.transport.resume_reading()
            self._continue()

    def check_deadline(self, now_s: float) -> None:
        """Drop the connection if a request is not complete in time, or if it has been idle for too long."""
        if self._lingering:
            late = now_s - self.answered_s > LINGER_S
        elif self._paused or self.busy:
            late = self._paused and now_s - self.answered_s > self.endpoint.limits.idle_s
            self._since_s = now_s  # the guest could not complete its next request meanwhile
        elif (self.parser is not None and self.parser.partial) or not self.answered_s:
            late = now_s - self._since_s > self.endpoint.limits.request_s
        else:
            late = now_s - self.answered_s > self.endpoint.limits.idle_s
        if late:
            self.endpoint.counters.timed_out += not self._lingering
            self.drop()

    def drop(self) -> None:
        """Close at once, without a response to a request that is under way."""
        self.gone = True
        self.transport.abort()

    def stop(self) -> None:
        """Close when the service stops: a long poll gets its 304, a request under way its response."""
        if self.busy:
            self._half_closed = True
            self._end_wait()
        else:
            self._close()

    def _end_wait(self) -> None:
        if self._exchange is not None and self._exchange.waiting:
            self._exchange.end_wait()

    # -- the fast path, for requests that were seen before

    def data_received(self, data: bytes) -> None:
        endpoint = self.endpoint
        known = endpoint.remembered.get(data)
        caller = self.caller
        if known is None or caller is None or self.parser is not None or self.gone:
            self._parse(data)
            return
        view = caller.view
        # In two steps: Python 3.11 caches the look-up of an attribute, but not of one that is called like a method.
        monotonic = endpoint.monotonic
        now_s = monotonic()
        # The same as `within_rate`, without the call.
        spent_s = caller.spent_until_s
        spent_s = (spent_s if spent_s > now_s else now_s) + endpoint.request_share_s
        if view is None or spent_s > now_s + BURST_S or view.held_until_s > now_s or not (state := view.state).enabled:
            self._parse(data)
            return
        index, etag, close = known
        now = endpoint.now
        # Before `until_s` it is still the same second, and memory is still valid.
        moment = now.moment if now_s < now.until_s else endpoint.fresh_moment(now_s)
        unchanged = etag == state.etag
        if moment is None or (not unchanged and etag is not None and endpoint.is_behind(state, etag)):
            self._parse(data)
            return
        caller.spent_until_s = spent_s
        self.answered_s = endpoint.swept_s
        if caller.seen is not moment:
            caller.seen = view.seen = moment
            if not caller.seen_queued:
                caller.seen_queued = True
                endpoint.seen_callers.append(caller)
        if caller.shown_state is not state:
            endpoint.record_shown(caller, state)
        endpoint.counters.remembered += 1
        if unchanged:
            endpoint.counters.not_modified += 1
            index = NOT_MODIFIED[close]
        # The same as `DocumentState.response`, without the call.
        sent = state.sent.get(index)
        self.transport.write(sent[1] if sent is not None and sent[0] is moment else state.response(index, moment))
        if close:
            self._close()

    # -- the parser's path, for all other requests

    def _parse(self, data: bytes) -> None:
        if self.gone:
            return
        if self.busy or self._paused:
            self._buffer(data)
            return
        parser, limits = self.parser, self.endpoint.limits
        if parser is None:
            parser = self.parser = Parser(
                max_head_bytes=limits.head_bytes,
                max_headers=limits.headers,
                max_body_bytes=limits.body_bytes,
                reads_body=self._reads_body,
            )
        fresh = not parser.partial
        if fresh and self.answered_s:
            self._since_s = self.endpoint.monotonic()
        parser.feed(data)
        requests, parser.requests = parser.requests, []
        queue: deque[Request | Response] = deque(requests)
        if parser.problem is not None and not (requests and requests[-1].too_large):
            queue.append(parser.problem)
        whole = fresh and len(requests) == 1 and len(queue) == 1 and not parser.partial
        self._queue = queue
        self._continue(data if whole else None)

    def _buffer(self, data: bytes) -> None:
        """Keep a little of what arrives while a response is pending, then stop reading."""
        if self._buffered is None:
            self._buffered = bytearray()
        self._buffered += data
        if len(self._buffered) > MAX_BUFFERED_BYTES:
            self.transport.pause_reading()

    def _continue(self, raw: bytes | None = None) -> None:
        """Answer the complete requests in order, until a response must be waited for."""
        while self._queue and not self.busy and not self.gone and not self._paused:
            item = self._queue.popleft()
            if isinstance(item, Response):
                self._refuse(item)
            else:
                self.start_exchange(item, raw)
        if self.busy or self.gone or self._paused:
            return
        self._exchange = None
        if self._buffered:
            data, self._buffered = bytes(self._buffered), None
            self.transport.resume_reading()
            self._parse(data)
        elif self._half_closed:
            self._close()
        elif self.parser is not None and not self.parser.partial:
            self.parser = None  # all that was sent is answered
        elif self.parser is not None and self.parser.wants_continue():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def start_exchange(self, request: Request, raw: bytes | None) -> None:
        """Start answering a request; the response leaves through `write`."""
        exchange = self._exchange = Exchange(self, request)
        exchange.start(raw)

    def exchange_finished(self) -> None:
        """Continue, after a response that had to be waited for, with the requests that arrived meanwhile."""
        self._continue()

    def identify(self) -> Caller | None:
        """Return the machine of this connection; find it again if it was unknown, or has left or changed."""
        caller = self.caller
        if caller is None or caller.view is None:
            endpoint = self.endpoint
            current = endpoint.trust.caller_of_connection(endpoint.callers, self.interface, self.address)
            if current is not caller:
                self._leave_share()
                self.caller = current
                self._enter_share()
        return self.caller if self.caller is not None and self.caller.view is not None else None

    def _refuse(self, problem: Response) -> None:
        """Answer an unreadable request, which has a caller and a rate as well; nothing after it can be read."""
        request = Request("GET", "", [], keep_alive=False)
        caller = None if self.proxied else self.identify()
        if caller is None and not self.proxied:
            self.reject(self.endpoint.response_to_unknown(), request)
        elif caller is not None and not within_rate(self.endpoint, caller):
            self.reject(protocol.TOO_MANY, request)
        else:
            self.respond(problem, request)

    def _reads_body(self) -> bool:
        """Whether to read the body of a request whose head was read: what an unknown caller sends is of no use."""
        return self.proxied or self.identify() is not None

    # -- rejected requests

    def reject(self, response: Response, request: Request) -> None:
        """Respond to a request of an unknown caller, or over the caller's rate; after several in a row, stop reading.

        A proxy's connection is always read: it carries requests of many machines.
        """
        if self.proxied:
            self.respond(response, request)
            return
        self._rejections = self._rejections_in_a_row() + 1
        self._spent_at_rejection_s = self._spent_until_s
        self.respond(response, request)
        if self._rejections >= MAX_REJECTIONS and not self.gone:
            self.endpoint.counters.paused += 1
            self.transport.pause_reading()
            self._exchange = Pause(self.endpoint.loop, REJECTION_PAUSE_S, self._pause_ended)

    @property
    def _spent_until_s(self) -> float | None:
        """Changes with each request that is within the machine's rate, on whatever path, and only with such a request."""
        return self.caller.spent_until_s if self.caller is not None else None

    def _rejections_in_a_row(self) -> int:
        return self._rejections if self._spent_until_s == self._spent_at_rejection_s else 0

    def _pause_ended(self) -> None:
        self._exchange = None
        self._continue()
        if not (self.gone or self._paused or isinstance(self._exchange, Pause)):
            self.transport.resume_reading()

    # -- sending

    def respond(self, response: Response, request: Request) -> None:
        keep = self.keeps_open(request)
        head = [b"HTTP/1.1 %d %b" % (response.status, REASONS.get(response.status, b""))]
        if response.status != 304:
            head += [b"Content-Type: " + response.content_type] if response.body else []
            head.append(b"Content-Length: %d" % len(response.body))
        head += response.extra
        head.append(b"Date: " + self.endpoint.now().date)
        if not keep:
            head.append(CLOSE[2:])
        elif request.http_1_0:
            head.append(b"Connection: keep-alive")
        body = b"" if request.method == "HEAD" else response.body
        self.write(response.status, b"\r\n".join(head) + b"\r\n\r\n" + body, keep=keep)

    def keeps_open(self, request: Request) -> bool:
        """Whether the connection stays open after the response to this request."""
        last = self._half_closed and not (self._queue or self._buffered)
        return request.keep_alive and not last and not self.endpoint.stopping

    def write(self, status: int, data: bytes, *, keep: bool) -> None:
        self.endpoint.counters.outcomes[status] += 1
        self.answered_s = self.endpoint.monotonic()
        self.transport.write(data)
        if not keep and self.parser is not None and self.parser.problem is not None:
            self._linger()
        elif not keep:
            self._close()

    def _close(self) -> None:
        self.gone = True
        self.transport.close()

    def _linger(self) -> None:
        """Close only after the guest does: closing with unread bytes would reset the connection and lose the response."""
        self.gone = self._lingering = True
        self._queue = self._buffered = None
        if self._half_closed:
            self.transport.close()
        else:
            self.transport.write_eof()
            self.transport.resume_reading()


# Makes a connection, given its endpoint and the interface it came in by.
ConnectionFactory = Callable[[EndpointState, str], Connection]


def _plain_address(host: str) -> str:
    """Return an address as a fleet file writes it: without a zone, and IPv4 as IPv4."""
    return host.partition("%")[0].removeprefix("::ffff:")
