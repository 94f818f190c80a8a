"""Find the rows of a page through an index in the page's order, so that the cost does not grow with the history.

No index is ordered across several scopes, statuses or types. So each of them is searched for a page of keys, the newest keys of
all make the page, and only its rows are read. Open events are few: one query reads them all, so that no index has to be
updated when their status changes.
"""

import heapq
import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import product
from typing import Any

from forewarn.core.model import ENDED, OPEN, EventType, Status
from forewarn.store import (
    MAX_SEARCHED,
    SEARCHED_AT_ONCE,
    AuditQuery,
    Backlog,
    Counts,
    EventQuery,
    HostQuery,
    IdKind,
    MachineQuery,
    MaintenanceQuery,
    OpenWavesQuery,
    OrderQuery,
    ScopeQuery,
    selected_scopes,
)
from forewarn.store.sql.rows import Row, Values
from forewarn.store.sql.session import SqlSession

# Up to so many events that ended since a moment are collected and sorted. If there are more, they lie close together among the
# newest numbers, and a scan from there soon finds a page of them.
MAX_GATHERED = 1_000
_NEWEST_NUMBER = 2**62

Scopes = tuple[str, ...] | None


def counts(reader: SqlSession, within: Scopes) -> Counts:
    names = ("count_open", "count_scopes", "count_machines")
    if within is not None:
        names = ("count_open_of_scopes", "count_scopes_of", "count_machines_of")
    found: dict[str, int] = {}
    for name in names:
        (row,) = reader.query(name, scopes=reader.as_list(sorted(set(within or ()))))
        found |= dict(zip(row.keys(), map(row.__getitem__, row.keys()), strict=True))
    return Counts(**found)


def backlog(reader: SqlSession) -> Backlog:
    (events,), (rest,) = reader.query("count_open"), reader.query("backlog")
    start, wake = rest["earliest_start"], rest["earliest_wake"]
    return Backlog(
        **{name: events[name] for name in ("planned", "scheduled", "started", "failed", "in_doubt")},
        open=rest["open"],
        running=rest["running"],
        earliest_start=None if start is None else reader.rows.read_time(start),
        earliest_wake=None if wake is None else reader.rows.read_time(wake),
    )


def scopes(reader: SqlSession, query: ScopeQuery) -> Iterable[Row]:
    wanted = selected_scopes("", query.within)
    if query.text:
        values: Values = {"pattern": _pattern(query.text), "scopes": _optional_list(reader, wanted)}
        return reader.query("scopes_matching", **values, after=query.after, limit=query.limit)
    if wanted is None:
        return reader.query("scopes_page", after=query.after, limit=query.limit)
    found = reader.query("scopes_by_name", names=reader.as_list(name for name in wanted if name > query.after))
    return list(found)[: query.limit]


def machines(reader: SqlSession, query: MachineQuery) -> list[Row]:
    wanted = selected_scopes(query.scope, query.within)
    scope, name = query.after or ("", "")
    values: Values = {"host": query.host, "scopes": _optional_list(reader, wanted), "scope": scope, "name": name}
    if "/" in query.text:
        patterns = _name_patterns(query.text)
        by_key = reader.query("machines_matching_key", **values, **patterns, limit=query.limit)
        by_id = reader.query("machines_matching_instance_id", **values, **patterns, limit=query.limit)
        rows = {(row["scope"], row["name"]): row for row in (*by_key, *by_id)}
        return [rows[key] for key in sorted(rows)[: query.limit]]
    if query.text:
        pattern = _pattern(query.text)
        address = None if {".", ":"}.isdisjoint(query.text) else pattern
        return list(reader.query("machines_matching", **values, pattern=pattern, address=address, limit=query.limit))
    if query.host:
        return list(reader.query("machines_page_of_host", **values, limit=query.limit))
    if wanted is None:
        return list(reader.query("machines_page", scope=scope, name=name, limit=query.limit))
    found: list[Row] = []
    for one in wanted:
        if one >= scope and len(found) < query.limit:
            after = name if one == scope else ""
            found += reader.query("machines_page_of_scope", scope=one, name=after, limit=query.limit - len(found))
    return found


def hosts(reader: SqlSession, query: HostQuery) -> tuple[Iterable[Row], Iterable[Row]]:
    """Return a page of the hosts that carry machines, and a page of the rows of hosts that are listed or cordoned."""
    scopes = _optional_list(reader, selected_scopes("", query.within))
    values: Values = {"after": query.after, "pattern": _pattern(query.text), "limit": query.limit}
    return reader.query("hosts_page", **values, scopes=scopes), reader.query("host_rows_page", **values)


def maintenances(reader: SqlSession, query: MaintenanceQuery) -> list[Row]:
    return _newest(reader, _keys_query(query), "maintenances_by_id", query, query.statuses)


def drills(reader: SqlSession, query: MaintenanceQuery) -> list[Row]:
    return _newest(reader, "drill_keys", "maintenances_by_id", query, ("drill",))


