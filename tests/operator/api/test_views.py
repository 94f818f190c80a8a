"""The bodies that the API builds from stored objects."""

from datetime import datetime, timedelta

from forewarn.core.change import Change
from forewarn.core.fleet_rules import FleetRules, NoGoTime, Window
from forewarn.core.model import Status, Strategy, Targets
from forewarn.operator.api.bodies import TargetsOut
from forewarn.operator.api.views import CAUSED_BY_OTHERS, maintenance_out, maintenance_row, targets_out
from tests.support.builders import World, at, shop
from tests.support.records import maintenance
from tests.support.waiting_codes import CODES

# Reasons that describe the progress of the maintenance itself. A plan, which is not submitted yet, hides them.
OWN_REASONS = {
    "approval",
    "bake",
    "clock",
    "continue",
    "drill",
    "earlier-host",
    "earlier-wave",
    "earliest",
    "executor",
    "failures",
    "host-not-empty",
    "host-work",
    "in-doubt",
    "no-go",
    "no-target",
    "notice",
    "order-failed",
    "paused",
    "requested-start",
    "ticker",
    "wave",
    "window",
}


def test_every_reason_to_wait_is_shown_in_a_plan_or_listed_as_hidden() -> None:
    """A reason whose cause is another maintenance is in CAUSED_BY_OTHERS, so that a plan shows it."""
    assert CODES - CAUSED_BY_OTHERS == OWN_REASONS
    assert CODES >= CAUSED_BY_OTHERS


def test_a_list_shows_the_first_targets_and_counts_all() -> None:
    """So that a page of maintenances of thousands of machines stays small."""
    machines = Targets(machines=tuple(("shop", f"web-{n}") for n in range(100)))
    assert targets_out(machines, None, 2).machines == ["shop/web-0", "shop/web-1"]
    assert targets_out(machines, None, 2).count == 100
    assert len(targets_out(machines, None).machines) == 100
    domain = targets_out(Targets(scope="shop", update_domain=0), None)
    assert (domain.scopes, domain.update_domain, domain.count) == (["shop"], 0, 1)


def test_an_owner_sees_labels_and_patterns_of_their_scopes() -> None:
    """Not those of hosts, and no pattern that names scopes of others."""
    chosen = Targets(scopes=("blog", "shop"), labels="rack=a3", names=("web-*", "sh*/db", "blog/x"))
    shown = targets_out(chosen, None, 2)
    assert (shown.labels, shown.names, shown.scopes, shown.count) == (
        "rack=a3",
        ["web-*", "sh*/db"],
        ["blog", "shop"],
        2,
    )
    owners = targets_out(chosen, ("shop",))
    assert (owners.labels, owners.names, owners.scopes) == ("rack=a3", ["web-*", "sh*/db"], ["shop"])
    hosts = Targets(hosts=("kvm-*",), host_labels="rack=a3")
    assert targets_out(hosts, None).host_labels == "rack=a3"
    assert targets_out(hosts, ("shop",)) == TargetsOut(count=0)
    assert targets_out(Targets(everything=True), ("shop",)).everything


def test_a_maintenance_without_stored_targets_has_none() -> None:
    """It was submitted before targets were kept."""
    assert maintenance_row(maintenance(), (), (), within=None, estimated_end=None, host_orders=()).targets is None


def _estimate(world: World, maintenance_id: str) -> datetime | None:
    return maintenance_out(world.snapshot(), maintenance_id, within=None, now=world.now).estimated_end


def test_the_estimated_end_is_exact_if_time_alone_moves_the_maintenance() -> None:
    """Windows, a no-go time and the bake time are in it from the beginning, and it does not change until the end."""
    world = shop(2, windows=("nights",))
    nights = Window(name="nights", spans=("daily 13:00-14:00",))
    fair = NoGoTime(name="fair", reason="fair", start=at(24 * 60 + 50), end=at(24 * 60 + 75))
    world.save(Change(at=world.now, fleet_rules=FleetRules(windows={"nights": nights}, no_go_times={"fair": fair})))
    first, second = world.submit("shop/web-0", "shop/web-1", duration_s=1_800, strategy=Strategy(bake_s=900))
    assert first.status is Status.PLANNED
    # The second wave could start at 14:00 at the earliest, which is too late; on the next day, the no-go time delays it.
    expected = at(24 * 60 + 75 + 30)
    assert _estimate(world, first.maintenance_id) == expected
    ticks = 0
    while (maintenance := world.maintenance(first.id)).ended is None:
        for each in (first, second):
            started = world.event(each.id).started
            if world.status(each.id) is Status.STARTED and started == world.now - timedelta(seconds=1_800):
                world.finish(each.id)
        world.tick()
        running = [e.started for e in world.snapshot().events.values() if e.status is Status.STARTED and e.started]
        if (maintenance := world.maintenance(first.id)).ended is not None:
            break
        assert _estimate(world, first.maintenance_id) == expected
        wake_at = maintenance.wake_at
        moments = [start + timedelta(seconds=1_800) for start in running] + ([wake_at] if wake_at else [])
        world.now = max(world.now, min(moments))
        ticks += 1
    assert maintenance.ended == expected
    assert ticks > 4


def test_no_end_is_estimated_while_more_than_time_is_missing() -> None:
    """A wave that waits for a budget has no estimate, nor has one that windows and no-go times leave no time."""
    world = shop(2, max_unavailable="1")
    world.submit("shop/web-0", duration_s=600)
    (waits,) = world.submit("shop/web-1", duration_s=600)
    assert [reason.code for reason in world.waiting_for(waits.id)] == ["budget"]
    assert _estimate(world, waits.maintenance_id) is None
    always = NoGoTime(name="always", reason="closed", spans=("daily 00:00-24:00",))
    closed = shop(1)
    closed.save(Change(at=closed.now, fleet_rules=FleetRules(no_go_times={"always": always})))
    (never,) = closed.submit("shop/web-0", duration_s=600)
    assert _estimate(closed, never.maintenance_id) is None
