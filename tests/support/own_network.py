"""A network namespace for this thread and its children, with a loopback on which every address and port is free."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NEW_NETWORK = 0x40000000


@contextmanager
def own_network() -> Iterator[None]:
    """Enter the namespace; a test that cannot get one fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _must(libc.unshare(_NEW_NETWORK))
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True, env={"PATH": path()})
            yield
        finally:
            _must(libc.setns(before, _NEW_NETWORK))
    finally:
        os.close(before)


def path() -> str:
    """Return a PATH that includes the programs for administrators."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def clean_environment() -> dict[str, str]:
    """Return the environment without variables for Python or forewarn."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("FOREWARN_", "PYTHON", "PG"))}
    return {**ours, "PATH": path()}


def _must(code: int) -> None:
    if code != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(Path("/proc/thread-self/ns/net")))
