"""The worked example of the page about fleets: forty hosts, rack by rack, at night; in a soak 2,000 machines."""

from datetime import datetime
from typing import Any

from forewarn.core.model import Actor
from tests.support.budget import BUDGET
from tests.support.running_service import RunningService, running_service

RACKS, HOSTS, MACHINES_PER_SCOPE = 10, 40, 20
SCOPES = 10 * min(BUDGET, 10)
# Its order fails at the first attempt, in the third wave.
FAILING = "app-07/vm-02"
WORK_S = 300
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


def fleet() -> str:
    """Ten racks of four hosts. Each scope has two machines in each rack, which are in one update domain."""
    hosts = [f'[[hosts]]\nname = "kvm-{n:02}"\nlabels = {{rack = "r{n // 4 + 1}"}}\n' for n in range(HOSTS)]
    scopes = [f'[[scopes]]\nname = "app-{n:02}"\nkind = "availability-set"\n' for n in range(SCOPES)]
    machines = [
        f'[[machines]]\nscope = "app-{scope:02}"\nname = "vm-{number:02}"\nupdate_domain = {number % RACKS // 2}\n'
        f'host = "kvm-{number % RACKS * 4 + (scope + number // RACKS) % 4:02}"\n'
        for scope in range(SCOPES)
        for number in range(MACHINES_PER_SCOPE)
    ]
    return "".join([*hosts, *scopes, *machines])


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


def test_forty_hosts_rack_by_rack_at_night_with_a_canary() -> None:
    """One request, previewed: the canary, an operator's continue, a failure that holds it, a retry, and the end."""
    work, failures = f"{WORK_S}s", f"{FAILING}=1"
    with running_service(fleet(), executor="simulated", simulated_work=work, simulated_failures=failures) as service:
        service.enable(*(f"app-{n:02}" for n in range(SCOPES)))
        service.request("PUT", "/v1/windows/nights", {"when": ["Mon-Fri 22:00-05:00"], "zone": "Europe/Berlin"})
        calendar = service.post("/v1/maintenances?dry_run=true", REQUEST)["calendar"]
        assert [wave["groups"] for wave in calendar["waves"]] == [[f"r{n}"] for n in range(1, RACKS + 1)]
        assert {(len(wave["hosts"]), wave["machines"], wave["events"]) for wave in calendar["waves"]} == {
            (4, 2 * SCOPES, SCOPES)
        }
        made = service.post("/v1/maintenances", REQUEST, 201)
        path = f"/v1/maintenances/{made['id']}"

        # The machines of the canary approve, so it starts before the end of its notice.
        service.service.ticker.advance(60)
        for event in made["waves"][0]["events"]:
            service.control.approve(event["scope"], event["resources"][0], [event["id"]], Actor("agent"))
        service.service.ticker.advance(WORK_S + 60)
        assert service.get(path)["awaits_continue"]
        service.post(f"{path}/continue")
        service.service.ticker.advance(1_800 + 900 + WORK_S + 1)
        assert service.get(path)["progress"]["done"] == 2 * SCOPES

        service.service.ticker.advance(1_800 + 900 + WORK_S + 1)
        held = service.get(path)
        assert (held["status"], held["held"], held["progress"]["failed"]) == ("Paused", True, 1)
        started = starts(service, path)
        assert started[2] is not None
        assert started[3:] == [None] * 7
        assert within(calendar, started)

        service.post(f"{path}/retry-failed")
        service.service.ticker.advance(2 * 86_400)
        ended = service.get(path)
        assert (ended["status"], ended["progress"]["done"]) == ("Completed", RACKS * SCOPES)
        assert [wave["number"] for wave in ended["waves"]] == [wave["wave"] for wave in calendar["waves"]]
        # The clocks of Berlin are one hour ahead.
        assert all(start is not None and not 4 <= start.hour < 21 for start in starts(service, path))
