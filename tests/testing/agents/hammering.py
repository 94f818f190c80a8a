"""Wrong: it asks for much at once with every poll, and at once again when it is turned away."""

import socket

from tests.testing.agents.toy import Json, Toy

# In one piece: they are read at the same moment, however busy the machine is.
AT_ONCE = b"GET /metadata/versions HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\n\r\n" * 10


class Hammering(Toy):
    after_failure_s = 0.0

    def turn(self) -> None:
        with socket.create_connection((self.host, int(self.port)), timeout=self.patience_s) as connection:
            connection.sendall(AT_ONCE)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass
        super().turn()

    def ask(self, method: str, body: str = "") -> Json:
        while True:
            try:
                return super().ask(method, body)
            except ValueError:
                continue


if __name__ == "__main__":
    Hammering().run()
