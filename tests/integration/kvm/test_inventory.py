"""The fleet follows real hosts: domains that are added, renamed, moved by hand, doubled and gone, and a host that is away."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from scripts.kvm_bed.bed import Bed

from forewarn.app.service import Service
from forewarn.core.fleet import Fleet, parse_fleet
from forewarn.core.model import Actor, Host, Machine
from forewarn.libvirt.executor import LibvirtExecutor
from forewarn.libvirt.inventory import GONE_AFTER
from forewarn.libvirt.inventory_keeper import InventoryKeeper
from forewarn.service.settings import load
from tests.integration.kvm.orders import executor_in
from tests.integration.kvm.site import GUEST_PATIENCE_S
from tests.support.serve_process import run
from tests.support.waiting import until

SHOP = (
    """<metadata><forewarn:machine xmlns:forewarn='urn:forewarn:machine' scope='shop' update-domain='{}'/></metadata>"""
)

AGENT_CHANNEL = (
    "<devices><channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel></devices>"
)
# Answers as QEMU's guest agent does: with its own address, and with others that must not become the machine's.
GUEST_AGENT = """
import glob, json, time
def interface(name, mac, *addresses):
    found = [{"ip-address-type": "ipv4", "ip-address": each, "prefix": 24} for each in addresses]
    return {"name": name, "hardware-address": mac, "ip-addresses": found}
interfaces = [
    interface("eth0", open("/sys/class/net/eth0/address").read().strip(), "10.88.0.99", "169.254.169.254", "127.0.0.2"),
    interface("docker0", "02:42:00:00:00:01", "172.17.0.1"),
]
answers = {"guest-network-get-interfaces": lambda request: interfaces}
for sync in ("guest-sync", "guest-sync-delimited"):
    answers[sync] = lambda request: request["arguments"]["id"]
received = b""
with open(glob.glob("/dev/vport*")[0], "r+b", buffering=0) as port:
    while True:
        line, newline, rest = received.partition(b"\\n")
        if not newline:
            received += port.read(4096) or time.sleep(0.2) or b""
            continue
        received, request = rest, json.loads(line.lstrip(b"\\xff"))
        if request["execute"] not in answers:
            port.write(b'{"error": {"class": "CommandNotFound", "desc": "unknown"}}\\n')
            continue
        answer = json.dumps({"return": answers[request["execute"]](request)}).encode()
        port.write(b"\\xff" * (request["execute"] == "guest-sync-delimited") + answer + b"\\n")
