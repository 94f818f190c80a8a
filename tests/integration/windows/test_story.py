"""One whole story of an agent that runs as a service of Windows, against the emulator."""

import json
import os
import shutil
import signal
from pathlib import Path

from scripts.build_agent import build

from forewarn.guest.journal import read
from forewarn.testing.emulator import Emulator
from tests.integration.windows.wine_machine import ROOT, Ended, WineMachine
from tests.support.waiting import PATIENCE_S, until

PYTHON, PYZ = "C:\\python\\python.exe", "C:\\Program Files\\forewarn\\forewarn-agent.pyz"
# Prepares in two halves, so that a test can kill the agent between them; `go` lets the second begin.
SLOW_STEP = """
import os, sys, time
with open("C:\\\\did", "a") as did:
    print("begun", file=did)
while not os.path.exists("C:\\\\go"):
    time.sleep(0.02)
with open("C:\\\\did", "a") as did:
    print("prepared", file=did)
open("C:\\\\ready", "w").close()
"""
CONFIG = r"""
endpoint = "{endpoint}"
name = "vm-0"
state_dir = 'C:\ProgramData\forewarn-agent'
[[steps]]
name = "slow"
required = true
timeout = "5m"
[steps.command]
prepare = ['{python}', 'C:\slow.py']
verify = ['cmd.exe', '/c', 'if not exist C:\ready exit 1']
recover = ['cmd.exe', '/c', 'echo recovered>>C:\did']
[[steps]]
name = "spooler"
required = true
timeout = "5m"
windows_service = {{ service = "Spooler" }}
[health]
command = ['cmd.exe', '/c', 'exit 0']
"""


def did(machine: WineMachine) -> list[str]:
    path = machine.drive / "did"
    return path.read_text().split() if path.exists() else []


def journal(machine: WineMachine) -> list[dict[str, object]]:
    path = machine.drive / "ProgramData" / "forewarn-agent" / "journal.jsonl"
    return read(path)[0]


def starts(machine: WineMachine) -> list[object]:
    """Return the boots in which agents started."""
    return [record["boot"] for record in journal(machine) if record["kind"] == "start"]


def agent_pids(machine: WineMachine) -> list[int]:
    """Return the processes of this system that run the agent's service on this machine, and not on another one."""
    prefix = os.fsencode(f"WINEPREFIX={machine.drive.parent}")
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"forewarn-agent.pyz" in line and b"--service" in line and prefix in environment.split(b"\0"):
            found.append(int(folder.name))
    return found


def state_of(machine: WineMachine, service: str) -> str:
    output = machine.run("sc.exe", "query", service).output
    return next(line.split()[-1] for line in output.splitlines() if "STATE" in line)


def start_service(machine: WineMachine, service: str) -> None:
    """Start a service of Wine. Its manager may refuse that once on a busy machine, and its sc.exe does not say why."""

    def runs() -> bool:
        machine.run("sc.exe", "start", service)
        return state_of(machine, service) == "RUNNING"

    until(runs)


def install_service(machine: WineMachine) -> Ended:
    return machine.run("cmd.exe", "/c", "C:\\service.cmd", "install", PYTHON, "C:\\agent.pyz")


def test_a_reboot_is_prepared_approved_and_recovered_from(machine: WineMachine, tmp_path: Path) -> None:
    """The agent is killed while it prepares; the next one waits for the program, approves, and after the boot recovers."""
    with Emulator(clock="system") as emulator:
        (machine.drive / "ProgramData" / "forewarn").mkdir()
        config = machine.drive / "ProgramData" / "forewarn" / "agent.toml"
        shutil.copy(ROOT / "packaging" / "forewarn-agent-service.cmd", machine.drive / "service.cmd")
        shutil.copy(build(tmp_path / "agent.pyz"), machine.drive / "agent.pyz")
        config.write_text("[[steps]]\nnme = 'one'\n")
        refused = install_service(machine)
        assert refused.code == 1
        assert "nme" in refused.output
        config.write_text(CONFIG.format(endpoint=emulator.environment["FOREWARN_ENDPOINT"], python=PYTHON))
        (machine.drive / "slow.py").write_text(SLOW_STEP)
        start_service(machine, "Spooler")

        installed = install_service(machine)
        assert installed.code == 0, installed.output
        until(lambda: len(starts(machine)) == 1)
        event = emulator.schedule("Reboot", "vm-0")
        until(lambda: did(machine) == ["begun"])

        (pid,) = agent_pids(machine)
        os.kill(pid, signal.SIGKILL)
        # Wine restarts no service that failed: start it again by hand, as its manager would, once it knows that it ended.
        until(lambda: machine.run("sc.exe", "start", "forewarn-agent").code == 0)
        until(lambda: len(starts(machine)) == 2)
        emulator.expect_no_approval(event)
        (machine.drive / "go").touch()
        emulator.expect_approval(event, within_s=PATIENCE_S, times=1)
        assert did(machine) == ["begun", "prepared"]
        assert state_of(machine, "Spooler") == "STOPPED"
        until(lambda: emulator.status(event) == "Started")
        status = machine.run(PYTHON, PYZ, "status", "--config", "C:\\ProgramData\\forewarn\\agent.toml")
        assert status.code == 0, status.output
        assert "OUT OF SERVICE" in status.output

        machine.reboot()
        until(lambda: any(record["kind"] == "in-service" for record in journal(machine)))
        first, second, third = starts(machine)
        assert first == second != third
        assert did(machine) == ["begun", "prepared", "recovered"]
        assert state_of(machine, "Spooler") == "RUNNING"
        emulator.finish(event)
        emulator.expect_no_more()
        log = (machine.drive / "ProgramData" / "forewarn-agent" / "agent.log").read_text()
        assert "the machine is back in service" in [json.loads(line)["message"] for line in log.splitlines()]
        removed = machine.run("cmd.exe", "/c", "C:\\service.cmd", "remove")
        assert removed.code == 0, removed.output
        until(lambda: not agent_pids(machine))
