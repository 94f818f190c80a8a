"""The `[[serve.client]]` tables of agent.toml."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Sequence, Tuple

from forewarn.guest.config_values import check_keys, flag, seconds, text
from forewarn.guest.errors import ConfigError

MAX_CLIENTS = 32
MAX_NAME_CHARS = 64
# What fits into the address of a socket on every system.
MAX_PATH_BYTES = 100
_MODE = re.compile(r"0?[0-7]{3}")
KEYS = ("name", "socket", "port", "mode", "approves", "client_timeout")


@dataclass(frozen=True)
class ServedClient:
    """A program on this machine that gets the document from the agent."""

    name: str
    # Either the path of a socket file, or a port of 127.0.0.1; the other is None or 0.
    path: Optional[Path] = None
    port: int = 0
    # The file mode of the socket: a program that may write the socket may connect.
    mode: int = 0o600
    # Whether the agent waits for its approval. A client that does not approve only reads.
    approves: bool = False
    # The agent no longer waits for a client that was silent for so long.
    timeout_s: float = 300.0

    @property
    def address(self) -> str:
        return str(self.path) if self.path is not None else f"127.0.0.1:{self.port}"


def read_clients(values: Sequence[Any]) -> Tuple[ServedClient, ...]:
    if len(values) > MAX_CLIENTS:
        raise ConfigError(f"serve.client: more than {MAX_CLIENTS}")
    clients = tuple(_client(each, f"serve.client[{n}]") for n, each in enumerate(values))
    for what, used in (("named", [each.name for each in clients]), ("at", [each.address for each in clients])):
        for each in used:
            if used.count(each) > 1:
                raise ConfigError(f"serve.client: two are {what} {each!r}: give each its own")
    return clients


def _client(value: Any, where: str) -> ServedClient:
    check_keys(value, KEYS, where, name="name the program that connects there")
    name = text(value["name"], f"{where}.name")
    if len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise ConfigError(f"{where}.name: write at most {MAX_NAME_CHARS} printable characters")
    where = f'{where} "{name}"'
    if ("socket" in value) == ("port" in value):
        raise ConfigError(f"{where}: write either socket, with the path of a socket file, or port, of 127.0.0.1")
    if "mode" in value and "socket" not in value:
        raise ConfigError(f"{where}.mode: only a socket file has a mode; every local user may connect to a port")
    mode = text(value.get("mode", "600"), f"{where}.mode")
    if not _MODE.fullmatch(mode):
        raise ConfigError(f'{where}.mode: {mode!r} is not a file mode: write it like "660"')
    timeout_s = seconds(value.get("client_timeout", "5m"), f"{where}.client_timeout")
    if timeout_s < 1:
        raise ConfigError(f"{where}.client_timeout: too short: write at least 1s")
    return ServedClient(
        name=name,
        path=_socket_path(value["socket"], f"{where}.socket") if "socket" in value else None,
        port=_port(value["port"], f"{where}.port") if "port" in value else 0,
        mode=int(mode, 8),
        approves=flag(value.get("approves", False), f"{where}.approves"),
        timeout_s=timeout_s,
    )


def _socket_path(value: Any, where: str) -> Path:
    path = Path(text(value, where)).expanduser()
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError(f"{where}: this system has no socket files for Python: use port")
    if not path.is_absolute() or len(str(path).encode()) > MAX_PATH_BYTES:
        raise ConfigError(f"{where}: write an absolute path of at most {MAX_PATH_BYTES} bytes")
    return path


def _port(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 65_536:
        raise ConfigError(f"{where}: {value!r} is not a port: write a number from 1 to 65535")
    return value
