"""`forewarn token`, run inside this process against a service that runs here, too."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.command_line import Command
from tests.support.running_service import START, RunningService, running_service

DONE, FAILED, USAGE = 0, 1, 2


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


def tokens(service: RunningService) -> dict[str, Any]:
    return {token["name"]: token for token in service.get("/v1/tokens")["items"]}


def test_a_token_may_expire(service: RunningService, forewarn: Command) -> None:
    """`--expires` takes a duration; `list` and `show` say when it ends and when it was last used."""
    code, secret, about = forewarn("token", "create", "short", "--role", "viewer", "--expires", "30d")
    assert code == DONE
    assert "until 2030-01-31 00:00:00Z" in about
    assert service.request("GET", "/v1/scopes", token=secret.strip()).status == 200
    service.service.store.record_token_uses({tokens(service)["short"]["id"]: START})
    code, shown, _ = forewarn("token", "show", "short")
    assert code == DONE
    assert re.search(r"^expires +2030-01-31 00:00:00Z \(in 30d\)$", shown, re.MULTILINE), shown
    assert re.search(r"^last used +2030-01-01 00:00:00Z \(now\)$", shown, re.MULTILINE), shown
    assert secret.strip() not in shown
    token_id = tokens(service)["short"]["id"]
    assert json.loads(forewarn("token", "show", token_id[:8], "--json")[1]) == tokens(service)["short"]
    listed = forewarn("token", "list")[1].splitlines()
    assert listed[0].endswith("  LAST USED")
    assert all(line.split()[3] == "all" for line in listed[1:]), "tokens without scopes are for all of them"
    assert sorted(line.split()[-2:] for line in listed[1:]) == [["2030-01-01", "00:00:00Z"], ["not", "yet"]]


def test_a_wrong_end_or_name_is_refused(service: RunningService, forewarn: Command) -> None:
    """A duration that is none is wrong usage; a reserved name is refused by the service."""
    assert forewarn("token", "create", "ci", "--role", "viewer", "--expires", "soon")[0] == USAGE
    code, _, error = forewarn("token", "create", "ticker", "--role", "viewer")
    assert (code, "reserved" in error) == (FAILED, True)
    code, _, error = forewarn("token", "create", "bob", "--role", "owner")
    assert (code, "add --scope SCOPE" in error) == (USAGE, True)
    assert list(tokens(service)) == ["operator"]


def test_a_token_for_the_calendar_comes_with_its_address(service: RunningService, forewarn: Command) -> None:
    """The token alone is on standard output; the address beside it has no secret. Its scopes are optional."""
    for scopes in ((), ("--scope", "shop")):
        code, secret, about = forewarn("token", "create", "wall", "--role", "calendar", *scopes)
        assert (code, secret.strip() in about) == (DONE, False)
        assert f"subscribe to {service.url}/v1/calendar.ics?token=TOKEN" in about
        assert service.request("GET", f"/v1/calendar.ics?token={secret.strip()}", token="").status == 200


def test_a_token_is_revoked_by_id_or_name(service: RunningService, forewarn: Command) -> None:
    """Also by the first characters of its id; after a question, whose answer is no without a terminal."""
    for name in ("one", "two", "three"):
        service.token_of("viewer", name=name)
    known = tokens(service)
    code, _, error = forewarn("token", "revoke", "one")
    assert (code, "Revoke token one? [y/N]" in error, "--yes revokes without a question" in error) == (
        FAILED,
        True,
        True,
    )
    assert tokens(service) == known
    for text in ("one", known["two"]["id"][:8], known["three"]["id"]):
        assert forewarn("token", "revoke", text, "--yes")[0] == DONE
    assert list(tokens(service)) == ["operator"]
    assert "matches no token" in forewarn("token", "revoke", "one", "--yes")[2]


def test_all_tokens_but_the_own_are_revoked_at_once(service: RunningService, forewarn: Command) -> None:
    """After a question; the token in use stays valid, so that the operator can go on."""
    for name in ("one", "two"):
        service.token_of("viewer", name=name)
    assert forewarn("token", "revoke")[0] == USAGE
    assert forewarn("token", "revoke", "one", "--all")[0] == USAGE
    assert forewarn("token", "revoke", "--all")[0] == FAILED
    assert len(tokens(service)) == 3
    code, printed, _ = forewarn("token", "revoke", "--all", "--yes")
    assert (code, "2 token(s) are revoked" in printed, "stays valid" in printed) == (DONE, True, True)
    assert list(tokens(service)) == ["operator"]
