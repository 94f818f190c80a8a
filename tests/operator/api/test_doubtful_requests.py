"""Requests whose token is probably wrong wait, so that a flood of them does not slow down other requests."""

import asyncio
import socket
import threading
from datetime import timedelta
from functools import partial

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from forewarn.app import operator_server
from forewarn.core.operator_model import Role, Token
from forewarn.operator.api.access import Access, digest
from forewarn.operator.api.calendar import CALENDAR
from forewarn.operator.api.doubtful_requests import MAX_WAIT_S, MOST_PER_S, WAIT_S, DoubtfulRequests
from forewarn.operator.api.failed_attempts import MAX_FAILURES, FailedAttempts
from forewarn.operator.listener import listening
from forewarn.operator.open_connections import IDLE_WHILE_WAITING, ConnectionLimits, OpenConnections
from tests.support.running_service import START, running_service
from tests.support.waiting import PATIENCE_S

FLOODER, OTHER = "192.0.2.1", "192.0.2.2"


def access_after_failures(number: int = MAX_FAILURES, *, peer: str = FLOODER) -> Access:
    """Return access with a valid and an expired token, after some wrong tokens of the flooder or another peer."""
    tokens = [
        Token(id="1", name="a", role=Role.OPERATOR, digest=digest("fw_right"), created=START),
        Token(id="2", name="b", role=Role.OPERATOR, digest=digest("fw_expired"), created=START, expires=START),
    ]
    access = Access(
        lambda: tokens,
        now=lambda: START + timedelta(days=1),
        failures=FailedAttempts(lambda: 0.0),
        environment_token="fw_environment",
    )
    access.cache_tokens()
    for _ in range(number):
        access.failures.add(peer, "wrong")
    return access


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_a_token_is_doubtful_only_where_too_many_were_wrong() -> None:
    """A token that the node has read is never doubtful, and neither is a request without a token."""
    access = access_after_failures()
    assert access.is_doubtful(bearer("fw_wrong"), FLOODER)
    assert access.is_doubtful(bearer("fw_expired"), FLOODER)
    for headers in (bearer("fw_right"), bearer("fw_environment"), bearer(""), {}):
        assert not access.is_doubtful(headers, FLOODER)
    assert not access.is_doubtful(bearer("fw_wrong"), OTHER)
    assert not access_after_failures(MAX_FAILURES - 1).is_doubtful(bearer("fw_wrong"), FLOODER)
    assert not access_after_failures(0).is_doubtful(bearer("fw_wrong"), FLOODER)


class Waits:
    """Counts waits, all of which end together."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.over = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await self.over.wait()


class Answers:
    """An application that notes the tokens of the requests it gets."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive, send
        self.tokens.append(dict(scope["headers"])[b"authorization"].decode().removeprefix("Bearer "))


async def call(app: ASGIApp, scope: Scope) -> None:
    await app(scope, unused, discard)


async def unused() -> dict[str, object]:
    raise AssertionError("no body is read")


async def discard(_: object) -> None:
    """Send nothing."""


def request(token: str, **more: object) -> Scope:
    headers = [(b"authorization", f"Bearer {token}".encode())]
    return {"type": "http", "method": "GET", "headers": headers, "client": (FLOODER, 1), **more}


def test_a_right_token_overtakes_wrong_ones() -> None:
    """Wrong tokens reach the application after their wait, and the wait grows with their number."""

    async def run() -> None:
        waits, answers = Waits(), Answers()
        app = DoubtfulRequests(access_after_failures(), sleep=waits.sleep).delay(answers)
        number = MOST_PER_S * int(MAX_WAIT_S * 2)
        flood = [asyncio.create_task(call(app, request("fw_wrong"))) for _ in range(number)]
        await asyncio.sleep(0)
        await call(app, request("fw_right"))
        assert answers.tokens == ["fw_right"]
        assert WAIT_S / 2 <= waits.seconds[0] <= WAIT_S * 1.5
        assert MAX_WAIT_S / 2 <= waits.seconds[-1] <= MAX_WAIT_S * 1.5
        waits.over.set()
        await asyncio.gather(*flood)
        assert answers.tokens == ["fw_right", *["fw_wrong"] * number]

    asyncio.run(run())


