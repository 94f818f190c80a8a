"""The plan of a maintenance as text: waves, machines, hosts, notice, and what blocks it. It is shown before the confirmation."""

from forewarn.cli.client import Json
from forewarn.cli.output import Rows
from forewarn.core.formatting import count, span

COLUMNS = ("wave", "scope", "update domain", "machines", "hosts", "notice")


def events_of(maintenance: Json) -> list[Json]:
    return [event for wave in maintenance["waves"] for event in wave["events"]]


def summary(maintenance: Json) -> str:
    """Return `Reboot of 3 machines in 1 scope, 3 waves, one after the other`."""
    events = events_of(maintenance)
    machines = sum(len(event["resources"]) for event in events)
    scopes = len({event["scope"] for event in events})
    waves = len(maintenance["waves"])
    order = f"{count(waves, 'wave')}, one after the other" if waves > 1 else "all at once"
    emergency = "Emergency: " if maintenance["emergency"] else ""
    return f"{emergency}{maintenance['type']} of {count(machines, 'machine')} in {count(scopes, 'scope')}, {order}"


def rows(maintenance: Json) -> Rows:
    return [
        (
            event["wave"],
            event["scope"],
            event["update_domain"],
            ", ".join(event["resources"]),
            ", ".join(event["hosts"]),
            span(event["notice_s"]) if event["notice_s"] else "none",
        )
        for event in events_of(maintenance)
    ]


def blockers(plan: Json) -> list[str]:
    """Return why events of the plan would wait for something outside the plan, each reason once."""
    return list(dict.fromkeys(reason["message"] for event in events_of(plan) for reason in event["waiting_for"]))


def shape(maintenance: Json) -> object:
    """Return what must be equal in the plan shown and in the maintenance that is scheduled, besides the warnings."""
    return [
        (event["wave"], event["scope"], event["update_domain"], event["resources"], bool(event["notice_s"]))
        for event in events_of(maintenance)
    ]
