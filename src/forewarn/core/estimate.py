"""When a maintenance is expected to end.

Owns the rule of the expected end, which needs only the sums of `progress`. It must not know what reads the estimate.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from forewarn.core.model import Maintenance
from forewarn.core.progress import WaveProgress


def expected_end(
    maintenance: Maintenance, waves: Iterable[WaveProgress], *, held: bool, limited: bool, now: datetime
) -> datetime | None:
    """Return when the maintenance ends if nothing but time is missing, or None if that cannot be known.

    The current wave starts at its NotBefore, unless it has started. Its work takes as long as the longest wave that has ended
    without an operator's help, or before there is one the duration that was requested. Each later wave adds the bake time, the
    notice of the current wave and the same work. Approvals bring the end forward. It cannot be known while an operator must act
    (paused, held, an order failed or in doubt), while the duration is unknown, if the last wave would start after the deadline,
    and once the current wave is late, because it then waits for something else than time. If windows or no-go times may limit
    its starts (`limited`), the start of a wave is not known before it is announced.
    """
    known = list(waves)
    unended = [wave for wave in known if wave.unended]
    if not unended or held or maintenance.paused or any(wave.failed or wave.in_doubt for wave in known):
        return None
    current = unended[0]
    work = _work(maintenance, known)
    start = current.started if current.running else current.not_before or current.requested_not_before
    unannounced = len(unended) > 1 or (not current.running and current.not_before is None)
    if work is None or start is None or (limited and unannounced):
        return None
    if not current.running and maintenance.earliest is not None:
        start = max(start, maintenance.earliest)
    if (start + work if current.running else start) < now:
        return None
    for wave in unended[1:]:
        start += work + timedelta(seconds=maintenance.strategy.bake_s + current.notice_s)
        start = max(start, wave.requested_not_before or start)
    left = len(unended) > 1 or not current.running
    missed = left and maintenance.not_after is not None and start >= maintenance.not_after
    return None if missed else start + work


def _work(maintenance: Maintenance, waves: Iterable[WaveProgress]) -> timedelta | None:
    """Return the time that the work of a wave takes: the longest so far, or else what was requested.

    A wave in which an operator resolved a failure does not count: its time contains the wait for the operator.
    """
    observed = [
        wave.completed - wave.started
        for wave in waves
        if not wave.unended and not wave.resolved and wave.completed is not None and wave.started is not None
    ]
    if observed:
        return max(observed)
    return timedelta(seconds=maintenance.duration_s) if maintenance.duration_s > 0 else None
