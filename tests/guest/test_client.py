"""The SDK's requests to an endpoint, on a manual clock and over real sockets."""

import contextlib
import itertools
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from forewarn.guest import Client, Refused
from forewarn.guest.client import FIRST_ANSWER_TIMEOUT_S
from forewarn.guest.discovery import DEFAULT_ENDPOINT, find_endpoint
from forewarn.guest.errors import CutShort, EndpointError, NoAnswer, NotReady, Unreachable
from forewarn.guest.transport import Transport
from tests.support.fake_endpoint import (
    E1,
    E2,
    FakeEndpoint,
    ManualTime,
    Reply,
    ScriptedTransport,
    answer,
    document,
    event,
    http_server,
    respond,
)
from tests.support.waiting import PATIENCE_S, until

STRANGE = "0000FFFF-0000-4000-8000-000000000000"
MIXED = "0000aBcD-0000-4000-8000-000000000000"


def client_of(endpoint: FakeEndpoint) -> Client:
    return Client("10.0.0.1", transport=endpoint.transport, time=endpoint.time)


def test_watch_yields_the_document_and_each_change() -> None:
    """With long polls the client sends one request a minute and sees a change at once."""
    clock = ManualTime()
    endpoint = FakeEndpoint(clock)
    endpoint.at(100, endpoint.announce)
    endpoint.at(300, endpoint.start)
    endpoint.at(333, endpoint.end)
    began_s = clock.now_s
    changes = itertools.islice(client_of(endpoint).watch(), 4)
    seen = [(clock.now_s - began_s, [each.status for each in change.events]) for change in changes]
    assert seen == [(0, []), (100, ["Scheduled"]), (300, ["Started"]), (333, [])]
    assert len(endpoint.transport.requests) < 20


def test_watch_polls_once_a_second_without_long_polls() -> None:
    """Without ETag and long poll the client sends a request a second and sees a change within that."""
    clock = ManualTime()
    endpoint = FakeEndpoint(clock, long_poll=False)
    endpoint.at(9.5, endpoint.announce)
    began_s, watch = clock.now_s, client_of(endpoint).watch()
    next(watch)
    assert [each.status for each in next(watch).events] == ["Scheduled"]
    assert clock.now_s - began_s == 10
    assert len(endpoint.transport.requests) == 11


def test_an_endpoint_that_answers_long_polls_at_once_is_no_busy_loop() -> None:
    """Unchanged responses are requested at most once a second."""
    clock = ManualTime()
    same = answer(b"", status=304, etag='"1"', preference_applied="wait=60")
    replies = iter([answer(document(), etag='"1"')])
    client = Client("10.0.0.1", transport=ScriptedTransport(lambda *_: next(replies, same)), time=clock)
    began_s = clock.now_s
    for _ in range(61):
        client.next()
    assert clock.now_s - began_s >= 59


def test_failures_are_retried_with_backoff_and_logged_when_they_change(caplog: pytest.LogCaptureFixture) -> None:
    """The client logs one line for the first failure, one for each change of it, and one when it is over."""
    failures: list[Reply] = [
        *[NotReady(410, "gone")] * 4,
        NotReady(429, "slow down", 7.0),
        *[CutShort("cut")] * 2,
        *[NotReady(500, "oh")] * 3,
    ]
    clock, pending = ManualTime(), iter(failures)
    scripted = ScriptedTransport(lambda *_: next(pending, answer(document())))
    client = Client("10.0.0.1", transport=scripted, time=clock)
    with caplog.at_level(logging.WARNING):
        assert client.document().incarnation == "1"
    assert clock.slept == [1, 2, 4, 5, 7, 5, 5, 5, 5, 5]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 5
    assert "410" in messages[0]
    assert "after 10 failure(s) in 39 s" in messages[-1] or "after 10 failure(s) in 44 s" in messages[-1]


def test_document_gives_up_after_its_patience() -> None:
    """document() raises the last error, and at once an error that cannot pass."""
    scripted = ScriptedTransport(lambda *_: NotReady(410, "gone"))
    with pytest.raises(NotReady, match="410: gone"):
        Client("10.0.0.1", transport=scripted, time=ManualTime()).document(patience_s=30)
    wrong = ScriptedTransport(lambda *_: answer(b'{"error":"Bad request. api-version"}', status=400))
    with pytest.raises(Refused, match=r"400: Bad request\. api-version"):
        Client("10.0.0.1", transport=wrong, time=ManualTime()).document()
    assert len(wrong.requests) == 1


def test_the_first_answer_may_take_two_minutes() -> None:
    """This holds until the first response and again after a silence; later time-outs are shorter."""
    clock = ManualTime()
    replies: Iterator[Reply] = iter([NoAnswer("late"), answer(document(), etag='"1"'), NoAnswer("late")])
    scripted = ScriptedTransport(lambda *_: next(replies, answer(document(), etag='"1"')))
    client = Client("10.0.0.1", transport=scripted, time=clock)
    for _ in range(5):
        client.next()
    limits = [timeout_s for _, _, _, _, timeout_s in scripted.requests]
    assert limits == [FIRST_ANSWER_TIMEOUT_S, FIRST_ANSWER_TIMEOUT_S, 74, FIRST_ANSWER_TIMEOUT_S, 74]


