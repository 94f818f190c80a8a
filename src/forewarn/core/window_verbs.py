"""The verbs on windows and no-go times. Each is a function from a Snapshot with the fleet's rules to a Change.

The store wakes every open maintenance when a rule changes, so that the next tick decides by the new rules.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import Invalid, NotFound, Refused
from forewarn.core.fast_init import replace
from forewarn.core.fleet_rules import FleetRules, NoGoTime, Window
from forewarn.core.formatting import full_time, names
from forewarn.core.model import Actor, AuditEntry, Scope
from forewarn.core.windows import window_times

MAX_EXTENSION = timedelta(days=7)


def put_window(snapshot: Snapshot, window: Window, *, now: datetime, actor: Actor) -> Change:
    """Add a window, or change its times. An extension ends with the times that it extended."""
    rules = snapshot.fleet_rules
    known = rules.windows.get(window.name)
    if known is not None and (known.spans, known.zone) == (window.spans, window.zone):
        return Change(at=now)
    detail = f"{window.name}: {', '.join(window.spans)} {window.zone}"
    action = "window added" if known is None else "window changed"
    return _change(replace(rules, windows={**rules.windows, window.name: window}), action, detail, now, actor)


def remove_window(snapshot: Snapshot, name: str, used_by: Collection[str], *, now: datetime, actor: Actor) -> Change:
    """Remove a window; `used_by` names the scopes and open maintenances that would never start without it."""
    rules = snapshot.fleet_rules
    window = find_window(rules.windows, name)
    if used_by:
        raise Refused(
            f"window {name} is used by {names(sorted(used_by))}: take it from a scope with `forewarn scope set`;"
            " wait until a maintenance has ended, or cancel it"
        )
    left = {each: row for each, row in rules.windows.items() if row is not window}
    return _change(replace(rules, windows=left), "window removed", name, now, actor)


def extend_window(snapshot: Snapshot, name: str, until: datetime, *, now: datetime, actor: Actor) -> Change:
    """Keep an open window open for longer."""
    rules = snapshot.fleet_rules
    window = find_window(rules.windows, name)
    closing = next((end for begin, end in window_times(window, now, now) if begin <= now < end), None)
    if closing is None:
        raise Refused(f"window {name} is not open now: only an open window can be extended")
    if not closing < until <= now + MAX_EXTENSION:
        raise Invalid(
            f"window {name} closes at {full_time(closing)}: extend it to a later time, within the next"
            f" {MAX_EXTENSION.days} days"
        )
    extended = replace(window, extended_until=until)
    changed = replace(rules, windows={**rules.windows, name: extended})
    return _change(changed, "window extended", f"{name}: until {full_time(until)}", now, actor)


def put_no_go_time(
    snapshot: Snapshot, no_go: NoGoTime, scopes: Collection[str], *, now: datetime, actor: Actor
) -> Change:
    """Add a no-go time, or change it; `scopes` are all that exist.

    A wave that was announced for this time is cancelled and planned again.
    """
    rules = snapshot.fleet_rules
    known = rules.no_go_times.get(no_go.name)
    if known == no_go:
        return Change(at=now)
    for scope in no_go.scopes:
        if scope not in scopes:
            raise NotFound(f"no-go time {no_go.name}: there is no scope {scope!r}: check the name in the fleet")
    if no_go.end is not None and no_go.end <= now:
        raise Refused(f"no-go time {no_go.name} has passed: it would end at {full_time(no_go.end)}")
    action = "no-go time added" if known is None else "no-go time changed"
    changed = replace(rules, no_go_times={**rules.no_go_times, no_go.name: no_go})
    return _change(changed, action, f"{no_go.name}: {no_go.reason}", now, actor)


def remove_no_go_time(snapshot: Snapshot, name: str, *, now: datetime, actor: Actor) -> Change:
    rules = snapshot.fleet_rules
    find_no_go_time(rules.no_go_times, name)
    left = {each: row for each, row in rules.no_go_times.items() if each != name}
    return _change(replace(rules, no_go_times=left), "no-go time removed", name, now, actor)


def find_window(windows: Mapping[str, Window], name: str) -> Window:
    if name not in windows:
        raise NotFound(f"there is no window {name!r}: `forewarn window list` shows them")
    return windows[name]


def find_no_go_time(no_go_times: Mapping[str, NoGoTime], name: str) -> NoGoTime:
    if name not in no_go_times:
        raise NotFound(f"there is no no-go time {name!r}: `forewarn no-go list` shows them")
    return no_go_times[name]


def refuse_unknown_windows(rules: FleetRules, scopes: Iterable[Scope]) -> None:
    """Refuse scopes with a window that does not exist: nothing could start in them."""
    for scope in scopes:
        for name in scope.windows:
            if name not in rules.windows:
                nearest = difflib.get_close_matches(name, rules.windows, n=1)
                meant = f"; did you mean {nearest[0]}? If not," if nearest else ":"
                raise Invalid(
                    f"scope {scope.name}: windows: there is no window {name!r}{meant} run"
                    f" `forewarn window add {name} --when SPAN` first (if no service runs, start it without this window)"
                )


def _change(rules: FleetRules, action: str, detail: str, now: datetime, actor: Actor) -> Change:
    entry = AuditEntry(at=now, who=actor.name, origin=actor.origin, action=action, detail=detail)
    return Change(at=now, fleet_rules=rules, audit=(entry,))
