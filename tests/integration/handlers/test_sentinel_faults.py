"""`redis` through Sentinels that hang, refuse, or are slow, and when the agent dies: made-up ones over real sockets."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from forewarn.guest.errors import OutOfTime, StepFailed
from forewarn.guest.handlers import redis
from forewarn.guest.handlers.redis_replication import Spec, split_address
from tests.integration.handlers.agents import hurried, run_of
from tests.integration.handlers.living import living
from tests.integration.handlers.test_redis_faults import MadeUp, bulk, made_up, master, replica

SENTINELS = 3
OK = b"+OK\r\n"
STEP = """
[[steps]]
name = "hand over"
required = true
timeout = "{timeout}"
redis = {{ address = "{address}", sentinels = {sentinels}, master = "shop" }}
"""


class House:
    """A master, its replica and three Sentinels; all that they hear stands in one list, in order."""

    def __init__(self, stack: ExitStack) -> None:
        self.heard: list[str] = []
        # What the replica has received of nine.
        self.received = 9
        # Looks that the Sentinels need after they were told before they name the replica.
        self.looks_needed = 0
        self.promoted = self.follows = False
        self.obeys = True
        self.refuses: dict[int, bytes] = {}
        self.closes = False
        self.deaf = threading.Event()
        self.deaf_to: dict[int, str] = {}
        self.other = stack.enter_context(
            made_up(lambda _: master("b") if self.promoted else replica("b", "127.0.0.1:9"))
        )
        self.me = stack.enter_context(made_up(self._me))
        self.sentinels: list[MadeUp] = []
        for number in range(SENTINELS):

            def answer(words: list[str], number: int = number) -> bytes:
                return self._sentinel(number, words)

            self.sentinels.append(stack.enter_context(made_up(answer)))

    def _me(self, words: list[str]) -> bytes:
        self.heard.append(" ".join(words[:2]))
        if words[0] == "REPLICAOF":
            self.follows = True
        if words[0] != "INFO":
            return OK
        if self.follows:
            return replica("a", self.other.address)
        return master("a", "" if self.promoted else self.other.address).replace(
            b"offset=9", b"offset=%d" % self.received
        )

    def _sentinel(self, number: int, words: list[str]) -> bytes:
        self.heard.append(f"{number} {words[1]}")
        if self.deaf_to.get(number) == words[1]:
            self.deaf.wait()
        if self.closes:
            raise OSError("closed")
        if words[1] == "FAILOVER":
            if self.obeys and number not in self.refuses:
                self.promoted = True
            return self.refuses.get(number, OK)
        if self.promoted and number == 0:
            self.looks_needed -= 1
        host, port = split_address(self.other.address if self.promoted and self.looks_needed < 0 else self.me.address)
        return b"*2\r\n" + bulk(host) + bulk(port)

    @property
    def addresses(self) -> list[str]:
        return [each.address for each in self.sentinels]

    @property
    def spec(self) -> Spec:
        return redis.parse({"address": self.me.address, "sentinels": self.addresses, "master": "shop"}, "here")

    def step(self, timeout: str = "20s") -> str:
        return STEP.format(address=self.me.address, sentinels=self.addresses, timeout=timeout)

    def told(self) -> list[str]:
        return [each for each in self.heard if each.endswith("FAILOVER")]


@pytest.fixture
def house() -> Iterator[House]:
    with ExitStack() as stack:
        made = House(stack)
        yield made
        made.deaf.set()


def test_writes_stay_paused_until_it_follows(house: House) -> None:
    """Anew with every look, however many the Sentinels take to name another; and then not a moment longer."""
    house.looks_needed = 5
    redis.prepare(house.spec, run_of())
    after = house.heard[house.heard.index("0 FAILOVER") :]
    looks = after[: after.index("REPLICAOF 127.0.0.1")]
    assert looks.count("0 GET-MASTER-ADDR-BY-NAME") >= 5
    for at, each in enumerate(looks):
        if each == "0 GET-MASTER-ADDR-BY-NAME":
            assert looks[at - 1] == "CLIENT PAUSE"
    assert house.heard.index("CLIENT PAUSE") < house.heard.index("0 FAILOVER")
    assert "CLIENT UNPAUSE" not in looks
    assert "CLIENT UNPAUSE" in after


def test_a_replica_that_does_not_catch_up_is_not_waited_for_without_end(house: House) -> None:
    """Nobody is told to fail over, writes go on, and the step fails."""
    house.received = 5
    with pytest.raises(StepFailed, match=f"no replica took over: {house.other.address} have not received everything"):
        redis.prepare(house.spec, hurried())
    assert house.told() == []
    assert house.heard[-1] == "CLIENT UNPAUSE"


def test_sentinels_that_name_nobody_in_time(house: House) -> None:
    """Not prepared; told, they may yet promote the replica: the pause is left to end by itself."""
    house.looks_needed = 1_000_000
    with pytest.raises(OutOfTime, match=f"no replica took over: the Sentinels name {house.me.address}"):
        redis.prepare(house.spec, hurried())
    assert house.told() == ["0 FAILOVER"]
    assert "CLIENT UNPAUSE" not in house.heard


def test_a_sentinel_that_does_not_answer_the_order_may_have_heard_it(house: House) -> None:
    """No other is told, or there would be two failovers; what they name decides."""
    house.deaf_to = {0: "FAILOVER"}
    with pytest.raises(OutOfTime, match="no replica took over"):
        redis.prepare(house.spec, hurried())
    assert house.told() == ["0 FAILOVER"]


def test_a_sentinel_that_refuses_or_is_not_there_is_passed_over(house: House) -> None:
    """Those have not begun: the next is told. One that says it is under way is believed to be at it."""
    house.deaf_to = {0: "GET-MASTER-ADDR-BY-NAME"}
    house.refuses = {1: b"-NOGOODSLAVE No suitable replica to promote\r\n"}
    house.looks_needed = -1  # the first Sentinel, which counts them, does not answer
    redis.prepare(house.spec, run_of())
    assert house.told() == ["1 FAILOVER", "2 FAILOVER"]
    house.promoted = house.follows = False
    house.heard.clear()
    house.deaf_to = {}
    house.refuses = dict.fromkeys(range(SENTINELS), b"-NOGOODSLAVE No suitable replica to promote\r\n")
    with pytest.raises(StepFailed, match=r"no replica took over: Sentinel .* says: NOGOODSLAVE"):
        redis.prepare(house.spec, run_of())
    assert house.heard[-1] == "CLIENT UNPAUSE"


def test_killed_between_telling_the_sentinels_and_following(house: House, tmp_path: Path) -> None:
    """The next agent finds a master without replicas, tells nobody again, and has it follow the one the Sentinels name."""
    house.looks_needed = 1_000_000
    with living(tmp_path, house.step(), lambda: house.follows) as (platform, agent):
        platform.announce()
        agent.until(lambda: house.told() == ["0 FAILOVER"])
        agent.kill()
        house.looks_needed = 3
        agent.up()
        agent.until(lambda: platform.approvals == [True])
        assert house.told() == ["0 FAILOVER"]


@pytest.mark.parametrize("named", [("x", "y"), ("127.0.0.1", ""), ("127.0.0.1", "²"), ("a\0b", "1"), ("", "9" * 5000)])
def test_an_address_that_is_none(house: House, named: tuple[str, str]) -> None:
    """Named by the Sentinels, it is a server that does not answer and no fault of ours."""
    for each in house.sentinels:
        each.answer = lambda _: b"*2\r\n" + bulk(named[0]) + bulk(named[1])
    house.follows = True
    assert redis.verify(house.spec, run_of(5)) is None


@pytest.mark.parametrize("number", ["9" * 5000, "²", "-1"])
def test_a_number_that_is_none(number: str) -> None:
    """Said by a server of its replicas, it counts as nothing and is no fault of ours."""
    info = f"role:master\r\nrun_id:a\r\nconnected_slaves:{number}\r\n"
    failing = pytest.raises(StepFailed, match="no replica can take over")
    with made_up(lambda words: bulk(info) if words[0] == "INFO" else OK) as odd, failing:
        redis.prepare(redis.parse({"address": odd.address}, "here"), run_of(5))
