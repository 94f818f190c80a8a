"""A session finds what a name or the first characters of an id mean with one call of the API."""

from collections.abc import Callable
from typing import Any

import pytest

from forewarn.cli.api import Failed
from forewarn.cli.output import Output
from forewarn.cli.session import Session
from forewarn.core.errors import InvalidSettings, NotFound, Refused
from tests.cli.scripted_server import ScriptedServer, response

WHOLE = "AAAAAAAA-0000-0000-0000-000000000001"
OTHER = "AAAAAAAA-0000-0000-0000-000000000002"
Start = Callable[..., ScriptedServer]


def matches(kind: str, *ids: str, more: bool = False) -> bytes:
    body: dict[str, Any] = {"matches": [{"kind": kind, "id": each} for each in ids], "more": more}
    return response(200, body)


def session(server: ScriptedServer) -> Session:
    return Session(Output(), server=server.url)


def targets(server: ScriptedServer) -> list[str]:
    return [request.split(" ")[1] for request in server.requests]


@pytest.mark.parametrize("kind", ["event", "maintenance", "order"])
def test_the_server_completes_the_first_characters_of_an_id(scripted: Start, kind: str) -> None:
    """One call, with the kind of thing that the command is about."""
    server = scripted(matches(kind, WHOLE))
    assert session(server).id_of(kind, "aaaaaaaa") == WHOLE
    assert targets(server) == [f"/v1/resolve?text=aaaaaaaa&kind={kind}"]


def test_the_server_finds_the_scope_of_a_machine(scripted: Start) -> None:
    """A name alone is enough if only one machine has it."""
    server = scripted(matches("machine", "shop/web-0"))
    assert session(server).machine_path("web-0", "restart") == "/v1/scopes/shop/machines/web-0/restart"
    assert targets(server) == ["/v1/resolve?text=web-0&kind=machine"]


def test_whole_names_and_ids_need_no_call(scripted: Start) -> None:
    """So they also work with a server that cannot resolve names."""
    server = scripted()
    assert session(server).id_of("event", WHOLE.lower()) == WHOLE
    assert session(server).machine("shop/web-0") == ("shop", "web-0")
    assert server.requests == []


def test_several_matches_are_listed(scripted: Start) -> None:
    """The error names each of them and says what to write."""
    with pytest.raises(Refused) as machines:
        session(scripted(matches("machine", "quiet/web-0", "shop/web-0"))).machine("web-0")
    assert str(machines.value) == "'web-0' matches several machines: quiet/web-0, shop/web-0; write scope/name"
    with pytest.raises(Refused) as events:
        session(scripted(matches("event", WHOLE, OTHER, more=True))).id_of("event", "AAAAAAAA")
    assert str(events.value) == f"'AAAAAAAA' matches several events: {WHOLE}, {OTHER} and more; write the whole id"


def test_no_match_says_where_to_look(scripted: Start) -> None:
    """The error names the command that lists what there is."""
    with pytest.raises(NotFound, match="'web-9' matches no machine: `forewarn machine list` shows"):
        session(scripted(matches("machine"))).machine("web-9")
    with pytest.raises(NotFound, match="'AAAAAAAA' matches no maintenance: `forewarn maintenance list` shows"):
        session(scripted(matches("maintenance"))).id_of("maintenance", "AAAAAAAA")


def test_fewer_than_8_characters_are_wrong_usage(scripted: Start) -> None:
    """Nothing is sent."""
    server = scripted()
    with pytest.raises(InvalidSettings, match="'AAAAAAA' is too short for an id: write at least its first 8"):
        session(server).id_of("event", "AAAAAAA")
    assert server.requests == []


def test_an_older_server_is_named_as_the_reason(scripted: Start) -> None:
    """It answers 404 to the call; the error says what to write instead."""
    server = scripted(response(404, {"error": {"code": "not_found", "message": "no such path"}}))
    with pytest.raises(Failed) as failed:
        session(server).machine("web-0")
    assert str(failed.value) == f"{server.url} runs an older version that does not complete names: write scope/name"


def test_another_404_is_not_taken_for_an_older_server(scripted: Start) -> None:
    """A server that is not forewarn gets the usual message."""
    with pytest.raises(Failed, match="is this a forewarn server"):
        session(scripted(response(404, b"<html>", "text/html"))).id_of("event", "AAAAAAAA")
