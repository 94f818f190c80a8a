"""The operator listener: TLS, forwarded addresses, its end, and the files it keeps."""

import http.client
import os
import socket
import ssl
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forewarn.app.operator_token import keep_operator_token
from forewarn.app.server import running
from forewarn.app.service import Service
from forewarn.core import model
from forewarn.core.change import Change
from forewarn.core.errors import InvalidSettings, StoreUnavailable
from forewarn.endpoint.listener import host_in_url
from forewarn.operator.api.access import digest
from forewarn.operator.listener import listening
from forewarn.operator.open_connections import OpenConnections
from forewarn.service.settings import load
from forewarn.store import ScopeQuery
from forewarn.store.memory import MemoryStore
from tests.support.running_service import FLEET, RunningService, running_service
from tests.support.serve_process import run, serving
from tests.support.waiting import PATIENCE_S

IN_MEMORY = ["--store", "memory:", "--guest", "127.0.0.1:0"]


# -- TLS


@pytest.mark.parametrize(
    ("settings", "host", "expected"),
    [
        ({"behind_tls_proxy": "true"}, "ops.example", "max-age=31536000"),
        ({"behind_tls_proxy": "true", "hsts": "1d"}, "ops.example", "max-age=86400"),
        ({"behind_tls_proxy": "true", "hsts": "0"}, "ops.example", None),
        ({"behind_tls_proxy": "true"}, "localhost:8170", None),
        ({}, "ops.example", None),
    ],
)
def test_browsers_are_told_to_use_tls(settings: dict[str, str], host: str, expected: str | None) -> None:
    """In every response, where the service has TLS; not for localhost, where other programs listen without TLS."""
    with running_service(FLEET, None, **settings) as service:
        for path in ("/healthz", "/v1/scopes", "/v1/docs", "/login", "/nowhere", "/v1/%0A"):
            headers = service.request("GET", path, headers={"Host": host}).headers
            assert headers.get("strict-transport-security") == expected, path


def test_with_a_certificate_it_answers_over_tls_only(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    """Health and the API over https, nothing over http."""
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
        secure = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=trust)
        secure.request("GET", "/healthz", headers={"Host": "ops.example"})
        assert secure.getresponse().headers["Strict-Transport-Security"] == "max-age=31536000"
        secure.close()
        clear = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        clear.request("GET", "/healthz")
        with pytest.raises((http.client.HTTPException, OSError)):
            clear.getresponse()
        clear.close()
        assert service.stop()[0] == 0


