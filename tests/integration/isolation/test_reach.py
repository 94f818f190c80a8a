"""Reaching the endpoint over real links: neither a forger on the bridge nor a container behind a machine can.

Each attack first succeeds without protection: a test that cannot fail proves nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.isolation.conftest import Site, serve_as_printed
from tests.integration.isolation.datagrams import receive, send
from tests.integration.isolation.prepared_store import approvals
from tests.support.guide_blocks import block
from tests.support.network_lab import NO_ANSWER, Namespace
from tests.support.waiting import until

NOBODY = 65534
RULESET = Path(__file__).parents[3] / "packaging" / "forewarn-bridge.nft"
# Claims the address `claimed` with an ARP request for `asked`.
CLAIM = """
import socket
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
link.bind(("eth0", 0x0806))
me, claimed, asked = link.getsockname()[4], socket.inet_aton("{claimed}"), socket.inet_aton("{asked}")
question = bytes.fromhex("0001080006040001") + me + claimed + bytes(6) + asked
link.send(b"\\xff" * 6 + me + bytes.fromhex("0806") + question)
"""


def pose(forger: Namespace, address: str, mac: str) -> None:
    """Use the address of another machine from now on."""
    forger.run(
        f"ip link set eth0 address {mac}\nip address flush dev eth0\nip address add {address}/24 dev eth0\n"
        "ip route replace default via 10.88.0.1\nip neighbour flush dev eth0"
    )


def dropped(host: Namespace) -> int:
    """Return how many frames the last line of the ruleset has dropped."""
    (line,) = [each for each in host.run("nft list chain bridge forewarn from_machines").splitlines() if "drop" in each]
    return int(line.split()[line.split().index("packets") + 1])


@contextmanager
def rules(site: Site) -> Iterator[None]:
    """Load the ruleset as the page does it, for the length of the block."""
    site.lab.write({"forewarn-bridge.nft": RULESET.read_text()})
    site.host.run(block("Anti-spoofing", "on the host: load the rules"))
    try:
        yield
    finally:
        site.host.run("nft flush ruleset")


def test_the_ruleset_drops_a_neighbours_address_and_the_outer_network(bridge: Site) -> None:
    """Without it a machine can use a neighbour's address; with it neither a forger nor the outer network gets an answer."""
    outsider = bridge.lab.machine(bridge.host, "outer", "192.0.2.2/24")
    bridge.host.run("ip address add 192.0.2.1/24 dev outer\nip link set outer up")
    bridge.host.until_up("outer")
    outsider.run("ip route add default via 192.0.2.1")
    assert outsider.ask().status == 404
    forger, own_mac, web_mac = bridge.machines["cache"], "52:54:00:00:00:03", "52:54:00:00:00:01"
    pose(forger, "10.88.0.11", own_mac)
    assert forger.ask().event_ids == [bridge.events["web"]]

    with rules(bridge):
        assert outsider.silent()
        for mac in (own_mac, web_mac):
            pose(forger, "10.88.0.11", mac)
            before = dropped(bridge.host)
            with forger.open_request(
                "--include", "--data", '{"StartRequests":[{"EventId":"' + bridge.events["web"] + '"}]}'
            ) as curl:
                until(lambda before=before: dropped(bridge.host) > before)  # type: ignore[misc]
                curl.kill()  # it may have ended: after three seconds without an answer to ARP the host is unreachable
                answer, _ = curl.communicate()
            assert answer == "", "the forger got an answer"
        pose(forger, "10.88.0.13", own_mac)
        for scope, machine in bridge.machines.items():
            assert machine.ask().event_ids == [bridge.events[scope]]
    assert approvals(bridge.folder) == []


def test_the_ruleset_drops_what_is_sent_to_a_neighbour_from_another_address(bridge: Site) -> None:
    """A datagram with the address of another machine arrives without the ruleset; with it only an honest one arrives."""
    forger, neighbour = bridge.machines["cache"], "10.88.0.12"
    received = receive(bridge.lab, bridge.machines["db"])
    send(forger, "forged", source="10.88.0.11", target=neighbour)
    assert next(received) == "forged from 10.88.0.11"
    with rules(bridge):
        send(forger, "forged", source="10.88.0.11", target=neighbour)
        send(forger, "honest", source="10.88.0.13", target=neighbour)
        assert next(received) == "honest from 10.88.0.13"


def test_the_ruleset_drops_claims_to_the_hosts_address(bridge: Site) -> None:
    """Without it a machine redirects its neighbour's requests to itself by ARP; with it the claim is dropped."""
    web, forger = bridge.machines["web"], bridge.machines["cache"]
    claim = CLAIM.format(claimed="10.88.0.1", asked="10.88.0.11")

    def redirected() -> bool:
        return "52:54:00:00:00:03" in web.run("ip neighbour show 10.88.0.1")

    def claim_redirects() -> bool:
        """Claim the address again: an ARP message of the host itself may have replaced an earlier claim."""
        forger.python(claim)
        return redirected()

    until(claim_redirects)
    with rules(bridge):
        web.run("ip neighbour flush dev eth0")
        forger.python(claim)
        until(lambda: dropped(bridge.host) == 1)
        assert not redirected()


@pytest.fixture(scope="module")
def container(bridge: Site) -> Namespace:
    """A container whose packets leave its machine with the machine's address, as container engines arrange it."""
    machine = bridge.machines["web"]
    container = bridge.lab.machine(machine, "veth0", "172.17.0.2/16")
    container.run("ip route add default via 172.17.0.1")
    machine.run(
        "ip link set veth0 up\nip address add 172.17.0.1/16 dev veth0\n"
        "sysctl --quiet --write net.ipv4.ip_forward=1\n"
        "nft add table ip engine\n"
        "nft add chain ip engine out '{ type nat hook postrouting priority srcnat; }'\n"
        "nft add rule ip engine out ip saddr 172.17.0.0/16 oifname eth0 masquerade"
    )
    machine.until_up("veth0")
    return container


def test_rules_in_the_machine_keep_containers_and_other_users_out(bridge: Site, container: Namespace) -> None:
    """Without the rules both get the machine's document; with them only root does."""
    web = bridge.machines["web"]
    assert container.ask().event_ids == web.ask(user=NOBODY).event_ids == [bridge.events["web"]]
    bridge.lab.write({"guest.nft": block("Keeping containers out", "guest.nft")})
    web.run(block("Keeping containers out", "in a machine: load it"))
    assert container.silent()
    assert web.ask(user=NOBODY).status == NO_ANSWER
    assert web.ask().event_ids == [bridge.events["web"]]
    web.run("nft delete table inet forewarn")


def test_a_hop_limit_of_one_keeps_containers_out(bridge: Site, container: Namespace) -> None:
    """The machine, one hop away, gets an answer; the container routed behind it gets none."""
    web = bridge.machines["web"]
    assert container.ask().event_ids == [bridge.events["web"]]
    bridge.lab.stop_all()
    bridge.lab.write({"serve.toml": block("Keeping containers out", "serve.toml")})
    serve_as_printed(bridge, "Keeping containers out")
    assert web.ask().event_ids == [bridge.events["web"]]
    assert container.silent()
    assert web.approve(bridge.events["web"]).status == 200
