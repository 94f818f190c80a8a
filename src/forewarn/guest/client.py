"""The SDK: `Client` reads the document, approves events, watches for changes and knows this machine's name.

This module decides which time-out a request gets, when it is repeated, how often and where the endpoint is polled. Time and
transport are arguments. Polling goes on through 404, 410, 429, 5xx, broken responses and silence; a failure is logged when it
first occurs and when it changes, not each time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from email.utils import formatdate
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Union

from forewarn.guest.clock import Time
from forewarn.guest.discovery import DEFAULT_ENDPOINT, find_endpoint
from forewarn.guest.document import (
    MAX_NAME_CHARS,
    Document,
    Event,
    parse_document,
    parse_moment,
    whole_number,
    writable,
)
from forewarn.guest.errors import BadDocument, EndpointError, NoAnswer, NotReady, PollInterrupted, Refused, Unreachable
from forewarn.guest.names import Me
from forewarn.guest.transport import Response, Transport

NEWEST_VERSION = "2020-07-01"
INSTANCE_VERSION = "2017-08-01"
PATH = "/metadata/scheduledevents"
INSTANCE_PATH = "/metadata/instance/compute"

# "The first call may take up to two minutes": this applies until one has been answered.
FIRST_ANSWER_TIMEOUT_S = 130.0
ANSWER_TIMEOUT_S = 15.0
INSTANCE_TIMEOUT_S = 5.0
LONG_POLL_S = 60
POLL_EVERY_S = 1.0
# The least time between two requests, so that they stay below the five per second that a machine may send.
MIN_BETWEEN_S = 0.25
BACKOFF_S = (1.0, 2.0, 4.0, 5.0)
MAX_RETRY_AFTER_S = 60.0
REDISCOVER_AFTER = 3
DOCUMENT_PATIENCE_S = 300.0
MAX_IDS = 100

log = logging.getLogger("forewarn.guest")


class Client:
    """One machine's connection to its endpoint. Not for use by several threads at once."""

    def __init__(
        self,
        endpoint: str = "",
        *,
        api_version: str = NEWEST_VERSION,
        name: str = "",
        source_address: str = "",
        poll_every_s: float = POLL_EVERY_S,
        transport: Optional[Transport] = None,
        time: Optional[Time] = None,
        find: Optional[Callable[[], str]] = None,
    ) -> None:
        self.time = time or Time()
        self.failures = Failures(self.time)
        self._find = find or (lambda: find_endpoint(endpoint, os.environ))
        self._endpoint = ""
        self._version = api_version
        self._name = name
        self._poll_every_s = max(MIN_BETWEEN_S, poll_every_s)
        self._transport = transport or Transport(source_address=source_address, time=self.time)
        self._last: Optional[Document] = None
        self._answered = False
        self._unreachable = 0
        # The endpoint that last gave a document, and the number of requests to another one that gave none.
        self._proven = ""
        self._unproven_requests = 0
        self._due_s = float("-inf")
        # Whether the last response was to a long poll, so that it came as soon as the document changed.
        self.long_polls = False

    @property
    def endpoint(self) -> str:
        """The endpoint in use; discovered at the first request, and again after three failures to connect or get a document."""
        # The threads of an agent's clients read this too, and must not see an endpoint that was forgotten meanwhile.
        endpoint = self._endpoint = self._endpoint or self._find()
        return endpoint

    # -- reading

    def document(self, patience_s: float = DOCUMENT_PATIENCE_S) -> Document:
        """Return the current document; try for up to `patience_s`, then raise the last error."""
        give_up_s = self.time.monotonic() + patience_s
        while True:
            try:
                return self.poll()
            except EndpointError as error:
                pause_s = self.failures.failed(error)
                if self.time.monotonic() + pause_s > give_up_s:
                    raise
                self.time.sleep(pause_s)

    def watch(self) -> Iterator[Document]:
        """Yield the document, and then each change of it, for ever; by long poll where the endpoint offers it."""
        yielded: Optional[Document] = None
        while True:
            document = self.next()
            if document is not None and document.differs(yielded):
                yielded = document
                yield document

    def next(self, wait_s: float = LONG_POLL_S, timeout_s: float = 0.0) -> Optional[Document]:
        """Sleep until a request is due, send it, and wait up to about `wait_s` for a change where the endpoint offers that.

        Return the document, changed or not, or None after a failure, which is logged and delays the next request.
        """
        sleep_s = self.due_in_s()
        if sleep_s > wait_s:
            self.time.sleep(wait_s)
            return None
        self.time.sleep(sleep_s)
        sent_s = self.time.monotonic()
        before = self._last
        try:
            # After a failure the endpoint shows at once whether it works again.
            document = self.poll(0.0 if self.failures.count else wait_s - sleep_s, timeout_s)
        except PollInterrupted:
            self._due_s = sent_s + MIN_BETWEEN_S
            return None
        except (EndpointError, Refused) as error:
            self._due_s = self.time.monotonic() + self.failures.failed(error)
            return None
        # After a change the next request can wait at the endpoint instead of here.
        changed = bool(document.etag) and document.differs(before)
        self._due_s = sent_s + (MIN_BETWEEN_S if changed else self._poll_every_s)
        return document

    def due_in_s(self) -> float:
        """Return how long to wait before the next request."""
        return max(0.0, self._due_s - self.time.monotonic())

    def poll(self, wait_s: float = 0.0, timeout_s: float = 0.0) -> Document:
        """Send one request and return the document; 304 confirms the last one."""
        self._rediscover_unproven()
        headers: Dict[str, str] = {}
        waits = 0
        if self._last is not None and self._last.etag:
            headers["If-None-Match"] = self._last.etag
            waits = int(min(wait_s, LONG_POLL_S))
            if waits >= 1:
                headers["Prefer"] = f"wait={waits}"
        patience_s = ANSWER_TIMEOUT_S if self._answered else FIRST_ANSWER_TIMEOUT_S
        try:
            answer = self._request("GET", PATH, headers=headers, timeout_s=timeout_s or patience_s + waits)
            document = self._parse(answer)
        except NoAnswer:
            # The endpoint may be enabling this scope again, as for a first call: then wait as long for the next answer. If the
            # caller chose a short time-out, its end does not show that.
            self._answered = self._answered and bool(timeout_s)
            raise
        except BadDocument:
            self._last = None
            raise
        self._last = document
        self._answered = True
        self._proven, self._unproven_requests = self._endpoint, 0
        self.long_polls = "preference-applied" in answer.headers
        self.failures.worked()
        return document

    def _rediscover_unproven(self) -> None:
        """Discover the endpoint again if it gives no document: a leased one may be another service, and the default may be up."""
        if self._endpoint in ("", DEFAULT_ENDPOINT, self._proven):
            return
        self._unproven_requests += 1
        if self._unproven_requests % REDISCOVER_AFTER == 0:
            self._endpoint = ""

    def _parse(self, answer: Response) -> Document:
        # Without a Date the endpoint's clock is taken to be ours.
        date = answer.headers.get("date") or formatdate(self.time.wall(), usegmt=True)
        now_s = self.time.monotonic()
        if answer.status == 304 and self._last is not None:
            return self._last.confirmed(parse_moment(date), now_s)
        if answer.status != 200:
            raise BadDocument(f"{answer.status} instead of a document")
        return parse_document(answer.body, etag=answer.headers.get("etag", ""), date=date, received_s=now_s)

    # -- approving

    def approve(self, *events: Union[Event, str]) -> None:
        """Approve these events; repeating it is safe. Raise Refused when an id does not belong to this scope."""
        by_key: Dict[str, str] = {}
        for event in events:
            received = self._received_id(event)
            by_key.setdefault(received.upper(), received)
        ids = list(by_key.values())
        for first in range(0, len(ids), MAX_IDS):
            self._approve(ids[first : first + MAX_IDS])

    def _received_id(self, event: Union[Event, str]) -> str:
        """Return the id as the endpoint wrote it: an endpoint may compare ids exactly."""
        listed = self._last.event(event) if isinstance(event, str) and self._last is not None else event
        return listed.id if isinstance(listed, Event) else str(event)

    def _approve(self, ids: List[str]) -> None:
        body = json.dumps({"StartRequests": [{"EventId": each} for each in ids]}).encode()
        headers = {"Content-Type": "application/json"}
        self._request("POST", PATH, headers=headers, body=body, timeout_s=ANSWER_TIMEOUT_S)

    # -- who we are

    def me(self) -> Me:
        """Return this machine's name: as configured, from `/metadata/instance`, or else the host name."""
        if self._name:
            return Me(self._name, "configured")
        try:
            return self.instance()
        except (EndpointError, Refused) as error:
            log.debug("the endpoint does not give this machine's name (%s): the host name is used", error)
            return Me(socket.gethostname().partition(".")[0], "hostname")

    def instance(self) -> Me:
        """Return this machine as `/metadata/instance` names it; raise BadDocument or another error if it does not."""
        answer = self._request("GET", INSTANCE_PATH, version=INSTANCE_VERSION, timeout_s=INSTANCE_TIMEOUT_S)
        return parse_instance(answer.body)

    def check_events(self) -> None:
        """Raise EndpointError unless the endpoint serves this machine. A request without a version does not enable its scope."""
        with contextlib.suppress(Refused):  # the missing version
            self._request("GET", PATH, version="", timeout_s=INSTANCE_TIMEOUT_S)

    # -- one request

    def _request(
        self,
        method: str,
        path: str,
        *,
        headers: Optional[Mapping[str, str]] = None,
        body: bytes = b"",
        version: Optional[str] = None,
        timeout_s: float,
    ) -> Response:
        version = self._version if version is None else version
        try:
            answer = self._transport.request(
                method,
                self.endpoint,
                f"{path}?api-version={version}" if version else path,
                headers={"Metadata": "true", **(headers or {})},
                body=body,
                timeout_s=timeout_s,
            )
        except Unreachable:
            self._unreachable += 1
            if self._unreachable % REDISCOVER_AFTER == 0:
                self._endpoint = ""
            raise
        except EndpointError:  # slow or broken, but reachable
            self._unreachable = 0
            raise
        self._unreachable = 0
        return _check_status(answer)

    def interrupt(self) -> None:
        """Let `next` in another thread return before its time if it waits for a change. Needs an interruptible transport."""
        self._transport.interrupt()

    def close(self) -> None:
        self._transport.close()