@pytest.mark.parametrize(
    ("which", "text", "message"),
    [
        ("tls_cert", None, "cert.pem cannot be read: No such file"),
        ("tls_key", None, "key.pem cannot be read: No such file"),
        ("tls_cert", "nonsense", "cert.pem holds no certificate"),
        ("tls_key", "nonsense", "key.pem is not the key of"),
    ],
)
def test_a_certificate_that_does_not_work_is_refused(
    tmp_path: Path, pair: tuple[Path, Path], which: str, text: str | None, message: str
) -> None:
    """The message names the setting, the file and the problem; exit code 2, before anything listens."""
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    for file, good in zip(files.values(), pair, strict=True):
        file.write_bytes(good.read_bytes())
    files[which].unlink()
    if text is not None:
        files[which].write_text(text)
    if files["tls_key"].exists():
        files["tls_key"].chmod(0o600)
    result = run(
        "serve", *IN_MEMORY, "--tls-cert", str(files["tls_cert"]), "--tls-key", str(files["tls_key"]),
        "--operator", "127.0.0.1:0", "--state-dir", str(tmp_path),
    )  # fmt: skip
    assert result.returncode == 2
    assert f"{which}: {tmp_path}/{message}" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_key_with_a_password_is_refused(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    """A service has no terminal to ask for it."""
    locked = tmp_path / "locked.pem"
    command = ["openssl", "rsa", "-aes128", "-passout", "pass:sesame", "-in", str(pair[1]), "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    result = run("serve", *IN_MEMORY, "--tls-cert", str(pair[0]), "--tls-key", str(locked), "--operator", "127.0.0.1:0")
    assert result.returncode == 2
    assert f"tls_key: {locked} is not the key of" in result.stderr


# -- addresses of callers


def origin(service: RunningService) -> str:
    """Return the origin that the audit log has of a request that claims to come from 203.0.113.9."""
    service.request(
        "POST", "/v1/maintenances", {"type": "Reboot", "targets": {"machines": ["shop/web-0"]}},
        headers={"X-Forwarded-For": "203.0.113.9"},
    )  # fmt: skip
    return next(str(e["origin"]) for e in service.get("/v1/audit")["items"] if "by token" in str(e["origin"]))


def test_a_forwarded_address_is_ignored_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on loopback, and whatever uvicorn's own variable says."""
    monkeypatch.setitem(os.environ, "FORWARDED_ALLOW_IPS", "*")
    with running_service() as service:
        assert origin(service).startswith("127.0.0.1 by token")


def test_a_forwarded_address_of_a_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy on this machine, or the one that the setting names, and no other."""
    monkeypatch.setitem(os.environ, "FORWARDED_ALLOW_IPS", "*")
    with running_service(behind_tls_proxy="true") as service:
        assert origin(service).startswith("203.0.113.9 by token")
    with running_service(behind_tls_proxy="true", operator_proxies="10.0.0.7") as service:
        assert origin(service).startswith("127.0.0.1 by token")


class HangingStore(MemoryStore):
    """Its lists of scopes hang until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.release, self.inside = threading.Event(), threading.Semaphore(0)

    def scopes_page(self, query: ScopeQuery) -> list[model.Scope]:
        self.inside.release()
        self.release.wait()
        return super().scopes_page(query)


def test_health_answers_while_every_thread_is_busy() -> None:
    """Forty requests that hang do not make a live process look dead."""
    store = HangingStore()
    with running_service(in_store=store) as service:
        callers = [threading.Thread(target=service.request, args=("GET", "/v1/scopes")) for _ in range(40)]
        try:
            for caller in callers:
                caller.start()
            for _ in callers:
                assert store.inside.acquire(timeout=PATIENCE_S)
            assert service.request("GET", "/healthz").status == 200
        finally:
            store.release.set()
            for caller in callers:
                caller.join()


def test_it_ends_in_time_with_streams_and_requests_open(tmp_path: Path) -> None:
    """From SIGTERM to exit with code 0 it waits for less than 5 s."""
    with serving("--store", f"sqlite:{tmp_path}/f.db", "--state-dir", str(tmp_path)) as service, ExitStack() as open_:
        port = int(service.operator.rpartition(":")[2])
        token = (tmp_path / "operator.token").read_text().strip()
        head = f"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        for _ in range(3):
            stream = open_.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            stream.sendall(f"GET /v1/stream {head}".encode())
            assert b"200 OK" in stream.recv(65_536)
        begun, ended = threading.Event(), threading.Event()
        arguments = (port, head, begun, ended)
        busy = [threading.Thread(target=_request_repeatedly, args=arguments, daemon=True) for _ in range(8)]
        for each in busy:
            each.start()
        assert begun.wait(PATIENCE_S)
        code, waited_s = service.stop()
        ended.set()
        for each in busy:
            each.join(PATIENCE_S)
            assert not each.is_alive()
    assert code == 0
    assert waited_s < 5


def _request_repeatedly(port: int, head: str, begun: threading.Event, ended: threading.Event) -> None:
    """Send requests until the service is gone, and no longer: another program may get its port."""
    try:
        while not ended.is_set():
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
                connection.sendall(f"GET /v1/scopes {head}".encode())
                if connection.recv(65_536):
                    begun.set()
    except OSError:
        return


def test_a_listener_that_ends_late_ends_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the block may give up waiting for the thread of the listener, which then still has its socket."""
    failures: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    begun, released = threading.Event(), threading.Event()

    async def hold_up_everything(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        released.wait(PATIENCE_S)
        await Response()(scope, receive, send)

    bound = socket.create_server(("127.0.0.1", 0))
    address = bound.getsockname()
    others = threading.enumerate()  # the listener of an earlier test may still be ending
    with ExitStack() as opened:
        with listening(
            hold_up_everything,
            bound,
            tls_cert=None,
            tls_key=None,
            trusted_proxies=None,
            open_connections=OpenConnections(),
            stop_within_s=0.0,
        ):
            (thread,) = [each for each in threading.enumerate() if each.name == "operator" and each not in others]
            opened.enter_context(socket.create_connection(address, timeout=PATIENCE_S)).sendall(
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
            )
            assert begun.wait(PATIENCE_S)
        released.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert [each for each in failures if each.thread is thread] == []


# -- files in the state directory


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(load({"store": f"sqlite:{tmp_path}/f.db", "state_dir": str(tmp_path)}, {}))
    yield service
    service.close()


def test_a_state_directory_that_cannot_be_written_adds_no_token(tmp_path: Path) -> None:
    """The start is refused, and the store has no token that no file holds."""
    settings = load(
        {"store": f"sqlite:{tmp_path}/f.db", "state_dir": "/proc", "guest": "127.0.0.1:0", "operator": "127.0.0.1:0"},
        {},
    )
    service = Service(settings)
    try:
        with (
            pytest.raises(InvalidSettings, match=r"state_dir: /proc/operator\.token cannot be written"),
            running(service),
        ):
            pass
        assert not list(service.store.tokens())
    finally:
        service.close()


@pytest.mark.parametrize("folder", ["/proc/nowhere", "a file"])
def test_a_state_directory_that_cannot_be_made_is_refused(tmp_path: Path, folder: str) -> None:
    """Also where the store is not in it."""
    (tmp_path / "a file").touch()
    result = run("serve", *IN_MEMORY, "--operator", "127.0.0.1:0", "--state-dir", str(tmp_path / folder))
    assert result.returncode == 2
    assert f"state_dir: {tmp_path / folder} cannot be made" in result.stderr
    assert "Traceback" not in result.stderr


class FullStore(MemoryStore):
    """Saves nothing while it is full."""

    full = True

    def apply(self, change: Change) -> None:
        if self.full:
            raise StoreUnavailable("the disk is full")
        super().apply(change)


def test_a_token_that_was_not_saved_is_replaced(tmp_path: Path) -> None:
    """The file is written first: a token in it that the store does not know is replaced at the next start."""
    path, store = tmp_path / "operator.token", FullStore()
    service = Service(load({"store": "memory:", "state_dir": str(tmp_path)}, {}), store=store)
    with pytest.raises(StoreUnavailable):
        keep_operator_token(service, path)
    unknown = path.read_text()
    store.full = False
    keep_operator_token(service, path)
    assert path.read_text() != unknown
    assert [token.digest for token in store.tokens()] == [digest(path.read_text().strip())]
    service.close()


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
    assert "(mode 0644); its mode is 0600 now" in caplog.text
    assert before.strip() not in caplog.text


def test_a_link_in_the_way_of_the_token_is_not_followed(tmp_path: Path, service: Service) -> None:
    """A link where the temporary file goes is removed."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f"operator.token.{os.getpid()}").symlink_to(victim)
    keep_operator_token(service, tmp_path / "operator.token")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "operator.token").is_symlink()


def test_the_database_is_the_users_alone(tmp_path: Path, service: Service) -> None:
    """Mode 0600 for a new file and for the files that SQLite puts beside it."""
    service.store.claim()
    keep_operator_token(service, tmp_path / "operator.token")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("f.db*")}
    assert {"f.db", "f.db-wal", "f.db-shm"} <= modes.keys()
    assert set(modes.values()) == {0o600}


