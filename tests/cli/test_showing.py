"""Plans, live views and tables as text: what of an answer is shown, and how."""

import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from forewarn.cli import plan_text
from forewarn.cli.live_maintenance import differences, picture, reached
from forewarn.cli.output import Output, plain_table, rich_table
from forewarn.cli.status import headline
from tests.cli.things import NOW, event, maintenance, waiting

SECOND = "AAAAAAAA-0000-0000-0000-000000000002"
FAILED = waiting("order-failed", "its order failed (disk on fire); retry, finish or abandon the event")


def drawn(what: RenderableType, columns: int = 120) -> str:
    console = Console(file=io.StringIO(), width=columns, force_terminal=False)
    console.print(what)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return str(text)


def test_a_plan_says_waves_machines_and_notice() -> None:
    """A row per event, in the order they happen; machines are never left out."""
    names = [f"web-{n}" for n in range(20)]
    plan = maintenance(event(resources=names), event(SECOND, wave=2, update_domain=1))
    assert plan_text.summary(plan) == "Reboot of 21 machines in 1 scope, 2 waves, one after the other"
    assert plan_text.rows(plan) == [(1, "shop", 0, ", ".join(names), "15m"), (2, "shop", 1, "web-0", "15m")]
    assert plan_text.warning(plan) == ""


@pytest.mark.parametrize(("notice_s", "emergency"), [(0, False), (None, False), (0, True)])
def test_a_plan_without_notice_says_so(notice_s: int | None, emergency: bool) -> None:
    """It names the scopes that are not warned, and why."""
    plan = maintenance(event(notice_s=notice_s), emergency=emergency)
    assert plan_text.without_notice(plan) == ["shop"]
    assert plan_text.warning(plan).startswith("This gives no notice to shop: ")
    assert ("emergency" in plan_text.warning(plan)) is emergency


def test_a_follower_is_first_told_where_it_stands() -> None:
    """Every event with its wave, place, machines and whole id."""
    lines = differences(None, maintenance(event(), event(SECOND, wave=2, status="Planned", not_before=None)))
    assert lines == [
        "maintenance BBBBBBBB-0000-0000-0000-000000000001 Reboot Running: 2 waves",
        "wave 1 shop#0 web-0 [AAAAAAAA-0000-0000-0000-000000000001]: Scheduled, not before 2030-01-31 12:15:00Z",
        "wave 2 shop#0 web-0 [AAAAAAAA-0000-0000-0000-000000000002]: Planned",
    ]


def test_a_follower_is_then_told_what_changed_and_nothing_else() -> None:
    """Approvals, statuses, failed orders, and the maintenance's own status; time going by is no change."""
    before = maintenance(event())
    approved = event(approved_by=[{"who": "shop/web-0", "when": NOW}])
    started = event(status="Started", started=NOW, approved_by=approved["approved_by"], waiting_for=[FAILED])
    label = "wave 1 shop#0 web-0 [AAAAAAAA-0000-0000-0000-000000000001]"
    assert differences(before, maintenance(event())) == []
    assert differences(before, maintenance(approved)) == [f"2030-01-31 12:00:00Z {label}: approved by shop/web-0"]
    assert differences(maintenance(approved), maintenance(started, status="Paused")) == [
        f"2030-01-31 12:00:00Z {label}: Scheduled -> Started",
        f"{label}: its order failed (disk on fire); retry, finish or abandon the event",
        "maintenance BBBBBBBB-0000-0000-0000-000000000001: Running -> Paused",
    ]


def test_the_picture_has_a_bar_per_wave() -> None:
    """Done of all, what each is about, and what failed."""
    text = drawn(
        picture(
            maintenance(
                event(status="Completed", ended=NOW),
                event(SECOND, wave=2, update_domain=1, status="Started", started=NOW, waiting_for=[FAILED]),
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


def test_a_long_maintenance_is_shown_around_the_wave_under_way() -> None:
    """A terminal is not endless; what is left out is counted."""
    events = [
        event(f"{n:08}-0000", wave=n, status="Completed" if n < 50 else "Planned", not_before=None)
        for n in range(1, 101)
    ]
    text = drawn(picture(maintenance(*events), NOW))
    assert "wave 50 " in text
    assert "wave 1 " not in text
    assert "and 88 more waves" in text


@pytest.mark.parametrize(
    ("status", "started", "until", "over"),
    [
        ("Planned", None, "started", False),
        ("Running", NOW, "started", True),
        ("Running", NOW, "done", False),
        ("Completed", NOW, "done", True),
        ("Cancelled", None, "started", True),
        ("Paused", NOW, "done", False),
    ],
)
def test_when_waiting_ends(status: str, started: str | None, until: str, over: bool) -> None:
    """`started`: the first wave has; `done`: it ended, well or not. A held one is waited for."""
    assert reached(maintenance(event(started=started), status=status), until) is over


def test_a_plain_table_crops_nothing() -> None:
    """Columns are as wide as what is in them; a cell is one line, without control characters."""
    wide = "x" * 500
    assert plain_table(("a", "b c"), [(1, wide), ("two\nlines\x1b", None)]) == (
        f"A           B C\n1           {wide}\ntwo lines\ufffd"
    )


def test_a_table_on_a_terminal_folds_and_crops_nothing() -> None:
    """Every character of a cell is there, over several lines if need be; brackets are no markup."""
    text = drawn(rich_table(("a", "b"), [("[bold]x[/bold]", "y" * 100)]), columns=40)
    assert "…" not in text
    assert text.count("y") == 100
    assert "".join(text.split()).count("[bold]") == 1


def test_json_is_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    """What is said to people goes to standard error then."""
    out = Output(as_json=True)
    out.say("for people")
    out.table(("a",), [("also",)])
    out.json({"a": "ü"})
    seen = capsys.readouterr()
    assert seen.out == '{\n  "a": "\\u00fc"\n}\n'
    assert "for people" in seen.err
    assert "also" in seen.err


def test_the_headline_counts() -> None:
    """What is wrong with the service, and the numbers; a list that goes on is counted as `at least`."""

    def page(*items: Any, more: str | None = None) -> dict[str, Any]:
        return {"items": list(items), "next_cursor": more}

    seen = {
        "server": "http://127.0.0.1:8170",
        "clock": {"now": NOW, "kind": "system"},
        "complaints": {"ticker": "no cycle lately"},
        "open": page(
            event(waiting_for=[waiting("approval", "…", machines=["web-0"])]),
            event(status="Started", waiting_for=[FAILED]),
            event(status="Started"),
        ),
        "planned": page(event(status="Planned"), more="x"),
        "ended": page(event(status="Completed"), event(status="Abandoned")),
    }
    assert headline(seen) == [
        "http://127.0.0.1:8170  2030-01-31 12:00:00Z (system clock)",
        "NOT READY: ticker: no cycle lately",
        "now: 1 failed, 1 under way, 1 scheduled (1 not approved), 1+ in later waves",
        "last 24 hours: 1 completed, 0 cancelled, 1 abandoned",
    ]
