"""The judge accepts a correct maintenance of a host and complains of each kind of wrong one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from forewarn.core.change import Change
from forewarn.core.model import Host, HostMode, Machine, MaintenanceStatus, Order, OrderState, Phase
from tests.sim.history import ExecutorCalled, FailedOver, StatusRequested
from tests.sim.test_judge import DONE, ENDED, MAINTENANCE, ORDER, STARTED, TAKEN, Case, at, scope
from tests.sim.universe import START

WEB = Machine(scope="shop", name="web-0", update_domain=0, host="h0")
WORK = Order(id="H", issued=START, host="h0", maintenance_id="M", state=OrderState.PLANNED)
OPENED = replace(WORK, state=OrderState.OPEN)
WORK_TAKEN = replace(WORK, state=OrderState.RUNNING, node="hands on n1")
WORK_DONE = replace(WORK_TAKEN, state=OrderState.DONE)
CORDONED = (Host(name="h1", cordoned=START),)


def later(order: Order, **fields: object) -> Change:
    return Change(at=START + at(ENDED), orders=(order,), **fields)  # type: ignore[arg-type]


class HostCase(Case):
    """A machine leaves the host h0 in event E; then the host is worked on."""

    def __init__(self, mode: HostMode = HostMode.EVACUATE) -> None:
        super().__init__()
        self.bend("stated", machines=(WEB,))
        maintenance = replace(MAINTENANCE, host_mode=mode)
        events = {
            name: replace(self.changes[name][1].events[0], host="h0") for name in ("published", "started", "ended")
        }
        for name, event in events.items():
            self.bend(name, events=(event,))
        self.bend("published", maintenances=(maintenance,), orders=(WORK,))
        self.bend("ended", maintenances=(), machines=(replace(WEB, host="h1"),))
        ended = replace(maintenance, status=MaintenanceStatus.COMPLETED, ended=START + at(ENDED), version=1)
        self.changes |= {
            "opened": (ENDED + 1, later(OPENED)),
            "work taken": (ENDED + 2, later(WORK_TAKEN)),
            "work done": (ENDED + 4, later(WORK_DONE, maintenances=(ended,))),
        }
        self.add(ExecutorCalled(ENDED + 3, "n1", "H", 1, True))


def in_place() -> HostCase:
    """The machine is shut down in event E, the host is worked on, and the machine is started again."""
    case = HostCase(HostMode.IN_PLACE)
    down = replace(TAKEN, state=OrderState.PLANNED, phase=Phase.START, node="")
    starting = replace(down, state=OrderState.OPEN, attempt=2)
    case.changes |= {
        "stopped": (STARTED + 10, Change(at=START + at(STARTED), scopes=scope(3, 5, STARTED), orders=(down,))),
        "opened": (STARTED + 11, later(OPENED)),
        "work taken": (STARTED + 12, later(WORK_TAKEN)),
        "work done": (STARTED + 14, later(WORK_DONE)),
        "starting": (STARTED + 15, Change(at=START + at(STARTED), scopes=scope(3, 6, STARTED), orders=(starting,))),
    }
    case.drop(ExecutorCalled)
    case.add(ExecutorCalled(STARTED + 2, "n1", "E", 1, True), ExecutorCalled(STARTED + 13, "n1", "H", 1, True))
    ended = replace(MAINTENANCE, status=MaintenanceStatus.COMPLETED, ended=START + at(ENDED), version=1)
    maintenance = replace(ended, host_mode=HostMode.IN_PLACE)
    done = replace(DONE, attempt=2, phase=Phase.START)
    case.bend("ended", scopes=scope(4, 7, ENDED), machines=(), orders=(done,), maintenances=(maintenance,))
    return case


@pytest.mark.parametrize("make", [HostCase, in_place])
def test_a_correct_maintenance_of_a_host_gives_no_complaint(make: Callable[[], HostCase]) -> None:
    """The judge has no complaint, and the guest got its notice."""
    assert make().verdict() == ([], (1, 1))


def work_before_the_machine_left() -> HostCase:
    case = HostCase()
    case.changes["opened"] = (STARTED + 20, case.changes["opened"][1])
    return case


def a_machine_came_back() -> HostCase:
    case = HostCase()
    case.bend("opened", machines=(replace(WEB, host="h1"),))
    case.bend("work taken", machines=(WEB,))
    return case


def cancelled_and_worked_on() -> HostCase:
    case = HostCase()
    case.bend("opened", orders=(replace(WORK, state=OrderState.CANCELLED),))
    return case


def worked_on_twice() -> HostCase:
    case = HostCase()
    case.add(StatusRequested(ENDED + 3, "n2", "H", 1, True), ExecutorCalled(ENDED + 3, "n2", "H", 1, True))
    return case


def to_a_cordoned_host() -> HostCase:
    case = HostCase()
    case.bend("published", hosts=CORDONED)
    case.others = [each._replace(hosts=("h1",)) if isinstance(each, ExecutorCalled) else each for each in case.others]
    return case


def to_a_host_in_maintenance() -> HostCase:
    case = HostCase()
    case.bend("published", orders=(WORK, replace(OPENED, id="G", host="h1")))
    case.others = [each._replace(hosts=("h1",)) if isinstance(each, ExecutorCalled) else each for each in case.others]
    return case


def announced_without_a_target() -> HostCase:
    case = HostCase()
    case.bend("stated", hosts=(replace(CORDONED[0], listed=True), Host(name="h0", listed=True)))
    return case


def sent_to_a_host_that_was_closed() -> HostCase:
    case = HostCase()
    event = replace(case.changes["started"][1].events[0], to_host="h1")
    case.bend("started", events=(event,))
    case.bend("published", hosts=CORDONED)
    return case


def an_order_before_the_start() -> HostCase:
    case = HostCase()
    case.bend("published", orders=(WORK, ORDER))
    return case


def work_above_a_running_machine() -> HostCase:
    case = in_place()
    case.changes["opened"] = (STARTED + 9, case.changes["opened"][1])
    return case


def started_again_too_soon() -> HostCase:
    case = in_place()
    case.changes["work done"] = (STARTED + 16, case.changes["work done"][1])
    return case


def out_of_turn() -> HostCase:
    case = HostCase()
    case.bend("published", orders=(replace(WORK, id="G", host="h9"), replace(WORK, position=1)))
    return case


def never_ended() -> HostCase:
    case = HostCase()
    case.bend("work done", orders=())
    return case


WRONG: dict[Callable[[], HostCase], str] = {
    work_before_the_machine_left: "the work on host h0 was let in while shop/web-0 was on it",
    a_machine_came_back: "the work on host h0 began while shop/web-0 was on it",
    cancelled_and_worked_on: "host h0 was cancelled and is running: it is worked on all the same",
    worked_on_twice: "order H (attempt 1) was done twice",
    to_a_cordoned_host: "order E moves machines to host h1, which was cordoned",
    to_a_host_in_maintenance: "order E moves machines to host h1, which was in maintenance",
    announced_without_a_target: "event E was announced although its machines could go to no host",
    sent_to_a_host_that_was_closed: "event E started although its machines could go to no host",
    an_order_before_the_start: "event E has an order and is Scheduled",
    work_above_a_running_machine: "the work on host h0 was let in while shop/web-0 was on it",
    started_again_too_soon: "order E starts machines while the work on host h0 is running",
    out_of_turn: "event E of host h0 started before the turn of h9 ended",
    never_ended: "the order of host h0 is still running",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda each: each.__name__)
def test_a_wrong_maintenance_of_a_host_gives_its_complaint(wrong: Callable[[], HostCase]) -> None:
    """Each wrong history has a complaint of its own."""
    complaints, _ = wrong().verdict()
    assert WRONG[wrong] in complaints


@pytest.mark.parametrize("arrived_ms, complaints", [(ENDED, 0), (ENDED - 2_000, 1)])
def test_a_machine_may_arrive_while_a_host_is_let_in(arrived_ms: int, complaints: int) -> None:
    """The decision cannot know of a machine that arrived after it was made. Before the work begins, the host is read again."""
    case = HostCase()
    late = replace(WEB, name="web-9")
    case.changes["arrived"] = (arrived_ms, Change(at=START, machines=(late,)))
    case.bend("work taken", machines=(replace(late, host="h1"),))
    found = case.verdict()[0]
    assert found == ["the work on host h0 was let in while shop/web-9 was on it"] * complaints


def test_a_host_that_is_cordoned_after_the_order_was_taken_may_be_chosen() -> None:
    """No node can look at the cordon and call its executor in one step. A cordon that a failover lost counts for nothing."""
    case = to_a_cordoned_host()
    case.bend("published", hosts=())
    cordon = Change(at=START, hosts=CORDONED)
    case.changes["cordoned"] = (STARTED + 1, cordon)
    assert case.verdict()[0] == []
    case.changes["cordoned"] = (STARTED - 10, cordon)
    case.lost = {"cordoned"}
    case.add(FailedOver(STARTED - 5, (cordon,)))
    assert not [each for each in case.verdict()[0] if "which was cordoned" in each]
