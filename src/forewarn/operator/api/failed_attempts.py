"""Requests with a wrong or expired token: a limit per address, a line in the log, and counts for the audit.

The token is checked first, so a right token always works, whatever else comes from its address.
"""

import ipaddress
import logging
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from forewarn.core.errors import TooManyAttempts

MAX_FAILURES = 10
FAILURES_WITHIN_S = 60.0
MAX_PEERS = 1_000
OTHER_ADDRESSES = "other addresses"

log = logging.getLogger("forewarn.operator.access")


class FailedAttempts:
    """The failed attempts of the last minute, by address; the oldest addresses are dropped first."""

    def __init__(self, clock_s: Callable[[], float], *, max_failures: int = MAX_FAILURES) -> None:
        self._clock_s = clock_s
        self._max_failures = max_failures
        self._lock = threading.Lock()
        self._recent: OrderedDict[str, deque[float]] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self.total = 0

    def add(self, peer: str, reason: str) -> None:
        """Count a failure; raise TooManyAttempts if its address has too many. `reason` contains no secret."""
        address = address_of(peer)
        with self._lock:
            self.total += 1
            self._count(address, 1)
            recent = self._remember(address)
        if recent > self._max_failures:
            raise TooManyAttempts(
                f"{self._max_failures} attempts with a wrong token came from your address within a minute: wait"
                f" {FAILURES_WITHIN_S:g} s, then try again"
            )
        more = "; more from there within a minute are not logged" if recent == self._max_failures else ""
        log.warning("authentication failed: %s, from %s%s", reason, address, more)

    def too_many(self, peer: str) -> bool:
        """Return whether the address of a peer has reached the limit."""
        if not self._recent:
            return False
        address = address_of(peer)
        with self._lock:
            self._drop_old(address)
            return len(self._recent.get(address, ())) >= self._max_failures

    def take_counts(self) -> Counter[str]:
        """Return the failures by address since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            return counts

    def put_back(self, counts: Counter[str]) -> None:
        """Return counts that could not be saved."""
        with self._lock:
            for address, number in counts.items():
                self._count(address, number)

    def _count(self, address: str, number: int) -> None:
        known = address in self._counts or len(self._counts) < MAX_PEERS
        self._counts[address if known else OTHER_ADDRESSES] += number

    def _remember(self, address: str) -> int:
        """Return the number of failures within the last minute, this one included. Those over the limit extend nothing."""
        recent = self._recent.setdefault(address, deque())
        self._recent.move_to_end(address)
        self._drop_old(address)
        if len(recent) < self._max_failures:
            recent.append(self._clock_s())
            number = len(recent)
        else:
            number = self._max_failures + 1
        while len(self._recent) > MAX_PEERS:
            self._recent.popitem(last=False)
        return number

    def _drop_old(self, address: str) -> None:
        recent, now_s = self._recent.get(address, deque()), self._clock_s()
        while recent and now_s - recent[0] >= FAILURES_WITHIN_S:
            recent.popleft()


def address_of(peer: str) -> str:
    """Return what counts as one address: of IPv6 the first 64 bits, because one caller usually has all the rest."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer[:64] if peer and peer.isprintable() else "an unknown address"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False)) if not address.is_loopback else str(address)
    return str(address)
