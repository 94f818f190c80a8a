"""Requests recorded from real clients, replayed on a raw socket, get the answers that these clients need."""

import json
import re
from pathlib import Path

import pytest

from forewarn.core.model import Status
from tests.support.guest_service import OPERATOR, Client, body, serving, status

RECORDED = sorted((Path(__file__).parents[1] / "integration" / "interop" / "recorded").glob("*.http"))
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
GUID = re.compile(rb"[0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12}")
CLIENTS = {"curl", "python27", "csharp", "node", "powershell51", "powershell7"}


def names(kind: str) -> list[str]:
    return [path.stem for path in RECORDED if f"-{kind}" in path.stem]


def recorded(name: str) -> tuple[bytes, bytes]:
    """Return head and body of a recorded request."""
    data = next(path for path in RECORDED if path.stem == name).read_bytes()
    head, end, sent = data.partition(b"\r\n\r\n")
    return head + end, sent


def ask(client: Client, head: bytes, sent: bytes) -> bytes:
    """Return the answer to a request; a client that expects 100 Continue sends its body after it."""
    if b"expect: 100-continue" in head.lower():
        assert client.ask(head) == CONTINUE
        return client.ask(sent)
    return client.ask(head + sent)


def finished(client: Client, head: bytes) -> bool:
    """Whether the connection ended if the request has `Connection: close`, and stayed open if not."""
    closes = b"connection: close" in head.lower()
    return client.closed() if closes else client.quiet()


def test_every_client_is_recorded() -> None:
    """There are a poll and an approval of each supported client, and a poll with an ETag."""
    assert {name.partition("-")[0] for name in names("get")} == CLIENTS
    assert {name.partition("-")[0] for name in names("post")} == CLIENTS
    assert names("get-etag") == ["node-get-etag"]


@pytest.mark.parametrize("name", [name for name in names("get") if not name.endswith("-etag")])
def test_a_recorded_poll_gets_the_document(name: str) -> None:
    """The answer has the document in the version of the request, each time."""
    head, sent = recorded(name)
    with serving() as running:
        running.service.control.enable("shop", OPERATOR)
        event_id = running.reboot("shop", "web-0")
        for _ in range(3):
            client = running.client()
            answer = ask(client, head, sent)
            assert status(answer) == 200
            [event] = json.loads(body(answer))["Events"]
            assert (event["EventId"], event["EventType"], event["EventStatus"]) == (event_id, "Reboot", "Scheduled")
            assert event["Resources"] == ["_web-0" if b"=2017-03-01 " in head else "web-0"]
            assert finished(client, head)


@pytest.mark.parametrize("name", names("get-etag"))
def test_a_recorded_poll_with_a_tag_gets_304_while_nothing_changed(name: str) -> None:
    """The answer is 304 while the tag matches, and the document once it does not."""
    head, sent = recorded(name)
    with serving() as running:
        running.service.control.enable("shop", OPERATOR)
        running.reboot("shop", "web-0")
        client = running.client()
        assert b'If-None-Match: "2"' in head
        assert running.server.documents.views["shop"].state.etag == '"2"'
        assert status(ask(client, head, sent)) == 304
        running.reboot("shop", "web-1")
        assert status(ask(client, head, sent)) == 200
        assert finished(client, head)


@pytest.mark.parametrize("name", names("post"))
def test_a_recorded_approval_starts_the_event(name: str) -> None:
    """An approval starts the event whatever its Content-Type; a second approval changes nothing."""
    head, sent = recorded(name)
    with serving() as running:
        running.service.control.enable("shop", OPERATOR)
        event_id = running.reboot("shop", "web-0")
        approval = GUID.sub(event_id.encode(), sent)
        assert len(approval) == len(sent)
        assert running.service.control.event(event_id)[0].status is Status.SCHEDULED
        for _ in range(2):
            client = running.client()
            answer = ask(client, head, approval)
            assert (status(answer), body(answer)) == (200, b"")
            assert finished(client, head)
            running.service.ticker.cycle_until_idle()
            event, _ = running.service.control.event(event_id)
            assert (event.status, len(event.approvals)) == (Status.STARTED, 1)
