"""The recipes of the documentation, run by `forewarn-agent simulate` with stand-ins for the programs they call."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.folders import folder_for_every_user
from tests.support.own_network import clean_environment
from tests.support.patroni_cluster import AS_POSTGRES, BINARIES
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/guide/handlers/recipes.md").read_text("utf-8")
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
*state=drain*) if [ -e running ]; then echo draining; else echo drained; fi > state; echo forewarn > reason ;;
*state=resume*) echo idle > state; echo none > reason ;;
requeue*) rm running; echo drained > state ;;
"""
PSQL = """
*CONNECTIONS\\ false*) touch closed ;;
*CONNECTIONS\\ true*) rm -f closed ;;
*RESET*) rm marked ;;
*SET*) touch marked ;;
*terminate*) rm -f idle ;;
*db_role_setting*) if [ -e marked ]; then echo 1; else echo 0; fi ;;
*count*) if [ -e busy ]; then rm busy; echo 1; else echo 0; fi ;;
*NOT\\ datallowconn*) if [ -e closed ] && [ ! -e idle ]; then echo t; else echo f; fi ;;
*datallowconn*) if [ -e closed ]; then echo f; else echo t; fi ;;
"""
WORKCTL = """
paused*) cat paused 2>/dev/null ;;
pause*) echo "$5" > paused ;;
reassign*) echo 0 > held ;;
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
[time.sleep(0.02) for _ in range(3_000)]  # a signal just before a long sleep is handled after it
' celery >/dev/null 2>&1 </dev/null & ;;
"""


# The agent's own program, but that it does not wait long before it tries again what failed.
HASTY = "from forewarn.guest import agent, main; agent.RETRY_S = (0.1,) * 7; main.main()"


