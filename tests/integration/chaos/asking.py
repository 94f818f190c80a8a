"""How everybody asks: real sockets, each caller from its own address, every request recorded with what came of it."""

import http.client
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tests.integration.chaos.fleet import Machine
from tests.integration.chaos.history import Recorder, Request

GUEST_URL = "/metadata/scheduledevents?api-version=2020-07-01"
# A node that was stopped answers nobody: whoever asked goes elsewhere after so long.
PATIENCE_S = 2.0


class Peer(NamedTuple):
    """One life of one node: where guests and operators find it, `host:port`. A dead one's address answers nobody."""

    name: str
    life: int
    guest: str
    operator: str


# All the nodes there are, always as many and in the same order, each as it is now.
Peers = Callable[[], Sequence[Peer]]


class Answer(NamedTuple):
    """Status 0: none came."""

    status: int
    etag: str = ""
    body: str = ""

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def done(self) -> bool:
        return self.status in (200, 201, 304)


class Line:
    """One caller's connections, kept open as long as they work. Belongs to one thread."""

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


class Asker:
    """Asks as a guest or as an operator, and writes down every request."""

    def __init__(self, who: str, address: str, recorder: Recorder, token: str = "") -> None:
        self.who = who
        self._line = Line(address)
        self._recorder = recorder
        self._token = token

    def poll(self, peer: Peer, machine: Machine, etag: str = "", wait_s: int = 0) -> Answer:
        headers = {"Metadata": "true"}
        if etag:
            headers["If-None-Match"] = etag
        if wait_s:
            headers["Prefer"] = f"wait={wait_s}"
        begin_s = time.monotonic()
        answer = self._line.ask(peer.guest, "GET", GUEST_URL, headers, wait_s=wait_s)
        self._note(
            peer, begin_s, "poll", answer, scope=machine.scope, machine=machine.name, if_none_match=etag,
            etag=answer.etag, body=answer.body if answer.status == 200 else "",
        )  # fmt: skip
        return answer

    def approve(self, peer: Peer, machine: Machine, event_ids: Sequence[str]) -> Answer:
        body = json.dumps({"StartRequests": [{"EventId": each} for each in event_ids]})
        begin_s = time.monotonic()
        answer = self._line.ask(peer.guest, "POST", GUEST_URL, {"Metadata": "true"}, body)
        self._note(peer, begin_s, "approve", answer, scope=machine.scope, machine=machine.name, ids=tuple(event_ids))
        return answer

    def submit(self, peer: Peer, key: str, asked: dict[str, object]) -> Answer:
        begin_s = time.monotonic()
        answer = self._api(peer, "POST", "/v1/maintenances", json.dumps(asked), key)
        told: tuple[str, ...] = ()
        if answer.status == 201:
            made = answer.json()
            told = (made["id"], *(event["id"] for wave in made["waves"] for event in wave["events"]))
        self._note(peer, begin_s, "submit", answer, key=key, told=told)
        return answer

    def verb(self, peer: Peer, verb: str, kind: str, thing: str) -> Answer:
        """Do something to a maintenance or an event; recorded as `pause maintenance`, `approve event`, …"""
        begin_s = time.monotonic()
        answer = self._api(peer, "POST", f"/v1/{kind}s/{thing}/{verb}")
        self._note(peer, begin_s, f"{verb} {kind}", answer, ids=(thing,))
        return answer

    def look(self, peer: Peer, path: str) -> Answer:
        """Read; nothing is promised by it, so nothing is recorded."""
        return self._api(peer, "GET", path)

    def close(self) -> None:
        self._line.close()

    def _api(self, peer: Peer, method: str, path: str, body: str = "", key: str = "") -> Answer:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        return self._line.ask(peer.operator, method, path, headers, body)

    def _note(self, peer: Peer, begin_s: float, what: str, answer: Answer, **more: Any) -> None:
        self._recorder.record(
            Request(
                who=self.who, node=peer.name, life=peer.life, begin_s=begin_s, end_s=time.monotonic(),
                what=what, status=answer.status, **more,
            )
        )  # fmt: skip


def events_of(answer: Answer) -> list[dict[str, Any]]:
    """What the document lists; nothing where there is none."""
    with suppress(ValueError, KeyError):
        found: list[dict[str, Any]] = answer.json()["Events"]
        return found
    return []
