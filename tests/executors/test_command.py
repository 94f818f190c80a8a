"""The command executor with real processes: what the command receives, how it ends, and that it outlives the service."""

import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forewarn.core.model import HostMode, Order, Phase
from forewarn.core.order_verbs import Outcome
from forewarn.executors import HostWork, OrderReport, Progress, Unknown, runner
from forewarn.executors.command import CommandExecutor
from forewarn.service.settings import STEP_VARIABLES, load
from forewarn.testing.stories import START
from tests.support.processes import is_gone
from tests.support.records import maintenance
from tests.support.services import ORDER_ID as ID
from tests.support.services import work
from tests.support.waiting import PATIENCE_S, until

NO_TRACE = Unknown("the state folder has no trace of it")


def executor(
    tmp_path: Path,
    *command: str,
    limit_s: int = 600,
    environment: dict[str, str] | None = None,
    repeatable: bool = False,
) -> CommandExecutor:
    return CommandExecutor(
        command,
        folder=tmp_path / "orders",
        time_limit_s=limit_s,
        parallel=2,
        repeatable=repeatable,
        environment={"PATH": os.environ["PATH"], **(environment or {})},
    )


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "command.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def ended(runs: CommandExecutor) -> OrderReport:
    reports: list[OrderReport] = []

    def any_ended() -> bool:
        reports.extend(runs.reports(START))
        return bool(reports)

    until(any_ended)
    (report,) = reports
    return report


def outcome_of(report: OrderReport) -> Outcome:
    assert isinstance(report.outcome, Outcome)
    return report.outcome


def test_a_command_receives_its_order_and_its_output_is_kept(tmp_path: Path) -> None:
    """The order is JSON on standard input and FOREWARN_* variables; exit code 0 means done."""
    command = script(tmp_path, "env | grep ^FOREWARN_ | sort; cat; echo to stderr >&2")
    runs = executor(tmp_path, command, environment={"FOREWARN_TOKEN": "secret"})
    runs.take(replace(work(), targets={"web-0": ("rack1-c",)}))
    outcome = outcome_of(ended(runs))
    assert outcome.ok
    assert outcome.reason == "exit code 0"
    *lines, stdin, last = outcome.output.splitlines()
    assert lines == [
        "FOREWARN_ATTEMPT=1",
        "FOREWARN_DURATION_S=9",
        "FOREWARN_EVACUATES=",
        f"FOREWARN_EVENT_ID={ID}",
        "FOREWARN_EVENT_SOURCE=Platform",
        "FOREWARN_EVENT_TYPE=Reboot",
        "FOREWARN_HOSTS=rack1-a rack1-b",
        "FOREWARN_MAINTENANCE_ID=00000002-0000-4000-8000-000000000000",
        f"FOREWARN_ORDER_ID={ID}",
        "FOREWARN_PHASE=",
        "FOREWARN_RESOURCES=web-0 web-1",
        "FOREWARN_SCOPE=shop",
        "FOREWARN_TO_HOST=",
        "FOREWARN_UPDATE_DOMAIN=3",
    ]
    assert last == "to stderr"
    document = json.loads(stdin)
    assert document["order"] == {"id": ID, "attempt": 1}
    assert document["machines"] == [
        {"name": "web-0", "host": "rack1-a", "targets": ["rack1-c"]},
        {"name": "web-1", "host": "rack1-b", "targets": []},
    ]
    assert document["event"]["description"] == "new kernel"


