"""The plan form: it becomes a call of the API. A dry run is shown first; after the confirmation the call is made once.

The call that is confirmed is the one that was shown: the form carries a fingerprint of the preview, and a preview that has
changed is shown again.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from math import ceil
from typing import Any

import msgspec

from forewarn.core.durations import parse_duration
from forewarn.core.errors import Forbidden, ForewarnError, Invalid, Unprocessable
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.model import LABEL_GROUP, EventType, GroupBy, HostMode, OnFailure, Source
from forewarn.operator.api.bodies import CalendarWave, EventOut, MaintenanceOut, SubmittedEvent, SubmittedMaintenance
from forewarn.operator.api.client import ApiClient
from forewarn.operator.portal.page_request import PageRequest, Redirect, RenderedPage

MAX_EVENTS = 40
MAX_BLOCKERS = 20
SUGGESTIONS = 100
MAX_DIGITS = 9
ALMOST_EQUAL = timedelta(minutes=1)
CHANGED = "The plan has changed since the last preview, and nothing was saved. This is the new preview."
NOT_ACCEPTED = "Nothing was saved: tick the box that accepts the warnings, or change the plan."
DRILLS = "/v1/drills"
MACHINE_KINDS = {"restart": "Restart a machine", "redeploy": "Redeploy a machine"}
TARGETS = ("scope", "hosts", "machines", "everything")
# Each of these chooses among the machines or hosts of its target, or among all.
SELECTORS: Mapping[str, str] = {"labels": "scope", "names": "scope", "host_labels": "hosts"}
FIELDS: Mapping[str, str] = {
    "kind": "",
    "machine": "",
    "type": EventType.REBOOT,
    "target": "scope",
    "scope": "",
    "update_domain": "",
    "labels": "",
    "names": "",
    "hosts": "",
    "host_labels": "",
    "machines": "",
    "everything": "",
    "host_mode": "",
    "to_host": "",
    "return_machines": "",
    "not_before": "",
    "earliest": "",
    "not_after": "",
    "duration": "",
    "description": "",
    "source": Source.PLATFORM,
    "on_failure": OnFailure.HOLD,
    "emergency": "",
    "group_by": GroupBy.UPDATE_DOMAIN,
    "max_parallel": "",
    "canary": "",
    "bake": "",
    "max_failures": "",
    "pause_after": "",
    "windows": "",
    "drill_type": EventType.REBOOT,
    "drill_scopes": "",
    "drill_machines": "",
    "drill_hold": "",
    "drill_not_before": "",
    "drill_description": "",
}


def form(
    request: PageRequest, *, fields: Mapping[str, str] | None = None, error_message: str = "", status: int = 200
) -> RenderedPage:
    """Return the form, empty or with these fields."""
    given = fields if fields is not None else request.query
    values = {name: given.get(name, default) for name, default in FIELDS.items()}
    kinds = kinds_for(request.api)
    if not kinds:
        raise Forbidden(f"a token with the role {request.api.caller.role} cannot plan: log in with another token")
    if values["kind"] not in kinds:
        values["kind"] = next(iter(kinds))
    filled = _filled(values)
    if len(filled) == 1:
        values["target"] = filled[0]
    variables = {
        "fields": values,
        "kinds": kinds,
        "types": list(EventType),
        "drill_types": [type_ for type_, rules in EVENT_TYPES.items() if rules.one_domain_at_a_time],
        "host_modes": list(HostMode),
        "sources": list(Source),
        "failures": list(OnFailure),
        "groups": [*GroupBy, f"{LABEL_GROUP}rack"],
        "scopes": [s.name for s in request.api.get("/v1/scopes", limit=SUGGESTIONS).items],
        "machines": [f"{m.scope}/{m.name}" for m in request.api.get("/v1/machines", limit=SUGGESTIONS).items],
        "error_message": error_message,
    }
    return RenderedPage("plan.html", variables, status)


def kinds_for(api: ApiClient) -> dict[str, str]:
    """Return the kinds of plans that the caller's role allows."""
    kinds = {"maintenance": "Maintenance of many machines"} if api.may("POST", "/v1/maintenances") else {}
    kinds |= MACHINE_KINDS if api.may("POST", "/v1/scopes/{scope}/machines/{name}/restart") else {}
    return kinds | ({"drill": "Drill: machines prepare, and nothing touches them"} if api.may("POST", DRILLS) else {})


