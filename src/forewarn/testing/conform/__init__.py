"""Conformance: any agent, in any language, as a program, against the behaviours a machine's agent should have.

`stage` runs the agent and watches it, `behaviours` is the table of what is looked at, `report` tells what was found. Nothing of
the agent is known but what it asks the endpoint and what its hooks write.
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
from forewarn.testing.conform.behaviours import BEHAVIOURS, Behaviour
from forewarn.testing.conform.report import FAILED, NOT_REACHED, PASSED, SKIPPED, BehaviourRow, Report
from forewarn.testing.conform.stage import CLAIMS, PATIENCE_S, AgentFailed, Interrupted, Pace, Stage

PARALLEL = 4
MAX_PARALLEL = 32
# What a first answer and an endpoint in trouble may take, as documented; and as short as shows most of it.
REAL_TIME = Pace(first_answer_s=120, trouble_s=70.0)
SHORTENED = Pace(first_answer_s=4, trouble_s=0.0)
ASKING = ", ".join(each.name for each in BEHAVIOURS if not each.needs_a_document)


def conform(
    command: Sequence[str],
    *,
    without: Collection[str] = (),
    only: Collection[str] = (),
    parallel: int = PARALLEL,
    patience_s: float = PATIENCE_S,
    silence_s: float | None = None,
    pace: Pace = SHORTENED,
    said: Callable[[BehaviourRow], None] = lambda _: None,
) -> Report:
    """Try the agent that `command` starts; `said` hears of each behaviour as it is known.

    What is expected of the agent has not come when `patience_s` and several of its requests have passed without it, or when it
    has not asked for the document for `silence_s` (`patience_s` unless it is given).
    """
    chosen = _chosen(only)
    _check(without, CLAIMS, "--without")
    if not 1 <= parallel <= MAX_PARALLEL:
        raise Invalid(f"--parallel: {parallel} behaviours at once: use 1 to {MAX_PARALLEL}")
    if not command:
        raise Invalid(
            "there is no command: write it after `--`, like `forewarn conform -- my-agent --endpoint {endpoint}`"
        )
    if "{" not in command[0] and shutil.which(command[0]) is None:
        raise Invalid(f"{command[0]}: there is no such program, or it may not be run")
    stopping = threading.Event()

    def stage(folder: Path) -> Stage:
        return Stage(command, folder, set(CLAIMS) - set(without), os.environ, stopping, pace, patience_s, silence_s)

    def tried(behaviour: Behaviour) -> BehaviourRow:
        row = _skipped(behaviour, without) or _tried(behaviour, stage)
        said(row)
        return row

    begun_s = time.monotonic()
    with ThreadPoolExecutor(parallel, thread_name_prefix="conform") as pool:
        try:
            rows = list(pool.map(tried, chosen))
        except BaseException:
            # Every agent is ended before this does.
            stopping.set()
            pool.shutdown(cancel_futures=True)
            raise
    return Report(tuple(command), tuple(rows), time.monotonic() - begun_s)


def _chosen(only: Collection[str]) -> list[Behaviour]:
    _check(only, [each.name for each in BEHAVIOURS], "--only")
    return [each for each in BEHAVIOURS if not only or each.name in only]


def _check(words: Collection[str], known: Collection[str], option: str) -> None:
    for word in words:
        if word not in known:
            raise Invalid(f"{option}: {word!r} is unknown: use {', '.join(known)}")


def _skipped(behaviour: Behaviour, without: Collection[str]) -> BehaviourRow | None:
    missing = [claim for claim in behaviour.claims if claim in without]
    return BehaviourRow(behaviour, SKIPPED, f"the agent does not claim {', '.join(missing)}") if missing else None


def _tried(behaviour: Behaviour, new_stage: Callable[[Path], Stage]) -> BehaviourRow:
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="conform-", ignore_cleanup_errors=True) as folder:
        stage = new_stage(Path(folder))
        try:
            with stage.emulator(behaviour):
                behaviour.check(stage)
            outcome, reason = PASSED, ""
        except (AgentFailed, ForewarnError) as error:
            outcome, reason = FAILED, str(error)
            if behaviour.needs_a_document and not stage.served:
                outcome, reason = NOT_REACHED, f"it never got a document (see {ASKING}): {error}"
        except Interrupted:
            outcome, reason = FAILED, "interrupted"
        finally:
            stage.kill()
        return BehaviourRow(
            behaviour, outcome, reason, time.monotonic() - begun_s, "" if outcome == PASSED else stage.output()
        )
