"""What the executor `libvirt` adds to the calls of libvirt that an action needs, on real hosts with emulated guests.

An order takes from its handing over to its report. What it adds is what remains without the calls that do the work: how long
these take varies by seconds on a busy machine. Guests that are stopped have no grace, so that no order waits for a guest. The
pause of a live migration is the longest silence of a guest that sends every 20 ms. A host is emptied by the executor, several
guests at once, and by a loop of `virsh migrate`, one after the other.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from scripts.kvm_bed.bed import Bed, start_bed
from tests.integration.kvm.orders import done, executor_in, work_on
from tests.integration.kvm.tcp_watch import PROGRAM, TcpWatch
from tests.support.waiting import until

from bench.report import Verdict, milliseconds, none_of, print_table
from bench.size import Size
from forewarn.core.event_types import EventType
from forewarn.executors import Work
from forewarn.libvirt.executor import LibvirtExecutor, LibvirtSettings
from forewarn.libvirt.hosted_domain import HostedDomain

SETTINGS = LibvirtSettings(freeze_default_s=0, shutdown_grace_s=0, migration_time_limit_s=300, parallel=10)
# The calls that an action needs, whoever does it.
NEEDED = ("shut_down", "destroy", "start", "suspend", "resume", "migrate", "define", "undefine")
OTHER = {"kvm-a": "kvm-b", "kvm-b": "kvm-a"}
BOOTED_WITHIN_S = 600.0


def run(folder: Path, size: Size) -> list[Verdict]:
    rounds, guests = size.kvm
    with closing(start_bed()) as bed, closing(executor_in(folder, SETTINGS, preempt_grace_s=0)) as executor:
        watch = TcpWatch(bed)
        bed.add_guest("web-0", "kvm-a", {"program.py": PROGRAM})
        one = _OneGuest(bed, executor, watch)
        one.until_up()
        rows = [
            one.measure("suspend and resume", rounds, lambda: one.order(EventType.FREEZE)),
            one.measure("live migration", rounds, one.migrate),
        ]
        broken = watch.connections - 1
        rows.append(one.measure("reboot", rounds, lambda: one.order(EventType.REBOOT), up=False))
        rows.append(one.measure("redeploy", rounds, one.redeploy, up=False))
        rows.append(one.measure("preempt", rounds, lambda: one.order(EventType.PREEMPT), up=False, again=one.start))
        rows.append(
            one.measure("terminate", rounds, lambda: one.order(EventType.TERMINATE), up=False, again=one.define)
        )
        bed.virsh(one.host, "destroy", "web-0")
        watch.close()
        print_table(
            f"What the executor adds, medians of {rounds}", ("action", "calls of libvirt", "order", "added"), rows
        )
        seen = (("libvirt", one.downtimes_s), ("the guest's TCP connection", one.silences_s))
        print_table(
            f"Pause of a live migration, medians of {rounds}",
            ("seen by", "pause"),
            [(name, milliseconds(statistics.median(pauses_s))) for name, pauses_s in seen],
        )
        emptied_s, looped_s = _empty(bed, executor, guests)
        print_table(
            f"Empty a host with {guests} guests",
            ("by", "time", "ratio"),
            [
                ("the executor", f"{emptied_s:.1f} s", f"{emptied_s / looped_s:.2f}"),
                ("a loop of virsh migrate", f"{looped_s:.1f} s", "1.00"),
            ],
        )
        return [none_of("guest's connection broken by a live migration", broken)]


class _OneGuest:
    """The guest that each action is done to, and how long libvirt needed for the calls."""

    def __init__(self, bed: Bed, executor: LibvirtExecutor, watch: TcpWatch) -> None:
        self._bed, self._executor, self._watch = bed, executor, watch
        self.host = "kvm-a"
        self.downtimes_s: list[float] = []
        self.silences_s: list[float] = []

    def until_up(self) -> None:
        self._watch.until_it_goes_on()

    def measure(
        self,
        name: str,
        rounds: int,
        action: Callable[[], object],
        *,
        up: bool = True,
        again: Callable[[], object] = lambda: None,
    ) -> tuple[str, str, str, str]:
        """Carry out an action several times, each time with the guest up or, by `again`, as it was before."""
        orders_s, calls_s = [], []
        for _ in range(rounds):
            with _needed_calls() as needed_s:
                begun_s = time.perf_counter()
                action()
                orders_s.append(time.perf_counter() - begun_s)
                calls_s.append(sum(needed_s))
            again()
            if up:
                self.until_up()
        added_s = [order_s - call_s for order_s, call_s in zip(orders_s, calls_s, strict=True)]
        return name, *(milliseconds(statistics.median(times_s)) for times_s in (calls_s, orders_s, added_s))  # type: ignore[return-value]

    def order(self, kind: EventType, *, live: bool = False) -> str:
        return _carried_out(self._executor, work_on(self._bed, kind, {"web-0": self.host}, live=live))

    def redeploy(self) -> None:
        self.order(EventType.REDEPLOY)
        self.host = OTHER[self.host]

    def start(self) -> None:
        """Start the guest, and let it not boot: nothing here needs it any more."""
        self._bed.virsh(self.host, "start", "web-0", "--paused")

    def define(self) -> None:
        self._bed.virsh(self.host, "define", str(self._bed.folder / "guests/web-0/domain.xml"))
        self.start()

    def migrate(self) -> None:
        self._watch.restart()
        output = self.order(EventType.FREEZE, live=True)
        self.downtimes_s.append(int(output.split("a pause of ")[1].split()[0]) / 1000)
        self.silences_s.append(self._watch.longest_gap_s)
        self.host = OTHER[self.host]


@contextmanager
def _needed_calls() -> Iterator[list[float]]:
    """Collect how long each needed call takes."""
    times_s: list[float] = []
    before = {name: getattr(HostedDomain, name) for name in NEEDED}

    def timed(call: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: Any, **named: Any) -> None:
            begun_s = time.perf_counter()
            try:
                call(*arguments, **named)
            finally:
                times_s.append(time.perf_counter() - begun_s)

        return run

    for name, call in before.items():
        setattr(HostedDomain, name, timed(call))
    try:
        yield times_s
    finally:
        for name, call in before.items():
            setattr(HostedDomain, name, call)


def _empty(bed: Bed, executor: LibvirtExecutor, count: int) -> tuple[float, float]:
    """Empty kvm-a with an order, then kvm-b with a loop; return how long each took."""
    names = [f"many-{number}" for number in range(count)]
    guests = [bed.add_guest(name, "kvm-a") for name in names]
    until(lambda: all(guest.boots() == 1 for guest in guests), BOOTED_WITHIN_S)
    begun_s = time.perf_counter()
    _carried_out(executor, work_on(bed, EventType.FREEZE, dict.fromkeys(names, "kvm-a"), live=True))
    emptied_s = time.perf_counter() - begun_s
    begun_s = time.perf_counter()
    for name in names:
        bed.virsh("kvm-b", "migrate", "--live", "--persistent", "--undefinesource", name, bed.hosts["kvm-a"])
    return emptied_s, time.perf_counter() - begun_s


def _carried_out(executor: LibvirtExecutor, work: Work) -> str:
    outcome = done(executor, work)
    assert outcome.ok, outcome.reason
    return outcome.output
