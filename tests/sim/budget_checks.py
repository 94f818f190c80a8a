"""Check budgets: what is published, and work on a host that begins, leaves no more down than the scope and the fleet allow."""

from collections.abc import Iterable

from forewarn.core.change import Change
from forewarn.core.fleet_rules import FleetRules
from forewarn.core.model import Event, OrderState, Source, Status
from tests.sim.account import ROLLING, VISIBLE, Account
from tests.sim.history import Committed

OVER = (OrderState.DONE, OrderState.CANCELLED, OrderState.ABANDONED)


class BudgetChecks:
    """Call `before_commit` before the account has the commit, and `committed` after that.

    A commit without events, orders and rules of the fleet takes nothing down.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._rules = FleetRules()
        self._visible: set[str] = set()
        self._hosts: set[tuple[str, str]] = set()

    def before_commit(self, change: Change) -> None:
        if not _concerns_budgets(change):
            return
        self._visible = {event.id for event in self._account.events.values() if event.status in VISIBLE}
        self._hosts = self._hosts_down() if self._rules.max_hosts_down else set()

    def committed(self, entry: Committed) -> None:
        if not _concerns_budgets(entry.change):
            return
        self._rules = entry.change.fleet_rules or self._rules
        visible = [event for event in self._account.events.values() if event.status in VISIBLE]
        bound = [event for event in visible if event.id not in self._visible and _waits(event)]
        known = _machines(event for event in visible if event.id in self._visible)
        new = _machines(bound) - known
        for scope in sorted({name for name, _ in new}):
            limit = self._limit_of(scope)
            number = sum(name == scope for name, _ in new | known)
            if limit and number > limit:
                self._account.complain(f"{number} machines of {scope} were unavailable at once, and {limit} may be")
        limit = self._rules.max_machines_down
        if new and limit and len(new | known) > limit:
            self._account.complain(f"{len(new | known)} machines of the fleet were down at once, and {limit} may be")
        if self._rules.max_hosts_down:
            self._check_hosts()

    def _limit_of(self, scope: str) -> int:
        text = self._account.scopes[scope].max_unavailable
        if not text.endswith("%"):
            return int(text or 0)
        return max(1, int(text[:-1]) * sum(name == scope for name, _ in self._account.machines) // 100)

    def _check_hosts(self) -> None:
        down, limit = self._hosts_down(), self._rules.max_hosts_down
        stay = {host for _, host in down & self._hosts}
        new = {host for key, host in down - self._hosts if not self._account.maintenances[key].emergency}
        if not new <= stay and len(new | stay) > limit:
            self._account.complain(f"{len(new | stay)} hosts of the fleet were down at once, and {limit} may be")

    def _hosts_down(self) -> set[tuple[str, str]]:
        """Return the maintenances with the hosts that they empty or work on."""
        events = [event for event in self._account.events.values() if event.host]
        down = {(event.maintenance_id, event.host) for event in events if event.status in VISIBLE}
        begun = down | {(event.maintenance_id, event.host) for event in events if event.status is Status.COMPLETED}
        for order in self._account.orders.values():
            key = (order.maintenance_id, order.host)
            if order.host and order.state not in OVER and (order.state is not OrderState.PLANNED or key in begun):
                down.add(key)
        return down


def _concerns_budgets(change: Change) -> bool:
    return bool(change.events or change.orders or change.fleet_rules)


def _waits(event: Event) -> bool:
    return event.source is Source.PLATFORM and event.type in ROLLING and not event.emergency


def _machines(events: Iterable[Event]) -> set[tuple[str, str]]:
    return {(event.scope, name) for event in events for name in event.resources}
