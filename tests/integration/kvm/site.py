"""A service that works on the hosts and guests of a bed, and what a test can ask about them.

The guests count their boots, and the command of the hosts counts its runs. So "once" is counted by those to whom it happened.
"""

import json
import os
import secrets
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from scripts.kvm_bed.bed import Bed, Guest

from tests.support.serve_process import Served, forewarn
from tests.support.waiting import PATIENCE_S, until

# Emulated guests on a busy machine; it only ends a test that has failed.
GUEST_PATIENCE_S = 300.0
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
# It records what runs on the host when it begins, and ends when the test allows it: with an error while `must-fail` exists.
HOST_COMMAND = """\
#!/bin/sh
running=$(virsh --quiet --connect "$FOREWARN_HOST_CONNECTION" list --name | xargs)
echo "$FOREWARN_HOST $FOREWARN_HOST_MODE began while [$running] ran" >>{folder}/runs
until [ -e {folder}/may-end ]; do sleep 0.1; done
[ ! -e {folder}/must-fail ] || {{ echo "no power"; exit 3; }}
running=$(virsh --quiet --connect "$FOREWARN_HOST_CONNECTION" list --name | xargs)
echo "$FOREWARN_HOST $FOREWARN_HOST_MODE ended while [$running] ran" >>{folder}/runs
"""
SETTINGS = """\
store = "{store}"
state_dir = "{folder}/service"
executor = "libvirt"
host_executor = "command"
host_command = ["{folder}/host-command"]
{more}
operator = "127.0.0.1:0"
[libvirt]
shutdown_grace = "60s"
"""


@dataclass(frozen=True)
class GuestSpec:
    """A guest: its scope, update domain and first host, and when its agent approves. Without `approve` it has no agent."""

    scope: str
    update_domain: int
    host: str
    approve: str = ""

    def files(self) -> dict[str, str]:
        return {"agent.toml": AGENT.format(approve=self.approve)} if self.approve else {}


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
        guests = {name: (guest.read("log"), guest.console.read_text()[-1000:]) for name, guest in self.guests.items()}
        return f"{json.dumps(shown, indent=1)}\n{self.runs()}\n{self.where()}\n{guests}\n{log}"

    # -- what is true

    def runs(self) -> list[str]:
        """Return what the command of the hosts has recorded since the last call of `forget_runs`."""
        path = self.folder / "runs"
        return path.read_text().splitlines() if path.exists() else []

    def forget_runs(self) -> None:
        (self.folder / "runs").unlink(missing_ok=True)
        self.hold_host_command()

    def let_host_command_end(self, *, fail: bool = False) -> None:
        if fail:
            (self.folder / "must-fail").touch()
        (self.folder / "may-end").touch()

    def hold_host_command(self) -> None:
        """Let the next run of the command wait."""
        (self.folder / "may-end").unlink(missing_ok=True)
        (self.folder / "must-fail").unlink(missing_ok=True)

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


@contextmanager
def running_site(bed: Bed, folder: Path, specs: Mapping[str, GuestSpec]) -> Iterator[Site]:
    """Start the guests and the service, and wait until every agent has polled. This thread is then in the bed's network."""
    guests = {name: bed.add_guest(name, spec.host, spec.files()) for name, spec in specs.items()}
    site = Site(bed, folder, guests, boots=dict.fromkeys(guests, 1))
    write_files(site, specs)
    with bed.network():
        site.start("--fleet", f"{folder}/fleet.toml")  # once: it says where the machines were at first
        try:
            polling = {spec.scope for spec in specs.values() if spec.approve}
            site.until(lambda: all(site.get(f"/v1/scopes/{scope}")["enabled"] for scope in polling))
            site.until(lambda: all(guest.boots() == 1 for guest in guests.values()))
            yield site
        finally:
            if site.service is not None:
                site.kill()


def write_files(
    site: Site,
    specs: Mapping[str, GuestSpec],
    *,
    store: str = "",
    more: str = 'clock = "manual"\nguest = "169.254.169.254:80"',
) -> None:
    """Write the files of the service: by default it has a store of its own, a manual clock, and guests that can reach it."""
    hosts = "".join(f'[[hosts]]\nname = "{name}"\nconnection = "{uri}"\n' for name, uri in site.bed.hosts.items())
    scopes = "".join(
        f'[[scopes]]\nname = "{name}"\nkind = "availability-set"\n'
        for name in sorted({spec.scope for spec in specs.values()})
    )
    machines = "".join(
        f'[[machines]]\nscope = "{spec.scope}"\nname = "{name}"\nupdate_domain = {spec.update_domain}\n'
        f'host = "{spec.host}"\naddresses = ["{site.guests[name].address}"]\n'
        f'instance_id = "{site.guests[name].uuid}"\n'
        for name, spec in specs.items()
    )
    (site.folder / "fleet.toml").write_text(hosts + scopes + machines)
    store = store or f"sqlite:{site.folder}/f.db"
    (site.folder / "serve.toml").write_text(SETTINGS.format(folder=site.folder, store=store, more=more))
    command = site.folder / "host-command"
    command.write_text(HOST_COMMAND.format(folder=site.folder))
    command.chmod(0o755)
