"""How the SQLite store finds things: by an index, whatever the size of the history. Every named query is looked at."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from forewarn.core.model import OrderState, Status
from forewarn.store.sql.scripts import queries
from forewarn.store.sqlite.store import SqliteStore
from tests.support.records import at, change, ended, entry, event, machine, maintenance, order, scope

QUERIES = queries("sqlite")
# Their purpose is to read all there is.
READ_EVERYTHING = {
    "scopes_all",
    "scope_names",
    "machines_all",
    "addresses_all",
    "machines_known",
    "tokens_all",
    "token_uses",
    "hooks_all",
    "hosts_all",
    "count_open",
    "backlog",
    "begin_epochs",
    "count_scopes",
    "count_machines",
}
# Counts every open event by the index of open events, and sorts the groups.
GROUP_THE_OPEN = {
    "open_waves": "SCAN e USING INDEX events_open",
    "open_waves_all": "SCAN e USING INDEX events_open_by_wave",
}
# Reads the whole index of instance ids: a part of one can be anywhere in it.
READ_AN_INDEX = {"machines_matching_instance_id"}
# Each of its tables has one row, so the planner may read all of it.
READ_ONE_ROW = {"rules_and_holds"}
# Walks the primary key from its beginning and stops at its limit.
WALK_THE_KEY = {"oldest_audit", "newest_audit"}
IN_ORDER_OF_AN_INDEX = (
    "due",
    "due_latest_first",
    "next_wakeup",
    "old_maintenances",
    "orders_in_state",
    "scopes_page",
    "machines_page",
    "machines_labelled",
    "machines_labelled_of_scopes",
    "machines_page_of_scope",
    "machines_page_of_host",
    "scopes_matching",
    "machines_matching",
    "machines_matching_key",
    "hosts_page",
    "host_rows_page",
    "maintenance_keys",
    "maintenance_keys_of_scope",
    "host_maintenance_keys",
    "host_maintenance_keys_of_scope",
    "drill_keys",
    "drill_keys_of_scope",
    "order_keys",
    "order_keys_of_scope",
    "event_numbers",
    "event_numbers_of_kind",
    "event_numbers_of_scope",
    "event_numbers_of_scope_and_kind",
    "event_numbers_open",
    "event_numbers_open_matching",
    "event_numbers_open_of_scope",
    "event_numbers_of_machine",
    "audit",
    "audit_ids_of_scope",
    "audit_of_maintenance",
    "audit_of_event",
    "audit_stream",
    "audit_stream_ids_of_scope",
    "audit_stream_of_maintenance",
    "audit_stream_of_event",
    "forget_receipts",
    "forget_sessions",
    "limit_sessions",
    "limit_deliveries",
    "deliveries",
    "event_ids_starting",
    "order_ids_starting",
    "maintenance_ids_starting",
)
# Read of the index alone: rows are met only where they are shown.
WITHOUT_THE_ROWS = (
    "maintenance_keys",
    "maintenance_keys_of_scope",
    "order_keys",
    "order_keys_of_scope",
    "more_ended_since",
    "event_numbers_ended_since",
    "audit_ids_of_scope",
    "audit_stream_ids_of_scope",
)
LISTS = ("names", "keys", "ids", "hosts", "scopes", "statuses", "types", "numbers")
HISTORY = 3_000
LATEST: dict[str, object] = {"at": "~", "id": "", "limit": 5}
NEWEST: dict[str, object] = {"before": 2**62, "since": "", "limit": 5}


def fill(path: Path, *, history: int) -> None:
    """A fleet with one open maintenance, and a history of so many ended ones in the same scope."""
    store = SqliteStore(path)
    fleet = [machine(f"web-{n}", addresses=(f"10.0.{n // 250}.{n % 250}",), host=f"h{n % 40}") for n in range(500)]
    store.apply(change(scopes=[scope(), *(scope(f"s{n}") for n in range(500))], machines=fleet))
    numbers = range(history)
    store.apply(
        change(
            maintenances=[ended(maintenance(f"M{n}"), at(n)) for n in numbers],
            events=[event(f"E{n}", f"M{n}", status=Status.COMPLETED, resources=(f"web-{n % 500}",)) for n in numbers],
            orders=[order(f"E{n}", state=OrderState.DONE) for n in numbers],
            audit=[entry(scope="shop", maintenance_id=f"M{n}", event_id=f"E{n}") for n in numbers],
        )
    )
    now = [maintenance("now", wake_at=at(1))]
    store.apply(change(maintenances=now, events=[event("now", "now", status=Status.STARTED)], orders=[order("now")]))
    store.close()


@pytest.fixture(scope="module", params=["as it grew", "analyzed"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """Thousands of rows, with and without statistics: the planner must not change its mind."""
    path = tmp_path_factory.mktemp("plans") / "forewarn.db"
    fill(path, history=HISTORY)
    with closing(sqlite3.connect(path)) as connection:
        if request.param == "analyzed":
            connection.execute("ANALYZE")
            connection.execute("PRAGMA optimize")
        yield connection


def values_for(text: str) -> dict[str, object]:
    return {name: "[]" if name in LISTS else None for name in re.findall(r":(\w+)", text)}


def plan(connection: sqlite3.Connection, name: str) -> list[str]:
    text = QUERIES[name]
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", values_for(text))]


def scans(steps: list[str]) -> list[str]:
    """Steps that read a table from end to end; a JSON list that came in is no table."""
    return [step for step in steps if step.startswith("SCAN") and "VIRTUAL TABLE" not in step]


@pytest.mark.parametrize(
    "name",
    sorted(QUERIES.keys() - READ_EVERYTHING - READ_ONE_ROW - WALK_THE_KEY - GROUP_THE_OPEN.keys() - READ_AN_INDEX),
)
def test_a_query_finds_its_rows_by_an_index(database: sqlite3.Connection, name: str) -> None:
    """No query reads a table from end to end, unless that is its purpose."""
    steps = plan(database, name)
    assert scans(steps) == []
    looks_for_rows = "INSERT INTO" not in QUERIES[name] or "SELECT" in QUERIES[name]
    assert bool(steps) == looks_for_rows, "a query that looks for rows has a plan to look at"


@pytest.mark.parametrize("name", sorted(READ_EVERYTHING | WALK_THE_KEY))
def test_the_exceptions_are_what_they_claim_to_be(database: sqlite3.Connection, name: str) -> None:
    """What may scan does so, once, in the order it wants: without sorting."""
    steps = plan(database, name)
    assert len(scans(steps)) == 1
    assert not any("TEMP B-TREE" in step for step in steps)


def test_instance_ids_are_searched_in_their_index(database: sqlite3.Connection) -> None:
    """Machines without an instance id are not read."""
    assert scans(plan(database, "machines_matching_instance_id")) == [
        "SCAN machines USING INDEX machines_by_instance_id"
    ]


@pytest.mark.parametrize("name", sorted(GROUP_THE_OPEN))
def test_only_open_events_are_counted(database: sqlite3.Connection, name: str) -> None:
    """The history is not read: the one scan of events is of the index of open events; the groups are few."""
    steps = plan(database, name)
    groups = ("SCAN matching", "SCAN grouped", "SCAN w", "SCAN t")
    assert [step for step in scans(steps) if step not in groups] == [GROUP_THE_OPEN[name]]
    assert any(step.startswith("SEARCH m ") for step in steps)


@pytest.mark.parametrize("name", IN_ORDER_OF_AN_INDEX)
def test_what_has_a_limit_is_not_sorted_first(database: sqlite3.Connection, name: str) -> None:
    """A page, or the next thing due, is read off its index in order, and reading stops at the limit."""
    assert not any("TEMP B-TREE" in step for step in plan(database, name))


@pytest.mark.parametrize("name", WITHOUT_THE_ROWS)
def test_keys_are_read_off_the_index_alone(database: sqlite3.Connection, name: str) -> None:
    """What is sought in many places and thrown away again does not touch the rows."""
    found = [step for step in plan(database, name) if re.match("SEARCH (events|orders|maintenance|audit)", step)]
    assert found
    assert all("COVERING INDEX" in step or "PRIMARY KEY" in step for step in found), found


def test_open_events_are_found_without_the_history(database: sqlite3.Connection) -> None:
    """A snapshot reads what is open, by the index that holds nothing else."""
    assert any("events_open_by_scope" in step for step in plan(database, "events_open_in_scopes"))


def steps_taken(path: Path, name: str, values: dict[str, object]) -> int:
    """How many instructions of SQLite's machine the query takes: work without a clock."""
    with closing(sqlite3.connect(path)) as connection:
        taken = 0

        def count() -> None:
            nonlocal taken
            taken += 1

        connection.set_progress_handler(count, 1)
        assert connection.execute(QUERIES[name], values).fetchall()
        return taken