def test_a_wrong_token_in_the_address_of_the_calendar_waits() -> None:
    """There the token in the query counts, whatever the headers hold; one that the node has read waits for nothing."""

    async def run() -> None:
        waits, answers = Waits(), Answers()
        app = DoubtfulRequests(access_after_failures(), sleep=waits.sleep).delay(answers)
        wrong = request("fw_right", path=CALENDAR, query_string=b"token=fw_wrong")
        waiting = asyncio.create_task(call(app, wrong))
        await asyncio.sleep(0)
        await call(app, request("fw_wrong", path=CALENDAR, query_string=b"token=fw_right"))
        await call(app, request("fw_wrong", path=CALENDAR, query_string=b""))
        assert (len(waits.seconds), answers.tokens) == (1, ["fw_wrong", "fw_wrong"])
        waits.over.set()
        await waiting

    asyncio.run(run())


def test_a_request_that_waits_is_not_busy() -> None:
    """It takes no place of other requests of its address, and is not answered if its connection is closed meanwhile."""

    async def run() -> None:
        opened = OpenConnections(ConnectionLimits(connections_per_address=1))
        waits, answers, peer, other = Waits(), Answers(), (FLOODER, 1), (FLOODER, 2)
        app = DoubtfulRequests(access_after_failures(), sleep=waits.sleep).delay(answers)
        with socket.socket() as first, socket.socket() as second:
            for accepted, its_peer in ((first, peer), (second, other)):
                assert opened.admit(accepted, its_peer)
            opened.begin_request(peer, health=False)
            scope = request("fw_wrong", **{IDLE_WHILE_WAITING: lambda: opened.delayed(peer)})
            waiting = asyncio.create_task(call(app, scope))
            await asyncio.sleep(0)
            opened.work(peer)  # the last byte of its body arrives
            assert opened.begin_request(other, health=False)
            waits.over.set()
            await waiting
            assert answers.tokens == ["fw_wrong"]
            assert not opened.begin_request(other, health=False), "its request is under way"
            opened.end_request(peer)
            waits.over.clear()
            waiting = asyncio.create_task(call(app, scope))
            await asyncio.sleep(0)
            opened.remove(first, peer)
            waits.over.set()
            await waiting
            await call(app, scope)
            assert answers.tokens == ["fw_wrong"]

    asyncio.run(run())


def test_a_request_whose_body_is_not_complete_after_its_wait_is_not_busy() -> None:
    """It still waits for its caller, until the last byte of its body arrives."""

    async def run() -> None:
        opened, peer, other = OpenConnections(ConnectionLimits(connections_per_address=1)), (FLOODER, 1), (FLOODER, 2)
        with socket.socket() as first, socket.socket() as second:
            for accepted, its_peer in ((first, peer), (second, other)):
                assert opened.admit(accepted, its_peer)
            opened.begin_request(peer, health=False)
            with opened.delayed(peer):
                pass
            assert opened.begin_request(other, health=False)
            opened.work(peer)
            assert not opened.begin_request(other, health=False)

    asyncio.run(run())


def test_wrong_tokens_on_an_open_connection_block_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one request at a time per address, a right token is answered beside a wrong one that waits."""
    begun, over = threading.Event(), threading.Event()

    async def sleep(_: float) -> None:
        begun.set()
        while not over.is_set():
            await asyncio.sleep(0.01)

    monkeypatch.setattr(operator_server, "DoubtfulRequests", partial(DoubtfulRequests, sleep=sleep))
    with running_service(operator_connections="1") as service:
        for _ in range(MAX_FAILURES):
            assert service.request("GET", "/v1/scopes", token="fw_wrong").status == 401
        port = int(service.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as flooder:
            head = b"POST /v1/maintenances HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer fw_wrong\r\n"
            flooder.sendall(head + b"Content-Length: 2\r\n\r\n{")
            assert begun.wait(PATIENCE_S)
            assert service.request("GET", "/v1/scopes").status == 200
            flooder.sendall(b"}")
            assert service.request("GET", "/v1/scopes").status == 200
            over.set()
            assert flooder.recv(65_536).startswith(b"HTTP/1.1 429 ")


def test_a_listener_that_ends_lets_nobody_wait(caplog: pytest.LogCaptureFixture) -> None:
    """The request that waits ends without an answer to its token, and nothing is logged about it."""
    begun, answers = threading.Event(), Answers()

    async def sleep_long(_: float) -> None:
        begun.set()
        await asyncio.sleep(1_000)

    app = DoubtfulRequests(access_after_failures(peer="127.0.0.1"), sleep=sleep_long).delay(answers)
    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    with listening(app, bound, tls_cert=None, tls_key=None, trusted_proxies=None, open_connections=OpenConnections()):
        waiting = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        waiting.sendall(b"GET /v1/scopes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer fw_wrong\r\n\r\n")
        assert begun.wait(PATIENCE_S)
    with waiting:
        assert b" 499 " in waiting.recv(65_536)
    assert answers.tokens == []
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []
