"""Adapt `core.formatting` to the API's JSON, in which a time is RFC 3339 text or null. Each function is named as there."""

from datetime import datetime
from types import SimpleNamespace

from forewarn.cli.api import Json
from forewarn.core import formatting


def full_time(text: str | None) -> str:
    """Return `2030-01-31 13:04:05Z`, or "" for null."""
    return formatting.full_time(datetime.fromisoformat(text)) if text else ""


def distance(text: str | None, now: str) -> str:
    """Return `in 15m`, `3m ago` or `now`, or "" for null."""
    return formatting.distance(datetime.fromisoformat(text), datetime.fromisoformat(now)) if text else ""


def when(text: str | None, now: str) -> str:
    """Return `2030-01-31 13:04:05Z (in 15m)`, or "" for null."""
    return formatting.when(datetime.fromisoformat(text), datetime.fromisoformat(now)) if text else ""


def label_texts(thing: Json) -> str:
    """Return `env=prod rack=a3`, or "" if an owner may not see the labels of a host."""
    return " ".join(f"{name}={value}" for name, value in thing.get("labels", {}).items())


def target_names(maintenance: Json) -> str:
    """Return the targets of the request, or "" for a maintenance that is older than stored targets."""
    targets = maintenance["targets"]
    return formatting.target_names(**targets) if targets is not None else ""


def progress(maintenance: Json) -> str:
    """Return how far the events are, and the hosts if the maintenance works on hosts."""
    on_hosts = maintenance["host_progress"]
    hosts = f"; hosts: {formatting.progress(**on_hosts)}" if on_hosts else ""
    return formatting.progress(**maintenance["progress"]) + hosts


def update_domain_name(event: Json) -> str:
    """Return the scope and update domain of an event: `shop#0`."""
    return formatting.update_domain_name(event["scope"], event["update_domain"])


def maintenance_state(maintenance: Json) -> str:
    """Return the status of a maintenance, and its orders that failed or are in doubt."""
    failed, in_doubt = (maintenance["progress"][key] for key in ("failed", "in_doubt"))
    failed += maintenance["failed_hosts"]
    return formatting.maintenance_state(
        maintenance["status"],
        held=maintenance["held"],
        failed=failed,
        in_doubt=in_doubt,
        awaits_continue=maintenance["awaits_continue"],
        paused=maintenance["paused"],
    )


def order_failure(event: Json) -> str:
    return formatting.order_failure(_waiting_for(event))


def order_doubt(event: Json) -> str:
    return formatting.order_doubt(_waiting_for(event))


def unresolved(event: Json) -> str:
    """Return why an operator must decide on a started event, or ""."""
    return order_failure(event) or order_doubt(event)


def missing_approvals(event: Json) -> str:
    return formatting.missing_approvals(_waiting_for(event))


def reasons(event: Json, now: str) -> str:
    return formatting.reasons(_waiting_for(event), datetime.fromisoformat(now))


def waits_for(event: Json, now: str) -> str:
    """Return what an event waits for, or why it was cancelled or abandoned; nothing about one that is completed."""
    return reasons(event, now) or ("" if event["status"] == "Completed" else str(event["reason"]))


def why(event: Json, now: str) -> str:
    times = {key: datetime.fromisoformat(event[key]) if event[key] else None for key in ("started", "ended")}
    adapted = SimpleNamespace(**{**event, **times, "waiting_for": _waiting_for(event)})
    return formatting.why(adapted, datetime.fromisoformat(now))


def _waiting_for(event: Json) -> list[SimpleNamespace]:
    """Return the reasons of an event with the fields that the API leaves out."""
    return [
        SimpleNamespace(
            code=reason["code"],
            message=reason["message"],
            until=datetime.fromisoformat(reason["until"]) if reason.get("until") else None,
            machines=reason.get("machines", ()),
        )
        for reason in event["waiting_for"]
    ]
