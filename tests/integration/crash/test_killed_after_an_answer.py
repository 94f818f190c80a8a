"""The service is killed with SIGKILL right after it answered, again and again: what it answered is on disk."""

import http.client
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from forewarn.app.service import Service
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import Actor, EventType, MaintenanceRequest, OrderState, Status, Targets
from forewarn.service.clock import SystemClock
from forewarn.service.settings import load
from forewarn.store import Focus, Store
from forewarn.store.opening import open_store
from tests.support.budget import BUDGET
from tests.support.postgres_servers import server
from tests.support.waiting import PATIENCE_S, first_accepted

ROOT = Path(__file__).parents[3]
KILLS = {"sqlite": 24, "postgres": 6} if BUDGET == 1 else {"sqlite": 1_000, "postgres": 60}
URL = "/metadata/scheduledevents?api-version=2020-07-01"
# Longer than any soak: a published event must not start before the life in which it is approved.
NOTICE = timedelta(days=30)
TEST = Actor("test")


@dataclass(frozen=True)
class Target:
    """A scope with one machine. Its event is not planned yet, published, or started, as the act on it needs."""

    number: int
    event_id: str = ""

    @property
    def scope(self) -> str:
        return f"s-{self.number}"

    @property
    def address(self) -> str:
        return f"127.0.{self.number // 250}.{self.number % 250 + 2}"


class KilledService:
    """One life of the service: it gets one request, and is killed when the answer is there."""

    def __init__(self, pid: int, urls: dict[str, str], token: str) -> None:
        self._pid, self._urls, self._token = pid, urls, token

    def answered(self, url: str, path: str, body: object, headers: dict[str, str], source: str = "127.0.0.1") -> Any:
        """Send a request, kill the service as soon as it has answered, and return the answer.

        Repeat a request that is answered 503, "try again": a busy machine may exceed a time limit of the service. What it
        wanted may be saved all the same, and then its repeat may be refused, because it is done already.
        """
        request = (url, path, body, headers, source)
        first = self._ask(*request)
        status, answer = (
            first_accepted(lambda: self._ask(*request), lambda a: a[0] != 503) if first[0] == 503 else first
        )
        assert status in (200, 201) or (first[0], status) == (503, 409), answer
        return json.loads(answer) if answer else None

    def _ask(self, url: str, path: str, body: object, headers: dict[str, str], source: str) -> tuple[int, bytes]:
        address = urlsplit(self._urls[url])
        connection = http.client.HTTPConnection(
            str(address.hostname), address.port, timeout=PATIENCE_S, source_address=(source, 0)
        )
        with closing(connection):
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            answer = response.read()
            if response.status != 503:
                os.kill(self._pid, signal.SIGKILL)
        return response.status, answer

    def as_operator(self, path: str, body: object) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Idempotency-Key": str(uuid.uuid4())}
        return self.answered("operator", path, body, headers)

    def submit(self, target: Target) -> str:
        wanted = {"type": "Reboot", "targets": {"machines": [f"{target.scope}/m"]}}
        return str(self.as_operator("/v1/maintenances", wanted)["id"])

    def approve(self, target: Target) -> str:
        requests = {"StartRequests": [{"EventId": target.event_id}]}
        self.answered("guest", URL, requests, {"Metadata": "true"}, target.address)
        return target.event_id

    def report(self, target: Target) -> str:
        self.as_operator(f"/v1/orders/{target.event_id}/finish", {})
        return target.event_id


def has_plan(store: Store, maintenance_id: str) -> bool:
    snapshot = store.snapshot(Focus(maintenances=(maintenance_id,)))
    return maintenance_id in snapshot.maintenances and bool(snapshot.events)


def has_approval(store: Store, event_id: str) -> bool:
    event = store.snapshot(Focus(events=(event_id,))).events[event_id]
    return [approval.machine for approval in event.approvals] == ["m"]


def has_report(store: Store, event_id: str) -> bool:
    snapshot = store.snapshot(Focus(events=(event_id,)))
    return (snapshot.orders[event_id].state, snapshot.events[event_id].status) == (OrderState.DONE, Status.COMPLETED)


