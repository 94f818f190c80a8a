"""Check executors: an order is saved as taken before its work, its status is requested before a repeat, it is done once."""

from collections import defaultdict

from forewarn.core.model import OrderState
from tests.sim.account import Account
from tests.sim.history import Committed, ExecutorCalled, FailedOver, Forgotten, StatusRequested

Key = tuple[str, int]


class OrderChecks:
    def __init__(self, account: Account) -> None:
        self._account = account
        self._may_execute_since_ms: dict[tuple[str, Key], int] = {}
        self._stopped_running_ms: dict[Key, int] = {}
        self._executed: set[Key] = set()
        # The commits that saved an order as running.
        self._takes: dict[Key, list[Committed]] = defaultdict(list)
        self._lost_takes: set[Key] = set()
        self._performed: set[Key] = set()
        self._forgotten: set[Key] = set()

    def committed(self, entry: Committed) -> None:
        for order in entry.change.orders:
            key = (order.id, order.attempt)
            if order.state is OrderState.RUNNING:
                # A node that takes over an order must first request its status.
                if not self._takes[key] and order.node.endswith(f" on {entry.life.partition('#')[0]}"):
                    self._may_execute_since_ms[entry.life, key] = entry.at_ms
                self._stopped_running_ms.pop(key, None)
                self._takes[key].append(entry)
            else:
                self._stopped_running_ms.setdefault(key, entry.at_ms)
            timed_out = order.state is OrderState.FAILED and order.reason.startswith("timed out")
            in_time = not self._account.jumped_since(self._takes[key][0].at_ms if self._takes[key] else entry.at_ms)
            if timed_out and order.node and key not in self._executed and in_time:
                self._account.complain(f"order {_name(key)} was taken by {order.node} and never executed: it timed out")

    def failed_over(self, entry: FailedOver) -> None:
        """Orders taken in a lost commit must be taken again. If only their end was lost, they are still taken."""
        lost = {id(change) for change in entry.lost}
        for key, takes in self._takes.items():
            if any(id(take.change) in lost for take in takes):
                self._takes[key] = [take for take in takes if id(take.change) not in lost]
                self._lost_takes.add(key)

    def status_requested(self, entry: StatusRequested) -> None:
        """A node may call the executor for an order that the executor does not know."""
        permission = (entry.life, (entry.order_id, entry.attempt))
        if entry.unknown:
            self._may_execute_since_ms[permission] = entry.at_ms
        else:
            self._may_execute_since_ms.pop(permission, None)

    def forgotten(self, entry: Forgotten) -> None:
        self._performed.discard((entry.order_id, entry.attempt))
        self._forgotten.add((entry.order_id, entry.attempt))

    def executor_called(self, entry: ExecutorCalled) -> None:
        key = (entry.order_id, entry.attempt)
        since_ms = self._may_execute_since_ms.pop((entry.life, key), None)
        if since_ms is None:
            self._account.complain(
                f"{entry.life} executed order {_name(key)} without having taken it or requested its status"
            )
        self._executed.add(key)
        if entry.performed:
            self._check_performed(key, entry.at_ms if since_ms is None else since_ms)

    def _check_performed(self, key: Key, since_ms: int) -> None:
        order = self._account.orders.get(key[0])
        # The order was saved, and a failover lost it; or the executor forgot it after the node had requested its status; or
        # the order ended after that: no node can check the store and begin the work in one step.
        ended_meanwhile = self._stopped_running_ms.get(key, 0) > since_ms
        excused = key in self._account.lost_orders or key in self._forgotten or ended_meanwhile
        running = order is not None and order.attempt == key[1] and order.state is OrderState.RUNNING
        if not excused and not running:
            self._account.complain(f"order {_name(key)} was done while it was saved as {order and order.state}")
        # Nobody knows of work whose taking was lost in a failover: the order is taken again.
        if key in self._performed and key not in self._lost_takes:
            self._account.complain(f"order {_name(key)} was done twice")
        self._performed.add(key)


def _name(key: Key) -> str:
    return f"{key[0]} (attempt {key[1]})"
