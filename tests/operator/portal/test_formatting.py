"""Times, spans, sentences and the picture's geometry: plain functions, looked at one by one."""

from datetime import UTC, datetime, timedelta

import pytest

from forewarn.core.model import ENDED, OPEN, EventType, Source, Status
from forewarn.operator.api.bodies import ApprovedBy, EventOut
from forewarn.operator.portal import formatting, pages
from forewarn.operator.portal.timeline import MAX_TICKS, picture

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


def minutes(number: float) -> datetime:
    return NOW + timedelta(minutes=number)


@pytest.mark.parametrize(
    "seconds, told",
    [
        (0, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (3_599, "59 min"),
        (3_600, "1 h"),
        (7_500, "2 h 5 min"),
        (86_400, "1 d"),
        (100_000, "1 d 3 h"),
        (-90, "90 s"),
    ],
)
def test_a_span_has_two_units_at_most(seconds: float, told: str) -> None:
    """Nobody reads more."""
    assert formatting.span(seconds) == told


def test_a_moment_says_where_it_lies() -> None:
    """Ahead, behind, or now; the date only when it is another day."""
    assert formatting.distance(minutes(12), NOW) == "in 12 min"
    assert formatting.distance(minutes(-3), NOW) == "3 min ago"
    assert formatting.distance(NOW, NOW) == "now"
    assert formatting.stamp(minutes(5), NOW) == "12:05:00 UTC"
    assert formatting.stamp(minutes(24 * 60), NOW) == "2030-01-02 12:00:00 UTC"


def test_names_beyond_the_first_are_counted() -> None:
    """A thousand machines are not a sentence."""
    assert formatting.some(["a", "b"]) == "a, b"
    assert formatting.some(["a", "b", "c", "d"]) == "a, b, c and 1 more"
    assert formatting.count(1, "machine") == "1 machine"
    assert formatting.count(1_000, "machine") == "1,000 machines"
    assert formatting.cut("abcdef", 4) == "abc…"


def test_a_sentences_events_are_links_and_the_rest_is_text() -> None:
    """An id leads to its event; anything else stays what it was."""
    told = formatting.linked("<b> is in event 0123ABCD-0000-4000-8000-000000000000, which has started")
    assert told == (
        '&lt;b&gt; is in event <a href="/events/0123ABCD-0000-4000-8000-000000000000">0123ABCD</a>, which has started'
    )


def test_every_status_has_its_place() -> None:
    """Whatever a status is, it is found under Now or in the history."""
    assert set(pages.OPEN_FIRST) == OPEN
    assert set(pages.ENDED_FIRST) == ENDED


def event(**fields: object) -> EventOut:
    known: dict[str, object] = {
        "id": "E", "maintenance_id": "M", "wave": 1, "scope": "shop", "update_domain": 0, "type": EventType.REBOOT,
        "status": Status.SCHEDULED, "source": Source.PLATFORM, "resources": ["web-0"], "description": "", "duration_s": -1,
        "published": None, "not_before": None, "notice_s": None, "approved_by": [], "started": None, "ended": None,
        "reason": "", "waiting_for": [], "timeline": [],
    }  # fmt: skip
    return EventOut(**{**known, **fields})  # type: ignore[arg-type]


def test_the_picture_keeps_the_order_of_times() -> None:
    """Published, approved, now, NotBefore: from left to right, all inside."""
    approvals = [ApprovedBy(who="shop/web-0", when=minutes(-1))]
    drawn = picture([event(published=minutes(-5), not_before=minutes(10), approved_by=approvals)], NOW)
    (strip,) = drawn.strips
    assert strip.notice is not None
    assert strip.not_before is not None
    assert 0 < strip.notice.at < strip.approved[0] < drawn.now < strip.not_before < 100
    assert strip.notice.at + strip.notice.width == pytest.approx(strip.not_before, abs=0.05)
    assert "NotBefore 12:10:00 UTC, in 10 min" in strip.words


def test_work_is_drawn_from_its_start_until_now() -> None:
    """A started event grows with the time."""
    drawn = picture(
        [event(status=Status.STARTED, published=minutes(-9), not_before=minutes(6), started=minutes(-4))], NOW
    )
    (strip,) = drawn.strips
    assert strip.work is not None
    assert strip.work.at + strip.work.width == pytest.approx(drawn.now, abs=0.05)


def test_one_event_far_ahead_does_not_press_the_others_together() -> None:
    """It is drawn to the edge; the others keep their room."""
    near = [event(published=minutes(-1), not_before=minutes(14)) for _ in range(19)]
    drawn = picture([*near, event(published=minutes(-1), not_before=minutes(30 * 24 * 60))], NOW)
    assert drawn.strips[0].notice is not None
    assert drawn.strips[0].notice.width > 50
    far = drawn.strips[-1]
    assert far.notice is not None
    assert far.notice.beyond
    assert far.notice.at + far.notice.width == pytest.approx(100)
    assert far.not_before is None


@pytest.mark.parametrize("ahead_min", [0, 1, 15, 100, 1_000, 10_000, 43_200])
def test_the_ticks_are_few_and_in_order(ahead_min: int) -> None:
    """Whatever the span, the axis stays readable; without any event too."""
    for events in ([event(published=NOW, not_before=minutes(ahead_min))], []):
        ticks = picture(events, NOW).ticks
        assert 1 <= len(ticks) <= MAX_TICKS
        assert [tick.at for tick in ticks] == sorted(tick.at for tick in ticks)


def test_what_is_not_published_has_no_bar() -> None:
    """A planned event has no times yet."""
    (strip,) = picture([event(status=Status.PLANNED)], NOW).strips
    assert (strip.notice, strip.work, strip.not_before, strip.approved) == (None, None, None, ())
