"""The HTTP client of guests and operators: each calls from its own address, and every request is recorded with its answer."""

import http.client
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tests.integration.chaos.fleet import Machine
from tests.integration.chaos.history import Recorder, Request

GUEST_URL = "/metadata/scheduledevents?api-version=2020-07-01"
# A stopped node does not answer: after this long the caller tries another.
PATIENCE_S = 2.0


class NodeLife(NamedTuple):
    """One process of one node, with the `host:port` of both listeners. After its death nobody listens there."""

    name: str
    life: int
    guest: str
    operator: str


# Returns all nodes in the same order, each with its present process.
NodesNow = Callable[[], Sequence[NodeLife]]


class Answer(NamedTuple):
    """An answer; status 0 means that none came."""

    status: int
    etag: str = ""
    body: str = ""

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def done(self) -> bool:
        return self.status in (200, 201, 304)


class Connections:
    """The connections of one caller, kept open while they work. Used by one thread."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._open: dict[str, http.client.HTTPConnection] = {}

    def ask(
        self, where: str, method: str, path: str, headers: dict[str, str], body: str = "", wait_s: float = 0.0
    ) -> Answer:
        connection = self._open.get(where)
        if connection is None:
            host, _, port = where.rpartition(":")
            connection = http.client.HTTPConnection(host, int(port), source_address=(self._address, 0))
            self._open[where] = connection
        try:
            connection.timeout = PATIENCE_S + wait_s
            if connection.sock is not None:
                connection.sock.settimeout(connection.timeout)
            connection.request(method, path, body or None, headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers.get("ETag", ""), answer.read().decode())
        except (OSError, http.client.HTTPException):
            connection.close()
            del self._open[where]
            return Answer(0)

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()


class RecordingClient:
    """Sends requests as a guest or as an operator, and records each."""

    def __init__(self, who: str, address: str, recorder: Recorder, token: str = "") -> None:
        self.who = who
        self._connections = Connections(address)
        self._recorder = recorder
        self._token = token

    def poll(self, node: NodeLife, machine: Machine, etag: str = "", wait_s: int = 0) -> Answer:
        headers = {"Metadata": "true"}
        if etag:
            headers["If-None-Match"] = etag
        if wait_s:
            headers["Prefer"] = f"wait={wait_s}"
        begin_s = time.monotonic()
        answer = self._connections.ask(node.guest, "GET", GUEST_URL, headers, wait_s=wait_s)
        self._note(
            node, begin_s, "poll", answer, scope=machine.scope, machine=machine.name, if_none_match=etag,
            etag=answer.etag, body=answer.body if answer.status == 200 else "",
        )  # fmt: skip
        return answer

    def approve(self, node: NodeLife, machine: Machine, event_ids: Sequence[str]) -> Answer:
        body = json.dumps({"StartRequests": [{"EventId": each} for each in event_ids]})
        begin_s = time.monotonic()
        answer = self._connections.ask(node.guest, "POST", GUEST_URL, {"Metadata": "true"}, body)
        self._note(node, begin_s, "approve", answer, scope=machine.scope, machine=machine.name, ids=tuple(event_ids))
        return answer

    def submit(self, node: NodeLife, key: str, body: dict[str, object]) -> Answer:
        begin_s = time.monotonic()
        answer = self._api(node, "POST", "/v1/maintenances", json.dumps(body), key)
        answered_ids: tuple[str, ...] = ()
        if answer.status == 201:
            made = answer.json()
            answered_ids = (made["id"], *(event["id"] for wave in made["waves"] for event in wave["events"]))
        self._note(node, begin_s, "submit", answer, key=key, answered_ids=answered_ids)
        return answer

    def verb(self, node: NodeLife, verb: str, kind: str, thing: str) -> Answer:
        """Do something to a maintenance or an event; recorded as `pause maintenance`, `approve event`, …"""
        begin_s = time.monotonic()
        answer = self._api(node, "POST", f"/v1/{kind}s/{thing}/{verb}")
        self._note(node, begin_s, f"{verb} {kind}", answer, ids=(thing,))
        return answer

    def look(self, node: NodeLife, path: str) -> Answer:
        """Read something through the API, without recording it: a read promises nothing."""
        return self._api(node, "GET", path)

    def close(self) -> None:
        self._connections.close()

    def _api(self, node: NodeLife, method: str, path: str, body: str = "", key: str = "") -> Answer:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        return self._connections.ask(node.operator, method, path, headers, body)

    def _note(self, node: NodeLife, begin_s: float, what: str, answer: Answer, **more: Any) -> None:
        self._recorder.record(
            Request(
                who=self.who, node=node.name, life=node.life, begin_s=begin_s, end_s=time.monotonic(),
                what=what, status=answer.status, **more,
            )
        )  # fmt: skip


def events_of(answer: Answer) -> list[dict[str, Any]]:
    """Return the events of the document; none if there is no document."""
    with suppress(ValueError, KeyError):
        found: list[dict[str, Any]] = answer.json()["Events"]
        return found
    return []
