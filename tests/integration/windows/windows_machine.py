"""The machine: its boot, its folders, its DHCP options, its signals."""

import ctypes
import os
import signal
import struct
import sys
import winreg
from pathlib import Path

import pytest

assert sys.platform == "win32"

from forewarn.guest.clock import boot_id
from forewarn.guest.discovery import find_endpoint
from forewarn.guest.errors import ConfigError, GuestError
from forewarn.guest.handlers import HANDLERS
from forewarn.guest.main import main
from forewarn.guest.sockets import Deadline, ask
from forewarn.guest.system import system, windows_api

INTERFACE = "SYSTEM\\CurrentControlSet\\Services\\Tcpip\\Parameters\\Interfaces\\{00000000-0000-0000-0000-000000000245}"


def test_a_boot_has_one_id() -> None:
    """It is a moment in the past."""
    assert boot_id() == boot_id()
    assert int(boot_id()) > 0


def test_the_folders_are_below_program_data() -> None:
    """Configuration and state have a folder each."""
    assert system.DEFAULT_CONFIG == "C:\\ProgramData\\forewarn\\agent.toml"
    assert system.default_state_dir({"PROGRAMDATA": "D:\\Data"}) == Path("D:\\Data\\forewarn-agent")


def test_the_endpoint_comes_from_option_245() -> None:
    """The DHCP client of Windows stores the options of each interface in the registry."""
    options = struct.pack("<5I", 15, 0, 3, 0, 0) + b"abc\0" + struct.pack("<5I4B", 245, 0, 4, 0, 0, 127, 0, 0, 9)
    with winreg.CreateKey(winreg.HKEY_LOCAL_MACHINE, INTERFACE) as key:
        winreg.SetValueEx(key, "DhcpInterfaceOptions", 0, winreg.REG_BINARY, options)
    try:
        assert options in list(system.dhcp_options())
        assert find_endpoint("", {}, connect=lambda host, *_: host == "127.0.0.9", leases=()) == "http://127.0.0.9"
    finally:
        winreg.DeleteKey(winreg.HKEY_LOCAL_MACHINE, INTERFACE)


@pytest.mark.parametrize("handler", ["process", "checkpoint"])
def test_only_term_is_a_signal(handler: str) -> None:
    """Windows cannot send others to a program."""
    table = {"pid_file": "p", "signal": "HUP", **({"file": "f"} if handler == "checkpoint" else {})}
    with pytest.raises(ConfigError, match="'HUP' is not a signal of this system"):
        HANDLERS[handler].parse(table, "here")


def test_ctrl_c_ends_the_agent_at_once() -> None:
    """A handler of Python would wait for the end of a long poll."""
    before = signal.getsignal(signal.SIGINT)
    try:
        system.end_on_signals(lambda *_: None)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_windows_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unix sockets and syslog are for Linux; `--service` is for the service manager."""

    def not_a_service(_: object) -> bool:
        """Fail as Windows does; Wine waits ten seconds first."""
        ctypes.set_last_error(1063)
        return False

    monkeypatch.setattr(windows_api, "start_service_dispatcher", not_a_service)
    with pytest.raises(OSError, match="no socket files"):
        ask("/run/haproxy.sock", "show info", Deadline(1))
    assert HANDLERS["log"].check(HANDLERS["log"].parse({"syslog": "daemon"}, "here"))
    with pytest.raises(GuestError, match="is for the service manager of Windows"):
        system.run_as_service("forewarn-agent", lambda: None)


def test_init_and_check_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The template is valid, and a machine without an endpoint gets exit code 3."""
    path = tmp_path / "agent.toml"
    with pytest.raises(SystemExit) as ended:
        main(["init", str(path)])
    assert ended.value.code == 0
    os.environ["FOREWARN_ENDPOINT"] = "http://127.0.0.1:9"
    try:
        with pytest.raises(SystemExit) as ended:
            main(["check", "--config", str(path)])
    finally:
        del os.environ["FOREWARN_ENDPOINT"]
    assert ended.value.code == 3, capsys.readouterr()
