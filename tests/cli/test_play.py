"""An operator's automation with the command line alone: state a fleet, roll through it, do the work, see the inventory follow."""

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.house import DONE, FLEET, House, serving
from tests.support.waiting import PATIENCE_S, until


def enable(house: House) -> None:
    """The machines of the shop ask for events: they are owed notice."""
    for number in (1, 2, 3):
        house.poll(f"127.0.1.{number}")


def hosts(house: House) -> dict[str, str]:
    return {machine["name"]: machine["host"] for machine in house.json("machine", "list", "--scope", "shop")["items"]}


class Follower:
    """A command that follows a maintenance; `lines` are what it has printed so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.lines: list[str] = []
        self._process = process
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip())

    def tells(self, what: str, times: int = 1) -> None:
        """Wait until it has printed this: what changes back before it looks is not printed at all."""
        until(lambda: self.count(what) >= times, detail=lambda: f"{what}: {self.lines}")

    def count(self, what: str) -> int:
        return sum(what in line for line in self.lines)

    def end(self) -> int:
        self._reading.join(PATIENCE_S)
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def work(house: House, wave: int, tells: Callable[[str, int], None], *, fails: bool = False) -> None:
    """One wave: its notice runs out, its order is taken, the work is done elsewhere, and the machine has a new host."""
    house.say("clock", "advance", "15m")
    tells("Scheduled -> Started", wave + 1)
    order = house.order()
    machine = f"shop/web-{wave}"
    assert order["machines"] == [machine]
    house.say("order", "start", order["id"])
    if fails:
        house.say("order", "fail", order["id"], "--reason", "the disk is on fire")
        tells("its order failed (the disk is on fire)", 1)
        assert "its order failed (the disk is on fire)" in house.say("event", "why", order["id"])
        assert "1 failed" in house.say("status")
        assert house.json("maintenance", "list")["items"][0]["status"] == "Paused"
        house.say("event", "retry", order["id"])
        again = house.order()
        assert (again["id"], again["attempt"]) == (order["id"], 2)
        house.say("order", "start", order["id"])
    log = house.folder / "work.log"
    log.write_text("moved\nand rebooted\n")
    house.say("order", "finish", order["id"], "--new-host", f"{machine}=new-{wave}", "--output", str(log))
    tells("Started -> Completed", wave + 1)
    shown = house.say("event", "show", order["id"])
    assert "| and rebooted" in shown


@pytest.mark.timeout(300)  # it starts some thirty programs, one after the other
def test_a_rolling_reboot_with_a_failed_order(tmp_path: Path) -> None:
    """Schedule, wait, take each order, work, finish with a new host; one order fails and is retried."""
    with serving(tmp_path, "--clock", "manual", fleet="") as house:
        (tmp_path / "fleet.toml").write_text(FLEET)
        assert "fleet: 10 differences would be applied" in house.say("fleet", "diff", str(tmp_path / "fleet.toml"))
        assert "fleet: 10 differences applied" in house.say("fleet", "apply", str(tmp_path / "fleet.toml"))
        assert house.say("fleet", "apply", str(tmp_path / "fleet.toml")) == "fleet: no difference\n"
        enable(house)
        made = house.json("maintenance", "schedule", "--type", "Reboot", "--scope", "shop", "--yes")
        follower = Follower(house.begin("maintenance", "wait", made["id"], "--timeout", "1h"))
        try:
            follower.tells("3 waves")
            for wave in range(3):
                follower.tells("Planned -> Scheduled", wave)
                assert len(house.json("event", "list", "--status", "Scheduled")["items"]) == 1
                work(house, wave, follower.tells, fails=wave == 1)
            assert follower.end() == DONE
        finally:
            follower.kill()
        assert hosts(house) == {"web-0": "new-0", "web-1": "new-1", "web-2": "new-2"}
        assert "3 completed" in house.say("status")
    assert follower.count("Scheduled -> Started") == 3
    assert follower.count("Started -> Completed") == 3
    assert follower.count("its order failed (the disk is on fire)") == 1
    assert follower.lines[-1].endswith("Running -> Completed")


def test_schedule_and_wait_in_one_command(tmp_path: Path) -> None:
    """`--wait done` ends with 0 when everything is done, with the maintenance as JSON; work is pretended here."""
    with serving(tmp_path, "--clock", "600x", "--executor", "simulated") as house:
        words = ["maintenance", "schedule", "--type", "Reboot", "--scope", "quiet", "--yes", "--no-notice-ok"]
        done = house.json(*words, "--wait", "done", "--timeout", "1h")
        assert done["status"] == "Completed"
        assert [event["status"] for wave in done["waves"] for event in wave["events"]] == ["Completed", "Completed"]
