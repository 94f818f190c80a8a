"""`forewarn status`: failed, doubtful, started, scheduled and paused work on one screen, and why events wait."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from forewarn.cli.api import Json, path_of
from forewarn.cli.formatting import (
    distance,
    full_time,
    missing_approvals,
    reasons,
    update_domain_name,
    when,
)
from forewarn.cli.hints import host_hint
from forewarn.cli.session import Session
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.formatting import SHORT_ID_CHARS, iso, maintenance_state, names
from forewarn.core.model import ENDED, UNFINISHED, HostMode
from forewarn.core.operator_model import Role

MAX_ITEMS = 500
MAX_HOSTS = 5_000
HISTORY = timedelta(hours=24)
EVENT_COLUMNS = ("event", "type", "scope", "machines")

# The lists whose ids are printed.
ID_LISTS = ("failed", "in_doubt", "open", "planned", "ended", "paused")

# What an operator may do about each row of a table: below it, because a line of 100 columns has no room for commands.
RESOLVE = "to resolve one: forewarn event retry|finish|abandon {}", "EVENT"
RESOLVE_HOST = "to resolve one: forewarn order retry|finish|abandon {}", "ORDER"
RESOLVE_IN_PLACE = "to resolve one: forewarn order finish|abandon {}", "ORDER"
RESUME = "to continue one: forewarn maintenance resume {}", "MAINTENANCE"
CONTINUE = "to continue one: forewarn maintenance continue {}", "MAINTENANCE"

UNCORDON = "to use one again: forewarn host uncordon HOST", ""

Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]


def read(session: Session) -> Json:
    """Return everything that the command shows; with --json this is the output."""
    api, clock = session.api, session.api.get("/v1/clock")
    since = iso(datetime.fromisoformat(clock["now"]) - HISTORY)
    left_out = api.page("/v1/orders", {"state": ["cancelled", "abandoned"]}, limit=MAX_ITEMS)
    return {
        "server": api.server.url,
        "caller": {"role": session.role},
        "clock": clock,
        "store": api.get("/v1/store"),
        "complaints": api.failed_checks(),
        "failed": api.page("/v1/orders", {"state": ["failed"]}, limit=MAX_ITEMS),
        "in_doubt": api.page("/v1/orders", {"state": ["in-doubt"]}, limit=MAX_ITEMS),
        "open": api.page("/v1/events", {"status": ["Scheduled", "Started"]}, limit=MAX_ITEMS),
        "planned": api.page("/v1/events", {"status": ["Planned"]}, limit=MAX_ITEMS),
        "ended": api.page("/v1/events", {"status": sorted(ENDED), "since": since}, limit=MAX_ITEMS),
        "paused": api.page("/v1/maintenances", {"status": ["Paused"]}, limit=MAX_ITEMS),
        "left_cordoned": [
            host for host in api.page("/v1/hosts", {}, limit=MAX_HOSTS)["items"] if host.get("cordon_left")
        ],
        "host_work": _host_work(session),
        "left_out": [order for order in left_out["items"] if order["host"] and (order["ended"] or "") >= since],
    }


def _host_work(session: Session) -> list[Json]:
    """Return the work on the hosts of each maintenance that has not ended; a caller who sees no hosts gets none."""
    page = session.api.page("/v1/maintenances", {"status": sorted(UNFINISHED), "on_hosts": True}, limit=MAX_ITEMS)
    ids = [row["id"] for row in page["items"] if row["host_progress"]]
    found = (session.api.get(path_of("maintenances", each), {"limit": 0}) for each in ids)
    return [{"maintenance_id": each["id"], **host} for each in found for host in each["hosts"]]


def status(session: Session) -> None:
    """Show what failed, what is in doubt, what is in progress, what is scheduled, who has not approved, and why events wait."""
    state = read(session)
    if session.out.as_json:
        session.out.json(state)
    else:
        show(session, state)


def show(session: Session, state: Json) -> None:
    """Print the state that `read` returned, as text."""
    for line in headline(state):
        session.out.say(line)
    now, role = state["clock"]["now"], state["caller"]["role"]
    failed, doubtful = state["failed"]["items"], state["in_doubt"]["items"]
    unresolved = {order["id"] for order in (*failed, *doubtful)}
    events = state["open"]["items"]
    started = [event for event in events if event["status"] == "Started" and event["id"] not in unresolved]
    scheduled = [event for event in events if event["status"] == "Scheduled"]
    abandoned = [event for event in state["ended"]["items"] if event["status"] == "Abandoned"]
    act = role == Role.OPERATOR
    resolve, resolve_host = (RESOLVE, RESOLVE_HOST) if act else (None, None)
    in_place = [order for order in failed if _in_place(order)]
    evacuated = [order for order in failed if not _in_place(order)]
    listed = [item for key in ID_LISTS for item in state[key]["items"]] + state["left_out"]
    of_hosts = [each for host in state["host_work"] for each in (host["order_id"], host["maintenance_id"])]
    ids = session.out.id_texts([*(each for item in listed for each in _ids(item)), *of_hosts])
    _section(session, "FAILED", _unresolved(failed, ids), resolve, style="red")
    _section(session, "IN DOUBT: check the machines first", _unresolved(doubtful, ids), resolve, style="red")
    _section(session, "FAILED WORK ON HOSTS", _unresolved_hosts(evacuated, ids), resolve_host, style="red")
    resolve_in_place = RESOLVE_IN_PLACE if act else None
    title = "FAILED WORK ON HOSTS IN PLACE: their machines run again"
    _section(session, title, _unresolved_hosts(in_place, ids), resolve_in_place, style="red")
    in_doubt = "WORK ON HOSTS IN DOUBT: check the hosts first"
    _section(session, in_doubt, _unresolved_hosts(doubtful, ids), resolve_host, style="red")
    _section(session, "MAINTENANCES WITH FAILURES", _held(state, ids, role), style="red")
    _section(session, "IN PROGRESS", _started(started, ids, now))
    _section(session, "WORK ON HOSTS", _work_on_hosts(state["host_work"], ids, now))
    for line in filter(None, map(host_hint, state["host_work"] if act else ())):
        session.out.say(line)
    _section(session, "SCHEDULED", _scheduled(scheduled, ids, now))
    _section(session, "MAINTENANCES THAT WAIT BEFORE THEIR NEXT WAVE", _unannounced(state, ids, now))
    _section(session, "PAUSED MAINTENANCES", _paused(state, "paused", ids), RESUME if act else None)
    waiting = _paused(state, "awaits_continue", ids)
    _section(session, "MAINTENANCES THAT PAUSE AFTER A WAVE", waiting, CONTINUE if act else None)
    left = _left_cordoned(state["left_cordoned"], state["left_out"], now)
    _section(session, "HOSTS LEFT CORDONED BY A MAINTENANCE THAT HAS ENDED", left, UNCORDON if act else None)
    _section(session, "ABANDONED IN THE LAST 24 HOURS", _abandoned(abandoned, ids))
    uncordon = ("to let machines go to one that is cordoned: forewarn host uncordon HOST", "") if act else None
    cordoned = {(host["name"], host["cordoned_by"]) for host in state["left_cordoned"]}
    others = [order for order in state["left_out"] if (order["host"], order["maintenance_id"]) not in cordoned]
    _section(session, "HOSTS LEFT OUT IN THE LAST 24 HOURS", _left_out(others, ids), uncordon)


def headline(state: Json) -> list[str]:
    """Return the server, the problems of the service itself, and the numbers of events."""
    events, ended = state["open"]["items"], state["ended"]["items"]
    failed, doubtful = (len(state[key]["items"]) for key in ("failed", "in_doubt"))
    open_counts = Counter(event["status"].lower() for event in events)
    of_hosts = sum(bool(order["host"]) for key in ("failed", "in_doubt") for order in state[key]["items"])
    in_progress = max(0, open_counts["started"] - (failed + doubtful - of_hosts))
    act = state["caller"]["role"] == Role.OPERATOR
    ended_counts = Counter(event["status"].lower() for event in ended)
    unapproved = sum(bool(missing_approvals(event)) for event in events)
    planned = len(state["planned"]["items"])
    problems = [f"NOT READY: {check}: {message}" for check, message in state["complaints"].items()]
    if held := state["clock"].get("held"):
        confirm = "; check it, then run `forewarn clock confirm`" if act else ""
        problems.append(f"CLOCK HELD: it jumped forward by {held['jumped_s']} s{confirm}")
    if hold := state["store"]["held"]:
        until = "you run `forewarn db resume`, which shows what would happen" if act else "an operator resumes it"
        problems.append(f"STORE HELD: {hold['detail']}; nothing starts until {until}")
    return [
        f"{state['server']}  {full_time(state['clock']['now'])} ({state['clock']['kind']} clock)",
        *problems,
        f"now: {_at_least(state['failed'], failed)} failed,{_doubtful(doubtful)} {in_progress} in progress,"
        f" {_at_least(state['open'], open_counts['scheduled'])} scheduled ({unapproved} not approved),"
        f" {_at_least(state['planned'], planned)} in later waves",
        f"last 24 hours: {_at_least(state['ended'], ended_counts['completed'])} completed,"
        f" {ended_counts['cancelled']} cancelled, {ended_counts['abandoned']} abandoned",
    ]


def _doubtful(number: int) -> str:
    return f" {number} in doubt," if number else ""


def _at_least(page: Json, number: int) -> str:
    """Return the number, with a plus if the page is not the whole list."""
    return f"{number}+" if page["next_cursor"] else str(number)


def _section(session: Session, title: str, table: Table, hint: tuple[str, str] | None = None, style: str = "") -> None:
    """Print a table, if it has rows, and below it the command of the hint; for a single row it has the row's id."""
    columns, rows = table
    if not rows:
        return
    session.out.heading(title)
    session.out.table(columns, rows, style=style)
    if hint is not None:
        text, placeholder = hint
        session.out.say(text.format(rows[0][0][:SHORT_ID_CHARS] if len(rows) == 1 else placeholder))


