"""How much of the endpoint one guest may use. Settings may change a field of `Limits`; the constants are fixed."""

import resource

from forewarn.core.lazy_dataclass import dataclass

# A machine may use all requests of one second at once; the rest covers the rounding of floats.
BURST_S = 1.000_001
# A request that waits this long for the writer is answered 503, and its write is not done.
MAX_QUEUED_S = 5.0
# A request is rejected if its caller is unknown (404) or over its rate (429). After this many rejected requests in a row a
# connection is not read for a while, and after each further one again. `Retry-After` of a 429 names the same time.
MAX_REJECTIONS = 5
REJECTION_PAUSE_S = 1.0
# Unknown callers together may use one part in four of all connections, from however many addresses they come, and of the
# files that this process may open.
UNKNOWN_SHARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    requests_per_s: float = 5.0
    connections: int = 16
    unknown_connections: int = 4
    waiting: int = 4
    all_connections: int = 50_000
    head_bytes: int = 8 * 1024
    headers: int = 64
    body_bytes: int = 64 * 1024
    request_s: float = 10.0
    idle_s: float = 75.0


class UnknownConnections:
    """The open connections of unknown callers, by interface and address. Only the listener's thread uses it."""

    def __init__(self, limits: Limits) -> None:
        self._most_per_address = limits.unknown_connections
        self._all_connections = limits.all_connections
        self._counts: dict[tuple[str, str], int] = {}
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def is_full(self, source: tuple[str, str]) -> bool:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = max(1, min(self._all_connections, descriptors) // UNKNOWN_SHARE)
        return self._total >= most or self._counts.get(source, 0) >= self._most_per_address

    def add(self, source: tuple[str, str]) -> None:
        self._counts[source] = self._counts.get(source, 0) + 1
        self._total += 1

    def remove(self, source: tuple[str, str]) -> None:
        self._total -= 1
        left = self._counts[source] - 1
        if left:
            self._counts[source] = left
        else:
            del self._counts[source]
