"""What a host waits for, as operators read it: whose turn it is, what is in the way, and which order failed."""

from forewarn.core.host_waiting import waiting_for_hosts
from forewarn.core.model import OrderState
from forewarn.core.needs_operator import needs_operator
from forewarn.core.order_verbs import Outcome
from tests.support.farm import Farm


def test_a_host_whose_events_are_planned_next_needs_no_operator() -> None:
    """Between the end of a host and the tick that plans the next one, nothing is in the way that anybody must move."""
    farm = Farm("shop/web-0 0 a", "shop/web-1 0 b")
    farm.work_on("a", "b")
    farm.empty("a")
    farm.report(farm.work("a").id, Outcome(ok=True))
    assert farm.events_on("b") == []
    (planned_next,) = waiting_for_hosts(farm.snapshot(), farm.maintenance_id, farm.now)["b"]
    assert planned_next.message == "host b carries shop/web-1, and their events are planned next"
    assert needs_operator(farm.snapshot(), farm.maintenance_id, farm.now) == ()
    farm.tick()
    assert farm.why("b") == ["host-not-empty"]


def test_a_failed_host_is_named_with_its_order() -> None:
    """So that whoever reads the reason knows what to retry, finish or abandon."""
    farm = Farm("shop/web-0 0 a", "shop/web-1 0 b")
    farm.work_on("a", "b")
    farm.empty("a")
    order = farm.work("a")
    farm.report(order.id, Outcome(ok=False, reason="no boot"))
    assert farm.state("a") is OrderState.FAILED
    waiting = waiting_for_hosts(farm.snapshot(), farm.maintenance_id, farm.now)
    (failed,) = waiting["a"]
    assert (failed.code, failed.message, failed.orders) == (
        "order-failed",
        "the work on host a failed (no boot)",
        (order.id,),
    )
    assert [(reason.code, reason.orders) for reason in waiting["b"]] == [
        ("unresolved", (order.id,)),
        ("earlier-host", ()),
    ]
