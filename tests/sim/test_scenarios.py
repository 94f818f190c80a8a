"""Sequences of events that seeds found, each written out: no other fault happens in them."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from forewarn.core.errors import StoreUnavailable
from forewarn.core.fleet import Fleet
from forewarn.core.model import (
    Actor,
    ClockHold,
    EventType,
    Machine,
    MaintenanceRequest,
    Order,
    OrderState,
    Scope,
    ScopeKind,
    Source,
    Status,
    Targets,
)
from forewarn.store import EventQuery, Focus
from tests.properties.mutations import what_is_up_again_wakes_nobody
from tests.sim.guest_checks import stage
from tests.sim.history import ClockMoved, Entry, ExecutorCalled
from tests.sim.judge import judge
from tests.sim.mutations import budget_not_reserved, no_invariants
from tests.sim.node import DISABLE_AFTER_S, Node, Shared
from tests.sim.people import Guest
from tests.sim.run import DECISION_MS, READING_MS
from tests.sim.universe import START, Faults, Universe

OPERATOR = Actor("operator")
HOUR_S = 3_600


class Scene:
    """Two nodes and the guest `shop/web-0`, which polled once."""

    def __init__(self) -> None:
        self.universe = Universe(0, faults=Faults())
        self.history: list[Entry] = []
        self.shared = Shared(self.universe, self.history.append)
        self.nodes = [Node(self.shared, number) for number in range(2)]
        self.shared.nodes += self.nodes
        self.start_all()
        fleet = Fleet(
            {"shop": Scope(name="shop", kind=ScopeKind.AVAILABILITY_SET)},
            {("shop", "web-0"): Machine(scope="shop", name="web-0")},
        )
        first = self.nodes[0]
        first.request(lambda: first.control.apply_fleet(fleet, OPERATOR))
        self.guest = Guest(self.shared, "shop", "web-0")
        self.poll(first)
        self.cycle_all()

    def poll(self, node: Node) -> None:
        assert self.guest.poll(node)

    def start_all(self) -> None:
        for node in self.nodes:
            node.start()

    def kill_all(self) -> None:
        for node in self.nodes:
            node.kill()

    def cycle_all(self) -> None:
        for node in self.nodes:
            node.cycle()

    def pass_by(self, seconds: float) -> None:
        """Let time pass without anything on the agenda."""
        self.universe.now_ms += int(seconds * 1_000)

    def set_clock(self, by_s: int) -> None:
        """Set the shared clock, and tell the judge."""
        self.universe.set_wall(by_s * 1_000)
        self.history.append(ClockMoved(self.universe.now_ms, by_s * 1_000))

    def verdict(self) -> list[str]:
        return judge(self.history, self.shared.database.memory, tolerance_ms=DECISION_MS + READING_MS)[0]

    def reboot(self) -> None:
        first = self.nodes[0]
        request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope="shop"))
        first.request(lambda: first.control.submit(request, OPERATOR))
        self.cycle_all()

    def status(self) -> Status:
        (event,) = self.shared.database.memory.events(EventQuery()).events
        return event.status

    def order(self) -> Order:
        (order,) = self.shared.database.memory.orders(set(OrderState), 2)
        return order

    def hold(self) -> ClockHold | None:
        return self.shared.database.memory.snapshot(Focus()).hold

    @property
    def enabled(self) -> bool:
        return self.shared.database.memory.scopes()["shop"].enabled


@pytest.mark.parametrize("die_first", [True, False])
def test_a_jump_that_no_node_saw_is_held(die_first: bool) -> None:
    """The clock jumps while all nodes are down, or just before they die: the first node that starts holds it."""
    scene = Scene()
    scene.reboot()
    scene.pass_by(60)
    scene.cycle_all()
    if die_first:
        scene.kill_all()
        scene.pass_by(10)
    scene.universe.set_wall(HOUR_S * 1_000)
    scene.pass_by(0.5)
    scene.kill_all()
    scene.pass_by(10)
    scene.start_all()
    scene.cycle_all()
    assert scene.status() is Status.SCHEDULED
    hold = scene.hold()
    assert hold is not None
    assert hold.jumped_s == HOUR_S
    scene.pass_by(900)
    scene.cycle_all()
    assert scene.status() is Status.SCHEDULED
    node = scene.nodes[1]
    node.request(lambda: node.control.confirm_clock(OPERATOR))
    scene.cycle_all()
    assert scene.status() is Status.STARTED


@pytest.mark.parametrize("started_before_the_jump", [True, False])
def test_a_node_that_decided_nothing_knows_the_clock_before_a_jump(started_before_the_jump: bool) -> None:
    """The machines restart, and the nodes die before their first cycle: the next start notices a jump in between.

    If a start failed before it read the clock, no node can know of the jump, and the judge accepts the early start.
    """
    scene = Scene()
    scene.reboot()
    scene.pass_by(60)
    scene.kill_all()
    scene.universe.faults.reboot = 1.0
    if not started_before_the_jump:
        for node in scene.nodes:
            node.lose_store(1_000)
    scene.start_all()
    scene.universe.faults.reboot = 0.0
    scene.pass_by(60)
    scene.kill_all()
    scene.set_clock(HOUR_S)
    scene.pass_by(10)
    scene.start_all()
    scene.cycle_all()
    assert (scene.hold() is not None) is started_before_the_jump
    assert scene.status() is (Status.SCHEDULED if started_before_the_jump else Status.STARTED)
    assert not [complaint for complaint in scene.verdict() if "after its publication" in complaint]


def test_a_clock_that_was_set_back_is_corrected_while_all_nodes_are_down() -> None:
    """An event was published on the clock that was an hour late: when the clock is corrected, it has jumped by an hour."""
    scene = Scene()
    scene.universe.set_wall(-HOUR_S * 1_000)
    scene.pass_by(1)
    scene.reboot()
    scene.kill_all()
    scene.universe.set_wall(HOUR_S * 1_000)
    scene.pass_by(10)
    scene.start_all()
    scene.cycle_all()
    assert scene.status() is Status.SCHEDULED
    assert scene.hold() is not None


def test_a_jump_that_was_confirmed_is_not_held_again_by_a_node_that_returns() -> None:
    """A node that was down while the clock jumped and an operator confirmed it accepts the new time."""
    scene = Scene()
    first, second = scene.nodes
    second.kill()
    scene.universe.set_wall(HOUR_S * 1_000)
    scene.pass_by(5)
    first.cycle()
    assert scene.hold() is not None
    scene.pass_by(5)
    first.request(lambda: first.control.confirm_clock(OPERATOR))
    scene.pass_by(5)
    second.start()
    scene.cycle_all()
    assert scene.hold() is None


def test_times_of_guests_are_saved_though_the_ticker_fails() -> None:
    """A node whose cycle fails every time still saves when guests were last seen: no other node disables their scope."""
    scene = Scene()
    first, second = scene.nodes
    with failing_cycles(first):
        for _ in range(4):
            scene.pass_by(DISABLE_AFTER_S / 2)
            scene.poll(first)
            first.cycle()
            second.cycle()
            assert scene.enabled
    assert scene.shared.database.memory.last_seen([("shop", "web-0")]) == {
        ("shop", "web-0"): START + timedelta(seconds=2 * DISABLE_AFTER_S)
    }


@contextmanager
def failing_cycles(node: Node) -> Iterator[None]:
    """Make every cycle of the node's ticker fail, as if its store did not answer."""

    def fail() -> bool:
        raise StoreUnavailable("the store did not answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.parts.ticker, "cycle", fail)
        yield


def test_a_jump_after_a_confirmed_one_is_held_though_the_clock_was_set_back() -> None:
    """The clock shows times from before the confirmed jump again; the next jump is as large, and is another one."""
    scene = Scene()
    node = scene.nodes[1]
    scene.universe.set_wall(HOUR_S * 1_000)
    scene.pass_by(2)
    scene.cycle_all()
    assert scene.hold() is not None
    scene.universe.set_wall(-HOUR_S * 1_000)
    scene.pass_by(2)
    scene.cycle_all()
    node.request(lambda: node.control.confirm_clock(OPERATOR))
    assert scene.hold() is None
    scene.universe.set_wall(-HOUR_S * 1_000)
    scene.pass_by(2)
    scene.reboot()
    scene.pass_by(60)
    scene.cycle_all()
    scene.universe.set_wall(HOUR_S * 1_000)
    scene.pass_by(2)
    scene.cycle_all()
    assert scene.hold() is not None
    assert scene.status() is Status.SCHEDULED


def test_a_node_that_reads_everything_while_an_agreement_is_lost_shows_no_older_epoch() -> None:
    """The database fails over again, without the agreement, between what a node heard of and what it then reads."""
    scene = Scene()
    node = scene.nodes[0]
    scene.pass_by(60)
    scene.shared.database.fail_over(lost_ms=0)
    scene.pass_by(2)
    scene.poll(node)
    shown = stage(scene.guest.tag)
    assert shown == (1_001, 1)
    everything = node.feed.poll(None, 0.0)
    scene.shared.database.fail_over(lost_ms=5_000)
    node.side.documents.follow(everything)
    scene.poll(node)
    assert stage(scene.guest.tag) == (2_001, 1) > shown


@pytest.mark.parametrize("can_begin", [True, False])
def test_a_report_that_a_failover_lost_is_saved_again(can_begin: bool) -> None:
    """The work ended, or the executor could not begin it; its node has saved that, and the new server lacks it."""
    scene = Scene()
    node = scene.nodes[0]
    scene.reboot()
    scene.pass_by(1_000)
    scene.universe.faults.cannot_begin = 0.0 if can_begin else 1.0
    node.enter(node.parts.ticker.cycle)
    assert scene.order().state is OrderState.RUNNING
    scene.pass_by(300)
    node.cycle()
    reported = OrderState.DONE if can_begin else OrderState.FAILED
    assert scene.order().state is reported
    scene.shared.database.fail_over(lost_ms=5_000)
    assert scene.order().state is OrderState.RUNNING
    scene.pass_by(2)
    node.cycle()
    assert scene.order().state is reported
    assert sum(isinstance(entry, ExecutorCalled) for entry in scene.history) == int(can_begin)


@pytest.mark.parametrize("reserves", [True, False], ids=["as it is", "mutated"])
def test_two_nodes_that_publish_at_once_keep_the_budget_of_the_fleet(
    reserves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find room while neither has committed: the second to commit decides again. Without a reservation, both publish."""
    no_invariants(monkeypatch)
    if not reserves:
        budget_not_reserved(monkeypatch)
    scene = scene_with_budget()
    submit_at_once(scene, MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope="ship")))
    statuses = [event.status for event in scene.shared.database.memory.events(EventQuery()).events]
    exceeded = [line for line in scene.verdict() if "were down at once" in line]
    assert (Status.PLANNED in statuses) == reserves
    assert exceeded == ([] if reserves else ["2 machines of the fleet were down at once, and 1 may be"])


@pytest.mark.parametrize("what", [{"emergency": True}, {"source": Source.USER}], ids=["emergency", "user"])
def test_what_never_waits_for_a_budget_takes_room_from_a_wave_that_another_node_publishes(what: dict[str, Any]) -> None:
    """It commits while a node that found room hangs in its commit: that node decides again, and its wave waits."""
    scene = scene_with_budget()
    submit_at_once(scene, MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope="ship"), **what))
    events = scene.shared.database.memory.events(EventQuery()).events
    assert {event.scope for event in events if event.status is Status.PLANNED} == {"shop"}
    assert [line for line in scene.verdict() if "were down at once" in line] == []


def scene_with_budget() -> Scene:
    """Return a scene with the machine `ship/web-0` beside `shop/web-0`. One of them may be down at once."""
    scene = Scene()
    first = scene.nodes[0]
    ship = Scope(name="ship", kind=ScopeKind.AVAILABILITY_SET)
    fleet = Fleet({"ship": ship}, {("ship", "web-0"): Machine(scope="ship", name="web-0")})
    first.request(lambda: first.control.apply_fleet(fleet, OPERATOR))
    first.request(lambda: first.control.set_budget(OPERATOR, max_machines_down=1))
    scene.cycle_all()
    return scene


def submit_at_once(scene: Scene, other: MaintenanceRequest) -> None:
    """Submit a reboot of `shop` through one node and, while that node hangs in its commit, another request through the other."""
    first, second = scene.nodes
    reboot = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope="shop"))
    scene.universe.faults.slow_s, scene.universe.faults.slow_commit = 2, 1.0
    scene.universe.later(1, lambda: second.request(lambda: second.control.submit(other, OPERATOR)))
    first.request(lambda: first.control.submit(reboot, OPERATOR))
    assert any("hangs in the commit" in str(line) for line in scene.universe.lines)


@pytest.mark.parametrize("wakes", [True, False], ids=["as it is", "mutated"])
def test_what_is_up_again_wakes_what_waits_for_the_budget_of_the_fleet(
    wakes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event that uses the budget is cancelled: the wave of another scope is published in the next cycle, or never."""
    if not wakes:
        what_is_up_again_wakes_nobody(monkeypatch)
    scene = scene_with_budget()
    node = scene.nodes[0]
    scene.reboot()
    (used,) = scene.shared.database.memory.events(EventQuery()).events
    waiting = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope="ship"))
    node.request(lambda: node.control.submit(waiting, OPERATOR))
    scene.cycle_all()
    node.request(lambda: node.control.cancel_event(used.id, OPERATOR))
    for _ in range(3):
        scene.pass_by(HOUR_S)
        scene.cycle_all()
    ((waited, status),) = [
        (event.id, event.status)
        for event in scene.shared.database.memory.events(EventQuery()).events
        if event.scope == "ship"
    ]
    assert status is (Status.COMPLETED if wakes else Status.PLANNED)
    assert (f"event {waited} is still Planned" in scene.verdict()) is not wakes
