"""Where the endpoint is: an explicit one, two variables, the well-known address, DHCP option 245, in this order.

Option 245 is present on ordinary cloud machines too: it never overrides a default that accepts connections.
"""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import Callable, Iterable, Iterator, Mapping, Optional, Sequence
from urllib.parse import urlsplit

from forewarn.guest.errors import ConfigError
from forewarn.guest.transport import can_connect

DEFAULT_ENDPOINT = "http://169.254.169.254"
CONNECT_WITHIN_S = 2.0
MAX_LEASE_BYTES = 1024 * 1024
# dhclient's, systemd-networkd's and NetworkManager's (its own and those of the dhclient it runs).
LEASES = (
    "/var/lib/dhcp/dhclient*.lease*",
    "/var/lib/dhclient/*.lease*",
    "/run/systemd/netif/leases/*",
    "/var/lib/NetworkManager/*.lease",
    "/run/NetworkManager/devices/*",
)
_OPTION_245 = re.compile(
    r'(?:option\s+unknown-245\s+(?:(?P<colons>[0-9a-fA-F]{1,2}(?::[0-9a-fA-F]{1,2}){3})|"(?P<text>(?:[^"\\]|\\.|\\[0-7]{3})+)")\s*;'
    r"|(?:OPTION_245|private_245|unknown_245)=(?P<hex>[0-9a-fA-F:]{8,11})\s*$)",
    re.MULTILINE,
)

Connect = Callable[[str, int, float], bool]


def find_endpoint(
    explicit: str,
    environment: Mapping[str, str],
    *,
    connect: Connect = can_connect,
    leases: Sequence[str] = LEASES,
) -> str:
    """The endpoint to use now, `http://HOST[:PORT]`."""
    named = explicit or environment.get("FOREWARN_ENDPOINT", "") or environment.get("SCHEDULEDEVENTSIP", "")
    if named:
        return normal_endpoint(named)
    if _accepts(DEFAULT_ENDPOINT, connect):
        return DEFAULT_ENDPOINT
    for endpoint in leased_endpoints(leases):
        if _accepts(endpoint, connect):
            return endpoint
    return DEFAULT_ENDPOINT


def normal_endpoint(text: str) -> str:
    """`10.0.0.1`, `10.0.0.1:8169` and `http://10.0.0.1:8169/` name an endpoint; a path or https does not."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"{text!r} is no endpoint: write it like http://169.254.169.254") from None
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise ConfigError(f"{text!r} is no endpoint: write it like http://169.254.169.254")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"http://{host}" + (f":{port}" if port else "")


def leased_endpoints(patterns: Iterable[str]) -> Iterator[str]:
    """The address in option 245 of each lease on this machine, the newest lease of a file last written counting."""
    for pattern in patterns:
        for name in sorted(glob.glob(pattern)):  # noqa: PTH207 (an absolute pattern)
            address = option_245(_read(name))
            if address is not None:
                yield f"http://{address}"


def option_245(lease: str) -> Optional[str]:
    """The last option 245 in a lease file, if it is an address: 4 bytes."""
    found = list(_OPTION_245.finditer(lease))
    if not found:
        return None
    last = found[-1]
    if last["text"] is not None:
        data = _unquoted(last["text"])
    elif last["colons"] is not None:
        data = bytes(int(part, 16) for part in last["colons"].split(":"))
    else:
        digits = last["hex"].replace(":", "")
        data = bytes.fromhex(digits) if len(digits) % 2 == 0 else b""
    return ".".join(str(byte) for byte in data) if len(data) == 4 else None


def _unquoted(text: str) -> bytes:
    """dhclient writes bytes that happen to be printable as a text, others in it as \\ooo."""
    parts = re.findall(r"\\([0-7]{3})|\\(.)|(.)", text, re.DOTALL)
    values = [int(octal, 8) if octal else ord(escaped or plain) for octal, escaped, plain in parts]
    return bytes(values) if all(value < 256 for value in values) else b""


def _read(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            return file.read(MAX_LEASE_BYTES).decode("latin-1")
    except OSError:
        return ""


def _accepts(endpoint: str, connect: Connect) -> bool:
    parts = urlsplit(endpoint)
    return connect(parts.hostname or "", parts.port or 80, CONNECT_WITHIN_S)
