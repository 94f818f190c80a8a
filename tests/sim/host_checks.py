"""Check the work on hosts: it begins on a free host only, and nothing is sent to a host that is cordoned or in maintenance."""

from collections.abc import Iterator
from datetime import datetime

from forewarn.core.change import Change
from forewarn.core.model import Event, HostMode, Order, OrderState, Phase, Status
from tests.sim.account import Account
from tests.sim.history import Committed, ExecutorCalled

Key = tuple[str, int]

BEGUN = (OrderState.RUNNING, OrderState.IN_DOUBT)
DROPPED = (OrderState.CANCELLED, OrderState.ABANDONED)
ENDED = (OrderState.DONE, OrderState.FAILED, *DROPPED)
HAVE_STARTED = (Status.STARTED, Status.COMPLETED, Status.ABANDONED)


class HostChecks:
    """Call `committed` after the account has the commit, with the orders as they were before it."""

    def __init__(self, account: Account) -> None:
        self._account = account
        # By the order of an event: the hosts that were cordoned when it was first saved as taken, and since when.
        self._cordoned: dict[Key, dict[str, datetime]] = {}
        # The same for hosts in maintenance, with the order of their work.
        self._worked_on: dict[Key, dict[str, Key]] = {}
        self._closed_ms: dict[str, int] = {}  # since when no machine may be sent to a host

    def committed(self, entry: Committed, before: dict[str, Order]) -> None:
        for order in entry.change.orders:
            known = before.get(order.id)
            if order.host:
                self._check_host_order(entry.at_ms, known, order)
            else:
                self._check_event_order(known, order)
        self._note_closed(entry.at_ms)
        for event in entry.change.events:
            self._check_start(event, entry.change, before)
            self._check_target(entry.at_ms, event, entry.change)

    def _note_closed(self, at_ms: int) -> None:
        self._closed_ms = {name: self._closed_ms.get(name, at_ms) for name in self._account.closed_hosts()}

    def _check_target(self, at_ms: int, event: Event, change: Change) -> None:
        """Check that machines can go somewhere when their departure is announced, and when it starts."""
        mode = self._account.maintenances[event.maintenance_id].host_mode
        announced = event.status is Status.SCHEDULED and event.published == change.at
        started = event.status is Status.STARTED and event.started == change.at
        if not event.host or mode is not HostMode.EVACUATE or not (announced or started):
            return
        targets = self._account.targets(event)
        if targets and all(self._account.was_closed(self._closed_ms.get(name, at_ms), at_ms) for name in targets):
            verb = "was announced" if announced else "started"
            self._account.complain(f"event {event.id} {verb} although its machines could go to no host")

    def _check_host_order(self, at_ms: int, known: Order | None, order: Order) -> None:
        """Check the order of a host. A machine may arrive while a host is let in, but not while its work begins."""
        state = known.state if known is not None else None
        if state in DROPPED and order.state is not state:
            self._account.complain(f"host {order.host} was {state} and is {order.state}: it is worked on all the same")
        begins = order.state is OrderState.RUNNING and state not in BEGUN
        opens = order.state is OrderState.OPEN and state is not OrderState.OPEN
        if begins or opens:
            for scope, name in self._in_the_way(order):
                if begins or self._account.was_on_host((scope, name), at_ms):
                    verb = "began" if begins else "was let in"
                    self._account.complain(f"the work on host {order.host} {verb} while {scope}/{name} was on it")

    def _in_the_way(self, order: Order) -> Iterator[tuple[str, str]]:
        """Yield the machines on the host; in place, those that no started event has shut down."""
        account = self._account
        in_place = account.maintenances[order.maintenance_id].host_mode is HostMode.IN_PLACE
        for (scope, name), host in account.machines.items():
            if host == order.host and not (in_place and self._is_down(order.maintenance_id, scope, name)):
                yield scope, name

    def _is_down(self, maintenance_id: str, scope: str, name: str) -> bool:
        for event in self._account.events.values():
            if (event.maintenance_id, event.scope, event.status) != (maintenance_id, scope, Status.STARTED):
                continue
            work = self._account.orders.get(event.id)
            if name in event.resources and work is not None:
                return work.phase is Phase.START and work.state is OrderState.PLANNED
        return False

    def _check_event_order(self, known: Order | None, order: Order) -> None:
        account = self._account
        event = account.events[order.id]
        if event.status not in HAVE_STARTED:
            account.complain(f"event {event.id} has an order and is {event.status}")
        if order.state is OrderState.RUNNING:
            cordoned = {name: host.cordoned for name, host in account.hosts.items() if host.cordoned is not None}
            self._cordoned.setdefault((order.id, order.attempt), cordoned)
            self._worked_on.setdefault((order.id, order.attempt), self._account.in_maintenance())
        starts = order.phase is Phase.START and order.state is OrderState.OPEN
        if starts and (known is None or known.state is not OrderState.OPEN):
            for host in self._hosts_of(event):
                if host.state not in ENDED:
                    account.complain(
                        f"order {order.id} starts machines while the work on host {host.host} is {host.state}"
                    )

    def _hosts_of(self, event: Event) -> Iterator[Order]:
        for order in self._account.orders.values():
            if order.host and (order.maintenance_id, order.host) == (event.maintenance_id, event.host):
                yield order

    def _check_start(self, event: Event, change: Change, before: dict[str, Order]) -> None:
        """Check that an event of a host starts in the turn of its host."""
        if event.status is not Status.STARTED or event.started != change.at or event.id in before or not event.host:
            return
        orders = [o for o in self._account.orders.values() if o.host and o.maintenance_id == event.maintenance_id]
        position = next((o.position for o in orders if o.host == event.host), 0)
        for order in orders:
            if order.position < position and order.state not in ENDED:
                self._account.complain(
                    f"event {event.id} of host {event.host} started before the turn of {order.host} ended"
                )

    def executor_called(self, entry: ExecutorCalled) -> None:
        """A host must not be chosen that has been cordoned or in maintenance since before the order was taken."""
        then = self._cordoned.get((entry.order_id, entry.attempt), {})
        worked_on = (
            self._worked_on.get((entry.order_id, entry.attempt), {}).items() & self._account.in_maintenance().items()
        )
        for name in entry.hosts:
            host = self._account.hosts.get(name)
            if name in then and host is not None and host.cordoned == then[name]:
                self._account.complain(f"order {entry.order_id} moves machines to host {name}, which was cordoned")
            if name in dict(worked_on):
                self._account.complain(
                    f"order {entry.order_id} moves machines to host {name}, which was in maintenance"
                )
