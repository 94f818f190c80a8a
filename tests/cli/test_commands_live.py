"""Commands that follow what happens, with and without a terminal."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.addresses import own_loopback_address
from tests.cli.command_line import (
    DONE,
    FAILED,
    ID,
    CommandLine,
    first_event,
    run_on_terminal,
    serving,
)
from tests.support.waiting import PATIENCE_S, until


def read_available(process: "subprocess.Popen[str]") -> bytes:
    """Read what the process has printed so far, without waiting."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return process.stdout.buffer.read() or b""  # type: ignore[attr-defined]


def test_watch_prints_a_line_per_change(cli: CommandLine) -> None:
    """Also as JSON; Ctrl-C ends the command with 0."""
    as_text, as_json = cli.start("event", "watch", "--scope", "shop"), cli.start("event", "watch", "--json")
    assert as_text.stderr is not None
    assert as_text.stderr.readline().startswith("watching http://")
    text, json_lines = b"", b""

    def both_show_a_change() -> bool:
        nonlocal text, json_lines
        maintenance = cli.json("maintenance", "schedule", "--type", "Reboot", "--machine", "shop/web-0", "--yes")
        cli.output("maintenance", "cancel", maintenance["id"])
        text += read_available(as_text)
        json_lines += read_available(as_json)
        return b"event cancelled shop" in text and b'"action":"event cancelled"' in json_lines

    until(both_show_a_change)
    for process in (as_text, as_json):
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == DONE
    assert all(isinstance(json.loads(line), dict) for line in json_lines.splitlines())


def test_waiting_ends_after_the_timeout(cli: CommandLine, planned: dict[str, Any]) -> None:
    """The exit code is 1, and the maintenance continues."""
    result = cli.run("maintenance", "wait", planned["id"], "--timeout", "1s")
    assert result.returncode == FAILED
    assert "has not ended in time" in result.stderr
    assert cli.json("maintenance", "show", planned["id"])["status"] == "Planned"


def test_follow_as_json_prints_a_line_per_change(cli: CommandLine, planned: dict[str, Any]) -> None:
    """Each line is the whole maintenance; the last has its final status."""
    follower = cli.start("maintenance", "show", planned["id"], "--follow", "--json")
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["status"] == "Planned"
    cli.output("maintenance", "pause", planned["id"])
    cli.output("maintenance", "cancel", planned["id"])
    output, errors = follower.communicate(timeout=PATIENCE_S)
    assert follower.returncode == DONE, errors
    assert json.loads(output.splitlines()[-1])["status"] == "Cancelled"


def test_on_a_terminal_each_wave_has_a_bar(cli: CommandLine) -> None:
    """The plan and the question come first; after Ctrl-C the maintenance continues."""
    code, output = run_on_terminal(
        cli,
        *["maintenance", "schedule", "--type", "Reboot", "--scope", "shop", "--wait", "done"],
        typed=b"y\n",
        interrupt_at=lambda text: "wave 3" in text,
    )
    assert code == FAILED
    assert "Schedule this? [y/N]" in output
    for wave in ("wave 1", "wave 2", "wave 3"):
        assert re.search(wave + r"\s+━+\s+0/1\s+shop#", output)
    assert "no longer following" in output
    printed_id = ID.search(output)
    assert printed_id is not None
    cli.output("maintenance", "cancel", printed_id[0])


def test_watch_on_a_terminal_shows_open_events(cli: CommandLine, planned: dict[str, Any]) -> None:
    """Until Ctrl-C."""
    short = first_event(planned)["id"][:8]
    code, output = run_on_terminal(cli, "event", "watch", interrupt_at=lambda text: short in text)
    assert code == DONE
    assert "open event" in output


def test_a_command_waits_for_a_restarted_service(tmp_path: Path) -> None:
    """`maintenance wait` continues after the restart."""
    address = own_loopback_address()
    with serving(tmp_path, "--clock", "manual", "--operator", f"{address}:0") as first:
        maintenance = first.json(
            "maintenance", "schedule", "--type", "Reboot", "--scope", "quiet", "--yes", "--no-notice-ok"
        )
        first.open_order()  # so that the command sees the maintenance Running before the restart
        port = first.url.rpartition(":")[2]
        follower = first.start("maintenance", "wait", maintenance["id"])
        assert follower.stdout is not None
        assert "2 waves" in follower.stdout.readline()
        first.stop()
    second = CommandLine(tmp_path, "--clock", "manual", "--operator", f"{address}:{port}")
    try:
        for _ in range(2):
            order = second.open_order()
            second.output("order", "finish", order["id"])
        output, errors = follower.communicate(timeout=PATIENCE_S)
        assert follower.returncode == DONE, errors
        assert "Running -> Completed" in output
    finally:
        second.kill()
