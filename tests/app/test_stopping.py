"""A node that receives SIGTERM: it waits for the commands it runs if `stop_grace` says so, and leaves them at work."""

import logging
from typing import cast

import pytest

from forewarn.app.server import StopSignal, _wait_for_orders
from forewarn.service.ticker import Ticker


class WorkingTicker:
    """A ticker whose orders end one after the other, one at each wait; it may hand out an order until it is drained."""

    def __init__(self, at_work: int, *, being_handed_out: int = 0) -> None:
        self.left = at_work
        self._being_handed_out = being_handed_out
        self.drained = False

    def drain(self) -> None:
        self.drained = True
        self.left += self._being_handed_out

    def at_work(self) -> int:
        return self.left


class Signals:
    """Signals that arrive, or do not, at each wait."""

    def __init__(self, ticker: WorkingTicker, *arrive: bool) -> None:
        self._ticker = ticker
        self._arrive = list(arrive)
        self.waits = 0

    def wait(self, within_s: float | None = None) -> bool:
        assert within_s is not None
        self.waits += 1
        self._ticker.left -= 1
        return self._arrive.pop(0) if self._arrive else False


def waited(ticker: WorkingTicker, grace_s: float, signals: Signals) -> None:
    _wait_for_orders(cast(Ticker, ticker), grace_s, cast(StopSignal, signals))


def test_without_a_grace_a_node_stops_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Its commands stay at work, and the log says so."""
    ticker = WorkingTicker(3)
    signals = Signals(ticker)
    with caplog.at_level(logging.INFO, "forewarn.app.server"):
        waited(ticker, 0, signals)
    assert (ticker.drained, signals.waits) == (False, 0)
    assert "3 order(s) stay at work" in caplog.text


def test_a_node_waits_until_its_orders_have_ended(caplog: pytest.LogCaptureFixture) -> None:
    """It takes no new orders meanwhile, and leaves none at work."""
    ticker = WorkingTicker(3)
    signals = Signals(ticker)
    with caplog.at_level(logging.INFO, "forewarn.app.server"):
        waited(ticker, 600, signals)
    assert (ticker.drained, ticker.left, signals.waits) == (True, 0, 3)
    assert "stay at work" not in caplog.text


def test_an_order_that_is_being_handed_out_is_awaited() -> None:
    """It is saved as running, but its command has not begun when the signal arrives."""
    ticker = WorkingTicker(0, being_handed_out=1)
    signals = Signals(ticker)
    waited(ticker, 600, signals)
    assert (ticker.left, signals.waits) == (0, 1)


def test_a_second_signal_ends_the_wait(caplog: pytest.LogCaptureFixture) -> None:
    """The orders that are left stay at work."""
    ticker = WorkingTicker(9)
    signals = Signals(ticker, False, True)
    with caplog.at_level(logging.INFO, "forewarn.app.server"):
        waited(ticker, 600, signals)
    assert signals.waits == 2
    assert "order(s) stay at work" in caplog.text


def test_a_node_without_orders_does_not_wait() -> None:
    """Nothing is at work, so it stops at once."""
    ticker = WorkingTicker(0)
    signals = Signals(ticker)
    waited(ticker, 600, signals)
    assert signals.waits == 0
