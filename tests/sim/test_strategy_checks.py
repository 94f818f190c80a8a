"""The judge accepts waves that keep to their strategy, and complains of each kind of wave that does not."""

from dataclasses import replace
from typing import Any

from forewarn.core.change import Change
from forewarn.core.model import Event, OnFailure, Order, OrderState, Status, Strategy
from tests.sim.account import Account
from tests.sim.history import Committed
from tests.sim.strategy_checks import StrategyChecks
from tests.support.builders import START, at, event, guid, maintenance

FIRST = event(1, status=Status.STARTED, started=START)
ENDED = replace(FIRST, status=Status.COMPLETED, ended=at(1))
PLANNED = event(2, wave=2, update_domain=1, status=Status.PLANNED, published=None, not_before=None)
MINUTE_MS = 60_000


def complaints(
    strategy: Strategy, published_at: float, *, first: Event = ENDED, jumped_ms: int = 0, **facts: Any
) -> list[str]:
    """Let the first event end after a minute and publish the second later; return what the judge says."""
    account = Account(tolerance_ms=1_000)
    checks = StrategyChecks(account, tolerance_ms=1_000)
    state = facts.pop("order", OrderState.DONE)
    account.maintenances[guid(900)] = maintenance(strategy=strategy, **facts)
    account.orders[guid(1)] = Order(id=guid(1), issued=START, state=state)
    if jumped_ms:
        account.clock_moved(MINUTE_MS, jumped_ms)
    published = replace(PLANNED, status=Status.SCHEDULED, published=at(published_at + jumped_ms / MINUTE_MS))
    for minutes, was, then in ((1.0, FIRST, first), (published_at, PLANNED, published)):
        account.events |= {FIRST.id: first, then.id: then}
        change = Change(at=at(minutes), events=(then,))
        checks.committed(Committed(int(minutes * MINUTE_MS), "n1", change), {was.id: was})
    return account.complaints


def test_the_bake_time() -> None:
    """It counts by the saved times, and by a clock that cannot be set unless the clock was set."""
    baked = Strategy(bake_s=600)
    assert complaints(baked, 11) == []
    assert complaints(baked, 10.9) == [f"event {guid(2)} was published before the bake time after {guid(1)}"]
    assert complaints(baked, 2, jumped_ms=10 * MINUTE_MS) == []
    assert complaints(Strategy(pause_after=2), 1) == []


def test_an_operator_lets_it_continue() -> None:
    """A wave after `pause_after` is published only then."""
    assert complaints(Strategy(pause_after=1), 2, continued_after=1) == []
    (complaint,) = complaints(Strategy(pause_after=1), 2)
    assert complaint == f"event {guid(2)} did not wait until an operator let its maintenance continue"


def test_the_limit_of_failures() -> None:
    """As many failed orders as the limit stop the next wave, with on_failure = continue."""
    facts: dict[str, Any] = {"first": FIRST, "order": OrderState.FAILED, "on_failure": OnFailure.CONTINUE}
    assert complaints(Strategy(max_failures="2"), 2, **facts) == []
    assert complaints(Strategy(max_failures="50%"), 2, **facts) == [f"event {guid(2)} moved on after 1 failures"]


def test_two_update_domains_in_a_wave() -> None:
    """The events of a wave start together, so they have one update domain of a scope, whatever the strategy."""
    account = Account(tolerance_ms=0)
    account.maintenances[guid(900)] = maintenance()
    other = replace(PLANNED, wave=1)
    account.events |= {FIRST.id: FIRST, other.id: other}
    StrategyChecks(account, tolerance_ms=0).committed(Committed(0, "n1", Change(at=START, events=(other,))), {})
    assert account.complaints == [f"wave 1 of maintenance {guid(900)} has two update domains of shop"]