def _ids(item: Json) -> list[str]:
    return [item["id"], *([item["maintenance_id"]] if "maintenance_id" in item else [])]


def _event_cells(event: Json, ids: dict[str, str]) -> tuple[object, ...]:
    return ids[event["id"]], event["type"], update_domain_name(event), names(event["resources"])


def _unresolved(orders: list[Json], ids: dict[str, str]) -> Table:
    """Return the orders of events that wait for an operator."""
    return ("event", "type", "machines", "hosts", "attempt", "why", "maintenance"), [
        (
            ids[order["id"]],
            order["type"],
            names(order["machines"]),
            names(order["hosts"]),
            order["attempt"],
            order["reason"],
            ids[order["maintenance_id"]],
        )
        for order in orders
        if not order["host"]
    ]


def _unresolved_hosts(orders: list[Json], ids: dict[str, str]) -> Table:
    """Return the orders of hosts that wait for an operator."""
    return ("order", "host", "attempt", "why", "maintenance"), [
        (ids[order["id"]], order["host"], order["attempt"], order["reason"], ids[order["maintenance_id"]])
        for order in orders
        if order["host"]
    ]


def _work_on_hosts(hosts: list[Json], ids: dict[str, str], now: str) -> Table:
    """Return the hosts whose work has not ended; failed work has a section of its own."""
    return ("order", "host", "state", "done by", "waits for", "maintenance"), [
        (
            ids[host["order_id"]],
            host["host"],
            host["state"],
            host["node"] or host["executor"],
            reasons(host, now),
            ids[host["maintenance_id"]],
        )
        for host in hosts
        if host["state"] in ("planned", "open", "running")
    ]


