"""The recipes of the documentation, rehearsed by a real agent with stand-ins for the programs they call."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_serve import until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/handlers/recipes.md").read_text("utf-8")
RECIPES: dict[str, str] = dict(re.findall(r"^## ([^\n]*)\n\n```toml\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL))
# Every stand-in writes down how it was called, and fails when the call has in it what `fails` says.
STAND_IN = """#!/bin/sh
cd "{folder}"
printf '%s\\n' "{name} $*" >> calls
[ -s fails ] && case "{name} $*" in *"$(cat fails)"*) exit 1 ;; esac
case "$*" in
{cases}
esac
exit 0
"""
KUBECTL = """
"get node"*unschedulable*) [ -e cordoned ] && echo true ;;
"get node"*annotations*) cat annotated 2>/dev/null ;;
"annotate --overwrite"*) echo yes > annotated ;;
annotate*) rm annotated ;;
cordon*) touch cordoned ;;
uncordon*) rm cordoned ;;
drain*) [ -e cordoned ] && rm -f pods ;;
"get pods"*) printf 'DaemonSet\\nNode\\n'; cat pods 2>/dev/null ;;
"""
SINFO = """
*%T) cat state ;;
*%E) cat reason ;;
"""
SCONTROL = """
*state=drain*) echo draining > state; echo forewarn > reason ;;
*state=resume*) echo idle > state; echo none > reason ;;
requeue*) rm running; echo drained > state ;;
"""
PSQL = """
*false*) touch closed ;;
*true*) rm -f closed ;;
*terminate*) rm -f idle ;;
*count*) if [ -e busy ]; then rm busy; echo 1; else echo 0; fi ;;
*datallowconn*) if [ -e closed ] && [ ! -e idle ]; then echo t; else echo f; fi ;;
"""
WORKCTL = """
pause*) touch paused ;;
reassign*) [ -e paused ] && echo 0 > held ;;
held*) cat held ;;
resume*) rm -f paused ;;
"""
# Finishes what it has when it is told to end.
CELERY = """
*worker*) setsid python3 -c '
import os, pathlib, signal, sys, time
def end(*_):
    time.sleep(0.3)
    pathlib.Path("finished").touch()
    sys.exit()
signal.signal(signal.SIGTERM, signal.SIG_IGN if os.path.exists("stubborn") else end)
pathlib.Path("new").write_text(str(os.getpid()))
pathlib.Path("new").rename("worker.pid")
time.sleep(60)
' celery >/dev/null 2>&1 </dev/null & ;;
"""


class House:
    """A machine with stand-ins first on its PATH, and what they keep as files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()

    def stand_in(self, name: str, cases: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(STAND_IN.format(folder=self.folder, name=name, cases=cases))
        path.chmod(0o755)

    def has(self, name: str, text: str = "x\n") -> None:
        (self.folder / name).write_text(text)

    def there(self, name: str) -> bool:
        return (self.folder / name).exists()

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def rehearse(self, recipe: str) -> "subprocess.CompletedProcess[str]":
        """By the agent's own command, with the step's time cut short."""
        toml = re.sub(r'timeout = "\d+m"', 'timeout = "5s"', RECIPES[recipe]).replace("/run/celery", str(self.folder))
        config = self.folder / "agent.toml"
        config.write_text(f'state_dir = "agent"\nname = "db-0"\n{toml}')
        config.chmod(0o600)
        environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
        words = [sys.executable, "-m", "forewarn.guest", "simulate", "Redeploy", "--in", "5m", "--config", str(config)]
        return subprocess.run(
            words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60, check=False
        )


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    if made.there("worker.pid"):
        pid = int((tmp_path / "worker.pid").read_text())
        if Path(f"/proc/{pid}").exists() and "celery" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)


def good(done: "subprocess.CompletedProcess[str]") -> None:
    assert "it would be approved" in done.stdout, done.stdout + done.stderr
    assert "undone: the machine is as before" in done.stdout
    assert done.returncode == 0


def refused(done: "subprocess.CompletedProcess[str]", told: str) -> None:
    assert f"it would not be approved: required step {told}" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1


def test_every_recipe_is_tried_here() -> None:
    """Those of the page are those below."""
    assert [heading.partition(":")[0] for heading in RECIPES] == [
        "Kubernetes", "Slurm", "Celery", "A database's transactions in flight", "Reassigning work",
    ]  # fmt: skip


KUBERNETES = "Kubernetes: cordon, drain, uncordon"


