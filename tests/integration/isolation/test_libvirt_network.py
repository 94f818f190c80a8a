"""libvirt's own network and its filter against spoofing, with a real libvirtd: docs/guide/libvirt-network.md.

The machines are namespaces on ports of libvirt's bridge. libvirtd has its own folders: it sees no domains of another libvirtd.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from scripts.kvm_bed.bed import accepts_connections

from forewarn.core.fleet import Fleet
from forewarn.libvirt.connections import HostConnections
from forewarn.libvirt.importing import SOME_TIME
from forewarn.libvirt.inventory import HostReading, decide
from forewarn.libvirt.reading import read_host
from tests.integration.isolation.conftest import until_forwarding
from tests.integration.isolation.datagrams import receive, send
from tests.integration.isolation.prepared_store import prepare
from tests.integration.isolation.test_dhcp import CLIENT
from tests.support.guide_blocks import block, command
from tests.support.network_lab import Lab, Namespace
from tests.support.waiting import until

OWN_NETWORK, FILTER = "libvirt's own network", "Anti-spoofing by libvirt"
# Takes the offer of the client before, and prints the options of the acknowledgement.
TAKE_OFFER = """
request = discover[:240] + bytes.fromhex("350103" "3204") + offer[16:20] + bytes.fromhex("3604") + bytes(options[54])
link.sendto(request + bytes([255]), ("255.255.255.255", 67))
offer, options, at = link.recv(2048), {}, 240
while offer[at] != 255:
    options[offer[at]] = list(offer[at + 2 : at + 2 + offer[at + 1]])
    at += 2 + offer[at + 1]
print(json.dumps(options))
"""
START = """
set -e
mkdir -p /run/libvirt /var/lib/libvirt /var/cache/libvirt /var/log/libvirt
cp -r /etc/libvirt/nwfilter etc/
cat > etc/qemu.conf <<'END'
user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
END
echo 'auth_unix_rw = "none"' > etc/libvirtd.conf
mount --bind etc /etc/libvirt
mount --bind run /run/libvirt
mount --bind lib /var/lib/libvirt
mount --bind cache /var/cache/libvirt
mount --bind log /var/log/libvirt
exec libvirtd --pid-file "$PWD/libvirtd.pid"
"""


# A domain that never runs: QEMU holds it still, and its interface is all that matters.
DOMAIN = """
<domain type='qemu'>
  <name>web-0</name>
  <metadata><forewarn:machine xmlns:forewarn='urn:forewarn:machine' scope='web'/></metadata>
  <memory unit='MiB'>16</memory>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <devices>
    <interface type='network'>
      <mac address='52:54:00:00:00:01'/><source network='forewarn'/><model type='virtio'/><rom enabled='no'/>
    </interface>
    <controller type='usb' model='none'/><memballoon model='none'/>
  </devices>
</domain>
"""


class Libvirt:
    """A libvirtd in the host's namespace."""

    def __init__(self, lab: Lab, host: Namespace) -> None:
        self._host = host
        for folder in ("etc", "run", "lib", "cache", "log"):
            (lab.folder / folder).mkdir()
        lab.write({"start.sh": START})
        lab.start(host, ["unshare", "--mount", "--propagation", "private", "sh", "start.sh"])
        self.uri = f"qemu:///system?socket={lab.folder}/run/libvirt-sock"
        until(lambda: accepts_connections(lab.folder / "run" / "libvirt-sock"))

    def run(self, script: str) -> str:
        return self._host.run(f"export LIBVIRT_DEFAULT_URI='{self.uri}'\n{script}")


@contextmanager
def libvirt_network(lab: Lab, host: Namespace) -> Iterator[Libvirt]:
    """Run libvirtd with the page's network; at the end stop all domains, and the network with its DHCP server."""
    libvirt = Libvirt(lab, host)
    lab.write({"forewarn-network.xml": block(OWN_NETWORK, "forewarn-network.xml")})
    try:
        libvirt.run(block(OWN_NETWORK, "on the host: define the network"))
        yield libvirt
    finally:
        libvirt.run("for each in $(virsh list --name); do virsh destroy $each; done\nvirsh net-destroy forewarn")


