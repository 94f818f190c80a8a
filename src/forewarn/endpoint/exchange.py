"""One request and its response: who the caller is, whether the request is allowed, and the answer, at once or after a wait.

Every request that the connection's fast path does not answer comes through here, one request of a connection at a time.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from forewarn.core.errors import ForewarnError, NotFound, RequestError
from forewarn.core.lifecycle import GuestApproval
from forewarn.core.model import Actor, ScopeKind
from forewarn.endpoint import protocol
from forewarn.endpoint.callers import Caller
from forewarn.endpoint.document_state import ScopeView, response_index
from forewarn.endpoint.endpoint import EndpointState
from forewarn.endpoint.limits import BURST_S
from forewarn.endpoint.loop import Loop, Timer
from forewarn.endpoint.protocol import Approve, Instance, Poll, Request, Response

log = logging.getLogger("forewarn.guest")


class ExchangeConnection(Protocol):
    """The connection of an exchange, as far as the exchange uses it."""

    endpoint: EndpointState
    proxied: bool
    interface: str

    @property
    def address(self) -> str: ...

    @property
    def gone(self) -> bool: ...

    def identify(self) -> Caller | None:
        """Return the machine of the connection."""

    def keeps_open(self, request: Request) -> bool:
        """Whether the connection stays open after the response."""

    def respond(self, response: Response, request: Request) -> None: ...

    def reject(self, response: Response, request: Request) -> None:
        """Respond to a request of an unknown caller, or over the caller's rate."""

    def write(self, status: int, data: bytes, *, keep: bool) -> None: ...

    def exchange_finished(self) -> None:
        """Continue after a delayed response."""


