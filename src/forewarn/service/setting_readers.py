"""Readers of the service's own settings: addresses, listeners, host names and databases.

A reader turns what a user wrote, as TOML or as text, into the value, or raises Invalid.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import replace

from forewarn.core.errors import Invalid, InvalidSettings
from forewarn.core.hooks import AllowedTargets
from forewarn.executors.settings import read_text
from forewarn.store.opening import is_shared

WITH_PORT = re.compile(r"(\[[^\]]+\]|[^:]+):([0-9]{1,5})")
HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,252}[a-z0-9])?")


def _address(value: object) -> str:
    text = read_text(value)
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise Invalid(f"{text!r} is not HOST:PORT: write it like 127.0.0.1:8170, or [::1]:8170")
    return text


def read_own_address(value: object) -> str:
    """Read an address to bind to. A host name is refused: whether the address is loopback decides what is safe."""
    text = _address(value)
    host = text.rpartition(":")[0].strip("[]")
    try:
        if host != "localhost":
            ipaddress.ip_address(host)
    except ValueError:
        raise Invalid(
            f"{text!r} begins with a name: write an IP address of this machine or localhost, like 127.0.0.1:8170"
        ) from None
    return text


def read_listeners(value: object) -> tuple[str, ...]:
    """Read one or several HOST:PORT[@INTERFACE]; a text may hold several, separated by spaces."""
    return tuple(_listener(text) for text in _texts(value))


def _listener(text: str) -> str:
    address, at, interface = text.partition("@")
    if at and not interface:
        raise Invalid(f"{text!r} names no interface after the @: write it like 169.254.169.254:80@tap3")
    host = _address(address).rpartition(":")[0].strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise Invalid(f"{text!r} does not begin with an IP address: write it like 127.0.0.1:8169") from None
    return text


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) and each for each in value):
        raise Invalid("write a list of texts")
    return list(value)


def read_addresses(value: object) -> tuple[str, ...]:
    try:
        return tuple(str(ipaddress.ip_address(text)) for text in _texts(value))
    except ValueError as error:
        raise Invalid(str(error)) from None


def read_host_names(value: object) -> tuple[str, ...]:
    host_names = tuple(text.lower() for text in _texts(value))
    for name in host_names:
        if "*" in name:
            raise Invalid(f"{name!r} names no host: write each name in full")
    return host_names


def read_hook_targets(value: object) -> tuple[str, ...]:
    """Read host names, addresses and networks, each with a port or without."""
    targets = tuple(text.lower() for text in _texts(value))
    allowed_targets(targets)
    return targets


def allowed_targets(targets: Iterable[str]) -> AllowedTargets:
    by_port: dict[int, AllowedTargets] = {}
    for text in targets:
        with_port = WITH_PORT.fullmatch(text)
        host, port = (with_port[1].strip("[]"), int(with_port[2])) if with_port else (text, 0)
        allowed = by_port.get(port, AllowedTargets())
        try:
            by_port[port] = replace(allowed, networks=(*allowed.networks, ipaddress.ip_network(host)))
        except ValueError as error:
            if "/" in host or not HOST_NAME.fullmatch(host):
                raise Invalid(f"{text!r} is neither a host name nor a network like 10.0.0.0/8: {error}") from None
            by_port[port] = replace(allowed, names=allowed.names | {host})
        if with_port and not 1 <= port <= 65_535:
            raise Invalid(f"{text!r} ends with no port: use 1 to 65535")
    return replace(by_port.pop(0, AllowedTargets()), ports=by_port)


def read_postgres(value: object) -> str:
    text = read_text(value)
    try:
        shared = is_shared(text)
    except InvalidSettings:
        shared = False
    if not shared:
        raise Invalid("this is no address of a database: write it like postgresql://user@host:5432/database")
    return text
