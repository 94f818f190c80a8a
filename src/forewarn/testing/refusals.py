"""Refused connections: closes the guest listener while a fault of the kind `refuse` is in force, on any clock."""

import threading
from collections.abc import Callable
from datetime import datetime

from forewarn.endpoint.endpoint import EndpointState
from forewarn.endpoint.listener import GuestListener
from forewarn.testing.emulated_connection import EmulatedConnection
from forewarn.testing.faults import FaultPlan

APPLIED_WITHIN_S = 10.0


class Refusals:
    """Follows the fault plan. The ticker calls it when a refusal begins or ends."""

    def __init__(
        self,
        endpoint: EndpointState,
        listener: GuestListener,
        fault_plan: Callable[[], FaultPlan],
        now: Callable[[], datetime],
    ) -> None:
        self._endpoint, self._listener, self._fault_plan, self._now = endpoint, listener, fault_plan, now
        self._applying = threading.Lock()
        self._refusing = False

    def next_due(self) -> datetime | None:
        now = self._now()
        if self._fault_plan().refuses(now) != self._refusing:
            return now
        return self._fault_plan().next_refusal_change(now)

    def do(self, _: datetime) -> int:
        return int(self.apply())

    def apply(self) -> bool:
        """Refuse connections, or accept them again, as the plan says now; return whether that is a change."""
        with self._applying:
            refusing = self._fault_plan().refuses(self._now())
            if refusing == self._refusing:
                return False
            self._refusing = refusing
            applied = threading.Event()
            self._endpoint.loop.call_from_thread(lambda: self._switch(applied, refusing=refusing))
            applied.wait(APPLIED_WITHIN_S)
            return True

    def _switch(self, applied: threading.Event, *, refusing: bool) -> None:
        """Run in the listener's thread."""
        try:
            if self._endpoint.stopping:
                return
            if not refusing:
                self._listener.accept()
                return
            self._listener.refuse()
            for connection in list(self._endpoint.connections):
                if isinstance(connection, EmulatedConnection):
                    connection.refuse()
        finally:
            applied.set()
