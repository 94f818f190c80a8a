"""Several nodes with the faults that a seed draws: no seed breaks a rule, and the same seed is the same run."""

import hashlib
import os
import random
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.sim.run import Simulation, run_seed
from tests.sim.universe import Faults
from tests.support.budget import BUDGET

ROOT = Path(__file__).parents[2]
FIXED_SEEDS = 1_000
# With ten times the budget: 50,000.
FRESH_SEEDS = 5_000 * BUDGET
BATCH = 50


def seeds() -> range:
    """Return the same seeds in every run, or seeds that were probably never run before if there is more budget."""
    if BUDGET == 1:
        return range(FIXED_SEEDS)
    first = random.SystemRandom().randrange(FIXED_SEEDS, 10**9, BATCH)
    return range(first, first + FRESH_SEEDS)


def failures(first: int) -> tuple[list[str], int, int]:
    """Return the complaints of a batch of seeds with their replay commands, and how many guests were promised and got notice."""
    failed, promised, held = [], 0, 0
    for seed in range(first, first + BATCH):
        run = run_seed(seed)
        promised, held = promised + run.notice.promised, held + run.notice.held
        if run.complaints:
            failed.append(f"python -m tests.sim --seed {seed} --trace\n  " + "\n  ".join(run.complaints))
    return failed, promised, held


@pytest.mark.timeout(3_600 * BUDGET)
def test_no_seed_breaks_a_promise(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing acknowledged is lost, nothing starts twice or early, no guest sees time run backwards, everything ends."""
    chosen = seeds()
    with capsys.disabled():
        print(f"\nseeds {chosen[0]}-{chosen[-1]}")
    with ProcessPoolExecutor(2) as pool:
        batches = list(pool.map(failures, chosen[::BATCH]))
    promised, held = sum(each[1] for each in batches), sum(each[2] for each in batches)
    with capsys.disabled():
        print(f"{len(chosen)} seeds {chosen[0]}-{chosen[-1]}; notice held by {held} of {promised} guests")
    failed = [text for each in batches for text in each[0]]
    assert not failed, f"{len(failed)} seed(s) failed; replay one with\n" + "\n".join(failed[:5])
    assert held == promised
    assert promised > len(chosen), "guests were promised notice"


def trace_digest(seed: int) -> str:
    return hashlib.sha256("\n".join(Simulation(seed).run().trace).encode()).hexdigest()


def test_the_same_seed_is_the_same_run() -> None:
    """The trace is the same line by line, also in another process with another hash seed."""
    seeds = (0, 1, 2, 3, 200)  # in the last, an event in each of two scopes stands against a drill
    script = f"from tests.sim.test_seeds import trace_digest\nfor seed in {seeds}: print(trace_digest(seed))"
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == [trace_digest(seed) for seed in seeds]
    assert len(set(done.stdout.split())) == len(seeds)


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `python -m tests.sim` with these arguments."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )


def test_a_seed_is_replayed_by_one_command() -> None:
    """`python -m tests.sim --seed N --trace` prints the run and the verdict."""
    done = command("--seed", "3", "--trace")
    lines = done.stdout.splitlines()
    assert lines[:-1] == Simulation(3).run().trace
    assert lines[-1].startswith("1 seed(s) in ")
    assert (done.returncode, done.stderr) == (0, "")


def test_many_seeds_are_run_by_one_command() -> None:
    """The verdict counts all seeds, whichever process ran them; a range without a seed is refused."""
    done = command("--seeds", "0-3")
    notices = [run_seed(seed).notice for seed in range(4)]
    held, promised = sum(notice.held for notice in notices), sum(notice.promised for notice in notices)
    assert re.fullmatch(
        rf"4 seed\(s\) in [0-9.]+ s, 0 failed; notice held by {held} of {promised} guests\n", done.stdout
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "write the lower number first" in command("--seeds", "5-4").stderr


def test_a_quiet_run_is_quiet() -> None:
    """Without faults no node dies or hangs, every guest that polls is answered, and events complete."""
    run = Simulation(1, Faults()).run()
    assert run.complaints == []
    assert not [line for line in run.trace[1:] if "dies" in line or "hangs" in line or "cannot" in line]
    assert [line for line in run.trace if "Completed" in line]


def test_an_error_that_ends_a_run_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is reported with its seed, and the seeds after it are run too."""

    def fail(simulation: Simulation) -> None:
        if simulation.seed == 1:
            raise ValueError("oh")

    monkeypatch.setattr(Simulation, "_begin", fail)
    monkeypatch.setattr(Simulation, "_end", lambda simulation: None)
    monkeypatch.setattr("tests.sim.test_seeds.BATCH", 3)
    (failed,) = failures(0)[0]
    assert failed.startswith("python -m tests.sim --seed 1 --trace\n  the run ended with an error:")
    assert "ValueError: oh" in failed


def test_more_budget_means_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test` runs the same seeds every time; `make soak` runs seeds that `make test` never runs."""
    assert seeds() == range(1_000)
    monkeypatch.setattr("tests.sim.test_seeds.BUDGET", 10)
    assert seeds()[0] >= 1_000
    assert seeds() != seeds()
