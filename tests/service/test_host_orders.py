"""The work on hosts: by an executor of its own, only while nothing runs on the host, and not on the host of forewarn itself."""

from dataclasses import replace
from typing import Any

import pytest

from forewarn.app.service import Service
from forewarn.core.change import Change
from forewarn.core.errors import Refused
from forewarn.core.model import (
    OPEN,
    EventType,
    Host,
    HostMode,
    Machine,
    MaintenanceRequest,
    MaintenanceStatus,
    Order,
    OrderState,
    Scope,
    ScopeKind,
    Status,
    Targets,
)
from forewarn.core.order_verbs import Outcome
from forewarn.core.transitions import Verb
from forewarn.executors import Executor, HostWork, OrderReport, Progress, Unknown, Work, registry
from forewarn.service.host_orders import TRY_AGAIN_S
from forewarn.service.ticker import Ticker
from forewarn.store import EventQuery, MaintenanceQuery
from forewarn.store.memory import MemoryStore
from tests.support.services import OPERATOR, make_service
from tests.support.several_nodes import LeasedMemoryStore, ticker_on


class HostExecutor(Executor):
    """Takes the orders of hosts and records them."""

    name = "scripted"

    def __init__(self, status: Progress | Outcome | Unknown | None = None) -> None:
        self.taken: list[str] = []
        self.ended: list[OrderReport] = []
        self.answer = status or Unknown()

    def take(self, work: HostWork) -> None:
        self.taken.append(f"{work.order.host} {work.order.state} over {work.connection or 'nothing'}")

    def status(self, work: HostWork) -> Progress | Outcome | Unknown:
        return self.answer

    def reports(self, _: object) -> list[OrderReport]:
        ended, self.ended = self.ended, []
        return ended


class SeeingExecutor(Executor):
    """The executor of events, which sees what runs on hosts; None if a host does not answer."""

    name = "seeing"
    sees_hosts = True
    takes_orders = False

    def __init__(self, running: tuple[str, ...] | None = ()) -> None:
        self.running = running
        self.asked: list[tuple[str, str]] = []

    def free_slots(self) -> int:
        return 0

    def machines_on(self, host: str, connection: str) -> tuple[str, ...] | None:
        self.asked.append((host, connection))
        return self.running


class MovingExecutor(SeeingExecutor):
    """Takes orders of events that move machines, and ends none of them."""

    takes_orders = True

    def __init__(self) -> None:
        super().__init__()
        self.works: list[Work] = []

    def free_slots(self) -> int:
        return 9

    def take(self, work: Work) -> None:
        self.works.append(work)


