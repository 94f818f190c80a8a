"""What the Tab key offers: names and ids that the server has, and nothing at all when it does not answer."""

import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

from forewarn.cli import completion
from forewarn.cli.app import build
from tests.cli.command_line import CommandLine, environment, first_event
from tests.cli.scripted_server import ScriptedServer, response

Complete = Callable[..., list[str]]


@pytest.fixture
def complete(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Return what a shell gets for the words typed so far; the last one is incomplete."""

    def run(*words: str, shell: str = "bash", **variables: str) -> list[str]:
        typed = " ".join(("forewarn", *words))
        request = {"COMP_WORDS": typed, "COMP_CWORD": str(len(words)), "_TYPER_COMPLETE_ARGS": typed}
        for name, value in {**request, "_FOREWARN_COMPLETE": f"complete_{shell}", **variables}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            build()(args=[], prog_name="forewarn")
        assert ended.value.code == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return [line for line in printed.out.splitlines() if line]

    return run


@pytest.fixture
def shell(cli: CommandLine, complete: Complete, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Complete with the settings of an operator on the service's machine."""
    monkeypatch.setattr("os.environ", environment(cli.folder))
    monkeypatch.setattr(completion, "TIME_LIMIT_S", 60.0)
    return complete


@pytest.mark.parametrize(
    "words, offered",
    [
        (("scope", "show", "s"), ["shop"]),
        (("machine", "list", "--scope", ""), ["db", "quiet", "shop"]),
        (("machine", "list", "--host", "rack"), ["rack0", "rack1", "rack2"]),
        (("host", "cordon", "rack"), ["rack0", "rack1", "rack2"]),
        (("machine", "show", "shop/"), ["shop/web-0", "shop/web-1", "shop/web-2"]),
        (("machine", "restart", "db-"), ["db-0", "db-1"]),
        (("event", "list", "--machine", "quiet/web-1"), ["quiet/web-1"]),
        (("maintenance", "schedule", "--type", "Reboot", "--scope", "shop", "--scope", "d"), ["db"]),
        (("maintenance", "schedule", "--type", "Reboot", "--type", "Freeze", "--host", "rack2"), ["rack2"]),
        (("token", "create", "x", "--scope", "q"), ["quiet"]),
        (("hook", "create", "--scope", "q"), ["quiet"]),
    ],
    ids=str,
)
def test_names_are_completed(shell: Complete, words: tuple[str, ...], offered: list[str]) -> None:
    """Scopes, hosts and machines, as options and as arguments; also after a command line that would be refused."""
    assert sorted(shell(*words)) == offered


def test_ids_are_completed(shell: Complete, planned: dict[str, Any]) -> None:
    """Events and maintenances by their first characters, in the case that was typed."""
    event_id, maintenance_id = first_event(planned)["id"], planned["id"]
    assert event_id in shell("event", "approve", "")
    assert shell("event", "watch", event_id[:6]) == [event_id]
    assert shell("maintenance", "cancel", maintenance_id[:6]) == [maintenance_id]
    assert shell("maintenance", "show", maintenance_id[:35].lower()) == [maintenance_id.lower()]
    assert shell("order", "start", "zz") == []
    assert f'"{event_id}":"Scheduled Reboot in shop"' in "".join(shell("event", "why", event_id[:6], shell="zsh"))


def test_hooks_are_completed(shell: Complete, scripted: Callable[..., ScriptedServer]) -> None:
    """By their ids; the description says of which scope they are, and in which state."""
    ids = ("1C6A3B70-0000-4000-8000-000000000001", "1C6A3B70-0000-4000-8000-000000000002")
    items = [{"id": ids[0], "state": "active", "scope": "shop"}, {"id": ids[1], "state": "failing", "scope": ""}]
    server = scripted(response(200, {"items": items, "next_cursor": None}))
    offered = "".join(shell("hook", "show", "--server", server.url, "1C6A", shell="zsh"))
    assert f'"{ids[0]}":"active for shop"' in offered
    assert f'"{ids[1]}":"failing for the whole fleet"' in offered


def test_the_options_of_the_command_line_name_the_server(
    shell: Complete, scripted: Callable[..., ScriptedServer]
) -> None:
    """`--server` is the server that is asked."""
    server = scripted(response(200, {"items": [{"name": "elsewhere", "kind": "standalone"}], "next_cursor": None}))
    assert shell("scope", "show", "--server", server.url, "") == ["elsewhere"]


def test_a_name_that_a_shell_would_run_is_not_offered(shell: Complete, scripted: Callable[..., ScriptedServer]) -> None:
    """zsh evaluates what it gets; a token may have any name."""
    tokens = [
        {"name": name, "role": role}
        for name, role in (
            ("$(reboot)", "viewer"),
            ("`id`", "viewer"),
            ("two words", "viewer"),
            ('x";id', "viewer"),
            (5, None),
            ("good", "$(id)"),
        )
    ]
    server = scripted(response(200, {"items": tokens, "next_cursor": None}))
    offered = "".join(shell("token", "show", "--server", server.url, "", shell="zsh"))
    assert "good" in offered
    assert not re.search(r"[$`;]|two", offered)


def test_a_server_that_cannot_be_asked_offers_nothing(
    complete: Complete, scripted: Callable[..., ScriptedServer]
) -> None:
    """No error is printed if nothing listens, the response is none of ours, the settings are wrong, or no response comes."""
    refusing = scripted(response(401, {"error": {"code": "unauthorized", "message": "no"}})).url
    strange = scripted(response(200, {"items": [{"id": "x"}], "next_cursor": None})).url
    for server in ("http://127.0.0.1:1", refusing, strange, "not an address"):
        assert complete("scope", "show", "", FOREWARN_SERVER=server) == []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert complete("scope", "show", "", FOREWARN_SERVER=f"http://127.0.0.1:{silent.getsockname()[1]}") == []
