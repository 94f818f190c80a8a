"""Identification over real links: each machine sees and approves the events of its own scope only."""

import json

import pytest

from forewarn.core.model import Status
from tests.integration.isolation.conftest import Site, until_forwarding
from tests.integration.isolation.prepared_store import approvals, status
from tests.support.guide_blocks import block, command
from tests.support.network_lab import Lab
from tests.support.waiting import PATIENCE_S, until

UNKNOWN = '{"error":"Not found"}'


@pytest.fixture(params=["bridge", "links"])
def site(request: pytest.FixtureRequest) -> Site:
    site: Site = request.getfixturevalue(request.param)
    return site


ORIGINS = {
    "web": "10.88.0.11 by address",
    "db": "10.88.0.12 by address",
    "cache": "10.88.0.13 by address",
    "red": "10.0.0.4@tap4 by interface",
    "green": "10.0.0.4@tap5 by interface",
    "blue": "10.0.0.4@tap6 by interface",
}


def test_each_machine_sees_and_approves_its_own_scope_only(site: Site) -> None:
    """Another scope's event id gets 400 and approves nothing; the audit names the origin of each approval."""
    scopes = list(site.machines)
    for scope, machine in site.machines.items():
        (event,) = json.loads(machine.run(block(site.heading, "in a machine")))["Events"]
        assert (event["EventId"], event["EventStatus"]) == (site.events[scope], "Scheduled")
    for own, other in zip(scopes, scopes[1:] + scopes[:1], strict=True):
        both = site.machines[own].approve(site.events[own], site.events[other])
        assert both.status == site.machines[own].approve(site.events[other]).status == 400
        assert site.events[other] in both.body
    assert approvals(site.folder) == []
    assert {status(site.folder, each) for each in site.events.values()} == {Status.SCHEDULED}

    first = scopes[0]
    assert site.machines[first].approve(site.events[first]).status == 200
    until(lambda: status(site.folder, site.events[first]) is Status.STARTED)
    assert [status(site.folder, site.events[each]) for each in scopes[1:]] == [Status.SCHEDULED, Status.SCHEDULED]
    for scope in scopes[1:]:
        assert site.machines[scope].approve(site.events[scope]).status == 200
    names = {"red": "app", "green": "app", "blue": "app"}
    assert approvals(site.folder) == [
        (scope, f"{scope}/{names.get(scope, f'{scope}-0')}", ORIGINS[scope]) for scope in scopes
    ]


def test_headers_do_not_identify_a_machine(bridge: Site) -> None:
    """An unknown machine gets 404 with any headers; a known one that names another, as a proxy would, gets 400."""
    stranger = bridge.lab.machine(bridge.host, "tap9", "10.88.0.99/24")
    bridge.host.run("ip link set tap9 master br0 up")
    until_forwarding(bridge.host, "tap9")
    stranger.run("ip route add default via 10.88.0.1")
    before = approvals(bridge.folder)
    for options in ([], ["-H", "X-Forwarded-For: 10.88.0.11"], ["-H", "X-Instance-ID: web-0"]):
        reply = stranger.ask(*options)
        assert (reply.status, reply.body) == (404, UNKNOWN)
    assert stranger.approve(bridge.events["web"]).status == 404
    for header in ("X-Instance-ID: web-0", "X-Forwarded-For: 10.88.0.11"):
        assert bridge.machines["db"].ask("-H", header).status == 400
    assert approvals(bridge.folder) == before


def test_on_a_link_the_address_of_the_fleet_file_counts_too(links: Site) -> None:
    """A machine with an interface and an address is unknown at another address; with an interface alone it is known."""
    for machine in links.machines.values():
        machine.run("ip address flush dev eth0\nip address add 10.0.0.5/24 dev eth0")
        machine.run("ip route replace 169.254.169.254/32 dev eth0")
    for link in ("tap4", "tap6"):
        links.host.run(f"ip route add 10.0.0.5/32 dev {link} metric {link.removeprefix('tap')}")
    assert links.machines["red"].ask().event_ids == [links.events["red"]]
    assert links.machines["blue"].ask().status == 404


def test_on_a_laptop_loopback_addresses_identify_machines(lab: Lab) -> None:
    """The page's commands for a laptop identify two machines; the service needs no capability."""
    laptop = lab.namespace("laptop")
    lab.write({"fleet.toml": block("On a laptop", "fleet.toml")})
    powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    lab.serve(laptop, [*powerless, *command("On a laptop", "without root")])
    assert laptop.run(block("On a laptop", "web-0, and web-1")) == "web-0web-1"


def test_on_a_laptop_the_usual_address_serves_one_named_machine(lab: Lab) -> None:
    """With the usual address on loopback every caller is the named machine."""
    laptop = lab.namespace("laptop")
    lab.write({"fleet.toml": block("On a laptop", "fleet.toml")})
    laptop.run(block("On a laptop", "as root").split("FOREWARN_")[0])
    lab.serve(laptop, command("On a laptop", "as root"))
    url = "http://169.254.169.254/metadata/instance/compute/name?api-version=2020-07-01&format=text"
    assert laptop.ask(url=url).body == "web-0"


def test_a_wildcard_needs_an_option(lab: Lab) -> None:
    """Listening on every interface is refused without --allow-any-interface."""
    host = lab.namespace("host")
    arguments = ["forewarn", "serve", "--store", "memory:", "--guest"]
    refusals = {address: lab.start(host, [*arguments, address]) for address in ("0.0.0.0:80", "[::]:80")}
    for address, process in refusals.items():
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 2
        assert f"guest: {address} would answer on every interface" in output
        assert "--allow-any-interface" in output
    lab.serve(host, [*arguments, "0.0.0.0:80", "--allow-any-interface"])
    assert host.ask(url="http://127.0.0.1/metadata/versions").status == 404
