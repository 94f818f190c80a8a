"""Builds one node from its settings: store, clock, executor, state folder and the node itself. No threads, no listeners.

New ids and randomness enter the system here and in `operator_token`.
"""

import logging
import os
import random
import re
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forewarn.app.health import Health
from forewarn.app.hook_transport import HttpTransport
from forewarn.app.node import REAL, Node, Times, follow
from forewarn.core.errors import Invalid, InvalidFleet, InvalidSettings, LargeRemoval, Refused, ServiceError
from forewarn.core.fleet import MANY_MACHINES, MAX_FILE_BYTES, Fleet, contents_text, parse_fleet
from forewarn.core.fleet_difference import Difference
from forewarn.core.model import Actor
from forewarn.core.store_hold import replaced
from forewarn.executors import registry
from forewarn.executors.base import Executor
from forewarn.executors.command import CommandExecutor
from forewarn.service.clock import Clock, clock_for
from forewarn.service.clock_file import ClockFile, boot_id, clock_path
from forewarn.service.decisions import Once
from forewarn.service.follower import Follower
from forewarn.service.hook_sender import HookSender
from forewarn.service.inventory import InventoryHealth
from forewarn.service.private_files import make_folder
from forewarn.service.setting_readers import allowed_targets
from forewarn.service.settings import Settings
from forewarn.service.state_dir import StateDir
from forewarn.service.store_memory import StoreMemory
from forewarn.store import SharedStore, Store
from forewarn.store.opening import SQLITE, open_store, store_file, store_kind

if TYPE_CHECKING:
    from forewarn.libvirt.inventory_keeper import InventoryKeeper

# The first pause after a conflict; each further conflict doubles it.
PAUSE_S = 0.005
MAX_PAUSE_S = 0.25

log = logging.getLogger("forewarn.app.service")


def new_id() -> str:
    """Return a UUID that begins with the lower digits of the time, in units of about a microsecond; the rest is random.

    So the rows of what was submitted together lie together on disk, and a start of many events writes a tenth of the pages.
    The first eight digits still tell two ids apart. Row of the bench: lateness of events due at once.
    """
    moment = (time.time_ns() >> 10) & 0xFFFFFFFF
    return str(uuid.UUID(bytes=moment.to_bytes(4, "big") + os.urandom(12), version=4)).upper()


def executor_for(settings: Settings) -> Executor:
    """Make the executor in use. A node for guests takes no orders: other nodes do."""
    if settings.role == "guest":
        return registry.find(registry.DEFAULT)()
    try:
        return registry.find(settings.executor).from_settings(settings.of_executor(), settings.state_dir)
    except OSError as error:
        raise InvalidSettings(
            f"state_dir: the {settings.executor} executor cannot use it: {error}; name another with --state-dir"
        ) from None


def host_executor_for(settings: Settings) -> Executor:
    """Make the executor of hosts. Its orders are in a folder of their own."""
    if settings.role == "guest" or settings.host_executor != CommandExecutor.name:
        return registry.find(registry.DEFAULT)()
    return CommandExecutor.from_settings(
        settings.of_host_executor(), settings.state_dir, folder="host-orders", command_setting="host_command"
    )


