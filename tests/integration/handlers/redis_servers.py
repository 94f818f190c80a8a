"""Real Redis servers and Sentinels, each with its own address."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forewarn.guest.handlers.redis_protocol import ErrorReply, Reply, parse_info, query
from forewarn.guest.handlers.redis_replication import join_address, split_address
from tests.support.own_network import clean_environment
from tests.support.waiting import PATIENCE_S, until

PORT, SENTINEL_PORT = 6379, 26379
# Fewer would be no majority.
SENTINELS = 3


class Server:
    """One server and its configuration file."""

    def __init__(self, folder: Path, address: str, lines: str, *, sentinel: bool = False) -> None:
        self.address = address
        self.password = ""
        host, port = split_address(address)
        self._program = "redis-sentinel" if sentinel else "redis-server"
        self._folder = folder / f"{host}-{port}"
        self._folder.mkdir()
        self._file = self._folder / "file.conf"
        self._file.write_text(
            f'bind {host}\nbind-source-addr {host}\nport {port}\ndir "{self._folder}"\nprotected-mode no\nlogfile log\n{lines}\n'
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.up()

    def up(self) -> None:
        self.process = subprocess.Popen(
            [self._program, str(self._file)], env=clean_environment(), stdout=subprocess.DEVNULL
        )
        until(self.answers)

    def answers(self) -> bool:
        try:
            self.say("PING")
        except OSError:
            return False
        except ErrorReply:
            return True
        return True

    def say(self, *words: str) -> Reply:
        return query(self.address, words, login=[self.password] if self.password else [], seconds=PATIENCE_S)

    @property
    def role(self) -> str:
        """The server's role, or "" while it does not answer: it closes its connections when roles change."""
        try:
            return parse_info(self.say("INFO"))["role"]
        except OSError:
            return ""

    @property
    def linked(self) -> bool:
        """Whether the server is a replica with a link; no while it does not answer."""
        try:
            return parse_info(self.say("INFO")).get("master_link_status") == "up"
        except OSError:
            return False

    def down(self) -> None:
        """Kill the server at once, as in a power failure."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def pair(folder: Path, *, password: str = "") -> Iterator[tuple[Server, Server]]:
    """Run a master and its replica, and yield them once they are linked."""
    secret = f"requirepass {password}\nmasterauth {password}\n" if password else ""
    common = f'save ""\nrepl-diskless-sync-delay 0\n{secret}'
    servers: list[Server] = []
    try:
        for number, more in enumerate(("", f"replicaof 127.0.0.20 {PORT}\n")):
            servers.append(Server(folder, f"127.0.0.{20 + number}:{PORT}", common + more))
            servers[-1].password = password
        first, second = servers
        until(lambda: second.linked)
        yield first, second
    finally:
        for each in servers:
            each.down()


@contextmanager
def watched(folder: Path) -> Iterator[tuple[Server, Server, list[Server]]]:
    """Run a pair and three Sentinels, and yield them once the Sentinels know each other and that the replica has its link.

    A server may stand still for a minute: no Sentinel takes it to be down, and promotes the replica without a request.
    """
    lines = (
        f"sentinel monitor shop 127.0.0.20 {PORT} 2\n"
        "sentinel down-after-milliseconds shop 60000\nsentinel failover-timeout shop 30000\n"
    )
    sentinels: list[Server] = []
    with pair(folder) as (first, second):
        try:
            for number in range(SENTINELS):
                address = join_address(f"127.0.0.{30 + number}", str(SENTINEL_PORT))
                sentinels.append(Server(folder, address, lines, sentinel=True))
            until(lambda: all(_knows(each) for each in sentinels))
            yield first, second, sentinels
        finally:
            for each in sentinels:
                each.down()


def _knows(sentinel: Server) -> bool:
    """Return whether the Sentinel knows the other Sentinels, and the replica so well that it would promote it."""
    replicas, others = sentinel.say("SENTINEL", "REPLICAS", "shop"), sentinel.say("SENTINEL", "SENTINELS", "shop")
    if not (isinstance(replicas, list) and isinstance(others, list)) or len(others) < SENTINELS - 1:
        return False
    fields = [dict(zip(each[::2], each[1::2], strict=True)) for each in replicas if isinstance(each, list)]
    return [(each["flags"], each["master-link-status"]) for each in fields] == [("slave", "ok")]
