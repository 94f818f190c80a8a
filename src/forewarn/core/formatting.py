"""Text for people: times, durations, names, and why an event waits. The command line and the portal both use it.

Times are UTC and say so with a Z. Durations have their two largest units: `2h 5m`. The
fields of the API do not use this module: they are whole seconds and RFC 3339.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Protocol

from forewarn.core.model import ENDED, Status

SHORT_ID_CHARS = 8
MAX_NAMES = 5
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
# Control characters, and those that change the direction of text.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Reason(Protocol):
    """One reason to wait, as the core and the API have it."""

    @property
    def code(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def until(self) -> datetime | None: ...
    @property
    def machines(self) -> Sequence[str]: ...


class EventFacts(Protocol):
    """What a sentence about an event needs to know of it."""

    @property
    def type(self) -> str: ...
    @property
    def scope(self) -> str: ...
    @property
    def resources(self) -> Sequence[str]: ...
    @property
    def status(self) -> str: ...
    @property
    def started(self) -> datetime | None: ...
    @property
    def ended(self) -> datetime | None: ...
    @property
    def reason(self) -> str: ...
    @property
    def waiting_for(self) -> Sequence[Reason]: ...


# -- times and durations


def span(seconds: float) -> str:
    """Return a duration in its two largest units: `2h 5m`, `45s`."""
    left = round(abs(seconds))
    parts = []
    for unit, size_s in _UNITS:
        number, left = divmod(left, size_s)
        if number:
            parts.append(f"{number}{unit}")
    return " ".join(parts[:2]) or "0s"


def distance(moment: datetime, now: datetime) -> str:
    """Return how far away a moment is: `in 15m`, `3m ago`, `now`."""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(seconds)} ago"


def full_time(moment: datetime) -> str:
    """Return `2030-01-31 13:04:05Z`."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def short_time(moment: datetime, now: datetime) -> str:
    """Return `13:04:05Z`, with the date unless it is today."""
    text = full_time(moment)
    today, _, _ = full_time(now).partition(" ")
    return text.removeprefix(f"{today} ")


def when(moment: datetime, now: datetime) -> str:
    """Return a moment and its distance: `2030-01-31 13:04:05Z (in 15m)`."""
    return f"{full_time(moment)} ({distance(moment, now)})"


def iso_seconds(moment: datetime) -> str:
    """Return `2030-01-31T13:04:05Z`, as guests and the audit see a time."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def iso(moment: datetime) -> str:
    """Return RFC 3339 in UTC, as the API reads it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


# -- names and numbers


def names(every: Sequence[str], most: int = MAX_NAMES) -> str:
    """Return `web-0, web-1 and 3 more`."""
    if len(every) <= most:
        return ", ".join(every)
    return f"{', '.join(every[:most])} and {len(every) - most:,} more"


def count(number: int, one: str, many: str = "") -> str:
    """Return `1 machine`, `1,000 machines`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def progress(*, done: int, running: int, failed: int, in_doubt: int, left: int, undone: int) -> str:
    """Return `3 of 12 done, 1 running, 8 left`: without the counts that are 0."""
    total = done + running + failed + in_doubt + left + undone
    rest = ((running, "running"), (failed, "failed"), (in_doubt, "in doubt"), (left, "left"), (undone, "undone"))
    return ", ".join([f"{done:,} of {total:,} done", *(f"{number:,} {name}" for number, name in rest if number)])


def target_names(
    *,
    count: int,
    machines: Sequence[str] = (),
    scopes: Sequence[str] = (),
    hosts: Sequence[str] = (),
    update_domain: int | None = None,
    labels: str = "",
    names: Sequence[str] = (),
    everything: bool = False,
    host_labels: str = "",
    most: int = MAX_NAMES,
) -> str:
    """Return `hosts rack1-a, rack1-b and 38 more`; `count` is the number of names, of which only some may be given.

    Chosen machines are `machines like web-* with rack=a3 of scope shop`, chosen hosts `hosts with rack=a3`.
    """
    if everything:
        return "every machine"
    kind, given = next(
        ((kind, each) for kind, each in (("machine", machines), ("scope", scopes), ("host", hosts)) if each), ("", ())
    )
    shown = given[:most]
    more = f" and {count - len(shown):,} more" if count > len(shown) else ""
    domain = f", update domain {update_domain}" if update_domain is not None else ""
    named = f"{kind if count == 1 else kind + 's'} {', '.join(shown)}{more}{domain}" if given else ""
    if labels or names:
        like = f" like {' or '.join(names[:most])}" if names else ""
        return f"machines{like}{f' with {labels}' if labels else ''}{f' of {named}' if named else ''}"
    if host_labels:
        return f"{named or 'hosts'} with {host_labels}"
    return named or "hosts, whose names only operators and viewers see"


def cut(text: str, max_chars: int) -> str:
    """Return the text, or its beginning and `…` where it is longer."""
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def short_ids(ids: Iterable[str | None]) -> dict[str, str]:
    """Return each id with its first characters, or with itself where another id begins the same."""
    known = {each for each in ids if each}
    beginnings = Counter(each[:SHORT_ID_CHARS] for each in known)
    return {each: each[:SHORT_ID_CHARS] if beginnings[each[:SHORT_ID_CHARS]] == 1 else each for each in known}


def update_domain_name(scope: str, update_domain: int) -> str:
    """Return `shop#0`."""
    return f"{scope}#{update_domain}"


def action_by(action: str, who: str) -> str:
    """Return `started by ticker`; an action that already ends in `by operator` does not name the operator twice."""
    return f"{action.removesuffix(' by operator')} by {who}" if who else action


def printable(text: str) -> str:
    """Replace what could move a terminal's cursor, change its colours or turn text around."""
    return _UNPRINTABLE.sub("\ufffd", text)