class Service:
    """One node as its settings describe it. `server.running` adds the threads and listeners."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        store: Store | None = None,
        new_id: Callable[[], str] = new_id,
        node: str = "",
        times: Times = REAL,
    ) -> None:
        self.settings = settings
        executor, host_executor = executor_for(settings), host_executor_for(settings)
        # Only a node that opens its store itself, and acts on it, remembers which database that was.
        remembers = store is None and settings.role != "guest"
        store = store or _store_of(settings)
        shared = store if isinstance(store, SharedStore) and clock is None else None
        self.state_dir: StateDir | None = None
        follower: Follower | None = None
        try:
            store.claim()
            if shared is not None:
                follower, clock = follow(shared, times, _clock_file(settings) if settings.role != "guest" else None)
            elif clock is None:
                clock = _clock_of(settings, floor=store.last_change())
            if shared is not None and settings.role != "guest":
                self.state_dir = StateDir(settings.state_dir, new_state_dir_name)
            node = node or node_name(self.state_dir)
            memory = StoreMemory(settings.state_dir, store, place=_place(settings)) if remembers else None
            if memory is not None:
                _hold_if_replaced(memory, store, shared, clock, node)
        except BaseException:
            if follower is not None:
                follower.close()
            store.close()
            raise
        self.node = Node(
            store,
            clock,
            executor,
            name=node,
            new_id=new_id,
            order_timeout_s=settings.order_timeout_s,
            max_reschedules=settings.max_reschedules,
            retain_history_s=settings.retain_history_s,
            shared=shared,
            follower=follower,
            may_tick=settings.role != "guest",
            alone=self.state_dir.alone if self.state_dir is not None else lambda: nullcontext(False),
            pause=_pause,
            times=times,
            render_receipt=_render_receipt,
            host_executor=host_executor,
            node_host=settings.node_host or socket.gethostname(),
        )
        self.store, self.clock, self.executor, self.follower = store, clock, executor, follower
        self.control, self.ticker, self.times = self.node.control, self.node.ticker, times
        self._memory = memory
        if memory is not None:
            self.ticker.call_periodically(memory)
        self.hook_sender = self._new_hook_sender()
        self.node.listen(self.hook_sender.nudge)
        self.inventory = self._inventory_keeper() if settings.role != "guest" else None
        self.control.follows_inventory = self.inventory is not None
        self.health = Health(
            settings, store, self.control, clock, self.ticker, follower, self.hook_sender, self._inventory_health
        )

    def _new_hook_sender(self) -> HookSender:
        # A node for guests sends no messages; of the others the one that ticks does.
        leases = self.ticker.leases
        return HookSender(
            self.control,
            self.store,
            self.clock,
            HttpTransport(allowed_targets(self.settings.hook_targets), self.settings.hook_timeout_s),
            may_send=lambda: leases.leads and not leases.expired(),
            disable_after_s=self.settings.hook_disable_after_s,
            unix_s=time.time,
            monotonic=self.times.monotonic,
            start=lambda work: threading.Thread(target=work, name="hook", daemon=True).start(),
        )

    def apply_fleet_file(
        self, path: Path, show_progress: Callable[[str], None] = lambda _: None, *, many_machines: int = MANY_MACHINES
    ) -> Difference:
        fleet = read_fleet_file(path)
        if len(fleet.machines) >= many_machines:
            show_progress(f"fleet: {contents_text(fleet)} read from {path}; saving them")
        try:
            return self.control.apply_fleet(
                fleet, Actor("fleet file", str(path)), prune=self.settings.prune, large_removal_ok=False
            )
        except LargeRemoval as error:
            raise InvalidFleet(
                f"{path}: with --prune {error}: nothing was changed. Correct the file, or start without --prune and run"
                f" `forewarn fleet apply {path} --prune`, which asks first"
            ) from None
        except (InvalidFleet, Refused) as error:
            raise InvalidFleet(
                f"{path}: it does not fit the present fleet: {error}; what is not in the file stays unless you use --prune"
            ) from None

    def _inventory_keeper(self) -> "InventoryKeeper | None":
        settings, leases = self.settings, self.ticker.leases
        if settings.inventory != "libvirt":
            return None
        try:
            from forewarn.libvirt.connections import HostConnections
            from forewarn.libvirt.inventory_keeper import InventoryKeeper
            from forewarn.libvirt.statements import parse_rules
        except ImportError:
            raise InvalidSettings(
                "inventory: libvirt-python is not installed: install the system packages libvirt-dev, pkg-config and gcc, then"
                " run `pip install forewarn[libvirt]`"
            ) from None
        path = settings.inventory_rules
        return InventoryKeeper(
            self.control,
            self.store,
            HostConnections(),
            now=self.clock.display_time,
            may_change=lambda: leases.leads and not leases.expired(),
            rules=parse_rules(_read_fleet(path), str(path)) if path is not None else (),
            by_interface=settings.inventory_identity == "interface",
            guest_agent=settings.inventory_guest_agent,
        )

    def _inventory_health(self) -> InventoryHealth:
        return InventoryHealth() if self.inventory is None else self.inventory.health

    def close(self) -> None:
        self.executor.close()
        self.node.host_executor.close()
        if self._memory is not None:
            with suppress(ServiceError):
                self._memory.remember()
        self.store.close()
        if self.state_dir is not None:
            self.state_dir.close()


def new_state_dir_name() -> str:
    """Return a name for a state folder: the host's name and something random."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:60] or "host"
    return f"{host}-{secrets.token_hex(4)}"


def node_name(state_dir: StateDir | None) -> str:
    """Return a name that no other node has: containers may share a host's name and have equal process ids."""
    where = state_dir.name if state_dir is not None else socket.gethostname()
    return f"{where}:{os.getpid()}-{secrets.token_hex(4)}"


def _store_of(settings: Settings) -> Store:
    if not settings.store:
        make_folder(settings.state_dir)
    return open_store(settings.store_url, direct=settings.store_direct, connections=settings.store_connections)


def _clock_file(settings: Settings) -> ClockFile | None:
    path = clock_path(settings.store_url, settings.state_dir)
    return ClockFile(path, boot_id()) if path is not None else None


def _hold_if_replaced(memory: StoreMemory, store: Store, shared: SharedStore | None, clock: Clock, node: str) -> None:
    """Hold the store before anything acts on it if it is not the database that this node remembers."""
    difference = memory.difference(others_use_it=shared is not None and bool(shared.live_nodes()))
    if difference:
        store.begin_anew(replaced(difference, now=clock.now(), actor=Actor("service", node)))
        log.error("the store is held: %s; see what would happen, then run `forewarn db resume`", difference)
    memory.remember()


def _place(settings: Settings) -> str:
    """Return where the store is, for the memory of it."""
    url = settings.store_url
    return str(store_file(url).resolve()) if store_kind(url) == SQLITE else store_kind(url)


def _clock_of(settings: Settings, floor: datetime | None) -> Clock:
    try:
        return clock_for(settings.clock, floor=floor, saved=_clock_file(settings))
    except Invalid as error:
        raise InvalidSettings(f"clock: {error}") from None


def _pause(tried: int) -> None:
    """Sleep for a random time after a conflict, so that two writers do not meet again at once."""
    time.sleep(random.uniform(0.0, min(PAUSE_S * 2**tried, MAX_PAUSE_S)))  # noqa: S311 - no secret


def _render_receipt(once: Once, made: Any) -> tuple[int, str]:
    from forewarn.operator.api.receipts import render_receipt  # it imports the bodies of the API

    return render_receipt(once, made)


def read_fleet_file(path: Path) -> Fleet:
    """Read a fleet file; raise InvalidFleet if it is wrong."""
    return parse_fleet(_read_fleet(path), str(path))


def _read_fleet(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidFleet(f"{path}: larger than {MAX_FILE_BYTES} bytes: split the fleet over several services")
        return path.read_text("utf-8")
    except OSError as error:
        raise InvalidFleet(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidFleet(f"{path}: this is not UTF-8 text: {error}") from None