def test_the_endpoint_is_discovered_again_after_three_failed_connections() -> None:
    """An error status or silence does not count as a failed connection."""
    found: list[str] = []
    replies: list[Reply] = [
        Unreachable("1"),
        Unreachable("2"),
        answer(b"", 503),
        Unreachable("1"),
        NoAnswer("slow"),
        Unreachable("1"),
        Unreachable("2"),
        Unreachable("3"),
        Unreachable("1"),
    ]

    def find() -> str:
        found.append(DEFAULT_ENDPOINT)
        return found[-1]

    pending = iter(replies)
    client = Client(transport=ScriptedTransport(lambda *_: next(pending)), time=ManualTime(), find=find)
    looked = []
    for _ in replies:
        client.next(wait_s=1_000)
        looked.append(len(found))
    assert looked == [1, 1, 1, 1, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("reply", [answer(b"no", 404), answer(b"no", 400), answer(b"no"), NoAnswer("late")])
def test_a_leased_endpoint_without_documents_does_not_outlast_the_default(tmp_path: Path, reply: Reply) -> None:
    """A leased endpoint that gives no document is replaced by the default when that is up."""
    (tmp_path / "lease").write_text("option unknown-245 a8:3f:81:10;")
    accepting = {"168.63.129.16"}
    client = Client(
        transport=ScriptedTransport(lambda *_: answer(document()) if client.endpoint == DEFAULT_ENDPOINT else reply),
        time=ManualTime(),
        find=lambda: find_endpoint("", {}, connect=lambda host, *_: host in accepting, leases=[f"{tmp_path}/lease"]),
    )
    for _ in range(7):
        assert client.next() is None
    assert client.endpoint == "http://168.63.129.16"
    accepting.add("169.254.169.254")
    assert any(client.next() for _ in range(4))
    assert client.endpoint == DEFAULT_ENDPOINT


def test_a_leased_endpoint_that_gave_a_document_is_kept() -> None:
    """A later failure does not make it the wrong endpoint."""
    looked: list[str] = []

    def find() -> str:
        looked.append("http://168.63.129.16")
        return looked[-1]

    replies: Iterator[Reply] = iter([answer(document())])
    client = Client(
        transport=ScriptedTransport(lambda *_: next(replies, answer(b"", 503))), time=ManualTime(), find=find
    )
    for _ in range(20):
        client.next()
    assert len(looked) == 1


def test_approving_sends_each_id_once_and_a_hundred_at_a_time() -> None:
    """approve() takes events or ids, and raises what the endpoint refuses."""
    scripted = ScriptedTransport(lambda *_: answer(b""))
    client = Client("10.0.0.1", transport=scripted, time=ManualTime())
    client.approve(E1, E1.lower(), E2)
    assert scripted.approvals == [E1, E2]
    many = [f"{number:08X}-0000-4000-8000-000000000000" for number in range(150)]
    scripted.requests.clear()
    client.approve(*many)
    assert [len(json.loads(body)["StartRequests"]) for _, _, _, body, _ in scripted.requests] == [100, 50]
    refusing = Client("10.0.0.1", transport=ScriptedTransport(lambda *_: answer(b"", status=400)), time=ManualTime())
    with pytest.raises(Refused):
        refusing.approve(E1)


def test_an_id_is_sent_back_as_received() -> None:
    """An endpoint may compare ids exactly; an id that the document does not list is sent as it was given."""
    scripted = ScriptedTransport(lambda *_: answer(document(event(MIXED)) if not scripted.approvals else b""))
    client = Client("10.0.0.1", transport=scripted, time=ManualTime())
    (seen,) = client.document().events
    assert (seen.id, seen.key) == (MIXED, MIXED.upper())
    client.approve(seen, MIXED.upper())
    client.approve(MIXED.lower())
    client.approve("other-Id")
    assert scripted.approvals == [MIXED, MIXED, "other-Id"]


def test_this_machines_name() -> None:
    """The name is the configured one, else the endpoint's, else the host name without its domain."""
    named = FakeEndpoint(ManualTime(), name="pool_7")
    assert client_of(named).me().name == "pool_7"
    assert Client("10.0.0.1", name="mine", transport=named.transport).me().origin == "configured"
    for reply in (NotReady(404, "no"), answer(b"no JSON"), answer(b"[]"), answer(b'{"name":""}')):
        silent = Client("10.0.0.1", transport=ScriptedTransport(lambda *_, reply=reply: reply), time=ManualTime())
        assert silent.me().name == socket.gethostname().partition(".")[0]
        assert silent.me().origin == "hostname"


@pytest.mark.posix
def test_against_the_real_service() -> None:
    """document, watch, approve and me work from a machine's own address with the service's clock and long poll."""
    from tests.support.guest_service import WEB_0, serving

    with serving() as service:
        client = Client(f"127.0.0.1:{service.port}", source_address=WEB_0)
        assert client.me().name == "web-0"
        watch = client.watch()
        assert next(watch).events == ()
        view = service.server.documents.views["shop"]

        def reboot_during_a_long_poll() -> None:
            until(lambda: view.waiters)
            service.reboot("shop", "web-0")

        threading.Thread(target=reboot_during_a_long_poll).start()
        (seen,) = (shown := next(watch)).events
        assert (seen.status, client.long_polls) == ("Scheduled", True)
        left_s = shown.time_left_s(seen, shown.received_s)
        assert left_s is not None
        assert 898 <= left_s <= 900
        client.approve(seen)
        service.advance(seconds=1)  # approved, it starts at the next tick
        assert [each.status for each in next(watch).events] == ["Started"]
        client.approve(seen)
        with pytest.raises(Refused, match="400"):
            client.approve(STRANGE)
        client.close()


# -- the transport, on real sockets


def test_a_kept_connection_that_was_closed_is_opened_again() -> None:
    """The client opens a new one once, without a log line."""
    connections: list[socket.socket] = []  # not their ports: the second may get that of the first

    def reply(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        connections.append(handler.connection)
        respond(handler, 200, document())
        handler.close_connection = len(connections) == 2

    with http_server(reply) as url:
        transport = Transport()
        for _ in range(3):
            assert transport.request("GET", url, "/", headers={}, timeout_s=PATIENCE_S).status == 200
        transport.close()
    assert connections[0] is connections[1] is not connections[2]


@pytest.mark.parametrize("announced", [True, False])
def test_a_broken_body_is_a_failure(announced: bool) -> None:
    """A body that is too short or broken JSON raises an error, never a partial document."""

    def reply(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        whole = document(event())
        handler.send_response(200)
        if announced:
            handler.send_header("Content-Length", str(len(whole)))
        handler.end_headers()
        handler.wfile.write(whole[:40])
        handler.close_connection = True

    with http_server(reply) as url, pytest.raises(EndpointError):
        Client(url).document(patience_s=0)


TRICKLES = {
    "silence": b"",
    "headers": b"HTTP/1.1 200 OK\r\nX: ",
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
    "chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3E8\r\n",
    "chunk size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "no length": b"HTTP/1.1 200 OK\r\n\r\n",
}


@pytest.mark.parametrize("where", TRICKLES)
def test_silence_and_trickle_end_in_time(where: str) -> None:
    """The whole response has one deadline, however slowly its bytes come."""
    ended = threading.Event()

    def reply(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        if handler.path != "/slow":
            respond(handler, 200)
            return
        handler.close_connection = True
        handler.wfile.write(TRICKLES[where])
        with contextlib.suppress(OSError):
            while not ended.wait(0.1):
                handler.wfile.write(b"0" if where != "silence" else b"")

    with http_server(reply) as url:
        transport = Transport()
        # On a connection that is kept, the deadline cannot end while the client still connects.
        transport.request("GET", url, "/", headers={}, timeout_s=PATIENCE_S)
        began_s = time.monotonic()
        with pytest.raises(NoAnswer):
            transport.request("GET", url, "/slow", headers={}, timeout_s=1.0)
        took_s = time.monotonic() - began_s
        ended.set()
    assert 0.9 < took_s < PATIENCE_S


def test_a_refused_connection_is_unreachable_and_proxies_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the endpoint; http_proxy is ignored."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(Unreachable, match="no connection to http://127"):
            Transport().request("GET", nobody, "/", headers={}, timeout_s=PATIENCE_S)
        monkeypatch.setenv("http_proxy", nobody)
        with http_server(lambda handler, _: respond(handler, 200, document())) as url:
            client = Client(url)
            assert client.document().incarnation == "1"
            client.close()


def test_a_long_poll_can_be_interrupted() -> None:
    """Another thread ends it, or the next one if none is open; that is no failure, and the next request works."""
    going = threading.Event()
    polls: list[str] = []

    def reply(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        polls.append(handler.headers.get("Prefer", ""))
        if handler.headers.get("Prefer"):
            going.wait(PATIENCE_S)
        with contextlib.suppress(OSError):  # the client may be gone
            respond(handler, 200, document(), ETag='"1"')

    with http_server(reply) as url:
        client = Client(url, transport=Transport(interruptible=True))
        assert client.next() is not None
        waiting = threading.Thread(target=client.next)
        waiting.start()
        # How long it waits depends on how long the first request took.
        until(lambda: [each.partition("=")[0] for each in polls] == ["", "wait"])
        client.interrupt()
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        client.interrupt()
        assert client.next() is None
        assert client.failures.total == 0
        going.set()
        assert client.next() is not None
        client.close()
    Client("10.0.0.1", transport=ScriptedTransport(lambda *_: answer(b""))).interrupt()
