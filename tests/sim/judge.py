"""The judge: reads the history of a run, entry by entry, and returns a complaint for every broken rule.

`account` checks commits, `order_checks` what executors did, `host_checks` the work on hosts, `budget_checks` what is down at
once, `strategy_checks` what shares a wave and what a next wave waits for, `guest_checks` what guests saw.
The checker of the crash tests compares what was acknowledged with what is in the store.
"""

from collections.abc import Callable, Iterable
from typing import Any

from forewarn.core.change import Change
from forewarn.store import Store
from tests.integration.crash import checker
from tests.integration.crash.history import History, saved
from tests.sim.account import Account
from tests.sim.budget_checks import BudgetChecks
from tests.sim.guest_checks import GuestChecks, Notice
from tests.sim.history import (
    Acknowledged,
    Adopted,
    Alarm,
    Answered,
    Approved,
    ClockMoved,
    Committed,
    Entry,
    ExecutorCalled,
    FailedOver,
    Forgotten,
    NodeStarted,
    Shown,
    StatusRequested,
    Submitted,
    Unanswered,
)
from tests.sim.host_checks import HostChecks
from tests.sim.order_checks import OrderChecks
from tests.sim.strategy_checks import StrategyChecks
from tests.sim.window_checks import WindowChecks


def judge(history: Iterable[Entry], store: Store, *, tolerance_ms: int) -> tuple[list[str], Notice]:
    """Return the complaints, each once, and how many guests got their notice. `store` is the store after the run."""
    account = Account(tolerance_ms=tolerance_ms)
    orders, hosts, guests = OrderChecks(account), HostChecks(account), GuestChecks(account)
    budgets = BudgetChecks(account)
    strategies = StrategyChecks(account, tolerance_ms=tolerance_ms)
    windows = WindowChecks(account)
    acknowledged: list[Change] = []

    def committed(entry: Committed) -> None:
        change = entry.change
        orders_before = {order.id: account.orders[order.id] for order in change.orders if order.id in account.orders}
        events_before = {event.id: account.events[event.id] for event in change.events if event.id in account.events}
        budgets.before_commit(change)
        account.commit(entry.at_ms, change, entry.life)
        budgets.committed(entry)
        hosts.committed(entry, orders_before)
        strategies.committed(entry, events_before)
        windows.committed(entry, events_before, orders_before)
        orders.committed(entry)
        guests.committed(entry)

    def failed_over(entry: FailedOver) -> None:
        account.failed_over(entry.at_ms, entry.lost, entry.agreements)
        orders.failed_over(entry)
        guests.failed_over(entry)

    def executor_called(entry: ExecutorCalled) -> None:
        orders.executor_called(entry)
        hosts.executor_called(entry)

    checks: dict[type, Callable[[Any], None]] = {
        Committed: committed,
        Acknowledged: lambda entry: acknowledged.append(entry.change),
        NodeStarted: lambda entry: account.node_started(entry.at_ms, entry.life, entry.boot),
        FailedOver: failed_over,
        Adopted: lambda entry: account.adopted(entry.at_ms, entry.steps),
        Answered: guests.answered,
        Shown: guests.shown,
        Unanswered: guests.unanswered,
        Approved: guests.approved,
        Submitted: guests.submitted,
        StatusRequested: orders.status_requested,
        ExecutorCalled: executor_called,
        Forgotten: orders.forgotten,
        ClockMoved: lambda entry: account.clock_moved(entry.at_ms, entry.by_ms),
        Alarm: lambda entry: account.complain(f"{entry.life} raised an error that must not happen: {entry.text}"),
    }
    for entry in history:
        checks[type(entry)](entry)
    guests.end()
    notice = guests.notice()
    final_state = checker.read_store(store)
    kept = History(saved=[saved(change) for change in acknowledged if id(change) not in account.lost])
    complaints = [*account.complaints, *checker.complaints(kept, final_state), *checker.unfinished(final_state)]
    return list(dict.fromkeys(complaints)), notice
