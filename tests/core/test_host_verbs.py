"""The verbs on single hosts: skip one, resolve its failed work, note what holds its order back."""

import pytest

from forewarn.core import host_verbs
from forewarn.core.change import Change
from forewarn.core.errors import IllegalTransition, Invalid, NotFound, Refused
from forewarn.core.model import Host, MaintenanceStatus, OrderState
from forewarn.core.transitions import Verb
from tests.support.builders import EXECUTOR
from tests.support.farm import Farm, two_hosts


def test_one_host_can_be_skipped() -> None:
    """Skipping cancels what has not started of one host; repeating it changes nothing."""
    farm = two_hosts()
    farm.skip_host(farm.maintenance_id, "b")
    assert farm.state("b") is OrderState.CANCELLED
    assert farm.skip_host(farm.maintenance_id, "b").empty
    with pytest.raises(NotFound, match="does not work on host 'c'"):
        farm.skip_host(farm.maintenance_id, "c")
    farm.empty("a")
    farm.take(farm.work("a").id)
    with pytest.raises(Refused, match="the work on host a is running"):
        farm.skip_host(farm.maintenance_id, "a")
    farm.finish(farm.work("a").id)
    farm.tick()
    assert farm.known().status is MaintenanceStatus.FAILED
    assert "skipped by alice" in farm.work("b").reason


def test_skipping_the_last_host_ends_the_maintenance() -> None:
    """Nothing is left to do."""
    farm = Farm("shop/web-0 0 a")
    farm.work_on("a")
    farm.skip_host(farm.maintenance_id, "a")
    assert farm.known().status is MaintenanceStatus.FAILED
    with pytest.raises(Refused, match="has ended"):
        farm.skip_host(farm.maintenance_id, "a")


def test_only_failed_work_is_resolved() -> None:
    """Resolving needs an order of a host that failed or is in doubt, and a verb that resolves."""
    farm = Farm("shop/web-0 0 a")
    farm.work_on("a")
    (event,) = farm.events_on("a")
    farm.start(event.id)
    with pytest.raises(Invalid, match="is the order of an event"):
        farm.resolve_host(event.id, Verb.RETRY)
    farm.move(event.id, "spare")
    farm.tick()
    order_id = farm.work("a").id
    with pytest.raises(IllegalTransition, match="has not failed"):
        farm.resolve_host(order_id, Verb.FINISH)
    farm.fail(order_id)
    with pytest.raises(Invalid, match="by retry, finish or abandon"):
        farm.resolve_host(order_id, Verb.CANCEL)
    farm.put_on("a")
    with pytest.raises(Refused, match="host a is not empty"):
        farm.resolve_host(order_id, Verb.RETRY)


def test_work_that_is_over_is_not_resolved() -> None:
    """The refusal says how it ended and what to do instead."""
    farm = Farm("shop/web-0 0 a")
    farm.save(Change(at=farm.now, hosts=(Host(name="c", listed=True),)))
    farm.work_on("c")
    farm.finish(farm.work("c").id)
    with pytest.raises(IllegalTransition, match=r"the work on host c is done, .*: schedule a new maintenance"):
        farm.resolve_host(farm.work("c").id, Verb.RETRY)


def test_what_the_executor_found_on_the_host_is_kept_on_the_order() -> None:
    """A domain that forewarn does not know is named until it has left."""
    farm = Farm("shop/web-0 0 a")
    farm.work_on("a")
    farm.empty("a")
    for reason in ("host a runs unknown-7", "host a runs unknown-7", ""):
        order_id = farm.work("a").id
        farm.save(host_verbs.note_host(farm.snapshot(), order_id, reason, now=farm.now, actor=EXECUTOR))
        assert farm.why("a") == (["host-not-empty"] if reason else ["executor"])
    farm.take(farm.work("a").id)
    change = host_verbs.note_host(farm.snapshot(), farm.work("a").id, "late", now=farm.now, actor=EXECUTOR)
    assert change.empty
