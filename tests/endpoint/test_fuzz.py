"""Any bytes may arrive: no exception, no hang, well-formed answers, and no effect of a malformed request."""

import logging
import random
import socket
from collections import Counter
from collections.abc import Iterator

import pytest

from forewarn.core.model import Actor, Status
from forewarn.endpoint.loop import Loop
from tests.endpoint.fuzz_inputs import corpus, make_input
from tests.endpoint.in_memory import MemoryService, MemoryTransport, turn_until_idle
from tests.endpoint.strict_http import Judged, Verdict, judge, read_answers
from tests.support.budget import BUDGET, chosen_seed
from tests.support.guest_service import OPERATOR, WEB_0, serving
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

INPUTS = 20_000
SOCKET_INPUTS = 400
# The same inputs in every run, others in every soak; a failure names the seed that repeats it.
SEED = chosen_seed(1)


def check(received: bytes, verdicts: list[Judged], *, finished: bool, waiting: bool) -> Counter[str]:
    """Compare answers with verdicts; raise AssertionError for an answer that its verdict does not allow."""
    answers = read_answers(received, [judged.method for judged in verdicts])
    seen: Counter[str] = Counter()
    for number, answer in enumerate(answers):
        assert number < len(verdicts), f"answer {number} has no request: {answer}"
        judged = verdicts[number]
        assert answer.status in judged.verdict.value, (
            f"{answer.status} to request {number}, {judged.verdict.name} ({judged.why})"
        )
        seen[f"{judged.verdict.name} {answer.status}"] += 1
        last = answer.headers.get("connection") == "close"
        assert last or not judged.close, f"request {number} asked to close"
        if last:
            assert finished, "it announced close and did not close"
            return seen
        if judged.verdict.last:
            return seen
    unanswered = verdicts[len(answers)] if len(answers) < len(verdicts) else None
    if unanswered is not None and not finished:
        open_ended = unanswered.verdict in (Verdict.INCOMPLETE, Verdict.EITHER) or (waiting and unanswered.waits)
        assert open_ended, f"request {len(answers)} hangs, {unanswered.verdict.name} ({unanswered.why})"
    return seen


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


