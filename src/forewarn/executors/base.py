"""The base class of executors, with a default for everything that an executor need not care about."""

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from forewarn.core.change import Change
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import Event, Maintenance, Order
from forewarn.core.order_verbs import OrderReport, Outcome, Unknown
from forewarn.executors.settings import NoSettings


@dataclass(frozen=True, slots=True)
class Work:
    """An order with its event; `hosts` maps each machine of the event to its host.

    `connections` maps hosts to their connection, like a libvirt URI. `targets` maps machines to the hosts they may be moved to,
    the best first, without hosts that are down or cordoned. `live` marks a Freeze that is part of an evacuation: a live
    migration. `instance_ids` maps machines to their instance ids, where they are known. `closed(host)` returns why a machine may
    no longer be sent to a host, or "": a target may be cordoned after the order was taken. It may be called from any thread.
    """

    order: Order
    event: Event
    hosts: Mapping[str, str]
    connections: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    live: bool = False
    instance_ids: Mapping[str, str] = field(default_factory=dict)
    closed: Callable[[str], str] = field(default=lambda _: "", compare=False)


@dataclass(frozen=True, slots=True)
class HostWork:
    """The order of a host with its maintenance; `connection` is how the host is reached, if the fleet names it."""

    order: Order
    maintenance: Maintenance
    connection: str = ""


class Progress(StrEnum):
    """What an executor knows of an order that has not ended. NOT_BEGUN is certain: nothing of the work was done."""

    NOT_BEGUN = "not-begun"
    RUNNING = "running"


class Executor:
    """Carries out orders. A subclass sets `name` and overrides at least `take` and `reports`.

    The ticker's thread calls every method that gets or reports an order. `check`, `from_settings`, `connect` and `close` run in
    the thread that builds or stops the service. An order is saved as running, under the name of this node, before the executor
    gets it. After a crash the ticker first asks for the order's `status`. It calls `take` again, with the same id and attempt,
    if the answer is NOT_BEGUN, or if it is Unknown and the executor is `repeatable`. Otherwise an order whose status is Unknown
    is in doubt until an operator decides.

    The executor of events gets `Work`. The executor of hosts is another instance and gets `HostWork`.
    """

    name = ""
    # A frozen dataclass made of `setting` fields. Its values come from the TOML table called like the executor.
    settings_class: type = NoSettings
    # True if an order whose status is Unknown may be taken again: work that is done twice does no harm.
    repeatable = False
    # False if other programs take the orders through the API.
    takes_orders = True
    # True if the work is only pretended: the portal says so on every page.
    touches_no_machine = False
    # False if this executor does nothing outside forewarn, so that an emulator may accept operators without a token.
    needs_token = True
    # False if its reports never say where machines went: an evacuation then needs an inventory, or an operator.
    reports_moves = True
    # True if `machines_on` can tell what runs on a host.
    sees_hosts = False
    # FOREWARN_* environment variables that this executor sets for programs it runs. They are no settings.
    variables: frozenset[str] = frozenset()

    @classmethod
    def check(cls, settings: Any, *, order_timeout_s: int) -> None:
        """Raise InvalidSettings if values that are valid one by one do not fit together."""

    @classmethod
    def from_settings(cls, settings: Any, state_dir: Path) -> "Executor":
        """Make the executor. It may keep files in a folder of its own in `state_dir`."""
        del settings, state_dir
        return cls()

    def connect(self, nudge: Callable[[], None], listen: Callable[[Callable[[Change], None]], None]) -> None:
        """Called once before any order. `nudge()`, from any thread, makes the ticker ask for `reports` now.

        `listen(listener)` subscribes a listener to every saved change.
        """

    def status(self, work: Any) -> Progress | Outcome | Unknown:
        """Return what became of an order that may have been taken before a restart, or by another node."""
        del work
        return Unknown()

    def free_slots(self) -> int:
        """Return how many more orders this executor can take now."""
        return sys.maxsize

    def take(self, work: Any) -> None:
        """Start the work and return; `reports` returns its end. An OSError fails the order."""
        raise NotImplementedError

    def watch(self, work: Any) -> None:
        """Wait for work for which `status` returned RUNNING; `reports` returns its end."""

    def reports(self, now: datetime) -> list[OrderReport]:
        """Return the orders that have ended, or are lost, since the last call; called at least once a second."""
        del now
        return []

    def at_work(self) -> int:
        """Return how many orders this executor waits for. A node that stops may wait until there are none."""
        return 0

    def next_report(self) -> datetime | None:
        """Return when, on the service clock, the next report is due; None if that is not known."""
        return None

    def report_saved(self, report: OrderReport) -> None:
        """Forget the order: its end is saved, and the ticker will not ask for its `status` again."""

    def problem(self) -> str:
        """Return why orders would fail now, or "". Called at start and by /readyz, from any thread; it must return at once."""
        return ""

    def machines_on(self, host: str, connection: str) -> tuple[str, ...] | None:
        """Return the machines that run on a host, those unknown to forewarn included; None if that is unknown now.

        Work on a host waits until it is empty. If an executor cannot tell at all (`sees_hosts` is False), the fleet decides.
        """
        del host, connection
        return None

    def tidy(self, unfinished: Collection[Any]) -> None:
        """Called once at start: remove what an earlier process left of orders that are not in `unfinished`."""

    def close(self) -> None:
        """Called when the service stops. Leave running work alone: after the next start `status` finds it."""
