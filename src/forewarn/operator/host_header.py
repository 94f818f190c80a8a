"""The names in the headers Host and Origin: which of them are this machine's own loopback names."""

import ipaddress
from urllib.parse import urlsplit


def host_of(netloc: str) -> str:
    """Return the host of HOST:PORT, or "" if there is none."""
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:  # such as an open bracket
        return ""


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address: no other name counts, whatever it resolves to."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
