"""An operator's automation with the command line alone: state a fleet, roll through it, do the work, see the inventory follow."""

from pathlib import Path

from tests.cli.house import DONE, FLEET, House, serving
from tests.support.waiting import until


def enable(house: House) -> None:
    """The machines of the shop ask for events: they are owed notice."""
    for number in (1, 2, 3):
        house.poll(f"127.0.1.{number}")


def hosts(house: House) -> dict[str, str]:
    return {machine["name"]: machine["host"] for machine in house.json("machine", "list", "--scope", "shop")["items"]}


def work(house: House, wave: int, *, fails: bool = False) -> None:
    """One wave: its notice runs out, its order is taken, the work is done elsewhere, and the machine has a new host."""
    house.say("clock", "advance", "15m")
    order = house.order()
    machine = f"shop/web-{wave}"
    assert order["machines"] == [machine]
    house.say("order", "start", order["id"])
    if fails:
        house.say("order", "fail", order["id"], "--reason", "the disk is on fire")
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
    shown = house.say("event", "show", order["id"])
    assert "| and rebooted" in shown


def test_a_rolling_reboot_with_a_failed_order(tmp_path: Path) -> None:
    """Schedule, wait, take each order, work, finish with a new host; one order fails and is retried."""
    with serving(tmp_path, "--clock", "manual", fleet="") as house:
        (tmp_path / "fleet.toml").write_text(FLEET)
        assert "fleet: 10 differences would be applied" in house.say("fleet", "diff", str(tmp_path / "fleet.toml"))
        assert "fleet: 10 differences applied" in house.say("fleet", "apply", str(tmp_path / "fleet.toml"))
        assert house.say("fleet", "apply", str(tmp_path / "fleet.toml")) == "fleet: no difference\n"
        enable(house)
        made = house.json("maintenance", "schedule", "--type", "Reboot", "--scope", "shop", "--yes")
        follower = house.begin("maintenance", "wait", made["id"], "--timeout", "100s")
        for wave in range(3):
            until(lambda: len(house.json("event", "list", "--status", "Scheduled")["items"]) == 1)
            work(house, wave, fails=wave == 1)
        told, complaints = follower.communicate(timeout=30)
        assert follower.returncode == DONE, complaints
        assert hosts(house) == {"web-0": "new-0", "web-1": "new-1", "web-2": "new-2"}
        assert "3 completed" in house.say("status")
    lines = told.splitlines()
    assert sum("Scheduled -> Started" in line for line in lines) == 3
    assert sum("Started -> Completed" in line for line in lines) == 3
    assert any("its order failed (the disk is on fire)" in line for line in lines)
    assert lines[-1].endswith("Running -> Completed")


def test_schedule_and_wait_in_one_command(tmp_path: Path) -> None:
    """`--wait done` ends with 0 when everything is done, with the maintenance as JSON; work is pretended here."""
    with serving(tmp_path, "--clock", "600x", "--executor", "simulated") as house:
        words = ["maintenance", "schedule", "--type", "Reboot", "--scope", "quiet", "--yes", "--no-notice-ok"]
        done = house.json(*words, "--wait", "done", "--timeout", "60s")
        assert done["status"] == "Completed"
        assert [event["status"] for wave in done["waves"] for event in wave["events"]] == ["Completed", "Completed"]
