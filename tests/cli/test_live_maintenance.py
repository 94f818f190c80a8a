"""Live views of a maintenance: lines for changes, and the picture on a terminal."""

import pytest

from forewarn.cli.live_maintenance import differences, picture, reached, why_operator
from tests.cli.api_bodies import NOW, ORDER_FAILED, SECOND_ID, event, maintenance, progress, waiting
from tests.cli.rendering import render


def test_the_first_lines_show_every_event() -> None:
    """Each with its wave, update domain, machines and whole id."""
    lines = differences(None, maintenance(event(), event(SECOND_ID, wave=2, status="Planned", not_before=None)))
    assert lines == [
        "maintenance BBBBBBBB-0000-0000-0000-000000000001 Reboot Running: 2 waves",
        "targets: scope shop",
        "wave 1 shop#0 web-0 [AAAAAAAA-0000-0000-0000-000000000001]: Scheduled, not before 2030-01-31 12:15:00Z",
        "wave 2 shop#0 web-0 [AAAAAAAA-0000-0000-0000-000000000002]: Planned",
    ]


def test_later_lines_show_only_what_changed() -> None:
    """Approvals, statuses, failed orders, and the status of the maintenance; the passing of time is no change."""
    before = maintenance(event())
    approved = event(approved_by=[{"who": "shop/web-0", "when": NOW}])
    started = event(status="Started", started=NOW, approved_by=approved["approved_by"], waiting_for=[ORDER_FAILED])
    label = "wave 1 shop#0 web-0 [AAAAAAAA-0000-0000-0000-000000000001]"
    assert differences(before, maintenance(event())) == []
    assert differences(before, maintenance(approved)) == [f"2030-01-31 12:00:00Z {label}: approved by shop/web-0"]
    assert differences(
        maintenance(approved), maintenance(started, status="Paused", held=True, progress=progress(failed=1))
    ) == [
        f"2030-01-31 12:00:00Z {label}: Scheduled -> Started",
        f"{label}: its order failed (disk on fire)",
        "maintenance BBBBBBBB-0000-0000-0000-000000000001: Running -> Held: 1 order failed",
    ]


def test_a_pause_is_said_once() -> None:
    """Also when it is there from the beginning: nothing else may show for a long time."""
    running, paused = maintenance(event()), maintenance(event(), status="Paused", paused=True)
    line = f"maintenance {paused['id']} is paused: it continues when an operator resumes it"
    assert differences(None, paused)[-1] == line
    assert differences(running, paused) == [f"maintenance {paused['id']}: Running -> Paused", line]
    assert differences(paused, paused) == []
    assert "Paused, until an operator resumes it" in render(picture(paused, NOW))
    held = maintenance(event(), status="Paused", held=True, progress=progress(failed=2, in_doubt=1))
    assert "Held: 2 orders failed, 1 order in doubt" in render(picture(held, NOW))


def test_why_only_an_operator_can_move_it() -> None:
    """Orders of its own are named with their events, a few of them; a reason that several events share is named once."""
    failures = [waiting("order-failed", f"its order failed (fire {n})", events=[f"E{n}"]) for n in range(4)]
    assert why_operator(maintenance(needs_operator=failures[:2])) == (
        "event E0: its order failed (fire 0); event E1: its order failed (fire 1)"
    )
    assert why_operator(maintenance(needs_operator=failures)).endswith("event E2: its order failed (fire 2); and more")
    held = [waiting("store-held", "the store is held: bob", events=[f"E{n}"]) for n in range(2)]
    assert why_operator(maintenance(needs_operator=held)) == "the store is held: bob"
    outside = [{"code": "order-failed", "message": "it waits for something outside your scopes"}] * 4
    assert why_operator(maintenance(needs_operator=[*outside, *failures[:1]])) == (
        "it waits for something outside your scopes; event E0: its order failed (fire 0)"
    )


def test_the_picture_has_a_bar_per_wave() -> None:
    """A row has the number of ended events, and the events with their failures."""
    text = render(
        picture(
            maintenance(
                event(status="Completed", ended=NOW),
                event(SECOND_ID, wave=2, update_domain=1, status="Started", started=NOW, waiting_for=[ORDER_FAILED]),
            ),
            NOW,
        )
    )
    first, second = [line for line in text.splitlines() if line.startswith("wave")]
    assert "━" in first
    assert "1/1" in first
    assert "shop#0 web-0 Completed" in first
    assert "0/1" in second
    assert "its order failed (disk on fire)" in second


def test_the_picture_and_the_first_lines_show_targets_progress_and_estimated_end() -> None:
    """A maintenance without stored targets says so."""
    end = "2030-01-31T12:20:00Z"
    known = maintenance(event(), targets={"count": 30, "hosts": ["rack1-a", "rack1-b"]}, estimated_end=end)
    assert (
        "hosts rack1-a, rack1-b and 28 more: 0 of 1 done, 1 left, estimated end 2030-01-31 12:20:00Z (in 20m)"
        in " ".join(render(picture(known, NOW)).split())
    )
    assert "estimated end: 2030-01-31 12:20:00Z" in differences(None, known)
    old = maintenance(event(), targets=None)
    assert "targets not kept: 0 of 1 done, 1 left" in render(picture(old, NOW))
    assert "targets: not kept" in differences(None, old)


def test_of_many_waves_those_around_the_current_one_are_shown() -> None:
    """The others are counted."""
    events = [
        event(f"{n:08}-0000", wave=n, status="Completed" if n < 50 else "Planned", not_before=None)
        for n in range(1, 101)
    ]
    text = render(picture(maintenance(*events), NOW))
    assert "wave 50 " in text
    assert "wave 1 " not in text
    assert "and 88 more waves" in text


@pytest.mark.parametrize(
    ("status", "started", "until", "ends"),
    [
        ("Planned", None, "started", False),
        ("Running", NOW, "started", True),
        ("Running", NOW, "done", False),
        ("Completed", NOW, "done", True),
        ("Cancelled", None, "started", True),
        ("Paused", NOW, "done", False),
    ],
)
def test_when_waiting_ends(status: str, started: str | None, until: str, ends: bool) -> None:
    """`started`: an event has started; `done`: the maintenance has ended in any way. A paused one has not ended."""
    assert reached(maintenance(event(started=started), status=status), until) is ends
