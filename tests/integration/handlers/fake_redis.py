"""A Redis server over a real socket that answers what a test says."""

import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forewarn.guest.handlers.redis_replication import split_address

STEP = """
[[steps]]
name = "hand over"
required = true
timeout = "20s"
redis = {{ address = "{address}" }}
"""


class FakeRedis:
    """A server that answers what `answer` returns, and records every command in `heard`."""

    def __init__(self, answer: Callable[[list[str]], bytes]) -> None:
        self.answer = answer
        self.heard: list[list[str]] = []
        self.address = ""

    def count(self, word: str) -> int:
        return sum(words[0] == word for words in self.heard)


class _Handler(socketserver.StreamRequestHandler):
    fake: FakeRedis

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := self.rfile.readline():
                words = [
                    self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2].decode() for _ in range(int(line[1:]))
                ]
                self.fake.heard.append(words)
                self.wfile.write(self.fake.answer(words))


class TcpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def fake_redis(answer: Callable[[list[str]], bytes]) -> Iterator[FakeRedis]:
    fake = FakeRedis(answer)
    handler = type("Handler", (_Handler,), {"fake": fake})
    with TcpServer(("127.0.0.1", 0), handler) as server:
        fake.address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()


def bulk(text: str) -> bytes:
    return f"${len(text.encode())}\r\n{text}\r\n".encode()


def master(run_id: str, replica: str = "") -> bytes:
    host, port = split_address(replica)
    slaves = f"connected_slaves:1\r\nslave0:ip={host},port={port},state=online,offset=9,lag=0\r\n" if replica else ""
    return bulk(f"role:master\r\nrun_id:{run_id}\r\nmaster_repl_offset:9\r\n{slaves}")


def replica(run_id: str, of: str, link: str = "up") -> bytes:
    host, port = split_address(of)
    return bulk(
        f"role:slave\r\nrun_id:{run_id}\r\nmaster_host:{host}\r\nmaster_port:{port}\r\nmaster_link_status:{link}\r\n"
    )
