"""When a maintenance is expected to end.

Owns the rule of the expected end, which needs only the sums of `progress`. It must not know what reads the estimate.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from forewarn.core.model import Maintenance
from forewarn.core.progress import WaveProgress

# Returns the first moment from this one on at which the wave with this number may start; None if it is not known.
StartOfWave = Callable[[int, datetime], datetime | None]


def expected_end(
    maintenance: Maintenance,
    waves: Iterable[WaveProgress],
    *,
    held: bool,
    start_of: StartOfWave,
    now: datetime,
    notice_s: int | None = None,
) -> datetime | None:
    """Return when the maintenance ends if nothing but time is missing, or None if that cannot be known.

    The current wave starts at its NotBefore, unless it has started. Its work takes as long as the longest wave that has ended
    without an operator's help, or before there is one the duration that was requested. Each later wave adds the bake time, the
    notice of the current wave and the same work, and starts when windows and no-go times allow it (`start_of`). Approvals bring
    the end forward. If time alone holds back the publication of the current wave, `notice_s` is the notice that it will give. The
    end cannot be known while an operator must act (paused, held, an order failed or in doubt), while the duration is unknown,
    if the last wave would start after the deadline, and once the current wave is late, because it then waits for something else
    than time.
    """
    known = list(waves)
    unended = [wave for wave in known if wave.unended]
    if not unended or held or maintenance.paused or any(wave.failed or wave.in_doubt for wave in known):
        return None
    current = unended[0]
    work = _work(maintenance, known)
    start = current.started if current.running else _start(maintenance, known, current, start_of, notice_s, now)
    if work is None or start is None or (start + work if current.running else start) < now:
        return None
    pause = timedelta(seconds=maintenance.strategy.bake_s + (current.notice_s or notice_s or 0))
    for wave in unended[1:]:
        wanted = start + work + pause
        start = start_of(wave.wave, max(wanted, wave.requested_not_before or wanted))
        if start is None:
            return None
    left = len(unended) > 1 or not current.running
    missed = left and maintenance.not_after is not None and start >= maintenance.not_after
    return None if missed else start + work


def _start(
    maintenance: Maintenance,
    waves: Iterable[WaveProgress],
    current: WaveProgress,
    start_of: StartOfWave,
    notice_s: int | None,
    now: datetime,
) -> datetime | None:
    """Return when the current wave starts, which has not started. An announced wave starts in its window."""
    floors = [each for each in (maintenance.earliest, current.requested_not_before) if each is not None]
    if current.not_before is not None:
        return max([current.not_before, *floors])
    if notice_s is None:
        return start_of(current.wave, max(floors)) if current.requested_not_before is not None else None
    bake = timedelta(seconds=maintenance.strategy.bake_s)
    announced = [now, *(wave.completed + bake for wave in waves if wave.completed is not None)]
    floors += [maintenance.not_before] if maintenance.not_before is not None else []
    return start_of(current.wave, max([max(announced) + timedelta(seconds=notice_s), *floors]))


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
