"""Check the strategies of maintenances: what shares a wave, and what a next wave waits for."""

from datetime import timedelta

from forewarn.core.amounts import parse_amount
from forewarn.core.model import Event, OnFailure, OrderState, Status, Strategy
from tests.sim.account import Account
from tests.sim.history import Committed

ENDED = (Status.COMPLETED, Status.ABANDONED)
WAITING = (Status.PLANNED, Status.SCHEDULED)
DEFAULT = Strategy()


class StrategyChecks:
    """Call `committed` after the account has the commit, with the events as they were before it."""

    def __init__(self, account: Account, *, tolerance_ms: int) -> None:
        self._account = account
        self._tolerance_ms = tolerance_ms
        self._ended_ms: dict[str, int] = {}

    def committed(self, entry: Committed, before: dict[str, Event]) -> None:
        for event in entry.change.events:
            was = before.get(event.id)
            if event.status in ENDED:
                self._ended_ms[event.id] = entry.at_ms
            self._check_domains(event)
            if self._account.maintenances[event.maintenance_id].strategy == DEFAULT:
                continue
            published = event.status is Status.SCHEDULED and (was is None or was.status is Status.PLANNED)
            if published:
                self._check_bake(entry.at_ms, event)
            if published or (event.status is Status.STARTED and was is not None and was.status in WAITING):
                self._check_stops(event)

    def _check_domains(self, event: Event) -> None:
        if not event.one_domain_at_a_time:
            return
        wave = (event.maintenance_id, event.wave, event.scope)
        for other in self._account.events.values():
            if other.update_domain != event.update_domain and (other.maintenance_id, other.wave, other.scope) == wave:
                self._account.complain(
                    f"wave {event.wave} of maintenance {event.maintenance_id} has two update domains of {event.scope}"
                )

    def _check_bake(self, at_ms: int, event: Event) -> None:
        """Check the bake time by the times that were saved, and unless the clock was set, by one that cannot be set."""
        bake_s = self._account.maintenances[event.maintenance_id].strategy.bake_s
        for other in self._account.events.values() if bake_s else ():  # without one, the times of scopes may differ
            if other.maintenance_id != event.maintenance_id or other.wave >= event.wave or other.status not in ENDED:
                continue
            if event.published is None or other.ended is None:
                continue
            ended_ms = self._ended_ms[other.id]
            too_early = event.published - other.ended < timedelta(seconds=bake_s)
            if not self._account.jumped_ms(ended_ms - self._tolerance_ms):
                too_early |= at_ms - ended_ms < bake_s * 1_000 - self._tolerance_ms
            if too_early:
                self._account.complain(f"event {event.id} was published before the bake time after {other.id}")

    def _check_stops(self, event: Event) -> None:
        account = self._account
        maintenance = account.maintenances[event.maintenance_id]
        strategy = maintenance.strategy
        if maintenance.continued_after < strategy.pause_after < event.wave:
            account.complain(f"event {event.id} did not wait until an operator let its maintenance continue")
        if not strategy.max_failures or maintenance.on_failure is not OnFailure.CONTINUE:
            return
        events = [each for each in account.events.values() if each.maintenance_id == maintenance.id]
        failed = [
            each
            for each in events
            if each.status is Status.STARTED and account.orders[each.id].state is OrderState.FAILED
        ]
        hosts = [each for each in account.orders.values() if each.host and each.maintenance_id == maintenance.id]
        number = len(failed) + sum(each.state is OrderState.FAILED for each in hosts)
        orders = len(hosts) + sum(not each.replaced_by for each in events)
        if number >= parse_amount(strategy.max_failures).of(orders):
            account.complain(f"event {event.id} moved on after {number} failures")