class RecipeMachine:
    """A machine with stand-ins first on its PATH, and what they keep as files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()

    def stand_in(self, name: str, cases: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(STAND_IN.format(folder=self.folder, name=name, cases=cases))
        path.chmod(0o755)

    def write(self, name: str, text: str = "x\n") -> None:
        (self.folder / name).write_text(text)

    def exists(self, name: str) -> bool:
        return (self.folder / name).exists()

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def simulate(self, recipe: str, timeout: str = "1m") -> "subprocess.CompletedProcess[str]":
        """By the agent's own command, with the step's time cut short."""
        toml = re.sub(r'timeout = "\d+m"', f'timeout = "{timeout}"', RECIPES[recipe]).replace(
            "/run/celery", str(self.folder)
        )
        config = self.folder / "agent.toml"
        config.write_text(f'state_dir = "agent"\nname = "db-0"\n{toml}')
        config.chmod(0o600)
        environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
        words = [sys.executable, "-c", HASTY, "simulate", "Redeploy", "--in", "5m", "--config", str(config)]
        return subprocess.run(
            words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
        )


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[RecipeMachine]:
    made = RecipeMachine(tmp_path)
    yield made
    if made.exists("worker.pid"):
        pid = int((tmp_path / "worker.pid").read_text())
        if Path(f"/proc/{pid}").exists() and "celery" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)


def good(done: "subprocess.CompletedProcess[str]") -> None:
    assert "it would be approved" in done.stdout, done.stdout + done.stderr
    assert "undone: the machine is as before" in done.stdout
    assert done.returncode == 0


def refused(done: "subprocess.CompletedProcess[str]", message: str) -> None:
    assert f"it would not be approved: required step {message}" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1


def stuck(done: "subprocess.CompletedProcess[str]") -> None:
    """Assert that a program did not answer, that the agent reported it, and that the machine is not back."""
    assert "NOT UNDONE" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1


def test_every_recipe_is_tried_here() -> None:
    """Those of the page are those below."""
    assert [heading.partition(":")[0] for heading in RECIPES] == [
        "Kubernetes", "Slurm", "Celery", "A database's transactions in flight", "Reassigning work",
    ]  # fmt: skip


KUBERNETES = "Kubernetes: cordon, drain, uncordon"


def test_kubernetes(machine: RecipeMachine) -> None:
    """Cordoned, drained, seen empty; then ready, uncordoned, and no trace is left."""
    machine.stand_in("kubectl", KUBECTL)
    machine.write("pods", "ReplicaSet\n")
    good(machine.simulate(KUBERNETES))
    verbs = [call.split()[1] for call in machine.calls]
    assert [verb for verb in verbs if verb != "get"] == [
        "annotate", "cordon", "drain", "wait", "uncordon", "annotate",
    ]  # fmt: skip
    assert not machine.exists("cordoned")
    assert not machine.exists("annotated")


def test_kubernetes_leaves_a_node_that_was_cordoned_before(machine: RecipeMachine) -> None:
    """A node that a person cordoned stays cordoned."""
    machine.stand_in("kubectl", KUBECTL)
    machine.write("cordoned")
    good(machine.simulate(KUBERNETES))
    assert machine.exists("cordoned")


@pytest.mark.parametrize("lie", [True, False])
def test_kubernetes_when_pods_do_not_end(machine: RecipeMachine, lie: bool) -> None:
    """Whether drain fails or a pod still runs, the event is not approved, and the node returns to service."""
    machine.stand_in("kubectl", KUBECTL.replace("[ -e cordoned ] && rm -f pods", "true") if lie else KUBECTL)
    machine.write("pods", "ReplicaSet\n")
    machine.write("fails", "" if lie else "kubectl drain")
    refused(machine.simulate(KUBERNETES), "'drain the node' is not prepared")
    assert not machine.exists("cordoned")


def test_kubernetes_when_the_api_does_not_answer(machine: RecipeMachine) -> None:
    """Before the event it is not approved; after it the node returns when the API answers."""
    machine.stand_in("kubectl", KUBECTL)
    machine.write("fails", "annotations")
    stuck(machine.simulate(KUBERNETES))
    assert machine.exists("cordoned")
    machine.write("fails", "")
    good(machine.simulate(KUBERNETES))
    assert not machine.exists("cordoned")
    machine.write("cordoned")
    machine.write("fails", "unschedulable")
    refused(machine.simulate(KUBERNETES), "'drain the node' is not prepared")
    assert not machine.exists("annotated")
    assert machine.exists("cordoned")  # somebody else's


SLURM = "Slurm: drain and requeue"


@pytest.fixture
def slurm(machine: RecipeMachine) -> RecipeMachine:
    for name, cases in (("sinfo", SINFO), ("scontrol", SCONTROL), ("squeue", "*) cat running 2>/dev/null; true ;;")):
        machine.stand_in(name, cases)
    return machine


def test_slurm_when_the_controller_does_not_answer(slurm: RecipeMachine) -> None:
    """Before the event no reason is overwritten; after it the node is not left drained."""
    slurm.write("state", "drained\n")
    slurm.write("reason", "broken fan\n")
    slurm.write("fails", "sinfo")
    stuck(slurm.simulate(SLURM))
    assert (slurm.folder / "reason").read_text() == "broken fan\n"
    slurm.write("state", "mixed\n")
    slurm.write("running", "17\n")
    slurm.write("fails", "squeue")
    refused(slurm.simulate(SLURM), "'drain the Slurm node' is not prepared")
    slurm.write("fails", "%E")
    stuck(slurm.simulate(SLURM))
    assert (slurm.folder / "state").read_text() == "drained\n"
    slurm.write("fails", "")
    good(slurm.simulate(SLURM))
    assert (slurm.folder / "state").read_text() == "idle\n"


def test_slurm(slurm: RecipeMachine) -> None:
    """Drained for our reason, what ran is requeued, then resumed."""
    machine = slurm
    machine.write("state", "mixed\n")
    machine.write("reason", "none\n")
    machine.write("running", "17\n")
    good(machine.simulate(SLURM))
    assert "scontrol requeue 17" in machine.calls
    assert (machine.folder / "state").read_text() == "idle\n"
    machine.write("state", "drained\n")
    machine.write("reason", "broken fan\n")
    good(machine.simulate(SLURM))
    assert (machine.folder / "state").read_text() == "drained\n"  # somebody else's
    machine.write("state", "mixed\n")
    machine.write("running", "18\n")
    machine.write("fails", "scontrol requeue")
    refused(machine.simulate(SLURM), "'drain the Slurm node' is not prepared: sh ended with 1")
    assert (machine.folder / "state").read_text() == "idle\n"


def test_celery(machine: RecipeMachine) -> None:
    """Ended by itself when what it had was done, and started again."""
    machine.stand_in("celery", CELERY)
    subprocess.run([machine.folder / "bin" / "celery", "worker"], check=True)
    until(lambda: machine.exists("worker.pid"))
    good(machine.simulate("Celery: a warm shutdown"))
    assert machine.exists("finished")
    assert machine.calls[-1] == f"celery --app shop worker --detach --pidfile={machine.folder}/worker.pid"


def test_celery_with_a_worker_that_does_not_end(machine: RecipeMachine) -> None:
    """Not approved, and it is never killed."""
    machine.stand_in("celery", CELERY)
    machine.write("stubborn")
    subprocess.run([machine.folder / "bin" / "celery", "worker"], check=True)
    until(lambda: machine.exists("worker.pid"))
    refused(machine.simulate("Celery: a warm shutdown", "5s"), "'let the worker finish' is not prepared: process")
    assert Path("/proc", (machine.folder / "worker.pid").read_text()).exists()


TRANSACTIONS = "A database's transactions in flight"


def test_transactions_in_flight(machine: RecipeMachine) -> None:
    """Nobody new, those in the middle may end, the rest are closed; when it fails the door is open again."""
    machine.stand_in("psql", PSQL)
    machine.write("busy")
    machine.write("idle")
    good(machine.simulate(TRANSACTIONS))
    statements = [
        re.sub(r".*-qAtc ", "", call) for call in machine.calls if "SELECT" not in call and "WHERE" not in call
    ]
    assert statements == [
        "ALTER DATABASE shop SET forewarn.closed = 'yes'",
        "ALTER DATABASE shop ALLOW_CONNECTIONS false",
        "CHECKPOINT",
        "ALTER DATABASE shop ALLOW_CONNECTIONS true",
        "ALTER DATABASE shop RESET forewarn.closed",
    ]
    machine.write("fails", "CHECKPOINT")
    refused(machine.simulate(TRANSACTIONS), "'let transactions end' is not prepared: sh ended with 1")
    assert not machine.exists("closed")


def test_a_database_that_was_closed_before_stays_closed(machine: RecipeMachine) -> None:
    """It has no mark of ours, and a missing answer does not count as a mark."""
    machine.stand_in("psql", PSQL)
    machine.write("closed")
    good(machine.simulate(TRANSACTIONS))
    assert machine.exists("closed")
    (machine.folder / "closed").unlink()
    machine.write("fails", "pg_db_role_setting")
    stuck(machine.simulate(TRANSACTIONS))
    machine.write("fails", "")
    good(machine.simulate(TRANSACTIONS))
    assert not machine.exists("closed")
    assert not machine.exists("marked")


def test_the_transactions_recipe_on_a_real_server(tmp_path: Path) -> None:
    """PostgreSQL understands the recipe: the database is closed and marked, then open and unmarked."""
    (step,) = tomllib.loads(RECIPES[TRANSACTIONS])["steps"]
    with database() as environment:
        ask = ["psql", "--dbname", "postgres", "-qAtc"]
        subprocess.run([*ask, "CREATE DATABASE shop"], env=environment, check=True, timeout=60)

        def shop() -> str:
            words = (
                "SELECT datallowconn, (SELECT count(*) FROM pg_db_role_setting) FROM pg_database WHERE datname = 'shop'"
            )
            done = subprocess.run(
                [*ask, words], env=environment, check=True, capture_output=True, text=True, timeout=60
            )
            return done.stdout.strip()

        def does(phase: str) -> int:
            return subprocess.run(step["command"][phase], env=environment, check=False, timeout=60).returncode

        assert does("verify") != 0
        assert does("prepare") == 0
        assert shop() == "f|1"
        assert does("prepare") == 0  # again does no harm
        assert does("verify") == 0
        assert does("recover") == 0
        assert shop() == "t|0"
        subprocess.run([*ask, "ALTER DATABASE shop ALLOW_CONNECTIONS false"], env=environment, check=True, timeout=60)
        assert [does("prepare"), does("verify"), does("recover")] == [0, 0, 0]
        assert shop() == "f|0"


@contextmanager
def database() -> Iterator[dict[str, str]]:
    """Run a real server in a folder, and yield the variables by which psql finds it."""
    folder = folder_for_every_user("recipes-")
    try:
        inner = folder / "data"
        inner.mkdir()
        shutil.chown(inner, "postgres", "postgres")
        initdb = [*AS_POSTGRES, str(BINARIES[-1] / "initdb"), "-D", str(inner), "-A", "trust", "--no-sync"]
        subprocess.run(initdb, cwd="/", env=clean_environment(), check=True, stdout=subprocess.DEVNULL, timeout=60)
        words = [*AS_POSTGRES, str(BINARIES[-1] / "postgres"), "-D", str(inner), "-k", str(inner), "-h", "", "-F"]
        with (folder / "log").open("ab") as log:
            server = subprocess.Popen(words, cwd="/", env=clean_environment(), stdout=log, stderr=log)
        environment = {**clean_environment(), "PGHOST": str(inner), "PGUSER": "postgres"}
        try:
            up = ["psql", "--dbname", "postgres", "-qAtc", "SELECT 1"]
            until(lambda: subprocess.run(up, env=environment, capture_output=True, check=False).returncode == 0)
            yield environment
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


REASSIGN = "Reassigning work"


def test_reassigning_work(machine: RecipeMachine) -> None:
    """Work is paused, reassigned and gone; a program that still has work is not believed."""
    machine.stand_in("workctl", WORKCTL)
    machine.write("held", "3\n")
    good(machine.simulate(REASSIGN))
    verbs = [call.split()[1] for call in machine.calls]
    assert [verb for verb in verbs if verb not in ("held", "paused")] == ["pause", "reassign", "resume"]
    machine.stand_in("workctl", WORKCTL.replace("echo 0 > held", "true"))
    machine.write("held", "3\n")
    refused(
        machine.simulate(REASSIGN),
        "'give the work to others' is not prepared: it ended without an error, but its verify says",
    )
    assert not machine.exists("paused")


def test_reassigning_work_checks_whether_it_is_paused(machine: RecipeMachine) -> None:
    """Having no work is not enough; what a person paused stays paused, and a missing answer proves nothing."""
    machine.write("held", "0\n")
    machine.stand_in("workctl", WORKCTL.replace('echo "$5" > paused', "true"))
    refused(machine.simulate(REASSIGN), "'give the work to others' is not prepared")
    machine.stand_in("workctl", WORKCTL)
    machine.write("paused", "by hand\n")
    good(machine.simulate(REASSIGN))
    assert (machine.folder / "paused").read_text() == "by hand\n"
    (machine.folder / "paused").unlink()
    machine.stand_in("workctl", WORKCTL.replace("resume*)", "resume*) [ ! -e silent ] || exit 1;"))
    machine.write("silent")
    stuck(machine.simulate(REASSIGN))
    (machine.folder / "silent").unlink()
    good(machine.simulate(REASSIGN))
    assert not machine.exists("paused")
