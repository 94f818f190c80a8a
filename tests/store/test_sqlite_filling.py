"""How the SQLite store saves a fleet into empty tables: as it saves single machines, with the same rules and indexes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.core.errors import Conflict
from forewarn.core.model import Machine
from forewarn.store.sqlite import filling
from forewarn.store.sqlite.store import SqliteStore
from tests.support.records import change, machine, scope

SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
FLEET = [
    *(machine(f"vm-{number}", addresses=(f"10.0.0.{number}", f"fd00::{number}")) for number in range(1, 70)),
    machine("by-interface", interface="tap0", labels={"rack": "b4"}),
    machine("by-id", instance_id="i-1", host="host-1", update_domain=3, fault_domain=1),
]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    monkeypatch.setattr(filling, "MANY_MACHINES", 70)
    store = SqliteStore(tmp_path / "forewarn.db")
    yield store
    store.close()


def save(store: SqliteStore, machines: list[Machine]) -> None:
    store.apply(change(expect=[("shop", 0)], scopes=[scope()], machines=machines))


def test_a_fleet_is_saved_whole(store: SqliteStore) -> None:
    """Filling saves every machine with its addresses and labels, and leaves the schema as it was."""
    before = [tuple(row) for row in store._writer.execute(SCHEMA)]
    save(store, FLEET)
    assert store.inventory().machines == {each.key: each for each in FLEET}
    assert [tuple(row) for row in store._writer.execute(SCHEMA)] == before


@pytest.mark.parametrize("same", [{"addresses": ("10.0.0.1",)}, {"interface": "tap0"}, {"instance_id": "i-1"}])
def test_a_fleet_with_two_equal_identities_is_refused(store: SqliteStore, same: dict[str, object]) -> None:
    """Filling refuses an identity of two machines, saves nothing, and leaves the schema as it was."""
    before = [tuple(row) for row in store._writer.execute(SCHEMA)]
    with pytest.raises(Conflict, match="another machine has the same address or instance id"):
        save(store, [*FLEET, machine("second", **same)])
    assert not store.inventory().machines
    assert [tuple(row) for row in store._writer.execute(SCHEMA)] == before
