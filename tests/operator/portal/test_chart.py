"""The chart: positions of bars, marks and ticks."""

from datetime import UTC, datetime, timedelta

import pytest

from forewarn.core.model import EventType, Source, Status
from forewarn.operator.api.bodies import ApprovedBy, EventOut
from forewarn.operator.portal.chart import MAX_TICKS, chart_of

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


def minutes(number: float) -> datetime:
    return NOW + timedelta(minutes=number)


def event(**fields: object) -> EventOut:
    known: dict[str, object] = {
        "id": "E", "maintenance_id": "M", "wave": 1, "scope": "shop", "update_domain": 0, "type": EventType.REBOOT,
        "status": Status.SCHEDULED, "source": Source.PLATFORM, "resources": ["web-0"], "description": "", "duration_s": -1,
        "published": None, "not_before": None, "notice_s": None, "approved_by": [], "started": None, "ended": None,
        "reason": "", "waiting_for": [], "timeline": [], "group": "", "replaces": "", "replaced_by": "", "reschedules": 0,
        "requested_not_before": None,
    }  # fmt: skip
    return EventOut(**{**known, **fields})  # type: ignore[arg-type]


def test_times_are_in_order_from_left_to_right() -> None:
    """Published, approved, now, NotBefore, all inside the chart."""
    approvals = [ApprovedBy(who="shop/web-0", when=minutes(-1))]
    chart = chart_of([event(published=minutes(-5), not_before=minutes(10), approved_by=approvals)], NOW)
    (row,) = chart.rows
    assert row.notice is not None
    assert row.not_before is not None
    assert 0 < row.notice.at < row.approved[0] < chart.now < row.not_before < 100
    assert row.notice.at + row.notice.width == pytest.approx(row.not_before, abs=0.05)
    assert "NotBefore 12:10:00Z, in 10m" in row.description


def test_the_work_bar_reaches_from_the_start_until_now() -> None:
    """The bar of a started event grows."""
    chart = chart_of(
        [event(status=Status.STARTED, published=minutes(-9), not_before=minutes(6), started=minutes(-4))], NOW
    )
    (row,) = chart.rows
    assert row.work is not None
    assert row.work.at + row.work.width == pytest.approx(chart.now, abs=0.05)


def test_one_event_far_in_the_future_does_not_squeeze_the_others() -> None:
    """Its bar ends at the edge; the other bars keep their width."""
    near = [event(published=minutes(-1), not_before=minutes(14)) for _ in range(19)]
    chart = chart_of([*near, event(published=minutes(-1), not_before=minutes(30 * 24 * 60))], NOW)
    assert chart.rows[0].notice is not None
    assert chart.rows[0].notice.width > 50
    far = chart.rows[-1]
    assert far.notice is not None
    assert far.notice.beyond
    assert far.notice.at + far.notice.width == pytest.approx(100)
    assert far.not_before is None


@pytest.mark.parametrize("ahead_min", [0, 1, 15, 100, 1_000, 10_000, 43_200])
def test_the_ticks_are_few_and_in_order(ahead_min: int) -> None:
    """For any length of time, and without events."""
    for events in ([event(published=NOW, not_before=minutes(ahead_min))], []):
        ticks = chart_of(events, NOW).ticks
        assert 1 <= len(ticks) <= MAX_TICKS
        assert [tick.at for tick in ticks] == sorted(tick.at for tick in ticks)


def test_a_planned_event_has_no_bar() -> None:
    """It has no times yet."""
    (row,) = chart_of([event(status=Status.PLANNED)], NOW).rows
    assert (row.notice, row.work, row.not_before, row.approved) == (None, None, None, ())
