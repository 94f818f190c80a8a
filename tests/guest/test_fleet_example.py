"""The worked example of the page about fleets: forty hosts, rack by rack, at night; in a soak 2,000 machines.

Every machine approves over HTTP: some through a real agent, which is a process, the others through the SDK. In a soak 20
machines have an agent.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from forewarn.guest import Client
from tests.support.agent_command import agent_command
from tests.support.budget import BUDGET
from tests.support.running_service import RunningService, running_service
from tests.support.waiting import until

RACKS, HOSTS, MACHINES_PER_SCOPE = 10, 40, 20
SCOPES = 10 * min(BUDGET, 10)
# The machine `vm-NN` of the scope `app-NN` has an agent: two machines of each rack in a soak, one of the first four otherwise.
AGENTS = 20 if BUDGET > 1 else 4
# Its order fails at the first attempt, in the third wave.
FAILING = "app-07/vm-02"
WORK_S = 300
# More moments than any wave needs: the end of the work before it, the bake time, the notice, and the window.
MAX_MOVES = 20
REQUEST: dict[str, Any] = {
    "type": "Reboot",
    "targets": {"hosts": ["kvm-*"]},
    "duration_s": WORK_S,
    "on_failure": "continue",
    "strategy": {
        "group_by": "label:rack",
        "canary": 1,
        "pause_after": 1,
        "bake_s": 1_800,
        "max_failures": "1",
        "windows": ["nights"],
    },
}


AGENT = """
endpoint = "{endpoint}"
source_address = "{address}"
state_dir = "state"
boot_id_file = "boot"
[[steps]]
name = "drain"
[steps.command]
prepare = ["/bin/sh", "-c", "echo prepare >> did"]
recover = ["/bin/sh", "-c", "echo recover >> did"]
"""


def address_of(scope: int, number: int) -> str:
    return f"127.77.{scope + 1}.{number + 1}"


def fleet() -> str:
    """Ten racks of four hosts. Each scope has two machines in each rack, which are in one update domain.

    An event starts before its NotBefore only if both machines approve it.
    """
    hosts = [f'[[hosts]]\nname = "kvm-{n:02}"\nlabels = {{rack = "r{n // 4 + 1}"}}\n' for n in range(HOSTS)]
    scopes = [f'[[scopes]]\nname = "app-{n:02}"\nkind = "availability-set"\napproval = "all"\n' for n in range(SCOPES)]
    machines = [
        f'[[machines]]\nscope = "app-{scope:02}"\nname = "vm-{number:02}"\nupdate_domain = {number % RACKS // 2}\n'
        f'host = "kvm-{number % RACKS * 4 + (scope + number // RACKS) % 4:02}"\n'
        f'addresses = ["{address_of(scope, number)}"]\n'
        for scope in range(SCOPES)
        for number in range(MACHINES_PER_SCOPE)
    ]
    return "".join([*hosts, *scopes, *machines])


class Machines:
    """The machines of the fleet: agents are processes with a folder each, the other machines use the SDK when a test says so."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        self._endpoint = endpoint
        self.agents = [folder / f"agent-{number:02}" for number in range(AGENTS)]

    @contextmanager
    def running_agents(self) -> Iterator[None]:
        """Run the agents until the end of the block."""
        processes = []
        try:
            for number, folder in enumerate(self.agents):
                folder.mkdir()
                (folder / "boot").write_text("boot-1")
                config = AGENT.format(endpoint=self._endpoint, address=address_of(number, number))
                (folder / "agent.toml").write_text(config)
                (folder / "agent.toml").chmod(0o600)
                command = agent_command("run", "--config", "agent.toml")
                with (folder / "log").open("wb") as log:
                    processes.append(subprocess.Popen(command, cwd=folder, stderr=log))
            yield
        finally:
            for process in processes:
                process.kill()
                process.wait()

    def approve(self, rack: int) -> None:
        """Let the machines of a rack that have no agent approve their events; the SDK finds out which these are."""
        for scope in range(SCOPES):
            for number in (rack, rack + RACKS):
                if scope != number or scope >= AGENTS:
                    self._approve(address_of(scope, number))

    def _approve(self, address: str) -> None:
        client = Client(self._endpoint, source_address=address)
        try:
            me = client.me()
            client.approve(*(event for event in client.document().events if me.is_in(event)))
        finally:
            client.close()

    def actions(self) -> list[list[str]]:
        """Return what each agent did with its machine."""
        files = [folder / "did" for folder in self.agents]
        return [file.read_text().splitlines() if file.exists() else [] for file in files]

    def logs(self) -> list[str]:
        return [(folder / "log").read_text() for folder in self.agents]


