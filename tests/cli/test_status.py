"""`forewarn status`: its first lines, and the sections of what waits for an operator."""

from typing import Any

import pytest

from forewarn.cli import status
from forewarn.cli.output import Output, rich_table
from forewarn.cli.session import Session
from forewarn.cli.status import headline
from tests.cli.api_bodies import NOW, SECOND_ID, event, maintenance, order, waiting
from tests.cli.rendering import render


def page(*items: Any, more: str | None = None) -> dict[str, Any]:
    return {"items": list(items), "next_cursor": more}


def state(role: str = "operator", **changed: Any) -> dict[str, Any]:
    lists = ("failed", "in_doubt", "open", "planned", "ended", "paused")
    return {
        "server": "http://127.0.0.1:8170",
        "caller": {"role": role},
        "clock": {"now": NOW, "kind": "system"},
        "store": {"held": None},
        "complaints": {},
        **{name: page() for name in lists},
        "left_cordoned": [],
        "host_work": [],
        "left_out": [],
        **changed,
    }


def printed(capsys: pytest.CaptureFixture[str], shown: dict[str, Any]) -> str:
    status.show(Session(Output()), shown)
    return capsys.readouterr().out


def test_the_headline_has_problems_and_numbers() -> None:
    """Failed checks of the service, then the numbers of events; a plus marks a list that is longer than its page."""
    shown = state(
        complaints={"ticker": "no cycle lately"},
        failed=page(order()),
        open=page(
            event(waiting_for=[waiting("approval", "…", machines=["web-0"])]),
            event(status="Started"),
            event(status="Started"),
        ),
        planned=page(event(status="Planned"), more="x"),
        ended=page(event(status="Completed"), event(status="Abandoned")),
    )
    assert headline(shown)[2:3] == [
        "now: 1 failed, 1 in progress, 1 scheduled (1 not approved), 1+ in later waves",
    ]
    shown["open"]["items"] += [event(status="Started")]
    assert headline({**shown, "in_doubt": page(order(state="in-doubt"))}) == [
        "http://127.0.0.1:8170  2030-01-31 12:00:00Z (system clock)",
        "NOT READY: ticker: no cycle lately",
        "now: 1 failed, 1 in doubt, 1 in progress, 1 scheduled (1 not approved), 1+ in later waves",
        "last 24 hours: 1 completed, 0 cancelled, 1 abandoned",
    ]


@pytest.mark.parametrize(("role", "commands"), [("operator", True), ("viewer", False), ("owner", False)])
def test_a_hold_names_the_command_that_ends_it_to_operators_alone(role: str, commands: bool) -> None:
    """Everyone learns that the clock or the store is held."""
    held = state(
        role,
        clock={"now": NOW, "kind": "system", "held": {"jumped_s": 7_200}},
        store={"held": {"detail": "bob requested it"}},
    )
    _, clock, store, *_ = headline(held)
    assert clock.startswith("CLOCK HELD: it jumped forward by 7200 s")
    assert store.startswith("STORE HELD: bob requested it; nothing starts until")
    assert ("`forewarn clock confirm`" in clock, "`forewarn db resume`" in store) == (commands, commands)


