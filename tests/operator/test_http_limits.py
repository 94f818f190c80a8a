"""The operator listener towards strangers: TLS, forwarded addresses, limits, deadlines, and its files."""

import asyncio
import http.client
import json
import os
import socket
import ssl
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from starlette.concurrency import run_in_threadpool

from forewarn.app.operator_token import keep_operator_token
from forewarn.app.server import running
from forewarn.app.service import Service
from forewarn.core.errors import InvalidSettings, StoreUnavailable
from forewarn.core.model import Token
from forewarn.endpoint.listener import host_in_url
from forewarn.operator import http_limits
from forewarn.operator.api import app as api
from forewarn.service.settings import load
from tests.operator.api.house import House, house
from tests.support.serve_process import run, serving
from tests.support.waiting import PATIENCE_S, until

STANDING = ["--store", "memory:", "--guest", "127.0.0.1:0"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    asked = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=here -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(["openssl", *asked.split(), "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


def place(home: House) -> tuple[str, int]:
    host, _, port = home.url.partition("://")[2].rpartition(":")
    return host, int(port)


# -- TLS


def test_over_tls_it_answers_and_in_the_clear_it_does_not(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    """A real certificate and real requests: health and the API over https, nothing over http."""
    cert, key = pair
    with serving(
        "--store", "memory:", "--state-dir", str(tmp_path), "--tls-cert", str(cert), "--tls-key", str(key)
    ) as service:
        assert service.operator.startswith("https://127.0.0.1:")
        port = int(service.operator.rpartition(":")[2])
        token = (tmp_path / "operator.token").read_text().strip()
        trust = ssl.create_default_context(cafile=str(cert))
        for path, headers, expected in (
            ("/healthz", {}, 200),
            ("/v1/scopes", {"Authorization": f"Bearer {token}"}, 200),
            ("/v1/scopes", {}, 401),
        ):
            secure = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=trust)
            secure.request("GET", path, headers=headers)
            assert secure.getresponse().status == expected
            secure.close()
        clear = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        clear.request("GET", "/healthz")
        with pytest.raises((http.client.HTTPException, OSError)):
            clear.getresponse()
        clear.close()
        assert service.stop()[0] == 0


@pytest.mark.parametrize(
    ("which", "text", "told"),
    [
        ("tls_cert", None, "cert.pem cannot be read: No such file"),
        ("tls_key", None, "key.pem cannot be read: No such file"),
        ("tls_cert", "nonsense", "cert.pem holds no certificate"),
        ("tls_key", "nonsense", "key.pem is no key without a password for"),
    ],
)
def test_a_certificate_that_does_not_work_is_said(
    tmp_path: Path, pair: tuple[Path, Path], which: str, text: str | None, told: str
) -> None:
    """Which setting, which file, what is wrong; exit code 2, before anybody is listened to."""
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    for file, good in zip(files.values(), pair, strict=True):
        file.write_bytes(good.read_bytes())
    files[which].unlink()
    if text is not None:
        files[which].write_text(text)
    result = run(
        "serve", *STANDING, "--tls-cert", str(files["tls_cert"]), "--tls-key", str(files["tls_key"]),
        "--operator", "127.0.0.1:0", "--state-dir", str(tmp_path),
    )  # fmt: skip
    assert result.returncode == 2
    assert f"{which}: {tmp_path}/{told}" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_key_with_a_password_is_not_asked_for(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    """A service has nobody at its terminal: it is refused."""
    locked = tmp_path / "locked.pem"
    made = ["openssl", "rsa", "-aes128", "-passout", "pass:sesame", "-in", str(pair[1]), "-out", str(locked)]
    subprocess.run(made, check=True, capture_output=True)
    result = run("serve", *STANDING, "--tls-cert", str(pair[0]), "--tls-key", str(locked), "--operator", "127.0.0.1:0")
    assert result.returncode == 2
    assert f"tls_key: {locked} is no key without a password" in result.stderr


# -- who is asking


def origin(home: House) -> str:
    """Where the audit says that the last change came from, for a caller who says 203.0.113.9."""
    home.ask(
        "POST", "/v1/maintenances", {"type": "Reboot", "targets": {"machines": ["shop/web-0"]}},
        headers={"X-Forwarded-For": "203.0.113.9"},
    )  # fmt: skip
    return next(str(e["origin"]) for e in home.get("/v1/audit")["items"] if "by token" in str(e["origin"]))


def test_whoever_says_they_were_forwarded_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on loopback, and not because a variable of uvicorn's says so."""
    monkeypatch.setitem(os.environ, "FORWARDED_ALLOW_IPS", "*")
    with house() as home:
        assert origin(home).startswith("127.0.0.1 by token")


def test_a_proxy_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is one, on this machine or as the setting names it, and no other."""
    monkeypatch.setitem(os.environ, "FORWARDED_ALLOW_IPS", "*")
    with house(behind_tls_proxy="true") as home:
        assert origin(home).startswith("203.0.113.9 by token")
    with house(behind_tls_proxy="true", operator_proxies="10.0.0.7") as home:
        assert origin(home).startswith("127.0.0.1 by token")


# -- limits


ASKED = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("said", [[], [b"\r\n"], [ASKED[:30]], [ASKED, b"\r\n"], [ASKED, ASKED[:30]]], ids=repr)
def test_who_does_not_finish_a_head_is_closed(monkeypatch: pytest.MonkeyPatch, said: list[bytes]) -> None:
    """Silent from the beginning, in the middle, or after a first request."""
    # What is whole must not be late on a busy machine: the short limit is for what never ends.
    if ASKED not in said:
        monkeypatch.setattr(http_limits, "HEAD_WITHIN_S", 0.3)
    with house() as home, socket.create_connection(place(home), timeout=PATIENCE_S) as slow:
        for piece in said:
            slow.sendall(piece)
            if piece == ASKED:
                answer = b""
                while not answer.endswith(b"}"):
                    more = slow.recv(65_536)
                    assert more, "it was closed before it was answered"
                    answer += more
                monkeypatch.setattr(http_limits, "HEAD_WITHIN_S", 0.3)
        assert not _receive(slow)


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65_536)
    except ConnectionResetError:
        return b""


def _send_until_closed(connection: socket.socket, piece: bytes, *, every_s: float = 0.0) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    with suppress(OSError):
        while time.monotonic() < deadline_s:
            connection.sendall(piece)
            time.sleep(every_s)
        pytest.fail("it was not closed")


def test_who_drips_a_head_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is for the whole head: a byte now and then does not move it."""
    monkeypatch.setattr(http_limits, "HEAD_WITHIN_S", 0.5)
    with house() as home, socket.create_connection(place(home), timeout=PATIENCE_S) as slow:
        with suppress(OSError):
            slow.sendall(ASKED[:-4])
        _send_until_closed(slow, b"x", every_s=0.05)
        assert not _receive(slow)


def test_a_request_that_takes_long_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline ends with the head: a stream lives on, and so does a slow body."""
    protocols: list[http_limits.GateProtocol] = []
    made = http_limits.GateProtocol.connection_made

    def noted(protocol: http_limits.GateProtocol, transport: asyncio.Transport) -> None:
        protocols.append(protocol)
        made(protocol, transport)

    monkeypatch.setattr(http_limits.GateProtocol, "connection_made", noted)
    with house() as home, socket.create_connection(place(home), timeout=PATIENCE_S) as slow:
        until(lambda: protocols and protocols[0]._deadline is not None)
        body = json.dumps({"name": "slow", "role": "viewer"}).encode()
        head = f"POST /v1/tokens HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {home.token}\r\n"
        slow.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:5])
        until(lambda: protocols[0]._in_body)
        assert protocols[0]._deadline is None
        slow.sendall(body[5:])
        assert slow.recv(65_536).startswith(b"HTTP/1.1 201")


def test_a_head_without_end_is_refused_and_a_large_body_is_not() -> None:
    """Heads are small; bodies have limits of their own."""
    with house() as home:
        with socket.create_connection(place(home), timeout=PATIENCE_S) as large:
            large.sendall(b"GET /healthz HTTP/1.1\r\n")
            _send_until_closed(large, b"X-Filler: " + b"x" * 1_000 + b"\r\n")
        comment = "# " + "x" * 300_000 + "\n"
        reply = home.ask("POST", "/v1/fleet?dry_run=true", comment, headers={"Content-Type": "application/toml"})
        assert reply.status == 200, reply.raw


def test_strangers_leave_guests_their_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many connections and no more; once they are gone, operators are answered again."""
    monkeypatch.setattr(http_limits, "MAX_CONNECTIONS", 10)
    with house() as home:
        before = _descriptors()
        with ExitStack() as many:
            ours = [many.enter_context(socket.create_connection(place(home), timeout=PATIENCE_S)) for _ in range(50)]
            for each in ours[10:]:
                assert not _receive(each)
            assert _descriptors() - before <= len(ours) + 10 + 5
        until(lambda: _is_healthy(home))


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _is_healthy(home: House) -> bool:
    try:
        return home.ask("GET", "/healthz").status == 200
    except (OSError, http.client.HTTPException):
        return False


def test_health_answers_while_every_thread_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty calls that hang do not make a live process look dead."""
    go, inside = threading.Event(), threading.Semaphore(0)

    async def hang(*arguments: object) -> object:
        def wait() -> None:
            inside.release()
            go.wait(PATIENCE_S)

        await run_in_threadpool(wait)
        return await run_in_threadpool(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(api, "run_in_threadpool", hang)
    with house() as home:
        askers = [threading.Thread(target=home.ask, args=("GET", "/v1/scopes")) for _ in range(40)]
        try:
            for asker in askers:
                asker.start()
            for _ in askers:
                assert inside.acquire(timeout=PATIENCE_S)
            assert home.ask("GET", "/healthz").status == 200
        finally:
            go.set()
            for asker in askers:
                asker.join()


def test_it_ends_in_time_with_a_stream_and_much_to_do(tmp_path: Path) -> None:
    """SIGTERM to exit within 5 s, with code 0: whoever listens or asks on does not hold it up."""
    with serving("--store", f"sqlite:{tmp_path}/f.db", "--state-dir", str(tmp_path)) as service, ExitStack() as open_:
        port = int(service.operator.rpartition(":")[2])
        token = (tmp_path / "operator.token").read_text().strip()
        asked = f"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        for _ in range(3):
            stream = open_.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            stream.sendall(f"GET /v1/stream {asked}".encode())
            assert b"200 OK" in stream.recv(65_536)
        begun = threading.Event()
        busy = [threading.Thread(target=_ask_on, args=(port, asked, begun), daemon=True) for _ in range(8)]
        for each in busy:
            each.start()
        assert begun.wait(PATIENCE_S)
        code, seconds = service.stop()
        for each in busy:
            each.join(PATIENCE_S)
            assert not each.is_alive()
    assert code == 0
    assert seconds < 5


def _ask_on(port: int, asked: str, begun: threading.Event) -> None:
    """Until nobody answers any more."""
    try:
        while True:
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
                connection.sendall(f"GET /v1/scopes {asked}".encode())
                if connection.recv(65_536):
                    begun.set()
    except OSError:
        return


# -- its files


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(load({"store": f"sqlite:{tmp_path}/f.db", "state_dir": str(tmp_path)}, {}))
    yield made
    made.close()


def test_a_folder_that_cannot_be_written_adds_no_token(tmp_path: Path) -> None:
    """One sentence, exit code 2, and no token that nobody has."""
    settings = load(
        {"store": f"sqlite:{tmp_path}/f.db", "state_dir": "/proc", "guest": "127.0.0.1:0", "operator": "127.0.0.1:0"},
        {},
    )
    made = Service(settings)
    try:
        with pytest.raises(InvalidSettings, match=r"state_dir: /proc/operator\.token cannot be written"), running(made):
            pass
        assert not list(made.store.tokens())
    finally:
        made.close()


@pytest.mark.parametrize("folder", ["/proc/nowhere", "a file"])
def test_a_state_directory_that_is_none_is_said(tmp_path: Path, folder: str) -> None:
    """Also where the store is elsewhere."""
    (tmp_path / "a file").touch()
    result = run("serve", *STANDING, "--operator", "127.0.0.1:0", "--state-dir", str(tmp_path / folder))
    assert result.returncode == 2
    assert f"state_dir: {tmp_path / folder} cannot be made" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_token_that_was_not_saved_is_replaced(tmp_path: Path, service: Service) -> None:
    """The file comes first: what it holds while the store does not know it opens nothing, and goes at the next start."""
    path = tmp_path / "operator.token"

    def fail(*_: object) -> None:
        raise StoreUnavailable("the disk is full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service.control, "add_token", fail)
        with pytest.raises(StoreUnavailable):
            keep_operator_token(service, path)
    unknown = path.read_text()
    keep_operator_token(service, path)
    assert path.read_text() != unknown
    tokens: list[Token] = list(service.store.tokens())
    assert len(tokens) == 1


def test_a_token_that_others_can_read_is_closed(
    tmp_path: Path, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """Mode 0600 again, and a warning; the token stays."""
    path = tmp_path / "operator.token"
    keep_operator_token(service, path)
    before = path.read_text()
    path.chmod(0o644)
    keep_operator_token(service, path)
    assert (stat.S_IMODE(path.stat().st_mode), path.read_text()) == (0o600, before)
    assert "could be read by others (mode 0644)" in caplog.text
    assert before.strip() not in caplog.text


def test_a_draft_that_somebody_left_is_not_written_through(tmp_path: Path, service: Service) -> None:
    """A link where the draft goes is removed, not followed."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f"operator.token.{os.getpid()}").symlink_to(victim)
    keep_operator_token(service, tmp_path / "operator.token")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "operator.token").is_symlink()


def test_the_database_is_the_users_alone(tmp_path: Path, service: Service) -> None:
    """Mode 0600 for a new file and what SQLite puts beside it; a file that exists keeps its mode."""
    service.store.hold()
    keep_operator_token(service, tmp_path / "operator.token")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("f.db*")}
    assert {"f.db", "f.db-wal", "f.db-shm"} <= modes.keys()
    assert set(modes.values()) == {0o600}


def test_the_address_left_is_one_to_connect_to() -> None:
    """A wildcard is an address to listen on, not to ask."""
    assert [host_in_url(host) for host in ("0.0.0.0", "::", "::1", "localhost", "10.0.0.1")] == [
        "127.0.0.1", "[::1]", "[::1]", "localhost", "10.0.0.1",
    ]  # fmt: skip


def test_stopping_takes_away_its_own_address_only(tmp_path: Path) -> None:
    """Somebody else who was started with the same folder stays findable."""
    path = tmp_path / "operator.url"
    for others, left in ((False, False), (True, True)):
        with house(state_dir=str(tmp_path)) as home:
            assert path.read_text().strip() == home.url
            if others:
                path.write_text("http://127.0.0.1:1")
        assert path.exists() is left


# -- what serve refuses


@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        (["--operator", "ops.example.com:8170"], {}, "--operator: 'ops.example.com:8170' begins with a name"),
        ([], {"FOREWARN_TOKEN": "short"}, "FOREWARN_TOKEN: the token is shorter than 16 characters"),
        ([], {"FOREWARN_TOKEN_FREE": "true"}, "token_free: `serve` always asks for tokens"),
        ([], {"FOREWARN_DEMO": "true"}, "demo: this is for `forewarn demo` alone"),
    ],
)
def test_what_is_not_safe_is_refused(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], told: str
) -> None:
    """Exit code 2 and a sentence."""
    standing = [*STANDING, "--operator", "127.0.0.1:0", "--state-dir", str(tmp_path)]
    result = run("serve", *standing, *arguments, **environment)
    assert result.returncode == 2
    assert told in result.stderr
    assert "Traceback" not in result.stderr
    assert "short\n" not in result.stderr
