"""What an executor learns about hosts: how to reach them, and where the machines of an order may go."""

from typing import Any

import pytest

from forewarn.app.service import Service
from forewarn.core.change import Snapshot
from forewarn.core.errors import StoreUnavailable
from forewarn.core.fleet import Fleet
from forewarn.core.model import EventType, Host, HostMode, Machine, MaintenanceRequest, OrderState, Targets
from forewarn.core.transitions import Verb
from forewarn.executors import Work
from forewarn.service import placement
from forewarn.store import EventQuery, Focus
from forewarn.store.memory import MemoryStore
from tests.support.services import OPERATOR, ScriptedExecutor, make_service, ticker_with


class Recorder(ScriptedExecutor):
    """Keeps the work that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[Work] = []

    def take(self, work: Work) -> None:
        self.works.append(work)


def farm(*hosts: Host) -> Service:
    """Return a service with the machine s-0/m on host h, s-1/m on host d, and these hosts, of which b is cordoned."""
    service = make_service(MemoryStore(), scopes=2, enabled=False)
    rows = {host.name: host for host in hosts}
    machine = Machine(scope="s-1", name="m", host="d", instance_id="uuid-1")
    service.control.apply_fleet(Fleet({}, {machine.key: machine}, rows), OPERATOR)
    if "b" in rows:
        service.control.cordon_host("b", OPERATOR)
    return service


def taken(type_: EventType, *hosts: Host) -> Work:
    """Return the work of an event of this type on such a fleet."""
    service = farm(*hosts)
    request = MaintenanceRequest(type=type_, targets=Targets(machines=(("s-0", "m"),)))
    service.control.submit(request, OPERATOR)
    executor = Recorder()
    ticker_with(service, executor).cycle_until_idle()
    (work,) = executor.works
    return work


LISTED = [Host(name=name, connection=f"test://{name}/", listed=True) for name in "hbcde"]


def test_machines_that_leave_have_targets() -> None:
    """The emptiest host first, without the host to leave and without the cordoned one; every connection is known."""
    work = taken(EventType.REDEPLOY, *LISTED)
    assert work.hosts == {"m": "h"}
    assert work.targets == {"m": ("c", "e", "d")}
    assert work.connections == {name: f"test://{name}/" for name in "hbcde"}
    assert not work.live


@pytest.mark.parametrize("page", [1, 2, 1_000])
def test_hosts_are_read_in_pages(page: int) -> None:
    """Each host comes once, with the number of its machines."""
    hosts = placement.every_host(farm(*LISTED).store, page=page)
    assert [(each.name, each.machines) for each in hosts] == [("b", 0), ("c", 0), ("d", 1), ("e", 0), ("h", 1)]


def test_machines_that_stay_have_no_targets() -> None:
    """A reboot chooses no host; without a list of hosts, an executor chooses by itself."""
    work = taken(EventType.REBOOT, *LISTED)
    assert (work.targets, work.connections) == ({}, {"h": "test://h/"})
    work = taken(EventType.REDEPLOY)
    assert (work.targets, work.connections) == ({}, {})


def evacuated(service: Service, **more: Any) -> Recorder:
    """Evacuate host h, and return the executor that got the work."""
    targets = Targets(hosts=("h",))
    request = MaintenanceRequest(type=EventType.FREEZE, targets=targets, host_mode=HostMode.EVACUATE, **more)
    service.control.submit(request, OPERATOR)
    executor = Recorder()
    ticker_with(service, executor).cycle_until_idle()
    return executor


def test_an_evacuation_moves_running_machines_to_the_named_host() -> None:
    """A Freeze that empties a host is live; `to_host` is the only target, also one that the fleet does not list."""
    (work,) = evacuated(farm(*LISTED)).works
    assert (work.live, work.targets) == (True, {"m": ("c", "e", "d")})
    (work,) = evacuated(farm(*LISTED), to_host="d").works
    assert work.targets == {"m": ("d",)}
    (work,) = evacuated(farm(), to_host="new").works
    assert work.targets == {"m": ("new",)}


def test_machines_wait_until_their_host_is_uncordoned() -> None:
    """Nothing is announced before: no event, and no order that would fail. The uncordoned host wakes the maintenance."""
    service = farm(*LISTED)
    executor = evacuated(service, to_host="b")
    ticker_with(service, executor).cycle_until_idle()
    assert (executor.works, service.store.events(EventQuery()).events) == ([], ())
    service.control.uncordon_host("b", OPERATOR)
    ticker_with(service, executor).cycle_until_idle()
    assert [work.targets for work in executor.works] == [{"m": ("b",)}]


def test_an_order_fails_if_its_host_was_cordoned_after_it_started() -> None:
    """The executor does not get it; after the host is uncordoned, a retry does."""
    service = farm(*LISTED)
    request = MaintenanceRequest(
        type=EventType.FREEZE, targets=Targets(hosts=("h",)), host_mode=HostMode.EVACUATE, to_host="c"
    )
    service.control.submit(request, OPERATOR)
    service.control.cordon_host("c", OPERATOR)
    executor = Recorder()
    ticker_with(service, executor).cycle_until_idle()
    (order,) = service.store.orders({OrderState.FAILED}, 9)
    assert order.reason == "host c is cordoned, and its machines must go there: uncordon it or wait, then retry"
    service.control.uncordon_host("c", OPERATOR)
    service.control.resolve_failure(order.id, Verb.RETRY, OPERATOR)
    ticker_with(service, executor).cycle_until_idle()
    assert [work.targets for work in executor.works] == [{"m": ("c",)}]


def test_a_host_in_maintenance_is_no_target() -> None:
    """Machines are not sent to a host whose work may begin or goes on, even if it is uncordoned meanwhile."""
    service = farm(*LISTED)
    request = MaintenanceRequest(type=EventType.FREEZE, targets=Targets(hosts=("c",)), host_mode=HostMode.EVACUATE)
    service.control.submit(request, OPERATOR)
    service.control.uncordon_host("c", OPERATOR)
    assert placement.hosts_in_maintenance(service.store) == {"c"}
    (work,) = evacuated(service).works
    assert work.targets == {"m": ("e", "d")}


def redeploy(service: Service, *machines: tuple[str, str], **more: Any) -> str:
    request = MaintenanceRequest(type=EventType.REDEPLOY, targets=Targets(machines=machines), **more)
    return service.control.submit(request, OPERATOR)


class Counting(MemoryStore):
    """Counts how often the hosts are read."""

    read = 0

    def hosts(self) -> dict[str, Host]:
        self.read += 1
        return super().hosts()


def test_hosts_are_read_once_for_a_batch_and_only_for_machines_that_leave() -> None:
    """However many orders are handed out at once; every order gets the same targets as if it were alone."""
    store = Counting()
    service = make_service(store, scopes=3, enabled=False)
    service.control.apply_fleet(Fleet({}, {}, {host.name: host for host in LISTED}), OPERATOR)
    for scope in ("s-0", "s-1"):
        redeploy(service, (scope, "m"))
    executor = Recorder()
    ticker = ticker_with(service, executor)
    store.read = 0
    ticker.cycle_until_idle()
    assert [work.targets["m"][0] for work in executor.works] == ["b", "b"]
    assert store.read == 1
    request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(machines=(("s-2", "m"),)))
    service.control.submit(request, OPERATOR)
    ticker.cycle_until_idle()
    assert (len(executor.works), store.read) == (3, 1)


class Failing(MemoryStore):
    """Fails once when the machines of a scope are read."""

    fails = False

    def snapshot(self, focus: Focus) -> Snapshot:
        if focus.inventory and self.fails:
            self.fails = False
            raise StoreUnavailable("away")
        return super().snapshot(focus)


def test_an_order_is_not_lost_if_its_targets_cannot_be_read() -> None:
    """It was taken already: the executor gets it when the store is back."""
    store = Failing()
    service = make_service(store, enabled=False)
    service.control.apply_fleet(Fleet({}, {}, {host.name: host for host in LISTED}), OPERATOR)
    redeploy(service, ("s-0", "m"))
    executor = Recorder()
    ticker = ticker_with(service, executor)
    store.fails = True
    with pytest.raises(StoreUnavailable):
        ticker.cycle_until_idle()
    assert executor.works == []
    ticker.cycle_until_idle()
    assert [work.targets["m"][0] for work in executor.works] == ["b"]


def test_a_target_that_is_cordoned_meanwhile_is_closed() -> None:
    """An executor can ask right before it moves a machine."""
    service = farm(*LISTED)
    redeploy(service, ("s-0", "m"))
    executor = Recorder()
    ticker_with(service, executor).cycle_until_idle()
    (work,) = executor.works
    assert [work.closed(host) for host in "bc"] == ["host b is cordoned", ""]
    service.control.cordon_host("c", OPERATOR)
    assert work.closed("c") == "host c is cordoned"


def test_a_plan_spreads_the_machines_of_all_scopes() -> None:
    """Each machine is placed as if the ones before it had moved."""
    service = farm(*LISTED)
    machines = service.store.inventory().machines.values()
    assert placement.planned_targets(service.store, machines, "") == {
        "s-0/m": ("c", "e", "d"),
        "s-1/m": ("e", "c", "h"),
    }
    assert placement.planned_targets(service.store, machines, "e") == {"s-0/m": ("e",), "s-1/m": ("e",)}
    after = placement.planned_targets(service.store, machines, "", emptied_next={"c"})
    assert after == {"s-0/m": ("e", "d", "c"), "s-1/m": ("e", "h", "c")}


def test_hosts_that_wait_for_their_turn_are_tried_last() -> None:
    """The machines of the first host would have to move again in the turn of the second; others may go there."""
    service = farm(*LISTED)
    request = MaintenanceRequest(type=EventType.FREEZE, targets=Targets(hosts=("h", "c")), host_mode=HostMode.EVACUATE)
    service.control.submit(request, OPERATOR)
    executor = Recorder()
    ticker = ticker_with(service, executor)
    ticker.cycle_until_idle()
    redeploy(service, ("s-1", "m"))
    ticker.cycle_until_idle()
    assert [work.targets["m"] for work in executor.works] == [("e", "d", "c"), ("c", "e")]
