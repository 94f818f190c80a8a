"""Deleting what is old."""

from datetime import datetime, timedelta

import pytest

from forewarn.core.errors import ForewarnError, StoreUnavailable
from forewarn.core.model import (
    EventType,
    MaintenanceRequest,
    Status,
    Targets,
)
from forewarn.service.pruning import PRUNE_BATCH
from forewarn.store import Store
from forewarn.store.memory import MemoryStore
from forewarn.testing.stories import START
from tests.support.services import (
    OPERATOR,
    make_service,
    reboot,
)


def test_old_history_is_deleted_and_open_events_are_kept(store: Store) -> None:
    """`retain_history` deletes what ended long ago."""
    service = make_service(store, scopes=2, executor="simulated", retain_history_s=86_400)
    old = reboot(service, "s-0")
    service.ticker.advance(3_600)
    assert service.control.event(old)[0].status is Status.COMPLETED
    request = MaintenanceRequest(
        type=EventType.REBOOT, targets=Targets(scope="s-1"), not_before=START + timedelta(days=30)
    )
    kept = service.control.submit(request, OPERATOR)
    service.ticker.advance(3 * 86_400)
    with pytest.raises(ForewarnError):
        service.control.event(old)
    assert service.control.maintenance(kept)[1][0].status is Status.SCHEDULED


def test_a_failed_deletion_is_tried_again_with_a_smaller_batch(caplog: pytest.LogCaptureFixture) -> None:
    """A database that cannot delete a batch in time gets a smaller one later; the cycle continues."""

    limits: list[int] = []

    class Slow(MemoryStore):
        def prune(self, before: datetime, limit: int) -> int:
            limits.append(limit)
            if limit > PRUNE_BATCH // 4:
                raise StoreUnavailable("it did not answer within 5 s")
            return super().prune(before, limit)

    service = make_service(Slow(), executor="simulated", retain_history_s=86_400)
    reboot(service)
    service.ticker.cycle_until_idle()
    assert limits == [PRUNE_BATCH]
    assert "could not be deleted, 500 at once" in caplog.text
    for _ in range(4):
        service.ticker.advance(60)
        service.ticker.cycle_until_idle()
    assert limits == [PRUNE_BATCH, PRUNE_BATCH // 2, PRUNE_BATCH // 4]
    service.ticker.advance(3_600)
    service.ticker.cycle_until_idle()
    assert limits[3] == PRUNE_BATCH