def parse_instance(body: bytes) -> Me:
    """Return the machine that the body of a response from INSTANCE_PATH names; raise BadDocument if it names none."""
    try:
        compute = json.loads(body.decode("utf-8-sig"), parse_int=whole_number)
        name, scale_set = compute.get("name"), compute.get("vmScaleSetName")
    except (ValueError, AttributeError, RecursionError):
        name = scale_set = None
    if not isinstance(name, str) or not name:
        raise BadDocument(f"{INSTANCE_PATH} has no name")
    scale_set = scale_set if isinstance(scale_set, str) else ""
    return Me(writable(name)[:MAX_NAME_CHARS], "instance", writable(scale_set)[:MAX_NAME_CHARS])


def _check_status(answer: Response) -> Response:
    status = answer.status
    if status in (200, 304):
        return answer
    if status in (404, 410, 429) or status >= 500:
        raise NotReady(status, _error_text(answer.body), _retry_after_s(answer.headers))
    raise Refused(status, _error_text(answer.body))


def _error_text(body: bytes) -> str:
    """Return the endpoint's error message, at most a line of it."""
    try:
        error: Any = json.loads(body.decode("utf-8", "replace"), parse_int=whole_number)
        error = error.get("error", "") if isinstance(error, dict) else ""
    except (ValueError, RecursionError):
        error = body.decode("utf-8", "replace")
    return " ".join(writable(str(error)).split())[:200] or "no reason given"


