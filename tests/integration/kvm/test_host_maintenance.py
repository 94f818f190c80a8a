"""Host maintenance through a real service: evacuation by live migration, and work in place, with the real agent in each guest.

The guests count their boots, and the command of the hosts counts its runs. So "once" is counted by those to whom it happened.
"""

import json
import os
import secrets
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scripts.kvm_bed.bed import Bed, Guest

from tests.support.serve_process import Served, forewarn
from tests.support.waiting import PATIENCE_S, until

# Emulated guests on a busy machine; it only ends a test that has failed.
GUEST_PATIENCE_S = 120.0
FULL_NOTICE_S = 15 * 60
# The scope, update domain, first host and policy of each guest's agent.
GUESTS = {
    "web-0": ("shop", 0, "kvm-a", "when-ready"),
    "web-1": ("shop", 1, "kvm-b", "when-ready"),
    "db-0": ("db", 0, "kvm-a", "never"),
}
AGENT = """\
endpoint = "http://169.254.169.254"
state_dir = "/state/agent"
approve = "{approve}"
[[steps]]
name = "drain"
[steps.command]
prepare = ["/bin/sh", "-c", "echo prepared >>/state/log; sync"]
recover = ["/bin/sh", "-c", "echo recovered >>/state/log; sync"]
"""
# It records what runs on the host when it begins, and ends when the test allows it.
HOST_COMMAND = """\
#!/bin/sh
running=$(virsh --quiet --connect "$FOREWARN_HOST_CONNECTION" list --name | xargs)
echo "$FOREWARN_HOST $FOREWARN_HOST_MODE began while [$running] ran" >>{folder}/runs
until [ -e {folder}/may-end ]; do sleep 0.1; done
running=$(virsh --quiet --connect "$FOREWARN_HOST_CONNECTION" list --name | xargs)
echo "$FOREWARN_HOST $FOREWARN_HOST_MODE ended while [$running] ran" >>{folder}/runs
"""
SETTINGS = """\
store = "sqlite:{folder}/f.db"
state_dir = "{folder}/service"
executor = "libvirt"
host_executor = "command"
host_command = ["{folder}/host-command"]
clock = "manual"
guest = "169.254.169.254:80"
operator = "127.0.0.1:0"
[libvirt]
shutdown_grace = "60s"
"""
# The ports of migrations to one host answer with a refusal.
REFUSE = """\
nft -f - <<'END'
table inet refuse {{
  chain out {{
    type filter hook output priority 0;
    ip daddr {address} tcp dport {first}-{last} reject with tcp reset
  }}
}}
END
"""


