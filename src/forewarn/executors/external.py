"""Others do the work: orders are offered through the API, and whoever takes one reports its end. Nothing happens here."""

from collections.abc import Collection
from datetime import datetime

from forewarn.core.lifecycle import Outcome
from forewarn.executors import OrderReport, Progress, Work


class ExternalExecutor:
    name = "external"
    takes_orders = False

    def status(self, work: Work) -> Progress | Outcome:
        """It runs until somebody says otherwise, or its deadline passes."""
        del work
        return Progress.RUNNING

    def free_slots(self) -> int:
        return 0

    def begin(self, work: Work) -> None:
        """Somebody out there begins."""

    def watch(self, work: Work) -> None:
        """Nothing to wait for: the report comes through the API."""

    def reports(self, now: datetime) -> list[OrderReport]:
        del now
        return []

    def next_report(self) -> datetime | None:
        return None

    def settled(self, report: OrderReport) -> None:
        """Nothing was kept."""

    def tidy(self, running: Collection[Work]) -> None:
        """Nothing was kept."""

    def close(self) -> None:
        """Nothing is held."""
