"""The simulated executor: how long its work takes, and how it ends."""

from forewarn.executors import Outcome
from forewarn.executors.simulated import SimulatedExecutor
from forewarn.testing.stories import START
from tests.support.services import work


def test_simulated_work_takes_its_time_and_fails_as_configured() -> None:
    """The first attempts fail where the settings say so; a second executor continues without stored state."""
    runs = SimulatedExecutor(work_s=600, freeze_work_s=300, failures={"shop/web-1": 1})
    runs.take(work())
    due = runs.next_report()
    assert due is not None
    assert (due - START).total_seconds() == 600
    assert runs.reports(START) == []
    assert [report.outcome for report in runs.reports(due)] == [Outcome(False, "simulated failure of attempt 1")]
    runs.watch(work(attempt=2))
    assert [report.outcome for report in runs.reports(due)] == [Outcome(True, "simulated")]
    assert runs.next_report() is None
