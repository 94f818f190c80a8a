"""What windows and no-go times hold back: the publication and the start of a wave.

They bind Platform Freeze, Reboot and Redeploy without emergency. A wave is published once its window begins within the notice
that it must give, so that guests prepare no earlier than needed. It starts only inside the window. If the window closes
first, the wave is cancelled and planned again (see `advance`).
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta

from forewarn.core.approvals import approved
from forewarn.core.change import Snapshot
from forewarn.core.draft import Draft
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.fast_init import replace
from forewarn.core.fleet_rules import FleetRules, NoGoTime, Window
from forewarn.core.formatting import full_time
from forewarn.core.model import UNSTARTED, Actor, Event, Maintenance, Scope, Source
from forewarn.core.planning import due_notice_s, publication
from forewarn.core.reason import Waiting, wait_until
from forewarn.core.weekly_times import Interval
from forewarn.core.windows import HORIZON, StartLimits, no_go_intervals

# A reason names at most this many no-go times.
MAX_NAMED_NO_GO_TIMES = 3


def limits_of(draft: Draft, maintenance: Maintenance, wave: Iterable[Event]) -> StartLimits | None:
    """Return what limits the start of the wave; None if nothing does."""
    if not draft.may_limit_starts and not maintenance.strategy.windows:
        return None
    rules, events = draft.before.fleet_rules, list(wave)
    choices = _choices(draft, maintenance, events)
    bound = [event for event in events if event.one_domain_at_a_time]
    no_go_times = tuple(n for n in rules.no_go_times.values() if any(_binds(draft, n, e) for e in bound))
    if not choices and not no_go_times:
        return None
    return StartLimits(tuple(_windows(rules, names) for names in choices), no_go_times)


def _choices(draft: Draft, maintenance: Maintenance, wave: Iterable[Event]) -> dict[tuple[str, ...], set[str]]:
    """Return sets of window names, each with the scopes that require it. One window of every set must be open."""
    choices: dict[tuple[str, ...], set[str]] = {}
    bound = [event for event in wave if event.one_domain_at_a_time]
    for event in bound:
        scope = draft.scopes.get(event.scope) or draft.before.other_scopes.get(event.scope)
        if names := _windows_of(scope, event):
            choices.setdefault(names, set()).add(event.scope)
    if bound and maintenance.strategy.windows:
        choices.setdefault(maintenance.strategy.windows, set()).update(event.scope for event in bound)
    return choices


def _windows_of(scope: Scope | None, event: Event) -> tuple[str, ...]:
    """Return the names of the windows that the scope sets for the event."""
    if scope is None or (scope.approval_opens_window and approved(event)):
        return ()
    return scope.windows


def _windows(rules: FleetRules, names: Iterable[str]) -> tuple[Window, ...]:
    """Return the windows with these names. A window that does not exist is never open."""
    return tuple(rules.windows[name] for name in names if name in rules.windows)


def _binds(draft: Draft, no_go: NoGoTime, event: Event) -> bool:
    """Whether the no-go time concerns a machine of the event."""
    if no_go.scopes and event.scope not in no_go.scopes:
        return False
    bound = draft.before.no_go_machines.get(no_go.name, frozenset())
    return not no_go.labels or any((event.scope, name) in bound for name in event.resources)


def may_limit(rules: FleetRules, maintenance: Maintenance, scopes: Collection[Scope] | None, now: datetime) -> bool:
    """Whether windows or no-go times may limit the starts of waves in these scopes; None stands for unknown scopes."""
    if not EVENT_TYPES[maintenance.type].one_domain_at_a_time or maintenance.source is Source.USER:
        return False
    no_go_times = [no_go for no_go in rules.no_go_times.values() if no_go.end is None or no_go.end > now]
    if scopes is None:
        return not maintenance.emergency and bool(rules.windows or no_go_times)
    named = {scope.name for scope in scopes}
    windows = maintenance.strategy.windows or any(scope.windows for scope in scopes)
    bound = any(not no_go.scopes or not named.isdisjoint(no_go.scopes) for no_go in no_go_times)
    return not maintenance.emergency and bool(windows or bound)


def starts_of_waves(
    snapshot: Snapshot, maintenance: Maintenance, events: Iterable[Event], now: datetime
) -> Callable[[int, datetime], datetime | None]:
    """Return a function of a wave and a time: the first moment, not before this time, at which the wave may start.

    The function returns None if windows and no-go times leave the wave no time.
    """
    draft = Draft(snapshot, now, Actor("reader"))
    waves: dict[int, list[Event]] = defaultdict(list)
    for event in (each for each in events if each.status in UNSTARTED):
        waves[event.wave].append(event)

    def start_of(wave: int, wanted: datetime) -> datetime | None:
        limits = limits_of(draft, maintenance, waves[wave])
        found = limits.first_after(wanted, wanted) if limits is not None else (wanted, wanted)
        return max(wanted, found[0]) if found is not None else None

    return start_of


def window_publication_waits(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Waiting]:
    """Hold back a planned wave until its window begins within the notice that it must give, by trusted time."""
    limits = limits_of(draft, maintenance, wave)
    if limits is None:
        return []
    now, wanted = _latest_now(draft, wave), _wanted(draft, maintenance, wave)
    found = limits.first_after(now, wanted)
    notice = timedelta(seconds=due_notice_s(wave, draft.scopes) or 0)
    until = found[0] - notice if found is not None else now + HORIZON
    if until <= max(draft.trusted_in(event.scope) for event in wave):
        return []
    wait = _reason(draft, maintenance, wave, limits, wanted, None, found)
    return wait_until(wait, until, now, draft.before.hold)


def without_a_time(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Waiting]:
    """Return the wait of a planned wave to which windows and no-go times leave no time: only an operator can change that."""
    limits = limits_of(draft, maintenance, wave)
    if limits is None or first_start(draft, maintenance, wave) is not None:
        return []
    return window_publication_waits(draft, maintenance, wave)


def window_start_waits(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Waiting]:
    """Hold back a published wave while its window is closed, by the clock or by trusted time."""
    limits = limits_of(draft, maintenance, wave)
    if limits is None:
        return []
    moments = {clock(e.scope) for e in wave for clock in (draft.now_in, draft.trusted_in)}
    closed = [moment for moment in sorted(moments) if not limits.allow(moment)]
    if not closed:
        return []
    now = _latest_now(draft, wave)
    found = limits.first_after(now, now)
    until = found[0] if found is not None else now + HORIZON
    until_then = until if until > now else None
    return [_reason(draft, maintenance, wave, limits, closed[-1], until_then, found, is_published=True)]


def first_start(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> datetime | None:
    """Return the first moment inside its window at which a wave can start after its notice; None if there is none."""
    limits = limits_of(draft, maintenance, wave)
    found = limits.first_after(_latest_now(draft, wave), _wanted(draft, maintenance, wave)) if limits else None
    return found[0] if found is not None else None


def why_missed(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> str:
    """Return why the wave cannot start in the window for which it was published, or ""."""
    limits = limits_of(draft, maintenance, wave)
    if limits is None:
        return ""
    trusted = min(draft.trusted_in(e.scope) for e in wave)
    not_before = max([trusted, *(e.not_before for e in wave if e.not_before is not None)])
    found = limits.first_after(trusted, trusted)
    if found is not None and found[0] <= not_before:
        return ""
    # No name: the owners of every scope of the wave read this, and a no-go time may be that of another scope.
    if limits.in_the_way(not_before):
        return "it cannot start in a no-go time"
    return "its window closed before it could start"


def closing_time(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> datetime | None:
    """Return when the window of a published wave closes, if a window limits the wave."""
    limits = limits_of(draft, maintenance, wave)
    if limits is None:
        return None
    now = _latest_now(draft, wave)
    found = limits.first_after(now, now)
    return found[1] if found is not None else None


def missed_windows(snapshot: Snapshot, rules: FleetRules, scopes: Iterable[Scope], now: datetime) -> tuple[str, ...]:
    """Return warnings about open maintenances that can no longer start in scopes that get other windows.

    `scopes` have the new windows; `snapshot` was read before the change.
    """
    known = snapshot.scopes
    changed = {s.name: s for s in scopes if s.windows and s.name in known and s.windows != known[s.name].windows}
    draft = Draft(replace(snapshot, fleet_rules=rules, scopes={**known, **changed}), now, Actor("reader"))
    unstarted: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in snapshot.events.values():
        if event.scope in changed and event.status in UNSTARTED:
            unstarted[event.maintenance_id, event.scope].append(event)
    warnings = []
    for (maintenance_id, name), events in sorted(unstarted.items()):
        maintenance = draft.maintenances[maintenance_id]
        limits, not_after = limits_of(draft, maintenance, events), maintenance.not_after
        if limits is None:
            continue
        found = limits.first_after(now, now)
        if found is not None and (not_after is None or found[0] < not_after):
            continue
        deadline = f" before not_after ({full_time(not_after)})" if found is not None and not_after is not None else ""
        text = f"maintenance {maintenance_id} cannot start in scope {name} with these windows"
        warnings.append(f"{text}: windows and no-go times leave it no time{deadline}")
    return tuple(warnings)


def _latest_now(draft: Draft, wave: Iterable[Event]) -> datetime:
    return max(draft.now_in(e.scope) for e in wave)


def _wanted(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> datetime:
    """Return when the wave would start at the earliest if no window limited it."""
    published_now = publication(maintenance, wave, draft.scopes, draft.now_in)
    moments = [each.not_before for each in published_now.values()]
    return max([*moments, *([maintenance.earliest] if maintenance.earliest is not None else [])])


def _reason(
    draft: Draft,
    maintenance: Maintenance,
    wave: list[Event],
    limits: StartLimits,
    moment: datetime,
    until: datetime | None,
    found: Interval | None,
    *,
    is_published: bool = False,
) -> Waiting:
    # The time until which it waits follows the message.
    no_go_times = limits.in_the_way(moment)[:MAX_NAMED_NO_GO_TIMES]
    never = ", and its windows and no-go times leave no other time" if found is None else ""
    if no_go_times:
        named = "; ".join(_no_go_text(no_go, moment) for no_go in no_go_times)
        waits = "; it is not announced" if not is_published else "; it waits" if until is not None else ""
        message = f"nothing may start during a no-go time: {named}{never or waits}"
        rules_of = tuple(scopes for no_go in no_go_times if (scopes := _scopes_of(draft, no_go, wave)))
        return Waiting(code="no-go", message=message, until=until, rules_of=rules_of)
    windows = " and ".join(" or ".join(w.name for w in choice) or "a removed window" for choice in limits.windows)
    rules_of = tuple(tuple(sorted(scopes)) for scopes in _choices(draft, maintenance, wave).values())
    opens = ", which is closed" if until is not None else ""
    if found is not None and not is_published:
        opens = f", which opens at {full_time(found[0])}, and is not announced"
    return Waiting(
        code="window", message=f"it waits for its window ({windows}){never or opens}", until=until, rules_of=rules_of
    )


def _no_go_text(no_go: NoGoTime, moment: datetime) -> str:
    """Return the name of a no-go time that lasts at this moment, its reason, and when it ends."""
    end = max(end for begin, end in no_go_intervals(no_go, moment, moment) if begin <= moment < end)
    return f"{no_go.name} ({no_go.reason}) until {full_time(end)}"


def _scopes_of(draft: Draft, no_go: NoGoTime, wave: Iterable[Event]) -> tuple[str, ...]:
    """Return the scopes whose owners may learn the no-go time; none if it binds the whole fleet."""
    if not no_go.labels:
        return no_go.scopes
    return tuple(sorted({event.scope for event in wave if _binds(draft, no_go, event)}))
