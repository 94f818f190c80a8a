"""A real HTTP receiver of webhooks, in a thread or as a process of its own, which a test may kill."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from standardwebhooks.webhooks import Webhook


class Receiver(ThreadingHTTPServer):
    """Verifies each message with the secrets it knows and appends it with its webhook-id to `accepted`; answers `status`.

    If `hook_secrets` has the secret of each hook by its short id, a message is verified with the secret of its hook.
    """

    daemon_threads = True

    def __init__(self, secrets: list[str], log: Path | None = None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.secrets = secrets
        self.hook_secrets: dict[str, str] = {}
        self.status = 204
        self.headers: dict[str, str] = {}
        self.accepted: list[tuple[str, dict[str, Any]]] = []
        self.refused = 0
        self._log = log

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/in"

    @property
    def received(self) -> list[dict[str, Any]]:
        return [message for _, message in self.accepted]

    def accept(self, body: bytes, headers: dict[str, str]) -> int:
        if not 200 <= self.status < 300:
            self.refused += 1
            return self.status
        hook = headers["webhook-id"].split("_")[1]
        for secret in [self.hook_secrets[hook]] if self.hook_secrets else self.secrets:
            message = Webhook(secret).verify(body, headers)  # an exception answers 500 and fails the delivery
        self.accepted.append((headers["webhook-id"], message))
        if self._log is not None:
            with self._log.open("a") as file:
                file.write(json.dumps({"webhook-id": headers["webhook-id"], **message}) + "\n")
        return self.status


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        receiver = self.server
        assert isinstance(receiver, Receiver)
        body = self.rfile.read(int(self.headers["content-length"]))
        status = receiver.accept(body, {name.lower(): value for name, value in self.headers.items()})
        self.send_response(status)
        for name, value in receiver.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the overridden method
        """Keep quiet."""


@contextmanager
def receiving(*secrets: str) -> Iterator[Receiver]:
    """Run a receiver in a thread."""
    with Receiver(list(secrets)) as receiver:
        Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield receiver
        finally:
            receiver.shutdown()


def main() -> None:
    """Run as a process: `PORT LOG HOOK=SECRET...`; print the port when it listens."""
    port, log, *secrets = sys.argv[1:]
    with Receiver([], Path(log), int(port)) as receiver:
        receiver.hook_secrets = dict(each.split("=", 1) for each in secrets)
        print(receiver.server_address[1], flush=True)
        receiver.serve_forever()


if __name__ == "__main__":
    main()
