"""When only an operator can move a maintenance, and what remains to be done by time, guests and executors."""

from forewarn.core.change import Snapshot
from forewarn.core.clock_hold import hold_clock
from forewarn.core.model import ClockHold, Event, OnFailure, Source
from forewarn.core.needs_operator import needs_operator
from forewarn.core.reason import Waiting
from forewarn.core.store_hold import hold_store
from forewarn.core.transitions import Verb
from tests.support.builders import OPERATOR, World, at, shop, two_scopes


def needs(world: World, event: Event) -> tuple[Waiting, ...]:
    return needs_operator(world.snapshot(), event.maintenance_id, world.now)


def codes(world: World, event: Event) -> list[str]:
    return [reason.code for reason in needs(world, event)]


def hold_the_store(world: World) -> None:
    world.save(hold_store(world.snapshot(), "", now=world.now, actor=OPERATOR))


def hold_the_clock(world: World, minutes: float) -> None:
    """The clock was right until so many minutes after the beginning."""
    hold = ClockHold(trusted=at(minutes), noticed=world.now, jumped_s=7_200)
    world.save(hold_clock(Snapshot(), hold, since=at(minutes), unread_s=0, now=world.now))


def test_time_guests_and_executors_move_a_maintenance() -> None:
    """From its submission to its end, a maintenance without trouble never needs an operator."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1")
    assert codes(world, first) == []  # its notice runs
    world.start(first.id)
    assert codes(world, first) == []  # its order is open
    world.finish(first.id)
    assert codes(world, first) == []  # the second wave is not published
    world.tick()
    world.start(second.id)
    world.finish(second.id)
    world.tick()
    assert codes(world, first) == []  # it has ended


def test_a_failed_order_needs_an_operator_once_nothing_else_is_at_work() -> None:
    """While another order of the wave is at work, the maintenance still moves; then the failure is named with its event."""
    world = two_scopes()
    ship, shop_0 = world.submit("ship/web-0", "shop/web-0")
    world.start(ship.id, shop_0.id)
    world.fail(ship.id)
    assert codes(world, ship) == []
    world.finish(shop_0.id)
    (reason,) = needs(world, ship)
    assert (reason.code, reason.events, reason.message) == ("order-failed", (ship.id,), "its order failed (burnt)")
    world.resolve_failure(ship.id, Verb.RETRY)
    assert codes(world, ship) == []


def test_an_order_in_doubt_needs_an_operator() -> None:
    """Nobody else may let it begin again."""
    world = shop(domains=2)
    first, _ = world.submit("shop/web-0", "shop/web-1")
    world.start(first.id)
    world.take(first.id)
    world.doubt(first.id)
    assert codes(world, first) == ["in-doubt"]


def test_with_on_failure_continue_the_other_waves_run_first() -> None:
    """The failed event needs an operator only when all the others have ended."""
    world = two_scopes()
    ship, shop_0, *later = world.submit(
        "ship/web-0", "shop/web-0", "ship/web-1", "shop/web-1", on_failure=OnFailure.CONTINUE
    )
    world.start(ship.id, shop_0.id)
    world.fail(ship.id)
    world.finish(shop_0.id)
    world.tick()
    assert codes(world, ship) == []
    for event in later:
        world.cancel_event(event.id)
    assert codes(world, ship) == ["order-failed"]


def test_a_pause_alone_does_not_count() -> None:
    """An operator wanted the pause. A failure that holds the maintenance counts, paused or not."""
    world = shop(domains=2)
    first, _ = world.submit("shop/web-0", "shop/web-1")
    world.pause(first.maintenance_id)
    world.now = at(60)
    assert codes(world, first) == []
    world.resume(first.maintenance_id)
    world.tick()
    world.fail(first.id)
    world.pause(first.maintenance_id)
    assert codes(world, first) == ["order-failed"]


def test_a_held_store_needs_an_operator_once_the_wave_is_due() -> None:
    """While notice or `earliest` runs, time can still pass; then only the hold is in the way. Open orders wait for it too."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1", earliest=at(30))
    hold_the_store(world)
    assert codes(world, first) == []
    world.now = at(20)
    assert codes(world, first) == []
    world.now = at(30)
    assert codes(world, first) == ["store-held"]
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1")
    world.start(first.id)
    hold_the_store(world)
    (reason,) = needs(world, second)
    assert (reason.code, reason.events) == ("store-held", (first.id,))


def test_a_held_clock_needs_an_operator_once_it_alone_is_in_the_way() -> None:
    """A wave that is due by the clock as it stands, but not by the trusted clock, waits for the confirmation."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.now = at(10)
    hold_the_clock(world, 1)
    assert codes(world, event) == []  # the notice has not run out by any clock
    world.now = at(120)
    assert codes(world, event) == ["clock"]
    world.approve_as_operator(event.id)
    assert codes(world, event) == []


def test_a_failure_of_another_maintenance_needs_an_operator() -> None:
    """The wave is due, and a failed order holds its machine: that event is named. A running order would end by itself."""
    world = shop()
    (other,) = world.submit("shop/web-0")
    world.start(other.id)
    (event,) = world.submit("shop/web-0", source=Source.USER)
    world.start(event.id)
    assert codes(world, event) == []
    world.fail(other.id)
    (reason,) = needs(world, event)
    assert (reason.code, reason.events) == ("unresolved", (other.id,))