ACTS = (
    (KilledService.submit, has_plan),
    (KilledService.approve, has_approval),
    (KilledService.report, has_report),
)


class Lives:
    """The process that forks a service for each life."""

    def __init__(self, process: "subprocess.Popen[str]", state_dir: Path) -> None:
        self._process, self._state_dir = process, state_dir

    @contextmanager
    def one(self) -> Iterator[KilledService]:
        """Yield a service that is ready; at the end it must have been killed."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        pid = int(self._line("pid "))
        urls = dict(pair.split("=", 1) for pair in self._line("ready ").split())
        yield KilledService(pid, urls, (self._state_dir / "operator.token").read_text().strip())
        assert self._line("ended ") == str(-signal.SIGKILL)

    def _line(self, beginning: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith(beginning), line
        return line.removeprefix(beginning).strip()


@contextmanager
def lives(flags: dict[str, str]) -> Iterator[Lives]:
    command = [sys.executable, "-m", "tests.integration.crash.warm_server", json.dumps(flags)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Lives(process, Path(flags["state_dir"]))
    finally:
        process.kill()  # what it forked dies with it
        process.communicate()


def prepare(flags: dict[str, str], kills: int) -> list[Target]:
    """Put a scope for each life into the store: every third has a published event, and every third a started one."""
    targets = [Target(number) for number in range(kills)]
    fleet = "".join(
        f'[[scopes]]\nname = "{t.scope}"\nkind = "availability-set"\n'
        f'[[machines]]\nscope = "{t.scope}"\nname = "m"\naddresses = ["{t.address}"]\n'
        for t in targets
    )
    service = Service(load(flags, {}), clock=SystemClock())
    with closing(service):
        control = service.control
        control.apply_fleet(parse_fleet(fleet, "the test"), TEST)
        not_before = datetime.now(UTC) + NOTICE
        for target in targets:
            act = target.number % len(ACTS)
            if act:
                wanted = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(machines=((target.scope, "m"),)))
                if act == 1:  # an enabled scope gets its notice; in a disabled one an event starts at once
                    control.enable(target.scope, Actor("guest"))
                    wanted = replace(wanted, not_before=not_before)
                (event,) = control.maintenance(control.submit(wanted, TEST))[1]
                targets[target.number] = Target(target.number, event.id)
        service.ticker.cycle_until_idle()
        service.ticker.leases.release_ticker()
    return targets


def kill_after_answers(flags: dict[str, str], kills: int) -> None:
    answered = []
    with lives(flags) as forked:
        for target in prepare(flags, kills):
            act, is_saved = ACTS[target.number % len(ACTS)]
            with forked.one() as service:
                thing = act(service, target)
            with closing(open_store(flags["store"])) as store:
                assert is_saved(store, thing), f"{act.__name__} of {target} was answered and is lost"
            answered.append((is_saved, thing))
    with closing(open_store(flags["store"])) as store:
        assert len(answered) == kills
        assert all(is_saved(store, thing) for is_saved, thing in answered), "what was saved is lost"


def flags_of(store: str, state_dir: Path) -> dict[str, str]:
    listeners = {"guest": "127.0.0.1:0", "operator": "127.0.0.1:0", "rate_limit": "0"}
    return {"store": store, "state_dir": str(state_dir), **listeners}


@pytest.mark.timeout(600 * BUDGET)
def test_what_was_answered_is_in_the_embedded_store(tmp_path: Path) -> None:
    """Submissions by an operator, approvals by a guest and reports survive a kill that follows the answer."""
    kill_after_answers(flags_of(f"sqlite:{tmp_path}/forewarn.db", tmp_path), KILLS["sqlite"])


@pytest.mark.timeout(600 * BUDGET)
def test_what_was_answered_is_in_postgresql(tmp_path: Path) -> None:
    """The same holds for a node on PostgreSQL."""
    with server() as postgres:
        # Nothing here is about how long a connect may take.
        store = f"{postgres.address(postgres.database())}?connect_timeout={PATIENCE_S:.0f}"
        with closing(open_store(store)):  # creates the schema
            pass
        kill_after_answers(flags_of(store, tmp_path), KILLS["postgres"])