def test_an_order_is_at_work_before_its_command_can_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that stops waits for the orders at work: none may be missing while its runner starts, or stay if it cannot."""
    runs = executor(tmp_path, "true")
    at_work: list[int] = []

    def fail(*_: object, **__: object) -> None:
        at_work.append(runs.at_work())
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises(OSError, match="no more processes"):
        runs.take(work())
    assert at_work == [1]
    assert runs.at_work() == 0


@pytest.mark.parametrize(
    ("event", "phase", "evacuates"),
    [
        ({"host": "rack1-a"}, Phase.NONE, "rack1-a"),
        ({"host": "rack1-a", "to_host": "rack1-c"}, Phase.NONE, "rack1-a"),
        ({"host": "rack1-a", "to_host": "rack1-a"}, Phase.NONE, ""),
        ({"host": "rack1-a"}, Phase.STOP, ""),
        ({}, Phase.NONE, ""),
    ],
)
def test_a_command_learns_that_its_machines_must_leave(
    tmp_path: Path, event: dict[str, Any], phase: Phase, evacuates: str
) -> None:
    """Only in an evacuation: machines that return must go to a host, and those of work in place stay."""
    base = work()
    runs = executor(tmp_path, script(tmp_path, "echo $FOREWARN_EVACUATES; cat"))
    runs.take(replace(base, event=replace(base.event, **event), order=replace(base.order, phase=phase)))
    variable, stdin = outcome_of(ended(runs)).output.splitlines()
    assert (variable, json.loads(stdin)["event"]["evacuates"]) == (evacuates, evacuates)


def host_work() -> HostWork:
    order = Order(id="H1", issued=START, host="kvm-1", maintenance_id="M1", position=1)
    facts = {"description": "new kernel", "duration_s": 9, "host_mode": HostMode.IN_PLACE}
    return HostWork(order, maintenance("M1", **facts), "qemu+ssh://kvm-1/system")


def test_a_command_for_a_host_receives_its_order(tmp_path: Path) -> None:
    """The host, its connection and the mode are JSON on standard input and FOREWARN_* variables."""
    runs = executor(tmp_path, script(tmp_path, "env | grep ^FOREWARN_ | sort; cat"))
    runs.take(host_work())
    *lines, stdin = outcome_of(ended(runs)).output.splitlines()
    assert lines == [
        "FOREWARN_ATTEMPT=1",
        "FOREWARN_DESCRIPTION=new kernel",
        "FOREWARN_DURATION_S=9",
        "FOREWARN_HOST=kvm-1",
        "FOREWARN_HOST_CONNECTION=qemu+ssh://kvm-1/system",
        "FOREWARN_HOST_MODE=in-place",
        "FOREWARN_MAINTENANCE_ID=M1",
        "FOREWARN_ORDER_ID=H1",
    ]
    document = json.loads(stdin)
    assert document["host"] == {"name": "kvm-1", "mode": "in-place", "connection": "qemu+ssh://kvm-1/system"}
    assert document["maintenance"] == {"id": "M1", "description": "new kernel", "duration_s": 9}
    assert document["order"] == {"id": "H1", "attempt": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [("exit 3", "exit code 3"), ("kill -9 $$", "killed by signal 9")],
)
def test_any_other_exit_code_is_a_failure(tmp_path: Path, text: str, reason: str) -> None:
    """The reason says how the command ended."""
    runs = executor(tmp_path, script(tmp_path, text))
    runs.take(work())
    outcome = outcome_of(ended(runs))
    assert (outcome.ok, outcome.reason) == (False, reason)


def test_a_missing_command_fails_with_its_name(tmp_path: Path) -> None:
    """The reason names the wrong path of the configuration."""
    runs = executor(tmp_path, "/nowhere/maintain")
    runs.take(work())
    outcome = outcome_of(ended(runs))
    assert not outcome.ok
    assert "/nowhere/maintain cannot be run: No such file" in outcome.reason


def test_a_command_over_its_time_limit_is_stopped(tmp_path: Path) -> None:
    """The order has the reason."""
    runs = executor(tmp_path, "sleep", "3600", limit_s=1)
    runs.take(work())
    outcome = outcome_of(ended(runs))
    assert (outcome.ok, outcome.reason) == (False, "stopped after its time limit of 1 s")


def test_a_command_is_stopped_with_its_children(tmp_path: Path) -> None:
    """The whole process group ends, also a child that ignores SIGTERM."""
    draft, named = tmp_path / "draft", tmp_path / "child"
    child_text = f"trap '' TERM; echo $$ > {draft}; mv {draft} {named}; sleep 3600"
    command = script(tmp_path, 'sh -c "$1" & wait')
    with subprocess.Popen([command, child_text], start_new_session=True) as process:
        until(named.exists)
        runner.stop(process, grace_s=0.1)
    child = int(named.read_text())
    until(lambda: is_gone(child))


def test_the_last_output_is_kept_on_a_busy_machine() -> None:
    """The reading thread did not run before the command ended: the output that is still in the pipe is kept."""
    tail = bytearray()
    with subprocess.Popen(["echo", "the end"], stdout=subprocess.PIPE) as process:
        process.wait()
        runner.read_the_rest(process, tail, threading.Lock())
    assert tail == b"the end\n"


def test_another_node_that_checks_the_lock_is_not_taken_for_the_runner(tmp_path: Path) -> None:
    """The command has ended, and two nodes with the same state directory check at the same moment: both see the result."""
    runs = executor(tmp_path, "true")
    runs.take(work())
    report = ended(runs)
    lock = os.open(tmp_path / "orders" / f"{ID}-1" / "lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert executor(tmp_path, "true").status(work()) == report.outcome
    finally:
        os.close(lock)


def test_only_the_end_of_a_long_output_is_kept(tmp_path: Path) -> None:
    """Ten megabytes of output neither block the command nor fill the store."""
    command = [sys.executable, "-c", "print('x' * 10_000_000); print('the end')"]
    runs = executor(tmp_path, *command)
    runs.take(work())
    outcome = outcome_of(ended(runs))
    assert outcome.ok
    assert len(outcome.output) == 64 * 1024
    assert outcome.output.endswith("x\nthe end\n")


def test_a_restarted_service_waits_for_a_command_that_still_runs(tmp_path: Path) -> None:
    """Another executor on the same folder finds the command running, watches it, and gets its result; it runs once."""
    go = tmp_path / "go"
    command = script(tmp_path, f"echo run >> {tmp_path}/runs; while [ ! -e {go} ]; do sleep 0.02; done; echo done")
    first = executor(tmp_path, command)
    assert first.status(work()) == NO_TRACE
    first.take(work())
    until(lambda: (tmp_path / "runs").exists())
    second = executor(tmp_path, command)
    second.tidy([work()])
    assert second.status(work()) is Progress.RUNNING
    second.watch(work())
    assert second.free_slots() == 1
    go.touch()
    report = ended(second)
    assert report.outcome == Outcome(ok=True, reason="exit code 0", output="done\n")
    assert (tmp_path / "runs").read_text() == "run\n"
    assert second.status(work()) == report.outcome
    second.report_saved(report)
    assert second.status(work()) == NO_TRACE
    assert second.free_slots() == 2


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[str]:
    """A command that notes each run, names its runner and itself, and runs until the end of the test."""
    draft, named = tmp_path / "draft", tmp_path / "processes"
    yield script(
        tmp_path,
        f"echo run >> {tmp_path}/runs; echo $PPID $$ > {draft}; mv {draft} {named}; exec sleep 300",
    )
    if named.exists():
        os.kill(int(named.read_text().split()[1]), signal.SIGKILL)


def kill_runner(tmp_path: Path, runs: CommandExecutor) -> Outcome | Unknown:
    """Run an endless command, kill its runner, and return what the executor reports."""
    named = tmp_path / "processes"
    runs.take(work())
    until(named.exists)
    os.kill(int(named.read_text().split()[0]), signal.SIGKILL)
    return ended(runs).outcome


def test_a_command_whose_runner_was_killed_is_in_doubt(tmp_path: Path, endless: str) -> None:
    """The command may still run, and nobody knows its end: this is no failure, and neither is it after a reboot."""
    runs = executor(tmp_path, endless)
    outcome = kill_runner(tmp_path, runs)
    assert outcome == Unknown("its runner was killed, and the command may still run")
    assert executor(tmp_path, endless).status(work()) == outcome
    (tmp_path / "orders" / f"{ID}-1" / "begun").write_text("another boot")
    rebooted = executor(tmp_path, endless)
    assert rebooted.status(work()) == Unknown("the machine restarted while the command ran")
    rebooted.tidy([work()])
    assert rebooted.status(work()) == Unknown("the machine restarted while the command ran")


def test_a_command_that_began_does_not_begin_again_when_it_is_taken_again(tmp_path: Path, endless: str) -> None:
    """The database lost that the order was taken: the executor takes it once more, and finds that it began."""
    runs = executor(tmp_path, endless)
    kill_runner(tmp_path, runs)
    runs.take(work())
    assert ended(runs).outcome == Unknown("its runner was killed, and the command may still run")
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_repeatable_command_is_run_again_after_a_reboot(tmp_path: Path, endless: str) -> None:
    """Only where no copy can run any more: after its runner was killed, the order fails."""
    runs = executor(tmp_path, endless, repeatable=True)
    outcome = kill_runner(tmp_path, runs)
    assert outcome == Outcome(
        ok=False, reason="its runner was killed, and the command may still run; check before you retry"
    )
    (tmp_path / "orders" / f"{ID}-1" / "begun").write_text("another boot")
    again = executor(tmp_path, script(tmp_path, f"echo run >> {tmp_path}/runs"), repeatable=True)
    assert isinstance(again.status(work()), Unknown)
    again.take(work())
    assert outcome_of(ended(again)).ok
    assert (tmp_path / "runs").read_text() == "run\nrun\n"


def test_a_command_that_certainly_did_not_begin_can_be_taken(tmp_path: Path) -> None:
    """The node died after it had made the folder of the order: that folder proves that the command has not begun."""
    runs = executor(tmp_path, script(tmp_path, "exit 0"))
    (tmp_path / "orders" / f"{ID}-1").mkdir()
    assert runs.status(work()) is Progress.NOT_BEGUN
    runs.take(work())
    assert outcome_of(ended(runs)).ok


def test_a_runner_that_dies_before_the_command_begins_is_a_failure(tmp_path: Path) -> None:
    """Nothing was done, so there is no doubt."""
    runs = executor(tmp_path, "true")
    runs.runner = tmp_path / "no runner"
    runs.take(work())
    assert ended(runs).outcome == Outcome(ok=False, reason="its runner ended before the command began")


def test_two_nodes_that_take_an_order_at_once_begin_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both nodes of one machine found that it has not begun; a probe of its lock by a third confuses neither."""
    # However long this thread stands still while it holds the probe.
    monkeypatch.setattr("forewarn.executors.command.LOCK_TRIES", sys.maxsize)
    command = script(tmp_path, f"echo run >> {tmp_path}/runs")
    nodes = [executor(tmp_path, command) for _ in range(2)]
    folder = tmp_path / "orders" / f"{ID}-1"
    folder.mkdir()
    probe = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(probe, fcntl.LOCK_SH)
    taking = [threading.Thread(target=node.take, args=(work(),)) for node in nodes]
    for thread in taking:
        thread.start()
    os.close(probe)
    for thread in taking:
        thread.join(PATIENCE_S)
    assert [outcome_of(ended(node)).ok for node in nodes] == [True, True]
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_folder_is_removed_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that dies while it removes the folder of an order does not leave one that looks as if nothing had begun."""
    runs = executor(tmp_path, "true")
    runs.take(work())
    report = ended(runs)
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: None)
    runs.report_saved(report)
    assert runs.status(work()) == NO_TRACE


def test_the_folders_of_orders_are_private_and_tidied(tmp_path: Path) -> None:
    """Other users cannot read them; the next start removes the folders of unknown orders."""
    runs = executor(tmp_path, script(tmp_path, "exit 0"))
    runs.take(work())
    ended(runs)
    folder = tmp_path / "orders"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())] == [0o700, 0o700]
    (folder / "stray file").touch()
    executor(tmp_path, "true").tidy([])
    assert [path.name for path in folder.iterdir()] == ["stray file"]


def test_an_order_that_another_node_takes_meanwhile_is_not_tidied(tmp_path: Path) -> None:
    """Two nodes of one machine share the folder: a node that starts removes only what was there at its start."""
    starting = executor(tmp_path, "true")
    runs = executor(tmp_path, script(tmp_path, "exit 0"))
    runs.take(work())
    report = ended(runs)
    starting.tidy([])
    assert runs.status(work()) == report.outcome


def test_a_node_that_was_overtaken_watches_the_command(tmp_path: Path) -> None:
    """The node was stopped after it had saved the order; another node of its machine took over and runs the command."""
    go = tmp_path / "go"
    command = script(tmp_path, f"echo run >> {tmp_path}/runs; while [ ! -e {go} ]; do sleep 0.02; done")
    second, late = executor(tmp_path, command), executor(tmp_path, command)
    second.take(work())
    until(lambda: (tmp_path / "runs").exists())
    late.take(work())
    go.touch()
    assert ended(second).outcome == ended(late).outcome == Outcome(ok=True, reason="exit code 0", output="")
    assert (tmp_path / "runs").read_text() == "run\n"


def test_an_unreadable_result_leaves_the_order_in_doubt(tmp_path: Path) -> None:
    """The command ran, and nobody knows how it ended; its slot is free again."""
    go = tmp_path / "go"
    runs = executor(tmp_path, script(tmp_path, f"while [ ! -e {go} ]; do sleep 0.02; done"))
    runs.take(work())
    assert (runs.free_slots(), runs.at_work()) == (1, 1)
    (tmp_path / "orders" / f"{ID}-1" / "result.json").mkdir()
    go.touch()
    report = ended(runs)
    assert isinstance(report.outcome, Unknown)
    assert report.outcome.reason.startswith("its result cannot be read: ")
    assert runs.status(work()) == report.outcome
    assert (runs.free_slots(), runs.at_work()) == (2, 0)


def test_the_variables_of_a_command_are_no_settings(tmp_path: Path) -> None:
    """A command may call `forewarn`, which ignores the variables of the order."""
    runs = executor(tmp_path, script(tmp_path, "env | grep ^FOREWARN_"))
    names: set[str] = set()
    for each in (work(), host_work()):
        runs.take(each)
        lines = outcome_of(ended(runs)).output.splitlines()
        names |= {line.partition("=")[0] for line in lines}
    assert names == CommandExecutor.variables
    environment = dict.fromkeys(CommandExecutor.variables | STEP_VARIABLES, "x")
    assert load({}, environment) == load({}, {})


def test_the_ticker_is_nudged_when_a_command_ends(tmp_path: Path) -> None:
    """The end of a command is reported without polling."""
    nudged = threading.Event()
    runs = executor(tmp_path, "true")
    runs.connect(nudged.set, lambda _: None)
    runs.take(work())
    assert nudged.wait(PATIENCE_S)
