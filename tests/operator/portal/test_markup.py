"""HTML in the middle of text."""

from datetime import UTC, datetime, timedelta

from forewarn.operator.portal.markup import link_events, name_list, time_tag


def test_an_event_id_becomes_a_link() -> None:
    """The rest of the message is escaped."""
    html = link_events("<b> is in event 0123ABCD-0000-4000-8000-000000000000, which has started")
    assert html == (
        '&lt;b&gt; is in event <a href="/events/0123ABCD-0000-4000-8000-000000000000">0123ABCD</a>, which has started'
    )


def test_only_long_names_may_break() -> None:
    """A name is one unit with its comma, is escaped, and the rest is counted."""
    html = name_list(["web-0", "x" * 33, "<b>", "web-3"], 3)
    assert html == f'<span class="name">web-0,</span> {"x" * 33}, <span class="name">&lt;b&gt;</span> and 1 more'


def test_a_time_has_its_distance() -> None:
    """A time of today is shown without its date; its title has the date. A time that is not known is a dash."""
    now = datetime(2030, 1, 31, 13, 4, 5, tzinfo=UTC)
    assert time_tag(now - timedelta(minutes=15), now) == (
        '<time datetime="2030-01-31T12:49:05Z" title="2030-01-31 12:49:05Z">12:49:05Z</time>'
        ' <span class="quiet far">15m ago</span>'
    )
    assert time_tag(None, now) == '<span class="quiet">—</span>'
