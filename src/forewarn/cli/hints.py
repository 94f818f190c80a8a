"""What the caller can do about a wait: commands that help, and that the caller's role may run.

The API says what an event or a maintenance waits for. What to do about it depends on who reads it, so it is decided here.
"""

from collections.abc import Iterable, Mapping

from forewarn.cli.api import Json
from forewarn.core.formatting import short_ids
from forewarn.core.model import HostMode, OrderState
from forewarn.core.operator_model import Role

EXTERNAL = "external"
OPERATORS = frozenset({Role.OPERATOR})
OWNERS = frozenset({Role.OPERATOR, Role.OWNER})
RESOLVE = "run `forewarn event retry {cause}`, or `finish` or `abandon` instead of `retry`"
RESOLVE_HOST = "run `forewarn order retry {cause}`, or `finish` or `abandon` instead of `retry`"
RESOLVE_IN_PLACE = (
    "run `forewarn order finish {cause}`, or `abandon` instead of `finish`, and schedule a new maintenance"
)
AFTER_ABANDON = "run `forewarn host uncordon {host}` after an `abandon`, to let machines go there again"
ABANDON_ALL = "run `forewarn event abandon {events}` to give up what failed and go on with the rest"
LEAVE_OUT = (
    "run `forewarn maintenance skip-host {maintenance} {host}` to leave it out, then `forewarn host uncordon {host}`"
)
RETRY_ALL = "run `forewarn maintenance retry-failed {maintenance}` to retry all that failed"
TAKE_HOST = (
    "host_executor is external: before you work on host {host} yourself, run `forewarn order start {order}`, and afterwards"
    " `forewarn order finish {order}`"
)
CLEAR_HOST = "stop or move what runs on host {host}: its work can begin then"
# By the code of the reason: who may run the commands, and the commands. For other reasons no command helps: the caller waits.
HINTS: Mapping[str, tuple[frozenset[Role], str]] = {
    "approval": (OWNERS, "run `forewarn event approve {event}` to let it start without further approvals"),
    "budget": (OPERATORS, "run `forewarn budget show` to see what is down"),
    "continue": (OPERATORS, "run `forewarn maintenance continue {maintenance}`"),
    "failures": (OPERATORS, RESOLVE),
    "clock": (OPERATORS, "check the clock, then run `forewarn clock confirm`"),
    "no-target": (OPERATORS, "run `forewarn host uncordon HOST` for a host that may take its machines, or add a host"),
    "in-doubt": (OPERATORS, f"check the machines, then {RESOLVE}"),
    "order-failed": (OPERATORS, RESOLVE),
    "paused": (OPERATORS, "run `forewarn maintenance resume {maintenance}`"),
    "store-held": (OPERATORS, "run `forewarn db resume`, which first shows what would happen"),
    "unresolved": (OPERATORS, RESOLVE),
}


def hint(event: Json, reason: Json, role: str, *, in_place: bool = False) -> str:
    """Return what the caller can do about one reason of an event, or "". Failed work `in_place` cannot be retried."""
    roles, text = HINTS.get(reason["code"], (frozenset(), ""))
    if role not in roles:
        return ""
    if role == Role.OWNER and not reason.get("machines"):  # the scope has approval = operator
        return ""
    cause = next(iter(reason.get("events", ())), event["id"])
    if orders := reason.get("orders"):
        again = RESOLVE_IN_PLACE if in_place and reason["code"] != "in-doubt" else RESOLVE_HOST
        cause, text = orders[0], text.replace(RESOLVE, again)
    if reason["code"] == "budget" and (named := reason.get("events")):
        text += f", and `event why` for the events {' '.join(map(short_ids(named).__getitem__, named))}"
    return text.format(event=event["id"], maintenance=event["maintenance_id"], cause=cause)


def event_hints(event: Json, role: str, failed: int = 0) -> list[str]:
    """Return what the caller can do about an event that waits, each thing once; `failed` orders hold its maintenance."""
    retry_all = [RETRY_ALL.format(maintenance=event["maintenance_id"])] if failed > 1 and role in OPERATORS else []
    return _distinct([*retry_all, *(hint(event, reason, role) for reason in event["waiting_for"])])


def maintenance_hints(maintenance: Json, role: str) -> list[str]:
    """Return what the caller can do about a maintenance that failures, a pause or a hold keep from moving on."""
    if role not in OPERATORS:
        return []
    hints = []
    in_place = maintenance["host_mode"] == HostMode.IN_PLACE
    events, hosts = maintenance["progress"]["failed"], maintenance["failed_hosts"]
    if (events or hosts > 1) and not (in_place and hosts):
        hints.append(RETRY_ALL.format(maintenance=maintenance["id"]))
    if maintenance["awaits_continue"]:
        hints.append(HINTS["continue"][1].format(maintenance=maintenance["id"]))
    if maintenance["paused"]:
        hints.append(HINTS["paused"][1].format(maintenance=maintenance["id"]))
    reasons = maintenance["needs_operator"]
    own = [e for r in reasons if r["code"] == "order-failed" and not r.get("orders") for e in r.get("events", ())]
    if own:
        hints.append(ABANDON_ALL.format(events=" ".join(map(short_ids(own).__getitem__, dict.fromkeys(own)))))
        waiting = [host["host"] for host in maintenance["hosts"] if host["state"] == OrderState.PLANNED]
        hints += [LEAVE_OUT.format(maintenance=maintenance["id"], host=host) for host in waiting[:1]]
    others = [reason for reason in reasons if reason["code"] != "order-failed" or reason.get("orders")]
    event = {"id": "", "maintenance_id": maintenance["id"]}
    failed = [host["host"] for host in maintenance["hosts"] if host["state"] == OrderState.FAILED]
    return _distinct(
        [
            *hints,
            *(hint(event, reason, role, in_place=in_place) for reason in others),
            *(AFTER_ABANDON.format(host=host) for host in failed),
            *map(host_hint, maintenance["hosts"]),
        ]
    )


def host_hint(host: Json) -> str:
    """Return what an operator can do about the open order of a host, or "" if its order is not open."""
    if host["state"] != OrderState.OPEN:
        return ""
    (reason,) = host["waiting_for"]
    take = TAKE_HOST if host["executor"] == EXTERNAL else ""  # other executors take it themselves
    text = {"executor": take, "host-not-empty": CLEAR_HOST}.get(reason["code"], "")
    return text.format(host=host["host"], order=host["order_id"])


def _distinct(hints: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, hints)))
