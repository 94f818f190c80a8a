"""Functions of Windows that Python's standard library lacks, declared for ctypes. `windows` and its siblings call them."""

from __future__ import annotations

import ctypes
import sys
from contextlib import contextmanager
from ctypes import wintypes
from typing import Any, Iterator

assert sys.platform == "win32"

SYNCHRONIZE, PROCESS_QUERY_LIMITED_INFORMATION, PROCESS_TERMINATE = 0x10_0000, 0x1000, 0x1
READ_CONTROL, TOKEN_QUERY = 0x2_0000, 0x8
ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION = 5, 32
INVALID_HANDLE = ctypes.c_void_p(-1).value

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_advapi32 = ctypes.WinDLL("advapi32", use_last_error=True)
_ntdll = ctypes.WinDLL("ntdll")

_POINTER, _DWORD, _HANDLE, _BOOL, _TEXT = (
    ctypes.c_void_p,
    wintypes.DWORD,
    wintypes.HANDLE,
    wintypes.BOOL,
    wintypes.LPCWSTR,
)


def _declared(library: Any, name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


close_handle = _declared(_kernel32, "CloseHandle", _BOOL, _HANDLE)
local_free = _declared(_kernel32, "LocalFree", _POINTER, _POINTER)
create_file = _declared(_kernel32, "CreateFileW", _HANDLE, _TEXT, _DWORD, _DWORD, _POINTER, _DWORD, _DWORD, _HANDLE)
create_directory = _declared(_kernel32, "CreateDirectoryW", _BOOL, _TEXT, _POINTER)
open_process = _declared(_kernel32, "OpenProcess", _HANDLE, _DWORD, _BOOL, _DWORD)
get_current_process = _declared(_kernel32, "GetCurrentProcess", _HANDLE)
terminate_process = _declared(_kernel32, "TerminateProcess", _BOOL, _HANDLE, wintypes.UINT)
wait_for_single_object = _declared(_kernel32, "WaitForSingleObject", _DWORD, _HANDLE, _DWORD)
get_process_times = _declared(_kernel32, "GetProcessTimes", _BOOL, _HANDLE, _POINTER, _POINTER, _POINTER, _POINTER)
create_job_object = _declared(_kernel32, "CreateJobObjectW", _HANDLE, _POINTER, _TEXT)
assign_process_to_job_object = _declared(_kernel32, "AssignProcessToJobObject", _BOOL, _HANDLE, _HANDLE)
set_information_job_object = _declared(
    _kernel32, "SetInformationJobObject", _BOOL, _HANDLE, ctypes.c_int, _POINTER, _DWORD
)
query_information_job_object = _declared(
    _kernel32, "QueryInformationJobObject", _BOOL, _HANDLE, ctypes.c_int, _POINTER, _DWORD, _POINTER
)
terminate_job_object = _declared(_kernel32, "TerminateJobObject", _BOOL, _HANDLE, wintypes.UINT)
create_toolhelp32_snapshot = _declared(_kernel32, "CreateToolhelp32Snapshot", _HANDLE, _DWORD, _DWORD)
process32_first = _declared(_kernel32, "Process32FirstW", _BOOL, _HANDLE, _POINTER)
process32_next = _declared(_kernel32, "Process32NextW", _BOOL, _HANDLE, _POINTER)

open_process_token = _declared(_advapi32, "OpenProcessToken", _BOOL, _HANDLE, _DWORD, _POINTER)
get_token_information = _declared(
    _advapi32, "GetTokenInformation", _BOOL, _HANDLE, ctypes.c_int, _POINTER, _DWORD, _POINTER
)
convert_sid_to_string_sid = _declared(_advapi32, "ConvertSidToStringSidW", _BOOL, _POINTER, _POINTER)
get_security_info = _declared(
    _advapi32,
    "GetSecurityInfo",
    _DWORD,
    _HANDLE,
    ctypes.c_int,
    _DWORD,
    _POINTER,
    _POINTER,
    _POINTER,
    _POINTER,
    _POINTER,
)
security_descriptor_to_string = _declared(
    _advapi32,
    "ConvertSecurityDescriptorToStringSecurityDescriptorW",
    _BOOL,
    _POINTER,
    _DWORD,
    _DWORD,
    _POINTER,
    _POINTER,
)
string_to_security_descriptor = _declared(
    _advapi32, "ConvertStringSecurityDescriptorToSecurityDescriptorW", _BOOL, _TEXT, _DWORD, _POINTER, _POINTER
)
open_service_manager = _declared(_advapi32, "OpenSCManagerW", _HANDLE, _TEXT, _TEXT, _DWORD)
open_service = _declared(_advapi32, "OpenServiceW", _HANDLE, _HANDLE, _TEXT, _DWORD)
query_service_status = _declared(_advapi32, "QueryServiceStatus", _BOOL, _HANDLE, _POINTER)
close_service_handle = _declared(_advapi32, "CloseServiceHandle", _BOOL, _HANDLE)
register_service_handler = _declared(_advapi32, "RegisterServiceCtrlHandlerExW", _HANDLE, _TEXT, _POINTER, _POINTER)
set_service_status = _declared(_advapi32, "SetServiceStatus", _BOOL, _HANDLE, _POINTER)
start_service_dispatcher = _declared(_advapi32, "StartServiceCtrlDispatcherW", _BOOL, _POINTER)
register_event_source = _declared(_advapi32, "RegisterEventSourceW", _HANDLE, _TEXT, _TEXT)
report_event = _declared(
    _advapi32,
    "ReportEventW",
    _BOOL,
    _HANDLE,
    wintypes.WORD,
    wintypes.WORD,
    _DWORD,
    _POINTER,
    wintypes.WORD,
    _DWORD,
    _POINTER,
    _POINTER,
)
deregister_event_source = _declared(_advapi32, "DeregisterEventSource", _BOOL, _HANDLE)

query_full_process_image_name = _declared(
    _kernel32, "QueryFullProcessImageNameW", _BOOL, _HANDLE, _DWORD, _POINTER, _POINTER
)

nt_resume_process = _declared(_ntdll, "NtResumeProcess", ctypes.c_long, _HANDLE)
nt_query_system_information = _declared(
    _ntdll, "NtQuerySystemInformation", ctypes.c_long, ctypes.c_int, _POINTER, _DWORD, _POINTER
)
nt_query_information_process = _declared(
    _ntdll, "NtQueryInformationProcess", ctypes.c_long, _HANDLE, ctypes.c_int, _POINTER, _DWORD, _POINTER
)


class ServiceStatus(ctypes.Structure):
    _fields_ = tuple(
        (name, wintypes.DWORD)
        for name in ("kind", "state", "accepts", "exit_code", "own_exit_code", "checkpoint", "wait_hint")
    )


def last_error() -> OSError:
    """Return the error of the last call that failed."""
    return ctypes.WinError(ctypes.get_last_error())


def require(result: Any) -> Any:
    """Return what a call returned; raise OSError when it failed."""
    if not result or result == INVALID_HANDLE:
        raise last_error()
    return result


@contextmanager
def closing(handle: int) -> Iterator[int]:
    """Yield the handle and close it at the end."""
    try:
        yield handle
    finally:
        close_handle(handle)


@contextmanager
def closing_service(handle: int) -> Iterator[int]:
    """Yield the handle of a service, or of the service manager, and close it at the end."""
    try:
        yield handle
    finally:
        close_service_handle(handle)
