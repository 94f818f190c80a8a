"""Three real nodes on a real PostgreSQL, under load, are killed, stopped and cut off: no invariant breaks, whatever the seed."""

import shutil
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.chaos.checker import Verdict, check
from tests.integration.chaos.faults import EVERYBODY, HOLDER, STOPPED_S, schedule
from tests.integration.chaos.fleet import MACHINES
from tests.integration.chaos.history import History
from tests.integration.chaos.load import OPERATORS, PREEMPTED
from tests.integration.chaos.run import DISTURBED_S, END_WITHIN_S, THREAD_ENDS_WITHIN_S, run_three_nodes
from tests.integration.chaos.three_nodes import START_WITHIN_S
from tests.support.budget import BUDGET, chosen_seed
from tests.support.postgres_servers import SHARED
from tests.support.waiting import PATIENCE_S

# It has every kind of fault in it, and nodes that are away while their commands run.
FIXED_SEED = 8
SECOND_SEED = 17
AT_ONCE = 2
POLLS_OF_EACH = 5
# All the time limits of a run together: whichever passes first says what is wrong.
RUN_WITHIN_S = 2 * START_WITHIN_S + DISTURBED_S + END_WITHIN_S + 2 * THREAD_ENDS_WITHIN_S + 2 * PATIENCE_S


def run_seed(seed: int) -> tuple[History, Verdict, Path]:
    """Do one run; also return the folder with its history and logs."""
    folder = Path(tempfile.mkdtemp(prefix=f"forewarn-chaos-{seed}-"))
    try:
        history = run_three_nodes(SHARED.server, folder, seed)
    except BaseException as error:
        error.add_note(f"history and logs are in {folder}; once more: python -m tests.integration.chaos --seed {seed}")
        raise
    return history, check(history), folder


@pytest.mark.timeout(RUN_WITHIN_S * (1 + BUDGET) / AT_ONCE)
def test_three_nodes_under_load_keep_every_promise(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing acknowledged is lost, nothing starts twice or early, nobody sees time run backwards, everything ends."""
    first = chosen_seed(SECOND_SEED)
    seeds = [FIXED_SEED, *range(first, first + BUDGET)]
    with capsys.disabled():
        print(f"\nchaos with seeds {', '.join(map(str, seeds))}")
    assert SHARED.server.port  # started once, not by two threads
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = list(pool.map(run_seed, seeds))
    failed = []
    for history, verdict, folder in runs:
        with capsys.disabled():
            print(verdict)
        if verdict.complaints:
            failed.append(
                f"seed {history.run.seed}: {verdict.complaints[0]}\n"
                f"  check it again: python -m tests.integration.chaos --check {folder}/history.jsonl\n"
                f"  (the logs of its nodes are beside it)\n"
                f"  once more:      python -m tests.integration.chaos --seed {history.run.seed}"
            )
        else:
            shutil.rmtree(folder, ignore_errors=True)
    assert not failed, "\n".join(failed)
    for history, verdict, _ in runs:
        assert_was_chaos(history, verdict)


def assert_was_chaos(history: History, verdict: Verdict) -> None:
    """Check that there was load and that faults happened: an empty run has no complaint either."""
    assert verdict.promised >= OPERATORS * PREEMPTED / 2
    assert verdict.held == verdict.promised
    done = Counter(fault.what for fault in history.faults)
    assert done["stop"] == done["continue"] == 1
    assert done["mend"] == done["cut"] + done["stall"]
    assert done["restart"] == done["kill"] + done["terminate"]
    assert sum(done.values()) >= 8
    assert any(not r.acknowledged and not r.refused for r in history.requests)
    yes = Counter((r.who, r.what == "poll") for r in history.requests if r.acknowledged)
    assert all(yes[f"guest {machine}", True] >= POLLS_OF_EACH for machine in MACHINES), yes
    assert all(yes[f"operator {n + 1}", False] for n in range(OPERATORS)), yes
    assert any(entry.action == "event approved" for entry in history.audit)


def test_a_seed_decides_what_is_done_to_the_nodes() -> None:
    """The same faults every time; over some seeds every kind of fault, to one node and to all, and the holder past its lease."""
    schedules = [schedule(seed, DISTURBED_S) for seed in range(20)]
    assert schedules == [schedule(seed, DISTURBED_S) for seed in range(20)]
    assert len({tuple(each) for each in schedules}) == 20
    kinds = {(fault.what, min(fault.node, 0)) for each in schedules for fault in each}
    assert kinds == {
        ("kill", 0),
        ("terminate", 0),
        ("stop", HOLDER),
        *((what, node) for what in ("cut", "stall") for node in (0, EVERYBODY)),
    }
    for each in schedules:
        (stopped,) = [fault for fault in each if fault.node == HOLDER]
        assert STOPPED_S[0] <= stopped.for_s <= STOPPED_S[1]
        assert all(fault.at_s < DISTURBED_S for fault in each)
