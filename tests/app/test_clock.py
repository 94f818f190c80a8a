"""A clock that jumped: what a real service and the real commands show an operator."""

import json
import os
import subprocess
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from forewarn.core.change import Change
from forewarn.core.model import ClockHold, Event, EventType, Machine, Maintenance, Scope, ScopeKind, Source, Status
from forewarn.store.sqlite.store import SqliteStore
from tests.support.serve_process import forewarn, serving
from tests.support.waiting import PATIENCE_S, until

EVENT = "A1B2C3D4-0000-4000-8000-000000000000"


def held_store(path: Path) -> None:
    """Save an event whose NotBefore has passed, on a clock that jumped over it."""
    now = datetime.now(UTC)
    then = now - timedelta(minutes=5)
    event = Event(
        id=EVENT,
        maintenance_id="M",
        wave=1,
        position=0,
        scope="shop",
        update_domain=0,
        type=EventType.REBOOT,
        source=Source.PLATFORM,
        resources=("web-0",),
        status=Status.SCHEDULED,
        published=then - timedelta(minutes=15),
        not_before=then,
        minimum_notice_s=900,
    )
    maintenance = Maintenance(
        id="M",
        type=EventType.REBOOT,
        source=Source.PLATFORM,
        created=then,
        created_by="operator",
        wake_at=then,
        observed_published_at=event.published,
    )
    hold = ClockHold(trusted=then - timedelta(minutes=10), noticed=now, jumped_s=3_600)
    with closing(SqliteStore(path)) as store:
        store.apply(
            Change(
                at=now,
                scopes=(Scope(name="shop", kind=ScopeKind.AVAILABILITY_SET, enabled=True, epoch=1),),
                machines=(Machine(scope="shop", name="web-0"),),
                maintenances=(maintenance,),
                events=(event,),
                hold=hold,
            )
        )


def test_an_operator_confirms_a_held_clock(tmp_path: Path) -> None:
    """Commands show that the clock is held and how to confirm it; after that the event starts; a second time is refused."""
    held_store(tmp_path / "f.db")

    def run_command(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            forewarn(*arguments),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env={**os.environ, "FOREWARN_STATE_DIR": str(tmp_path)},
        )

    with serving("--store", f"sqlite:{tmp_path}/f.db", "--state-dir", str(tmp_path)) as service:
        readiness = service.until_ready()
        assert "jumped forward by 3600 s" in json.dumps(readiness)
        assert "held: it jumped forward by 3600 s" in run_command("clock", "show").stdout
        assert "CLOCK HELD: it jumped forward by 3600 s" in run_command("status").stdout
        assert "forewarn clock confirm" in run_command("event", "why", EVENT).stderr
        assert json.loads(run_command("event", "show", EVENT, "--json").stdout)["status"] == "Scheduled"
        confirmed = run_command("clock", "confirm")
        assert (confirmed.returncode, "held" in confirmed.stdout) == (0, False)
        until(lambda: json.loads(run_command("event", "show", EVENT, "--json").stdout)["status"] == "Started")
        again = run_command("clock", "confirm")
        assert again.returncode == 1
        assert "the clock is not held" in again.stderr
