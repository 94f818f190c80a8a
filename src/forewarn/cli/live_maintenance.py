"""Live views of a maintenance: progress per wave on a terminal, a line per change elsewhere."""

import contextlib
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from forewarn.cli import live
from forewarn.cli.api import Failed, Json, path_of
from forewarn.cli.formatting import (
    distance,
    full_time,
    maintenance_state,
    progress,
    target_names,
    unresolved,
    update_domain_name,
    when,
)
from forewarn.cli.hints import host_hint
from forewarn.cli.output import STYLES
from forewarn.cli.plan_text import events_of
from forewarn.cli.session import Session
from forewarn.core.formatting import count, names, printable
from forewarn.core.model import ENDED

ENDED_MAINTENANCE = ("Completed", "Cancelled", "Failed")
# Reasons about the order of an event of the maintenance itself, as codes.
OWN_ORDER = ("order-failed", "in-doubt")
MAX_REASONS = 3
MAX_WAVES = 12
MAX_EVENTS = 12
BAR_CHARS = 24


@contextlib.contextmanager
def _view(session: Session, *, json_lines: bool) -> Iterator[live.Show]:
    """Yield the function that shows the maintenance again and again."""
    out = session.out

    def print_json(before: Json | None, after: Json) -> None:
        if json_lines and after != before:
            out.json(after, line=True)
        for line in _paused_lines(before, after):
            out.aside(line)

    def print_differences(before: Json | None, after: Json) -> None:
        for line in differences(before, after):
            out.say(line)

    def update_screen(_: Json | None, after: Json) -> None:
        now = live.get_when_back(session, "/v1/clock")["now"]
        screen.update(picture(after, now), refresh=True)

    if out.as_json:
        yield print_json
    elif out.terminal:
        with Live(console=out.console, auto_refresh=False, transient=False) as screen:
            yield update_screen
    else:
        yield print_differences


def follow(
    session: Session,
    maintenance_id: str,
    *,
    until: str = "done",
    timeout_s: int | None = None,
    json_lines: bool = False,
    stop_for_operator: bool = False,
) -> Json:
    """Show a maintenance until it has `started` or is `done`; return it. Raise Failed if that takes too long.

    With `stop_for_operator`, also return it when only an operator can move it.
    """

    def ended(current: Json) -> bool:
        return reached(current, until) or (stop_for_operator and bool(current["needs_operator"]))

    try:
        with _view(session, json_lines=json_lines) as show:
            maintenance = live.follow(
                session,
                path_of("maintenances", maintenance_id),
                show,
                ended,
                # A change of no maintenance may be a hold of the clock or the store.
                concerns=lambda change: change["maintenance_id"] in ("", maintenance_id),
                timeout_s=timeout_s,
            )
    except KeyboardInterrupt:
        raise Failed(f"no longer following: maintenance {maintenance_id} continues") from None
    if not ended(maintenance):
        missing = "started" if until == "started" else "ended"
        raise Failed(
            f"maintenance {maintenance_id} is {maintenance['status']} and has not {missing} in time: it continues"
        )
    return maintenance


def reached(maintenance: Json, until: str) -> bool:
    """Return whether a maintenance has ended, or, for `started`, whether an event of it has started."""
    if maintenance["status"] in ENDED_MAINTENANCE:
        return True
    return until == "started" and any(event["started"] for event in events_of(maintenance))


def why_operator(maintenance: Json) -> str:
    """Return why only an operator can move a maintenance, as half a sentence. Equal reasons are named once.

    A reason outside an owner's scopes names no events.
    """
    reasons = maintenance["needs_operator"]
    named = [f"event {r['events'][0]}: " if r["code"] in OWN_ORDER and r.get("events") else "" for r in reasons]
    texts = list(dict.fromkeys(name + reason["message"] for name, reason in zip(named, reasons, strict=True)))
    more = ["and more"] if len(texts) > MAX_REASONS else []
    return "; ".join([*texts[:MAX_REASONS], *more])


def _paused_lines(before: Json | None, after: Json) -> list[str]:
    """Return a line when the maintenance is paused: nothing else will show for a while."""
    if not after["paused"] or (before is not None and before["paused"]):
        return []
    return [f"maintenance {after['id']} is paused: it continues when an operator resumes it"]


def differences(before: Json | None, after: Json) -> list[str]:
    """Return a line per change; for the first time, a line per event."""
    if before is None:
        waves = count(len(after["waves"]), "wave")
        lines = [f"maintenance {after['id']} {after['type']} {maintenance_state(after)}: {waves}"]
        lines.append(f"targets: {target_names(after) or 'not kept'}")
        if after["estimated_end"]:
            lines.append(f"estimated end: {full_time(after['estimated_end'])}")
        lines += [f"host {host['host']}: {_host_state(host)}" for host in after["hosts"]]
        lines += [f"{_label(event)}: {_state(event)}" for event in events_of(after)]
        return lines + _paused_lines(before, after)
    lines = []
    states = {host["host"]: _host_state(host) for host in before["hosts"]}
    changed = [host for host in after["hosts"] if _host_state(host) != states.get(host["host"])]
    lines += [f"host {host['host']}: {_host_state(host)}" for host in changed]
    earlier = {event["id"]: event for event in events_of(before)}
    for event in events_of(after):
        known = earlier.get(event["id"])
        # The events of a host are planned when its turn comes.
        lines += [f"{_label(event)}: {_state(event)}"] if known is None else _event_differences(known, event)
    if maintenance_state(before) != maintenance_state(after):
        lines.append(f"maintenance {after['id']}: {maintenance_state(before)} -> {maintenance_state(after)}")
    return lines + _paused_lines(before, after)


