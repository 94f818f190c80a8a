"""The fleet follows real hosts: domains that are added, renamed, moved by hand, doubled and gone, and a host that is away."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from scripts.kvm_bed.bed import Bed

from forewarn.app.service import Service
from forewarn.core.fleet import Fleet, parse_fleet
from forewarn.core.model import Actor, Host, Machine
from forewarn.libvirt.inventory import GONE_AFTER
from forewarn.libvirt.inventory_keeper import InventoryKeeper
from forewarn.service.settings import load
from tests.support.serve_process import run
from tests.support.waiting import until

SHOP = (
    """<metadata><forewarn:machine xmlns:forewarn='urn:forewarn:machine' scope='shop' update-domain='{}'/></metadata>"""
)


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


def test_the_fleet_follows_its_hosts(bed: Bed) -> None:
    """Without waiting for the next reading: events of libvirt tell it what happens."""
    web = bed.add_guest("web-0", "kvm-a", extra=SHOP.format(1))
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
    """The file of two real hosts is a fleet file that the service accepts."""
    done = run("fleet", "import", "libvirt", *(f"--uri={uri}" for uri in bed.hosts.values()))
    assert done.returncode == 0, done.stderr
    fleet = parse_fleet(done.stdout, "fleet.toml")
    assert {(machine.name, machine.scope, machine.update_domain) for machine in fleet.machines.values()} == {
        ("web-0", "shop", 1)
    }
    assert {host.name: host.connection for host in fleet.hosts.values()} == bed.hosts
