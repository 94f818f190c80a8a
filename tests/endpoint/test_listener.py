"""The listener's sockets: their addresses, their options, and the errors when they cannot be opened."""

import socket
from pathlib import Path

import pytest

from forewarn.core.errors import InvalidSettings
from forewarn.endpoint.listener import Address, is_wildcard, open_socket
from tests.support.guest_service import get, serving, status
from tests.support.ports import reserved_port
from tests.support.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8169", Address("127.0.0.1", 8169)),
        ("[::1]:8169", Address("::1", 8169)),
        ("169.254.169.254:80@tap3", Address("169.254.169.254", 80, "tap3")),
        ("[fe80::1]:80@tap3", Address("fe80::1", 80, "tap3")),
    ],
)
def test_an_address_is_written_as_it_is_read(text: str, address: Address) -> None:
    """An address is HOST:PORT or HOST:PORT@INTERFACE, with brackets around an IPv6 host."""
    assert Address.parse(text) == address
    assert str(address) == text


def test_the_hop_limit_is_set_on_the_socket() -> None:
    """A hop limit of 1 is set on IPv4 and IPv6; 0 leaves the system's."""
    with open_socket(Address("127.0.0.1", 0), hop_limit=1) as four:
        assert four.getsockopt(socket.IPPROTO_IP, socket.IP_TTL) == 1
    with open_socket(Address("127.0.0.1", 0)) as usual:
        assert usual.getsockopt(socket.IPPROTO_IP, socket.IP_TTL) > 1
    if Path("/proc/net/if_inet6").exists():  # else the kernel has no IPv6
        # No interface may have an IPv6 address, as in most containers: then ::1 is absent.
        with open_socket(Address("::", 0), hop_limit=1, listen=False) as six:
            assert six.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS) == 1


def test_an_address_that_cannot_be_used_is_an_error() -> None:
    """The error names the address and the reason."""
    with open_socket(Address("127.0.0.1", 0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidSettings, match=f"guest: cannot listen on 127.0.0.1:{port}: Address already in use"):
            open_socket(Address("127.0.0.1", port))
    with pytest.raises(
        InvalidSettings, match=r"cannot listen on 127\.0\.0\.1:0@nowhere0 yet: there is no such interface"
    ):
        open_socket(Address("127.0.0.1", 0, "nowhere0"))


def test_an_address_that_is_taken_leaves_no_other_open() -> None:
    """The service does not start, and nobody waits in vain for an answer on its first address."""
    with reserved_port() as kept, open_socket(Address("127.0.0.2", 0)) as taken:
        free = kept.getsockname()[1]
        guests = f"127.0.0.1:{free} 127.0.0.2:{taken.getsockname()[1]}"
        with pytest.raises(InvalidSettings) as failed, serving(guest=guests):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", free), timeout=PATIENCE_S)
        assert "127.0.0.2" in str(failed.value)


def test_wildcards_are_recognised() -> None:
    """The unspecified address of IPv4 and of IPv6 is a wildcard."""
    assert is_wildcard("0.0.0.0")
    assert is_wildcard("::")
    assert not is_wildcard("127.0.0.1")


def test_a_service_listens_on_several_addresses() -> None:
    """Each address is answered on, and each has a URL."""
    with serving(guest="127.0.0.1:0 127.0.0.2:0") as served:
        first, second = served.server.listener.urls
        assert second.startswith("http://127.0.0.2:")
        assert first != second
        with socket.create_connection(
            ("127.0.0.2", int(second.rpartition(":")[2])), source_address=("127.0.0.10", 0)
        ) as s:
            s.sendall(get())
            assert status(s.recv(4_096)) == 200
