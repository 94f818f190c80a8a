"""How much of the endpoint one guest may use. Settings may change a field of `Limits`; the constants are fixed."""

from dataclasses import dataclass

# A machine may use all requests of one second at once; the rest covers the rounding of floats.
BURST_S = 1.000_001
# A request that waits this long for the writer is answered 503, and what it asked for is not done.
MAX_QUEUED_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    requests_per_s: float = 5.0
    connections: int = 16
    waiting: int = 4
    all_connections: int = 50_000
    head_bytes: int = 8 * 1024
    headers: int = 64
    body_bytes: int = 64 * 1024
    request_s: float = 10.0
    idle_s: float = 75.0