def maintenance_keys(reader: SqlSession, query: MaintenanceQuery) -> list[tuple[Any, str]]:
    return _newest_keys(reader, _keys_query(query), query, query.statuses)


def _keys_query(query: MaintenanceQuery) -> str:
    return "host_maintenance_keys" if query.on_hosts else "maintenance_keys"


def maintenances_matching(reader: SqlSession, ids: Collection[str], text: str) -> Iterable[Row]:
    """Return those of these maintenances that contain the text, and some that only have its parts among their targets."""
    scope, _, name = text.partition("/")
    values = {"pattern": _pattern(text), "scope_part": _pattern(scope), "name_part": _pattern(name)}
    return reader.query("maintenances_matching", ids=reader.as_list(ids), **values)


def wave_progress(reader: SqlSession, maintenance_ids: Collection[str], within: Scopes) -> Iterable[Row]:
    scopes = _optional_list(reader, selected_scopes("", within))
    return reader.query("wave_progress", ids=reader.as_list(sorted(set(maintenance_ids))), scopes=scopes)


def open_waves(reader: SqlSession, query: OpenWavesQuery) -> list[Row]:
    if query == OpenWavesQuery(statuses=query.statuses, types=query.types, limit=query.limit) and (
        OPEN.issubset(query.statuses) and set(EventType).issubset(query.types)
    ):
        return list(reader.query("open_waves_all", limit=query.limit))
    return list(
        reader.query(
            "open_waves",
            host=query.host,
            **_name_patterns(query.text),
            statuses=reader.as_list(query.statuses),
            types=reader.as_list(query.types),
            scopes=_optional_list(reader, selected_scopes(query.scope, query.within)),
            limit=query.limit,
        )
    )


def orders(reader: SqlSession, query: OrderQuery) -> list[Row]:
    return _newest(reader, "order_keys", "orders_of_events", query, query.states, abandoned=query.abandoned)


def ids_starting(reader: SqlSession, kind: IdKind, prefix: str, within: Scopes, limit: int) -> list[str]:
    """Return the ids with this prefix, by one search in the index of ids."""
    # Ids are ASCII and are compared byte by byte: DEL comes after every id that starts with the prefix.
    values = {"prefix": prefix, "after": prefix + "\x7f", "scopes": _optional_list(reader, selected_scopes("", within))}
    return [row["id"] for row in reader.query(f"{kind}_ids_starting", **values, limit=limit)]


def _newest(
    reader: SqlSession,
    keys_query: str,
    rows_query: str,
    query: MaintenanceQuery | OrderQuery,
    kinds: Collection[str],
    **values: bool,
) -> list[Row]:
    """Return the rows of a page, newest first by (time, id)."""
    ids = [i for _, i in _newest_keys(reader, keys_query, query, kinds, **values)]
    rows = {row["id"]: row for row in reader.query(rows_query, ids=reader.as_list(ids))}
    return [rows[i] for i in ids]


def _newest_keys(
    reader: SqlSession, keys_query: str, query: MaintenanceQuery | OrderQuery, kinds: Collection[str], **values: bool
) -> list[tuple[Any, str]]:
    scopes, before, limit = selected_scopes("", query.within), query.before, query.limit
    at, id_ = (reader.rows.time(before[0]), before[1]) if before else (reader.rows.ever, "")
    keys: set[tuple[Any, str]] = set()
    for kind in kinds:
        if scopes is None:
            found = reader.query(keys_query, kind=kind, at=at, id=id_, limit=limit, **values)
            keys.update((row["at"], row["id"]) for row in found)
        for scope in scopes or ():
            found = reader.query(f"{keys_query}_of_scope", scope=scope, kind=kind, at=at, id=id_, limit=limit, **values)
            keys.update((row["at"], row["id"]) for row in found)
    return heapq.nlargest(limit, keys)


# -- events


