"""The emulator of a trial: every caller is the agent, and an approval is stored with the number of preparations before it."""

import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from forewarn.core.fleet import Fleet
from forewarn.core.model import Machine, Scope, ScopeKind, Source
from forewarn.endpoint.connection import ConnectionFactory
from forewarn.endpoint.endpoint import EndpointState
from forewarn.testing.conform.event_kinds import EventKind
from forewarn.testing.default_machines import SCOPE
from forewarn.testing.emulated_connection import EmulatedConnection, EmulatorParts, with_changed_document
from forewarn.testing.emulator import Emulator, Scheduled
from forewarn.testing.faults import Fault

# Far more than a loop needs that runs.
READ_WITHIN_S = 60.0
# The first pair whose names do not contain the name of the agent's machine.
OTHER_MACHINES = (("vm-1", "vm-2"), ("db-1", "db-2"))


class TrialFleet:
    """The agent's machine and three others: in another update domain, in the same one, and with a longer name."""

    def __init__(self, machine: str) -> None:
        pairs = [pair for pair in OTHER_MACHINES if not any(machine in name for name in pair)]
        self.machine = machine
        self.other, self.neighbour = pairs[0] if pairs else OTHER_MACHINES[0]
        self.longer = f"{machine}1"
        domains = {self.machine: 0, self.neighbour: 0, self.other: 1, self.longer: 1}
        members = {
            (SCOPE, name): Machine(scope=SCOPE, name=name, update_domain=domain) for name, domain in domains.items()
        }
        self.fleet = Fleet({SCOPE: Scope(name=SCOPE, kind=ScopeKind.PLACEMENT_GROUP)}, members)


class TrialConnection(EmulatedConnection):
    """Shows the events in `user_events` with the source User."""

    def __init__(
        self, user_events: Collection[str], parts: EmulatorParts, endpoint: EndpointState, interface: str = ""
    ) -> None:
        super().__init__(parts, endpoint, interface)
        self._user_events = user_events

    def write(self, status: int, data: bytes, *, keep: bool) -> None:
        if self._user_events:
            data = with_changed_document(data, self._change_sources)
        super().write(status, data, keep=keep)

    def _change_sources(self, document: dict[str, Any]) -> None:
        for event in document["Events"]:
            if event["EventId"] in self._user_events and "EventSource" in event:
                event["EventSource"] = str(Source.USER)


class TrialEmulator(Emulator):
    """Counts the agent's preparations when an approval arrives; later the hooks' files do not show that number."""

    def __init__(self, prepared: Callable[[], int], machine: str, **options: Any) -> None:
        self._prepared = prepared
        self._machine = machine
        self._user_events: set[str] = set()
        self._kind: EventKind | None = None  # of the event that is being scheduled
        self.prepared_at: dict[int, int] = {}  # by the number of the approving request
        super().__init__(**options)
        self._new_plain_id, self._new_id = self._new_id, self._new_recorded_id

    def schedule_kind(self, kind: EventKind, *machines: str, **options: Any) -> Scheduled:
        """Schedule an event of this kind, also if the service publishes its type only for the platform."""
        self._kind = kind
        return self.schedule(kind.type, *machines, source=kind.published_source, duration_s=kind.duration_s, **options)

    def read_what_was_sent(self) -> None:
        """Log every request that guests sent before this call, although the guests may have ended."""
        read = threading.Event()
        # The turn under way may have begun before this call. The next one reads all requests, and accepts connections at its end.
        loop = self._loop
        loop.call_from_thread(lambda: loop.call_soon(lambda: loop.call_soon(read.set)))
        if not read.wait(READ_WITHIN_S):
            raise RuntimeError("the emulator's event loop does not run")

    def _new_recorded_id(self) -> str:
        """Record an event's id before the event is published, so that no guest sees the event with another source."""
        new_id = self._new_plain_id()
        if self._kind is not None and self._kind.source is not self._kind.published_source:
            self._user_events.add(new_id)
        return new_id

    def _every_caller(self) -> str:
        return f"{SCOPE}/{self._machine}"

    def _connection(self) -> ConnectionFactory:
        return partial(TrialConnection, self._user_events, self._parts)

    def _choose_fault(self, machine: str, method: str, path: str) -> Fault | None:
        if method == "POST":
            self.prepared_at[self.log.last_number] = self._prepared()
        return super()._choose_fault(machine, method, path)