class Times:
    """A monotonic clock that a test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def service_with_host(store: MemoryStore | None = None, **settings: Any) -> Service:
    """Return a service whose host `empty` has a row, a connection and no machines."""
    service = make_service(store or MemoryStore(), **settings)
    row = Host(name="empty", listed=True, connection="qemu+ssh://empty/system")
    service.store.apply(Change(at=service.clock.now(), hosts=(row,)))
    return service


def evacuate(service: Service, *hosts: str) -> str:
    request = MaintenanceRequest(type=EventType.FREEZE, targets=Targets(hosts=hosts), host_mode=HostMode.EVACUATE)
    return service.control.submit(request, OPERATOR)


def ticker_with_hosts(
    service: Service, executor: Executor, hosts: Executor, *, node_host: str = "", monotonic: Times | None = None
) -> Ticker:
    return Ticker(
        service.control,
        service.store,
        service.clock,
        executor,
        node="here",
        retain_history_s=0,
        host_executor=hosts,
        node_host=node_host,
        monotonic=monotonic or Times(),
    )


def work(service: Service) -> Order:
    (order,) = service.store.orders(tuple(OrderState), 9, of_hosts=True)
    return order


def open_events(service: Service) -> list[str]:
    return [event.id for event in service.store.events(EventQuery(statuses=tuple(OPEN))).events]


def test_the_executor_of_hosts_gets_the_orders_of_hosts_alone() -> None:
    """It is saved as running first; the executor of events never sees it."""
    service = service_with_host()
    evacuate(service, "empty")
    hosts = HostExecutor()
    ticker = ticker_with_hosts(service, SeeingExecutor(), hosts)
    ticker.cycle_until_idle()
    assert hosts.taken == ["empty running over qemu+ssh://empty/system"]
    assert work(service).node == "scripted on here"
    hosts.ended = [OrderReport(work(service).id, 1, Outcome(ok=True, output="patched"))]
    ticker.cycle_until_idle()
    assert (work(service).state, work(service).output) == (OrderState.DONE, "patched")
    (found,) = service.store.maintenances(MaintenanceQuery())
    assert found.status is MaintenanceStatus.COMPLETED


@pytest.mark.parametrize(
    ("running", "reason"),
    [
        (("web-7", "unknown"), "host empty still runs unknown, web-7"),
        (None, "host empty does not say which machines run on it"),
    ],
)
def test_a_host_that_is_not_free_is_not_handed_out(running: tuple[str, ...] | None, reason: str) -> None:
    """The executor of events is asked first, also about machines that forewarn does not know. Its answer is kept."""
    service = service_with_host()
    evacuate(service, "empty")
    sees, hosts, times = SeeingExecutor(running), HostExecutor(), Times()
    ticker = ticker_with_hosts(service, sees, hosts, monotonic=times)
    ticker.cycle_until_idle()
    ticker.cycle_until_idle()
    assert hosts.taken == []
    assert sees.asked == [("empty", "qemu+ssh://empty/system")]
    assert work(service).reason.startswith(reason)
    sees.running = ()
    times.now_s += TRY_AGAIN_S + 1
    ticker.cycle_until_idle()
    assert len(hosts.taken) == 1
    assert work(service).reason == ""


def test_a_tool_that_takes_orders_through_the_api_meets_the_same_check() -> None:
    """Whoever takes the order, the host is asked first."""
    service = service_with_host()
    evacuate(service, "empty")
    ticker_with_hosts(service, SeeingExecutor(("web-7",)), HostExecutor())
    with pytest.raises(Refused, match="host empty still runs web-7"):
        service.control.take_order(work(service).id, OPERATOR, node="playbook")
    ticker_with_hosts(service, SeeingExecutor(), HostExecutor())
    assert service.control.take_order(work(service).id, OPERATOR, node="playbook").state is OrderState.RUNNING


@pytest.mark.parametrize("mode", HostMode)
def test_the_host_of_forewarn_itself_is_refused(mode: HostMode) -> None:
    """Work on it would stop the only node; the plan says so, too."""
    service = service_with_host(node_host="empty")
    type_ = EventType.FREEZE if mode is HostMode.EVACUATE else EventType.REBOOT
    request = MaintenanceRequest(type=type_, targets=Targets(hosts=("empty",)), host_mode=mode)
    for submit in (service.control.submit, service.control.plan):
        with pytest.raises(Refused, match="this forewarn runs on host empty, and no node that moves events is up"):
            submit(request, OPERATOR)


def test_the_last_node_does_not_take_the_order_of_its_own_host() -> None:
    """The other node has ended since the maintenance was submitted: the order waits, and says why."""
    service = service_with_host()
    evacuate(service, "empty")
    hosts = HostExecutor()
    ticker_with_hosts(service, SeeingExecutor(), hosts, node_host="empty").cycle_until_idle()
    assert hosts.taken == []
    assert "no node that moves events is up on another host" in work(service).reason


@pytest.mark.parametrize(
    ("other", "hands_on"),
    [
        ({"node_host": "far"}, True),
        ({"node_host": "empty"}, False),
        ({"node_host": "far", "may_tick": False}, False),
    ],
)
def test_a_node_leaves_the_work_on_its_own_host_to_one_that_can_do_it(other: dict[str, Any], hands_on: bool) -> None:
    """A node that only answers guests, or runs on the same host, cannot: then the order says what it waits for."""
    store = LeasedMemoryStore()
    service = make_service(store)
    service.store.apply(Change(at=service.clock.now(), hosts=(Host(name="empty", listed=True),)))
    evacuate(service, "empty")
    hosts = HostExecutor()
    far = ticker_on(service, "b:1", SeeingExecutor(), host_executor=hosts, monotonic=Times(), **other)
    node = ticker_on(service, "a:1", SeeingExecutor(), host_executor=hosts, node_host="empty", monotonic=Times())
    store.ticks = "a:1"
    far.cycle()
    node.cycle_until_idle()
    assert (store.ticks, hosts.taken) == ("" if hands_on else "a:1", [])
    if not hands_on:
        assert "no node that moves events is up on another host" in work(service).reason
        return
    far.leases.renew_at_s = 0.0
    far.cycle_until_idle()
    assert hosts.taken == ["empty running over nothing"]


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (Outcome(ok=True), OrderState.DONE),
        (Outcome(ok=False, reason="no"), OrderState.FAILED),
        (Unknown("gone"), OrderState.IN_DOUBT),
    ],
)
def test_after_a_crash_the_executor_is_asked_about_work_on_a_host(answer: Outcome | Unknown, state: OrderState) -> None:
    """What cannot be proven is in doubt, and does not begin a second time."""
    service = service_with_host()
    evacuate(service, "empty")
    ticker_with_hosts(service, SeeingExecutor(), HostExecutor()).cycle_until_idle()
    again = HostExecutor(answer)
    restarted = ticker_with_hosts(service, SeeingExecutor(), again)
    restarted.recover()
    restarted.cycle_until_idle()
    assert again.taken == []
    assert work(service).state is state
    if state is not OrderState.DONE:
        service.control.resolve_host(work(service).id, Verb.RETRY, OPERATOR)
        restarted.cycle_until_idle()
        assert (len(again.taken), work(service).attempt) == (1, 2)


def test_a_machine_that_an_operator_moves_away_lets_the_work_begin() -> None:
    """The fleet shows the host empty: the maintenance that waits for it is woken."""
    service = service_with_host(enabled=False)
    evacuate(service, "h")
    (event,) = open_events(service)
    service.control.report_order(event, Outcome(ok=True), OPERATOR)
    service.ticker.cycle_until_idle()
    assert work(service).state is OrderState.PLANNED
    known = service.store.inventory().machines["s-0", "m"]
    service.control.put_machine(replace(known, host="elsewhere"), OPERATOR)
    service.ticker.cycle_until_idle()
    assert work(service).state is OrderState.OPEN


def test_a_machine_that_another_maintenance_moves_away_lets_the_work_begin() -> None:
    """The report of any order may empty a host."""
    service = service_with_host(enabled=False)
    evacuate(service, "h")
    (event,) = open_events(service)
    service.control.report_order(event, Outcome(ok=True), OPERATOR)
    service.ticker.cycle_until_idle()
    request = MaintenanceRequest(type=EventType.REDEPLOY, targets=Targets(machines=(("s-0", "m"),)))
    maintenance_id = service.control.submit(request, OPERATOR)
    (_, (redeploy,)) = service.control.maintenance(maintenance_id)
    service.control.report_order(redeploy.id, Outcome(ok=True, new_hosts={("s-0", "m"): "elsewhere"}), OPERATOR)
    service.ticker.cycle_until_idle()
    assert work(service).state is OrderState.OPEN


def test_a_machine_that_arrives_while_the_order_is_taken_stops_the_taking() -> None:
    """No machine of its scope was on the host, so only the version of the maintenance shows that the host was read too early."""

    class LateStore(MemoryStore):
        """Another node puts a machine on the host right before the next change is saved."""

        arriving: Machine | None = None

        def apply(self, change: Change) -> None:
            arriving, self.arriving = self.arriving, None
            if arriving is not None:
                other.control.put_machine(arriving, OPERATOR)
            super().apply(change)

    store = LateStore()
    service = service_with_host(store, enabled=False)
    evacuate(service, "empty")
    assert work(service).state is OrderState.OPEN
    other = Service(service.settings, clock=service.clock, store=service.store, node="other")
    store.arriving = replace(store.inventory().machines["s-0", "m"], host="empty")
    with pytest.raises(Refused, match="host empty is not empty: s-0/m"):
        service.control.take_order(work(service).id, OPERATOR, node="tool")
    assert work(service).state is OrderState.OPEN


def test_resuming_a_held_store_lists_the_work_on_hosts() -> None:
    """An operator sees that an order of a host would be handed out."""
    service = service_with_host()
    evacuate(service, "empty")
    service.control.hold_store("look", OPERATOR)
    effects = service.control.effects_of_resuming(9)
    assert [(order.host, maintenance.host_mode) for order, maintenance in effects.host_orders] == [
        ("empty", HostMode.EVACUATE)
    ]


def test_machines_of_two_hosts_leave_in_turn() -> None:
    """The service reads the host whose turn it is, tick by tick."""
    service = service_with_host(scopes=2, enabled=False)
    service.control.put_machine(Machine(scope="s-1", name="m", host="second"), OPERATOR)
    evacuate(service, "h", "second")
    for host in ("h", "second"):
        (event,) = open_events(service)
        scope = service.control.event(event)[0].scope
        service.control.report_order(event, Outcome(ok=True, new_hosts={(scope, "m"): "empty"}), OPERATOR)
        service.ticker.cycle_until_idle()
        (order,) = service.store.orders({OrderState.OPEN}, 9, of_hosts=True)
        assert order.host == host
        service.control.report_order(order.id, Outcome(ok=True), OPERATOR)
        service.ticker.cycle_until_idle()


def test_a_report_about_a_host_that_a_failover_lost_is_repeated() -> None:
    """The new server shows the order of the host as running; the node that reported its end does so again."""
    service = make_service(LeasedMemoryStore())
    service.store.apply(Change(at=service.clock.now(), hosts=(Host(name="empty", listed=True),)))
    evacuate(service, "empty")
    timeline, hosts = [1], HostExecutor()
    ticker = ticker_on(service, "a:1", SeeingExecutor(), host_executor=hosts, timeline=lambda: timeline[-1])
    ticker.cycle_until_idle()
    running = work(service)
    hosts.ended = [OrderReport(running.id, 1, Outcome(ok=False, reason="broke"))]
    ticker.cycle_until_idle()
    assert work(service).state is OrderState.FAILED
    service.store.apply(Change(at=service.clock.now(), orders=(running,)))
    timeline.append(2)
    ticker.cycle()
    assert (work(service).state, work(service).reason) == (OrderState.FAILED, "broke")
    assert len(hosts.taken) == 1


@pytest.mark.parametrize("to_host", ["", "empty", "other"])
def test_work_on_a_host_waits_for_moves_that_may_end_there(to_host: str) -> None:
    """A host that was a target before it was cordoned is not worked on until that order has ended."""
    service = service_with_host(enabled=False)
    service.store.apply(Change(at=service.clock.now(), hosts=(Host(name="other", listed=True),)))
    hosts, executor, times = HostExecutor(), MovingExecutor(), Times()
    ticker = ticker_with_hosts(service, executor, hosts, monotonic=times)
    leaving = MaintenanceRequest(
        type=EventType.FREEZE, targets=Targets(hosts=("h",)), host_mode=HostMode.EVACUATE, to_host=to_host
    )
    service.control.submit(leaving, OPERATOR)
    ticker.cycle_until_idle()
    (moving,) = executor.works
    evacuate(service, "empty")
    ticker.cycle_until_idle()
    if to_host == "other":
        assert hosts.taken == ["empty running over qemu+ssh://empty/system"]
        return
    assert hosts.taken == []
    (waiting,) = service.store.orders({OrderState.OPEN}, 9, of_hosts=True)
    assert waiting.reason == (
        f"the order of event {moving.event.id} may still bring machines to host empty: wait until it has ended"
    )
    service.control.report_order(moving.order.id, Outcome(ok=False, reason="no space"), OPERATOR)
    times.now_s += TRY_AGAIN_S
    ticker.cycle_until_idle()
    assert hosts.taken == ["empty running over qemu+ssh://empty/system"]


def test_work_on_a_host_does_not_wait_for_moves_that_cannot_end_there() -> None:
    """An order that is taken after the cordon has other targets; one that reboots machines has none."""
    service = service_with_host(scopes=2, enabled=False)
    hosts, executor = HostExecutor(), MovingExecutor()
    ticker = ticker_with_hosts(service, executor, hosts)
    reboot = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(machines=(("s-1", "m"),)))
    service.control.submit(reboot, OPERATOR)
    ticker.cycle_until_idle()
    service.control.cordon_host("empty", OPERATOR)
    ticker.advance(61)
    move = MaintenanceRequest(type=EventType.REDEPLOY, targets=Targets(machines=(("s-0", "m"),)))
    service.control.submit(move, OPERATOR)
    ticker.cycle_until_idle()
    assert len(executor.works) == 2
    evacuate(service, "empty")
    ticker.cycle_until_idle()
    assert hosts.taken == ["empty running over qemu+ssh://empty/system"]


@pytest.mark.parametrize("end", ["finish", "cancel", "skip", "abandon"])
def test_the_next_maintenance_of_a_host_begins_when_the_first_has_ended(end: str) -> None:
    """One executor with room for both gets the second order only then, whatever ended the first."""
    service = service_with_host()
    first, second = evacuate(service, "empty"), evacuate(service, "empty")
    hosts = HostExecutor()
    ticker = ticker_with_hosts(service, SeeingExecutor(), hosts)
    (order,) = service.store.orders({OrderState.OPEN}, 9, of_hosts=True)
    assert order.maintenance_id == first
    if end == "cancel":
        service.control.cancel_maintenance(first, OPERATOR)
    elif end == "skip":
        service.control.skip_host(first, "empty", OPERATOR)
    else:
        ticker.cycle_until_idle()
        assert len(hosts.taken) == 1
        service.control.report_order(order.id, Outcome(ok=end == "finish", reason="no"), OPERATOR)
        if end == "abandon":
            service.control.resolve_host(order.id, Verb.ABANDON, OPERATOR)
    ticker.cycle_until_idle()
    (order,) = service.store.orders({OrderState.RUNNING}, 9, of_hosts=True)
    assert order.maintenance_id == second


def test_removing_the_last_machine_of_a_host_lets_its_work_begin() -> None:
    """The host waits for a machine that arrived late; a Terminate removes that machine."""
    service = service_with_host(enabled=False)
    evacuate(service, "h")
    (event_id,) = open_events(service)
    service.control.put_scope(Scope(name="pg", kind=ScopeKind.PLACEMENT_GROUP), OPERATOR)
    service.control.put_machine(Machine(scope="pg", name="late", host="h"), OPERATOR)
    service.control.report_order(event_id, Outcome(ok=True, new_hosts={("s-0", "m"): "empty"}), OPERATOR)
    service.ticker.cycle_until_idle()
    assert work(service).state is OrderState.PLANNED
    request = MaintenanceRequest(type=EventType.TERMINATE, targets=Targets(machines=(("pg", "late"),)))
    service.control.submit(request, OPERATOR)
    (event_id,) = open_events(service)
    service.control.report_order(event_id, Outcome(ok=True), OPERATOR)
    service.ticker.cycle_until_idle()
    assert work(service).state is OrderState.OPEN


@pytest.mark.parametrize(("moved", "got"), [(("m",), [("n",)]), (("m", "n"), [])])
def test_a_machine_that_was_moved_by_hand_is_not_moved_again(
    moved: tuple[str, ...], got: list[tuple[str, ...]]
) -> None:
    """Its part of the order is done; if no machine is left, the order is."""
    service = service_with_host(enabled=False)
    service.control.put_machine(Machine(scope="s-0", name="n", host="h"), OPERATOR)
    evacuate(service, "h")
    (event_id,) = open_events(service)
    for name in moved:
        known = service.store.inventory().machines["s-0", name]
        service.control.put_machine(replace(known, host="empty"), OPERATOR)
    executor = MovingExecutor()
    ticker_with_hosts(service, executor, HostExecutor()).cycle_until_idle()
    assert [work.event.resources for work in executor.works] == got
    assert all(set(work.targets) == set(work.event.resources) for work in executor.works)
    event, _ = service.control.event(event_id)
    assert event.resources == ("m", "n")
    assert (event.status is Status.COMPLETED) == (not got)


def test_machines_that_are_down_are_started_wherever_they_are() -> None:
    """In place: a machine that was moved while it was shut down must not stay down."""
    service = service_with_host(enabled=False)
    request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(hosts=("h",)), host_mode=HostMode.IN_PLACE)
    service.control.submit(request, OPERATOR)
    (event_id,) = open_events(service)
    service.control.report_order(event_id, Outcome(ok=True), OPERATOR)
    service.ticker.cycle_until_idle()
    service.control.report_order(work(service).id, Outcome(ok=True), OPERATOR)
    known = service.store.inventory().machines["s-0", "m"]
    service.control.put_machine(replace(known, host="empty"), OPERATOR)
    executor = MovingExecutor()
    ticker_with_hosts(service, executor, HostExecutor()).cycle_until_idle()
    assert [work.event.resources for work in executor.works] == [("m",)]


@pytest.mark.parametrize(
    ("reports_moves", "inventory", "mode", "warned"),
    [
        (False, False, HostMode.EVACUATE, True),
        (True, False, HostMode.EVACUATE, False),
        (False, True, HostMode.EVACUATE, False),
        (False, False, HostMode.IN_PLACE, False),
    ],
)
def test_a_plan_warns_if_nobody_reports_where_machines_go(
    reports_moves: bool, inventory: bool, mode: HostMode, warned: bool
) -> None:
    """The work on a host would never begin: neither the executor nor an inventory tells the fleet that it is empty."""
    service = service_with_host()
    executor = SeeingExecutor()
    executor.reports_moves = reports_moves
    ticker_with_hosts(service, executor, HostExecutor())
    service.control.follows_inventory = inventory
    type_ = EventType.FREEZE if mode is HostMode.EVACUATE else EventType.REBOOT
    request = MaintenanceRequest(type=type_, targets=Targets(hosts=("empty",)), host_mode=mode)
    found = [
        each.message for each in service.control.plan(request, OPERATOR).warnings if each.code == "unreported-moves"
    ]
    assert len(found) == warned
    assert all(f"the executor {executor.name} does not report where machines go" in message for message in found)


@pytest.mark.parametrize("name", ["command", "simulated", "external", "libvirt"])
def test_which_executors_report_where_machines_go(name: str) -> None:
    """A command only ends with a code, and simulated work moves nothing."""
    assert registry.find(name).reports_moves is (name in ("external", "libvirt"))


def test_late_work_in_place_stays_in_doubt_while_it_goes_on() -> None:
    """Its own node does not end the doubt, because the work still has no result; its end does."""
    store = LeasedMemoryStore()
    service = make_service(store, order_timeout_s=600, enabled=False)
    hosts = HostExecutor(Progress.RUNNING)
    ticker = ticker_on(service, "a:1", SeeingExecutor(), host_executor=hosts, monotonic=Times())
    service.control.submit(
        MaintenanceRequest(type=EventType.REBOOT, targets=Targets(hosts=("h",)), host_mode=HostMode.IN_PLACE), OPERATOR
    )
    ticker.cycle_until_idle()
    (event,) = open_events(service)
    service.control.report_order(event, Outcome(ok=True), OPERATOR)
    ticker.cycle_until_idle()
    assert (len(hosts.taken), work(service).state) == (1, OrderState.RUNNING)
    for _ in range(3):
        ticker.advance(600)
        ticker.leases.renew_at_s = 0.0
        ticker.cycle_until_idle()
        assert work(service).state is OrderState.IN_DOUBT
    hosts.ended = [OrderReport(work(service).id, 1, Outcome(ok=True))]
    ticker.cycle_until_idle()
    assert work(service).state is OrderState.DONE
