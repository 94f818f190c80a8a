"""Finds the endpoint: an explicit one, two variables, the well-known address, DHCP option 245, in this order.

Ordinary cloud machines have option 245 too: it never overrides a default address that accepts connections.
"""

from __future__ import annotations

import glob
import re
import struct
from typing import Callable, Iterable, Iterator, Mapping, Optional, Sequence
from urllib.parse import urlsplit

from forewarn.guest.errors import ConfigError
from forewarn.guest.safe_files import read_regular
from forewarn.guest.system import system
from forewarn.guest.transport import UNIX, can_connect

DEFAULT_ENDPOINT = "http://169.254.169.254"
CONNECT_WITHIN_S = 2.0
MAX_LEASE_BYTES = 1024 * 1024
# Lease files of dhclient, systemd-networkd and NetworkManager (its own and those of the dhclient it runs).
LEASES = (
    "/var/lib/dhcp/dhclient*.lease*",
    "/var/lib/dhclient/*.lease*",
    "/run/systemd/netif/leases/*",
    "/var/lib/NetworkManager/*.lease",
    "/run/NetworkManager/devices/*",
)
# Each character of a quoted value can be read in one way only, and an option has at most 255 bytes of four characters each:
# the search takes time in proportion to the length of the file.
_OPTION_245 = re.compile(
    r'(?:option\s{1,8}unknown-245\s{1,8}(?:(?P<colons>[0-9a-fA-F]{1,2}(?::[0-9a-fA-F]{1,2}){3})|"(?P<text>(?:[^"\\]|\\.){1,1020})")\s{0,8};'
    r"|(?:OPTION_245|private_245|unknown_245)=(?P<hex>[0-9a-fA-F:]{8,11})[ \t\r]{0,8}$)",
    re.MULTILINE,
)

_STORED_OPTION = struct.Struct("<5I")

Connect = Callable[[str, int, float], bool]


def find_endpoint(
    explicit: str,
    environment: Mapping[str, str],
    *,
    connect: Connect = can_connect,
    leases: Sequence[str] = LEASES,
) -> str:
    """Return the endpoint to use now, `http://HOST[:PORT]` or `unix:/PATH`."""
    named = explicit or environment.get("FOREWARN_ENDPOINT", "") or environment.get("SCHEDULEDEVENTSIP", "")
    if named:
        return normal_endpoint(named)
    if _accepts_connections(DEFAULT_ENDPOINT, connect):
        return DEFAULT_ENDPOINT
    for endpoint in (*leased_endpoints(leases), *stored_endpoints(system.dhcp_options())):
        if _accepts_connections(endpoint, connect):
            return endpoint
    return DEFAULT_ENDPOINT


def normal_endpoint(text: str) -> str:
    """Return the endpoint as `http://HOST[:PORT]` or `unix:/PATH`; raise ConfigError for any other path or https."""
    if text.startswith(f"{UNIX}/"):
        return text
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"{text!r} is not an endpoint: write it like http://169.254.169.254") from None
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise ConfigError(f"{text!r} is not an endpoint: write it like http://169.254.169.254")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"http://{host}" + (f":{port}" if port else "")


def leased_endpoints(patterns: Iterable[str]) -> Iterator[str]:
    """Yield the address in option 245 of each lease file on this machine; the last lease of a file counts."""
    for pattern in patterns:
        for name in sorted(glob.glob(pattern)):  # noqa: PTH207 (an absolute pattern)
            address = option_245(_read(name))
            if address is not None:
                yield f"http://{address}"


def stored_endpoints(stored: Iterable[bytes]) -> Iterator[str]:
    """Yield the address in option 245 among the options that Windows stores for each network interface."""
    for options in stored:
        address = stored_option_245(options)
        if address is not None:
            yield f"http://{address}"


def stored_option_245(options: bytes) -> Optional[str]:
    """Return option 245 of the registry's DhcpInterfaceOptions if it is an address (4 bytes).

    An option has five numbers of four bytes (its code, an unused one, its length, whether it is the vendor's, when it expires)
    and its value, filled up to a multiple of four bytes.
    """
    at = 0
    while at + _STORED_OPTION.size <= len(options):
        code, _, length, vendor, _ = _STORED_OPTION.unpack_from(options, at)
        at += _STORED_OPTION.size
        value = options[at : at + length]
        if (code, vendor, len(value)) == (245, 0, 4):
            return ".".join(str(byte) for byte in value)
        at += -(-length // 4) * 4
    return None


def option_245(lease: str) -> Optional[str]:
    """Return the last option 245 in a lease file if it is an address (4 bytes)."""
    matches = list(_OPTION_245.finditer(lease))
    if not matches:
        return None
    last = matches[-1]
    if last["text"] is not None:
        data = _unquote(last["text"])
    elif last["colons"] is not None:
        data = bytes(int(part, 16) for part in last["colons"].split(":"))
    else:
        digits = last["hex"].replace(":", "")
        data = bytes.fromhex(digits) if len(digits) % 2 == 0 else b""
    return ".".join(str(byte) for byte in data) if len(data) == 4 else None


def _unquote(text: str) -> bytes:
    """Decode a quoted value: dhclient writes printable bytes as they are and others as \\ooo."""
    parts = re.findall(r"\\([0-7]{3})|\\(.)|(.)", text, re.DOTALL)
    values = [int(octal, 8) if octal else ord(escaped or plain) for octal, escaped, plain in parts]
    return bytes(values) if all(value < 256 for value in values) else b""


def _read(name: str) -> str:
    try:
        return read_regular(name, MAX_LEASE_BYTES).decode("latin-1")
    except OSError:
        return ""


def _accepts_connections(endpoint: str, connect: Connect) -> bool:
    parts = urlsplit(endpoint)
    return connect(parts.hostname or "", parts.port or 80, CONNECT_WITHIN_S)
