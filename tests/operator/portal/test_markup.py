"""HTML in the middle of text."""

from forewarn.operator.portal.markup import link_events


def test_an_event_id_becomes_a_link() -> None:
    """The rest of the message is escaped."""
    html = link_events("<b> is in event 0123ABCD-0000-4000-8000-000000000000, which has started")
    assert html == (
        '&lt;b&gt; is in event <a href="/events/0123ABCD-0000-4000-8000-000000000000">0123ABCD</a>, which has started'
    )
