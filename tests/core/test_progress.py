"""Progress is counted per wave, and an end is expected only if nothing but time is missing."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from forewarn.core.estimate import expected_end
from forewarn.core.model import Maintenance, Order, OrderState, Status, Strategy
from forewarn.core.progress import Counted, WaveProgress, host_progress, total, wave_progress
from forewarn.core.transitions import Verb
from tests.support.builders import World, at, event, maintenance, shop

FIRST = WaveProgress(wave=1, left=2, notice_s=900, published=at(0), not_before=at(15))
SECOND = WaveProgress(wave=2, left=1)


def anywhere(_: int, wanted: datetime) -> datetime:
    return wanted


def nowhere(*_: object) -> None:
    """No wave has a time."""


def end_of(
    *waves: WaveProgress,
    minutes: float = 0,
    held: bool = False,
    limited: bool = False,
    notice_s: int | None = None,
    **facts: Any,
) -> datetime | None:
    """The expected end, at so many minutes, of a maintenance whose work takes five minutes unless `facts` say otherwise."""
    requested: Maintenance = maintenance(**{"duration_s": 300, **facts})
    start_of = nowhere if limited else anywhere
    return expected_end(requested, waves, held=held, start_of=start_of, now=at(minutes), notice_s=notice_s)


def progress_of(world: World) -> Counted:
    return total(wave_progress(world.snapshot().events.values(), world.snapshot().orders))


def test_each_event_is_counted_once_from_planning_to_its_end() -> None:
    """Left, running, failed, in doubt, done, undone: the sum stays the number of events."""
    world = shop()
    first, second, third = world.submit("shop/web-0", "shop/web-1", "shop/web-2")
    assert progress_of(world) == Counted(left=3)
    world.start(first.id)
    assert progress_of(world) == Counted(running=1, left=2)
    world.take(first.id)
    world.fail(first.id)
    assert progress_of(world) == Counted(failed=1, left=2)
    world.resolve_failure(first.id, Verb.RETRY)
    world.take(first.id)
    world.doubt(first.id)
    assert progress_of(world) == Counted(in_doubt=1, left=2)
    world.resolve_failure(first.id, Verb.FINISH)
    world.tick()
    world.start(second.id)
    world.take(second.id)
    world.fail(second.id)
    world.resolve_failure(second.id, Verb.ABANDON)
    world.cancel_event(third.id)
    assert progress_of(world) == Counted(done=1, undone=2)


def test_a_wave_has_the_times_of_its_events() -> None:
    """The first publication, the last NotBefore, start and completion, and the longest minimum notice."""
    events = [
        event(1, status=Status.COMPLETED, published=at(1), started=at(15), ended=at(20)),
        event(2, status=Status.ABANDONED, not_before=at(16), minimum_notice_s=960, started=at(16), ended=at(30)),
        event(3, status=Status.STARTED, started=at(16)),
        event(4, wave=2, status=Status.PLANNED, published=None, not_before=None, minimum_notice_s=0),
    ]
    assert wave_progress(events, {}) == (
        WaveProgress(
            wave=1, done=1, running=1, undone=1, resolved=1, notice_s=960,
            published=at(0), not_before=at(16), started=at(16), completed=at(20),
        ),
        WaveProgress(wave=2, left=1),
    )  # fmt: skip


def test_the_end_counts_notice_and_work_of_every_wave_that_is_left() -> None:
    """NotBefore and work of the current wave, then notice and work of each later wave."""
    assert end_of(FIRST) == at(20)
    assert end_of(FIRST, SECOND) == at(20 + 15 + 5)
    assert end_of(FIRST, earliest=at(60)) == at(65)
    started = WaveProgress(wave=1, running=2, notice_s=900, published=at(0), not_before=at(15), started=at(3))
    assert end_of(started, SECOND, minutes=4) == at(8 + 15 + 5)


def test_a_wave_that_is_not_announced_waits_for_time() -> None:
    """Its bake time runs first, then its notice. Requested times count. Without its notice, nothing is known."""
    ended = WaveProgress(wave=1, done=1, notice_s=900, started=at(15), completed=at(20))
    bakes = Strategy(bake_s=600)
    assert end_of(ended, SECOND, minutes=21, notice_s=900, strategy=bakes) == at(20 + 10 + 15 + 5)
    assert end_of(ended, SECOND, minutes=40, notice_s=900, strategy=bakes) == at(40 + 15 + 5)
    assert end_of(ended, SECOND, minutes=21, notice_s=900, earliest=at(60)) == at(65)
    assert end_of(ended, SECOND, minutes=21, notice_s=900, not_before=at(70)) == at(75)
    assert end_of(ended, SECOND, minutes=21, notice_s=900, limited=True) is None
    moved = WaveProgress(wave=2, left=1, requested_not_before=at(80))
    assert end_of(ended, moved, minutes=21) == at(85)
    third = WaveProgress(wave=3, left=1)
    assert end_of(ended, SECOND, third, minutes=21, notice_s=900) == at(21 + 15 + 5 + 15 + 5)


def test_an_end_is_not_known_if_the_deadline_comes_first() -> None:
    """The last wave would be cancelled. A wave that has started is not."""
    assert end_of(FIRST, SECOND, not_after=at(36)) == at(40)
    assert end_of(FIRST, SECOND, not_after=at(35)) is None
    assert end_of(FIRST, not_after=at(15)) is None
    started = WaveProgress(wave=1, running=2, notice_s=900, published=at(0), not_before=at(15), started=at(3))
    assert end_of(started, minutes=4, not_after=at(4)) == at(8)


def test_a_wave_that_ended_replaces_the_requested_duration() -> None:
    """The longest so far counts; a wave that was cancelled or whose events were abandoned says nothing."""
    ended = WaveProgress(wave=1, done=2, notice_s=900, started=at(15), completed=at(22))
    shorter = WaveProgress(wave=2, done=1, undone=1, notice_s=900, started=at(40), completed=at(41))
    cancelled = WaveProgress(wave=3, undone=2)
    current = WaveProgress(wave=4, left=1, notice_s=900, published=at(50), not_before=at(65))
    assert end_of(ended, shorter, cancelled, current, minutes=50, duration_s=-1) == at(65 + 7)
    assert end_of(cancelled, current, minutes=50) == at(65 + 5)


@pytest.mark.parametrize("verb", [Verb.RETRY, Verb.FINISH, Verb.ABANDON])
@pytest.mark.parametrize("doubted", [False, True])
def test_the_wait_for_an_operator_is_no_work(verb: Verb, *, doubted: bool) -> None:
    """A wave in which an operator resolved a failure does not replace the requested duration."""
    world = shop(2)
    first, second = world.submit("shop/web-0", "shop/web-1", duration_s=300)
    world.start(first.id)
    world.take(first.id)
    if doubted:
        world.doubt(first.id)
    else:
        world.fail(first.id)
    world.now += timedelta(hours=9)
    world.resolve_failure(first.id, verb)
    if verb is Verb.RETRY:
        world.take(first.id)
        world.finish(first.id)
    world.tick()
    snapshot = world.snapshot()
    waves = wave_progress(snapshot.events.values(), snapshot.orders)
    assert [wave.resolved for wave in waves] == [1, 0]
    not_before = world.event(second.id).not_before
    assert not_before is not None
    expected = not_before + timedelta(seconds=300)
    found = expected_end(world.maintenance(first.id), waves, held=False, start_of=anywhere, now=world.now)
    assert found == expected


@pytest.mark.parametrize(
    ("waves", "facts"),
    [
        ([FIRST], {"duration_s": -1}),
        ([FIRST], {"duration_s": 0}),
        ([FIRST], {"paused": True}),
        ([FIRST], {"held": True}),
        ([FIRST], {"minutes": 16}),
        ([FIRST, SECOND], {"limited": True}),
        ([WaveProgress(wave=1, left=1, requested_not_before=at(60))], {"limited": True}),
        ([WaveProgress(wave=1, running=1, not_before=at(15), started=at(15))], {"minutes": 21}),
        ([WaveProgress(wave=1, failed=1, started=at(15)), SECOND], {}),
        ([WaveProgress(wave=1, running=1, in_doubt=1, started=at(15))], {}),
        ([SECOND], {}),
        ([WaveProgress(wave=1, done=3, started=at(15), completed=at(16))], {}),
        ([], {}),
    ],
    ids=["unknown", "no interruption", "paused", "held", "late", "later window", "window", "too long", "failed", "in doubt",
         "planned", "ended", "none"],
)  # fmt: skip
def test_no_end_is_expected_where_more_than_time_is_missing(waves: list[WaveProgress], facts: dict[str, Any]) -> None:
    """An operator must act, the duration is unknown, the wave is late, or nothing is left."""
    assert end_of(*waves, **facts) is None


def test_the_expected_end_is_the_end_if_time_alone_moves_the_maintenance() -> None:
    """With work that takes as long as requested, the first estimate is exact and does not change."""
    world = shop(2)
    first, second = world.submit("shop/web-0", "shop/web-1", duration_s=300)
    requested = world.maintenance(first.id)

    def estimate() -> datetime | None:
        snapshot = world.snapshot()
        waves = wave_progress(snapshot.events.values(), snapshot.orders)
        return expected_end(requested, waves, held=False, start_of=anywhere, now=world.now)

    expected = estimate()
    for each in (first, second):
        not_before = world.event(each.id).not_before
        assert not_before is not None
        world.now = not_before
        world.tick()
        assert estimate() == expected
        world.take(each.id)
        world.now += timedelta(minutes=5)
        world.finish(each.id)
        world.tick()
    assert world.maintenance(first.id).ended == expected
    assert world.order(second.id).state is OrderState.DONE


def test_each_host_is_counted_once_in_every_state() -> None:
    """A host that can be taken counts as running; a skipped one stays undone."""
    orders = [
        Order(id=f"{state}", issued=at(0), state=state, host="a", maintenance_id="m", position=1)
        for state in OrderState
    ]
    assert host_progress(orders) == Counted(done=1, running=2, failed=1, in_doubt=1, left=1, undone=2)
