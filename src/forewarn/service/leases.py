"""Leases: which nodes are alive, and which one of them ticks.

Where several nodes share a store, each node holds a lease of its own and one node holds the ticker's lease. The ticker's
lease only saves work: two tickers do no harm, because the store refuses a change that is based on outdated rows. When a
node's own lease ends, another node takes over its orders or leaves them in doubt.
"""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from forewarn.core.errors import ForewarnError
from forewarn.store import SharedStore

LEASE_S = 10.0
RENEW_EVERY_S = 3.0
TICKER_LEASE = "ticker"
# The nodes on a host that may tick renew one more lease, called `ticking-host HOST`.
TICKING_HOST = "ticking-host"
# A node that has not renewed its lease for this long cannot save anything.
UNREADY_AFTER_S = RENEW_EVERY_S + 3.0
# A node with the same state directory finds what a dead node's executor left there. Other nodes wait longer, so that a
# node with that state directory can come back first.
ELSEWHERE_AFTER_S = 20.0

log = logging.getLogger("forewarn.service.leases")


class NodeLeases:
    """The leases of the node `node`. With `shared=None` the store has no other nodes, and this node needs no lease.

    A node is called `STATE_DIR_NAME:PROCESS` and runs on `host`. A node that may not tick never takes the ticker's lease.
    """

    def __init__(
        self,
        shared: SharedStore | None,
        node: str,
        *,
        host: str = "",
        may_tick: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shared = shared
        self.shared = shared is not None
        self._node = node
        self._host = host
        self._may_tick = may_tick
        self._monotonic = monotonic
        self.leads = shared is None and may_tick
        self.renew_at_s = 0.0
        self._renewed_s = monotonic()
        self._expires_s = 0.0
        self._ended: set[str] = set()

    def renew(self) -> bool:
        """Renew this node's lease and take the ticker's lease if it is free; return False if no renewal is due."""
        if self._shared is None or self._monotonic() < self.renew_at_s:
            return False
        requested_s = self._monotonic()
        self._shared.take_lease(f"node {self._node}", self._node, LEASE_S)
        self._renewed_s, self._expires_s = requested_s, requested_s + LEASE_S
        if self._may_tick:
            self._shared.take_lease(f"{TICKING_HOST} {self._host}", self._host, LEASE_S)
        leads = self._may_tick and self._shared.take_lease(TICKER_LEASE, self._node, LEASE_S)
        if leads != self.leads:
            log.info("this node ticks from now on" if leads else "another node ticks")
        self.leads = leads
        self.renew_at_s = self._monotonic() + RENEW_EVERY_S
        return True

    def release_ticker(self) -> None:
        """Let another node tick at once. The node's own lease runs out by itself: its orders may still be running here."""
        if self._shared is not None and self.leads:
            self.leads = False
            with suppress(ForewarnError):
                self._shared.drop_lease(TICKER_LEASE, self._node)

    def resign(self) -> None:
        """Let another node tick, and do not tick again."""
        self.release_ticker()
        self._may_tick = self.leads = False

    def expired(self) -> bool:
        """Return whether other nodes may have taken over this node's orders."""
        return self._shared is not None and self._monotonic() > self._expires_s

    def silent_s(self) -> float:
        """Return the seconds since this node last renewed its lease; 0 if it needs none."""
        return self._monotonic() - self._renewed_s if self._shared is not None else 0.0

    def others_live(self) -> bool:
        """Return whether a node on another host is up that may tick."""
        if self._shared is None:
            return False
        return bool(self._shared.live_nodes(kind=TICKING_HOST) - {self._host})

    def declare_ended(self, nodes: Iterable[str]) -> None:
        """Treat nodes with this node's state directory as dead, although their leases have not ended."""
        self._ended |= {node for node in nodes if self.is_here(node)} - {self._node}

    def dead(self, nodes: Iterable[str]) -> set[str]:
        """Return those of `nodes` whose orders this node may take over."""
        if self._shared is None:
            return set()
        living = self._shared.live_nodes() - self._ended
        living_lately = self._shared.live_nodes(ELSEWHERE_AFTER_S)
        return {
            node
            for node in nodes
            if node not in living and (self.is_here(node) or (self.leads and node not in living_lately))
        }

    def is_here(self, node: str) -> bool:
        """Return whether the node has this node's state directory."""
        return node.rpartition(":")[0] == self._node.rpartition(":")[0]