def _event_differences(before: Json, after: Json) -> list[str]:
    lines = [
        f"{full_time(approval['when'])} {_label(after)}: approved by {approval['who']}"
        for approval in after["approved_by"]
        if approval not in before["approved_by"]
    ]
    if before["status"] != after["status"]:
        at = full_time(after["ended"] or after["started"] or after["published"])
        because = f" ({after['reason']})" if after["reason"] else ""
        lines.append(f"{at} {_label(after)}: {before['status']} -> {after['status']}{because}")
    reason = unresolved(after)
    if reason and reason != unresolved(before):
        lines.append(f"{_label(after)}: {reason}")
    return lines


def _label(event: Json) -> str:
    return f"wave {event['wave']} {update_domain_name(event)} {names(event['resources'])} [{event['id']}]"


def _host_state(host: Json) -> str:
    reason = f" ({host['reason']})" if host["reason"] else ""
    to_do = f": {hint}" if (hint := host_hint(host)) else ""
    return f"{host['state']}{reason}{to_do}"


def _state(event: Json) -> str:
    if event["status"] == "Scheduled" and event["not_before"]:
        return f"Scheduled, not before {full_time(event['not_before'])}"
    return unresolved(event) or str(event["status"])


def picture(maintenance: Json, now: str) -> RenderableType:
    """Return a maintenance for a terminal: a bar per wave, and the events of each wave."""
    head = Text()
    head.append(f"{maintenance['type']} ", style="bold")
    state = maintenance_state(maintenance)
    head.append(state, style="red" if maintenance["held"] else STYLES.get(maintenance["status"], ""))
    if maintenance["paused"]:
        head.append(", until an operator resumes it")
    head.append(f"  {maintenance['id']}", style="dim")
    if maintenance["description"]:
        head.append(f"  {printable(maintenance['description'])}")
    end = f", estimated end {when(maintenance['estimated_end'], now)}" if maintenance["estimated_end"] else ""
    about = f"{target_names(maintenance) or 'targets not kept'}: {progress(maintenance)}{end}"
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    hosts = _hosts_text(maintenance["hosts"])
    waves = _nearest_waves(maintenance["waves"])
    for wave in waves:
        table.add_row(*_wave_row(wave, now))
    hidden = len(maintenance["waves"]) - len(waves)
    more = [Text(f"and {count(hidden, 'more wave')}", style="dim")] if hidden else []
    return Group(head, Text(printable(about), style="dim"), *hosts, table, *more)


def _hosts_text(hosts: list[Json]) -> list[Text]:
    """Return the hosts in their turn, each with the state of its work."""
    text = Text()
    for position, host in enumerate(hosts):
        text.append(", " if position else "hosts: ")
        text.append(f"{host['host']} ")
        text.append(printable(_host_state(host)), style=STYLES.get(host["state"], ""))
    return [text] if hosts else []


def _nearest_waves(waves: list[Json]) -> list[Json]:
    """Return the waves around the current one, as many as a terminal holds."""
    current = next((i for i, wave in enumerate(waves) if not _ended(wave)), len(waves))
    first = max(0, min(current - 2, len(waves) - MAX_WAVES))
    return waves[first : first + MAX_WAVES]


def _ended(wave: Json) -> bool:
    return all(event["status"] in ENDED for event in wave["events"])


def _wave_row(wave: Json, now: str) -> list[RenderableType]:
    events = wave["events"]
    # A started event counts half, so that the bar moves when it starts.
    halves = sum(2 if e["status"] in ENDED else 1 if e["status"] == "Started" else 0 for e in events)
    done = sum(e["status"] in ENDED for e in events)
    bar = ProgressBar(total=2 * len(events), completed=halves, width=BAR_CHARS)
    about = Text()
    for position, event in enumerate(events[:MAX_EVENTS]):
        about.append("\n" if position else "")
        about.append(f"{update_domain_name(event)} {names(event['resources'])} ")
        about.append(str(event["status"]), style=STYLES.get(event["status"], ""))
        about.append(printable(_detail(event, now)), style="red" if unresolved(event) else "dim")
    if len(events) > MAX_EVENTS:
        about.append(f"\nand {len(events) - MAX_EVENTS} more", style="dim")
    return [Text(f"wave {wave['number']}"), bar, Text(f"{done}/{len(events)}"), about]


def _detail(event: Json, now: str) -> str:
    if reason := unresolved(event):
        return f": {reason}"
    if event["status"] == "Scheduled" and event["not_before"]:
        approved = ", approved" if event["approved_by"] else ""
        others = "".join(f"; {w['message']}" for w in event["waiting_for"] if w["code"] not in ("approval", "notice"))
        return f", not before {when(event['not_before'], now)}{approved}{others}"
    if event["status"] == "Started":
        return f" {distance(event['started'], now)}"
    return ""