"""


@contextmanager
def following(bed: Bed) -> Iterator[tuple[Service, InventoryKeeper]]:
    """Run the inventory of a service whose fleet has the hosts of the bed."""
    service = Service(load({"store": "memory:", "inventory": "libvirt", "clock": "manual"}, {}))
    hosts = {name: Host(name=name, connection=uri, listed=True) for name, uri in bed.hosts.items()}
    service.control.apply_fleet(Fleet({}, {}, hosts), Actor("test"))
    keeper = service.inventory
    assert keeper is not None
    thread = threading.Thread(target=keeper.run)
    thread.start()
    try:
        yield service, keeper
    finally:
        keeper.stop()
        thread.join()
        service.close()


def machines(service: Service) -> dict[str, Machine]:
    return {machine.name: machine for machine in service.store.inventory().machines.values()}


def runs_only(executor: LibvirtExecutor, host: str, uri: str, machine: str) -> bool:
    return executor.machines_on(host, uri) == (machine,)


def test_the_fleet_follows_its_hosts(bed: Bed, tmp_path: Path) -> None:
    """Without waiting for the next reading: events of libvirt tell it what happens."""
    web = bed.add_guest("web-0", "kvm-a", {"program.py": GUEST_AGENT}, extra=SHOP.format(1) + AGENT_CHANNEL)
    with following(bed) as (service, keeper):
        until(lambda: "web-0" in machines(service))
        assert machines(service)["web-0"] == Machine(
            scope="shop", name="web-0", update_domain=1, host="kvm-a", instance_id=web.uuid
        )

        # A file that says otherwise: it warns, and does not stay.
        elsewhere = replace(machines(service)["web-0"], host="kvm-b")
        stated = Fleet({}, {elsewhere.key: elsewhere})
        assert "the inventory decides it" in service.control.apply_fleet(stated, Actor("test")).warnings[-1]
        keeper.update()
        assert machines(service)["web-0"].host == "kvm-a"

        # Added, without metadata at first.
        api = bed.add_guest("api-0", "kvm-b", start=False)
        line = ["metadata", "api-0", "urn:forewarn:machine", "--config", "--key", "forewarn"]
        bed.virsh("kvm-b", *line, "--set", '<machine scope="shop" update-domain="2"/>')
        until(lambda: "api-0" in machines(service))
        assert machines(service)["api-0"].update_domain == 2

        # Renamed.
        bed.virsh("kvm-b", "domrename", "api-0", "api-9")
        until(lambda: "api-9" in machines(service))
        assert "api-0" not in machines(service)
        assert machines(service)["api-9"].instance_id == api.uuid

        # Moved by hand, and slowly at first: while it moves it is on both hosts, and that is no alarm.
        bed.virsh("kvm-a", "migrate-setspeed", "web-0", "1")
        migrate = ["migrate", "--live", "--persistent", "--undefinesource", "web-0", bed.hosts["kvm-b"]]
        mover = threading.Thread(target=bed.virsh, args=("kvm-a", *migrate, "--migrateuri", "tcp://10.88.0.3"))
        mover.start()
        until(lambda: "web-0" in bed.virsh("kvm-b", "list", "--name"))
        keeper.update()
        assert machines(service)["web-0"].host == "kvm-a"
        assert keeper.health.doubled == ()
        # Work on either host would hit it. The answer is None while the host does not answer soon enough.
        executor = executor_in(tmp_path)
        for name, uri in bed.hosts.items():
            until(partial(runs_only, executor, name, uri, "web-0"))
        executor.close()
        bed.virsh("kvm-a", "migrate-setspeed", "web-0", "1000")
        mover.join()
        until(lambda: machines(service)["web-0"].host == "kvm-b")
        assert keeper.health.doubled == ()
        assert keeper.health.problems == ()

        # A host that is away changes nothing, and warns.
        bed.kill_libvirtd("kvm-b")
        keeper.update()
        assert "kvm-b" in service.health.warnings()["inventory"]
        assert keeper.health.hosts == {"reachable": 1, "unreachable": 1}
        assert set(machines(service)) == {"web-0", "api-9"}
        bed.start_libvirtd("kvm-b")
        keeper.update()
        assert "inventory" not in service.health.warnings()

        # Gone: after an hour.
        bed.virsh("kvm-b", "undefine", "api-9")
        keeper.update()
        assert "api-9" in machines(service)
        service.ticker.advance(GONE_AFTER.total_seconds())
        keeper.update()
        assert set(machines(service)) == {"web-0"}

        # The same UUID on the other host: an alarm, and no move.
        definition = bed.virsh("kvm-b", "dumpxml", "web-0")
        copy = bed.folder / "copy.xml"
        copy.write_text(definition)
        bed.virsh("kvm-a", "define", str(copy))
        keeper.update()
        service.ticker.advance(timedelta(minutes=1).total_seconds())
        keeper.update()
        assert "is defined on kvm-a and kvm-b" in service.health.warnings()["inventory"]
        assert machines(service)["web-0"].host == "kvm-b"


def test_the_import_writes_a_fleet_file_of_the_hosts(bed: Bed) -> None:
    """The file of two real hosts is a fleet file that the service accepts; it marks what only the guest says."""
    imported: list[str] = []

    def agent_has_answered() -> bool:
        """Whether the guest agent answered in the time that an import gives it: a guest on a busy machine may be slower."""
        done = run("fleet", "import", "libvirt", *(f"--uri={uri}" for uri in bed.hosts.values()))
        imported.append(done.stdout or done.stderr)  # a busy host may not answer in time either
        return done.returncode == 0 and "(guest agent)" in done.stdout

    until(agent_has_answered, GUEST_PATIENCE_S, detail=lambda: imported[-1])
    fleet = parse_fleet(imported[-1], "fleet.toml")
    assert {(machine.name, machine.scope, machine.update_domain) for machine in fleet.machines.values()} == {
        ("web-0", "shop", 1)
    }
    assert fleet.machines["shop", "web-0"].addresses == ("10.88.0.99",)
    assert "# check what no DHCP lease proves: 10.88.0.99 (guest agent)\n[[machines]]" in imported[-1]
    assert {host.name: host.connection for host in fleet.hosts.values()} == bed.hosts
