"""Delete what is old: idempotency receipts, logins, ended maintenances with their audit, and the feed of changes."""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from forewarn.core.errors import StoreUnavailable
from forewarn.store import SharedStore, Store

PRUNE_EVERY = timedelta(hours=1)
PRUNE_AGAIN = timedelta(minutes=1)
RECEIPTS_KEPT = timedelta(hours=24)
PRUNE_BATCH = 500

log = logging.getLogger("forewarn.service.pruning")


class Pruner:
    """Deletes in small batches. `retain_history_s=0` keeps ended maintenances for ever."""

    def __init__(self, store: Store, shared: SharedStore | None, *, retain_history_s: int) -> None:
        self._store = store
        self._shared = shared
        self._retain = timedelta(seconds=retain_history_s) if retain_history_s else None
        self._prune_at: datetime | None = None
        self._batch = PRUNE_BATCH

    def prune(self, now: datetime) -> None:
        """Delete one batch of each kind if it is time; after a failure try again soon with a smaller batch."""
        if self._prune_at is not None and now < self._prune_at:
            return
        limit, most, failed = self._batch, 0, False
        for delete in self._deletions(now, limit):
            try:
                most = max(most, delete())
            except StoreUnavailable as error:
                log.warning("old rows could not be deleted, %d at once; trying again with fewer: %s", limit, error)
                failed = True
        if failed:
            self._batch, self._prune_at = max(1, limit // 2), now + PRUNE_AGAIN
        elif most < limit:
            self._batch, self._prune_at = PRUNE_BATCH, now + PRUNE_EVERY

    def _deletions(self, now: datetime, limit: int) -> list[Callable[[], int]]:
        """Return one call per kind: a failure of one must stop neither the others nor the ticker's cycle."""
        calls = [
            lambda: self._store.forget_receipts(now - RECEIPTS_KEPT, limit),
            lambda: self._store.forget_sessions(now, limit),
        ]
        if (retain := self._retain) is not None:
            calls.append(lambda: self._store.prune(now - retain, limit))
        if (shared := self._shared) is not None:
            calls.append(lambda: shared.forget_changes(limit))
        return calls
