"""The filter on a listening socket: an address that floods it with connections is kept out for a second, and no other."""

import socket

import pytest

from forewarn.endpoint.flood_filter import BLOCKED_S, MAX_BLOCKED, MAX_OVER_SHARE, FloodFilter, program
from forewarn.endpoint.sockets import Listener
from tests.endpoint.in_memory import manual_monotonic
from tests.support.guest_service import STRANGER, WEB_0, Serving, get, serving, status, turn
from tests.support.waiting import PATIENCE_S, until

SYN_SENT = 2  # the first byte of TCP_INFO: the other side has not answered yet


def connecting(port: int, source: str, to: str = "127.0.0.1") -> socket.socket:
    """Return a socket that is connecting, without waiting for the other side."""
    client = socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET)
    client.bind((source, 0))
    client.setblocking(False)
    client.connect_ex((to, port))
    return client


def is_kept_out(client: socket.socket, port: int, *, other: str) -> bool:
    """Whether a connection is still unanswered after a later one from another address was accepted."""
    with socket.socket() as later:
        later.settimeout(PATIENCE_S)
        later.bind((other, 0))
        later.connect(("127.0.0.1", port))
    return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == SYN_SENT


def only_listener(served: Serving) -> Listener:
    """Return the listener of the service's only address."""
    (on_address,) = served.server.listener._listeners
    assert on_address._listener is not None
    return on_address._listener


def flood(served: Serving, address: str) -> None:
    """Connect over the share of an address until the filter has it."""
    kept = [served.client(address) for _ in range(4)]
    until(lambda: len(served.endpoint.connections) == len(kept))
    listener = only_listener(served)
    for _ in range(MAX_OVER_SHARE):
        assert served.client(address).closed()
    until(lambda: address in listener.flood_filter.blocked)
    turn(served.endpoint.loop)  # it notes the address before it sets the filter


def test_a_flooding_address_is_kept_out_for_a_second(caplog: pytest.LogCaptureFixture) -> None:
    """Its connections are not even accepted; other callers and its own open connections are not affected."""
    with serving(stopped=True) as served:
        flood(served, STRANGER)
        refused = served.endpoint.counters.refused["unknown"]
        assert refused == MAX_OVER_SHARE
        with connecting(served.port, STRANGER) as client:
            assert is_kept_out(client, served.port, other=WEB_0)
        assert served.endpoint.counters.refused["unknown"] == refused
        assert served.endpoint.counters.blocked == 1
        assert any(STRANGER in each.message for each in caplog.records)
        assert status(served.client(WEB_0).ask(get())) == 200
        assert status(served._clients[0].ask(get())) == 404
        served.move(BLOCKED_S)
        assert served.client(STRANGER).closed()
        assert served.endpoint.counters.refused["unknown"] == refused + 1


def test_few_connections_over_the_share_block_nothing() -> None:
    """Connections over the share are counted anew each second."""
    with serving(stopped=True, guest_unknown_connections=1) as served:
        served.client(STRANGER)
        until(lambda: len(served.endpoint.connections) == 1)
        listener = only_listener(served)
        for _ in range(3):
            for _ in range(MAX_OVER_SHARE - 1):
                assert served.client(STRANGER).closed()
            served.move(BLOCKED_S)
        assert not listener.flood_filter.blocked


def test_a_full_listener_blocks_nobody() -> None:
    """A connection over the limit of all guests is no flood of its caller."""
    with serving(guest_all_connections=1) as served:
        served.client(WEB_0)
        until(lambda: len(served.endpoint.connections) == 1)
        for _ in range(2 * MAX_OVER_SHARE):
            assert served.client(STRANGER).closed()
        listener = only_listener(served)
        assert not listener.flood_filter.blocked


def test_addresses_of_both_families_are_told_apart() -> None:
    """An IPv6 socket also takes IPv4 callers: each kind of address is compared with packets of its own kind."""
    with (
        manual_monotonic() as clock,
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as both,
    ):
        port = both.getsockname()[1]
        flood_filter = FloodFilter(clock.loop, both)
        for host in ("::1", "::ffff:127.0.0.9"):
            for _ in range(MAX_OVER_SHARE):
                flood_filter.count(host)
        with connecting(port, "::1", "::1") as one, connecting(port, "127.0.0.9") as other:
            assert is_kept_out(one, port, other="127.0.0.8")
            assert is_kept_out(other, port, other="127.0.0.8")
        clock.now_s += BLOCKED_S
        clock.loop.turn()
        for source, to in (("::1", "::1"), ("127.0.0.9", "127.0.0.1")):
            with socket.create_connection((to, port), timeout=PATIENCE_S, source_address=(source, 0)):
                pass


def test_the_kernel_takes_the_largest_filter() -> None:
    """As many addresses as may be blocked at once fit into one filter; more are accepted and closed as before."""
    hosts = [f"fd00::{number}" for number in range(1, MAX_BLOCKED)]
    with manual_monotonic() as clock, socket.create_server(("127.0.0.1", 0)) as listening:
        flood_filter = FloodFilter(clock.loop, listening)
        for host in (*hosts, "127.0.0.9", "127.0.0.8"):
            for _ in range(MAX_OVER_SHARE):
                flood_filter.count(host)
        port = listening.getsockname()[1]
        assert list(flood_filter.blocked) == [*hosts, "127.0.0.9"]
        with connecting(port, "127.0.0.9") as client:
            assert is_kept_out(client, port, other="127.0.0.8")


def test_a_filter_that_the_kernel_refuses_leaves_none_behind() -> None:
    """If a filter cannot be changed, the old one is taken away: no address is kept out for longer than a second."""

    def make_filter(hosts: list[str]) -> bytes:
        return program(hosts) if hosts == ["127.0.0.9"] else b"no program at all"

    with manual_monotonic() as clock, socket.create_server(("127.0.0.1", 0)) as listening:
        flood_filter = FloodFilter(clock.loop, listening, make_filter=make_filter)
        for _ in range(MAX_OVER_SHARE):
            flood_filter.count("127.0.0.9")
        for _ in range(MAX_OVER_SHARE):
            flood_filter.count("127.0.0.8")
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S, source_address=("127.0.0.9", 0)):
            pass
