"""Orders for the executor `libvirt` on the hosts of a bed, without a service."""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from scripts.kvm_bed.bed import Bed

from forewarn.core.event_types import EventType
from forewarn.core.model import Event, Order, OrderState, Phase, Source, Status
from forewarn.core.order_verbs import Outcome, Unknown
from forewarn.executors import Executor, Work
from forewarn.libvirt.executor import PREEMPT_GRACE_S, LibvirtExecutor, LibvirtSettings
from forewarn.libvirt.journal import Journal
from tests.integration.kvm.site import GUEST_PATIENCE_S
from tests.support.waiting import until

NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUICK = LibvirtSettings(shutdown_grace_s=20, migration_time_limit_s=600, freeze_default_s=1, host_return_s=60)

_numbers = itertools.count(1)


def executor_in(
    folder: Path,
    settings: LibvirtSettings = QUICK,
    *,
    preempt_grace_s: int = PREEMPT_GRACE_S,
    journal_type: type[Journal] = Journal,
) -> LibvirtExecutor:
    state = folder / "state" / "libvirt"
    return LibvirtExecutor(settings, state, preempt_grace_s=preempt_grace_s, journal_type=journal_type)


def work_on(
    bed: Bed,
    kind: EventType,
    hosts: dict[str, str],
    *,
    order_id: str = "",
    attempt: int = 1,
    phase: Phase = Phase.NONE,
    duration_s: int = -1,
    live: bool = False,
    targets: Sequence[str] | None = None,
) -> Work:
    """Return a running order for machines by name, each with its host. By default they may move to every other host."""
    order_id = order_id or f"{next(_numbers):08x}-0000-4000-8000-000000000000"
    event = Event(
        id=order_id,
        maintenance_id="00000002-0000-4000-8000-000000000000",
        wave=1,
        position=0,
        scope="shop",
        update_domain=0,
        type=kind,
        source=Source.PLATFORM,
        resources=tuple(hosts),
        duration_s=duration_s,
        status=Status.STARTED,
    )
    order = Order(id=order_id, issued=NOW, state=OrderState.RUNNING, attempt=attempt, phase=phase, taken=NOW)
    others = {
        name: tuple(targets if targets is not None else (h for h in bed.hosts if h != host))
        for name, host in hosts.items()
    }
    return Work(order, event, hosts, connections=bed.hosts, targets=others, live=live)


def ended(executor: Executor, work: Work) -> Outcome | Unknown:
    """Wait for the report of an order that was taken or is watched."""
    found: list[Outcome | Unknown] = []

    def reported() -> bool:
        found.extend(report.outcome for report in executor.reports(NOW) if report.order_id == work.order.id)
        return bool(found)

    until(reported, GUEST_PATIENCE_S)
    return found[0]


def done(executor: Executor, work: Work) -> Outcome:
    """Take an order and wait for its end."""
    executor.take(work)
    outcome = ended(executor, work)
    assert isinstance(outcome, Outcome), outcome
    return outcome
