"""Listeners follow their interfaces: links that are made late, deleted and made again, or renamed."""

import json

from tests.integration.isolation.prepared_store import prepare
from tests.support.guide_blocks import block, command
from tests.support.network_lab import Lab, Namespace
from tests.support.waiting import until

ADDRESS = "10.0.0.4"


def connect(host: Namespace, link: str, machine: Namespace) -> None:
    """Connect a machine to the host by a new link, as the page does it for each link."""
    host.run(
        f"ip link add {link} type veth peer name eth0 netns {machine.name}\n"
        f"ip link set {link} up\nip address add 169.254.169.254/32 dev {link}\n"
        f"ip route add {ADDRESS}/32 dev {link} metric {link.removeprefix('tap')}"
    )
    machine.run(
        f"ip link set eth0 up\nip address add {ADDRESS}/24 dev eth0\nip route replace 169.254.169.254/32 dev eth0"
    )
    host.until_up(link)
    machine.until_up("eth0")


def readiness(host: Namespace) -> dict[str, object]:
    body: dict[str, object] = json.loads(host.ask(url="http://127.0.0.1:8170/readyz").body)
    return body


def until_answered(machine: Namespace, events: list[str]) -> None:
    """Wait until a machine gets an answer, which has these events."""
    until(lambda: machine.ask().status == 200)
    assert machine.ask().event_ids == events


def test_listeners_follow_their_links(lab: Lab) -> None:
    """A link that comes late, is deleted and made again, or renamed, is heard under its name, and only there."""
    host = lab.namespace("host")
    red, green, blue = (lab.namespace(name) for name in ("red", "green", "blue"))
    connect(host, "tap5", green)
    connect(host, "tap6", blue)
    lab.write({"fleet.toml": block("One link per machine", "fleet.toml")})
    events = prepare(lab.folder)
    lab.serve(host, command("One link per machine", "on the host: the service"))
    until(lambda: host.ask(url="http://127.0.0.1:8170/readyz").status == 200)
    assert readiness(host)["warnings"] == {
        "guest": "cannot listen on 169.254.169.254:80@tap4 yet: there is no such interface"
    }
    assert "forewarn_guest_addresses_absent 1.0" in host.ask(url="http://127.0.0.1:8170/metrics").body

    connect(host, "tap4", red)
    until_answered(red, [events["red"]])
    assert "warnings" not in readiness(host)

    host.run("ip link delete tap4")
    until(lambda: "warnings" in readiness(host))
    connect(host, "tap4", red)
    until_answered(red, [events["red"]])

    # Between two looks, and with another number.
    host.run("ip link delete tap5")
    connect(host, "tap5", green)
    until_answered(green, [events["green"]])

    # The name says who the machine is, not the number: whoever is behind the renamed link is no longer blue.
    host.run("ip link set tap6 down\nip link set tap6 name old6\nip link set old6 up")
    until(lambda: "warnings" in readiness(host))
    assert blue.silent()
    assert [machine.ask().event_ids for machine in (red, green)] == [[events["red"]], [events["green"]]]


def test_an_address_without_an_interface_may_come_late_and_come_back(lab: Lab) -> None:
    """A bridge that is made after the service, and made again, needs no restart of the service."""
    host, machine = lab.namespace("host"), lab.namespace("machine")
    lab.write({"fleet.toml": block("On a bridge", "fleet.toml")})
    events = prepare(lab.folder)
    lab.serve(host, command("On a bridge", "on the host: the service"))
    until(lambda: "no interface has this address" in str(readiness(host).get("warnings")))
    for _ in range(2):
        host.run(block("On a bridge", "on the host: the bridge"))
        host.run(f"ip link add tap1 master br0 type veth peer name eth0 netns {machine.name}\nip link set tap1 up")
        machine.run("ip address add 10.88.0.11/24 dev eth0\nip link set eth0 up\nip route add default via 10.88.0.1")
        until_answered(machine, [events["web"]])
        assert "warnings" not in readiness(host)
        host.run("ip link delete tap1\nip link delete br0")