def test_a_maintenance_with_failures_that_pauses_after_a_wave_is_not_called_running(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its state is the one that `maintenance show` prints."""
    paused = maintenance(status="Paused", awaits_continue=True)
    text = printed(capsys, state(failed=page(order()), paused=page(paused)))
    assert "Paused: an operator must let it continue, 1 order failed" in text
    assert "Running" not in text


def test_what_failed_comes_first_with_the_commands_that_resolve_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Failed orders, orders in doubt, and the maintenances they hold; then what is in progress, without them."""
    paused, held = "BBBBBBBB-0000-0000-0000-000000000002", order()["maintenance_id"]
    shown = state(
        failed=page(order(), order(SECOND_ID)),
        in_doubt=page(order("CCCCCCCC-0000-0000-0000-000000000001", state="in-doubt", reason="its node is gone")),
        open=page(event(status="Started"), event(SECOND_ID, status="Started"), event("DDDDDDDD", status="Started")),
        paused=page(maintenance(held=True), maintenance(id=paused, paused=True)),
    )
    text = printed(capsys, shown)
    sections = [line for line in text.splitlines() if line.isupper() or line.startswith("IN DOUBT")]
    assert [line for line in sections if "  " not in line] == [
        "FAILED",
        "IN DOUBT: check the machines first",
        "MAINTENANCES WITH FAILURES",
        "IN PROGRESS",
        "PAUSED MAINTENANCES",
    ]
    assert text.count("to resolve one: forewarn event retry|finish|abandon EVENT") == 1
    assert text.count("to resolve one: forewarn event retry|finish|abandon CCCCCCCC") == 1
    assert "its node is gone" in text
    assert text.count("shop/web-0  rack0 ") == 3
    assert f"{held}  Held: 2 orders failed  forewarn maintenance retry-failed {held[:8]}" in text
    assert f"forewarn maintenance resume {paused[:8]}" in text
    assert text.count("DDDDDDDD") == 1
    assert text.count(SECOND_ID) == 1


def test_a_maintenance_without_an_announced_wave_says_what_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Its next wave counts. A maintenance with an announced wave, and a paused one, are shown elsewhere."""
    first = event(status="Planned", wave=1, waiting_for=[waiting("budget", "max_machines_down allows 50 machines")])
    later = event(SECOND_ID, status="Planned", wave=2, waiting_for=[waiting("wave", "wave 1 comes first")])
    text = printed(capsys, state(planned=page(later, first)))
    assert "MAINTENANCES THAT WAIT BEFORE THEIR NEXT WAVE" in text
    assert "max_machines_down allows 50 machines" in text
    assert "wave 1 comes first" not in text
    paused = maintenance(id=first["maintenance_id"], paused=True)
    for shown in ({"open": page(event())}, {"paused": page(paused)}):
        text = printed(capsys, {**state(planned=page(later, first)), **shown})
        assert "MAINTENANCES THAT WAIT" not in text


def test_the_tables_fit_a_terminal_of_100_columns() -> None:
    """No name, id or command is broken over two lines."""
    long = order(machines=["shop/web-0", "shop/web-1"], hosts=["rack1-a.dc.example"], reason="flash ended with 3")
    ids = {each: each[:8] for each in (long["id"], long["maintenance_id"])}
    shown = {"failed": page(long), "paused": page(maintenance(held=True))}
    for table in (status._unresolved([long], ids), status._held(shown, ids, "operator")):
        text = render(rich_table(*table), columns=100)
        words = {word for row in table[1] for cell in row for word in str(cell).split()}
        assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("role", ["viewer", "owner", ""])
def test_those_who_may_not_resolve_failures_get_no_commands(role: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They see what failed and what it holds."""
    shown = state(
        role, failed=page(order()), paused=page(maintenance(held=True), maintenance(id=SECOND_ID, paused=True))
    )
    text = printed(capsys, shown)
    assert "disk on fire" in text
    assert "Held: 1 order failed" in text
    assert "PAUSED MAINTENANCES" in text
    assert "forewarn " not in text


def test_failed_work_in_place_is_not_offered_a_retry(capsys: pytest.CaptureFixture[str]) -> None:
    """The service would refuse it, because the machines of the host run again."""
    in_place, evacuated = order(host="kvm-a"), order(SECOND_ID, host="kvm-b", type="Freeze", maintenance_id="M2")
    text = printed(capsys, state(failed=page(in_place, evacuated)))
    evacuation, _, rest = text.partition("FAILED WORK ON HOSTS IN PLACE: their machines run again")
    assert f"to resolve one: forewarn order retry|finish|abandon {SECOND_ID[:8]}" in evacuation
    assert f"to resolve one: forewarn order finish|abandon {in_place['id'][:8]}" in rest
    assert text.count("forewarn maintenance retry-failed") == 1
    assert "forewarn maintenance retry-failed M2" in text


def test_a_host_that_was_left_out_is_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A cordoned host of a maintenance that has ended says why; others were skipped before their turn."""
    left = {"name": "kvm-a", "cordoned": NOW, "cordoned_by": order()["maintenance_id"]}
    out = [order(host="kvm-a", state="abandoned", reason="no power"), order(SECOND_ID, host="kvm-b", state="cancelled")]
    text = printed(capsys, state(left_cordoned=[left], left_out=out))
    cordoned, _, skipped = text.partition("HOSTS LEFT OUT IN THE LAST 24 HOURS")
    assert ("kvm-a" in cordoned, "no power" in cordoned, "kvm-b" in skipped) == (True, True, True)
    assert text.count("kvm-a") == 1
