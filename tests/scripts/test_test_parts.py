"""`scripts/test_parts.py` and `scripts/flaky.py`: what is run, and what is printed when something fails."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from scripts.flaky import MARK, marked_processes, pauses, run_side_by_side, without_coverage
from scripts.test_parts import (
    PARTS,
    QUICK,
    ROOT,
    WITHOUT_TOOLS,
    Result,
    environment_of_a_run,
    print_failures,
    run_all,
)

from tests.support.waiting import PATIENCE_S, until

OUTPUT = """
FAILED tests/guest/test_e2e.py::test_a[x - y] - AssertionError: no
ERROR tests/store/test_sqlite.py::test_b - OSError: full
ERROR tests/core/test_draft.py
FAILED tests/guest/test_e2e.py::test_a[x - y] - AssertionError: no
2 failed, 1 passed in 3.0s
"""


def test_failed_tests_are_named_once_each() -> None:
    """Ids are read from pytest's summary, errors and files that cannot be imported included."""
    assert Result("guest", 1.0, 1, OUTPUT).failures() == [
        "tests/guest/test_e2e.py::test_a[x - y]",
        "tests/store/test_sqlite.py::test_b",
        "tests/core/test_draft.py",
    ]
    assert Result("guest", 1.0, 0, OUTPUT).failures() == []
    assert Result("check", 1.0, 2, "ruff: bad").failures() == ["part check"]


def test_the_end_of_a_red_run_has_three_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """They name what failed, how to run one test alone and where the output is; a green run prints none of them."""
    print_failures([])
    assert capsys.readouterr().out == ""
    print_failures([Result("guest", 1.0, 1, OUTPUT), Result("check", 1.0, 2, "")])
    failed, alone, logs = capsys.readouterr().out.splitlines()
    assert failed.startswith("failed: tests/guest/test_e2e.py::test_a[x - y]  ")
    assert failed.endswith("  part check")
    assert alone == "run one alone: .venv/bin/pytest 'tests/guest/test_e2e.py::test_a[x - y]'"
    assert logs == "full output: test-logs/guest.log  test-logs/check.log"


def test_a_part_ends_with_one_line() -> None:
    """It repeats what the part printed last, which says how many tests there were."""
    assert Result("guest", 3.4, 1, OUTPUT).line() == "guest, 3 s, 0 s of CPU, FAILED (1): 2 failed, 1 passed in 3.0s"
    assert Result("check", 1.0, 0, "").line() == "check, 1 s, 0 s of CPU, ok: "


def test_flaky_runs_report_no_coverage() -> None:
    """A part is repeated with the same command but for that."""
    assert without_coverage(PARTS["core"]) == without_coverage(QUICK["core"]) == QUICK["core"]
    assert without_coverage(PARTS["kvm"]) == PARTS["kvm"]


def test_flaky_runs_parts_side_by_side(tmp_path: Path) -> None:
    """Each part waits for the other one in its first run. The one that fails is counted once for each run."""
    meet = 'touch "$FOLDER/$0"; until [ -e "$FOLDER/a" ] && [ -e "$FOLDER/b" ]; do sleep 0.02; done; exit $1'
    commands = {"a": ["sh", "-c", meet, "a", "0"], "b": ["sh", "-c", meet, "b", "1"]}
    failed = run_side_by_side(commands, 2, 2, {**os.environ, "FOLDER": str(tmp_path)}, tmp_path / "logs")
    assert failed == {"part b": 2}
    assert sorted(log.name for log in (tmp_path / "logs").iterdir()) == ["flaky-b-1.log", "flaky-b-2.log"]


def test_a_busy_loop_computes_in_the_place_of_a_missing_part(tmp_path: Path) -> None:
    """One part has three places: it sees two busy loops, and they end with it."""
    loops = "pgrep --count --full --parent $PPID '[o]s.getppid'"
    see_two = f'until [ "$({loops})" = 2 ]; do sleep 0.02; done'
    assert run_side_by_side({"a": ["sh", "-c", see_two]}, 3, 1, os.environ, tmp_path / "logs") == {}
    left = subprocess.run(["pgrep", "--parent", str(os.getpid()), "--full", "[o]s.getppid"], check=False)
    assert left.returncode == 1


def test_the_quick_parts_are_parts() -> None:
    """`make quick` runs nothing that `make test` does not."""
    assert set(QUICK) <= set(PARTS)


def test_parts_that_need_tools_wait_for_them(tmp_path: Path) -> None:
    """The others run meanwhile. Here the installation ends only when one of them has run."""
    free, installed = tmp_path / "free", tmp_path / "installed"
    tools = ["sh", "-c", f"until [ -e {free} ]; do sleep 0.02; done; touch {installed}"]
    commands = {"guest": ["ls", str(installed)], WITHOUT_TOOLS[0]: ["touch", str(free)]}
    results = run_all(commands, os.environ, tools, tmp_path / "logs")
    assert {name: result.code for name, result in results.items()} == {"guest": 0, WITHOUT_TOOLS[0]: 0}