# -- how a maintenance stands


def event_state(status: str, codes: Iterable[str]) -> str:
    """Return the status of an event; for what only an operator ends, `Started, order failed` or `Started, order in doubt`.

    `codes` are those of its reasons to wait.
    """
    problems = {"order-failed": "order failed", "in-doubt": "order in doubt"}
    found = [problems[code] for code in codes if code in problems]
    return f"{status}, {found[0]}" if found else status


def maintenance_state(
    status: str, *, held: bool, failed: int, in_doubt: int, awaits_continue: bool = False, paused: bool = False
) -> str:
    """Return `Running`, `Held: 2 orders failed`, `Running: 1 order in doubt` or `Paused: an operator must let it continue`.

    An owner sees only the failures of the own scopes: a maintenance that is held without one waits for another scope.
    If an operator has paused a maintenance that is held, it says so: resolving the failures does not move it.
    """
    counts = ((failed, "failed"), (in_doubt, "in doubt"))
    elsewhere = ["an order of a host, or outside your scopes, failed"] if held and not failed else []
    problems = ", ".join(
        [
            *elsewhere,
            *(["an operator must let it continue"] if awaits_continue else []),
            *(f"{count(number, 'order')} {what}" for number, what in counts if number),
            *(["and it is paused"] if held and paused else []),
        ]
    )
    return f"{'Held' if held else status}: {problems}" if problems else status


def strategy(
    *,
    group_by: str,
    max_parallel: int,
    canary: int,
    bake_s: int,
    max_failures: str,
    pause_after: int,
    windows: Sequence[str] = (),
) -> str:
    """Return `by host, 2 at once, canary 1, bake time 30m, holds at 3 failures, pauses after wave 1`, or "" by default."""
    steps = [f"by {group_by}, {max_parallel} at once"] if group_by != "update-domain" else []
    steps += [f"canary {canary}"] if canary else []
    steps += [f"bake time {span(bake_s)}"] if bake_s else []
    steps += [f"holds at {max_failures} failures"] if max_failures else []
    steps += [f"pauses after wave {pause_after}"] if pause_after else []
    steps += [f"in window {' or '.join(windows)}"] if windows else []
    return ", ".join(steps)


# -- why an event waits


def order_failure(waiting_for: Iterable[Reason]) -> str:
    """Return the sentence about a failed order, or ""."""
    return next((reason.message for reason in waiting_for if reason.code == "order-failed"), "")


def order_doubt(waiting_for: Iterable[Reason]) -> str:
    """Return the sentence about an order in doubt, or ""."""
    return next((reason.message for reason in waiting_for if reason.code == "in-doubt"), "")


def missing_approvals(waiting_for: Iterable[Reason]) -> str:
    """Return who has not approved: machines, `an operator`, or "" where no approval is missing."""
    for reason in waiting_for:
        if reason.code == "approval":
            return names(reason.machines) or "an operator"
    return ""


def until_phrase(reason: Reason) -> str:
    """Return the words between a reason and the time it ends. An order has no fixed end, only a deadline."""
    return ", with a deadline at" if reason.code in ("executor", "host-not-empty") else " until"


def reasons(waiting_for: Sequence[Reason], now: datetime) -> str:
    """Return what an event waits for as half a sentence."""
    by_code = {reason.code: reason for reason in waiting_for}
    if by_code.keys() == {"approval", "notice"}:
        end = by_code["notice"].until
        at = f" at {when(end, now)}" if end is not None else ""
        missing = by_code["approval"].message.rstrip(".")
        return f"it waits for approval ({missing}), or for the end of its notice{at}"
    parts = []
    for reason in waiting_for:
        text = reason.message.rstrip(".")
        parts.append(f"{text}{until_phrase(reason)} {when(reason.until, now)}" if reason.until is not None else text)
    return ", and ".join(dict.fromkeys(parts))


def why(event: EventFacts, now: datetime) -> str:
    """Return one sentence: what became of an event, or why it has not moved on."""
    subject = f"{event.type} of {names(event.resources)} in {event.scope}"
    waits = reasons(event.waiting_for, now)
    if event.status in ENDED:
        because = f": {event.reason.rstrip('.')}" if event.reason else ""
        sentence = f"{subject} was {event.status.lower()}{_at(event.ended)}{because}"
    elif event.status == Status.STARTED:
        sentence = f"{subject} started{_at(event.started)}, and {waits or 'it is under way'}"
    else:
        sentence = f"{subject} has not started: {waits or 'nothing stands in its way'}"
    return " ".join(printable(sentence).split()) + "."


def _at(moment: datetime | None) -> str:
    return f" at {full_time(moment)}" if moment is not None else ""
