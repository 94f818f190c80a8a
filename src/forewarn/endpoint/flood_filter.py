"""Drops the packets of an address that floods a listening socket, in the kernel and for a moment.

To accept a connection and close it costs as much as several polls, and a flood connects again at once. A filter on the listening
socket (SO_ATTACH_FILTER, which needs no privilege) drops the flood's packets before there is a connection; the caller's system
tries again after a second. Open connections have sockets of their own and are not affected.
"""

import contextlib
import ctypes
import ipaddress
import socket
import struct
from collections import Counter
from collections.abc import Callable

from forewarn.endpoint.loop import Loop

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
# An address with this many connections over its share within a second is blocked for a second.
MAX_OVER_SHARE = 32
BLOCKED_S = 1.0
# The kernel limits the size of a filter (net.core.optmem_max).
MAX_BLOCKED = 32

# Instructions of the classic Berkeley Packet Filter, and where the IP header begins (linux/filter.h).
_LOAD_WORD, _LOAD_BYTE, _AND, _JUMP_UNLESS_EQUAL, _RETURN = 0x20, 0x30, 0x54, 0x15, 0x06
_IP_HEADER = 0xFFF0_0000
INSTRUCTION_BYTES = 8
_DROP, _KEEP = 0, 0xFFFF_FFFF


def program(hosts: list[str]) -> bytes:
    """Return the filter that drops packets from these addresses."""
    return b"".join(_drop(host) for host in hosts) + _instruction(_RETURN, _KEEP)


class FloodFilter:
    """Counts connections over a share by address, and keeps the addresses with too many from the listening socket."""

    def __init__(
        self,
        loop: Loop,
        listening: socket.socket,
        on_block: Callable[[str], None] = lambda _: None,
        *,
        make_filter: Callable[[list[str]], bytes] = program,
    ) -> None:
        """`on_block` is called with each address that is blocked, each time. `make_filter` gets all of them."""
        self._on_block = on_block
        self._make_filter = make_filter
        self._loop = loop
        self._socket = listening
        self._over_share: Counter[str] = Counter()
        self.blocked: dict[str, None] = {}

    def count(self, host: str) -> None:
        """Count a connection over the share of its caller; block the address if there are too many."""
        if not self._over_share:
            self._loop.call_later(BLOCKED_S, self._over_share.clear)
        self._over_share[host] += 1
        if self._over_share[host] >= MAX_OVER_SHARE and host not in self.blocked and len(self.blocked) < MAX_BLOCKED:
            self.blocked[host] = None
            self._apply()
            self._on_block(host)
            self._loop.call_later(BLOCKED_S, lambda: self._unblock(host))

    def _unblock(self, host: str) -> None:
        del self.blocked[host]
        self._apply()

    def _apply(self) -> None:
        if self._socket.fileno() < 0:
            return
        code = self._make_filter(list(self.blocked))
        buffer = ctypes.create_string_buffer(code, len(code))
        try:
            given = struct.pack("HL", len(code) // INSTRUCTION_BYTES, ctypes.addressof(buffer))
            self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, given)
        except OSError:
            self._detach()  # without a filter the listener accepts and closes these connections; an old filter must not stay
        if not self.blocked:
            self._detach()

    def _detach(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


def _drop(host: str) -> bytes:
    """Return the instructions for one address: compare the IP version, then the source address, word by word."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.version == 6 and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    source_at = 12 if address.version == 4 else 8
    words = struct.unpack(f"!{len(address.packed) // 4}I", address.packed)
    comparisons = [(_LOAD_WORD, source_at + 4 * number, word) for number, word in enumerate(words)]
    left = 2 * len(comparisons) + 1  # instructions after the next one, which a difference skips
    code = _instruction(_LOAD_BYTE, _IP_HEADER) + _instruction(_AND, 0xF0)
    code += _instruction(_JUMP_UNLESS_EQUAL, address.version << 4, skip=left)
    for load, at, word in comparisons:
        left -= 2
        code += _instruction(load, _IP_HEADER + at) + _instruction(_JUMP_UNLESS_EQUAL, word, skip=left)
    return code + _instruction(_RETURN, _DROP)


def _instruction(code: int, value: int, *, skip: int = 0) -> bytes:
    return struct.pack("=HBBI", code, 0, skip, value)
