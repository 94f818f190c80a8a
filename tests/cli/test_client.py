"""The client and servers that fail: which requests are repeated, what the errors say, and that the token stays secret."""

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forewarn.cli.api import Failed, NotReachable, path_of
from forewarn.cli.client import Client, Message, parse_stream
from forewarn.cli.server_lookup import Server
from forewarn.core.errors import InvalidSettings
from tests.cli.scripted_server import SECRET, ScriptedServer, response
from tests.support.waiting import PATIENCE_S


def keys(requests: list[str]) -> list[str]:
    return [line for request in requests for line in request.split("\r\n") if line.startswith("Idempotency-Key: ")]


def test_a_creating_post_is_repeated_once_under_the_same_key(scripted: Callable[..., ScriptedServer]) -> None:
    """When the connection breaks before the response, the client sends the same request again, and it takes effect once."""
    server = scripted(b"", response(201, {"id": "X"}))
    assert server.client().post("/v1/maintenances", {"a": 1}, creating=True) == {"id": "X"}
    first, second = keys(server.requests)
    assert first == second
    assert len(first) > 40


def test_two_commands_have_two_keys(scripted: Callable[..., ScriptedServer]) -> None:
    """A key belongs to one command."""
    server = scripted(response(201, {}), response(201, {}))
    client = server.client()
    client.post("/v1/x", {}, creating=True)
    client.post("/v1/x", {}, creating=True)
    first, second = keys(server.requests)
    assert first != second


def test_a_request_is_repeated_only_once(scripted: Callable[..., ScriptedServer]) -> None:
    """A second broken connection is an error."""
    server = scripted(b"", b"", response(201, {}))
    with pytest.raises(NotReachable, match="broke before the response came"):
        server.client().post("/v1/x", {}, creating=True)
    assert len(server.requests) == 2


def test_a_request_without_a_key_is_not_repeated(scripted: Callable[..., ScriptedServer]) -> None:
    """An order must not be finished twice: the error tells the operator to check."""
    server = scripted(b"", response(200, {}))
    with pytest.raises(NotReachable, match="check whether the change was made"):
        server.client().post("/v1/orders/X/finish", {})
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (response(409, {"error": {"code": "refused", "message": "not now"}}), "not now"),
        (
            response(401, {"error": {"code": "unauthorized", "message": "?"}}),
            "does not accept the token from FOREWARN_TOKEN",
        ),
        (response(403, {"error": {"code": "forbidden", "message": "no"}}), "no (the token is from FOREWARN_TOKEN"),
        (response(502, b"<html>", "text/html"), "answered 502 to GET /v1/clock: is this a forewarn server?"),
        (response(302, b""), "answered 302"),
        (response(200, b"<html>", "text/html"), "is not JSON"),
        (response(404, {"error": []}), "answered 404"),
    ],
)
def test_a_refusal_is_one_sentence_without_the_token(
    scripted: Callable[..., ScriptedServer], sent: bytes, message: str
) -> None:
    """The server's message, or a question whether it is a forewarn server."""
    with pytest.raises(Failed) as failed:
        scripted(sent).client().get("/v1/clock")
    assert message in str(failed.value)
    assert SECRET not in str(failed.value)


def test_without_a_token_the_error_names_the_address_and_the_variable(scripted: Callable[..., ScriptedServer]) -> None:
    """The error says what to set, and for which server."""
    server = scripted(response(401, {}))
    with pytest.raises(Failed, match="requires a token, and none was found: set FOREWARN_TOKEN") as failed:
        server.client(token="").get("/v1/clock")
    assert server.url in str(failed.value)
    assert "Authorization" not in server.requests[0]


def test_without_a_token_the_error_names_the_server_that_gets_the_local_token(
    scripted: Callable[..., ScriptedServer],
) -> None:
    """That may be another spelling of the same address, which the user can give instead."""
    server = scripted(response(401, {}))
    with pytest.raises(Failed, match=r"--token-file \(the token in A is sent only to B\)"):
        server.client(token="", unused_token="the token in A is sent only to B").get("/v1/clock")


def test_an_unreachable_server_is_named_with_its_address_and_variable() -> None:
    """A port on which nobody listens, and a name that does not resolve."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(NotReachable, match=rf"no server answers at {url} \(from FOREWARN_SERVER\)"):
            Client(Server(url=url, url_from="FOREWARN_SERVER")).get("/v1/clock")
    with pytest.raises(NotReachable, match="FOREWARN_SERVER or --server"):
        Client(Server(url="http://nobody.invalid")).get("/v1/clock")


def test_an_unusable_authority_is_named(tmp_path: Path) -> None:
    """The error names FOREWARN_CA_FILE."""
    wrong = tmp_path / "ca.pem"
    wrong.write_text("no certificate")
    with pytest.raises(InvalidSettings, match="FOREWARN_CA_FILE"):
        Client(Server(url="https://127.0.0.1:1", ca_file=wrong)).get("/v1/clock")


def test_pages_are_collected_up_to_the_limit(scripted: Callable[..., ScriptedServer]) -> None:
    """The client fetches as many pages as necessary and keeps the cursor of the last."""
    server = scripted(
        response(200, {"items": list(range(500)), "next_cursor": "a"}),
        response(200, {"items": list(range(100)), "next_cursor": "b"}),
    )
    page = server.client().page("/v1/events", {"status": ["Scheduled", "Started"], "scope": None}, limit=600)
    assert len(page["items"]) == 600
    assert page["next_cursor"] == "b"
    first, second = (request.split(" ")[1] for request in server.requests)
    assert first == "/v1/events?status=Scheduled&status=Started&limit=500"
    assert second == "/v1/events?status=Scheduled&status=Started&limit=100&cursor=a"


def test_failed_checks_are_returned(scripted: Callable[..., ScriptedServer]) -> None:
    """A 503 of /readyz is a result, not a failure."""
    server = scripted(response(503, {"ready": False, "checks": {"store": "ok", "ticker": "no cycle lately"}}))
    assert server.client().failed_checks() == {"ticker": "no cycle lately"}


def test_names_in_paths_are_quoted() -> None:
    """A name with a slash does not lead to another path."""
    assert path_of("scopes", "../tokens", "machines", "a b?") == "/v1/scopes/..%2Ftokens/machines/a%20b%3F"


def test_server_sent_events_are_parsed() -> None:
    """Comments are skipped, data may have several lines, an id is valid until the next one."""
    lines = b": keep-alive\n\nid: 7\nevent: change\ndata: {\ndata: }\n\nevent: other\n\ndata:x\r\n\r\nid: 8\ndata: cut off\n"
    assert list(parse_stream(lines.splitlines(keepends=True))) == [
        Message("7", "change", "{\n}"),
        Message("7", "message", "x"),
    ]


def test_an_unexpected_response_prints_one_line(scripted: Callable[..., ScriptedServer]) -> None:
    """JSON of another program or version: one line names the server, without a traceback."""
    server = scripted(response(200, {"hello": "world"}))
    result = subprocess.run(
        [sys.executable, "-m", "forewarn", "clock", "show", "--server", server.url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith(f"forewarn: {server.url} sent a response that forewarn ")
    assert len(result.stderr.splitlines()) == 1
