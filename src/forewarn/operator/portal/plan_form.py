"""The plan form: what was typed becomes what the API takes; first its dry run is shown, then it is asked for, once.

What is confirmed is what was shown: a seal of it goes with the form, and where it has changed it is shown again.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import msgspec

from forewarn.core.errors import Forbidden, ForewarnError, Invalid, Unprocessable
from forewarn.core.model import OPEN, EventType, OnFailure, Source
from forewarn.operator.api.bodies import EventOut, MaintenanceOut
from forewarn.operator.portal.formatting import some
from forewarn.operator.portal.visit import PageRequest, Redirect, RenderedPage
from forewarn.store import EventQuery

MAX_WAVES = 20
MAX_EVENTS = 40
SUGGESTIONS = 100
MAX_DIGITS = 9
MAX_ASKED = 20
NEARLY = timedelta(minutes=1)
USER_KINDS = {"restart": "Restart a machine", "redeploy": "Redeploy a machine"}
TARGETS = ("scope", "hosts", "machines")
FIELDS: Mapping[str, str] = {
    "kind": "",
    "machine": "",
    "type": EventType.REBOOT,
    "target": "scope",
    "scope": "",
    "update_domain": "",
    "hosts": "",
    "machines": "",
    "not_before": "",
    "earliest": "",
    "duration_s": "",
    "description": "",
    "source": Source.PLATFORM,
    "on_failure": OnFailure.HOLD,
    "emergency": "",
}


def form(
    visit: PageRequest, *, typed: Mapping[str, str] | None = None, wrong: str = "", status: int = 200
) -> RenderedPage:
    """The form, empty or as it was typed."""
    given = typed if typed is not None else visit.query
    values = {name: given.get(name, default) for name, default in FIELDS.items()}
    kinds = kinds_for(visit)
    if not kinds:
        raise Forbidden(f"a token with the role {visit.desk.caller.role} plans nothing: log in with another")
    if values["kind"] not in kinds:
        values["kind"] = next(iter(kinds))
    filled = {
        "typed": values,
        "kinds": kinds,
        "types": list(EventType),
        "sources": list(Source),
        "failures": list(OnFailure),
        "scopes": [s.name for s in visit.desk.get("/v1/scopes", limit=SUGGESTIONS).items],
        "machines": [f"{m.scope}/{m.name}" for m in visit.desk.get("/v1/machines", limit=SUGGESTIONS).items],
        "wrong": wrong,
    }
    return RenderedPage("plan.html", filled, status)


def kinds_for(visit: PageRequest) -> dict[str, str]:
    """What the visitor may plan at all."""
    own = next(iter(visit.desk.caller.within or ("any",)))
    kinds = {"maintenance": "Maintenance of many machines"} if visit.desk.may("POST", "/v1/maintenances") else {}
    return kinds | (USER_KINDS if visit.desk.may("POST", f"/v1/scopes/{own}/machines/any/restart") else {})


def sent(visit: PageRequest) -> RenderedPage | Redirect:
    """The form came: look at the plan, change it, or do it."""
    typed = {name: visit.form.get(name, "").strip() for name in FIELDS}
    step = visit.form.get("step", "look")
    if step == "change":
        return form(visit, typed=typed)
    key = visit.form.get("key", "")
    try:
        path, body = _asked(typed)
        if step == "do" and visit.desk.was_answered(key):
            return _done(visit, path, body, key)
        told = visit.desk.call("POST", path, body, query={"dry_run": "true"})
        seal = _seal(told, (path, body), _asked_moment(typed, "not_before"), visit.now)
        if step == "do" and seal == visit.form.get("seal", ""):
            return _done(visit, path, body, key)
    except ForewarnError as error:
        return form(visit, typed=typed, wrong=str(error), status=error.status)
    changed = step == "do"
    moments = {name: _asked_moment(typed, name) for name in ("not_before", "earliest")}
    filled = {
        "typed": typed,
        "plan": _plan(visit, told, moments["not_before"]),
        "asked": told,
        **moments,
        "key": visit.desk.api.new_id(),
        "seal": seal,
        "changed": changed,
    }
    return RenderedPage("looked.html", filled, 409 if changed else 200)


def _done(visit: PageRequest, path: str, body: dict[str, Any] | None, key: str) -> Redirect:
    told = visit.desk.call("POST", path, body, key=key)
    return Redirect(
        f"/maintenances/{told.id}?done=planned" if isinstance(told, MaintenanceOut) else f"/events/{told.id}?done=made"
    )


def _seal(told: MaintenanceOut | EventOut, call: tuple[str, Any], asked: datetime | None, now: datetime) -> str:
    """What was shown, in short: another as soon as what is asked, a wave, its machines or its notice is."""

    def notice(event: EventOut) -> str:
        notice_s = event.notice_s or 0
        # The way to a NotBefore that was asked for grows shorter all the time: that is no change.
        as_asked = asked is not None and abs(now + timedelta(seconds=notice_s) - asked) < NEARLY
        return "as asked" if as_asked else str(notice_s)

    shown = [[(e.scope, e.update_domain, e.resources, notice(e)) for e in wave] for wave in _waves(told)]
    return hashlib.sha256(msgspec.json.encode((call, shown))).hexdigest()


def _waves(told: MaintenanceOut | EventOut) -> list[list[EventOut]]:
    return [wave.events for wave in told.waves] if isinstance(told, MaintenanceOut) else [[told]]


def _asked(typed: Mapping[str, str]) -> tuple[str, dict[str, Any] | None]:
    """The call and its body, as the API has them: what is wrong in them is said there."""
    kind = typed["kind"]
    if kind in USER_KINDS:
        scope, slash, name = typed["machine"].partition("/")
        if not (slash and scope and name):
            raise Unprocessable("machine: write it as scope/name, like shop/web-0")
        return f"/v1/scopes/{scope}/machines/{name}/{kind}", None
    target = _target(typed)
    targets: dict[str, Any] = {target: typed[target] if target == "scope" else typed[target].replace(",", " ").split()}
    if target == "scope" and typed["update_domain"]:
        targets["update_domain"] = _number("update_domain", typed["update_domain"])
    body: dict[str, Any] = {
        **{name: typed[name] for name in ("type", "source", "on_failure", "description")},
        **{name: _moment(typed[name]) for name in ("not_before", "earliest") if typed[name]},
        "targets": targets,
        "emergency": bool(typed["emergency"]),
    }
    if typed["duration_s"]:
        body["duration_s"] = _number("duration_s", typed["duration_s"])
    return "/v1/maintenances", body


def _target(typed: Mapping[str, str]) -> str:
    """The one that is filled in, whichever is chosen; nothing that was typed is left out without a word."""
    filled = [target for target in TARGETS if typed[target]]
    if not filled or typed["target"] not in TARGETS:
        raise Unprocessable("targets: choose a scope, hosts or machines, and name them")
    if len(filled) > 1:
        raise Unprocessable(f"targets: {' and '.join(filled)} are filled in, and one is taken: empty the other")
    if typed["update_domain"] and filled != ["scope"]:
        raise Unprocessable("update_domain: it goes with a scope: empty it, or name the scope")
    return filled[0]


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
        raise Invalid(f"{name}: {text[:40]!r} is not a whole number of at most {MAX_DIGITS} digits")
    return int(text)


def _moment(text: str) -> str:
    """A browser's date field says `2030-01-01T12:00`: the portal's times are UTC."""
    return f"{text}{':00' if len(text) == 16 else ''}{'' if text.endswith('Z') else 'Z'}"


def _asked_moment(typed: Mapping[str, str], name: str) -> datetime | None:
    """For maintenance, and once the API has taken it."""
    of_use = typed[name] and typed["kind"] not in USER_KINDS
    return msgspec.convert(_moment(typed[name]), datetime) if of_use else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """`events` are the first of it, `notice_s` the least any of them gives; `not_before` as far as it is known now."""

    number: int
    events: list[EventOut]
    event_count: int
    machine_count: int
    notice_s: int
    not_before: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would happen; `waves` are the first of them, `in_the_way` what others have under way there."""

    waves: list[Wave]
    wave_count: int
    event_count: int
    machine_count: int
    without_notice: int
    in_the_way: list[str]


