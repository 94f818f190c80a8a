"""The listener's sockets: where they listen, what they promise, and what is said when they cannot."""

import builtins
import socket

import pytest

from forewarn.core.errors import InvalidSettings
from forewarn.web import listener
from forewarn.web.listener import Address, is_wildcard, new_event_loop, open_socket
from tests.web.serving import URL, get, serving, status


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
        first, second = served.side.listener.urls
        assert second.startswith("http://127.0.0.2:")
        assert first != second
        with socket.create_connection(
            ("127.0.0.2", int(second.rpartition(":")[2])), source_address=("127.0.0.10", 0)
        ) as s:
            s.sendall(get())
            assert status(s.recv(4_096)) == 200


def test_it_works_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain asyncio where uvloop is absent: the same answers, and the answer to a megabyte still arrives."""
    real = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name == "uvloop":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    loop = new_event_loop()
    loop.close()
    assert not type(loop).__module__.startswith("uvloop")
    monkeypatch.setattr(listener, "SWEEP_EVERY_S", 0.05)
    with serving() as served:
        client = served.client()
        assert [status(client.ask(get())) for _ in range(3)] == [200, 200, 200]
        assert served.guests.counters.remembered == 1
        client.send(get("/x" + "a" * 1_000_000))
        assert status(client.rest()) == 431
        waiting = served.client().send(get(URL, "Prefer: wait=30", 'If-None-Match: "1"'))
        assert waiting.quiet()
        waiting.socket.shutdown(socket.SHUT_WR)
        assert status(waiting.rest()) == 304
