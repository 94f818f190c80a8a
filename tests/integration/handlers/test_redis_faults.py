"""`redis` with fake servers over sockets that are down, hang, trickle or lie, and an agent that is killed."""

import contextlib
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forewarn.core.model import Status
from forewarn.guest.clock import Time
from forewarn.guest.errors import Interrupted, OutOfTime, StepFailed
from forewarn.guest.handlers import redis
from forewarn.guest.handlers.redis_protocol import MAX_ANSWER_BYTES, ErrorReply, query
from forewarn.guest.handlers.redis_replication import Spec
from tests.integration.handlers.agent_process import cancelled_run, fast_run, new_run, recorded_timeouts_s
from tests.integration.handlers.fake_redis import STEP, TcpServer, fake_redis, master, replica
from tests.integration.handlers.service_with_event import service_with_event
from tests.support.waiting import PATIENCE_S, until


def spec_of(address: str) -> Spec:
    return redis.parse({"address": address}, "here")


def test_a_server_that_answers_ok_and_does_nothing() -> None:
    """Its role has not changed, so the step fails, and the failover is aborted."""
    with fake_redis(lambda words: master("a", "127.0.0.1:9") if words[0] == "INFO" else b"+OK\r\n") as liar:
        with pytest.raises(OutOfTime, match=f"no other master was confirmed: {liar.address} is still master"):
            redis.prepare(spec_of(liar.address), fast_run())
        until(lambda: ["FAILOVER", "ABORT"] in liar.heard)  # nobody waits for its answer for long
        assert redis.verify(spec_of(liar.address), new_run()) is False


def test_a_cancel_aborts_the_failover() -> None:
    """Otherwise it would go on and pause writes for an event that is gone."""
    with fake_redis(lambda words: master("a", "127.0.0.1:9") if words[0] == "INFO" else b"+OK\r\n") as server:
        with pytest.raises(Interrupted):
            redis.prepare(spec_of(server.address), cancelled_run())
        requests = [["FAILOVER", "TO"], ["FAILOVER", "ABORT"]]
        until(lambda: [words[:2] for words in server.heard if words[0] == "FAILOVER"] == requests)


@pytest.mark.parametrize("unanswered", range(5))
def test_a_server_that_once_does_not_answer_hands_over(unanswered: int) -> None:
    """Whichever INFO gets no answer, the next one decides."""
    infos = 0

    def answer_of_own_server(words: list[str]) -> bytes:
        nonlocal infos
        if words[0] != "INFO":
            return b"+OK\r\n"
        infos += 1
        if infos - 1 == unanswered:
            raise OSError("closed")
        return replica("a", other.address) if me.count("FAILOVER") else master("a", other.address)

    with fake_redis(lambda _: master("b")) as other, fake_redis(answer_of_own_server) as me:
        redis.prepare(spec_of(me.address), new_run())
        assert me.count("FAILOVER") == 1
        assert infos > unanswered


def test_a_failover_without_an_answer_is_confirmed_by_the_roles() -> None:
    """The server may have begun it, as one does that is too busy to answer in time."""

    def answer_of_own_server(words: list[str]) -> bytes:
        if words[0] == "FAILOVER":
            raise OSError("closed")
        return replica("a", other.address) if me.count("FAILOVER") else master("a", other.address)

    with fake_redis(lambda _: master("b")) as other, fake_redis(answer_of_own_server) as me:
        redis.prepare(spec_of(me.address), new_run())
        assert me.count("FAILOVER") == 1


@pytest.mark.parametrize("second", [b"+OK\r\n", b"-ERR FAILOVER already in progress.\r\n"])
def test_a_request_without_an_answer_is_repeated(second: bytes) -> None:
    """It may have been lost before the server saw it. If the server had received it after all, it refuses the second one."""

    def answer_of_own_server(words: list[str]) -> bytes:
        requests = me.count("FAILOVER")
        if words[0] == "FAILOVER" and requests == 1:
            raise OSError("closed")
        if words[0] == "FAILOVER":
            return second
        return replica("a", other.address) if requests == 2 else master("a", other.address)

    with fake_redis(lambda _: master("b")) as other, fake_redis(answer_of_own_server) as me:
        redis.prepare(spec_of(me.address), new_run())
        assert me.count("FAILOVER") == 2


def test_a_server_that_never_answers_the_request(tmp_path: Path) -> None:
    """The step fails with that reason, and aborts a failover that the server may begin later."""

    def answer_of_own_server(words: list[str]) -> bytes:
        if words[:2] == ["FAILOVER", "TO"]:
            raise OSError("closed")
        return master("a", "127.0.0.1:9") if words[0] == "INFO" else b"+OK\r\n"

    with fake_redis(answer_of_own_server) as me:
        with pytest.raises(OutOfTime, match=f"{me.address} did not answer FAILOVER"):
            redis.prepare(spec_of(me.address), fast_run())
        until(lambda: ["FAILOVER", "ABORT"] in me.heard)


def test_a_request_without_an_answer_is_aborted_if_the_server_then_refuses() -> None:
    """The server may have begun the failover before it refused to say how far it is."""

    def answer_of_own_server(words: list[str]) -> bytes:
        if words[:2] == ["FAILOVER", "TO"]:
            raise OSError("closed")
        if words[0] == "INFO":
            return b"-LOADING\r\n" if me.count("FAILOVER") else master("a", "127.0.0.1:9")
        return b"+OK\r\n"

    with fake_redis(answer_of_own_server) as me:
        with pytest.raises(StepFailed, match=f"{me.address}: LOADING"):
            redis.prepare(spec_of(me.address), new_run())
        until(lambda: ["FAILOVER", "ABORT"] in me.heard)


