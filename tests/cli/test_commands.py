"""Commands that read, as real processes beside a real service."""

import json
import os
import shlex
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import (
    DONE,
    FAILED,
    FOREWARN,
    CommandLine,
    environment,
    first_event,
    run_on_terminal,
)
from tests.support.waiting import PATIENCE_S


def test_the_audit_is_exported_and_verified(cli: CommandLine, tmp_path: Path) -> None:
    """The server's audit and an export of it are whole; a changed, shortened or unreadable export is not."""
    noted = cli.run("audit", "head").stdout.split()[0]
    cli.run("scope", "set", "quiet", "--approval", "all")
    seen = cli.run("audit", "verify", "--head", noted)
    assert (seen.returncode, "entries are as they were written" in seen.stdout) == (DONE, True)
    exported = cli.run("audit", "export").stdout.splitlines()
    file = tmp_path / "audit.jsonl"
    file.write_text("\n".join(exported))
    assert cli.json("audit", "verify", str(file))["checked"] == len(exported) - 1
    for lines, fault in (
        (exported[:-1], "the newest entries are missing"),
        ([*exported[:2], *exported[3:]], "changed, removed or moved"),
        ([exported[0], exported[1].replace('"who": "', '"who": "x'), *exported[2:]], "was changed"),
        (["{}"], "line 1: this is not the first line of an export"),
    ):
        file.write_text("\n".join(lines))
        seen = cli.run("audit", "verify", str(file))
        assert (seen.returncode, fault in seen.stderr) == (FAILED, True), seen.stderr
    seen = cli.run("audit", "verify", "--head", "f" * 64)
    assert (seen.returncode, "the head that you noted is not in the chain" in seen.stderr) == (FAILED, True)


def test_json_is_the_apis_response(cli: CommandLine, planned: dict[str, Any]) -> None:
    """A list and a maintenance show the same event."""
    event_id = first_event(planned)["id"]
    assert cli.json("event", "show", event_id)["description"] == "a new kernel"
    assert cli.json("event", "why", event_id)["waiting_for"]
    assert cli.json("maintenance", "show", planned["id"])["id"] == planned["id"]
    listed = cli.json("event", "list", "--status", "Scheduled")
    assert set(listed) == {"items", "next_cursor"}
    assert event_id in [event["id"] for event in listed["items"]]


def test_a_maintenance_shows_its_targets_and_progress(cli: CommandLine, planned: dict[str, Any]) -> None:
    """In the list and in the maintenance."""
    end = datetime.fromisoformat(planned["not_before"]) + timedelta(minutes=5)
    facts = ("scope shop, update domain 1", "0 of 1 done, 1 left", f"{end:%Y-%m-%d %H:%M:%SZ}")
    for arguments in (["maintenance", "show", planned["id"]], ["maintenance", "list"]):
        output = cli.run(*arguments).stdout
        assert [fact for fact in facts if fact not in output] == []


def test_without_a_terminal_nothing_is_cut(cli: CommandLine, planned: dict[str, Any]) -> None:
    """Whole ids and whole reasons are on one line each, without colours, at any width."""
    event_id = first_event(planned)["id"]
    for arguments in (["status"], ["event", "list"], ["maintenance", "show", planned["id"]]):
        output = cli.run(*arguments, COLUMNS="40", FORCE_COLOR="").stdout
        (line,) = [line for line in output.splitlines() if event_id in line]
        assert "it waits for approval (no machine of shop has approved), or for the end of its notice at" in line
        assert "…" not in output
        assert "\x1b" not in output


def test_status_shows_what_is_scheduled_and_why_it_waits(cli: CommandLine, planned: dict[str, Any]) -> None:
    """The table names who has not approved."""
    del planned
    output = cli.output("status")
    assert cli.url in output
    assert "1 scheduled (1 not approved)" in output
    (head, row) = output[output.index("SCHEDULED") :].splitlines()[1:3]
    assert "NOT APPROVED BY" in head
    assert "shop#1  web-1" in row
    assert "(in 2h)" in row


def test_why_prints_one_sentence(cli: CommandLine, planned: dict[str, Any]) -> None:
    """It is one line; 8 characters of the id are enough."""
    output = cli.output("event", "why", first_event(planned)["id"][:8].lower())
    assert output.startswith(
        "Reboot of web-1 in shop has not started: it waits for approval (no machine of shop has approved),"
        " or for the end of its notice at "
    )
    assert output.count("\n") == 1


def test_lists_are_paged(cli: CommandLine) -> None:
    """`--limit` and `--cursor` choose the page; standard output holds only the list."""
    result = cli.run("machine", "list", "--limit", "2")
    assert len(result.stdout.splitlines()) == 3
    cursor = result.stderr.strip().rpartition(" ")[2]
    assert "the list is longer: use --limit 1000000 for all of it, or --cursor" in result.stderr
    rest = cli.json("machine", "list", "--limit", "5", "--cursor", cursor)
    assert len(rest["items"]) == 5
    assert rest["next_cursor"] is None


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ("machine list --scope nosuch", "forewarn: there is no scope 'nosuch'"),
        (
            "machine list --host nosuch",
            "forewarn: there is no host 'nosuch': the fleet does not list it, and no machine is on it",
        ),
        ("event list --scope nosuch", "forewarn: there is no scope 'nosuch'"),
        ("event list --machine shop/nosuch --json", "forewarn: there is no machine shop/nosuch"),
        ("event watch --scope nosuch", "forewarn: there is no scope 'nosuch'"),
    ],
)
def test_a_list_of_something_that_does_not_exist_is_an_error(cli: CommandLine, arguments: str, complaint: str) -> None:
    """A misspelt scope, host or machine is not an empty list."""
    result = cli.run(*arguments.split())
    assert (result.returncode, result.stdout, result.stderr) == (FAILED, "", f"{complaint}\n")


