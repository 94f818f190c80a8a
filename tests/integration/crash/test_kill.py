"""The service is killed with SIGKILL again and again, at any moment: nothing acknowledged is lost, nothing happens twice."""

import random
import signal
import subprocess
import sys
import time
import uuid
from contextlib import closing, suppress
from pathlib import Path

import pytest

from forewarn.core.errors import Refused
from forewarn.core.model import Actor, Status
from forewarn.core.transitions import Verb
from forewarn.executors.simulated import SimulatedExecutor
from forewarn.service.clock import ManualClock
from forewarn.service.control import Control
from forewarn.service.ticker import Ticker
from forewarn.store.sqlite.store import SqliteStore
from tests.integration.crash.checker import complaints, read_database, read_store, unfinished
from tests.integration.crash.history import History
from tests.integration.crash.worker import FAILURES, ORDER_TIMEOUT_S, WORK_S, last_moment
from tests.support.budget import BUDGET, chosen_seed
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[3]
HISTORIES = 5 * BUDGET
KILLS_PER_HISTORY = 10
MAX_ROUNDS = 200
# How many changes the first process saves, and how many documents it shows, before it is killed.
LOAD = 21


def run_and_kill(database: Path, record: Path, seed: str, choose: random.Random, *, at_least: int = 0) -> None:
    """Run a process and kill it: mostly under load, sometimes while it still starts or recovers.

    Kill it only after it has saved `at_least` changes and shown `at_least` documents.
    """
    command = [sys.executable, "-m", "tests.integration.crash.worker", str(database), str(record), seed]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if choose.random() < 0.8 or at_least:
            assert process.stdout.readline() == b"ready\n", process.stderr.read().decode()
            until(lambda: min(recorded(record, "saved"), recorded(record, "shown")) >= at_least)
            time.sleep(choose.uniform(0.0, 0.45))
        else:
            time.sleep(choose.uniform(0.05, 0.5))
        process.send_signal(signal.SIGKILL)
        errors = process.stderr.read().decode()
        assert process.wait(timeout=PATIENCE_S) == -signal.SIGKILL, f"it ended before it was killed: {errors}"


def recorded(record: Path, kind: str) -> int:
    """Count the lines of this kind that a process has written so far."""
    return record.read_bytes().count(f'["{kind}", '.encode()) if record.exists() else 0


def run_to_the_end(database: Path) -> None:
    """Run the service undisturbed; an operator resumes what was paused and resolves what failed."""
    operator = Actor("operator", "the end")
    with closing(SqliteStore(database)) as store:
        clock = ManualClock(last_moment(store))
        control = Control(store, clock, new_id=lambda: str(uuid.uuid4()), order_timeout_s=ORDER_TIMEOUT_S)
        executor = SimulatedExecutor(work_s=WORK_S, freeze_work_s=WORK_S // 2, failures=FAILURES)
        ticker = Ticker(control, store, clock, executor, node="the end", retain_history_s=0)
        ticker.recover()
        for number in range(MAX_ROUNDS):
            snapshot = read_store(store).snapshot
            if all(m.ended is not None for m in snapshot.maintenances.values()):
                return
            for maintenance in snapshot.maintenances.values():
                if maintenance.paused and maintenance.ended is None:
                    control.resume_maintenance(maintenance.id, operator)
            for event in snapshot.events.values():
                if event.status is Status.STARTED:
                    with suppress(Refused):  # unless its order has failed it ends by itself
                        control.resolve_failure(event.id, (Verb.FINISH, Verb.ABANDON)[number % 2], operator)
            ticker.advance(3_600)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(HISTORIES))
def test_nothing_is_lost_and_nothing_happens_twice(number: int, tmp_path: Path) -> None:
    """After every kill everything acknowledged is stored; in the end every event has ended and every order was done."""
    seed = chosen_seed(number)
    print(f"seed {seed}: set TEST_SEED to it to use it again")
    choose, history, database = random.Random(seed), History(), tmp_path / "forewarn.db"
    for life in range(KILLS_PER_HISTORY):
        record = tmp_path / f"{life}.jsonl"
        run_and_kill(database, record, f"{seed}/{life}", choose, at_least=0 if life else LOAD)
        history.read(record)
        assert complaints(history, read_database(database)) == [], f"seed {seed}, life {life}"
    run_to_the_end(database)
    stored = read_database(database)
    assert complaints(history, stored) == [], f"seed {seed}, at the end"
    assert unfinished(stored) == [], f"seed {seed}, at the end"
    assert len(history.saved) >= LOAD, "there was load to be killed under"
    assert len(history.shown) >= LOAD, "guests saw documents"
