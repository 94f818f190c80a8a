"""Several nodes with the faults that a seed draws: no seed breaks a rule, and the same seed is the same run."""

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.sim.run import Simulation
from tests.sim.universe import Faults

ROOT = Path(__file__).parents[2]
BUDGET = int(os.environ.get("TEST_BUDGET", "1"))
# 1,000; 20,000 where there is ten times the budget.
SEEDS = 1_000 if BUDGET == 1 else 2_000 * BUDGET
BATCH = 50


def failures(first: int) -> tuple[list[str], int, int]:
    """Return the complaints of a batch of seeds with their replay commands, and how many guests were promised and got notice."""
    failed, promised, held = [], 0, 0
    for seed in range(first, first + BATCH):
        run = Simulation(seed).run()
        promised, held = promised + run.notice.promised, held + run.notice.held
        if run.complaints:
            failed.append(f"python -m tests.sim --seed {seed} --trace\n  " + "\n  ".join(run.complaints))
    return failed, promised, held


@pytest.mark.timeout(3_600)
def test_no_seed_breaks_a_promise(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing acknowledged is lost, nothing starts twice or early, no guest sees time run backwards, everything ends."""
    with ProcessPoolExecutor(2) as pool:
        batches = list(pool.map(failures, range(0, SEEDS, BATCH)))
    promised, held = sum(each[1] for each in batches), sum(each[2] for each in batches)
    with capsys.disabled():
        print(f"\n{SEEDS} seeds; notice held by {held} of {promised} guests")
    failed = [text for each in batches for text in each[0]]
    assert not failed, f"{len(failed)} seed(s) failed; replay one with\n" + "\n".join(failed[:5])
    assert held == promised
    assert promised > SEEDS, "guests were promised notice"


def trace_digest(seed: int) -> str:
    return hashlib.sha256("\n".join(Simulation(seed).run().trace).encode()).hexdigest()


def test_the_same_seed_is_the_same_run() -> None:
    """The trace is the same line by line, also in another process with another hash seed."""
    seeds = range(5)
    script = "from tests.sim.test_seeds import trace_digest\nfor seed in range(5): print(trace_digest(seed))"
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == [trace_digest(seed) for seed in seeds]
    assert len(set(done.stdout.split())) == len(seeds)


def test_a_seed_is_replayed_by_one_command() -> None:
    """`python -m tests.sim --seed N --trace` prints the run and the verdict."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim", "--seed", "3", "--trace"],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert lines[:-1] == Simulation(3).run().trace
    assert lines[-1].startswith("1 seed(s) in ")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_quiet_run_is_quiet() -> None:
    """Without faults no node dies or hangs, every guest that polls is answered, and events complete."""
    run = Simulation(1, Faults()).run()
    assert run.complaints == []
    assert not [line for line in run.trace[1:] if "dies" in line or "hangs" in line or "cannot" in line]
    assert [line for line in run.trace if "Completed" in line]
