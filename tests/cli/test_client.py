"""The client against servers that behave badly: what is repeated, what is said, and what is not given away."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forewarn.cli.change_stream import Changes
from forewarn.cli.client import Client, Failed, Message, NotReachable, parse_stream, path_of
from forewarn.cli.server_lookup import Server
from forewarn.core.errors import InvalidSettings
from tests.support.waiting import PATIENCE_S, until

SECRET = "fw_not-to-be-shown"


def answer(status: int, body: object, kind: str = "application/json") -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    return head.encode() + text


class Peer:
    """Answers each connection with the next of its answers, "" is none; keeps what it was asked."""

    def __init__(self, *answers: bytes) -> None:
        self.asked: list[str] = []
        self._answers = list(answers)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        for told in self._answers:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self.asked.append(_read_request(connection))
                with contextlib.suppress(OSError):
                    connection.sendall(told)

    def client(self, token: str = SECRET) -> Client:
        return Client(Server(url=self.url, token=token, token_from="FOREWARN_TOKEN" if token else ""))

    def close(self) -> None:
        self._socket.close()


def _read_request(connection: socket.socket) -> str:
    heard = b""
    while b"\r\n\r\n" not in heard:
        heard += connection.recv(65_536)
    head, _, body = heard.partition(b"\r\n\r\n")
    length = next((int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length")), 0)
    while len(body) < length:
        body += connection.recv(65_536)
    return (head + b"\r\n\r\n" + body).decode()


def keys(asked: list[str]) -> list[str]:
    return [line for request in asked for line in request.split("\r\n") if line.startswith("Idempotency-Key: ")]


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    made: list[Peer] = []

    def make(*answers: bytes) -> Peer:
        made.append(Peer(*answers))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_creating_post_is_repeated_once_under_the_same_key(peer: Callable[..., Peer]) -> None:
    """The connection breaks before the answer: the same request again, so that it happens once."""
    there = peer(b"", answer(201, {"id": "X"}))
    assert there.client().post("/v1/maintenances", {"a": 1}, creating=True) == {"id": "X"}
    first, second = keys(there.asked)
    assert first == second
    assert len(first) > 40


def test_two_commands_have_two_keys(peer: Callable[..., Peer]) -> None:
    """A key is for one wish."""
    there = peer(answer(201, {}), answer(201, {}))
    client = there.client()
    client.post("/v1/x", {}, creating=True)
    client.post("/v1/x", {}, creating=True)
    first, second = keys(there.asked)
    assert first != second


def test_it_is_not_repeated_twice(peer: Callable[..., Peer]) -> None:
    """Whoever breaks two connections is not there."""
    there = peer(b"", b"", answer(201, {}))
    with pytest.raises(NotReachable, match="broke before the answer came"):
        there.client().post("/v1/x", {}, creating=True)
    assert len(there.asked) == 2


def test_what_has_no_key_is_not_repeated(peer: Callable[..., Peer]) -> None:
    """An order finished twice would be two words: the operator is told to look."""
    there = peer(b"", answer(200, {}))
    with pytest.raises(NotReachable, match="look whether it was done"):
        there.client().post("/v1/orders/X/finish", {})
    assert len(there.asked) == 1


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (answer(409, {"error": {"code": "refused", "message": "not now"}}), "not now"),
        (
            answer(401, {"error": {"code": "unauthorized", "message": "?"}}),
            "does not accept the token from FOREWARN_TOKEN",
        ),
        (answer(403, {"error": {"code": "forbidden", "message": "no"}}), "no (the token is from FOREWARN_TOKEN"),
        (answer(502, b"<html>", "text/html"), "answered 502 to GET /v1/clock: is this a forewarn server?"),
        (answer(302, b""), "answered 302"),
        (answer(200, b"<html>", "text/html"), "is not JSON"),
        (answer(404, {"error": []}), "answered 404"),
    ],
)
def test_a_no_is_said_in_a_sentence_without_the_token(peer: Callable[..., Peer], told: bytes, said: str) -> None:
    """What the server said, or that it is no server of ours."""
    with pytest.raises(Failed) as failed:
        peer(told).client().get("/v1/clock")
    assert said in str(failed.value)
    assert SECRET not in str(failed.value)


def test_without_a_token_the_address_and_the_variable_are_named(peer: Callable[..., Peer]) -> None:
    """What to set, and for which server."""
    there = peer(answer(401, {}))
    with pytest.raises(Failed, match="wants a token, and none was found: set FOREWARN_TOKEN") as failed:
        there.client(token="").get("/v1/clock")
    assert there.url in str(failed.value)
    assert "Authorization" not in there.asked[0]


def test_nobody_there_is_said_with_the_address_and_the_variable() -> None:
    """A closed port, and a name nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    place = Server(url=f"http://127.0.0.1:{port}", url_from="FOREWARN_SERVER")
    with pytest.raises(NotReachable, match=rf"nobody answers at http://127.0.0.1:{port} \(from FOREWARN_SERVER\)"):
        Client(place).get("/v1/clock")
    with pytest.raises(NotReachable, match="FOREWARN_SERVER or --server"):
        Client(Server(url="http://nobody.invalid")).get("/v1/clock")