def test_the_work_of_the_present_does_not_grow_with_the_past(tmp_path: Path) -> None:
    """What a poll, a tick, an executor and a list ask costs the same with ten ended maintenances as with thousands."""
    parameters: dict[str, dict[str, object]] = {
        "events_open_in_scopes": {"names": '["shop"]'},
        "scopes_of_maintenances": {"ids": '["now"]'},
        "due": {"now": "2031", "limit": 100},
        "due_latest_first": {"now": "2031", "limit": 100},
        "next_wakeup": {},
        "orders_in_state": {"state": "open", "limit": 100},
        "scopes_page": {"after": "s1", "limit": 5},
        "machines_page": {"scope": "shop", "name": "web-3", "limit": 5},
        "machines_page_of_scope": {"scope": "shop", "name": "web-3", "limit": 5},
        "machines_page_of_host": {"host": "h3", "scope": "", "name": "", "scopes": '["shop"]', "limit": 5},
        "maintenance_keys": {"kind": "Completed", **LATEST},
        "maintenance_keys_of_scope": {"scope": "shop", "kind": "Planned", **LATEST},
        "order_keys": {"kind": "done", "abandoned": False, **LATEST},
        "order_keys_of_scope": {"scope": "shop", "kind": "open", "abandoned": False, **LATEST},
        "event_numbers": NEWEST,
        "event_numbers_open": {**NEWEST, "statuses": '["Started"]', "types": '["Reboot"]'},
        "event_numbers_open_of_scope": {**NEWEST, "scope": "shop", "statuses": '["Started"]', "types": '["Reboot"]'},
        "event_numbers_of_kind": {**NEWEST, "status": "Completed", "type": "Reboot"},
        "event_numbers_of_scope": {**NEWEST, "scope": "shop"},
        "event_numbers_of_scope_and_kind": {**NEWEST, "scope": "shop", "status": "Completed", "type": "Reboot"},
        "more_ended_since": {"since": "2030", "most": 5},
        "event_ids_starting": {"prefix": "E1", "after": "E1\x7f", "scopes": None, "limit": 1},
        "order_ids_starting": {"prefix": "E1", "after": "E1\x7f", "scopes": None, "limit": 1},
        "maintenance_ids_starting": {"prefix": "M1", "after": "M1\x7f", "scopes": None, "limit": 1},
        "audit": {"before": 2**62, "limit": 5},
        "audit_ids_of_scope": {"before": 2**62, "limit": 5, "scope": "shop"},
        "audit_stream": {"after": 2, "limit": 5},
        "audit_stream_ids_of_scope": {"after": 2, "limit": 5, "scope": "shop"},
    }
    for name, history in (("short", 10), ("long", HISTORY)):
        fill(tmp_path / name, history=history)
    short = {name: steps_taken(tmp_path / "short", name, values) for name, values in parameters.items()}
    long = {name: steps_taken(tmp_path / "long", name, values) for name, values in parameters.items()}
    assert long == short


def test_every_foreign_key_has_an_index(database: sqlite3.Connection) -> None:
    """Removing a row looks up its children: without an index each removal would read the whole child table."""
    keys = 0
    for (table,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        indexes = [
            [column[2] for column in database.execute(f"PRAGMA index_info('{index[1]}')")]
            for index in database.execute(f"PRAGMA index_list('{table}')")
            if not index[4]
        ]
        foreign: dict[int, list[str]] = {}
        for row in database.execute(f"PRAGMA foreign_key_list('{table}')"):
            foreign.setdefault(row[0], []).append(row[3])
        for columns in foreign.values():
            keys += 1
            assert any(index[: len(columns)] == columns for index in indexes), f"{table} ({', '.join(columns)})"
    assert keys >= 6
