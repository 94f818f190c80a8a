"""Windows: the folders of the agent, boots, DHCP options, signals. Files and processes have modules of their own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import winreg
from pathlib import Path
from shutil import which as find_program
from typing import Any, Callable, Iterator, Mapping, Optional

assert sys.platform == "win32"

from forewarn.guest.system import windows_api as api
from forewarn.guest.system.windows_files import (
    MAX_LINKS,
    SYNC_FLAGS,
    give_away,
    limit_output,
    lock,
    make_private_folder,
    others_may_change,
    others_may_read,
    others_may_write,
    output_file,
    own_user_number,
    owner_of,
    read_at,
    replace,
    trusted_users,
)

__all__ = [
    "BOOT_ID_FILE",
    "DEFAULT_CONFIG",
    "MAX_LINKS",
    "SIGNALS",
    "SYNC_FLAGS",
    "boot_id",
    "default_state_dir",
    "dhcp_options",
    "end_on_signals",
    "find_program",
    "give_away",
    "limit_output",
    "lock",
    "make_private_folder",
    "no_signals_for_new_threads",
    "others_may_change",
    "others_may_read",
    "others_may_write",
    "output_file",
    "own_user_number",
    "owner_of",
    "read_at",
    "replace",
    "run_as_service",
    "service_state",
    "syslog_facility",
    "trusted_users",
    "write_syslog",
]

_PROGRAM_DATA = Path(os.environ.get("PROGRAMDATA", "C:\\ProgramData"))
DEFAULT_CONFIG = str(_PROGRAM_DATA / "forewarn" / "agent.toml")
# Windows has no file that changes with every boot: `boot_id` asks the system.
BOOT_ID_FILE = ""
# Windows has no signals; TERM ends a program at once.
SIGNALS = ("TERM",)
MAX_INTERFACES = 1_000
_INTERFACES = "SYSTEM\\CurrentControlSet\\Services\\Tcpip\\Parameters\\Interfaces"
_TIME_OF_DAY = 3
# As Windows numbers them, from 1 on.
SERVICE_STATES = (
    "STOPPED", "START_PENDING", "STOP_PENDING", "RUNNING", "CONTINUE_PENDING", "PAUSE_PENDING", "PAUSED",
)  # fmt: skip
_CONNECT, _QUERY_STATUS = 0x1, 0x4


class _TimeOfDay(ctypes.Structure):
    _fields_ = (
        ("boot_time", ctypes.c_int64),
        ("current_time", ctypes.c_int64),
        ("zone_bias", ctypes.c_int64),
        ("zone_id", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("boot_time_bias", ctypes.c_int64),
        ("sleep_time_bias", ctypes.c_int64),
    )


def default_state_dir(environment: Mapping[str, str]) -> Path:
    """Return the folder below %ProgramData%."""
    return Path(environment.get("PROGRAMDATA", "C:\\ProgramData")) / "forewarn-agent"


def boot_id() -> str:
    """Return the moment of this boot, or "". Setting the clock moves it and the bias alike, so their difference stays."""
    found = _TimeOfDay()
    if api.nt_query_system_information(_TIME_OF_DAY, ctypes.byref(found), ctypes.sizeof(found), None):
        return ""
    return str(found.boot_time - found.boot_time_bias)


def dhcp_options() -> Iterator[bytes]:
    """Yield the options that the DHCP client of Windows has stored for each network interface."""
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _INTERFACES) as interfaces:
            for number in range(MAX_INTERFACES):
                with winreg.OpenKey(interfaces, winreg.EnumKey(interfaces, number)) as interface:
                    options = _value(interface, "DhcpInterfaceOptions")
                    if isinstance(options, bytes):
                        yield options
    except OSError:  # there are no more interfaces
        return


def syslog_facility(name: str) -> Optional[int]:
    """Return None: Windows has no syslog."""
    return None


def write_syslog(facility: int, line: str) -> None:
    """Do nothing: Windows has no syslog."""


def service_state(name: str) -> str:
    """Return the state of a service, like RUNNING or STOPPED; raise OSError if there is no such service."""
    status = api.ServiceStatus()
    with (
        api.closing_service(api.require(api.open_service_manager(None, None, _CONNECT))) as manager,
        api.closing_service(api.require(api.open_service(manager, name, _QUERY_STATUS))) as service,
    ):
        api.require(api.query_service_status(service, ctypes.byref(status)))
    return SERVICE_STATES[status.state - 1]


def run_as_service(name: str, work: Callable[[], Any]) -> None:
    """Do the work as a service, until the service manager stops it."""
    from forewarn.guest.system.windows_service_host import run_as_service

    run_as_service(name, work)


def _value(key: Any, name: str) -> Any:
    try:
        return winreg.QueryValueEx(key, name)[0]
    except OSError:
        return None


def end_on_signals(end: Callable[..., Any]) -> None:
    """End on Ctrl+C and Ctrl+Break. A handler of Python would run only after the current request of the agent."""
    del end
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def no_signals_for_new_threads() -> Iterator[None]:
    """Do nothing: no thread runs a handler."""
    yield
