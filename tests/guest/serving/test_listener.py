"""The sockets of clients: file modes, folders, left-over files, and limits on every connection."""

import socket
import stat
import threading
from pathlib import Path

import pytest

from forewarn.guest.client import Client
from forewarn.guest.errors import ConfigError
from forewarn.guest.main import main
from forewarn.guest.serving.clients import Clients
from forewarn.guest.serving.listener import MAX_CONNECTIONS, Listener, socket_problem
from forewarn.guest.serving.settings import ServedClient
from tests.guest.serving.local_agent import harness, unix_connection
from tests.support.fake_endpoint import E1
from tests.support.guest_service import get
from tests.support.waiting import until

READER = ServedClient("reader", port=0)


def test_a_socket_file_has_its_mode_and_serves_the_sdk(tmp_path: Path) -> None:
    """The file's mode decides who may connect; the SDK takes `unix:` and the path as its endpoint."""
    path = tmp_path / "one.sock"
    with harness(tmp_path, ServedClient("one", path, mode=0o660, approves=True)) as served:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        served.endpoint.announce()
        served.run(for_s=1)
        client = Client(f"unix:{path}")
        served.closing.callback(client.close)
        (event,) = client.document().events
        client.approve(event)
        assert served.agent.state.client_approvals == {E1: ["one"]}
    assert not path.exists(), "a socket file goes with its agent"


def test_the_host_of_a_socket_file_is_any(tmp_path: Path) -> None:
    """Programs put different names there; no browser can connect to a file."""
    path = tmp_path / "one.sock"
    with harness(tmp_path, ServedClient("one", path), READER) as served:
        served.run(for_s=1)
        request = get().replace(b"Host: 169.254.169.254", b"Host: agent")
        with unix_connection(path) as connection:
            connection.sendall(request)
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert served.connect("reader").ask(request).startswith(b"HTTP/1.1 400")


def test_a_file_that_a_killed_agent_left_is_replaced(tmp_path: Path) -> None:
    """Nobody listens there any more."""
    path = tmp_path / "one.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with harness(tmp_path, ServedClient("one", path)) as served:
        served.run(for_s=1)
        with unix_connection(path) as connection:
            connection.sendall(get())
            assert connection.recv(12) == b"HTTP/1.1 200"


def test_a_busy_programs_socket_is_left_alone(tmp_path: Path) -> None:
    """A program that accepts no connection now still has its socket; the agent does not wait for it either."""
    path = tmp_path / "one.sock"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as queued:
        busy.bind(str(path))
        busy.listen(0)
        queued.connect(str(path))
        with pytest.raises(OSError, match="another program listens there"):
            started(ServedClient("one", path))
        assert path.exists()


def started(client: ServedClient) -> None:
    clients = Clients([client])
    listener = Listener(clients, None)  # type: ignore[arg-type]
    try:
        listener.start()
    finally:
        listener.close()


