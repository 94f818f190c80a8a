"""Discovery of the endpoint: the order of the sources, with leases as DHCP clients write them."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from forewarn.guest.discovery import (
    DEFAULT_ENDPOINT,
    find_endpoint,
    leased_endpoints,
    normal_endpoint,
    option_245,
    stored_option_245,
)
from forewarn.guest.errors import ConfigError
from tests.support.waiting import PATIENCE_S

DHCLIENT = """
lease {
  interface "eth0";
  fixed-address 10.0.0.4;
  option unknown-245 a8:3f:81:10;
}
lease {
  interface "eth0";
  option unknown-245 a8:3f:81:11;
}
"""
NETWORKD = "# This is private data. Do not parse.\nADDRESS=10.0.0.4\nOPTION_245=a83f8112\n"


def only(*hosts: str) -> object:
    return lambda host, port, timeout_s: host in hosts and port == 80 and timeout_s == 2.0


def find(
    folder: Path, explicit: str = "", environment: dict[str, str] | None = None, accepts: tuple[str, ...] = ()
) -> str:
    (folder / "dhclient.eth0.leases").write_text(DHCLIENT)
    (folder / "2").write_text(NETWORKD)
    patterns = [f"{folder}/dhclient*", f"{folder}/2", f"{folder}/none*"]
    return find_endpoint(explicit, environment or {}, connect=only(*accepts), leases=patterns)  # type: ignore[arg-type]


def test_the_order(tmp_path: Path) -> None:
    """An argument, FOREWARN_ENDPOINT, SCHEDULEDEVENTSIP, a default that accepts, a lease that does, the default."""
    both = {"FOREWARN_ENDPOINT": "http://10.0.0.1:8169", "SCHEDULEDEVENTSIP": "10.0.0.2"}
    assert find(tmp_path, "http://10.0.0.9/", both) == "http://10.0.0.9"
    assert find(tmp_path, "", both) == "http://10.0.0.1:8169"
    assert find(tmp_path, "", {"SCHEDULEDEVENTSIP": "10.0.0.2"}) == "http://10.0.0.2"
    assert find(tmp_path, accepts=("169.254.169.254", "168.63.129.17")) == DEFAULT_ENDPOINT
    assert find(tmp_path, accepts=("168.63.129.17",)) == "http://168.63.129.17"
    assert find(tmp_path, accepts=("168.63.129.18",)) == "http://168.63.129.18"
    assert find(tmp_path) == DEFAULT_ENDPOINT


@pytest.mark.parametrize(
    ("lease", "address"),
    [
        (DHCLIENT, "168.63.129.17"),
        (NETWORKD, "168.63.129.18"),
        ("OPTION_245=a8:3f:81:10\n", "168.63.129.16"),
        ('option unknown-245 "abcd";', "97.98.99.100"),
        ('option unknown-245 "\\250?\\201\\020";', "168.63.129.16"),
        ("option unknown-245 a8:3f:81;", None),
        ("OPTION_245=a83f811\n", None),
        ("OPTION_2450=a83f8110\n", None),
        ('option unknown-245 "\\"\\\\ab";', "34.92.97.98"),
        ('option unknown-245 "abcd', None),
        ('option unknown-245 "\\250?\\201\\020', None),
        ('option unknown-245 "ab\\";\noption unknown-245 "abcd";', "97.98.99.100"),
        ("", None),
    ],
)
def test_option_245(lease: str, address: str | None) -> None:
    """The last option in the file counts, in each client's notation, if it has four bytes."""
    assert option_245(lease) == address


@pytest.mark.posix
@pytest.mark.parametrize(
    "value", ['"' + "\\250" * 200_000, '"' + "x" * 800_000, " " * 800_000], ids=["escapes", "text", "space"]
)
def test_an_option_that_never_ends_is_read_in_one_pass(value: str) -> None:
    """It costs no more than its length: the DHCP server chooses the text."""
    program = "import sys; from forewarn.guest.discovery import option_245; print(option_245(sys.stdin.read()))"
    lease = f"option unknown-245 {value}"
    ended = subprocess.run(
        [sys.executable, "-c", program], input=lease, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert ended.stdout == "None\n"


@pytest.mark.posix
def test_a_lease_that_is_no_file_is_skipped(tmp_path: Path) -> None:
    """A pipe in the folder of a DHCP client does not block the agent."""
    os.mkfifo(tmp_path / "dhclient.a.leases")
    (tmp_path / "dhclient.b.leases").mkdir()
    (tmp_path / "dhclient.c.leases").write_text(DHCLIENT)
    assert list(leased_endpoints([f"{tmp_path}/dhclient*"])) == ["http://168.63.129.17"]


@pytest.mark.parametrize(
    "text", ["https://10.0.0.1", "http://", "http://10.0.0.1/metadata", "http://x:99999", "ftp://x"]
)
def test_malformed_endpoints_are_refused(text: str) -> None:
    """The message says how to write an endpoint."""
    with pytest.raises(ConfigError, match=r"write it like http://169\.254\.169\.254"):
        normal_endpoint(text)


def test_an_address_of_version_6_keeps_its_brackets() -> None:
    """The brackets allow a port after the address."""
    assert normal_endpoint("[fd00::1]:8169") == "http://[fd00::1]:8169"
    assert normal_endpoint("unix:/run/agent.sock") == "unix:/run/agent.sock"


@pytest.mark.parametrize(
    ("options", "address"),
    [
        (
            struct.pack("<5I3sx", 15, 0, 3, 0, 9, b"abc") + struct.pack("<5I4B", 245, 0, 4, 0, 9, 168, 63, 129, 16),
            "168.63.129.16",
        ),
        (struct.pack("<5I4B", 245, 0, 4, 1, 9, 168, 63, 129, 16), None),
        (struct.pack("<5I3sx", 245, 0, 3, 0, 9, b"abc"), None),
        (struct.pack("<5I2s", 245, 0, 4, 0, 9, b"ab"), None),
        (struct.pack("<5I", 245, 0, 0xFFFF_FFFF, 0, 9), None),
        (b"\xf5", None),
        (b"", None),
    ],
)
def test_option_245_as_windows_stores_it(options: bytes, address: str | None) -> None:
    """A value of four bytes counts, if it is not an option of the vendor; what breaks off is ignored."""
    assert stored_option_245(options) == address
