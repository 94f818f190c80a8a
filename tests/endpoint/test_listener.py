"""The listener's sockets: where they listen, what they promise, and what is said when they cannot."""

import socket

import pytest

from forewarn.core.errors import InvalidSettings
from forewarn.endpoint.listener import Address, is_wildcard, open_socket
from tests.support.guest_service import get, serving, status


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
    """HOST:PORT, perhaps with an interface, and brackets around what has colons of its own."""
    assert Address.parse(text) == address
    assert str(address) == text


def test_the_hop_limit_goes_out_with_every_packet() -> None:
    """1 keeps bridged containers out, on IPv4 and IPv6; 0 leaves it to the system."""
    with open_socket(Address("127.0.0.1", 0), hop_limit=1) as four:
        assert four.getsockopt(socket.IPPROTO_IP, socket.IP_TTL) == 1
    with open_socket(Address("127.0.0.1", 0)) as usual:
        assert usual.getsockopt(socket.IPPROTO_IP, socket.IP_TTL) > 1
    if socket.has_ipv6:
        with open_socket(Address("::1", 0), hop_limit=1) as six:
            assert six.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS) == 1


def test_where_it_cannot_listen_it_says_so() -> None:
    """The address, the reason, and what to do."""
    with open_socket(Address("127.0.0.1", 0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidSettings, match=f"guest: cannot listen on 127.0.0.1:{port}: Address already in use"):
            open_socket(Address("127.0.0.1", port))
    with pytest.raises(InvalidSettings, match=r"cannot listen on 127\.0\.0\.1:0@nowhere0: "):
        open_socket(Address("127.0.0.1", 0, "nowhere0"))


def test_what_is_a_wildcard() -> None:
    """Every interface, in either family."""
    assert is_wildcard("0.0.0.0")
    assert is_wildcard("::")
    assert not is_wildcard("127.0.0.1")


def test_several_addresses_at_once() -> None:
    """Each is listened on, and each is named."""
    with serving(guest="127.0.0.1:0 127.0.0.2:0") as served:
        first, second = served.server.listener.urls
        assert second.startswith("http://127.0.0.2:")
        assert first != second
        with socket.create_connection(
            ("127.0.0.2", int(second.rpartition(":")[2])), source_address=("127.0.0.10", 0)
        ) as s:
            s.sendall(get())
            assert status(s.recv(4_096)) == 200
