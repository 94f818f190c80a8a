"""The agent killed with SIGKILL at every boundary of its journal, and at seeded pairs of them: nothing is lost, nothing is done
twice that may not be, the machine comes back exactly once, and no approval is early."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.guest.journal import read
from forewarn.guest.processes import alive
from tests.guest.killed_agent import STARTED_FOR
from tests.support.budget import BUDGET, chosen_seed
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAIRS = 40 if BUDGET == 1 else 100 * BUDGET
# Each test does a part of them: hundreds of processes in one test would take long on a busy machine.
PARTS = 10
NEVER = 0
STORIES = ("completed", "reboots")


class AgentForker:
    """A process that forks agents which are killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def live(self, folder: Path, die_at: int, story: str) -> tuple[int, int]:
        """Return the exit status of one agent, and how many boundaries it passed if it was not killed."""
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{folder} {die_at} {story}\n")
            process.stdin.flush()
            status, passed = process.stdout.readline().split()
        except BaseException:  # its late answer must not be taken for that of another life
            self.close()
            raise
        return int(status), int(passed)

    @staticmethod
    def _started() -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tests.guest.killed_agent"]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def close(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)  # an agent that it forked has the pipe, too
            self._process.communicate()
            self._process = None


@pytest.fixture(scope="module")
def zygote() -> Iterator[AgentForker]:
    made = AgentForker()
    yield made
    made.close()


def cycle(zygote: AgentForker, folder: Path, *deaths: int, story: str) -> None:
    """Kill agents at the given boundaries, let the last one finish, and check that everything is as it should be."""
    folder.mkdir()
    killed = 0
    for die_at in deaths:
        status, _ = zygote.live(folder, die_at, story)
        assert status in (0, -signal.SIGKILL)
        killed += status != 0
    if killed == len(deaths):
        assert zygote.live(folder, NEVER, story)[0] == 0
    complaints = list(wrong_after_cancel(folder, killed) if story == "cancelled" else wrong(folder, killed, story))
    assert not complaints, f"killed at {deaths}: {complaints}"


def wrong_after_cancel(folder: Path, killed: int) -> Iterator[str]:
    """The interrupted step is undone like the prepared one, its program does not outlive it, and nothing is approved."""
    did = (folder / "did").read_text().splitlines()
    count = Counter(did)
    for line in ("prepare verified", "recover verified"):
        if count[line] != 1:
            yield f"{line}: {count[line]} times"
    for line in ("recover slow", "health"):
        if not 1 <= count[line] <= 1 + killed:
            yield f"{line}: {count[line]} times after {killed} kills"
    if did.index("recover slow") > did.index("recover verified") or did[-1] != "health":
        yield f"out of order: {did}"
    if count["prepare slow"] > 1 or (folder / "approvals").exists():
        yield f"prepared twice or approved: {did}"
    pids = (folder / "pids").read_text().split() if (folder / "pids").exists() else []
    for pid in pids:  # A killed program may take a moment to end.
        until(lambda pid=pid: not alive(int(pid)), detail=lambda: "its program still runs")  # type: ignore[misc]
    kinds = Counter(record["kind"] for record in read(folder / "state" / "journal.jsonl")[0])
    if (kinds["seen"], kinds["over"], kinds["in-service"], kinds["approving"]) != (1, 1, 1, 0):
        yield f"records: {kinds}"


