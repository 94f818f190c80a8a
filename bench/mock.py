"""The mock people write instead of an emulator: one empty document for every caller. Standard library alone."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DOCUMENT = {"DocumentIncarnation": 1, "Events": []}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(DOCUMENT, separators=(",", ":")).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - what http.server calls it
        """Says nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"ready guest=http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