@dataclass
class Site:
    """The bed, a service in the network of its hosts, and the guests with the number of times that each must have booted."""

    bed: Bed
    folder: Path
    guests: dict[str, Guest]
    token: str = field(default_factory=secrets.token_urlsafe)
    service: Served | None = None
    boots: dict[str, int] = field(default_factory=dict)

    def start(self, *arguments: str) -> None:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
        command = forewarn("serve", "--config", f"{self.folder}/serve.toml", *arguments)
        with (self.folder / "service.log").open("a") as log:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env={**clean, "FOREWARN_TOKEN": self.token}
            )
        self.service = Served(process)

    def kill(self) -> None:
        """End the service by kill -9."""
        assert self.service is not None
        self.service.process.kill()
        self.service.process.communicate()
        self.service = None

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        assert self.service is not None
        request = urllib.request.Request(
            self.service.operator + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def get(self, path: str) -> Any:
        status, found = self.call("GET", path)
        assert status == 200, found
        return found

    def post(self, path: str, body: object = None) -> Any:
        status, made = self.call("POST", path, body)
        assert status in (200, 201), made
        return made

    def until(self, condition: Callable[[], object]) -> None:
        until(condition, GUEST_PATIENCE_S, self.situation, every_s=0.5)

    def situation(self) -> str:
        maintenances = self.get("/v1/maintenances")["items"] if self.service is not None else []
        shown = [self.get(f"/v1/maintenances/{m['id']}") for m in maintenances[:1]]
        log = (self.folder / "service.log").read_text()[-3000:]
        return f"{json.dumps(shown, indent=1)}\n{self.runs()}\n{self.where()}\n{log}"

    # -- what is true

    def runs(self) -> list[str]:
        """Return what the command of the hosts has recorded since the last call of `forget_runs`."""
        path = self.folder / "runs"
        return path.read_text().splitlines() if path.exists() else []

    def forget_runs(self) -> None:
        (self.folder / "runs").unlink(missing_ok=True)
        (self.folder / "may-end").unlink(missing_ok=True)

    def let_host_command_end(self) -> None:
        (self.folder / "may-end").touch()

    def where(self) -> dict[str, list[str]]:
        return {host: sorted(self.bed.virsh(host, "list", "--name").split()) for host in self.bed.hosts}

    def events(self, maintenance_id: str) -> dict[tuple[str, int], dict[str, Any]]:
        """Return the events by their only machine and the number of earlier events of that machine."""
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for wave in self.get(f"/v1/maintenances/{maintenance_id}")["waves"]:
            for event in wave["events"]:
                (name,) = event["resources"]
                found[name, sum(known == name for known, _ in found)] = event
        return found

    def status(self, maintenance_id: str, machine: str, number: int = 0) -> str:
        event = self.events(maintenance_id).get((machine, number))
        return "" if event is None else str(event["status"])

    def approved(self, maintenance_id: str, machine: str, number: int = 0) -> bool:
        event = self.events(maintenance_id).get((machine, number))
        return event is not None and bool(event["approved_by"])

    def host_work(self, maintenance_id: str, host: str) -> dict[str, Any]:
        hosts = self.get(f"/v1/maintenances/{maintenance_id}")["hosts"]
        return next(each for each in hosts if each["host"] == host)

    def waits(self, maintenance_id: str, host: str) -> dict[str, str]:
        """Return the reasons why the work on a host waits: their messages by their codes."""
        return {each["code"]: each["message"] for each in self.host_work(maintenance_id, host)["waiting_for"]}

    def host_state(self, host: str) -> str:
        return str(self.get(f"/v1/hosts/{host}")["state"])

    def until_recovered(self, events: dict[str, int]) -> None:
        """Wait until each agent has prepared and recovered once for each of its events; its guest has not booted unasked."""
        for name, number in events.items():
            self.until(partial(self.has_recovered, name, number))
        assert {name: guest.boots() for name, guest in self.guests.items()} == self.boots

    def has_recovered(self, machine: str, number: int) -> bool:
        return self.guests[machine].read("log") == "prepared\nrecovered\n" * number

    def order_state(self, event: str) -> str:
        """Return the state of an event's order, or "" if it has none yet."""
        return str(self.call("GET", f"/v1/orders/{event}")[1].get("state", ""))

    def prepared(self, machine: str, number: int) -> bool:
        return self.guests[machine].read("log").count("prepared\n") == number


@pytest.fixture(scope="module")
def site(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    guests = {
        name: bed.add_guest(name, host, {"agent.toml": AGENT.format(approve=approve)})
        for name, (_, _, host, approve) in GUESTS.items()
    }
    site = Site(bed, folder, guests, boots=dict.fromkeys(guests, 1))
    write_files(site)
    with bed.network():
        site.start("--fleet", f"{folder}/fleet.toml")  # once: it says where the machines were at first
        try:
            site.until(lambda: all(site.get(f"/v1/scopes/{scope}")["enabled"] for scope in ("shop", "db")))
            yield site
        finally:
            if site.service is not None:
                site.kill()


def write_files(site: Site) -> None:
    hosts = "".join(f'[[hosts]]\nname = "{name}"\nconnection = "{uri}"\n' for name, uri in site.bed.hosts.items())
    scopes = "".join(f'[[scopes]]\nname = "{name}"\nkind = "availability-set"\n' for name in ("shop", "db"))
    machines = "".join(
        f'[[machines]]\nscope = "{scope}"\nname = "{name}"\nupdate_domain = {domain}\nhost = "{host}"\n'
        f'addresses = ["{site.guests[name].address}"]\ninstance_id = "{site.guests[name].uuid}"\n'
        for name, (scope, domain, host, _) in GUESTS.items()
    )
    (site.folder / "fleet.toml").write_text(hosts + scopes + machines)
    (site.folder / "serve.toml").write_text(SETTINGS.format(folder=site.folder))
    command = site.folder / "host-command"
    command.write_text(HOST_COMMAND.format(folder=site.folder))
    command.chmod(0o755)


@contextmanager
def refused_migrations(bed: Bed, host: str) -> Iterator[None]:
    """Let every live migration to a host fail."""
    conf = (bed.folder / host / "etc/qemu.conf").read_text()
    found = {key: value.strip('"') for key, value in (line.split(" = ") for line in conf.splitlines())}
    first, last = found["migration_port_min"], found["migration_port_max"]
    bed.run_on_host(host, REFUSE.format(address=found["migration_address"], first=first, last=last))
    try:
        yield
    finally:
        bed.run_on_host(host, "nft delete table inet refuse")


def test_machines_are_off_while_the_command_works_on_their_host(site: Site) -> None:
    """In place: guests shut down, the command runs once although forewarn is killed meanwhile, guests start again."""
    made = site.post("/v1/maintenances", {"type": "Reboot", "targets": {"hosts": ["kvm-a"]}, "host_mode": "in-place"})[
        "id"
    ]
    site.until(lambda: site.approved(made, "web-0") and site.prepared("db-0", 1))
    # The events of one host start together.
    assert (site.status(made, "web-0"), site.status(made, "db-0")) == ("Scheduled", "Scheduled")
    assert not site.approved(made, "db-0")
    site.post("/v1/clock/advance", {"seconds": FULL_NOTICE_S})
    site.until(lambda: site.runs() == ["kvm-a in-place began while [] ran"])
    assert site.where() == {"kvm-a": [], "kvm-b": ["web-1"]}
    assert (site.status(made, "web-0"), site.status(made, "db-0")) == ("Started", "Started")
    assert site.host_state("kvm-a") == "in-maintenance"

    site.kill()
    site.start()
    site.until(lambda: site.host_work(made, "kvm-a")["state"] == "running")
    site.let_host_command_end()
    site.until(lambda: site.get(f"/v1/maintenances/{made}")["status"] == "Completed")
    assert site.where() == {"kvm-a": ["db-0", "web-0"], "kvm-b": ["web-1"]}
    assert site.host_state("kvm-a") == "up"
    site.boots |= {"web-0": 2, "db-0": 2}
    site.until_recovered({"web-0": 1, "db-0": 1})
    assert site.runs() == ["kvm-a in-place began while [] ran", "kvm-a in-place ended while [] ran"]
    site.forget_runs()


def test_two_hosts_are_evacuated_in_turn(site: Site) -> None:
    """With migrations that fail, a domain that forewarn does not know, and kill -9 at the worst moments, nothing runs twice."""
    site.bed.add_guest("stray", "kvm-a", start=False)
    site.bed.virsh("kvm-a", "start", "--paused", "stray")
    logs = {name: guest.read("log").count("recovered\n") for name, guest in site.guests.items()}

    with refused_migrations(site.bed, "kvm-b"):
        request = {"type": "Freeze", "targets": {"hosts": ["kvm-a", "kvm-b"]}, "host_mode": "evacuate"}
        made = site.post("/v1/maintenances", request)["id"]
        assert site.host_state("kvm-a") == "cordoned"
        assert site.host_state("kvm-b") == "up"
        site.until(lambda: site.approved(made, "web-0") and site.prepared("db-0", logs["db-0"] + 1))
        assert not site.approved(made, "db-0")
        site.post("/v1/clock/advance", {"seconds": FULL_NOTICE_S})
        first = {name: site.events(made)[name, 0]["id"] for name in ("web-0", "db-0")}
        site.until(lambda: all(site.order_state(event) == "failed" for event in first.values()))
    assert site.where() == {"kvm-a": ["db-0", "stray", "web-0"], "kvm-b": ["web-1"]}
    for name, event in first.items():
        reason = site.get(f"/v1/orders/{event}")["reason"]
        assert f"the live migration of {name} to kvm-b failed, and it still runs on kvm-a" in reason
        site.post(f"/v1/events/{event}/retry")
    site.until(lambda: site.status(made, "web-0") == site.status(made, "db-0") == "Completed")

    # Between the last migration and the work on the host.
    site.until(lambda: "host kvm-a still runs stray" in site.waits(made, "kvm-a").get("host-not-empty", ""))
    site.kill()
    site.start()
    assert site.host_work(made, "kvm-a")["state"] == "open"
    assert site.runs() == []
    site.bed.virsh("kvm-a", "destroy", "stray")
    site.until(lambda: site.runs() == ["kvm-a evacuate began while [] ran"])
    assert site.waits(made, "kvm-b").keys() == {"earlier-host"}

    # While the command runs.
    site.kill()
    site.start()
    site.let_host_command_end()
    site.until(lambda: site.host_work(made, "kvm-a")["state"] == "done")
    assert site.host_state("kvm-a") == "up"

    # Those that came from the first host leave the second one too.
    site.until(lambda: site.approved(made, "web-0", 1) and site.prepared("db-0", logs["db-0"] + 2))
    assert site.host_state("kvm-b") == "cordoned"
    site.post("/v1/clock/advance", {"seconds": FULL_NOTICE_S})
    site.until(lambda: site.where()["kvm-b"] == [])
    site.kill()
    site.start()
    site.until(lambda: site.get(f"/v1/maintenances/{made}")["status"] == "Completed")
    assert site.where() == {"kvm-a": ["db-0", "web-0", "web-1"], "kvm-b": []}
    assert site.host_state("kvm-b") == "up"
    site.until_recovered({"web-0": logs["web-0"] + 2, "db-0": logs["db-0"] + 2, "web-1": logs["web-1"] + 1})
    assert site.runs() == [
        f"{host} evacuate {what} while [] ran" for host in ("kvm-a", "kvm-b") for what in ("began", "ended")
    ]
    site.forget_runs()

    # Now one host has two update domains of a scope.
    request = {"type": "Reboot", "targets": {"hosts": ["kvm-a"]}, "host_mode": "in-place"}
    status, refusal = site.call("POST", "/v1/maintenances", request)
    assert status == 409
    assert "several update domains of shop" in json.dumps(refusal)
    assert "shop/web-" in json.dumps(refusal)
    assert site.get("/v1/maintenances")["items"][0]["id"] == made, "a refused maintenance was saved"