def test_another_programs_socket_is_left_alone(tmp_path: Path) -> None:
    """A socket in use, a port in use and a file that is no socket are errors, and stay as they are."""
    path = tmp_path / "one.sock"
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen()
        with pytest.raises(OSError, match=r"client 'one': .*one\.sock: another program listens there"):
            started(ServedClient("one", path))
        assert path.exists()
    datagrams = tmp_path / "log.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as alive:
        alive.bind(str(datagrams))
        with pytest.raises(OSError, match=r"log\.sock: another program listens there"):
            started(ServedClient("one", datagrams))
        assert datagrams.exists()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"client 'one': 127.0.0.1:{port}: Address already in use"):
            started(ServedClient("one", port=port))
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(ConfigError, match="exists and is not a socket"):
        started(ServedClient("one", file))
    assert file.read_text() == "precious"


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """Another user could put a socket of their own into the place of the agent's."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert "other users may write" in socket_problem(ServedClient("one", folder / "one.sock"))
    folder.chmod(0o1777)
    assert "other users may write" in socket_problem(ServedClient("one", folder / "one.sock"))
    assert "there is no folder" in socket_problem(ServedClient("one", tmp_path / "none" / "one.sock"))
    assert socket_problem(ServedClient("one", tmp_path / "one.sock")) == ""
    assert socket_problem(READER) == ""


def test_connections_of_one_client_are_limited(tmp_path: Path) -> None:
    """One more than allowed is closed at once; another client is not affected, and a closed one makes room."""
    with harness(tmp_path, READER, ServedClient("other", port=0)) as served:
        served.run(for_s=1)
        several = [served.connect("reader") for _ in range(MAX_CONNECTIONS)]
        for client in several:
            assert client.ask(get()).startswith(b"HTTP/1.1 200")
        assert served.connect("reader").closed()
        assert served.connect("other").ask(get()).startswith(b"HTTP/1.1 200")
        several[0].socket.close()
        until(lambda: served.connect("reader").ask(get()).startswith(b"HTTP/1.1 200"))


def test_requests_of_one_client_are_limited(tmp_path: Path) -> None:
    """Beyond the rate a client gets 429, until time passes; another client is not affected."""
    with harness(tmp_path, READER, ServedClient("other", port=0), burst=3.0) as served:
        served.run(for_s=1)
        client = served.connect("reader")
        statuses = [client.ask(get())[9:12] for _ in range(4)]
        assert statuses == [b"200", b"200", b"200", b"429"]
        assert b"\r\nRetry-After: 1\r\n" in client.ask(get())
        assert served.connect("other").ask(get()).startswith(b"HTTP/1.1 200")
        served.clock.now_s += 1
        assert client.ask(get()).startswith(b"HTTP/1.1 200")


def test_a_client_that_takes_no_answer_is_cut_off(tmp_path: Path) -> None:
    """Its connection ends, and makes room for another."""
    with harness(tmp_path, READER, send_timeout_s=0.05) as served:
        served.endpoint.announce(Resources=["web-0", "x" * 4_000_000])
        served.run(for_s=1)
        client = served.connect("reader").send(get())
        until(lambda: served.clients.contacts() == ["heard"] and served.listener._connections["reader"] == 0)
        assert len(client.rest()) < 4_000_000


def test_what_is_no_request_is_answered_and_ends_the_connection(tmp_path: Path) -> None:
    """With the endpoint's own error."""
    with harness(tmp_path, READER) as served:
        served.run(for_s=1)
        answer = served.connect("reader").send(b"hello\r\n\r\n").rest()
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"\r\nConnection: close\r\n" in answer
        assert answer.endswith(b'{"error":"Bad request"}')
        assert b" 431 " in served.connect("reader").send(b"GET / HTTP/1.1\r\nA: " + b"b" * 17_000).rest()


def test_a_request_for_closing_is_followed(tmp_path: Path) -> None:
    """`Connection: close` is answered in kind; HTTP/1.0 may keep the connection."""
    with harness(tmp_path, READER) as served:
        served.run(for_s=1)
        closing = served.connect("reader").send(get().replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")).rest()
        assert b"\r\nConnection: close\r\n" in closing
        old = served.connect("reader")
        kept = get().replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n")
        assert b"\r\nConnection: keep-alive\r\n" in old.ask(kept)
        assert old.ask(kept).startswith(b"HTTP/1.1 200")


def test_a_fault_ends_one_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the next connection is served."""
    with harness(tmp_path, READER) as served:
        served.run(for_s=1)

        def broken(*_: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(served.listener._answers, "answer", broken)
            assert served.connect("reader").send(get()).closed()
        assert "please report it" in caplog.text
        assert served.connect("reader").ask(get()).startswith(b"HTTP/1.1 200")


def test_without_further_threads_a_connection_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener goes on."""
    with harness(tmp_path, READER) as served:
        served.run(for_s=1)

        class NoThread:
            def __init__(self, **_: object) -> None:
                raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading, "Thread", NoThread)
            assert served.connect("reader").closed()
        assert served.connect("reader").ask(get()).startswith(b"HTTP/1.1 200")


def test_check_reports_a_socket_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`forewarn-agent check` names the client and the folder."""
    config = tmp_path / "agent.toml"
    socket_file = tmp_path / "none" / "one.sock"
    config.write_text(
        f'endpoint = "http://127.0.0.1:1"\nstate_dir = "{tmp_path}/state"\n'
        f'[[serve.client]]\nname = "one"\nsocket = "{socket_file}"\n'
    )
    config.chmod(0o600)
    with pytest.raises(SystemExit) as ended:
        main(["check", "--config", str(config)])
    assert ended.value.code == 1
    assert f"WRONG client 'one': there is no folder {tmp_path / 'none'}: create it" in capsys.readouterr().out