def test_without_tools_the_parts_that_need_them_fail(tmp_path: Path) -> None:
    """Their output is that of the installation."""
    tools = ["sh", "-c", "echo no network; exit 100"]
    results = run_all({"guest": ["true"], WITHOUT_TOOLS[0]: ["true"]}, os.environ, tools, tmp_path / "logs")
    assert (results["guest"].name, results["guest"].code, results["guest"].output) == ("guest", 100, "no network\n")
    assert results[WITHOUT_TOOLS[0]].code == 0


@contextmanager
def marked(*command: str, count: int = 1) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """Start so many processes that the tool may stop; yield their mark and them."""
    mark = str(uuid.uuid4())
    with ExitStack() as stack:
        processes = []
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen(command, env={**os.environ, MARK: mark}))
            stack.callback(process.kill)
            processes.append(process)
        until(lambda: len(marked_processes(f"{MARK}={mark}".encode())) == count)
        yield f"{MARK}={mark}", processes


def is_stopped(process: "subprocess.Popen[bytes]") -> bool:
    return " T " in Path(f"/proc/{process.pid}/stat").read_text()


def endless_pauses(mark: str) -> AbstractContextManager[None]:
    """Stop the processes at once, and for as long as the block lasts."""
    return pauses(mark, max_pause_s=1e9, still_share=1 - 1e-12)


def test_pauses_stop_only_the_processes_of_a_run_and_let_them_go_on() -> None:
    """Processes are known by a variable in their environment. After the block none of them is stopped."""
    with marked("sleep", "600") as (mark, [process]):
        with endless_pauses(mark):
            until(lambda: is_stopped(process))
            assert marked_processes(mark.encode()) == []
        assert not is_stopped(process)


def test_a_process_that_a_test_froze_stays_frozen() -> None:
    """The end of a pause does not continue a process that was stopped again during the pause."""
    with marked("sleep", "600") as (mark, [process]):
        with endless_pauses(mark):
            until(lambda: is_stopped(process))
            process.send_signal(signal.SIGSTOP)
        assert is_stopped(process)
        process.send_signal(signal.SIGCONT)
        until(lambda: not is_stopped(process))


def test_no_pause_leaves_a_process_stopped() -> None:
    """Many short pauses of few processes, which do not find the time to stop before the next one: afterwards all go on."""
    with marked("sh", "-c", "while kill -0 $PPID; do :; done", count=4) as (mark, busy):
        with pauses(mark, max_pause_s=0.01, still_share=0.9):
            time.sleep(1.0)
        assert sorted(marked_processes(mark.encode())) == sorted(each.pid for each in busy)


INTERRUPTED = """
import sys
from pathlib import Path
from scripts import test_parts
until_stopped = 'trap "touch $FOLDER/$0.ended; exit 1" INT; touch "$FOLDER/$0.begun"; while :; do sleep 0.02; done'
test_parts.PARTS.clear()
test_parts.PARTS.update({name: ["sh", "-c", until_stopped, name] for name in ("a", "b", "c")})
test_parts.LANES, test_parts.LOGS = 2, Path(sys.argv.pop()) / "logs"
sys.exit(test_parts.main())
"""


def test_a_run_that_is_terminated_leaves_nothing_running(tmp_path: Path) -> None:
    """Parts end as after Ctrl-C, so that they end their programs too, and parts that wait do not begin."""
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    environment = {**os.environ, "FOLDER": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as process:
        try:
            until(lambda: {each.name for each in tmp_path.glob("*.begun")} == {"a.begun", "b.begun"})
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 143
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert {each.name for each in tmp_path.glob("?.*")} == {"a.begun", "a.ended", "b.begun", "b.ended"}


def test_what_parts_share_is_gone_after_the_run(tmp_path: Path) -> None:
    """Every user can reach the folder for it."""
    with environment_of_a_run(3) as environment:
        folder = Path(environment["TEST_SHARED_FOLDER"])
        assert folder.stat().st_mode & 0o777 == 0o755
        assert environment["TEST_BUDGET"] == "3"
        run_all({"guest": ["sh", "-c", 'touch "$TEST_SHARED_FOLDER/left"']}, environment, (), tmp_path / "logs")
        assert (folder / "left").exists()
    assert not folder.exists()


def test_the_child_of_nsenter_is_never_stopped(tmp_path: Path) -> None:
    """nsenter would stop itself too, and stay stopped; nsenter itself may be stopped."""
    mark = f"FLAKY_RUN={uuid.uuid4()}"
    environment = {**os.environ, "FLAKY_RUN": mark.partition("=")[2]}
    program = tmp_path / "nsenter"
    program.write_text("#!/bin/sh\nsleep 600 &\necho $!\nwait\n")
    program.chmod(0o755)
    with subprocess.Popen([program], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert marked_processes(mark.encode()) == [process.pid]
        finally:
            os.kill(child, signal.SIGKILL)
            process.kill()


@pytest.mark.parametrize("name", ["python.exe", "wineserver64"])
def test_programs_of_wine_are_never_stopped(tmp_path: Path, name: str) -> None:
    """Wine would not survive it."""
    mark = str(uuid.uuid4())
    program = Path(shutil.copy("/bin/sleep", tmp_path / name))
    with subprocess.Popen([program, "600"], env={MARK: mark}) as process:
        try:
            until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == f"{name}\n")
            assert marked_processes(f"{MARK}={mark}".encode()) == []
        finally:
            process.kill()
