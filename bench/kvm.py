"""What the executor `libvirt` adds to the bare calls of libvirt, on real hosts with emulated guests.

Each action runs in turns: by the executor, from taking the order to its report, and by bare calls with the same effect. The pause
of a live migration is the longest silence of a guest that sends every 20 ms. A host is emptied by the executor, several guests
at once, and by a loop of `virsh migrate`, one after the other.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from scripts.kvm_bed.bed import Bed, Guest, start_bed
from tests.integration.kvm.orders import done, executor_in, work_on
from tests.integration.kvm.tcp_watch import PROGRAM, TcpWatch
from tests.support.waiting import until

from bench.report import Verdict, milliseconds, none_of, print_table
from bench.size import Size
from forewarn.core.event_types import EventType
from forewarn.executors import Work
from forewarn.libvirt.connections import HostConnections
from forewarn.libvirt.executor import LibvirtExecutor, LibvirtSettings

SETTINGS = LibvirtSettings(freeze_default_s=0, shutdown_grace_s=60, migration_time_limit_s=300, parallel=10)
POLL_S = 0.002
OTHER = {"kvm-a": "kvm-b", "kvm-b": "kvm-a"}


def run(folder: Path, size: Size) -> list[Verdict]:
    rounds, guests = size.kvm
    with closing(start_bed()) as bed, closing(executor_in(folder, SETTINGS)) as executor:
        watch = TcpWatch(bed)
        bench = _Bench(bed, executor, bed.add_guest("web-0", "kvm-a", {"program.py": PROGRAM}), watch)
        bench.until_up()
        rows = [
            bench.compare(name, kind, rounds) for name, kind in (("suspend and resume", "freeze"), ("reboot", "reboot"))
        ]
        rows.append(bench.compare("live migration", "migrate", rounds))
        bed.virsh(bench.host, "destroy", "web-0")
        watch.close()
        print_table(
            "What the executor adds to the bare calls, medians",
            ("action", "bare", "executor", "added"),
            rows,
        )
        print_table(
            "Pause of a live migration, medians",
            ("seen by", "pause"),
            [
                ("libvirt", milliseconds(statistics.median(bench.downtimes_s))),
                ("the guest's TCP connection", milliseconds(statistics.median(bench.silences_s))),
            ],
        )
        emptied_s, looped_s = _empty(bed, executor, guests)
        print_table(
            f"Empty a host with {guests} guests",
            ("by", "time"),
            [("the executor", f"{emptied_s:.1f} s"), ("a loop of virsh migrate", f"{looped_s:.1f} s")],
        )
        return [none_of("guest's connection broken by a live migration", watch.connections - bench.boots)]


class _Bench:
    """One guest that each action is done to, by the executor and by bare calls in turns."""

    def __init__(self, bed: Bed, executor: LibvirtExecutor, guest: Guest, watch: TcpWatch) -> None:
        self.bed, self.executor, self.guest, self.watch = bed, executor, guest, watch
        self.host, self.boots = "kvm-a", 1
        self.downtimes_s: list[float] = []
        self.silences_s: list[float] = []
        self._connections = HostConnections()

    def until_up(self) -> None:
        """Wait until the guest of the last boot sends: then it also listens to its power button."""
        until(lambda: self.watch.connections == self.boots and self.guest.boots() == self.boots)
        self.watch.restart()
        until(lambda: self.watch.receipts > 5)

    def compare(self, name: str, kind: str, rounds: int) -> tuple[str, str, str, str]:
        bare: list[float] = []
        ours: list[float] = []
        calls: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "freeze": (self._bare_freeze, lambda: self._order(EventType.FREEZE)),
            "reboot": (self._bare_reboot, lambda: self._order(EventType.REBOOT)),
            "migrate": (self._bare_migration, self._order_migration),
        }
        for _ in range(rounds):
            for call, times in zip(calls[kind], (bare, ours), strict=True):
                begun_s = time.perf_counter()
                call()
                times.append(time.perf_counter() - begun_s)
                if kind == "reboot":
                    self.boots += 1
                self.until_up()
        middle, ours_middle = statistics.median(bare), statistics.median(ours)
        return name, milliseconds(middle), milliseconds(ours_middle), milliseconds(ours_middle - middle)

    def _domain(self) -> Any:
        return self._connections.get(self.bed.hosts[self.host]).lookupByName("web-0")

    def _bare_freeze(self) -> None:
        domain = self._domain()
        domain.suspend()
        domain.resume()

    def _bare_reboot(self) -> None:
        domain = self._domain()
        domain.shutdown()
        while domain.isActive():
            time.sleep(POLL_S)
        domain.create()

    def _bare_migration(self) -> None:
        self.bed.virsh(self.host, *_migration("web-0", self.bed.hosts[OTHER[self.host]]))
        self.host = OTHER[self.host]

    def _order_migration(self) -> None:
        self.watch.restart()
        output = self._order(EventType.FREEZE, live=True)
        self.downtimes_s.append(int(output.split("a pause of ")[1].split()[0]) / 1000)
        self.silences_s.append(self.watch.longest_gap_s)
        self.host = OTHER[self.host]

    def _order(self, kind: EventType, *, live: bool = False) -> str:
        return _carried_out(self.executor, work_on(self.bed, kind, {"web-0": self.host}, live=live))


def _empty(bed: Bed, executor: LibvirtExecutor, count: int) -> tuple[float, float]:
    """Empty kvm-a with an order, then kvm-b with a loop; return how long each took."""
    names = [f"many-{number}" for number in range(count)]
    guests = [bed.add_guest(name, "kvm-a") for name in names]
    until(lambda: all(guest.boots() == 1 for guest in guests), 600)
    begun_s = time.perf_counter()
    _carried_out(executor, work_on(bed, EventType.FREEZE, dict.fromkeys(names, "kvm-a"), live=True))
    emptied_s = time.perf_counter() - begun_s
    begun_s = time.perf_counter()
    for name in names:
        bed.virsh("kvm-b", *_migration(name, bed.hosts["kvm-a"]))
    return emptied_s, time.perf_counter() - begun_s


def _migration(name: str, uri: str) -> tuple[str, ...]:
    return "migrate", "--live", "--persistent", "--undefinesource", name, uri


def _carried_out(executor: LibvirtExecutor, work: Work) -> str:
    outcome = done(executor, work)
    assert outcome.ok, outcome.reason
    return outcome.output