def wave_of(service: RunningService, path: str, number: int) -> list[dict[str, Any]]:
    return next(wave["events"] for wave in service.get(path)["waves"] if wave["number"] == number)


def move_until(service: RunningService, path: str, wave: int, status: str) -> None:
    """Move the clock from one due moment to the next until every event of the wave has this status."""
    ticker = service.service.ticker
    for _ in range(MAX_MOVES):
        ticker.advance(0)  # the ticker's own thread may be about to do what is due now
        if {event["status"] for event in wave_of(service, path, wave)} == {status}:
            return
        moment = ticker.next_wakeup()
        assert moment is not None
        ticker.advance(max(0.0, (moment - service.clock.now()).total_seconds()))
    pytest.fail(f"wave {wave} is not {status}")


def start_wave(service: RunningService, machines: Machines, path: str, wave: int) -> None:
    """Move the clock until the wave is announced, wait for the approval of every machine, and move on until it starts."""
    move_until(service, path, wave, "Scheduled")
    machines.approve(wave - 1)
    until(
        lambda: all(len(event["approved_by"]) == 2 for event in wave_of(service, path, wave)),
        detail=machines.logs,
        every_s=0.1,
    )
    move_until(service, path, wave, "Started")


def starts(service: RunningService, path: str) -> list[datetime | None]:
    """When each wave started; the events of a wave start together."""
    found = []
    for wave in service.get(path)["waves"]:
        (start,) = {event["started"] for event in wave["events"]}
        found.append(datetime.fromisoformat(start) if start else None)
    return found


def within(calendar: dict[str, Any], started: list[datetime | None]) -> bool:
    return all(
        datetime.fromisoformat(wave["earliest"]) <= start <= datetime.fromisoformat(wave["latest"])
        for wave, start in zip(calendar["waves"], started, strict=True)
        if start is not None
    )


@pytest.mark.slow
@pytest.mark.timeout(600 * BUDGET)
def test_forty_hosts_rack_by_rack_at_night_with_a_canary(tmp_path: Path) -> None:
    """One request, previewed: the canary, an operator's continue, a failure that holds it, a retry, and the end."""
    work, failures = f"{WORK_S}s", f"{FAILING}=1"
    with running_service(fleet(), executor="simulated", simulated_work=work, simulated_failures=failures) as service:
        machines = Machines(service.guests.listener.urls[0], tmp_path)
        with machines.running_agents():
            run_example(service, machines)
            until(lambda: machines.actions() == [["prepare", "recover"]] * AGENTS, detail=machines.logs)


def run_example(service: RunningService, machines: Machines) -> None:
    for rack in range(RACKS):
        machines.approve(rack)  # there is nothing to approve yet: their polls enable the scopes
    service.request("PUT", "/v1/windows/nights", {"when": ["Mon-Fri 22:00-05:00"], "zone": "Europe/Berlin"})
    calendar = service.post("/v1/maintenances?dry_run=true", REQUEST)["calendar"]
    assert [wave["groups"] for wave in calendar["waves"]] == [[f"r{n}"] for n in range(1, RACKS + 1)]
    assert {(len(wave["hosts"]), wave["machines"], wave["events"]) for wave in calendar["waves"]} == {
        (4, 2 * SCOPES, SCOPES)
    }
    made = service.post("/v1/maintenances", REQUEST, 201)
    path = f"/v1/maintenances/{made['id']}"

    start_wave(service, machines, path, 1)
    service.service.ticker.advance(WORK_S + 60)
    assert service.get(path)["awaits_continue"]
    service.post(f"{path}/continue")
    start_wave(service, machines, path, 2)
    service.service.ticker.advance(WORK_S + 1)
    assert service.get(path)["progress"]["done"] == 2 * SCOPES

    start_wave(service, machines, path, 3)
    service.service.ticker.advance(WORK_S + 1)
    held = service.get(path)
    assert (held["status"], held["held"], held["progress"]["failed"]) == ("Paused", True, 1)
    started = starts(service, path)
    assert started[2] is not None
    assert started[3:] == [None] * 7
    assert within(calendar, started)

    service.post(f"{path}/retry-failed")
    for wave in range(4, RACKS + 1):
        start_wave(service, machines, path, wave)
    service.service.ticker.advance(WORK_S + 1)
    ended = service.get(path)
    assert (ended["status"], ended["progress"]["done"]) == ("Completed", RACKS * SCOPES)
    assert [wave["number"] for wave in ended["waves"]] == [wave["wave"] for wave in calendar["waves"]]
    # The clocks of Berlin are one hour ahead.
    assert all(start is not None and not 4 <= start.hour < 21 for start in starts(service, path))
    # The waves after the failure keep to the preview too: early approvals gain more time than the retry takes.
    assert within(calendar, starts(service, path))
