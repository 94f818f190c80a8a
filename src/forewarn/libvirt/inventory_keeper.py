"""Keeps the fleet as the hosts show it: reads all hosts every minute, and a host at once when one of its domains changes.

The hosts are those of the fleet that have a connection. Only the node that ticks changes the fleet.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime

import libvirt
from forewarn.core.errors import ForewarnError
from forewarn.core.fleet import Fleet
from forewarn.core.fleet_difference import Difference
from forewarn.core.model import Actor
from forewarn.libvirt.connections import Connection, HostConnections
from forewarn.libvirt.inventory import Decision, HostReading, Key, Memory, decide, difference_of
from forewarn.libvirt.reading import read_host
from forewarn.libvirt.statements import Rule
from forewarn.service.control import Control
from forewarn.service.inventory import InventoryHealth
from forewarn.store import Store

READ_EVERY_S = 60.0
# Domains change in bursts: what happens within this time is one update.
GATHER_S = 0.5
HOSTS_AT_ONCE = 8
ACTOR = Actor("inventory", "libvirt")
EVENTS = (libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE)

log = logging.getLogger("forewarn.libvirt.inventory")


class InventoryKeeper:
    """Runs in a thread of its own."""

    def __init__(
        self,
        control: Control,
        store: Store,
        connections: HostConnections,
        *,
        now: Callable[[], datetime],
        may_change: Callable[[], bool],
        rules: tuple[Rule, ...] = (),
        by_interface: bool = False,
        guest_agent: bool = False,
    ) -> None:
        self._control, self._store, self._connections = control, store, connections
        self._now, self._may_change = now, may_change
        self._rules, self._by_interface, self._guest_agent = rules, by_interface, guest_agent
        self._readings: dict[str, HostReading] = {}
        self._memory = Memory()
        self._updating = threading.Lock()
        self._lock = threading.Lock()
        self._changed: set[str] = set()
        self._nudged = threading.Event()
        self._stopping = threading.Event()
        self._logged: frozenset[str] = frozenset()
        self.health = InventoryHealth()
        connections.on_open(self._watch)

    def run(self) -> None:
        """Update the fleet until `stop`; survive every error."""
        whole = True
        while not self._stopping.is_set():
            try:
                if self._may_change():
                    self.update(whole=whole)
                else:
                    self._memory = Memory()  # another node sees what happens now
                    self.health = InventoryHealth()
            except Exception as error:
                self.health = InventoryHealth(problems=(f"the hosts could not be compared with the fleet: {error}",))
                log.exception("the inventory failed: it tries again")
            whole = not self._nudged.wait(READ_EVERY_S)
            self._stopping.wait(GATHER_S)
            self._nudged.clear()

    def stop(self) -> None:
        self._stopping.set()
        self._nudged.set()

    def update(self, *, whole: bool = True) -> Difference:
        """Read all hosts, or those where something happened, and change the fleet to match; return what changed."""
        with self._updating:
            self._read_hosts(whole=whole)
            return self._apply()

    def _read_hosts(self, *, whole: bool) -> None:
        hosts = {host.name: host.connection for host in self._store.hosts().values() if host.connection}
        with self._lock:
            changed, self._changed = self._changed, set()
        due = [name for name, uri in hosts.items() if whole or name not in self._readings or uri in changed]
        with ThreadPoolExecutor(HOSTS_AT_ONCE, thread_name_prefix="inventory") as pool:
            read = pool.map(lambda name: self._read(hosts[name], name), due)
        found = dict(zip(due, read, strict=True))
        self._readings = {name: found.get(name) or self._readings[name] for name in hosts}

    def _read(self, uri: str, name: str) -> HostReading:
        return read_host(self._connections, uri, name, guest_agent=self._guest_agent, interfaces=self._by_interface)

    def _apply(self) -> Difference:
        decisions: list[Decision] = []

        def compare(fleet: Fleet, busy: Mapping[Key, int]) -> Difference:
            decisions.append(
                decide(
                    self._readings.values(),
                    fleet,
                    self._rules,
                    now=self._now(),
                    by_interface=self._by_interface,
                    busy=busy,
                    memory=self._memory,
                )
            )
            return difference_of(decisions[-1], fleet)

        problems: tuple[str, ...] = ()
        diff = Difference()
        try:
            diff = self._control.follow_inventory(compare, ACTOR)
        except ForewarnError as error:
            problems = (f"the fleet stays as it is: {error}",)
        decision = decisions[-1]
        self._memory = decision.memory
        unreachable = sum(1 for reading in self._readings.values() if reading.problem)
        self.health = InventoryHealth(
            hosts={"reachable": len(self._readings) - unreachable, "unreachable": unreachable},
            doubled=decision.doubled,
            problems=(*problems, *decision.problems),
        )
        self._log_new(diff)
        return diff

    def _log_new(self, diff: Difference) -> None:
        for line in diff.lines:
            log.info("the fleet follows its hosts: %s", line)
        said = frozenset((*self.health.doubled, *self.health.problems))
        for text in sorted(said - self._logged):
            (log.error if text in self.health.doubled else log.warning)("%s", text)
        self._logged = said

    def _watch(self, uri: str, connection: Connection) -> None:
        """Have libvirt report what happens to the domains of a new connection."""

        def happened(*_: object) -> None:
            with self._lock:
                self._changed.add(uri)
            self._nudged.set()

        for event in EVENTS:
            with suppress(libvirt.libvirtError):  # a driver without this event is read every minute
                connection.domainEventRegisterAny(None, event, happened, None)
