"""Messages go to addresses that were checked, over TLS that is checked, within limits, and never further."""

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path

import pytest

from forewarn.app.hook_transport import MAX_ERROR_CHARS, HttpTransport, retry_after_s
from forewarn.core.hooks import AllowedTargets, entry_message, secret_text, signed_headers
from forewarn.service.hook_sender import DeliveryFailed, Reply
from tests.support.ports import reserved_port
from tests.support.records import entry, hook
from tests.support.webhook_receiver import receiving

LOOPBACK = AllowedTargets(networks=(ip_network("127.0.0.0/8"),))
SECRET = secret_text(b"s" * 32)


def post(transport: HttpTransport, url: str) -> Reply:
    return transport.post(url, {"x-test": "1"}, b"{}")


def port_of(url: str) -> str:
    return url.rpartition(":")[2].partition("/")[0]


@contextmanager
def serving(answer: bytes, *, then: bytes = b"", every_s: float = 0.01) -> Iterator[str]:
    """Answer each connection with these bytes, then with `then` again and again until it is closed."""
    done = threading.Event()

    def serve(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with closing(connection):
                connection.recv(65_536)
                try:
                    connection.sendall(answer)
                    while then and not done.wait(every_s):
                        connection.sendall(then)
                except OSError:
                    continue

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/in"
        done.set()
        server.shutdown(socket.SHUT_RDWR)


def test_a_message_arrives_as_it_was_signed() -> None:
    """A real receiver verifies it with the reference library."""
    with receiving(SECRET) as receiver:
        message = entry_message(hook(secrets=(SECRET,)), entry(id=5), None, "/f")
        headers = signed_headers(message, (SECRET,), int(time.time()))
        assert HttpTransport(LOOPBACK, 30).post(receiver.url, headers, message.body).status == 204
        assert receiver.received[0]["data"]["entry"] == 5
        receiver.status, receiver.headers = 503, {"retry-after": "17"}
        assert post(HttpTransport(LOOPBACK, 30), receiver.url) == Reply(503, "", 17.0)
        receiver.headers = {"retry-after": "Fri, 31 Dec 2100 23:59:59 GMT"}
        assert post(HttpTransport(LOOPBACK, 30), receiver.url).retry_after_s > 365 * 86_400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 37.0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 37.0),
        ("Sun, 06 Nov 1994 08:48:00 GMT", 0.0),
        ("soon", 0.0),
        ("-5", 0.0),
        ("1" * 400, 0.0),
        ("", 0.0),
        ("Sun, 99 Nov 1994 08:49:37 GMT", 0.0),
    ],
)
def test_a_receiver_may_ask_to_wait_until_a_date(text: str, seconds: float) -> None:
    """Seconds or an HTTP date; anything else asks for nothing."""
    assert retry_after_s(text, "Sun, 06 Nov 1994 08:49:00 GMT") == seconds
    assert retry_after_s("Sun, 06 Nov 1994 08:49:37 GMT", "") == 0.0, (
        "a date says nothing without the time of the receiver"
    )


def test_a_target_may_be_allowed_with_one_port_only() -> None:
    """Another port of the same host is refused, before and after the name is resolved."""
    with serving(b"HTTP/1.1 200 OK\r\n\r\n") as url:
        port = int(port_of(url))
        for allowed, other in ((LOOPBACK, AllowedTargets()), (AllowedTargets(), LOOPBACK)):
            targets = AllowedTargets(ports={port: allowed, port + 1: other})
            transport = HttpTransport(targets, 30, resolve=lambda *_: ["127.0.0.1"])
            target = f"http://name.invalid:{port}/in"
            if allowed is LOOPBACK:
                assert post(transport, target).status == 200
            else:
                assert "not in the setting hook_targets with this port" in transport.why_not(url)
                with pytest.raises(DeliveryFailed, match="is not in the setting hook_targets with this port"):
                    post(transport, target)