def wrong(folder: Path, killed: int, story: str) -> Iterator[str]:
    did = (folder / "did").read_text().splitlines()
    count = Counter(did)
    for line in ("prepare verified", "recover verified"):
        if count[line] != 1:
            yield f"{line}: {count[line]} times"
    for line in ("prepare plain", "recover plain", "health"):
        if not 1 <= count[line] <= 1 + killed:
            yield f"{line}: {count[line]} times after {killed} kills"
    for line in ("prepare once", "recover once"):
        if not (0 if killed else 1) <= count[line] <= 1:
            yield f"{line}: {count[line]} times"
    first = {line: did.index(line) for line in count}
    order = ["prepare verified", "prepare plain", "prepare once", "recover once", "recover plain", "recover verified"]
    there = [first[line] for line in [*order, "health"] if line in first]
    if there != sorted(there):
        yield f"out of order: {did}"
    approvals = (folder / "approvals").read_text().splitlines()
    if set(approvals) != {"ready"} or len(approvals) > 1 + killed:
        yield f"approvals: {approvals}"
    records, _ = read(folder / "state" / "journal.jsonl")
    # Over because of the reboot, it is noted once more when it goes.
    overs = [record["how"] for record in records if record["kind"] == "over"]
    if overs not in [["completed"], ["rebooted", "completed"]] or (len(overs) == 2 and story != "reboots"):
        yield f"over: {overs}"
    kinds = Counter(record["kind"] for record in records)
    # Killed between saying go and writing that down: the event has started, and nobody can tell by whom. Killed at both
    # looks at which it was Started: that was never seen. Anything else that was seen is there once.
    may_lack = {"approved"} if killed else set()
    may_lack |= {"started"} if killed >= STARTED_FOR else set()
    for kind in ("seen", "approved", "started", "in-service"):
        if kinds[kind] != 1 and not (kinds[kind] == 0 and kind in may_lack):
            yield f"{kinds[kind]} records of {kind}"
    told = Counter(json.loads(line)["change"] for line in (folder / "told").read_text().splitlines())
    expected = {"scheduled", overs[0], "back in service"} | ({"approved", "started"} & set(kinds))
    if set(told) != expected or sum(told.values()) > len(expected) + killed:
        yield f"told: {told}"


@pytest.fixture(scope="module")
def boundaries(zygote: AgentForker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How many boundaries an agent passes that is not killed, by story."""
    numbers = {}
    for story in STORIES:
        folder = tmp_path_factory.mktemp("whole")
        status, numbers[story] = zygote.live(folder, NEVER, story)
        assert status == 0
        assert not list(wrong(folder, 0, story))
        assert numbers[story] > 60
    return numbers


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("story", STORIES)
def test_killed_at_every_boundary(
    zygote: AgentForker, boundaries: dict[str, int], tmp_path: Path, story: str, part: int
) -> None:
    """An agent is killed before each record, in the middle of its line, and after it."""
    for die_at in range(1 + part, boundaries[story] + 1, PARTS):
        cycle(zygote, tmp_path / str(die_at), die_at, story=story)


def test_killed_while_a_cancel_interrupts_a_step(zygote: AgentForker, tmp_path: Path) -> None:
    """From the moment when the step's program runs, the kills are as above."""
    whole = tmp_path / "whole"
    whole.mkdir()
    status, number = zygote.live(whole, NEVER, "cancelled")
    assert (status, list(wrong_after_cancel(whole, 0))) == (0, [])
    kinds = [record["kind"] for record in read(whole / "state" / "journal.jsonl")[0]]
    runs = kinds.index("over") - 1
    assert kinds[runs : runs + 3] == ["child", "over", "end"]
    for die_at in range(3 * runs + 1, number + 1):
        cycle(zygote, tmp_path / str(die_at), die_at, story="cancelled")


@pytest.mark.timeout(600 * BUDGET)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("story", STORIES)
def test_killed_at_pairs_of_boundaries(
    zygote: AgentForker, boundaries: dict[str, int], tmp_path: Path, story: str, part: int
) -> None:
    """The second agent is killed while it repairs what the first left."""
    seed = chosen_seed(part)
    print(f"seed {seed}: set TEST_SEED to it to use it again")
    choose, number = random.Random(seed), boundaries[story]
    for pair in range(PAIRS // PARTS):
        first = choose.randint(1, number)
        second = choose.randint(1, max(6, number - first))
        cycle(zygote, tmp_path / str(pair), first, second, story=story)
