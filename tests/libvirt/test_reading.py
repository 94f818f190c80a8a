"""Reading the domains of a host, from libvirt's driver for tests, which reads its hosts from a file."""

import threading
from pathlib import Path

import pytest

import libvirt
from forewarn.core.fleet import Fleet
from forewarn.core.model import Machine, ScopeKind
from forewarn.libvirt.connections import HostConnections
from forewarn.libvirt.importing import SOME_TIME, import_fleet
from forewarn.libvirt.inventory import decide
from forewarn.libvirt.reading import read_host
from forewarn.libvirt.statements import METADATA_URI, parse_rules

NODE = "<node>{}<cpu><mhz>1</mhz><nodes>1</nodes><sockets>1</sockets><cores>1</cores><threads>1</threads></cpu></node>"
DOMAIN = """
<domain type='test'><name>{name}</name><uuid>5ca1ab1e-0000-4000-8000-00000000000{number}</uuid>
<metadata>{metadata}</metadata><memory>1024</memory><os><type>hvm</type></os>
<devices><interface type='bridge'><source bridge='br0'/><target dev='link{number}'/></interface></devices></domain>
"""
SOLO = parse_rules("[[rules]]\nmatch = '(?P<scope>.+)'\nkind = 'standalone'", "rules.toml")


def element(attributes: str, content: str = "") -> str:
    return f"<forewarn:machine xmlns:forewarn='{METADATA_URI}' {attributes}>{content}</forewarn:machine>"


@pytest.fixture
def host(tmp_path: Path) -> str:
    """The URI of a host with domains of good, wrong and hostile metadata."""
    metadata = {
        "good": element("scope='shop' update-domain='2'"),
        "huge": element(f"scope='shop' kind='{'x' * 100_000}'"),
        "nested": element("scope='shop'", "<a>" * 200 + "</a>" * 200),
        "path": element("scope='../../etc'"),
        "foreign": "<other:machine xmlns:other='urn:other' scope='shop'/>",
    }
    domains = (
        DOMAIN.format(name=name, number=number, metadata=text) for number, (name, text) in enumerate(metadata.items())
    )
    file = tmp_path / "host.xml"
    file.write_text(NODE.format("".join(domains)))
    return f"test://{file}"


def test_wrong_and_hostile_metadata_concerns_its_domain_alone(host: str) -> None:
    """The good domain is a machine; the others are named with what is wrong, in a few words each."""
    connections = HostConnections()
    reading = read_host(connections, host, "kvm-a", interfaces=True)
    assert reading.problem == ""
    decision = decide([reading], Fleet({}, {}), (), now=SOME_TIME, by_interface=True)
    assert list(decision.wanted.machines.values()) == [
        Machine(
            scope="shop",
            name="good",
            update_domain=2,
            host="kvm-a",
            interface="link0",
            instance_id="5ca1ab1e-0000-4000-8000-000000000000",
        )
    ]
    assert decision.unassigned == ("foreign",)
    refused = sorted(problem.partition(": ")[0] for problem in decision.problems)
    assert refused == ["domain 'huge' on kvm-a", "domain 'nested' on kvm-a", "domain 'path' on kvm-a"]
    assert max(map(len, decision.problems)) < 200
    connections.close()


def test_the_default_host_of_the_test_driver_is_imported() -> None:
    """Its domain has an address, and a rule gives it a scope."""
    decision = import_fleet(["test:///default", "test:///default"], SOLO)
    (machine,) = decision.wanted.machines.values()
    assert (machine.scope, machine.name, machine.addresses) == ("test", "test", ("192.168.122.3",))
    assert decision.wanted.scopes["test"].kind is ScopeKind.STANDALONE
    assert [host.connection for host in decision.hosts] == ["test:///default"]


def test_a_host_that_cannot_be_read_has_a_problem() -> None:
    """The reading says why, under the name of the host if it is known."""
    connections = HostConnections()
    reading = read_host(connections, "qemu+unix:///system?socket=/nowhere/libvirt-sock", "kvm-a")
    assert reading.domains == ()
    assert reading.problem.startswith(
        "host kvm-a: libvirt at qemu+unix:///system?socket=/nowhere/libvirt-sock cannot be"
    )


def test_a_guest_agent_that_never_answers_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its domain is read without the addresses that only the agent knows: a guest must not stop the inventory of its host."""
    back, ask = threading.Event(), libvirt.virDomain.interfaceAddresses

    def hang(domain: libvirt.virDomain, source: int, flags: int) -> object:
        if source == libvirt.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT:
            assert back.wait(60)
        return ask(domain, source, flags)

    monkeypatch.setattr(libvirt.virDomain, "interfaceAddresses", hang)
    connections = HostConnections()
    found = read_host(connections, "test:///default", "kvm-a", guest_agent=True, agent_within_s=0.05)
    assert (found.problem, [domain.leases for domain in found.domains]) == ("", [("192.168.122.3",)])
    back.set()
    connections.close()


def test_a_guest_agent_answers_for_the_interfaces_of_its_domain_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other interfaces, addresses that no machine can call from, nonsense, and more addresses than a machine has are left out."""
    many = [f"10.9.0.{n}" for n in range(1, 100)]
    answer = {
        "lo": {"hwaddr": "00:00:00:00:00:00", "addrs": [{"addr": "127.0.0.1"}]},
        "docker0": {"hwaddr": "02:42:00:00:00:01", "addrs": [{"addr": "172.17.0.1"}]},
        "tunnel": {"hwaddr": None, "addrs": [{"addr": "10.8.0.1"}]},
        "silent": {"hwaddr": "AA:BB:CC:DD:EE:FF", "addrs": None},
        "eth0": {
            "hwaddr": "AA:BB:CC:DD:EE:FF",
            "addrs": [{"addr": each} for each in ("169.254.169.254", "::1", "x" * 9_999, *many)],
        },
    }
    ask = libvirt.virDomain.interfaceAddresses

    def answered(domain: libvirt.virDomain, source: int, flags: int) -> object:
        return answer if source == libvirt.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT else ask(domain, source, flags)

    monkeypatch.setattr(libvirt.virDomain, "interfaceAddresses", answered)
    connections = HostConnections()
    (domain,) = read_host(connections, "test:///default", "kvm-a", guest_agent=True).domains
    assert (domain.leases, domain.arp, domain.agent) == (("192.168.122.3",), ("192.168.122.3",), tuple(many[:16]))
    (domain,) = read_host(connections, "test:///default", "kvm-a").domains
    assert domain.agent == ()
    connections.close()


def test_a_domain_that_hangs_is_a_problem_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading ends and says so; other hosts do not wait for it."""
    back = threading.Event()
    monkeypatch.setattr(libvirt.virDomain, "state", lambda _: back.wait(60))
    connections = HostConnections()
    found = read_host(connections, "test:///default", "kvm-a", call_within_s=0.05)
    assert found.problem == "host kvm-a: libvirt on kvm-a does not answer within 0.05 s: check its libvirtd and QEMU"
    back.set()
    connections.close()