def _plan(visit: PageRequest, told: MaintenanceOut | EventOut, asked: datetime | None) -> Plan:
    waves = _waves(told)
    events = [event for wave in waves for event in wave]
    each = MAX_EVENTS // min(len(waves), MAX_WAVES) or 1
    return Plan(
        waves=[
            Wave(
                number=number,
                events=wave[:each],
                event_count=len(wave),
                machine_count=_machines(wave),
                notice_s=(notice_s := min(event.notice_s or 0 for event in wave)),
                # The first is published at once; a later one gets its notice when it is.
                not_before=visit.now + timedelta(seconds=notice_s) if number == 1 else asked,
            )
            for number, wave in enumerate(waves[:MAX_WAVES], 1)
        ],
        wave_count=len(waves),
        event_count=len(events),
        machine_count=_machines(events),
        without_notice=sum(not event.notice_s for event in events),
        in_the_way=_in_the_way(visit, events),
    )


def _in_the_way(visit: PageRequest, events: list[EventOut]) -> list[str]:
    """What would be waited for, then what is open for the same machines already."""
    messages = list(islice(dict.fromkeys(r.message for e in events for r in e.waiting_for), MAX_WAVES))
    names: dict[str, set[str]] = {}
    for event in events:
        names.setdefault(event.scope, set()).update(event.resources)
    machines = [(scope, name) for scope, found in sorted(names.items()) for name in sorted(found)]
    asked = machines if len(machines) <= MAX_ASKED else [(scope, "") for scope in sorted(names)[:MAX_ASKED]]
    known = {}
    for scope, machine in asked:
        query = EventQuery(scope=scope, machine=machine, statuses=OPEN, within=visit.desk.caller.within)
        known.update({event.id: event for event in visit.desk.api.store.events(query).events})
    for one in known.values():
        shared = sorted(names[one.scope].intersection(one.resources))
        if shared and not any(one.id in message for message in messages):
            messages.append(f"{some(shared)} in {one.scope}: event {one.id} is {str(one.status).lower()} already")
    return messages[:MAX_WAVES]


def _machines(events: list[EventOut]) -> int:
    return sum(len(event.resources) for event in events)
