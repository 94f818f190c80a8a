"""A web service: `python web_service.py ADDRESS PORT NAME` answers every request with NAME, after a little work."""

import socketserver
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORK_S, SLOW_S = 0.02, 0.3


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        time.sleep(SLOW_S if self.path == "/slow" else WORK_S)
        body = sys.argv[3].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class Shop(ThreadingHTTPServer):
    request_queue_size = 64

    def server_bind(self) -> None:
        """Bind without a look-up of the own name, which is slow without a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: object, client_address: object) -> None:
        """A health check that hangs up."""


if __name__ == "__main__":
    Shop((sys.argv[1], int(sys.argv[2])), Answer).serve_forever()