def submit(request: PageRequest) -> RenderedPage | Redirect:
    """Show the preview, show the form again, or carry out the plan, as the pressed button says."""
    fields = {name: request.form.get(name, "").strip() for name in FIELDS}
    step, key = request.form.get("step", "preview"), request.form.get("key", "")
    if step == "change":
        return form(request, fields=fields)
    try:
        path, body = _call_of(fields)
        if step == "do" and request.api.was_answered(key):
            return _carry_out(request.api, path, body, key)
        plan = request.api.call("POST", path, body, query={"dry_run": "true"})
        not_before = _requested_time(fields, "drill_not_before" if path == DRILLS else "not_before")
        earliest = _requested_time(fields, "earliest")
        fingerprint = _fingerprint(plan, (path, body), not_before, request.now)
        unchanged = fingerprint == request.form.get("seal", "")
        accepted = not plan.warnings or request.form.get("accept") == "yes"
        if step == "do" and unchanged and accepted:
            return _carry_out(request.api, path, body, key)
    except ForewarnError as error:
        return form(request, fields=fields, error_message=str(error), status=error.status)
    problem = "" if step != "do" else NOT_ACCEPTED if unchanged else CHANGED
    variables = {
        "fields": fields,
        "preview": _preview(request, plan, not_before),
        "hosts_known": any(event.hosts for wave in _waves(plan) for event in wave),
        "plan": plan,
        "not_before": not_before,
        "earliest": earliest,
        "not_after": _requested_time(fields, "not_after"),
        "key": request.api.new_key(),
        "fingerprint": fingerprint,
        "problem": problem,
    }
    return RenderedPage("plan_preview.html", variables, 409 if problem else 200)


def _carry_out(api: ApiClient, path: str, body: dict[str, Any] | None, key: str) -> Redirect:
    created = api.call("POST", path, body, key=key)
    if path == DRILLS:
        return Redirect(f"/drills/{created.id}?done=planned")
    if isinstance(created, MaintenanceOut):
        return Redirect(f"/maintenances/{created.id}?done=planned")
    return Redirect(f"/events/{created.id}?done=made")


def _fingerprint(
    plan: SubmittedMaintenance | SubmittedEvent, call: tuple[str, Any], requested: datetime | None, now: datetime
) -> str:
    """Return a hash of the preview: it changes when the call, a wave, its machines, its notice or a warning changes."""

    def notice(event: EventOut) -> str:
        notice_s = event.notice_s or 0
        # The time until a requested NotBefore shrinks all the time: that is no change.
        as_requested = requested is not None and abs(now + timedelta(seconds=notice_s) - requested) < ALMOST_EQUAL
        return "as requested" if as_requested else str(notice_s)

    waves = [[(e.scope, e.update_domain, e.resources, notice(e)) for e in wave] for wave in _waves(plan)]
    hosts = [(work.host, work.machines) for work in plan.hosts] if isinstance(plan, MaintenanceOut) else []
    return hashlib.sha256(msgspec.json.encode((call, waves, hosts, plan.warnings))).hexdigest()


def _waves(plan: MaintenanceOut | EventOut) -> list[list[EventOut]]:
    return [wave.events for wave in plan.waves] if isinstance(plan, MaintenanceOut) else [[plan]]


# -- from fields to a call


def _call_of(fields: Mapping[str, str]) -> tuple[str, dict[str, Any] | None]:
    """Return the path and the body of the call. The API checks the values."""
    kind = fields["kind"]
    if kind in MACHINE_KINDS:
        scope, slash, name = fields["machine"].partition("/")
        if not (slash and scope and name):
            raise Unprocessable("machine: write it as scope/name, like shop/web-0")
        return f"/v1/scopes/{scope}/machines/{name}/{kind}", None
    if kind == "drill":
        return DRILLS, _drill(fields)
    target = _target(fields)
    named = _names(fields[target])
    targets: dict[str, Any] = {target: named}
    if target == "everything":
        targets = {target: True}
    if target == "scope":
        targets = {"scope": named[0]} if len(named) == 1 else {"scopes": named}
        targets |= {"labels": fields["labels"], "names": _names(fields["names"])}
        if fields["update_domain"]:
            targets["update_domain"] = _number("update_domain", fields["update_domain"])
    if target == "hosts":
        targets["host_labels"] = fields["host_labels"]
    body: dict[str, Any] = {
        **{name: fields[name] for name in ("type", "source", "on_failure", "description")},
        **{name: rfc3339(fields[name]) for name in ("not_before", "earliest", "not_after") if fields[name]},
        "targets": targets,
        "emergency": bool(fields["emergency"]),
    }
    if fields["host_mode"] or fields["to_host"] or fields["return_machines"]:
        body |= {"host_mode": fields["host_mode"] or None, "to_host": fields["to_host"]}
        body["return_machines"] = bool(fields["return_machines"])
    if fields["duration"]:
        body["duration_s"] = _seconds("duration", fields["duration"])
    if strategy := _strategy(fields):
        body["strategy"] = strategy
    return "/v1/maintenances", body


def _drill(fields: Mapping[str, str]) -> dict[str, Any]:
    targets = {name: _names(fields[f"drill_{name}"]) for name in ("scopes", "machines") if fields[f"drill_{name}"]}
    if len(targets) != 1:
        raise Unprocessable("targets: name the scopes or the machines of the drill, not both")
    body: dict[str, Any] = {
        "type": fields["drill_type"],
        "targets": targets,
        "description": fields["drill_description"],
    }
    if fields["drill_not_before"]:
        body["not_before"] = rfc3339(fields["drill_not_before"])
    return body | ({"hold_s": _seconds("hold", fields["drill_hold"])} if fields["drill_hold"] else {})


