"""What failed, in the command line alone: found, retried together, and what `wait` says about it.

The service and most commands run in this process, on a clock that the test moves.
"""

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.cli.command_line import DONE, FAILED, FOREWARN, first_event
from tests.support import forty_hosts
from tests.support.running_service import RunningService
from tests.support.waiting import PATIENCE_S

SCHEDULE = ["maintenance", "schedule", "--type", "Reboot", "--yes", "--no-notice-ok"]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    """A service with 40 hosts, whose simulated work fails where the story says."""
    with forty_hosts.running() as running:
        monkeypatch.setenv("FOREWARN_SERVER", running.url)
        monkeypatch.setenv("FOREWARN_TOKEN", running.token)
        yield running


def test_forty_hosts_in_the_command_line_alone(service: RunningService, forewarn: Command) -> None:
    """`wait` ends with 1 and says why; `status` shows what failed and the command that retries all; then it completes."""
    hosts = [option for host in forty_hosts.HOSTS for option in ("--host", host)]
    code, output, _ = forewarn(*SCHEDULE, *hosts)
    assert code == DONE
    maintenance_id = output.splitlines()[-1].split()[1]
    assert forewarn("clock", "advance", "40m")[0] == DONE
    code, _, errors = forewarn("maintenance", "wait", maintenance_id)
    assert code == FAILED
    assert f"only an operator can move maintenance {maintenance_id}, Held: 3 orders failed: event" in errors
    assert "its order failed (simulated failure of attempt 1)" in errors
    assert f"`forewarn maintenance retry-failed {maintenance_id}`" in errors
    _, status, _ = forewarn("status")
    failing_hosts = {host for order in service.get("/v1/orders?state=failed")["items"] for host in order["hosts"]}
    assert failing_hosts <= set(forty_hosts.HOSTS)
    assert len(failing_hosts) == 3
    assert "now: 3 failed, 0 in progress" in status
    assert all(machine in status for machine in forty_hosts.FAILING)
    assert all(host in status for host in failing_hosts)
    assert f"Held: 3 orders failed  forewarn maintenance retry-failed {maintenance_id[:8]}" in status
    assert "Held: 3 orders failed" in forewarn("maintenance", "show", maintenance_id)[1]
    assert "Held: 3 orders failed" in forewarn("maintenance", "list")[1]
    held = service.get("/v1/events?status=Planned&limit=1")["items"][0]["id"]
    assert f"`forewarn maintenance retry-failed {maintenance_id}`" in forewarn("event", "why", held)[2]
    assert forty_hosts.FAILING[0] in forewarn("order", "list", "--match", forty_hosts.FAILING[0])[1]
    assert forewarn("order", "list", "--match", "failure", "--state", "open")[1] == "no open orders\n"
    retried = forewarn("maintenance", "retry-failed", maintenance_id[:8])
    assert retried == (DONE, f"maintenance {maintenance_id} is Running\n", "")
    assert forewarn("clock", "advance", "40m")[0] == DONE
    assert forewarn("maintenance", "wait", maintenance_id)[0] == DONE
    assert "now: 0 failed" in forewarn("status")[1]
    code, _, errors = forewarn("maintenance", "retry-failed", maintenance_id)
    assert (code, "it is Completed" in errors) == (FAILED, True)


def test_wait_goes_on_through_a_pause_and_ends_at_a_held_store(service: RunningService) -> None:
    """The pause is said. When only the hold is in the way, `wait` ends with 1 and names the hold and its end."""
    maintenance_id = service.schedule("s0/vm-0", not_before="2030-01-01T01:00:00Z")["id"]
    service.post(f"/v1/maintenances/{maintenance_id}/pause")
    command = [*FOREWARN, "maintenance", "wait", maintenance_id, "--json"]
    waiting = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert waiting.stderr is not None
    assert waiting.stderr.readline() == (
        f"maintenance {maintenance_id} is paused: it continues when an operator resumes it\n"
    )
    service.post("/v1/store/hold", {"reason": "a drill"})
    service.post(f"/v1/maintenances/{maintenance_id}/resume")
    assert waiting.poll() is None
    service.post("/v1/clock/advance", {"seconds": 3_600})
    output, errors = waiting.communicate(timeout=PATIENCE_S)
    assert (waiting.returncode, '"store-held"' in output) == (FAILED, True)
    assert "the store is held: operator requested it: a drill; run `forewarn db resume`" in errors


def test_why_names_the_failure_of_another_maintenance(
    service: RunningService, forewarn: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It suggests to resolve the failed event, and `wait` ends for the same reason; a viewer sees the reason alone."""
    failing = first_event(service.schedule(forty_hosts.FAILING[0]))["id"]
    service.post("/v1/clock/advance", {"seconds": forty_hosts.WORK_S})
    assert failing in forewarn("order", "list", "--state", "failed")[1]
    plan = forewarn(*SCHEDULE, "--machine", "s1/vm-0", "--dry-run")[1]
    assert plan.count(f"! blocked: event {failing} has started in update domain 1 of s1, and its order failed") == 1
    other = service.schedule("s1/vm-0")
    event_id, retry = first_event(other)["id"], f"`forewarn event retry {failing}`"
    _, why, hints = forewarn("event", "why", event_id)
    assert f"event {failing} has started in update domain 1 of s1, and its order failed" in why
    assert retry in hints
    assert retry in forewarn("event", "show", event_id)[1]
    code, _, errors = forewarn("maintenance", "wait", other["id"])
    assert (code, retry in errors) == (FAILED, True)
    monkeypatch.setenv("FOREWARN_TOKEN", service.token_of("viewer"))
    assert forewarn("event", "why", event_id) == (DONE, why, "")
    assert "forewarn event" not in forewarn("status")[1]
    monkeypatch.setenv("FOREWARN_TOKEN", service.token)
    assert forewarn("event", "abandon", failing)[0] == DONE
    assert forewarn("order", "list", "--state", "failed")[1] == "no failed orders\n"
