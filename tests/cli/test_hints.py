"""Hints: what each role can do about each reason to wait; each hint is allowed to the role, and it helps."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from forewarn.cli.hints import event_hints, hint, host_hint, maintenance_hints
from forewarn.core.change import Change
from forewarn.core.model import Actor, ClockHold
from forewarn.core.operator_model import Role
from forewarn.core.order_verbs import Unknown
from forewarn.operator.api.calls import CALLS
from tests.cli import api_bodies
from tests.cli.api_bodies import FIRST_ID, SECOND_ID, event, maintenance
from tests.support.running_service import FLEET, START, RunningService, running_service
from tests.support.waiting_codes import CODES

MAINTENANCE_ID = event()["maintenance_id"]
APPROVE = f"forewarn event approve {FIRST_ID}"
RETRY = f"forewarn event retry {FIRST_ID}"
NOTHING: dict[str, str] = {}
# By code and role, the command that is suggested. An owner approves events of the own scopes, and decides nothing else.
TABLE: dict[str, dict[str, str]] = {
    "approval": {Role.OPERATOR: APPROVE, Role.OWNER: APPROVE},
    "bake": NOTHING,
    "budget": {Role.OPERATOR: "forewarn budget show"},
    "clock": {Role.OPERATOR: "forewarn clock confirm"},
    "continue": {Role.OPERATOR: f"forewarn maintenance continue {MAINTENANCE_ID}"},
    "drill": NOTHING,
    "earlier-host": NOTHING,
    "earlier-wave": NOTHING,
    "earliest": NOTHING,
    "executor": NOTHING,
    "failures": {Role.OPERATOR: f"forewarn event retry {SECOND_ID}"},
    "host-busy": NOTHING,
    "host-not-empty": NOTHING,
    "host-work": NOTHING,
    "in-doubt": {Role.OPERATOR: RETRY},
    "machine": NOTHING,
    "no-go": NOTHING,
    "no-target": {Role.OPERATOR: "forewarn host uncordon HOST"},
    "notice": NOTHING,
    "order-failed": {Role.OPERATOR: RETRY},
    "paused": {Role.OPERATOR: f"forewarn maintenance resume {MAINTENANCE_ID}"},
    "queue": NOTHING,
    "requested-start": NOTHING,
    "store-held": {Role.OPERATOR: "forewarn db resume"},
    "ticker": NOTHING,
    "unresolved": {Role.OPERATOR: f"forewarn event retry {SECOND_ID}"},
    "update-domain": NOTHING,
    "wave": NOTHING,
    "window": NOTHING,
}
# The call of the API that each command makes.
CALL_OF = {
    "budget show": "/v1/budget",
    "event approve": "/v1/events/{id}/approve",
    "event abandon": "/v1/events/{id}/abandon",
    "event retry": "/v1/events/{id}/retry",
    "maintenance resume": "/v1/maintenances/{id}/resume",
    "maintenance continue": "/v1/maintenances/{id}/continue",
    "order retry": "/v1/orders/{id}/retry",
    "maintenance retry-failed": "/v1/maintenances/{id}/retry-failed",
    "clock confirm": "/v1/clock/confirm",
    "host uncordon": "/v1/hosts/{host}/uncordon",
    "db resume": "/v1/store/resume",
}


def reason(code: str) -> dict[str, Any]:
    """A reason of an event; it is about other machines, and other events where it names any."""
    others = {
        "unresolved": [SECOND_ID],
        "failures": [SECOND_ID],
        "wave": [SECOND_ID],
        "machine": [SECOND_ID],
        "queue": [SECOND_ID],
    }
    return api_bodies.waiting(code, "…", machines=["web-0"], events=others.get(code, []))


def commands(text: str) -> list[str]:
    return re.findall(r"`(forewarn [^`]+)`", text)


def roles_of(command: str) -> frozenset[Role]:
    """The roles that may make the call of a command."""
    path = CALL_OF[" ".join(command.split()[1:3])]
    method = "GET" if "show" in command else "POST"
    (call,) = [each for each in CALLS if (each.method, each.path) == (method, path)]
    return frozenset(call.roles)


def test_the_table_has_every_code() -> None:
    """A new reason to wait must say what each role can do about it."""
    assert set(TABLE) == CODES


@pytest.mark.parametrize("code", TABLE)
@pytest.mark.parametrize("role", [*Role, ""])
def test_what_a_role_is_told_about_a_reason(code: str, role: str) -> None:
    """The command of the table or none; every command that is suggested may be run by the role."""
    text = hint(event(), reason(code), role)
    wanted = TABLE[code].get(role)
    assert commands(text) == ([wanted] if wanted else [])
    assert bool(text) == bool(wanted)
    assert all(role in roles_of(command) for command in commands(text))


def test_a_pause_after_a_wave_has_one_hint() -> None:
    """`needs_operator` names it too."""
    waits = maintenance(awaits_continue=True, needs_operator=[api_bodies.waiting("continue", "…")])
    (line,) = maintenance_hints(waits, Role.OPERATOR)
    assert commands(line) == [f"forewarn maintenance continue {MAINTENANCE_ID}"]


def test_the_events_that_use_a_budget_are_named() -> None:
    """The failed ones come first, as in the API."""
    used = api_bodies.waiting("budget", "…", events=[SECOND_ID, FIRST_ID])
    assert hint(event(), used, Role.OPERATOR) == (
        f"run `forewarn budget show` to see what is down, and `event why` for the events {SECOND_ID} {FIRST_ID}"
    )


@pytest.mark.parametrize("code", ["order-failed", "in-doubt", "unresolved", "failures"])
def test_a_failed_host_is_resolved_by_its_order(code: str) -> None:
    """The order of a host has an id of its own, and no event."""
    failed = api_bodies.waiting(code, "…", orders=[SECOND_ID])
    assert commands(hint(event(), failed, Role.OPERATOR)) == [f"forewarn order retry {SECOND_ID}"]
    assert hint(event(), failed, Role.VIEWER) == ""
    held = maintenance(failed_hosts=1, held=True, needs_operator=[failed])
    assert maintenance_hints(held, Role.OPERATOR) == [hint(event(), failed, Role.OPERATOR)]
    both = maintenance(failed_hosts=2, held=True, needs_operator=[failed])
    assert "retry-failed" in maintenance_hints(both, Role.OPERATOR)[0]


def test_failed_work_in_place_is_not_retried() -> None:
    """Its machines run again, so a retry would be refused; an order in doubt can be retried."""
    failed = api_bodies.waiting("order-failed", "…", orders=[SECOND_ID])
    host = {"host": "kvm-a", "order_id": SECOND_ID, "state": "failed", "waiting_for": [failed]}
    held = maintenance(host_mode="in-place", failed_hosts=2, held=True, needs_operator=[failed], hosts=[host])
    found = [command for line in maintenance_hints(held, Role.OPERATOR) for command in commands(line)]
    assert found == [f"forewarn order finish {SECOND_ID}", "forewarn host uncordon kvm-a"]
    doubtful = {**held, "needs_operator": [api_bodies.waiting("in-doubt", "…", orders=[SECOND_ID])]}
    assert f"forewarn order retry {SECOND_ID}" in maintenance_hints(doubtful, Role.OPERATOR)[0]


def test_a_held_maintenance_names_the_ways_out() -> None:
    """Retry all, abandon the events that failed, or leave the host out."""
    failed = [api_bodies.waiting("order-failed", "…", events=[each]) for each in (FIRST_ID, SECOND_ID)]
    host = {"host": "kvm-a", "order_id": "O", "state": "planned", "waiting_for": []}
    held = maintenance(progress=api_bodies.progress(failed=2), held=True, needs_operator=failed, hosts=[host])
    assert [command for line in maintenance_hints(held, Role.OPERATOR) for command in commands(line)] == [
        f"forewarn maintenance retry-failed {MAINTENANCE_ID}",
        f"forewarn event abandon {FIRST_ID} {SECOND_ID}",
        f"forewarn maintenance skip-host {MAINTENANCE_ID} kvm-a",
        "forewarn host uncordon kvm-a",
    ]


def test_open_work_on_a_host_says_what_moves_it() -> None:
    """An operator takes it, or first clears the host; an order that is not open needs nothing."""
    host = {
        "host": "kvm-a", "order_id": SECOND_ID, "state": "open", "waiting_for": [reason("executor")], "executor": "external",
    }  # fmt: skip
    assert commands(host_hint(host)) == [f"forewarn order start {SECOND_ID}", f"forewarn order finish {SECOND_ID}"]
    assert host_hint({**host, "executor": "command"}) == ""
    assert maintenance_hints(maintenance(hosts=[host]), Role.OPERATOR) == [host_hint(host)]
    assert maintenance_hints(maintenance(hosts=[host]), Role.VIEWER) == []
    occupied = {**host, "waiting_for": [reason("host-not-empty")]}
    assert host_hint(occupied) == "stop or move what runs on host kvm-a: its work can begin then"
    assert host_hint({**host, "state": "running"}) == ""


def test_an_owner_is_not_told_to_approve_for_operators() -> None:
    """In a scope with approval = operator the reason names no machine, and an owner may not approve."""
    assert hint(event(), api_bodies.waiting("approval", "an operator has not approved"), Role.OWNER) == ""


def test_each_hint_is_given_once() -> None:
    """Two reasons with the same remedy make one hint."""
    twice = event(waiting_for=[reason("unresolved"), reason("earlier-wave"), reason("unresolved")])
    assert len(event_hints(twice, Role.OPERATOR)) == 1
    assert event_hints(twice, Role.VIEWER) == []


def test_several_failures_are_retried_together() -> None:
    """Only where more than one order failed, and only for operators."""
    held = event(waiting_for=[api_bodies.waiting("unresolved", "…", events=[FIRST_ID, SECOND_ID])])
    found = [command for line in event_hints(held, Role.OPERATOR, failed=2) for command in commands(line)]
    assert found == [f"forewarn maintenance retry-failed {MAINTENANCE_ID}", RETRY]
    assert len(event_hints(held, Role.OPERATOR, failed=1)) == 1
    assert event_hints(held, Role.VIEWER, failed=2) == []


def test_the_hints_of_a_maintenance() -> None:
    """Failures are retried together, a pause is ended, and a hold or a doubt is resolved by its own command."""
    needs = [
        api_bodies.waiting("order-failed", "…", events=[FIRST_ID]),
        api_bodies.waiting("in-doubt", "…", events=[SECOND_ID]),
    ]
    held = maintenance(progress=api_bodies.progress(failed=1, in_doubt=1), paused=True, needs_operator=needs)
    found = [command for line in maintenance_hints(held, Role.OPERATOR) for command in commands(line)]
    assert found == [
        f"forewarn maintenance retry-failed {MAINTENANCE_ID}",
        f"forewarn maintenance resume {MAINTENANCE_ID}",
        f"forewarn event abandon {FIRST_ID[:8]}",
        f"forewarn event retry {SECOND_ID}",
    ]
    assert all(Role.OPERATOR in roles_of(command) for command in found)
    assert maintenance_hints(held, Role.OWNER) == maintenance_hints(held, Role.VIEWER) == []
    assert maintenance_hints(maintenance(), Role.OPERATOR) == []


# -- that the suggested commands help


def failed(service: RunningService, event_id: str) -> None:
    service.post(f"/v1/events/{event_id}/approve")
    service.post("/v1/clock/advance", {"seconds": 1})
    service.post(f"/v1/orders/{event_id}/fail", {"reason": "no power"})


def doubtful(service: RunningService, event_id: str) -> None:
    service.post(f"/v1/events/{event_id}/approve")
    service.post("/v1/clock/advance", {"seconds": 1})
    service.post(f"/v1/orders/{event_id}/start")
    service.control.report_order(event_id, Unknown("its node is gone"), Actor("ticker"))


def blocked(service: RunningService, event_id: str) -> None:
    """Let the order of an event in another update domain fail."""
    failed(service, service.schedule("shop/web-1")["waves"][0]["events"][0]["id"])
    service.post(f"/v1/events/{event_id}/approve")


def held_clock(service: RunningService, _: str) -> None:
    hold = ClockHold(trusted=START, noticed=START, jumped_s=3_600)
    service.service.store.apply(Change(at=START, hold=hold))
    service.post("/v1/clock/advance", {"seconds": 3_600})


def pausing(service: RunningService, event_id: str) -> str:
    """Let a maintenance pause after its first wave; return the event that waits."""
    return _second_wave(service, event_id, {"pause_after": 1}, "finish", {})


def failing(service: RunningService, event_id: str) -> str:
    """Let a maintenance hold at its first failure; return the event that waits."""
    return _second_wave(service, event_id, {"max_failures": "1"}, "fail", {"reason": "no power"})


def _second_wave(
    service: RunningService, event_id: str, strategy: dict[str, object], verb: str, body: dict[str, object]
) -> str:
    service.post(f"/v1/events/{event_id}/cancel")
    made = service.schedule("shop/web-0", "shop/web-1", strategy=strategy, on_failure="continue")
    first, second = (wave["events"][0]["id"] for wave in made["waves"])
    service.post(f"/v1/events/{first}/approve")
    service.post("/v1/clock/advance", {"seconds": 1})
    service.post(f"/v1/orders/{first}/{verb}", body)
    service.post("/v1/clock/advance", {"seconds": 1})
    return str(second)


TROUBLE: dict[str, Callable[[RunningService, str], object]] = {
    "approval": lambda service, event_id: None,
    "clock": held_clock,
    "continue": pausing,
    "failures": failing,
    "in-doubt": doubtful,
    "order-failed": failed,
    "paused": lambda s, e: s.post(f"/v1/maintenances/{s.get(f'/v1/events/{e}')['maintenance_id']}/pause"),
    "store-held": lambda service, _: service.post("/v1/store/hold"),
    "unresolved": blocked,
}


def test_an_uncordoned_host_ends_the_wait_for_one() -> None:
    """The events that were not announced are announced then, and an owner does not learn about hosts."""
    rows = "".join(f'[[hosts]]\nname = "{name}"\n' for name in ("rack1-a", "rack1-b"))
    with running_service(FLEET + rows) as service:
        service.enable("shop", "blog")
        service.post("/v1/hosts/rack1-b/cordon")
        request = {"type": "Freeze", "targets": {"hosts": ["rack1-a"]}, "host_mode": "evacuate"}
        made = service.post("/v1/maintenances", request, 201)
        assert (made["waves"], made["hosts"][0]["waiting_for"][0]["code"]) == ([], "no-target")
        ((_, *command, _),) = [line.split() for line in commands(maintenance_hints(made, Role.OPERATOR)[0])]
        service.post(CALL_OF[" ".join(command)].replace("{host}", "rack1-b"))
        service.post("/v1/clock/advance", {"seconds": 1})
        shown = service.get(f"/v1/maintenances/{made['id']}")
        assert [event["status"] for event in shown["waves"][0]["events"]] == ["Scheduled", "Scheduled"]
        service.post("/v1/hosts/rack1-b/cordon")
        path = f"/v1/events/{shown['waves'][0]['events'][0]['id']}"
        (reason,) = [each for each in service.get(path)["waiting_for"] if each["code"] == "no-target"]
        assert reason["message"].startswith("its machines can go to no host: every other host is cordoned")
        owned = service.get(path, token=service.token_of("owner", "shop", "blog"))["waiting_for"]
        assert "it waits for something outside your scopes" in [each["message"] for each in owned]


# What is suggested about these two shows more, or depends on hosts: it does not end the wait by itself.
OF_OTHER_KIND = ("budget", "no-target")


@pytest.mark.parametrize("code", [code for code, by_role in TABLE.items() if by_role and code not in OF_OTHER_KIND])
def test_the_suggested_command_ends_the_wait(code: str) -> None:
    """After the call that the command makes, the event no longer waits for that reason."""
    with running_service() as service:
        service.enable("shop", "blog")
        event_id = service.schedule("shop/web-0")["waves"][0]["events"][0]["id"]
        other_event = TROUBLE[code](service, event_id)
        event_id = other_event if isinstance(other_event, str) else event_id
        shown = service.get(f"/v1/events/{event_id}")
        (found,) = [each for each in shown["waiting_for"] if each["code"] == code]
        ((_, noun, verb, *names),) = [line.split() for line in commands(hint(shown, found, Role.OPERATOR))]
        path = CALL_OF[f"{noun} {verb}"].replace("{id}", names[0] if names else "")
        body = {"held": service.get("/v1/store")["held"]["held"]} if code == "store-held" else None
        service.post(path, body)
        assert code not in [each["code"] for each in service.get(f"/v1/events/{event_id}")["waiting_for"]]
