"""A run: the probe and the rows on a pool of threads, each with an emulator, an agent and a folder of its own."""

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from forewarn.core.errors import ForewarnError
from forewarn.testing.conform.agent_process import AgentFailed
from forewarn.testing.conform.behaviours import DOCUMENTLESS, Behaviour, ShownBy
from forewarn.testing.conform.event_kinds import EventKind
from forewarn.testing.conform.outcomes import FAILED, NOT_REACHED, NOT_SHOWN, PASSED, NotTested
from forewarn.testing.conform.probe import KindResult, probe
from forewarn.testing.conform.report import BehaviourRow
from forewarn.testing.conform.selection import check_claims, select_kinds
from forewarn.testing.conform.trial import AgentSetup, Interrupted, Trial

# The claims about events that a test can observe.
VISIBLE_CLAIMS = frozenset({"approval", "prepare"})
# The row about the rate limit. Refused requests can make others fail too.
RATE_ROW = "does-not-hammer"
SIGNALS_EVERY_S = 0.5
NOTHING_SHOWN = "it kept polling, but it neither approved nor prepared for any event of its own"


class Run:
    """Tests behaviours of one agent, and calls `on_row` with the result of each."""

    def __init__(self, setup: AgentSetup, on_row: Callable[[BehaviourRow], None]) -> None:
        self._setup = setup
        self._on_row = on_row
        self._stopping = threading.Event()
        self._probes: list[Future[KindResult]] = []
        self._rows: dict[str, Future[BehaviourRow]] = {}

    def test(self, behaviours: Sequence[Behaviour], pool: ThreadPoolExecutor) -> list[BehaviourRow]:
        """Test the behaviours in their order.

        The pool begins with the probes, so a row that waits for a probe or for an earlier row waits for one that runs.
        """
        try:
            if any(self._needs_probe(each) for each in behaviours):
                self._probes = [pool.submit(self._probe, kind) for kind in self._setup.kinds]
            for behaviour in behaviours:
                self._rows[behaviour.name] = pool.submit(self._test, behaviour)
            return [_result(self._rows[each.name]) for each in behaviours]
        except BaseException:
            # End every agent before this function ends.
            self._stopping.set()
            pool.shutdown(cancel_futures=True)
            raise

    @property
    def events(self) -> list[KindResult]:
        """Return what the agent did about events of its own; nothing if no behaviour needs that."""
        return [each.result() for each in self._probes]

    def _needs_probe(self, behaviour: Behaviour) -> bool:
        with suppress(NotTested):
            check_claims(behaviour, self._setup)
            return behaviour.shown_by is not ShownBy.REQUESTS
        return False

    def _probe(self, kind: EventKind) -> KindResult:
        with tempfile.TemporaryDirectory(prefix="conform-", ignore_cleanup_errors=True) as folder:
            trial = Trial(self._setup, Path(folder), self._stopping)
            with trial.run_emulator():
                result = probe(trial, kind)
            return replace(result, output=trial.agent.output(), timeline=tuple(trial.emulator.log.timeline()))

    def _test(self, behaviour: Behaviour) -> BehaviourRow:
        begun_s = time.monotonic()
        try:
            check_claims(behaviour, self._setup)
            self._check_earlier_row(behaviour)
            row = (
                self._test_with_events(behaviour)
                if behaviour.shown_by is not ShownBy.REQUESTS
                else self._try(behaviour, (), ())
            )
        except NotTested as error:
            row = BehaviourRow(behaviour, error.outcome, str(error))
        row = replace(row, seconds=time.monotonic() - begun_s)
        self._on_row(row)
        return row

    def _check_earlier_row(self, behaviour: Behaviour) -> None:
        if behaviour.after in self._rows:
            earlier = self._rows[behaviour.after].result()
            if earlier.outcome == FAILED:
                raise NotTested(NOT_REACHED, f"{behaviour.after} failed: {earlier.reason}")

    def _test_with_events(self, behaviour: Behaviour) -> BehaviourRow:
        """Decide by the results of the probe if they are enough, or else run the check with what the agent handles."""
        results = self.events
        if not any(each.served for each in results):
            return _row(behaviour, NOT_REACHED, _no_document(results[0].reason), results[0])
        usable = select_kinds(behaviour, results)
        claims_action = bool(VISIBLE_CLAIMS & set(behaviour.claims))
        decided = claims_action or any(each.handled for each in results) or not any(each.seen for each in usable)
        if behaviour.probe_check is None or not decided:
            return self._try(behaviour, results, usable)
        finding = behaviour.probe_check(usable, declared=bool(self._setup.declared))
        if finding is None:
            return BehaviourRow(behaviour, PASSED)
        return _row(behaviour, FAILED, finding.reason, finding.result)

    def _try(self, behaviour: Behaviour, results: Sequence[KindResult], usable: Sequence[KindResult]) -> BehaviourRow:
        row = self._try_once(behaviour, results, usable)
        for _ in range(behaviour.tries - 1):
            if row.outcome != FAILED or self._stopping.is_set():
                break
            row = self._try_once(behaviour, results, usable)
        return row

    def _try_once(
        self, behaviour: Behaviour, results: Sequence[KindResult], usable: Sequence[KindResult]
    ) -> BehaviourRow:
        with tempfile.TemporaryDirectory(prefix="conform-", ignore_cleanup_errors=True) as folder:
            trial = Trial(self._setup, Path(folder), self._stopping, results, usable, behaviour.faults)
            outcome, reason = _outcome(behaviour, trial)
            if outcome == PASSED:
                return BehaviourRow(behaviour, PASSED)
            if trial.restarts:
                reason += f" (it ended and was started again {trial.restarts} times)"
            if trial.rate_limited and behaviour.name != RATE_ROW:
                reason += f" (the rate limit refused {trial.rate_limited} of its requests: see {RATE_ROW})"
            timeline = tuple(trial.emulator.log.timeline())
            return BehaviourRow(behaviour, outcome, reason, output=trial.agent.output(), timeline=timeline)


def _result(row: "Future[BehaviourRow]") -> BehaviourRow:
    """Wait for a row, a little at a time: a signal that comes just before a wait without end is handled only after it."""
    while not row.done():
        wait([row], timeout=SIGNALS_EVERY_S)
    return row.result()


def _row(behaviour: Behaviour, outcome: str, reason: str, result: KindResult) -> BehaviourRow:
    return BehaviourRow(behaviour, outcome, reason, output=result.output, timeline=result.timeline)


def _no_document(reason: str) -> str:
    return f"it never got a document (see {DOCUMENTLESS}): {reason}"


def _outcome(behaviour: Behaviour, trial: Trial) -> tuple[str, str]:
    """Run the check; return the outcome and the reason."""
    try:
        with trial.run_emulator():
            behaviour.check(trial)
    except (AgentFailed, ForewarnError) as error:
        if behaviour.needs_a_document and not trial.served:
            return NOT_REACHED, _no_document(str(error))
        return FAILED, str(error)
    except NotTested as error:
        return error.outcome, str(error)
    except Interrupted:
        return FAILED, "interrupted"
    if behaviour.shown_by is ShownBy.ACTION and not trial.usable[0].handled:
        return NOT_SHOWN, NOTHING_SHOWN
    return PASSED, ""