def join(host: Namespace, number: int, machine: Namespace) -> None:
    """Connect a machine to libvirt's bridge, with the address that libvirt's DHCP server offers."""
    host.run(f"ip link add tap{number} master br0 type veth peer name eth0 netns {machine.name}")
    host.run(f"ip link set tap{number} up")
    machine.run(f"ip link set eth0 address 52:54:00:00:00:0{number} up")
    machine.until_up("eth0")
    until_forwarding(host, f"tap{number}")
    offer = json.loads(machine.python(CLIENT.replace("525400000001", f"52540000000{number}")))
    assert (offer["address"], offer["3"]) == (f"10.88.0.1{number}", [10, 88, 0, 1])
    machine.run(f"ip address add {offer['address']}/24 dev eth0\nip route add default via 10.88.0.1")


def test_machines_reach_the_endpoint_through_libvirts_network(lab: Lab) -> None:
    """They do, also after libvirt made its bridge again; clean-traffic drops what a machine sends from another's address."""
    host = lab.namespace("host")
    web, db, cache = (lab.namespace(name) for name in ("web", "db", "cache"))
    lab.write({"fleet.toml": block("On a bridge", "fleet.toml")})
    events = prepare(lab.folder)
    with libvirt_network(lab, host) as libvirt:
        lab.serve(host, command(OWN_NETWORK, "on the host: the service"))
        for number, machine in enumerate((web, db, cache), 1):
            join(host, number, machine)
        assert web.ask().event_ids == [events["web"]]

        libvirt.run("virsh net-destroy forewarn\nvirsh net-start forewarn")
        for number in (1, 2, 3):
            host.run(f"ip link set tap{number} master br0")
            until_forwarding(host, f"tap{number}")
        until(lambda: web.ask().status == 200)
        assert web.ask().event_ids == [events["web"]]

        # A datagram with the address of web reaches db, and the endpoint takes the forger for web.
        cache.run("ip address add 10.88.0.11/24 dev eth0")
        received = receive(lab, db)
        send(cache, "forged", source="10.88.0.11", target="10.88.0.12")
        assert next(received) == "forged from 10.88.0.11"
        assert cache.ask("--interface", "10.88.0.11").event_ids == [events["web"]]

        lab.write({"binding.xml": block(FILTER, "binding.xml")})
        libvirt.run(block(FILTER, "on the host: filter the port"))
        assert "clean-traffic" in libvirt.run("virsh nwfilter-binding-list")
        send(cache, "forged", source="10.88.0.11", target="10.88.0.12")
        send(cache, "honest", source="10.88.0.13", target="10.88.0.12")
        assert next(received) == "honest from 10.88.0.13"
        assert cache.silent("--interface", "10.88.0.11")
        assert cache.ask("--interface", "10.88.0.13").event_ids == [events["cache"]]
        libvirt.run("virsh nwfilter-binding-delete tap3")


def test_the_lease_of_a_domain_is_its_address(lab: Lab) -> None:
    """A lease of libvirt's DHCP server for the domain's interface is what the inventory reads as its address."""
    host, machine = lab.namespace("host"), lab.namespace("web")
    with libvirt_network(lab, host) as libvirt:
        lab.write({"domain.xml": DOMAIN})
        libvirt.run("virsh create --paused domain.xml")
        # A namespace asks in the domain's place, with its MAC address.
        host.run(f"ip link add tap1 master br0 type veth peer name eth0 netns {machine.name}\nip link set tap1 up")
        machine.run("ip link set eth0 address 52:54:00:00:00:01 up")
        machine.until_up("eth0")
        until_forwarding(host, "tap1")
        assert json.loads(machine.python(CLIENT + TAKE_OFFER).splitlines()[-1])["53"] == [5]
        connections = HostConnections()
        # dnsmasq writes the lease down after it has acknowledged it.
        until(lambda: any(each.leases for each in read_host(connections, libvirt.uri, "kvm-01").domains))
        (domain,) = read_host(connections, libvirt.uri, "kvm-01").domains
        assert (domain.name, domain.leases) == ("web-0", ("10.88.0.11",))
        decision = decide(
            [HostReading(name="kvm-01", connection="", domains=(domain,))], Fleet({}, {}), (), now=SOME_TIME
        )
        assert decision.wanted.machines["web", "web-0"].addresses == ("10.88.0.11",)
        connections.close()
