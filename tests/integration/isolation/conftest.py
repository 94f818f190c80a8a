"""The two sites of docs/guide/networking.md, built with the commands of that page, once for each test module."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.isolation.prepared_store import prepare
from tests.support.guide_blocks import block, command
from tests.support.network_lab import Lab, Namespace, laboratory
from tests.support.waiting import until

FORWARDING = "3"


@dataclass
class Site:
    """A host with a running service, and the machine and the event of each scope."""

    lab: Lab
    host: Namespace
    machines: dict[str, Namespace]
    events: dict[str, str]
    heading: str

    @property
    def folder(self) -> Path:
        return self.lab.folder


def serve_as_printed(site: Site, heading: str) -> "subprocess.Popen[str]":
    return site.lab.serve(site.host, command(heading, "on the host: the service"))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with laboratory(tmp_path) as lab:
        yield lab


def build_bridge(lab: Lab) -> tuple[Namespace, dict[str, Namespace]]:
    """Build three machines on a bridge, each with its own address."""
    host = lab.namespace("host")
    machines = {
        scope: lab.machine(host, f"tap{n}", f"10.88.0.1{n}/24", mac=f"52:54:00:00:00:0{n}")
        for n, scope in enumerate(("web", "db", "cache"), 1)
    }
    host.run(block("On a bridge", "on the host: the bridge"))
    host.run(block("On a bridge", "on the host: the machines' ports"))
    for n, machine in enumerate(machines.values(), 1):
        machine.run("ip route add default via 10.88.0.1")
        machine.until_up("eth0")
        until_forwarding(host, f"tap{n}")
    host.until_up("br0")
    return host, machines


def until_forwarding(host: Namespace, port: str) -> None:
    """Wait until a port of the bridge forwards, a moment after it was set up."""
    until(lambda: host.run(f"cat /sys/class/net/{port}/brport/state").strip() == FORWARDING)


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with laboratory(tmp_path_factory.mktemp("bridge")) as lab:
        host, machines = build_bridge(lab)
        lab.write({"fleet.toml": block("On a bridge", "fleet.toml")})
        site = Site(lab, host, machines, prepare(lab.folder), "On a bridge")
        serve_as_printed(site, site.heading)
        yield site


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three machines with the same address, each on its own link; the host has strict reverse-path filters."""
    with laboratory(tmp_path_factory.mktemp("links")) as lab:
        host = lab.namespace("host")
        host.run("sysctl --quiet --write net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1")
        machines = {
            scope: lab.machine(host, f"tap{n}", "10.0.0.4/24") for n, scope in enumerate(("red", "green", "blue"), 4)
        }
        host.run(block("One link per machine", "on the host: three links"))
        host.until_up("tap4", "tap5", "tap6")
        for machine in machines.values():
            machine.until_up("eth0")
        lab.write({"fleet.toml": block("One link per machine", "fleet.toml")})
        site = Site(lab, host, machines, prepare(lab.folder), "One link per machine")
        serve_as_printed(site, site.heading)
        yield site