def test_kubernetes(house: House) -> None:
    """Cordoned, drained, seen empty; then ready, uncordoned, and no trace is left."""
    house.stand_in("kubectl", KUBECTL)
    house.has("pods", "ReplicaSet\n")
    good(house.rehearse(KUBERNETES))
    verbs = [call.split()[1] for call in house.calls]
    assert [verb for verb in verbs if verb != "get"] == [
        "annotate", "cordon", "drain", "wait", "uncordon", "annotate",
    ]  # fmt: skip
    assert not house.there("cordoned")
    assert not house.there("annotated")


def test_kubernetes_leaves_a_node_that_was_cordoned_before(house: House) -> None:
    """What somebody else took out of service stays out."""
    house.stand_in("kubectl", KUBECTL)
    house.has("cordoned")
    good(house.rehearse(KUBERNETES))
    assert house.there("cordoned")


@pytest.mark.parametrize("lie", [True, False])
def test_kubernetes_when_pods_do_not_go(house: House, lie: bool) -> None:
    """Whether drain fails, or says it is done while a pod still runs: not approved, and back in service."""
    house.stand_in("kubectl", KUBECTL.replace("[ -e cordoned ] && rm -f pods", "true") if lie else KUBECTL)
    house.has("pods", "ReplicaSet\n")
    house.has("fails", "" if lie else "kubectl drain")
    refused(house.rehearse(KUBERNETES), "'drain the node' is not prepared")
    assert not house.there("cordoned")


SLURM = "Slurm: drain and requeue"


def test_slurm(house: House) -> None:
    """Drained for our reason, what ran is requeued, then resumed."""
    for name, cases in (("sinfo", SINFO), ("scontrol", SCONTROL), ("squeue", "*) cat running 2>/dev/null ;;")):
        house.stand_in(name, cases)
    house.has("state", "mixed\n")
    house.has("reason", "none\n")
    house.has("running", "17\n")
    good(house.rehearse(SLURM))
    assert "scontrol requeue 17" in house.calls
    assert (house.folder / "state").read_text() == "idle\n"
    house.has("state", "drained\n")
    house.has("reason", "broken fan\n")
    good(house.rehearse(SLURM))
    assert (house.folder / "state").read_text() == "drained\n"  # somebody else's
    house.has("state", "mixed\n")
    house.has("running", "18\n")
    house.has("fails", "scontrol requeue")
    refused(house.rehearse(SLURM), "'drain the Slurm node' is not prepared: sh ended with 1")
    assert (house.folder / "state").read_text() == "idle\n"


def test_celery(house: House) -> None:
    """Ended by itself when what it had was done, and started again."""
    house.stand_in("celery", CELERY)
    subprocess.run([house.folder / "bin" / "celery", "worker"], check=True)
    until(lambda: house.there("worker.pid"))
    good(house.rehearse("Celery: a warm shutdown"))
    assert house.there("finished")
    assert house.calls[-1] == f"celery --app shop worker --detach --pidfile={house.folder}/worker.pid"


def test_celery_with_a_worker_that_does_not_end(house: House) -> None:
    """Not approved, and it is never killed."""
    house.stand_in("celery", CELERY)
    house.has("stubborn")
    subprocess.run([house.folder / "bin" / "celery", "worker"], check=True)
    until(lambda: house.there("worker.pid"))
    refused(house.rehearse("Celery: a warm shutdown"), "'let the worker finish' is not prepared: process")
    assert Path("/proc", (house.folder / "worker.pid").read_text()).exists()


TRANSACTIONS = "A database's transactions in flight"


def test_transactions_in_flight(house: House) -> None:
    """Nobody new, those in the middle may end, the rest are closed; when it fails the door is open again."""
    house.stand_in("psql", PSQL)
    house.has("busy")
    house.has("idle")
    good(house.rehearse(TRANSACTIONS))
    asked = [re.sub(r".*-qAtc ", "", call) for call in house.calls]
    assert asked[0] == "ALTER DATABASE shop ALLOW_CONNECTIONS false"
    assert asked[-1] == "ALTER DATABASE shop ALLOW_CONNECTIONS true"
    assert "CHECKPOINT" in asked
    house.has("fails", "CHECKPOINT")
    refused(house.rehearse(TRANSACTIONS), "'let transactions end' is not prepared: sh ended with 1")
    assert not house.there("closed")


REASSIGN = "Reassigning work"


def test_reassigning_work(house: House) -> None:
    """Paused, reassigned, seen to hold nothing; what says so and still holds something is not believed."""
    house.stand_in("workctl", WORKCTL)
    house.has("held", "3\n")
    good(house.rehearse(REASSIGN))
    assert [call.split()[1] for call in house.calls if "held" not in call] == ["pause", "reassign", "resume"]
    house.stand_in("workctl", WORKCTL.replace("echo 0 > held", "true"))
    house.has("held", "3\n")
    refused(house.rehearse(REASSIGN), "'give the work to others' is not prepared: it ended well, but verifying says")
    assert not house.there("paused")