def test_an_empty_list_is_no_error(cli: CommandLine) -> None:
    """The scope and the host exist, but no machine has both."""
    assert cli.output("machine", "list", "--scope", "db", "--host", "rack2") == "no machines\n"


def test_lists_are_searched(cli: CommandLine, planned: dict[str, Any]) -> None:
    """`--match` finds a part of a text in every list; hosts have a list of their own."""
    assert [m["name"] for m in cli.json("machine", "list", "--match", "DB-")["items"]] == ["db-0", "db-1"]
    by_name = cli.json("machine", "list", "--name", "*-1", "--name", "db/db-0", "--scope", "db")["items"]
    assert [m["name"] for m in by_name] == ["db-0", "db-1"]
    assert planned["id"] in cli.output("maintenance", "list", "--match", "new kern")
    assert cli.json("event", "list", "--match", "nosuch")["items"] == []
    assert "rack0" in cli.output("host", "list", "--match", "ck0")
    assert cli.output("host", "list", "--match", "nosuch") == "no hosts\n"


def test_a_machine_name_alone_is_enough_if_it_is_unique(cli: CommandLine) -> None:
    """Otherwise the error lists the machines, and says when there is none."""
    assert cli.json("machine", "show", "db-1")["scope"] == "db"
    result = cli.run("machine", "show", "web-0")
    assert result.returncode == FAILED
    assert "'web-0' matches several machines: quiet/web-0, shop/web-0; write scope/name" in result.stderr
    missing = cli.run("event", "list", "--machine", "web-9")
    assert missing.returncode == FAILED
    assert "'web-9' matches no machine: `forewarn machine list`" in missing.stderr


def test_on_a_terminal_tables_wrap_and_cut_nothing(cli: CommandLine, planned: dict[str, Any]) -> None:
    """Ids are shortened; a narrow terminal shows every word of the reason."""
    code, output = run_on_terminal(cli, "status", columns=90)
    assert code == DONE
    assert first_event(planned)["id"][:8] in output
    assert "…" not in output
    for word in ("approval", "approved),", "notice"):
        assert word in output


@pytest.mark.parametrize(
    "arguments",
    [
        "status", "fleet export", "scope list", "scope show shop", "machine list", "machine show shop/web-0",
        "machine list --host rack0", "host list", "host show rack0", "event list --host rack0",
        "maintenance list", "event list", "event list --since -1h --status Scheduled",
        "event list --machine shop/web-1 --type reboot", "order list", "order list --state all", "audit list",
        "token list", "clock show",
    ],
)  # fmt: skip
def test_every_reading_command_prints_json_and_text(cli: CommandLine, arguments: str) -> None:
    """With --json, standard output is one JSON object."""
    result = cli.run(*arguments.split(), "--json")
    assert result.returncode == DONE, result.stderr
    assert isinstance(json.loads(result.stdout), dict)
    assert cli.output(*arguments.split()).strip()


def test_a_closed_pipe_is_no_error(cli: CommandLine) -> None:
    """`| head` ends quietly."""
    command = shlex.join([*FOREWARN, "audit", "list", "--limit", "500"]) + " | head -n 1"
    result = subprocess.run(
        command,
        shell=True,
        env=environment(cli.folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.stdout.startswith("AT ")
    assert result.stderr == ""


def test_a_pipe_that_is_closed_before_the_first_line_is_no_error(cli: CommandLine) -> None:
    """Nothing is printed about it, also if the output is so short that it is written when Python ends."""
    for command in (["machine", "list"], ["scope", "list", "--json"]):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [*FOREWARN, *command],
            env=environment(cli.folder),
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        os.close(write)
        assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["machine", "list"], 1, "forewarn: the output cannot be written: No space left on device\n"),
        (["serve", "--no-such-option"], 2, "No such option"),
    ],
)
def test_output_that_cannot_be_written_is_an_error(
    cli: CommandLine, command: list[str], code: int, message: str
) -> None:
    """One line says so. The exit code of a command that has failed already stays."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*FOREWARN, *command],
            env=environment(cli.folder),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_shell_completion_is_offered(cli: CommandLine) -> None:
    """Typer prints the script of the shell that the command runs in."""
    # More than one command, so that the shell stays: Typer looks for it among the processes above.
    command = ["bash", "-c", '"$@"; exit $?', "bash", *FOREWARN, "--show-completion"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment(cli.folder), check=True
    )
    assert "COMPLETE" in done.stdout


def test_the_database_commands_print_json(cli: CommandLine, tmp_path: Path) -> None:
    """`db` opens the store itself: its status, a backup, and that backup restored to another file."""
    status = cli.json("db", "status")
    assert status["database"] == str(cli.folder / "state/forewarn.db")
    copy = str(tmp_path / "copy.db")
    assert cli.json("db", "backup", copy)["bytes"] > 0
    elsewhere = ["--store", f"sqlite:{tmp_path}/other.db"]
    assert cli.json("db", "restore", copy, *elsewhere)["backup"] == copy
    assert cli.json("db", "migrate", *elsewhere)["applied"] == []


def test_the_operators_token_is_never_logged(cli: CommandLine) -> None:
    """The service logs at the level debug."""
    cli.output("status")
    assert cli.token not in cli.log.read_text()
