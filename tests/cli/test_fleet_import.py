"""`forewarn fleet import libvirt`, against libvirt's driver for tests."""

from pathlib import Path

from forewarn.core.fleet import parse_fleet
from tests.support.serve_process import run


def test_an_import_is_a_fleet_file(tmp_path: Path) -> None:
    """The output is the file; what it leaves out, and why, goes to standard error."""
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rules]]\nmatch = 'test'\nscope = 'shop'\nupdate_domain = 3")
    done = run("fleet", "import", "libvirt", "--uri", "test:///default", "--rules", str(rules))
    assert (done.returncode, done.stderr) == (0, "")
    fleet = parse_fleet(done.stdout, "fleet.toml")
    (machine,), (host,) = fleet.machines.values(), fleet.hosts.values()
    assert (host.name, host.connection) == (machine.host, "test:///default")
    assert (str(machine), machine.update_domain, machine.addresses) == ("shop/test", 3, ("192.168.122.3",))

    left_out = run("fleet", "import", "libvirt", "--uri", "test:///default")
    assert left_out.returncode == 0
    assert parse_fleet(left_out.stdout, "fleet.toml").machines == {}
    assert left_out.stderr == "! left out, because nothing gives them a scope: test\n"


HOST_WITHOUT_ADDRESSES = """
<node><domain type='test'>
  <name>db-1</name><memory>1024</memory><os><type>hvm</type></os>
</domain></node>
"""


def test_an_import_names_machines_without_an_address(tmp_path: Path) -> None:
    """libvirt shows no address of a domain without a lease: the file has none, and standard error says so."""
    host, rules = tmp_path / "host.xml", tmp_path / "rules.toml"
    host.write_text(HOST_WITHOUT_ADDRESSES)
    rules.write_text("[[rules]]\nmatch = '.*'\nscope = 'shop'")
    done = run("fleet", "import", "libvirt", "--uri", f"test://{host}", "--rules", str(rules))
    assert done.stderr == "! no address is known of shop/db-1: add `addresses` before you apply the file\n"
    assert done.returncode == 0
    assert "addresses" not in done.stdout
    assert [str(machine) for machine in parse_fleet(done.stdout, "fleet.toml").machines.values()] == ["shop/db-1"]


def test_an_import_of_a_host_that_is_away_fails() -> None:
    """Half a fleet would look like a whole one: nothing is printed but the reason."""
    away = "qemu+unix:///system?socket=/nowhere/libvirt-sock"
    done = run("fleet", "import", "libvirt", "--uri", "test:///default", "--uri", away)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"libvirt at {away} cannot be reached" in done.stderr