def _retry_after_s(headers: Mapping[str, str]) -> float:
    text = headers.get("retry-after", "").strip()
    return min(float(text), MAX_RETRY_AFTER_S) if text.isdecimal() and text.isascii() else 0.0


class Failures:
    """Counts consecutive failures, decides how long to pause, and logs a failure when it is new."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self.count = 0
        self.total = 0
        self.last = ""
        self._kind = ""
        self._since_s = 0.0

    def failed(self, error: Union[EndpointError, Refused]) -> float:
        """Count a failure and return the seconds to pause before the next try."""
        kind = error.kind if isinstance(error, EndpointError) else f"{type(error).__name__} {error.status}"
        if not self.count:
            self._since_s = self._time.monotonic()
        if kind != self._kind:
            log.warning("the endpoint does not give a document: %s", error)
        self._kind, self.last = kind, str(error)
        pause_s = BACKOFF_S[min(self.count, len(BACKOFF_S) - 1)]
        self.count += 1
        self.total += 1
        return max(pause_s, error.retry_after_s) if isinstance(error, NotReady) else pause_s

    def worked(self) -> None:
        if self.count:
            seconds = self._time.monotonic() - self._since_s
            log.warning("the endpoint answers again, after %d failure(s) in %.0f s", self.count, seconds)
        self.count, self._kind, self.last = 0, "", ""