def _left_out(orders: list[Json], ids: dict[str, str]) -> Table:
    """Return the hosts that were skipped, cancelled or abandoned."""
    return ("order", "host", "state", "why", "maintenance"), [
        (ids[order["id"]], order["host"], order["state"], order["reason"], ids[order["maintenance_id"]])
        for order in orders
    ]


def _held(state: Json, ids: dict[str, str], role: str) -> Table:
    """Return the maintenances with failed orders, each with all its failures and what retries them at once."""
    counts = Counter(order["maintenance_id"] for order in state["failed"]["items"])
    retried = {order["maintenance_id"] for order in state["failed"]["items"] if not _in_place(order)}
    stopped = {row["id"]: row for row in state["paused"]["items"]}
    running = {"status": "Running", "held": False, "awaits_continue": False}
    rows = [
        (
            ids[each],
            _state(stopped.get(each, running), number),
            *([_retry(each) if each in retried else ""] if role == Role.OPERATOR else []),
        )
        for each, number in counts.items()
    ]
    return ("maintenance", "status", *(["to retry all"] if role == Role.OPERATOR else [])), rows


def _state(maintenance: Json, failed: int) -> str:
    status, held, waits = (maintenance[key] for key in ("status", "held", "awaits_continue"))
    return maintenance_state(status, held=held, failed=failed, in_doubt=0, awaits_continue=waits)