def test_an_authority_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """FOREWARN_CA_FILE is what to mend."""
    wrong = tmp_path / "ca.pem"
    wrong.write_text("no certificate")
    with pytest.raises(InvalidSettings, match="FOREWARN_CA_FILE"):
        Client(Server(url="https://127.0.0.1:1", ca_file=wrong)).get("/v1/clock")


def test_pages_are_collected_up_to_the_limit(peer: Callable[..., Peer]) -> None:
    """As many pages as it takes; where it ended is where to go on."""
    there = peer(
        answer(200, {"items": list(range(500)), "next_cursor": "a"}),
        answer(200, {"items": list(range(100)), "next_cursor": "b"}),
    )
    page = there.client().page("/v1/events", {"status": ["Scheduled", "Started"], "scope": None}, limit=600)
    assert len(page["items"]) == 600
    assert page["next_cursor"] == "b"
    first, second = (request.split(" ")[1] for request in there.asked)
    assert first == "/v1/events?status=Scheduled&status=Started&limit=500"
    assert second == "/v1/events?status=Scheduled&status=Started&limit=100&cursor=a"


def test_many_changes_at_once_are_one_reason_to_look(peer: Callable[..., Peer]) -> None:
    """Those of others are none, and are not waited out beyond the time to look anyway."""
    text = "".join(
        f'event: change\ndata: {{"id": {n}, "maintenance_id": "{"M" if n % 2 else "N"}"}}\n\n' for n in range(100)
    )
    stream = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + text.encode()
    there = peer(answer(200, {"items": [], "next_cursor": None}), stream)
    asked: list[object] = []

    def concerns(change: dict[str, object]) -> bool:
        asked.append(change["id"])
        return change["maintenance_id"] == "M"

    with Changes(there.client(), poll_s=3_600) as changes:

        def all_heard() -> bool:
            changes.wait_for(concerns, PATIENCE_S)
            return len(asked) >= 100

        until(all_heard)
        changes.wait_for(concerns, 0.05)  # returns, although the next look is an hour away
    assert asked == list(range(100))


def test_what_the_service_complains_of_is_told(peer: Callable[..., Peer]) -> None:
    """503 of /readyz is an answer, not a failure."""
    there = peer(answer(503, {"ready": False, "checks": {"store": "ok", "ticker": "no cycle lately"}}))
    assert there.client().complaints() == {"ticker": "no cycle lately"}


def test_names_in_paths_are_quoted() -> None:
    """A name cannot become another path."""
    assert path_of("scopes", "../tokens", "machines", "a b?") == "/v1/scopes/..%2Ftokens/machines/a%20b%3F"


def test_the_stream_is_read_as_its_rules_say() -> None:
    """Comments are nothing, data may have several lines, an id stays until the next."""
    lines = b": keep-alive\n\nid: 7\nevent: change\ndata: {\ndata: }\n\nevent: other\n\ndata:x\r\n\r\nid: 8\ndata: cut off\n"
    assert list(parse_stream(lines.splitlines(keepends=True))) == [
        Message("7", "change", "{\n}"),
        Message("7", "message", "x"),
    ]


def test_changes_come_from_the_stream_and_go_on_after_a_break(peer: Callable[..., Peer]) -> None:
    """The last id heard is where the next connection begins; what the audit shows twice is told once."""

    def change(number: int) -> dict[str, object]:
        return {"id": number, "maintenance_id": "M"}

    def streamed(*numbers: int) -> bytes:
        text = "".join(f"id: {n}\nevent: change\ndata: {json.dumps(change(n))}\n\n" for n in numbers)
        return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + text.encode()

    there = peer(
        answer(200, {"items": [change(3)], "next_cursor": None}),
        streamed(4, 5),
        answer(200, {"items": [change(6), change(5), change(4)], "next_cursor": None}),
        streamed(7),
    )
    with Changes(there.client(), poll_s=0.05) as changes:
        heard = [changes.next(PATIENCE_S) for _ in range(4)]
    assert heard == [change(4), change(5), change(6), change(7)]
    assert "Last-Event-ID: 3" in there.asked[1]
    assert "Last-Event-ID: 6" in there.asked[3]


def test_a_server_that_speaks_otherwise_is_no_traceback(peer: Callable[..., Peer]) -> None:
    """Another program's JSON, or another version's: one line that says who answered."""
    there = peer(answer(200, {"hello": "world"}))
    result = subprocess.run(
        [sys.executable, "-m", "forewarn", "clock", "show", "--server", there.url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith(f"forewarn: {there.url} answered what forewarn ")
    assert len(result.stderr.splitlines()) == 1