def test_a_server_that_follows_a_server_that_is_not_master() -> None:
    """Both servers must confirm the roles, and a server cannot follow itself."""
    with (
        fake_redis(lambda _: replica("b", "127.0.0.1:9")) as other,
        fake_redis(lambda _: replica("a", other.address)) as me,
    ):
        with pytest.raises(OutOfTime, match=f"{other.address}, which should be master, is not"):
            redis.prepare(spec_of(me.address), fast_run())
        other.answer = lambda _: master("a")
        assert redis.verify(spec_of(me.address), new_run()) is False
        other.answer = lambda _: master("b")
        assert redis.verify(spec_of(me.address), new_run()) is True
        other.answer = lambda _: b"*1\r\n"
        assert redis.verify(spec_of(me.address), new_run(1, hangs=True)) is None  # half an answer


def test_a_master_made_by_hand_is_left_alone() -> None:
    """Without a restart it stays master, because following would delete its data; after a restart it must follow."""
    with fake_redis(lambda _: master("b")) as other, fake_redis(lambda _: replica("a", other.address)) as me:
        run = new_run()
        redis.prepare(spec_of(me.address), run)
        me.answer = lambda words: master("a") if words[0] == "INFO" else b"+OK\r\n"
        with pytest.raises(
            StepFailed, match=f"{me.address} was made master by hand while {other.address} is master too"
        ):
            redis.recover(spec_of(me.address), new_run(**run.kept))
        assert me.count("REPLICAOF") == 0
        other.answer = lambda _: replica("b", me.address)
        redis.recover(spec_of(me.address), new_run(**run.kept))  # and now the other follows
        other.answer = lambda _: master("b")
        me.answer = lambda words: master("c") if words[0] == "INFO" else b"+OK\r\n"
        with pytest.raises(OutOfTime, match=f"it follows {other.address} and has no link to it yet"):
            redis.recover(spec_of(me.address), fast_run(**run.kept))
        assert me.count("REPLICAOF") > 0


def test_a_server_that_is_down_hangs_or_trickles() -> None:
    """The step fails with a message, within its time."""
    over = threading.Event()

    def hang(_: list[str]) -> bytes:
        over.wait()
        return b""

    with pytest.raises(StepFailed, match=r"127.0.0.1:9, this machine's Redis, does not answer"):
        redis.prepare(spec_of("127.0.0.1:9"), fast_run())
    assert redis.check(spec_of("127.0.0.1:9"))[0].startswith("127.0.0.1:9 does not answer as it should")
    with fake_redis(hang) as hanging:
        with recorded_timeouts_s() as given:
            with pytest.raises(StepFailed, match="does not answer"):
                redis.prepare(spec_of(hanging.address), new_run(0.5, time=Time()))
            assert redis.verify(spec_of(hanging.address), new_run(0.5, time=Time())) is None
            with pytest.raises(OutOfTime, match="is not back: it does not answer"):
                redis.recover(spec_of(hanging.address), new_run(0.5, time=Time()))
        assert max(given) <= 0.5
        over.set()
    with trickling() as address:
        began_s = time.monotonic()
        with pytest.raises(TimeoutError):
            query(address, ("INFO",), seconds=0.5)
        assert time.monotonic() - began_s < PATIENCE_S


@contextmanager
def trickling() -> Iterator[str]:
    class Trickle(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b"+")
                    time.sleep(0.05)

    with TcpServer(("127.0.0.1", 0), Trickle) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"HTTP/1.1 400\r\n\r\n", "this is not Redis"),
        (b":x\r\n", "this is not Redis"),
        (b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", "this is not Redis"),
        (b"$99999999\r\n" + b"x" * (MAX_ANSWER_BYTES + 1), "longer than"),
        (b"+" + b"x" * (MAX_ANSWER_BYTES + 1), "longer than"),
    ],
)
def test_an_answer_that_makes_no_sense_is_read_within_limits(reply: bytes, message: str) -> None:
    """Whatever it is, it is no answer."""
    with fake_redis(lambda _: reply) as odd, pytest.raises(OSError, match=message):
        query(odd.address, ("INFO",), seconds=PATIENCE_S)


def test_every_kind_of_answer_is_read() -> None:
    """Text, number, nothing, list, error."""
    with fake_redis(lambda _: b"*5\r\n$2\r\nab\r\n:-7\r\n$-1\r\n*-1\r\n+OK\r\n") as made:
        assert query(made.address, ("X",), seconds=PATIENCE_S) == ["ab", -7, None, None, "OK"]
        made.answer = lambda _: b"-ERR no\r\n"
        with pytest.raises(ErrorReply, match="ERR no"):
            query(made.address, ("X",), seconds=PATIENCE_S)


def test_killed_between_handing_over_and_confirming(tmp_path: Path) -> None:
    """The next agent finds the handover done, requests nothing again, and approves."""
    handed_over, held = threading.Event(), threading.Event()

    def answer_of_own_server(words: list[str]) -> bytes:
        if words[0] == "FAILOVER":
            handed_over.set()
            return b"+OK\r\n"
        if handed_over.is_set():
            held.wait()
            return replica("a", other.address)
        return master("a", other.address)

    with (
        fake_redis(lambda _: master("b")) as other,
        fake_redis(answer_of_own_server) as me,
        service_with_event(tmp_path) as service,
    ):
        agent = service.agent(STEP.format(address=me.address))
        agent.up()
        assert handed_over.wait(PATIENCE_S)
        agent.kill()
        assert "approving" not in agent.kinds
        held.set()
        agent.up()
        until(lambda: "approved" in agent.kinds)
        assert me.count("FAILOVER") == 1
        until(lambda: service.status is Status.STARTED)
