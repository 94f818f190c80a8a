"""Runs the agent as a Windows service: speaks with the service manager while the work runs in its thread."""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import wintypes
from typing import Any, Callable, List

assert sys.platform == "win32"

from forewarn.guest.errors import GuestError
from forewarn.guest.system import windows_api as api

_OWN_PROCESS = 0x10
_STOPPED, _RUNNING = 1, 4
_ACCEPTS_STOP_AND_SHUTDOWN = 0x1 | 0x4
_STOP, _INTERROGATE, _SHUTDOWN = 1, 4, 5
_NOT_IMPLEMENTED = 120
_NOT_STARTED_AS_A_SERVICE = 1063
_ERROR_EVENT, _EVENT_NUMBER = 1, 1

_MAIN = ctypes.WINFUNCTYPE(None, wintypes.DWORD, ctypes.c_void_p)
_HANDLER = ctypes.WINFUNCTYPE(wintypes.DWORD, wintypes.DWORD, wintypes.DWORD, ctypes.c_void_p, ctypes.c_void_p)


class _Entry(ctypes.Structure):
    _fields_ = (("name", wintypes.LPCWSTR), ("main", _MAIN))


def run_as_service(name: str, work: Callable[[], Any]) -> None:
    """Do the work until the service manager stops the service. Raise GuestError when a person started the program.

    When the work ends, the process ends without a word to the manager, which then restarts the service, as its failure
    actions say. The error that ended the work is in the event log: the work may have no log of its own yet.
    """
    status: List[Any] = []

    def report(state: int) -> None:
        accepts = _ACCEPTS_STOP_AND_SHUTDOWN if state == _RUNNING else 0
        api.set_service_status(status[0], ctypes.byref(api.ServiceStatus(_OWN_PROCESS, state, accepts)))

    def control(code: int, *_: Any) -> int:
        if code in (_STOP, _SHUTDOWN):
            report(_STOPPED)
            os._exit(0)  # what the agent was doing is in the journal
        return 0 if code == _INTERROGATE else _NOT_IMPLEMENTED

    def main(*_: Any) -> None:
        status.append(api.register_service_handler(name, handler, None))
        report(_RUNNING)
        try:
            work()
        except Exception as error:
            write_event(name, f"{name} ends: {error}")
        finally:
            os._exit(1)

    handler = _HANDLER(control)
    entries = (_Entry * 2)(_Entry(name, _MAIN(main)), _Entry(None, _MAIN()))
    if not api.start_service_dispatcher(ctypes.byref(entries)):
        error = api.last_error()
        if error.winerror == _NOT_STARTED_AS_A_SERVICE:
            raise GuestError("--service is for the service manager of Windows: leave it out to run the agent by hand")
        raise error


def write_event(source: str, text: str) -> None:
    """Write an error to the log `Application` of Windows, which the Event Viewer shows."""
    log = api.require(api.register_event_source(None, source))
    try:
        texts = (wintypes.LPCWSTR * 1)(text)
        api.require(api.report_event(log, _ERROR_EVENT, 0, _EVENT_NUMBER, None, 1, 0, texts, None))
    finally:
        api.deregister_event_source(log)