def event_page(reader: SqlSession, query: EventQuery) -> tuple[list[int], int | None]:
    """Return the event numbers of a page, newest first, and the `before` of the next page or None.

    A search reads at most MAX_SEARCHED events, so its cost does not grow with the history; the next page continues it.
    A search of open events reads them all, in one query: they are few.
    """
    if not query.text or _searches_open_events(query):
        numbers = _event_numbers(reader, query)
        return numbers[: query.limit], numbers[query.limit - 1] if len(numbers) > query.limit else None
    found: list[int] = []
    part = replace(query, limit=SEARCHED_AT_ONCE)
    for _ in range(MAX_SEARCHED // SEARCHED_AT_ONCE):
        numbers = _event_numbers(reader, part)
        read = reader.as_list(numbers[:SEARCHED_AT_ONCE])
        found += _numbers(reader, "events_matching", {"numbers": read, **_name_patterns(query.text)})
        if len(found) > query.limit:
            return found[: query.limit], found[query.limit - 1]
        if len(numbers) <= SEARCHED_AT_ONCE:
            return found, None
        part = replace(part, before=numbers[SEARCHED_AT_ONCE - 1])
    return found, part.before


def _searches_open_events(query: EventQuery) -> bool:
    elsewhere = query.machine or query.host or query.maintenance_id
    return bool(query.text) and OPEN.issuperset(query.statuses) and not elsewhere


def _pattern(text: str) -> str:
    """Return the pattern of LIKE for what contains the text."""
    return f"%{_escaped(text)}%"


def _escaped(text: str) -> str:
    return re.sub(r"([%_\\])", r"\\\1", text)


def _name_patterns(text: str) -> Values:
    """Return the patterns for `scope/name` and for a text that is not searched in two parts.

    Names have no slash, so a text with one is the end of a scope and the start of a name.
    """
    scope, slash, name = text.partition("/")
    return {
        "pattern": _pattern(text),
        "scope_pattern": f"%{_escaped(scope)}" if slash else "%",
        "name_pattern": f"{_escaped(name)}%" if slash else _pattern(text),
    }


def _event_numbers(reader: SqlSession, query: EventQuery) -> list[int]:
    """Return the event numbers of a page, newest first, and one more if there is a next page."""
    scopes = selected_scopes(query.scope, query.within)
    if scopes == ():
        return []
    values: Values = {
        "before": _NEWEST_NUMBER if query.before is None else query.before,
        "since": reader.rows.never if query.since is None else reader.rows.time(query.since),
        "limit": query.limit + 1,
        "machine": query.machine,
        "maintenance_id": query.maintenance_id,
        "statuses": reader.as_list(query.statuses),
        "types": reader.as_list(query.types),
        "scopes": _optional_list(reader, scopes),
    }
    if query.machine:
        return _numbers(reader, "event_numbers_of_machine", values | {"scope": query.scope})
    if query.host:
        return _numbers(reader, "event_numbers_of_host", values | {"host": query.host})
    if query.maintenance_id:
        return _numbers(reader, "event_numbers_of_maintenance", values)
    if _searches_open_events(query):
        return _numbers(reader, "event_numbers_open_matching", values | _name_patterns(query.text))
    wheres: list[Values] = [{}] if scopes is None else [{"scope": scope} for scope in scopes]
    of_scope = "" if scopes is None else "_of_scope"
    if query.since is not None and _few_ended_since(reader, values["since"]):
        found = _numbers(reader, "event_numbers_ended_since", values)
    elif set(query.statuses) == set(Status) and set(query.types) == set(EventType):
        found = [n for where in wheres for n in _numbers(reader, f"event_numbers{of_scope}", values | where)]
        return heapq.nlargest(query.limit + 1, found)
    else:
        found = _ended_of_kinds(reader, query, wheres, values)
    if OPEN.intersection(query.statuses):
        found += [n for where in wheres for n in _numbers(reader, f"event_numbers_open{of_scope}", values | where)]
    return heapq.nlargest(query.limit + 1, found)


def _ended_of_kinds(reader: SqlSession, query: EventQuery, wheres: Iterable[Values], values: Values) -> list[int]:
    """Search once for each requested scope, ended status and type."""
    found: list[int] = []
    for where, status, type_ in product(wheres, ENDED.intersection(query.statuses), set(query.types)):
        name = "event_numbers_of_scope_and_kind" if where else "event_numbers_of_kind"
        found += _numbers(reader, name, values | where | {"status": status, "type": type_})
    return found


def _few_ended_since(reader: SqlSession, since: object) -> bool:
    return not list(reader.query("more_ended_since", since=since, most=MAX_GATHERED))


def _numbers(reader: SqlSession, name: str, values: Values) -> list[int]:
    return [row["number"] for row in reader.query(name, **values)]


# -- audit


def audit(reader: SqlSession, query: AuditQuery) -> Iterable[Row]:
    scopes = selected_scopes(query.scope, query.within)
    name = "audit" if query.after is None else "audit_stream"
    values: Values = {
        "before": _NEWEST_NUMBER if query.before is None else query.before,
        "after": query.after,
        "maintenance_id": query.maintenance_id,
        "event_id": query.event_id,
        "scopes": _optional_list(reader, scopes),
        "limit": query.limit,
    }
    if query.event_id:
        return reader.query(f"{name}_of_event", **values)
    if query.maintenance_id:
        return reader.query(f"{name}_of_maintenance", **values)
    if scopes is None:
        return reader.query(name, **values)
    ids = [n for scope in scopes for n in _numbers(reader, f"{name}_ids_of_scope", {"scope": scope, **values})]
    ids.sort(reverse=query.after is None)
    found = {row["id"]: row for row in reader.query("audit_by_id", ids=reader.as_list(ids[: query.limit]))}
    return [found[i] for i in ids[: query.limit]]


def _optional_list(reader: SqlSession, scopes: Scopes) -> object:
    return None if scopes is None else reader.as_list(scopes)
