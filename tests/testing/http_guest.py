"""A guest for the tests of the test kit: plain HTTP on real sockets, from any loopback address."""

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.support.waiting import PATIENCE_S

DOCUMENT = "/metadata/scheduledevents?api-version=2020-07-01"
METADATA = {"Metadata": "true"}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def events(self) -> dict[str, str]:
        """The status of each event in the document, by its id."""
        return {event["EventId"]: event["EventStatus"] for event in self.json["Events"]}


def send(
    url: str,
    method: str = "GET",
    path: str = DOCUMENT,
    body: object = None,
    *,
    source: str = "127.0.0.1",
    headers: dict[str, str] | None = None,
    timeout_s: float = PATIENCE_S,
) -> Reply:
    """Send one request on a new connection and return the reply."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(
        str(address.hostname), address.port, timeout=timeout_s, source_address=(source, 0)
    )
    data = json.dumps(body) if body is not None else None
    try:
        connection.request(method, path, data, METADATA if headers is None else headers)
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def approve(url: str, *event_ids: str, source: str = "127.0.0.1") -> Reply:
    return send(url, "POST", body={"StartRequests": [{"EventId": each} for each in event_ids]}, source=source)


def send_raw(url: str, data: bytes) -> bytes:
    """Send exactly these bytes and return all bytes of the answer."""
    address = urlsplit(url)
    with socket.create_connection((str(address.hostname), address.port), timeout=PATIENCE_S) as connection:
        connection.sendall(data)
        received = b""
        while piece := connection.recv(65_536):
            received += piece
        return received
