"""One request on its way to its answer: who asks, whether they may, and what they get, at once or when there is news.

The parser's lane: everything the lane of remembered requests does not answer comes through here, one request of a
connection at a time.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from forewarn.core.errors import ForewarnError, NotFound, RequestError
from forewarn.core.model import Actor, ScopeKind
from forewarn.endpoint import protocol
from forewarn.endpoint.documents import Caller, ScopeView, response_index
from forewarn.endpoint.endpoint import BURST_S, Endpoint
from forewarn.endpoint.loop import Timer
from forewarn.endpoint.protocol import Approve, Instance, Poll, Request, Response

# Whoever waits in line for the writer is told in time that it hangs; what it asked for is not done then.
MAX_IN_LINE_S = 5.0

log = logging.getLogger("forewarn.guest")


class ExchangeState(Protocol):
    """The connection a request came on."""

    guests: Endpoint
    proxied: bool
    interface: str

    @property
    def address(self) -> str: ...

    @property
    def gone(self) -> bool: ...

    def identify(self) -> Caller | None:
        """Whose connection it is."""

    def keeps(self, request: Request) -> bool:
        """Whether it stays after the answer."""

    def answer(self, answer: Response, request: Request) -> None: ...

    def write(self, status: int, data: bytes, *, keep: bool) -> None: ...

    def answered(self) -> None:
        """An answer that had to be waited for is sent."""


class Exchange:
    """`pending` until the answer is sent; a long poll is a waiter of its document meanwhile."""

    __slots__ = ("_caller", "_connection", "_guests", "_poll", "_request", "_timer", "_view", "pending", "waiting")

    _caller: Caller
    _view: ScopeView
    _poll: Poll

    def __init__(self, connection: ExchangeState, request: Request) -> None:
        self._connection = connection
        self._guests = connection.guests
        self._request = request
        self._timer: Timer | None = None
        self.pending = self.waiting = False

    def begin(self, raw: bytes | None) -> None:
        """Checked in the contract's order; `raw` is given where the bytes are this request and nothing else."""
        guests, request, connection = self._guests, self._request, self._connection
        guests.counters.parsed += 1
        caller = self._vouched() if connection.proxied else connection.identify()
        if not request.proxied and any(name.startswith("x-instance-id") for name, _ in request.headers):
            guests.counters.forged += 1
        view = caller.view if caller is not None else None
        if caller is None or view is None:
            guests.counters.unknown += 1
            connection.answer(protocol.NOT_FOUND, request)
            return
        self._caller, self._view = caller, view
        if not within_rate(guests, caller):
            connection.answer(protocol.TOO_MANY, request)
            return
        decision = protocol.decide(request, self._instance, guests.trust.allowed_hosts)
        if isinstance(decision, Response) and not decision.enables:
            connection.answer(decision, request)
            return
        if guests.documents.stale(guests.monotonic()):
            connection.answer(protocol.UNAVAILABLE, request)
            return
        if raw is not None and isinstance(decision, Poll) and self._repeatable(decision):
            tag, close = protocol.plain_tag(decision.if_none_match), not request.keep_alive
            guests.remember(raw, caller, (response_index(decision.version, close), tag, close))
        # "The first GET or POST enables": a HEAD neither does nor counts as having asked.
        if request.method == "HEAD":
            self._held(decision)
            return
        guests.seen(caller, view)
        if not view.state.enabled:
            self._later(self._enable, lambda: self._held(decision))
        else:
            self._held(decision)

    def document_changed(self) -> None:
        if self.waiting and not protocol.matches(self._poll.if_none_match, self._view.state.etag):
            self.end_wait()

    def end_wait(self) -> None:
        """The document changed, or the time is up, or nobody may wait any longer."""
        self._stop_waiting()
        self.pending = False
        if self._caller.view is None:
            self._connection.answer(protocol.NOT_FOUND, self._request)
        elif self._guests.documents.stale(self._guests.monotonic()):
            self._connection.answer(protocol.UNAVAILABLE, self._request)
        else:
            unchanged = protocol.matches(self._poll.if_none_match, self._view.state.etag)
            self._send_document(unchanged=unchanged, waited=True)
        self._connection.answered()

    def cancel(self) -> None:
        """The connection is lost: nobody waits for the answer. What is in line to be written stays there, as long as it may."""
        if self._timer is not None:
            self._timer.cancel()
        if self.waiting:
            self._stop_waiting()

    # -- who

    def _vouched(self) -> Caller | None:
        caller = self._guests.trust.vouched(self._guests.documents, self._request)
        self._request.proxied = caller is not None
        return caller

    def _instance(self) -> Instance:
        caller = self._caller
        placement_group = self._view.state.scope.kind is ScopeKind.PLACEMENT_GROUP
        return Instance(caller.name, caller.scope, placement_group, caller.update_domain, caller.fault_domain)

    def _actor(self) -> Actor:
        """For the audit: who, from which address and interface, known in which way."""
        connection, caller = self._connection, self._caller
        way = self._guests.trust.way(connection.interface, connection.proxied)
        where = f"{connection.address}@{connection.interface}" if connection.interface else connection.address
        return Actor(f"{caller.scope}/{caller.name}", f"{where} by {way}")

    def _repeatable(self, poll: Poll) -> bool:
        """Whether the same bytes will always mean the same poll, answered at once in the usual form."""
        request = self._request
        usual = request.method == "GET" and not (request.http_1_0 and request.keep_alive)
        return usual and not poll.wait_s and not self._connection.proxied

    # -- what

    def _enable(self) -> None:
        """In the writer's thread: durable before anybody of the scope is answered."""
        view = self._view
        if view.state.enabled:
            return  # somebody of the scope was first
        # Before the scope shows as enabled: the first answers of others are held back as well.
        view.held_until_s = self._guests.monotonic() + self._guests.first_call_delay_s
        try:
            self._guests.control.enable(view.name, self._actor())
        except BaseException:
            view.held_until_s = 0.0
            raise

    def _held(self, decision: Response | Poll | Approve) -> None:
        """While a scope's first call is being delayed, every answer of it is."""
        delay_s = self._view.held_until_s - self._guests.monotonic()
        if delay_s <= 0:
            self._decided(decision)
            return

        def no_longer() -> None:
            self.pending, self._timer = False, None
            self._decided(decision)
            self._connection.answered()

        self.pending = True
        self._timer = self._guests.loop.call_later(delay_s, no_longer)

    def _decided(self, decision: Response | Poll | Approve) -> None:
        if isinstance(decision, Response):
            self._connection.answer(decision, self._request)
        elif isinstance(decision, Poll):
            tag, view, asked_s = protocol.plain_tag(decision.if_none_match), self._view, self._guests.monotonic()
            if tag is not None and self._guests.behind(view.state, tag) and self._caller.unknown != (tag, view.state):
                # "One guest never sees time run backwards": what it saw elsewhere is read before it is answered.
                read_again = self._guests.documents.read_again
                self._later(lambda: read_again(view, asked_s), lambda: self._looked_up(decision, tag))
            else:
                self._answer_poll(decision)
        else:
            ids, caller, actor = decision.event_ids, self._caller, self._actor()
            self._later(
                lambda: self._guests.control.approve(caller.scope, caller.name, ids, actor),
                lambda: self._connection.answer(Response(200), self._request),
            )

    def _later(self, write: Callable[[], None], then: Callable[[], None]) -> None:
        """Write in the writer's thread, then answer; nothing of this connection is answered meanwhile.

        What was not begun in time is not done any more: a line that does not move must not grow.
        """
        self.pending = True
        limit: Timer | None = None

        def done(future: "Future[None]") -> None:
            self.pending = False
            if limit is not None:
                limit.cancel()
            if self._connection.gone:
                return
            error = None if future.cancelled() else future.exception()
            if future.cancelled():
                self._connection.answer(protocol.UNAVAILABLE, self._request)
            elif error is None:
                then()
            else:
                self._connection.answer(_told(error), self._request)
            self._connection.answered()

        loop = self._guests.loop
        written = self._guests.writer.submit(write)
        written.add_done_callback(lambda future: loop.call_from_thread(lambda: done(future)))
        if not written.done():
            limit = loop.call_later(MAX_IN_LINE_S, written.cancel)

    # -- polls

    def _looked_up(self, poll: Poll, tag: str) -> None:
        """A tag that nobody gave costs one look, until the document is another or the tag is."""
        state = self._view.state
        self._caller.unknown = (tag, state) if self._guests.behind(state, tag) else None
        self._answer_poll(poll)

    def _answer_poll(self, poll: Poll) -> None:
        guests, caller, view = self._guests, self._caller, self._view
        self._poll = poll
        unchanged = protocol.matches(poll.if_none_match, view.state.etag)
        if unchanged and poll.wait_s and caller.waiting < guests.limits.waiting and not guests.stopping:
            self.pending = self.waiting = True
            caller.waiting += 1
            view.waiters[self] = None
            self._timer = guests.loop.call_later(poll.wait_s, self.end_wait)
        else:
            self._send_document(unchanged=unchanged, waited=False)

    def _stop_waiting(self) -> None:
        self.waiting = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._view.waiters.pop(self, None)
        self._caller.waiting -= 1
        # "An open long poll counts as seen", to its end.
        self._guests.seen(self._caller, self._view)

    def _send_document(self, *, unchanged: bool, waited: bool) -> None:
        state, poll, request = self._view.state, self._poll, self._request
        if request.method == "GET" and self._caller.shown is not state:
            self._guests.shown(self._caller, state)
        keep = self._connection.keeps(request)
        if not unchanged and request.method == "GET" and not (keep and request.http_1_0):
            # One change goes to very many who wait for it: the same bytes as to the one before.
            index = response_index(poll.version, not keep, poll.wait_s if waited else 0)
            self._connection.write(200, state.response(index, self._guests.now()), keep=keep)
            return
        extra: tuple[bytes, ...] = (b"ETag: " + state.etag.encode(),)
        if waited:
            extra = (*extra, b"Preference-Applied: wait=%d" % poll.wait_s)
        if unchanged:
            self._connection.answer(Response(304, extra=extra), request)
        else:
            self._connection.answer(Response(200, state.body(poll.version), extra), request)


def within_rate(guests: Endpoint, caller: Caller) -> bool:
    """Each request takes its share of a second; whoever is a second ahead must wait."""
    now_s = guests.monotonic()
    spent_s = max(caller.spent_until_s, now_s) + guests.request_share_s
    if spent_s > now_s + BURST_S:
        return False
    caller.spent_until_s = spent_s
    return True


def _told(error: BaseException) -> Response:
    if isinstance(error, NotFound):
        return protocol.NOT_FOUND  # the machine or its scope has left meanwhile
    if isinstance(error, RequestError):
        return protocol.error(400, str(error))
    if not isinstance(error, ForewarnError):
        log.error("a guest's request failed: %r", error)
    return protocol.UNAVAILABLE
