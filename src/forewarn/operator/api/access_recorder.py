"""Saves what requests only remember: when tokens were last used, and how many requests came with a wrong token."""

import logging
from collections import Counter
from collections.abc import Callable
from datetime import datetime

from forewarn.core.errors import ServiceError
from forewarn.operator.api.access import Access
from forewarn.service.control import Control
from forewarn.store import Store

SAVE_EVERY_S = 60.0
MAX_ADDRESSES = 10

log = logging.getLogger("forewarn.operator.access")


class AccessRecorder:
    """A periodic call of the ticker. It counts real time: a manual clock need not stop for it."""

    def __init__(self, access: Access, store: Store, control: Control, *, monotonic: Callable[[], float]) -> None:
        self._access = access
        self._store = store
        self._control = control
        self._monotonic = monotonic
        self._save_at_s = monotonic() + SAVE_EVERY_S

    def next_due(self) -> datetime | None:
        """Return None: the ticker calls `do` at least once a second."""
        return None

    def do(self, _: datetime) -> int:
        """Save about once a minute; return 0, because nothing follows from it."""
        if self._monotonic() >= self._save_at_s:
            self._save_at_s = self._monotonic() + SAVE_EVERY_S
            self.save()
        return 0

    def save(self) -> None:
        """Save what was remembered since the last time. What cannot be saved is kept for the next time."""
        uses, failures = self._access.take_uses(), self._access.failures.take_counts()
        try:
            if uses:
                self._store.record_token_uses(uses)
                uses = {}
            if failures:
                self._control.record_failed_authentication(describe(failures))
        except ServiceError as error:
            log.warning("the last uses of tokens, or failed attempts, could not be saved: %s", error)
            self._access.put_back_uses(uses)
            self._access.failures.put_back(failures)


def describe(failures: Counter[str]) -> str:
    """Return the failures by address, most first."""
    shown = failures.most_common(MAX_ADDRESSES)
    listed = ", ".join(f"{address} ({count})" for address, count in shown)
    more = f" and {len(failures) - len(shown)} more" if len(failures) > len(shown) else ""
    return f"{failures.total()} request(s) with a wrong or expired token: {listed}{more}"
