"""The whole way: a service on the hosts, the real agent inside a guest, and the executor `libvirt`."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from scripts.kvm_bed.bed import Bed, Guest

from forewarn.app.service import Service
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import Actor, EventType, MaintenanceRequest, OrderState, Status, Targets
from forewarn.service.settings import load
from forewarn.store import EventQuery, Focus
from forewarn.store.sqlite.store import SqliteStore
from tests.integration.kvm.site import GUEST_PATIENCE_S
from tests.support.serve_process import Served, forewarn
from tests.support.waiting import until

OPERATOR = Actor("operator", "test")
AGENT = """\
endpoint = "http://169.254.169.254"
state_dir = "/state/agent"
[[steps]]
name = "drain"
required = true
[steps.command]
prepare = ["/bin/sh", "-c", "echo prepared >>/state/log; sync"]
recover = ["/bin/sh", "-c", "echo recovered >>/state/log; sync"]
"""


class Site:
    """A service whose store the test can read and change while no process serves it."""

    def __init__(self, bed: Bed, folder: Path, guest: Guest) -> None:
        self.bed, self.folder, self.guest = bed, folder, guest
        self.service_log = folder / "service.log"
        self.process: subprocess.Popen[str] | None = None
        hosts = "".join(f'[[hosts]]\nname = "{name}"\nconnection = "{uri}"\n' for name, uri in bed.hosts.items())
        self.fleet = f"""
{hosts}
[[scopes]]
name = "shop"
kind = "availability-set"
[[machines]]
scope = "shop"
name = "web-0"
host = "kvm-a"
addresses = ["{guest.address}"]
instance_id = "{guest.uuid}"
"""
        settings = f"""
store = "sqlite:{folder}/f.db"
state_dir = "{folder}/service"
executor = "libvirt"
guest = "169.254.169.254:80"
operator = "127.0.0.1:0"
[libvirt]
shutdown_grace = "20s"
"""
        (folder / "serve.toml").write_text(settings)

    def announce(self, kind: EventType, *, first: bool = False) -> None:
        made = Service(load({"store": f"sqlite:{self.folder}/f.db", "state_dir": f"{self.folder}/prepared"}, {}))
        if first:
            made.control.apply_fleet(parse_fleet(self.fleet, "the test"), OPERATOR)
            made.control.enable("shop", OPERATOR)
        made.control.submit(MaintenanceRequest(type=kind, targets=Targets(scope="shop")), OPERATOR)
        made.close()

    @contextmanager
    def serving(self) -> Iterator[Served]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
        clean["PYTHONFAULTHANDLER"] = "1"  # a crash inside a C library shows in the log
        with self.service_log.open("a") as log:
            process = subprocess.Popen(
                forewarn("serve", "--config", str(self.folder / "serve.toml")),
                stdout=subprocess.PIPE, stderr=log, text=True, env=clean,
            )  # fmt: skip
        self.process = process
        try:
            yield Served(process)
        finally:
            process.kill()
            process.communicate()

    def statuses(self) -> list[Status]:
        store = SqliteStore(self.folder / "f.db")
        try:
            return [event.status for event in store.events(EventQuery()).events]
        finally:
            store.close()

    def host(self) -> str:
        store = SqliteStore(self.folder / "f.db")
        try:
            focus = Focus(machines=(("shop", "web-0"),), whole_maintenances=False, open_events=False)
            return store.snapshot(focus).machines["shop", "web-0"].host
        finally:
            store.close()

    def journals(self) -> list[Path]:
        return list((self.folder / "service" / "libvirt").glob("*.json"))

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that takes a guest some seconds, and that costs a program or a query to see."""
        until(condition, GUEST_PATIENCE_S, self.shown, every_s=0.3)

    def shown(self) -> str:
        """Return what a failed test needs to show: the orders, the hosts, and what the service and the guest have said."""
        store = SqliteStore(self.folder / "f.db")
        try:
            orders = store.orders(frozenset(OrderState), 10)
        finally:
            store.close()
        parts = {
            "orders": "\n".join(map(str, orders)),
            "journals": "\n".join(path.read_text() for path in self.journals()),
            **{host: self.bed.domains(host) for host in self.bed.hosts},
            "service": f"exit code {self.process and self.process.poll()}\n{self.service_log.read_text()}",
            "guest": f"{self.guest.boots()} boots\n{self.guest.console.read_text()}",
        }
        return "".join(f"\n-- {name}\n{text}" for name, text in parts.items())

    def log(self) -> str:
        return self.guest.read("log")


@pytest.fixture
def site(bed: Bed, tmp_path: Path) -> Iterator[Site]:
    guest = bed.add_guest("web-0", "kvm-a", {"agent.toml": AGENT})
    with bed.network():
        yield Site(bed, tmp_path, guest)


def test_an_agent_prepares_and_recovers_once_for_each_event(site: Site) -> None:
    """The agent approves, the machine really reboots, the agent recovers. Then it is redeployed while forewarn is killed."""
    site.announce(EventType.REBOOT, first=True)
    with site.serving():
        site.until(lambda: site.statuses() == [Status.COMPLETED])
        site.until(lambda: site.log() == "prepared\nrecovered\n")
        assert site.guest.boots() == 2

    site.announce(EventType.REDEPLOY)
    with site.serving() as service:
        until(site.journals, GUEST_PATIENCE_S, site.shown)
        service.process.send_signal(signal.SIGKILL)
    with site.serving():
        site.until(lambda: set(site.statuses()) == {Status.COMPLETED})
        site.until(lambda: site.log() == "prepared\nrecovered\n" * 2)
    assert site.host() == "kvm-b"
    assert site.guest.boots() == 3
    assert site.bed.virsh("kvm-a", "list", "--all", "--name") == ""
    assert site.bed.virsh("kvm-b", "list", "--name") == "web-0"
