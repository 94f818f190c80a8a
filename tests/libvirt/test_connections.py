"""Connections to libvirt, against its driver for tests, which lives in this process."""

import itertools
import threading

import pytest

import libvirt
from forewarn.libvirt import connections as connections_module
from forewarn.libvirt.connections import HostConnections, HostUnreachable
from forewarn.libvirt.hosted_domain import LibvirtHost
from tests.support.waiting import PATIENCE_S

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


def test_an_attempt_to_connect_that_hangs_for_ever_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that lost its power meanwhile never answers that attempt: after a while another one begins."""
    really_open, hangs, back = libvirt.open, threading.Event(), threading.Event()

    def hang_at_first(uri: str) -> object:
        monkeypatch.setattr(libvirt, "open", really_open)
        hangs.set()
        assert back.wait(60)
        return really_open(uri)

    monkeypatch.setattr(libvirt, "open", hang_at_first)
    connections = HostConnections(open_within_s=60, open_again_after_s=0)
    first = threading.Thread(target=connections.get, args=(TEST_DRIVER,))
    first.start()
    assert hangs.wait(60)
    second = connections.get(TEST_DRIVER)
    back.set()
    first.join()
    assert connections.get(TEST_DRIVER) is second
    connections.close()


def test_after_a_call_that_hangs_others_get_another_connection() -> None:
    """libvirtd works on five calls of a connection at once: five that hang would hold up all others."""
    connections, back = HostConnections(), threading.Event()
    host = LibvirtHost("kvm-a", TEST_DRIVER, connections)
    hanging = connections.get(TEST_DRIVER)
    with pytest.raises(HostUnreachable, match="kvm-a does not answer within"):
        host.call(lambda _: back.wait(60), 0.05)
    assert host.call(lambda connection: connection) is not hanging
    assert hanging.isAlive()  # the call may still end well
    back.set()
    connections.close()


def test_threads_that_come_at_once_start_one_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second loop would work on the same events of libvirt at the same time."""
    connections_module._run_event_loop()  # the real one, which later tests need
    loops: list[object] = []
    arrived, second, lock = itertools.count(1), threading.Event(), threading.Lock()

    class NotedLock:
        def __enter__(self) -> None:
            if next(arrived) == 2:
                second.set()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    def register() -> None:
        loops.append(None)
        if len(loops) == 2:  # nothing kept the second thread out
            second.set()
        second.wait(PATIENCE_S)

    monkeypatch.setattr(connections_module, "_starting_event_loop", NotedLock())
    monkeypatch.setattr(libvirt, "virEventRegisterDefaultImpl", register)
    monkeypatch.setattr(connections_module, "_loop", lambda: None)
    connections_module._start_event_loop.cache_clear()
    threads = [threading.Thread(target=connections_module._run_event_loop) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loops) == 1
