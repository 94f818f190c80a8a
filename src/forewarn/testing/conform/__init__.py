"""Conformance: runs an agent in any language as a program, and tests the behaviours that an agent should have.

`behaviours` is the table of behaviours, `checks` has their checks, `trial` runs the agent for one behaviour, and `report` formats
the results. The test knows only the agent's requests and the lines that its hooks write.
"""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from forewarn.core.errors import ForewarnError, Invalid
from forewarn.testing.conform.agent_process import AgentFailed
from forewarn.testing.conform.behaviours import BEHAVIOURS, Behaviour
from forewarn.testing.conform.report import FAILED, NOT_REACHED, PASSED, SKIPPED, BehaviourRow, Report
from forewarn.testing.conform.trial import CLAIMS, PATIENCE_S, Delays, Interrupted, Trial

PARALLEL = 4
MAX_PARALLEL = 32
# As long as the protocol documents, and as short as still shows most failures.
REAL_TIME = Delays(first_answer_s=120, outage_s=70.0)
SHORTENED = Delays(first_answer_s=4, outage_s=0.0)
DOCUMENTLESS = ", ".join(each.name for each in BEHAVIOURS if not each.needs_a_document)


def conform(
    command: Sequence[str],
    *,
    without: Collection[str] = (),
    only: Collection[str] = (),
    parallel: int = PARALLEL,
    patience_s: float = PATIENCE_S,
    silence_s: float | None = None,
    delays: Delays = SHORTENED,
    on_row: Callable[[BehaviourRow], None] = lambda _: None,
) -> Report:
    """Test the agent that `command` starts, and call `on_row` with the result of each behaviour.

    The agent fails if it has not acted after `patience_s` and several polls, or if it has not polled for `silence_s`
    (by default `patience_s`).
    """
    chosen = _choose(only)
    _check_names(without, CLAIMS, "--without")
    if not 1 <= parallel <= MAX_PARALLEL:
        raise Invalid(f"--parallel: {parallel} behaviours at once: use 1 to {MAX_PARALLEL}")
    if not command:
        raise Invalid(
            "the command is missing: write it after `--`, like `forewarn conform -- my-agent --endpoint {endpoint}`"
        )
    if "{" not in command[0] and shutil.which(command[0]) is None:
        raise Invalid(f"{command[0]}: there is no such program, or it is not executable")
    stopping = threading.Event()

    def new_trial(folder: Path) -> Trial:
        return Trial(command, folder, set(CLAIMS) - set(without), os.environ, stopping, delays, patience_s, silence_s)

    def test(behaviour: Behaviour) -> BehaviourRow:
        row = _skip(behaviour, without) or _test(behaviour, new_trial)
        on_row(row)
        return row

    begun_s = time.monotonic()
    with ThreadPoolExecutor(parallel, thread_name_prefix="conform") as pool:
        try:
            rows = list(pool.map(test, chosen))
        except BaseException:
            # End every agent before this function ends.
            stopping.set()
            pool.shutdown(cancel_futures=True)
            raise
    return Report(tuple(command), tuple(rows), time.monotonic() - begun_s)


def _choose(only: Collection[str]) -> list[Behaviour]:
    _check_names(only, [each.name for each in BEHAVIOURS], "--only")
    return [each for each in BEHAVIOURS if not only or each.name in only]


def _check_names(names: Collection[str], known: Collection[str], option: str) -> None:
    for name in names:
        if name not in known:
            raise Invalid(f"{option}: {name!r} is unknown: use {', '.join(known)}")


def _skip(behaviour: Behaviour, without: Collection[str]) -> BehaviourRow | None:
    missing = [claim for claim in behaviour.claims if claim in without]
    return BehaviourRow(behaviour, SKIPPED, f"the agent does not claim {', '.join(missing)}") if missing else None


def _test(behaviour: Behaviour, new_trial: Callable[[Path], Trial]) -> BehaviourRow:
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="conform-", ignore_cleanup_errors=True) as folder:
        trial = new_trial(Path(folder))
        try:
            with trial.run_emulator(behaviour):
                behaviour.check(trial)
            outcome, reason = PASSED, ""
        except (AgentFailed, ForewarnError) as error:
            outcome, reason = FAILED, str(error)
            if behaviour.needs_a_document and not trial.served:
                outcome, reason = NOT_REACHED, f"it never got a document (see {DOCUMENTLESS}): {error}"
        except Interrupted:
            outcome, reason = FAILED, "interrupted"
        finally:
            trial.agent.kill()
        return BehaviourRow(
            behaviour, outcome, reason, time.monotonic() - begun_s, "" if outcome == PASSED else trial.agent.output()
        )
