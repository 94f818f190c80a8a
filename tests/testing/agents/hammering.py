"""Wrong: it sends many requests with every poll, and retries at once after a 429."""

import socket

from tests.testing.agents.toy import Json, Toy

# In one write, so that the service reads them at the same moment even on a busy machine.
AT_ONCE = b"GET /metadata/versions HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\n\r\n" * 10


class Hammering(Toy):
    after_failure_s = 0.0

    def poll(self) -> None:
        with socket.create_connection((self.host, int(self.port)), timeout=self.patience_s) as connection:
            connection.sendall(AT_ONCE)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass
        super().poll()

    def send(self, method: str, body: str = "") -> Json:
        while True:
            try:
                return super().send(method, body)
            except ValueError:
                continue


if __name__ == "__main__":
    Hammering().run()
