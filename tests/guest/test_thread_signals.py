"""The main thread ends the agent on SIGTERM and SIGINT. It would not wake up if another thread received the signal."""

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from forewarn.guest.clock import Time
from forewarn.guest.handlers import process
from forewarn.guest.serving.settings import ServedClient
from forewarn.guest.sockets import Deadline, connect
from forewarn.guest.steps import Run
from forewarn.guest.system import system
from tests.guest.serving.local_agent import harness
from tests.support.fake_endpoint import event
from tests.support.waiting import PATIENCE_S

ENDING = {signal.SIGTERM, signal.SIGINT}


def blocked_signals(thread: threading.Thread) -> set[int]:
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    mask = int(status.partition("SigBlk:")[2].split()[0], 16)
    return {number for number in signal.valid_signals() if mask & 1 << number - 1}


def own_blocked_signals() -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def new_thread(name: str, others: list[threading.Thread]) -> threading.Thread:
    (thread,) = [each for each in threading.enumerate() if each.name == name and each not in others]
    return thread


def test_the_thread_that_waits_for_a_program_gets_no_signal(tmp_path: Path) -> None:
    """It lives as long as the program that a step started."""
    table = {"pid_file": str(tmp_path / "pid"), "start": ["sleep", "60"], "foreground": True, "up_for": "0"}
    run = Run(step="one", phase="recover", event=event(), share_s=PATIENCE_S, time=Time())
    others = threading.enumerate()
    process.recover(process.parse(table, "here"), run)
    assert blocked_signals(new_thread("reaper", others)) >= ENDING
    assert own_blocked_signals() == set()
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_the_thread_that_accepts_clients_gets_no_signal(tmp_path: Path) -> None:
    """The threads that answer clients inherit that from it."""
    others = threading.enumerate()
    with harness(tmp_path, ServedClient("reader", port=0)):
        assert blocked_signals(new_thread("clients", others)) >= ENDING
    assert own_blocked_signals() == set()


def test_the_thread_that_looks_up_a_name_gets_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection of the SDK starts such a thread."""
    blocked: list[set[int]] = []

    def look_up(*_: object, **__: object) -> list[object]:
        blocked.append(own_blocked_signals())
        raise OSError("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(OSError, match="registrar cannot be looked up: unknown"):
        connect("registrar", 80, Deadline(PATIENCE_S))
    assert blocked[0] >= ENDING
    assert own_blocked_signals() == set()


def test_a_handler_that_raises_leaves_no_signal_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python runs the handler of a signal that came just before when a mask is set, and that may raise."""
    set_mask = signal.pthread_sigmask

    def set_mask_and_handle(how: int, numbers: tuple[int, ...]) -> set[int]:
        before = set_mask(how, numbers)
        if numbers and how == signal.SIG_BLOCK:
            raise KeyboardInterrupt
        return before

    monkeypatch.setattr(signal, "pthread_sigmask", set_mask_and_handle)
    try:
        with pytest.raises(KeyboardInterrupt), system.no_signals_for_new_threads():
            pass
        assert own_blocked_signals() == set()
    finally:
        set_mask(signal.SIG_SETMASK, ())
