"""The orders of hosts on one node, and the question that comes before each of them: is the host free for its work?

The work on a host is taken, resumed and reported like that of events, by an executor of its own.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from forewarn.core.errors import NotFound
from forewarn.core.formatting import names
from forewarn.core.model import Order
from forewarn.executors import Executor, HostWork
from forewarn.service.clock import Clock
from forewarn.service.control import Control
from forewarn.service.leases import NodeLeases
from forewarn.service.orders import Orders
from forewarn.service.placement import may_arrive, rows_of
from forewarn.store import Store

# How long to wait before trying again to take an order that something on its host holds back.
TRY_AGAIN_S = 10.0


class HostCheck:
    """Says what forbids the work on a host: this node itself runs on it, or the executor of events finds machines there.

    `node_host` is the host that this node runs on.
    """

    def __init__(self, store: Store, executor: Executor, leases: NodeLeases, node_host: str) -> None:
        self._store = store
        self._executor = executor
        self._leases = leases
        self._node_host = node_host

    def is_own(self, host: str) -> bool:
        return host == self._node_host

    def stops_us(self, host: str) -> str:
        """Return why work on the host would stop forewarn itself, or ""."""
        if not self.is_own(host) or self._leases.others_live():
            return ""
        return f"this forewarn runs on host {host}, and no node that moves events is up on another host: start one"

    def unreported_moves(self) -> str:
        """Return why no report will say where evacuated machines go, or ""."""
        if self._executor.reports_moves:
            return ""
        return (
            f"the executor {self._executor.name} does not report where machines go, and the work on a host begins when the fleet"
            ' shows it empty: use inventory = "libvirt", or change the host of each machine in the fleet yourself'
        )

    def obstacle(self, order: Order) -> str:
        """Return what forbids the work on the host of an order now, or "". This may ask the host and take a while."""
        if reason := self.stops_us(order.host):
            return reason
        if reason := may_arrive(self._store, order):
            return reason
        if not self._executor.sees_hosts:
            return ""
        running = self._executor.machines_on(order.host, connection_of(self._store, order.host))
        if running is None:
            return f"host {order.host} does not say which machines run on it: check its connection"
        return f"host {order.host} still runs {names(sorted(running))}" if running else ""


def connection_of(store: Store, host: str) -> str:
    known = rows_of(store, (host,)).get(host)
    return known.connection if known is not None else ""


class HostOrders(Orders):
    """The orders of hosts. `check` says what holds back an order before it is taken."""

    of_hosts = True

    def __init__(
        self,
        control: Control,
        store: Store,
        clock: Clock,
        executor: Executor,
        leases: NodeLeases,
        check: HostCheck,
        *,
        node: str,
        stopping: threading.Event,
        alone: Callable[[], AbstractContextManager[bool]] = lambda: nullcontext(False),
        timeline: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(
            control, store, clock, executor, leases, node=node, stopping=stopping, alone=alone, timeline=timeline
        )
        self._check = check
        self._monotonic = monotonic
        self._try_again_s: dict[str, float] = {}

    def _may_hand_out(self, order: Order) -> bool:
        """Whether to try to take an order: at most every TRY_AGAIN_S, and not on a node that runs on the host itself."""
        now_s = self._monotonic()
        self._try_again_s = {i: at_s for i, at_s in self._try_again_s.items() if at_s > now_s}
        if order.id in self._try_again_s:
            return False
        self._try_again_s[order.id] = now_s + TRY_AGAIN_S
        if self._check.is_own(order.host) and not self._check.stops_us(order.host):
            self._leases.release_ticker()  # a node on another host takes the order
            return False
        return True

    def _work_of(self, order: Order) -> HostWork | None:
        try:
            _, maintenance, _ = self._control.order(order.id)
        except NotFound:
            return None
        return HostWork(order, maintenance, connection_of(self._store, order.host))