def _retry(maintenance_id: str) -> str:
    return f"forewarn maintenance retry-failed {maintenance_id[:SHORT_ID_CHARS]}"


def _in_place(order: Json) -> bool:
    """Whether this is work on a host whose machines stay there: it cannot be retried, because they run again."""
    return bool(order["host"]) and HostMode.IN_PLACE in EVENT_TYPES[order["type"]].host_modes


def _abandoned(events: list[Json], ids: dict[str, str]) -> Table:
    return (*EVENT_COLUMNS, "why"), [(*_event_cells(event, ids), event["reason"]) for event in events]


def _started(events: list[Json], ids: dict[str, str], now: str) -> Table:
    rows = [(*_event_cells(e, ids), distance(e["started"], now), reasons(e, now)) for e in events]
    return (*EVENT_COLUMNS, "started", "waits for"), rows


def _scheduled(events: list[Json], ids: dict[str, str], now: str) -> Table:
    columns = (*EVENT_COLUMNS, "not before", "not approved by", "why it has not started")
    return columns, [
        (*_event_cells(e, ids), when(e["not_before"], now), missing_approvals(e), reasons(e, now)) for e in events
    ]


def _unannounced(state: Json, ids: dict[str, str], now: str) -> Table:
    """Return the maintenances that have planned events and none that guests see, and what their next wave waits for."""
    shown = {event["maintenance_id"] for event in state["open"]["items"]} | {m["id"] for m in state["paused"]["items"]}
    following: dict[str, Json] = {}
    for event in sorted(state["planned"]["items"], key=lambda event: event["wave"]):
        if event["maintenance_id"] not in shown:
            following.setdefault(event["maintenance_id"], event)
    return ("maintenance", "type", "wave", "waits for"), [
        (ids[each], event["type"], event["wave"], reasons(event, now)) for each, event in following.items()
    ]


def _left_cordoned(hosts: list[Json], left_out: list[Json], now: str) -> Table:
    """Return the hosts that a maintenance has cordoned and not uncordoned, and why its work on them was not done."""
    why = {(order["host"], order["maintenance_id"]): order["reason"] for order in left_out}
    return ("host", "cordoned", "why", "maintenance"), [
        (
            host["name"],
            when(host["cordoned"], now),
            why.get((host["name"], host["cordoned_by"]), ""),
            host["cordoned_by"][:SHORT_ID_CHARS],
        )
        for host in hosts
    ]


def _paused(state: Json, why: str, ids: dict[str, str]) -> Table:
    """Return the maintenances that an operator paused, or those that pause after a wave."""
    return ("maintenance", "type", "created", "by", "description"), [
        (ids[each["id"]], each["type"], full_time(each["created"]), each["created_by"], each["description"])
        for each in state["paused"]["items"]
        if each[why]
    ]