class Exchange:
    """One request and its response.

    `pending` is True while a write or a long poll delays the response. `waiting` is True while a long poll waits for a change.
    """

    __slots__ = ("_caller", "_connection", "_endpoint", "_poll", "_request", "_timer", "_view", "pending", "waiting")

    _caller: Caller
    _view: ScopeView
    _poll: Poll

    def __init__(self, connection: ExchangeConnection, request: Request) -> None:
        self._connection = connection
        self._endpoint = connection.endpoint
        self._request = request
        self._timer: Timer | None = None
        self.pending = self.waiting = False

    def start(self, raw: bytes | None) -> None:
        """Check the request in the contract's order, then answer it.

        `raw` is the received data if it contains exactly this request; otherwise None.
        """
        endpoint, request, connection = self._endpoint, self._request, self._connection
        endpoint.counters.parsed += 1
        caller = self._proxied_caller() if connection.proxied else connection.identify()
        if not request.proxied and any(name.startswith("x-instance-id") for name, _ in request.headers):
            endpoint.counters.forged += 1
        view = caller.view if caller is not None else None
        if caller is None or view is None:
            connection.reject(endpoint.response_to_unknown(), request)
            return
        self._caller, self._view = caller, view
        if not within_rate(endpoint, caller):
            connection.reject(protocol.TOO_MANY, request)
            return
        decision = protocol.decide(request, self._instance, endpoint.trust.allowed_hosts)
        if isinstance(decision, Response) and not decision.enables:
            connection.respond(decision, request)
            return
        if endpoint.documents.stale(endpoint.monotonic()):
            connection.respond(protocol.UNAVAILABLE, request)
            return
        if raw is not None and isinstance(decision, Poll) and self._repeatable(decision):
            tag, close = protocol.plain_tag(decision.if_none_match), not request.keep_alive
            endpoint.remember(raw, caller, (response_index(decision.version, close), tag, close))
        # The first GET or POST enables the scope. A HEAD does not enable it and does not count as seen.
        if request.method == "HEAD":
            self._answer_unless_held(decision)
            return
        endpoint.record_seen(caller, view)
        if not view.state.enabled:
            self._in_writer_thread(self._enable, lambda: self._answer_unless_held(decision))
        else:
            self._answer_unless_held(decision)

    def document_changed(self) -> None:
        if self.waiting and not protocol.matches(self._poll.if_none_match, self._view.state.etag):
            self.end_wait()

    def end_wait(self) -> None:
        """Answer a long poll: the document changed, the time is up, or the service ends all waits."""
        self._stop_waiting()
        self.pending = False
        if self._caller.view is None:
            self._connection.respond(protocol.NOT_FOUND, self._request)
        elif self._endpoint.documents.stale(self._endpoint.monotonic()):
            self._connection.respond(protocol.UNAVAILABLE, self._request)
        else:
            unchanged = protocol.matches(self._poll.if_none_match, self._view.state.etag)
            self._send_document(unchanged=unchanged, waited=True)
        self._connection.exchange_finished()

    def cancel(self) -> None:
        """Stop: the connection is lost. A queued write is not removed; it may still run within `max_queued_s`."""
        if self._timer is not None:
            self._timer.cancel()
        if self.waiting:
            self._stop_waiting()

    # -- the caller

    def _proxied_caller(self) -> Caller | None:
        caller = self._endpoint.trust.caller_of_proxied_request(self._endpoint.callers, self._request)
        self._request.proxied = caller is not None
        return caller

    def _instance(self) -> Instance:
        caller = self._caller
        placement_group = self._view.state.scope.kind is ScopeKind.PLACEMENT_GROUP
        return Instance(caller.name, caller.scope, placement_group, caller.update_domain, caller.fault_domain)

    def _actor(self) -> Actor:
        """Return who is calling, for the audit: name, address, interface, and how the machine was identified."""
        connection, caller = self._connection, self._caller
        means = self._endpoint.trust.means_of_identification(connection.interface, connection.proxied)
        source = f"{connection.address}@{connection.interface}" if connection.interface else connection.address
        return Actor(f"{caller.scope}/{caller.name}", f"{source} by {means}")

    def _repeatable(self, poll: Poll) -> bool:
        """Whether the same bytes always mean the same poll, answered at once in the usual form."""
        request = self._request
        usual = request.method == "GET" and not (request.http_1_0 and request.keep_alive)
        return usual and not poll.wait_s and not self._connection.proxied

    # -- the decision

    def _enable(self) -> None:
        """Enable the scope, in the writer's thread: it is durable before a guest of the scope is answered."""
        view = self._view
        if view.state.enabled:
            return  # another guest of the scope was first
        # Set before the scope shows as enabled: the first responses to other guests are held back as well.
        view.held_until_s = self._endpoint.monotonic() + self._endpoint.first_call_delay_s
        try:
            self._endpoint.control.enable(view.name, self._actor())
        except BaseException:
            view.held_until_s = 0.0
            raise

    def _answer_unless_held(self, decision: Response | Poll | Approve) -> None:
        """Answer; while a scope's first call is delayed, delay every response to its guests."""
        delay_s = self._view.held_until_s - self._endpoint.monotonic()
        if delay_s <= 0:
            self._answer(decision)
            return

        def release() -> None:
            self.pending, self._timer = False, None
            self._answer(decision)
            self._connection.exchange_finished()

        self.pending = True
        self._timer = self._endpoint.loop.call_later(delay_s, release)

    def _answer(self, decision: Response | Poll | Approve) -> None:
        if isinstance(decision, Response):
            self._connection.respond(decision, self._request)
        elif isinstance(decision, Poll):
            tag, view, requested_s = protocol.plain_tag(decision.if_none_match), self._view, self._endpoint.monotonic()
            if (
                tag is not None
                and self._endpoint.is_behind(view.state, tag)
                and self._caller.unknown_tag != (tag, view.state)
            ):
                # A guest never sees an older document than before: what it saw on another node is read before the answer.
                read_again = self._endpoint.documents.read_again
                self._in_writer_thread(
                    lambda: read_again(view, requested_s), lambda: self._answer_behind(decision, tag)
                )
            else:
                self._answer_poll(decision)
        else:
            approval = GuestApproval(self._caller.scope, self._caller.name, decision.event_ids, self._actor())
            self._answer_after(
                self._endpoint.approvals.submit(approval),
                lambda: self._connection.respond(Response(200), self._request),
            )

    def _in_writer_thread(self, write: Callable[[], None], answer: Callable[[], None]) -> None:
        """Call `write` in the writer's thread, then `answer`."""
        self._answer_after(self._endpoint.writer.submit(write), answer)

    def _answer_after(self, written: "Future[None]", answer: Callable[[], None]) -> None:
        """Call `answer` when the write is done; the connection answers nothing else meanwhile.

        A write that does not start in time is cancelled: a queue that does not move must not grow.
        """
        self.pending = True
        limit: Timer | None = None

        def finish(future: "Future[None]") -> None:
            self.pending = False
            if limit is not None:
                limit.cancel()
            if self._connection.gone:
                return
            error = None if future.cancelled() else future.exception()
            if future.cancelled():
                self._connection.respond(protocol.UNAVAILABLE, self._request)
            elif error is None:
                answer()
            else:
                self._connection.respond(_error_response(error), self._request)
            self._connection.exchange_finished()

        loop = self._endpoint.loop
        written.add_done_callback(lambda future: loop.call_from_thread(lambda: finish(future)))
        if not written.done():
            limit = loop.call_later(self._endpoint.max_queued_s, written.cancel)

    # -- polls

    def _answer_behind(self, poll: Poll, tag: str) -> None:
        """Answer after a read. A tag that no node gave costs one read, until the document or the tag changes."""
        state = self._view.state
        self._caller.unknown_tag = (tag, state) if self._endpoint.is_behind(state, tag) else None
        self._answer_poll(poll)

    def _answer_poll(self, poll: Poll) -> None:
        endpoint, caller, view = self._endpoint, self._caller, self._view
        self._poll = poll
        unchanged = protocol.matches(poll.if_none_match, view.state.etag)
        if unchanged and poll.wait_s and caller.waiting < endpoint.limits.waiting and not endpoint.stopping:
            self.pending = self.waiting = True
            caller.waiting += 1
            view.waiters[self] = None
            self._timer = endpoint.loop.call_later(poll.wait_s, self.end_wait)
        else:
            self._send_document(unchanged=unchanged, waited=False)

    def _stop_waiting(self) -> None:
        self.waiting = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._view.waiters.pop(self, None)
        self._caller.waiting -= 1
        # "An open long poll counts as seen", until it ends.
        self._endpoint.record_seen(self._caller, self._view)

    def _send_document(self, *, unchanged: bool, waited: bool) -> None:
        state, poll, request = self._view.state, self._poll, self._request
        if request.method == "GET" and self._caller.shown_state is not state:
            self._endpoint.record_shown(self._caller, state)
        keep = self._connection.keeps_open(request)
        if not unchanged and request.method == "GET" and not (keep and request.http_1_0):
            # Very many long polls may wait for one change: all of them get the same bytes.
            index = response_index(poll.version, not keep, poll.wait_s if waited else 0)
            self._connection.write(200, state.response(index, self._endpoint.now()), keep=keep)
            return
        extra: tuple[bytes, ...] = (b"ETag: " + state.etag.encode(),)
        if waited:
            extra = (*extra, b"Preference-Applied: wait=%d" % poll.wait_s)
        if unchanged:
            self._connection.respond(Response(304, extra=extra), request)
        else:
            self._connection.respond(Response(200, state.body(poll.version), extra), request)


