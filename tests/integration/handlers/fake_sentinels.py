"""A Redis master, its replica and three Sentinels over real sockets, which answer what a test says."""

import threading
from contextlib import ExitStack

from forewarn.guest.handlers import redis
from forewarn.guest.handlers.redis_replication import Spec, split_address
from tests.integration.handlers.fake_redis import FakeRedis, bulk, fake_redis, master, replica

SENTINELS = 3
OK = b"+OK\r\n"
STEP = """
[[steps]]
name = "hand over"
required = true
timeout = "{timeout}"
redis = {{ address = "{address}", sentinels = {sentinels}, master = "shop" }}
"""


class FakeSentinels:
    """A master, its replica and three Sentinels; all that they hear stands in one list, in order."""

    def __init__(self, stack: ExitStack) -> None:
        self.heard: list[str] = []
        # What the replica has received of nine.
        self.received = 9
        # Looks that the Sentinels need after they were failovers before they name the replica.
        self.looks_needed = 0
        self.promoted = self.follows = False
        self.obeys = True
        self.ignored_commands: list[str] = []  # the first of each gets no answer
        self.refuses: dict[int, bytes] = {}
        self.closes = False
        self.ignores: dict[int, str] = {}  # the command to which a Sentinel gives no answer: it closes the connection
        self.deaf = threading.Event()
        self.deaf_to: dict[int, str] = {}  # the command at which a Sentinel hangs until `deaf` is set
        self.other = stack.enter_context(
            fake_redis(lambda _: master("b") if self.promoted else replica("b", "127.0.0.1:9"))
        )
        self.me = stack.enter_context(fake_redis(self._me))
        self.sentinels: list[FakeRedis] = []
        for number in range(SENTINELS):

            def answer(words: list[str], number: int = number) -> bytes:
                return self._sentinel(number, words)

            self.sentinels.append(stack.enter_context(fake_redis(answer)))

    def _me(self, words: list[str]) -> bytes:
        self.heard.append(" ".join(words[:2]))
        if words[0] in self.ignored_commands:
            self.ignored_commands.remove(words[0])
            raise OSError("closed")
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
        if self.closes or self.ignores.get(number) == words[1]:
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

    def failovers(self) -> list[str]:
        return [each for each in self.heard if each.endswith("FAILOVER")]