class Target:
    """A service with one event to approve; replaced by a new service once the event is approved."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.services = 0
        self.renew()

    def renew(self) -> None:
        self.service = MemoryService(self.loop)
        self.service.control.enable("shop", Actor("guest"))
        self.event_id = self.service.reboot("shop", "web-0")
        self.services += 1

    def approved(self) -> bool:
        event, _ = self.service.control.event(self.event_id)
        return bool(event.approvals) or event.status is not Status.SCHEDULED

    def run(self, pieces: list[bytes]) -> Counter[str]:
        transport = MemoryTransport(self.service.endpoint)
        for piece in pieces:
            transport.send(piece)
            turn_until_idle(self.loop, transport)
        verdicts = judge(b"".join(pieces), event_ids=frozenset({self.event_id}))
        waiting = transport.connection.busy
        finished = transport.is_finished()
        try:
            seen = check(transport.received, verdicts, finished=finished, waiting=waiting)
            if self.approved():
                seen["approved"] += 1
                assert any(self.event_id in v.approves or v.verdict is Verdict.EITHER for v in verdicts), "approved"
                self.renew()
        finally:
            transport.hang_up()
        return seen


def report(number: int, pieces: list[bytes]) -> str:
    return f"TEST_SEED={SEED}, input {number}: {pieces!r}"


@pytest.mark.timeout(1_200)
def test_twenty_thousand_inputs(caplog: pytest.LogCaptureFixture, loop: Loop) -> None:
    """Spoiled requests and noise: every answer is allowed, and every request that needs an answer gets one."""
    generator = random.Random(SEED)
    target = Target(loop)
    bases = corpus(target.event_id)
    seen: Counter[str] = Counter()

    with caplog.at_level(logging.ERROR):
        for number in range(INPUTS * BUDGET):
            pieces = make_input(generator, bases)
            try:
                seen.update(target.run(pieces))
            except Exception as error:
                raise AssertionError(f"{error}\n{report(number, pieces)}") from error
    assert not caplog.records, f"TEST_SEED={SEED}: {caplog.text}"
    assert not target.service.endpoint.connections
    # The inputs were varied enough: each kind of answer was seen often.
    for kind in ("POLL 200", "POLL 304", "APPROVE 200", "REFUSE 400", "MALFORMED 400", "approved"):
        assert seen[kind] > INPUTS // 400, (kind, seen)


def exchange(port: int, pieces: list[bytes]) -> bytes:
    """Send the pieces, close our half, and read to the end."""
    with socket.socket() as client:
        client.bind((WEB_0, 0))
        client.settimeout(PATIENCE_S)
        client.connect(("127.0.0.1", port))
        received = b""
        try:
            for piece in pieces:
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)
        except (ConnectionError, OSError):
            pass  # the service closed first: what it sent is still to be read
        try:
            while data := client.recv(65_536):
                received += data
        except ConnectionError:
            pass
        return received


def test_inputs_over_a_real_socket() -> None:
    """Over real sockets each connection ends in time, and the listener still accepts."""
    generator = random.Random(SEED)
    with serving() as running:
        running.service.control.enable("shop", OPERATOR)
        event_id = running.reboot("shop", "web-0")
        bases = corpus(event_id)
        for number in range(SOCKET_INPUTS * BUDGET):
            pieces = make_input(generator, bases)
            verdicts = judge(b"".join(pieces), event_ids=frozenset({event_id}))
            try:
                check(exchange(running.port, pieces), verdicts, finished=True, waiting=False)
            except (AssertionError, TimeoutError) as error:
                raise AssertionError(f"{error}\n{report(number, pieces)}") from error
        assert running.server.listener.accepting()


POLL = b"GET /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\n\r\n"


def _with(poll: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    return poll[:-2] + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


CHUNKED, UPGRADE = b"Transfer-Encoding: chunked", b"Connection: Upgrade\r\nUpgrade: h2c"
NO_METADATA = POLL.replace(b"Metadata: true\r\n", b"")
JUDGED = {
    "as it should be": (Verdict.POLL, POLL),
    "empty lines before it": (Verdict.POLL, b"\r\n\r\n" + POLL),
    "two spaces": (Verdict.MALFORMED, POLL.replace(b"GET ", b"GET  ")),
    "HTTP/2": (Verdict.MALFORMED, POLL.replace(b"1.1", b"2.0")),
    "HTTP/0.9": (Verdict.MALFORMED, POLL.replace(b"1.1", b"0.9")),
    "no protocol": (Verdict.MALFORMED, POLL.replace(b" HTTP/1.1", b"")),
    "another protocol": (Verdict.MALFORMED, POLL.replace(b"HTTP", b"RTSP")),
    "a fragment": (Verdict.MALFORMED, POLL.replace(b"?", b"?x=#&")),
    "bare LF": (Verdict.MALFORMED, POLL.replace(b"\r\nHost", b"\nHost")),
    "NUL": (Verdict.MALFORMED, POLL.replace(b"true", b"true\0")),
    "a folded header": (Verdict.MALFORMED, _with(POLL, b"A: b", b" c")),
    "a space before the colon": (Verdict.MALFORMED, POLL.replace(b"Metadata:", b"Metadata :")),
    "two lengths": (Verdict.MALFORMED, _with(POLL, b"Content-Length: 0", b"Content-Length: 0")),
    "length and chunks": (Verdict.MALFORMED, _with(POLL, b"Content-Length: 5", CHUNKED, body=b"0\r\n\r\n")),
    "another coding": (Verdict.MALFORMED, _with(POLL, b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n")),
    "chunks in HTTP/1.0": (Verdict.MALFORMED, _with(POLL.replace(b"1.1", b"1.0"), CHUNKED, body=b"0\r\n\r\n")),
    "Metadata as a trailer": (Verdict.REFUSE, _with(NO_METADATA, CHUNKED, body=b"0\r\nMetadata: true\r\n\r\n")),
    "a blank that is none": (Verdict.REFUSE, POLL.replace(b"true", b"true\xa0")),
    "no Host": (Verdict.REFUSE, POLL.replace(b"Host: 127.0.0.1\r\n", b"")),
    "half a bracket": (Verdict.REFUSE, POLL.replace(b"127.0.0.1", b"127.0.0.1]")),
    "a bare version 6 address": (Verdict.REFUSE, POLL.replace(b"127.0.0.1", b"::1")),
    "an upgrade": (Verdict.POLL, _with(POLL, UPGRADE)),
    "an upgrade with a body": (Verdict.POLL, _with(POLL, UPGRADE, b"Content-Length: 3", body=b"abc")),
}


@pytest.mark.parametrize("case", JUDGED)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_malformed_requests_are_refused_and_odd_ones_are_not(case: str, size: int, loop: Loop) -> None:
    """Each case gets its verdict, in pieces of any size; a valid poll after it is answered unless the case is malformed."""
    verdict, data = JUDGED[case]
    stream = data + POLL
    assert judge(stream, event_ids=frozenset())[0].verdict is verdict
    seen = Target(loop).run([stream[at : at + size] for at in range(0, len(stream), size)])
    if verdict is Verdict.MALFORMED:
        assert seen == {"MALFORMED 400": 1}
    else:
        assert seen["POLL 200"] == (2 if verdict is Verdict.POLL else 1)
