"""A store prepared before a service is started: a fleet with enabled scopes, and an event for each scope."""

import sqlite3
from contextlib import closing
from pathlib import Path

from forewarn.app.service import Service
from forewarn.core.model import Actor, EventType, MaintenanceRequest, Status, Targets
from forewarn.service.settings import load
from forewarn.store import EventQuery
from forewarn.store.sqlite.store import SqliteStore

DATABASE = "forewarn.db"


def prepare(folder: Path) -> dict[str, str]:
    """Apply fleet.toml, enable its scopes, submit a Reboot in each; return the event of each scope."""
    service = Service(load({"store": f"sqlite:{folder / DATABASE}", "state_dir": str(folder / "prepared")}, {}))
    try:
        service.apply_fleet_file(folder / "fleet.toml")
        events = {}
        for scope in service.store.inventory().scopes:
            service.control.enable(scope, Actor("test"))
            request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope=scope))
            maintenance_id = service.control.submit(request, Actor("test"))
            (event,) = service.control.maintenance(maintenance_id)[1]
            assert event.status is Status.SCHEDULED
            events[scope] = event.id
        return events
    finally:
        service.close()


def approvals(folder: Path) -> list[tuple[str, str, str]]:
    """Return scope, approver and origin of each approval so far, from the audit."""
    with closing(sqlite3.connect(f"file:{folder / DATABASE}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT scope, who, origin FROM audit WHERE action = 'event approved' ORDER BY id")
        return rows.fetchall()


def status(folder: Path, event_id: str) -> Status:
    store = SqliteStore(folder / DATABASE)
    try:
        return next(e.status for e in store.events(EventQuery()).events if e.id == event_id)
    finally:
        store.close()
