"""Connections to libvirt, against its driver for tests, which lives in this process."""

import threading

import pytest

from forewarn.libvirt.connections import HostConnections, HostUnreachable

TEST_DRIVER = "test:///default"


def test_one_connection_serves_every_thread() -> None:
    """Each URI has one open connection, however many threads ask for it."""
    connections = HostConnections()
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(connections.get(TEST_DRIVER))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1
    connections.close()


def test_a_closed_connection_is_opened_again() -> None:
    """After `drop`, `get` opens a new connection, and the listeners see both."""
    connections = HostConnections()
    opened: list[str] = []
    connections.on_open(lambda uri, _: opened.append(uri))
    first = connections.get(TEST_DRIVER)
    connections.drop(TEST_DRIVER)
    assert connections.get(TEST_DRIVER) is not first
    assert opened == [TEST_DRIVER, TEST_DRIVER]
    connections.close()


def test_an_unreachable_host_is_a_sentence() -> None:
    """The error names the URI, the cause and what to check."""
    with pytest.raises(HostUnreachable, match=r"qemu\+unix.* cannot be reached: .*nowhere.*Check that libvirtd runs"):
        HostConnections().get("qemu+unix:///system?socket=/nowhere/libvirt-sock")