def test_the_published_address_can_be_connected_to() -> None:
    """A wildcard is an address to listen on, not to connect to."""
    assert [host_in_url(host) for host in ("0.0.0.0", "::", "::1", "localhost", "10.0.0.1")] == [
        "127.0.0.1", "[::1]", "[::1]", "localhost", "10.0.0.1",
    ]  # fmt: skip


def test_stopping_removes_its_own_address_only(tmp_path: Path) -> None:
    """The address of another service that was started with the same directory stays."""
    path = tmp_path / "operator.url"
    for other_started, remains in ((False, False), (True, True)):
        with running_service(state_dir=str(tmp_path)) as service:
            assert path.read_text().strip() == service.url
            if other_started:
                path.write_text("http://127.0.0.1:1")
        assert path.exists() is remains


# -- what serve refuses


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--operator", "ops.example.com:8170"], {}, "--operator: 'ops.example.com:8170' begins with a name"),
        ([], {"FOREWARN_TOKEN": "short"}, "FOREWARN_TOKEN: the token is shorter than 16 characters"),
        ([], {"FOREWARN_TOKEN_FREE": "true"}, "token_free: `serve` always requires tokens"),
        ([], {"FOREWARN_DEMO": "true"}, "demo: this setting is only for `forewarn demo`"),
    ],
)
def test_unsafe_settings_are_refused(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], message: str
) -> None:
    """Exit code 2 and one sentence."""
    options = [*IN_MEMORY, "--state-dir", str(tmp_path)]
    result = run("serve", *options, *(arguments or ["--operator", "127.0.0.1:0"]), **environment)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert "short\n" not in result.stderr
