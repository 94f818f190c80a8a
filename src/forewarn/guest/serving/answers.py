"""One request of a client and its answer: the document now or when it changes, an approval, or what the endpoint says."""

from __future__ import annotations

import json
import logging
import selectors
import socket
from typing import Callable, Iterable, List, Optional, Sequence

from forewarn.guest.client import INSTANCE_PATH, INSTANCE_VERSION, parse_instance
from forewarn.guest.document import Event
from forewarn.guest.errors import BadDocument, JournalError
from forewarn.guest.names import Me
from forewarn.guest.serving import protocol
from forewarn.guest.serving.clients import Clients
from forewarn.guest.serving.protocol import AboutInstance, Answer, Poll, StartRequests
from forewarn.guest.serving.requests import Request
from forewarn.guest.serving.settings import ServedClient
from forewarn.guest.serving.upstream import Upstream
from forewarn.guest.sockets import Deadline

log = logging.getLogger("forewarn.guest.serving")
# Saves the approval of a client before it returns: the name of the client, and the ids of the events.
RecordApproval = Callable[[str, Sequence[str]], None]


class Answers:
    """Answers requests. Every method may be called by any thread."""

    def __init__(self, clients: Clients, upstream: Upstream, record: RecordApproval, api_version: str) -> None:
        self._clients, self._upstream, self._record = clients, upstream, record
        self._versions = protocol.served_versions(api_version)

    def answer(self, client: ServedClient, request: Request, connection: socket.socket) -> Answer:
        """Return the answer, for a long poll when the document changes; raise OSError if the client is gone by then."""
        meant = protocol.meaning(
            request, versions=self._versions, approves=client.approves, any_host=client.path is not None
        )
        if isinstance(meant, Answer):
            return meant
        if isinstance(meant, AboutInstance):
            return self._upstream.instance(meant.target)
        if isinstance(meant, StartRequests):
            return self._approve(client, request, meant.event_ids)
        return self._poll(client, meant, connection)

    # -- the document

    def _poll(self, client: ServedClient, poll: Poll, connection: socket.socket) -> Answer:
        waited = False
        if poll.wait_s and poll.if_none_match and self._clients.published() is not None:
            with self._clients.waiting(client, poll.if_none_match) as changed:
                if changed is not None:
                    _wait(changed, connection, poll.wait_s)
                    self._clients.hear(client)
                    waited = True
        published = self._clients.published()
        if published is None:
            return protocol.UNAVAILABLE
        applied = (("Preference-Applied", f"wait={poll.wait_s}"),) if waited else ()
        headers = (("ETag", published.etag), *applied)
        if poll.if_none_match == published.etag:
            return Answer(304, b"", headers)
        return Answer(200, published.body(poll.version), headers)

    # -- approvals

    def _approve(self, client: ServedClient, request: Request, event_ids: Sequence[str]) -> Answer:
        """Record the approvals of this machine's events; forward the others. Nothing is recorded after an error."""
        published = self._clients.published()
        if published is None:
            return protocol.UNAVAILABLE
        ours: List[str] = []
        others: List[str] = []
        events = {each: published.document.event(each) for each in dict.fromkeys(event_ids)}
        me = self._me(published.me, events.values())
        if me is None:
            return protocol.UNAVAILABLE
        for event_id, event in events.items():
            if event is None and not self._clients.was_shown(event_id):
                return protocol.error(400, f"Bad request. EventId {event_id} is not an event of this machine's scope")
            if event is not None and not me.is_in(event):
                others.append(event_id)
            elif event is not None and not event.started:
                ours.append(event.key)
        if others:
            body = request.body or b""
            if len(others) < len(event_ids):
                body = json.dumps({"StartRequests": [{"EventId": each} for each in others]}).encode()
            answer = self._upstream.approve(request.target, body)
            if answer.status != 200:
                return answer
        try:
            self._record(client.name, ours)
        except JournalError as error:  # the agent's own thread ends the agent when it cannot write either
            log.error("the approval of client %r is refused: %s", client.name, error)
            return protocol.UNAVAILABLE
        return Answer(200)

    def _me(self, known: Me, events: Iterable[Optional[Event]]) -> Optional[Me]:
        """Return this machine's name, or None if the agent knows only the host name and the endpoint does not answer now.

        The host name may be another one. Then an event of this machine would be forwarded and start before it is prepared.
        """
        if known.origin != "hostname" or all(event is None or known.is_in(event) for event in events):
            return known
        answer = self._upstream.instance(f"{INSTANCE_PATH}?api-version={INSTANCE_VERSION}")
        if answer.status == 429 or answer.status >= 500:
            return None
        try:
            return parse_instance(answer.body)
        except BadDocument:  # the endpoint names no machine: the host name is all there is
            return known


def _wait(changed: socket.socket, connection: socket.socket, wait_s: float) -> None:
    """Wait until the document changes or the time is up; raise ConnectionResetError if the client closes meanwhile."""
    deadline = Deadline(wait_s)
    with selectors.DefaultSelector() as selector:
        selector.register(changed, selectors.EVENT_READ)
        selector.register(connection, selectors.EVENT_READ)
        try:
            while True:
                ready = {key.fileobj for key, _ in selector.select(deadline.left_s())}
                if changed in ready:
                    return
                if connection in ready:
                    connection.settimeout(0.0)
                    if not connection.recv(1, socket.MSG_PEEK):
                        raise ConnectionResetError("the client is gone")
                    selector.unregister(connection)  # its next request waits
        except socket.timeout:
            return
