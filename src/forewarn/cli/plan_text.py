"""The plan of a maintenance as text: waves, machines, hosts, notice, and what blocks it. It is shown before the confirmation."""

from forewarn.cli.api import Json
from forewarn.cli.formatting import full_time
from forewarn.cli.output import Output, Rows
from forewarn.core.formatting import count, names, span

COLUMNS = ("wave", "scope", "update domain", "machines", "hosts", "notice")
CALENDAR_COLUMNS = ("wave", "groups", "events", "machines", "hosts", "earliest start", "latest start", "may wait for")
CALENDAR_HOST_COLUMNS = (
    "turn",
    "host",
    "machines now",
    "work earliest",
    "work latest",
    "turn ends earliest",
    "turn ends latest",
    "may wait for",
)
HOST_COLUMNS = {
    "evacuate": ("turn", "host", "machines", "they go to"),
    "in-place": ("turn", "host", "machines", "what happens to them"),
}


def events_of(maintenance: Json) -> list[Json]:
    return [event for wave in maintenance["waves"] for event in wave["events"]]


def summary(maintenance: Json) -> str:
    """Return `Reboot of 3 machines in 1 scope, 3 waves, one after the other`."""
    if maintenance["host_mode"]:
        return _host_summary(maintenance)
    events = events_of(maintenance)
    machines = len({(event["scope"], name) for event in events for name in event["resources"]})
    scopes = len({event["scope"] for event in events})
    waves = len(maintenance["waves"])
    order = f"{count(waves, 'wave')}, one after the other" if waves > 1 else "all at once"
    emergency = "Emergency: " if maintenance["emergency"] else ""
    return f"{emergency}{maintenance['type']} of {count(machines, 'machine')} in {count(scopes, 'scope')}, {order}"


def _host_summary(maintenance: Json) -> str:
    """Return `Evacuation of 2 hosts by Freeze, one after the other, then the work on each`."""
    what = "Evacuation of" if maintenance["host_mode"] == "evacuate" else "In-place maintenance of"
    hosts = len(maintenance["hosts"])
    turns = ", one after the other" if hosts > 1 else ""
    back = "; then the machines come back" if maintenance["return_machines"] else ""
    return f"{what} {count(hosts, 'host')} by {maintenance['type']}{turns}{back}"


def host_rows(plan: Json) -> Rows:
    """Return the hosts of a plan in the order of their turns. A later host may carry other machines when its turn comes."""
    return [
        (turn, host["host"], ", ".join(host["machines"]) or "none", _targets(plan, host))
        for turn, host in enumerate(plan["hosts"], start=1)
    ]


def _targets(plan: Json, host: Json) -> str:
    if plan["host_mode"] != "evacuate":
        return "they are shut down and started again"
    found = host.get("targets", {})
    if not found:
        return "hosts that the executor chooses" if host["machines"] else ""
    return ", ".join(f"{machine}: {' or '.join(names) or 'NO HOST'}" for machine, names in found.items())


def rows(maintenance: Json) -> Rows:
    return [
        (
            f"{event['wave']} {event['group']}" if event["group"] else event["wave"],
            event["scope"],
            event["update_domain"],
            ", ".join(event["resources"]),
            ", ".join(event["hosts"]),
            span(event["notice_s"]) if event["notice_s"] else "none",
        )
        for event in events_of(maintenance)
    ]


def calendar_rows(calendar: Json) -> Rows:
    return [
        (
            f"{wave['wave']} (back)" if wave["returns"] else wave["wave"],
            names(wave["groups"]),
            wave["events"],
            wave["machines"],
            names(wave["hosts"]),
            *_times(wave, "earliest", "latest"),
            ", ".join(wave["may_wait_for"]),
        )
        for wave in calendar["waves"]
    ]


def calendar_host_rows(calendar: Json) -> Rows:
    return [
        (
            host["turn"],
            host["host"],
            host["machines"],
            *_times(host, "earliest", "latest", "earliest_end", "latest_end"),
            ", ".join(host["may_wait_for"]),
        )
        for host in calendar["hosts"]
    ]


def _times(body: Json, *keys: str) -> list[str]:
    return [full_time(body[key]) or "unknown" for key in keys]


def calendar_end(plan: Json) -> str:
    """Return when the maintenance ends, and what this assumes."""
    calendar = plan["calendar"]
    (earliest, latest), work_s = _times(calendar, "earliest_end", "latest_end"), span(calendar["work_s"])
    if plan["drill_hold_s"]:
        return (
            f"end: {earliest} if all is approved at once, {latest} if nothing is approved;"
            f" each event ends {work_s} after its start"
        )
    work = "the work of each event and on each host" if calendar["hosts"] else "the work of each event"
    return (
        f"end: {earliest} if all is approved at once and work takes no time,"
        f" {latest} if nothing is approved and {work} takes {work_s}"
    )


def show_calendar(out: Output, plan: Json) -> None:
    """Print when each wave may start, and each host may have its turn."""
    calendar = plan["calendar"]
    out.heading("calendar")
    if calendar["hosts"]:
        out.table(CALENDAR_HOST_COLUMNS, calendar_host_rows(calendar))
        out.say("the waves of the machines that are now on these hosts:")
    out.table(CALENDAR_COLUMNS, calendar_rows(calendar), empty="no waves")
    out.say(calendar_end(plan))


def blockers(plan: Json) -> list[str]:
    """Return why events of the plan would wait for something outside the plan, each reason once."""
    waiting = [*events_of(plan), *plan["hosts"]]
    return list(dict.fromkeys(reason["message"] for each in waiting for reason in each["waiting_for"]))


def shape(maintenance: Json) -> object:
    """Return what must be equal in the plan shown and in the maintenance that is scheduled, besides the warnings."""
    events = [
        (event["wave"], event["scope"], event["update_domain"], event["resources"], bool(event["notice_s"]))
        for event in events_of(maintenance)
    ]
    return events, [(host["host"], host["machines"]) for host in maintenance["hosts"]]