def _strategy(fields: Mapping[str, str]) -> dict[str, Any]:
    strategy: dict[str, Any] = {name: fields[name] for name in ("group_by", "max_failures") if fields[name]}
    numbers = ("max_parallel", "canary", "pause_after")
    strategy |= {name: _number(name, fields[name]) for name in numbers if fields[name]}
    strategy |= {"windows": fields["windows"].replace(",", " ").split()} if fields["windows"].strip() else {}
    return strategy | ({"bake_s": _seconds("bake", fields["bake"])} if fields["bake"] else {})


def _filled(fields: Mapping[str, str]) -> list[str]:
    chosen = {target for selector, target in SELECTORS.items() if fields[selector]}
    return [target for target in TARGETS if fields[target] or target in chosen]


def _names(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _target(fields: Mapping[str, str]) -> str:
    """Return the target that is filled in, whichever is selected. Nothing that was typed is silently ignored."""
    filled = _filled(fields)
    if not filled or fields["target"] not in TARGETS:
        raise Unprocessable("targets: choose scopes, labels, hosts, machines or every machine")
    if len(filled) > 1:
        raise Unprocessable(f"targets: {' and '.join(filled)} are filled in, but only one is allowed: clear the others")
    if fields["update_domain"] and filled != ["scope"]:
        raise Unprocessable("update_domain: it needs a scope: clear it, or name the scope")
    return filled[0]


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
        raise Invalid(f"{name}: {text[:40]!r} is not a whole number of at most {MAX_DIGITS} digits")
    return int(text)


def _seconds(name: str, text: str) -> int:
    try:
        return parse_duration(text)
    except Invalid as error:
        raise Invalid(f"{name}: {error}") from None


def rfc3339(text: str) -> str:
    """Complete the value of a browser's date field, `2030-01-01T12:00`. The portal's times are UTC."""
    return f"{text}{':00' if len(text) == 16 else ''}{'' if text.endswith('Z') else 'Z'}"


def _requested_time(fields: Mapping[str, str], name: str) -> datetime | None:
    """Return a time of a maintenance or a drill, after the API has accepted it."""
    used = fields[name] and fields["kind"] == ("drill" if name.startswith("drill_") else "maintenance")
    return msgspec.convert(rfc3339(fields[name]), datetime) if used else None


# -- the preview


@dataclass(frozen=True, slots=True, kw_only=True)
class WavePreview:
    """One wave: its events on this page, and the shortest notice of all; `not_before` as far as it is known now."""

    number: int
    events: list[EventOut]
    event_count: int
    machine_count: int
    notice_s: int
    not_before: datetime | None
    calendar: CalendarWave | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPreview:
    """What the plan would do: the waves of one page, the events of `first` to `last` in all, and what blocks the plan."""

    waves: list[WavePreview]
    page: int
    page_count: int
    first: int
    last: int
    wave_count: int
    event_count: int
    machine_count: int
    blockers: list[str]


def _preview(request: PageRequest, plan: MaintenanceOut | EventOut, requested: datetime | None) -> PlanPreview:
    waves = _waves(plan)
    events = [event for wave in waves for event in wave]
    page_count = max(1, ceil(len(events) / MAX_EVENTS))
    page = min(max(1, _page_number(request.form.get("page", ""))), page_count)
    first = (page - 1) * MAX_EVENTS
    shown = events[first : first + MAX_EVENTS]
    known = plan.calendar if isinstance(plan, SubmittedMaintenance) else None
    calendar = {wave.wave: wave for wave in known.waves} if known is not None else {}
    return PlanPreview(
        waves=[
            WavePreview(
                number=number,
                events=on_page,
                event_count=len(wave),
                machine_count=_machine_count(wave),
                notice_s=(notice_s := min(event.notice_s or 0 for event in wave)),
                # The first wave is published at once; a later wave gets its notice when it is published.
                not_before=request.now + timedelta(seconds=notice_s) if number == 1 else requested,
                calendar=calendar.get(wave[0].wave),
            )
            for number, wave in enumerate(waves, 1)
            if (on_page := [event for event in shown if event.wave == wave[0].wave])
        ],
        page=page,
        page_count=page_count,
        first=min(first + 1, len(events)),
        last=first + len(shown),
        wave_count=len(waves),
        event_count=len(events),
        machine_count=_machine_count(events),
        blockers=list(islice(dict.fromkeys(r.message for e in events for r in e.waiting_for), MAX_BLOCKERS)),
    )


def _page_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else 1


def _machine_count(events: list[EventOut]) -> int:
    return sum(len(event.resources) for event in events)
