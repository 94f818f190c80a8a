"""The plan of a maintenance, as it is shown before anybody is asked: waves, machines, notice. Pure text."""

from typing import Any

from forewarn.cli.formatting import Json, count, names, span
from forewarn.cli.output import Rows

COLUMNS = ("wave", "scope", "update domain", "machines", "notice")


def events_of(maintenance: Json) -> list[Json]:
    return [event for wave in maintenance["waves"] for event in wave["events"]]


def without_notice(maintenance: Json) -> list[str]:
    """The scopes whose machines this plan does not warn."""
    return sorted({event["scope"] for event in events_of(maintenance) if not event["notice_s"]})


def summary(maintenance: Json) -> str:
    """`Reboot of 3 machines in 1 scope, 3 waves one after the other`."""
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
            names(event["resources"], most=1_000),
            span(event["notice_s"]) if event["notice_s"] else "none",
        )
        for event in events_of(maintenance)
    ]


def warning(maintenance: Json) -> str:
    """Who is not warned and why that may be, or nothing."""
    scopes = without_notice(maintenance)
    if not scopes:
        return ""
    why = (
        "an emergency starts at once"
        if maintenance["emergency"]
        else "no machine there has asked for events lately, or its scope approves by itself"
    )
    return f"This gives no notice to {names(scopes)}: {why}."


def shape(maintenance: Json) -> Any:
    """What of a plan must not differ from what is scheduled in the end."""
    return [
        (event["wave"], event["scope"], event["update_domain"], event["resources"], bool(event["notice_s"]))
        for event in events_of(maintenance)
    ]
