"""A rolling reboot that an operator automates with the command line alone: apply a fleet, take orders, report their end."""

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from tests.cli.command_line import DONE, FLEET, CommandLine, serving
from tests.support.waiting import PATIENCE_S, until


def enable(cli: CommandLine) -> None:
    """Poll for events as the machines of the shop, so that they get notice."""
    for number in (1, 2, 3):
        cli.poll(f"127.0.1.{number}")


def hosts(cli: CommandLine) -> dict[str, str]:
    return {machine["name"]: machine["host"] for machine in cli.json("machine", "list", "--scope", "shop")["items"]}


class Follower:
    """A command that follows a maintenance; `lines` holds its output so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.lines: list[str] = []
        self._process = process
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip())

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait for lines with this text. Without the wait, a change that is undone before the next read is not printed."""
        until(lambda: self.count(text) >= times, detail=lambda: f"{text}: {self.lines}")

    def count(self, text: str) -> int:
        return sum(text in line for line in self.lines)

    def end(self) -> int:
        self._reading.join(PATIENCE_S)
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def do_wave(cli: CommandLine, wave: int, wait_for: Callable[[str, int], None], *, fails: bool = False) -> None:
    """Let the notice of a wave end, take its order, and report the work done, with a new host for the machine."""
    cli.output("clock", "advance", "15m")
    wait_for("Scheduled -> Started", wave + 1)
    order = cli.open_order()
    machine = f"shop/web-{wave}"
    assert order["machines"] == [machine]
    cli.output("order", "start", order["id"])
    if fails:
        cli.output("order", "fail", order["id"], "--reason", "the disk is on fire")
        wait_for("its order failed (the disk is on fire)", 1)
        assert "its order failed (the disk is on fire)" in cli.output("event", "why", order["id"])
        assert "1 failed" in cli.output("status")
        assert cli.json("maintenance", "list")["items"][0]["status"] == "Paused"
        cli.output("event", "retry", order["id"])
        again = cli.open_order()
        assert (again["id"], again["attempt"]) == (order["id"], 2)
        cli.output("order", "start", order["id"])
    log = cli.folder / "work.log"
    log.write_text("moved\nand rebooted\n")
    cli.output("order", "finish", order["id"], "--new-host", f"{machine}=new-{wave}", "--output", str(log))
    wait_for("Started -> Completed", wave + 1)
    history = [line.rstrip() for line in cli.output("event", "show", order["id"]).splitlines()]
    assert any(line.endswith("| and rebooted") for line in history)
    assert not any(line.endswith("|") for line in history), "the line feed at the end of the output begins no line"


def test_a_rolling_reboot_with_a_failed_order(tmp_path: Path) -> None:
    """Each order is taken and finished with a new host; one order fails and is retried, and `show --follow` shows it all."""
    with serving(tmp_path, "--clock", "manual", fleet="") as cli:
        (tmp_path / "fleet.toml").write_text(FLEET)
        assert "fleet: 10 differences would be applied" in cli.output("fleet", "diff", str(tmp_path / "fleet.toml"))
        assert "fleet: 10 differences applied" in cli.output("fleet", "apply", str(tmp_path / "fleet.toml"))
        assert cli.output("fleet", "apply", str(tmp_path / "fleet.toml")) == "fleet: no difference\n"
        enable(cli)
        maintenance = cli.json("maintenance", "schedule", "--type", "Reboot", "--scope", "shop", "--yes")
        follower = Follower(cli.start("maintenance", "show", maintenance["id"], "--follow"))
        try:
            follower.wait_for("3 waves")
            for wave in range(3):
                follower.wait_for("Planned -> Scheduled", wave)
                assert len(cli.json("event", "list", "--status", "Scheduled")["items"]) == 1
                do_wave(cli, wave, follower.wait_for, fails=wave == 1)
            assert follower.end() == DONE
        finally:
            follower.kill()
        assert hosts(cli) == {"web-0": "new-0", "web-1": "new-1", "web-2": "new-2"}
        assert "3 completed" in cli.output("status")
    assert follower.count("Scheduled -> Started") == 3
    assert follower.count("Started -> Completed") == 3
    assert follower.count("its order failed (the disk is on fire)") == 1
    assert follower.lines[-1].endswith("Running -> Completed")


def test_schedule_and_wait_in_one_command(tmp_path: Path) -> None:
    """`--wait done` ends with 0 when everything is done and prints the maintenance as JSON; the executor is simulated."""
    with serving(tmp_path, "--clock", "600x", "--executor", "simulated") as cli:
        arguments = ["maintenance", "schedule", "--type", "Reboot", "--scope", "quiet", "--yes", "--no-notice-ok"]
        done = cli.json(*arguments, "--wait", "done", "--timeout", "1h")
        assert done["status"] == "Completed"
        assert [event["status"] for wave in done["waves"] for event in wave["events"]] == ["Completed", "Completed"]
