"""List, show, change and remove windows and no-go times, and extend an open window."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from forewarn.core.fleet_rules import FleetRules, NoGoTime, Window
from forewarn.core.rule_inputs import machines_bound
from forewarn.core.window_verbs import find_no_go_time, find_window
from forewarn.core.windows import StartLimits
from forewarn.operator.api import bodies
from forewarn.operator.api.context import (
    Api,
    CallContext,
    Result,
    cursor_of,
    in_utc,
    page_of,
    read_cursor,
    split_page,
)

T = TypeVar("T")


def list_windows(api: Api, context: CallContext) -> Result:
    now = api.clock.now()
    return _page(context, _visible_windows(api, context), lambda window: _window_out(window, now))


def get_window(api: Api, context: CallContext) -> Result:
    window = find_window(_visible_windows(api, context), context.path["window"])
    return Result(200, _window_out(window, api.clock.now()))


def put_window(api: Api, context: CallContext) -> Result:
    body, name = context.body, context.path["window"]
    new = name not in api.store.fleet_rules().windows
    api.control.put_window(Window(name=name, spans=tuple(body.when), zone=body.zone), context.caller.actor)
    return Result(201 if new else 200, get_window(api, context).body)


def extend_window(api: Api, context: CallContext) -> Result:
    until = in_utc(context.body.until, "until") or context.body.until
    api.control.extend_window(context.path["window"], until, context.caller.actor)
    return get_window(api, context)


def delete_window(api: Api, context: CallContext) -> Result:
    api.control.remove_window(context.path["window"], context.caller.actor)
    return Result(204)


def list_no_go_times(api: Api, context: CallContext) -> Result:
    now = api.clock.now()
    return _page(context, _visible(api, context), lambda no_go: _no_go_out(no_go, now))


def get_no_go_time(api: Api, context: CallContext) -> Result:
    no_go = find_no_go_time(_visible(api, context), context.path["no_go_time"])
    return Result(200, _no_go_out(no_go, api.clock.now()))


def put_no_go_time(api: Api, context: CallContext) -> Result:
    body, name = context.body, context.path["no_go_time"]
    no_go = NoGoTime(
        name=name,
        reason=body.reason,
        start=in_utc(body.start, "start"),
        end=in_utc(body.end, "end"),
        spans=tuple(body.when),
        zone=body.zone,
        scopes=tuple(dict.fromkeys(body.scopes)),
        labels=body.labels.strip(),
    )
    new = name not in api.store.fleet_rules().no_go_times
    api.control.put_no_go_time(no_go, context.caller.actor)
    return Result(201 if new else 200, get_no_go_time(api, context).body)


def delete_no_go_time(api: Api, context: CallContext) -> Result:
    api.control.remove_no_go_time(context.path["no_go_time"], context.caller.actor)
    return Result(204)


def _page(context: CallContext, things: Mapping[str, T], shown: Callable[[T], Any]) -> Result:
    """Return a page of the things whose names contain the text that the query searches for."""
    query = context.query
    (after,) = read_cursor(query.cursor, tuple[str]) or ("",)
    found = sorted(name for name in things if name > after and query.text in name.lower())
    page, last = split_page(found[: query.limit + 1], query.limit)
    return page_of([shown(things[name]) for name in page], cursor_of(last) if last else None)


def _window_out(window: Window, now: datetime) -> bodies.WindowOut:
    found = StartLimits(((window,),)).first_after(now, now)
    is_open = found is not None and found[0] <= now
    return bodies.WindowOut(
        name=window.name,
        when=list(window.spans),
        zone=window.zone,
        extended_until=window.extended_until,
        open=is_open,
        opens=found[0] if found is not None and not is_open else None,
        closes=found[1] if found is not None else None,
    )


def _visible_windows(api: Api, context: CallContext) -> Mapping[str, Window]:
    """Return the windows; to an owner, those of the owner's scopes."""
    windows, sees = api.store.fleet_rules().windows, context.caller.sees
    if context.caller.within is None:
        return windows
    own = {name for scope in api.store.scopes().values() if sees(scope.name) for name in scope.windows}
    return {name: window for name, window in windows.items() if name in own}


def _visible(api: Api, context: CallContext) -> dict[str, NoGoTime]:
    """Return the no-go times; to an owner, those of the whole fleet and of the owner's scopes.

    Owners do not see the labels of hosts. They see the scopes in which a no-go time with labels binds machines instead.
    """
    rules, within = api.store.fleet_rules(), context.caller.within
    if within is None:
        return dict(rules.no_go_times)
    bound = _bound_scopes(api, rules, within)
    visible = {}
    for name, no_go in rules.no_go_times.items():
        of_fleet = not no_go.scopes and not no_go.labels
        scopes = set() if of_fleet else bound.get(name, set(within)) & set(no_go.scopes or within)
        if of_fleet or scopes:
            visible[name] = replace(no_go, scopes=tuple(sorted(scopes)), labels="")
    return visible


def _bound_scopes(api: Api, rules: FleetRules, within: tuple[str, ...]) -> dict[str, set[str]]:
    """Return, for each no-go time with labels, those of these scopes in which it binds machines."""
    if not any(no_go.labels for no_go in rules.no_go_times.values()):
        return {}
    with closing(api.store.labelled_machines(within)) as machines:
        bound = machines_bound(rules, ((m.key, m.labels, m.host_labels) for m in machines))
    return {name: {scope for scope, _ in keys} for name, keys in bound.items()}


def _no_go_out(no_go: NoGoTime, now: datetime) -> bodies.NoGoTimeOut:
    return bodies.NoGoTimeOut(
        name=no_go.name,
        reason=no_go.reason,
        start=no_go.start,
        end=no_go.end,
        when=list(no_go.spans),
        zone=no_go.zone,
        scopes=list(no_go.scopes),
        labels=no_go.labels,
        active=bool(StartLimits((), (no_go,)).in_the_way(now)),
    )
