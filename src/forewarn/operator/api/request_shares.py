"""How many requests of one token may be under way: a token that comes through a proxy has no limit by its address."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from forewarn.core.errors import TooManyRequests
from forewarn.operator.api.access import Identity


class RequestShares:
    """Counts the requests under way by token. Streams have a limit of their own and are not counted."""

    def __init__(self, most_per_token: int) -> None:
        self._most = most_per_token
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()

    @contextmanager
    def take(self, caller: Identity) -> Iterator[None]:
        """Count a request while it is under way; raise TooManyRequests if the token has too many."""
        with self._lock:
            if self._under_way[caller.token_id] >= self._most:
                raise TooManyRequests(f"{self._most} requests with this token are under way: try again soon")
            self._under_way[caller.token_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= Counter([caller.token_id])