class Pause:
    """Takes the place of an exchange while a connection is not read because of rejected requests; `ended` continues it."""

    __slots__ = ("_ended", "_timer", "pending", "waiting")

    def __init__(self, loop: Loop, delay_s: float, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._timer = loop.call_later(delay_s, self.end_wait)
        self.pending = self.waiting = True

    def end_wait(self) -> None:
        """End the pause: its time is over, or the service stops."""
        self.cancel()
        self._ended()

    def cancel(self) -> None:
        self._timer.cancel()
        self.pending = self.waiting = False


def within_rate(endpoint: EndpointState, caller: Caller) -> bool:
    """Count a request: each takes its share of a second, and a machine may be one second ahead."""
    now_s = endpoint.monotonic()
    spent_s = max(caller.spent_until_s, now_s) + endpoint.request_share_s
    if spent_s > now_s + BURST_S:
        return False
    caller.spent_until_s = spent_s
    return True


def _error_response(error: BaseException) -> Response:
    if isinstance(error, NotFound):
        return protocol.NOT_FOUND  # the machine or its scope was removed meanwhile
    if isinstance(error, RequestError):
        return protocol.error(400, str(error))
    if not isinstance(error, ForewarnError):
        log.error("a guest's request failed: %r", error)
    return protocol.UNAVAILABLE