def test_private_addresses_are_refused_after_resolution() -> None:
    """Whatever the name: its addresses count, and all of them."""
    with receiving(SECRET) as receiver:
        for addresses in (["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["fe80::1%eth0"]):
            transport = HttpTransport(AllowedTargets(), 30, resolve=lambda *_, found=addresses: found)
            with pytest.raises(DeliveryFailed, match="not a public address"):
                post(transport, f"https://public.example:{port_of(receiver.url)}/in")
        with pytest.raises(DeliveryFailed, match="only https"):
            post(HttpTransport(AllowedTargets(), 30), receiver.url)
        with pytest.raises(DeliveryFailed, match="is not in the setting hook_targets"):
            post(HttpTransport(AllowedTargets(frozenset({"a.example"})), 30), receiver.url)
        assert receiver.received == []


def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    """The name is resolved once: an answer that changes afterwards leads nowhere."""
    resolved = []

    def resolve(host: str, port: int) -> list[str]:
        resolved.append((host, port))
        return ["127.0.0.1"] if len(resolved) == 1 else ["127.0.0.99"]

    with serving(b"HTTP/1.1 200 OK\r\n\r\n") as url:
        target = f"http://no-such-name.invalid:{port_of(url)}/in"
        assert post(HttpTransport(LOOPBACK, 30, resolve=resolve), target).status == 200
    assert resolved == [("no-such-name.invalid", int(port_of(url)))]


def test_a_redirect_is_not_followed() -> None:
    """It could lead to an address that is not allowed; the receiver's final URL belongs into the hook."""
    with (
        receiving(SECRET) as receiver,
        serving(f"HTTP/1.1 307 Moved\r\nLocation: {receiver.url}\r\n\r\n".encode()) as url,
    ):
        reply = post(HttpTransport(LOOPBACK, 30), url)
        assert reply == Reply(307, "redirects are not followed, use the final URL")
        assert receiver.received == []


@pytest.mark.parametrize(
    ("answer", "then"),
    [(b"", b""), (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), (b"HTTP/1.1 500 No\r\n\r\n", b"x"), (b"", b"H")],
    ids=["closes", "endless headers", "endless body", "drips"],
)
def test_a_receiver_that_does_not_answer_properly_is_cut_off(answer: bytes, then: bytes) -> None:
    """By the time limit or by the limits on its response; then the message counts as not delivered."""
    with (
        serving(answer, then=then) as url,
        pytest.raises(DeliveryFailed, match=r"no complete response|cannot be reached"),
    ):
        post(HttpTransport(LOOPBACK, 0.5), url)


def test_only_the_beginning_of_a_response_is_kept() -> None:
    """As text that fits on a line."""
    with serving(b"HTTP/1.1 400 No\r\nRetry-After: soon\r\n\r\n" + b"\x00\n" + b"x" * 100_000) as url:
        reply = post(HttpTransport(LOOPBACK, 30), url)
    assert reply == Reply(400, "  " + "x" * (MAX_ERROR_CHARS - 2))


def test_a_receiver_that_is_not_there_is_a_failure() -> None:
    """A port without a listener, a name without an address, a name that cannot be one."""
    with reserved_port() as reserved, pytest.raises(DeliveryFailed, match="cannot be reached"):
        post(HttpTransport(LOOPBACK, 30), f"http://127.0.0.1:{reserved.getsockname()[1]}/")
    with pytest.raises(DeliveryFailed, match="the name has no address"):
        post(HttpTransport(LOOPBACK, 30, resolve=lambda *_: []), "http://name/")
    with pytest.raises(DeliveryFailed, match="cannot be reached"):
        post(HttpTransport(LOOPBACK, 30), f"http://{'x' * 70}.example/")


def test_certificates_are_checked(tmp_path: Path) -> None:
    """A certificate that this machine does not trust is refused, and nothing is sent."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    extra = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", *options.split(), *extra], check=True, capture_output=True)
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(2))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        url = f"https://localhost:{server.server_address[1]}/in"
        with pytest.raises(DeliveryFailed, match="certificate"):
            post(HttpTransport(LOOPBACK, 30, resolve=lambda *_: ["127.0.0.1"]), url)
        assert bodies == []
        trusting = ssl.create_default_context(cafile=str(cert))
        transport = HttpTransport(LOOPBACK, 30, resolve=lambda *_: ["127.0.0.1"], tls=trusting)
        assert post(transport, url).status == 200
        assert bodies == [b"{}"]
        server.shutdown()
