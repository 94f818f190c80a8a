"""What every call works with: the request's context, results, pages and cursors, and things as far as the caller sees them."""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec

from forewarn.core.errors import Invalid, NotFound, Refused
from forewarn.core.model import Event, Targets
from forewarn.operator.api import bodies, views
from forewarn.operator.api.access import Identity
from forewarn.operator.api.bodies import RequestBody
from forewarn.operator.api.snapshot_cache import SnapshotCache
from forewarn.service.clock import Clock
from forewarn.service.control import Control
from forewarn.service.decisions import Once
from forewarn.service.hook_sender import HookSender
from forewarn.service.placement import with_target_hosts
from forewarn.store import MAX_SEARCHED, SEARCHED_AT_ONCE, AuditQuery, Focus, Store, folded

DEFAULT_LIMIT = 50
MAX_TIMELINE = 500
MAX_SEARCH_CHARS = 200
# Control characters, and halves of characters, which UTF-8 cannot hold.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
MAX_TIMELINE_START = 50
WHOLE = slice(None)

T = TypeVar("T")
M = TypeVar("M", datetime, datetime | None)
JSON, TOML = "application/json", "application/toml"
# Every response to an operator carries these.
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


@dataclass(frozen=True, slots=True)
class Result:
    """What a call returns: `body` has the type that the table names, or is bytes to be sent unchanged."""

    status: int
    body: Any = None
    content_type: str = JSON

    def encoded(self) -> bytes:
        if self.body is None:
            return b""
        return self.body if isinstance(self.body, bytes) else msgspec.json.encode(self.body)


@dataclass(frozen=True, slots=True)
class CallContext:
    """One request that its caller may make, with its parameters and body already read."""

    caller: Identity
    path: dict[str, str]
    query: Any
    body: Any
    key: str
    digest: str
    accept: str = JSON

    def once(self, response: object = None) -> Once | None:
        """Return the Idempotency-Key with the description of the response to save; None without a key."""
        return Once(self.caller.token_id, self.key, self.digest, response) if self.key else None


class Api:
    """The parts of the service that API calls use, and what several calls do with them."""

    def __init__(
        self,
        control: Control,
        store: Store,
        clock: Clock,
        *,
        advance: Callable[[float], object],
        new_id: Callable[[], str],
        random: Callable[[], bytes],
        catch_up: Callable[[], None] = lambda: None,
        hook_sender: HookSender | None = None,
        host_executor: str = "",
    ) -> None:
        """`advance` moves the clock, and everything that becomes due happens at its own time.

        `catch_up` returns when this node knows everything that other nodes have saved. `host_executor` is the name of the
        executor of hosts.
        """
        self.catch_up = catch_up
        self._hook_sender = hook_sender
        self._host_executor = host_executor
        self.control = control
        self.store = store
        self.snapshots = SnapshotCache(store)
        self.clock = clock
        self.advance = advance
        self.new_id = new_id
        self.random = random

    @property
    def hook_sender(self) -> HookSender:
        if self._hook_sender is None:
            raise Refused("this service sends no messages to hooks")
        return self._hook_sender

    def event(self, caller: Identity, event_id: str) -> Event:
        """Return the event if the caller may see it."""
        event, _ = self.control.event(event_id)
        if not caller.sees(event.scope):
            raise NotFound(f"there is no event {event_id}")
        return event

    def event_bodies(self, caller: Identity, events: Sequence[Event]) -> list[bodies.EventOut]:
        snapshot = with_target_hosts(self.store, self.snapshots.around(events=events))
        known = [event.id for event in events if event.id in snapshot.events]
        builder = views.EventBodies(snapshot, known, within=caller.within, now=self.clock.now())
        return [builder.event(snapshot.events[event_id]) for event_id in known]

    def event_body(self, caller: Identity, event_id: str) -> bodies.EventOut:
        """Return one event with its whole timeline."""
        event, order = self.control.event(event_id)
        snapshot = with_target_hosts(self.store, self.snapshots.around(events=[event]))
        if event_id not in snapshot.events:
            raise NotFound(f"there is no event {event_id}")
        entries = self.store.audit(AuditQuery(event_id=event_id, limit=MAX_TIMELINE))
        if len(entries) == MAX_TIMELINE:  # a long timeline still shows how it began
            first = self.store.audit(AuditQuery(event_id=event_id, after=0, limit=MAX_TIMELINE_START))
            entries += [entry for entry in reversed(first) if entry.id < entries[-1].id]
        timeline = views.long_timeline(entries, order, self.store.first_seen(event_id))
        builder = views.EventBodies(snapshot, [event_id], within=caller.within, now=self.clock.now())
        return builder.event(snapshot.events[event_id], timeline)

    def maintenance_body(self, caller: Identity, maintenance_id: str, part: slice = WHOLE) -> bodies.MaintenanceOut:
        maintenance = self.store.maintenance(maintenance_id)
        if maintenance is not None and maintenance.host_mode is not None and maintenance.ended is None:
            orders = self.store.snapshot(
                Focus(maintenances=(maintenance_id,), whole_maintenances=False, open_events=False)
            ).orders
            hosts = tuple(order.host for order in orders.values() if order.host)
            snapshot = self.store.snapshot(Focus(maintenances=(maintenance_id,), hosts=hosts))
            snapshot = with_target_hosts(self.store, snapshot)
        else:
            snapshot = self.snapshots.around(maintenances=[maintenance_id])
        body = views.maintenance_out(snapshot, maintenance_id, within=caller.within, now=self.clock.now(), part=part)
        for host in body.hosts:
            host.executor = self._host_executor
        return body

    def targets(self, body: bodies.TargetsIn) -> Targets:
        return Targets(
            machines=tuple(self.machine_key(name) for name in body.machines),
            scope=body.scope,
            update_domain=body.update_domain,
            scopes=tuple(dict.fromkeys(body.scopes)),
            hosts=tuple(dict.fromkeys(body.hosts)),
            labels=body.labels.strip(),
            names=tuple(dict.fromkeys(body.names)),
            everything=body.everything,
            host_labels=body.host_labels.strip(),
        )

    def machine_key(self, text: str) -> tuple[str, str]:
        """Read `scope/name`, or a name that only one machine has."""
        scope, slash, name = text.partition("/")
        if slash:
            return scope, name
        machines = self.store.machines_named(text)
        if not machines:
            raise NotFound(f"there is no machine {text}: check its name in the fleet")
        if len(machines) > 1:
            choices = " or ".join(f"{m.scope}/{m.name}" for m in machines[:3])
            raise Invalid(f"several machines are called {text}: write {choices}")
        return machines[0].key


# -- pages


class Paged(RequestBody):
    """One page of a list."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=500)] = DEFAULT_LIMIT
    cursor: str = ""


def search_text(q: str) -> str:
    """Return the text to search for. It has no line feed, so it is never found across two lines of what is searched."""
    return folded(q.strip())


class Searched(Paged):
    """One page of the items that contain the text `q`; capitals do not matter."""

    q: Annotated[str, msgspec.Meta(max_length=MAX_SEARCH_CHARS)] = ""

    @property
    def text(self) -> str:
        return search_text(self.q)


class DryRun(RequestBody):
    """With dry_run nothing is saved."""

    dry_run: bool = False


Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


def page_of(items: Iterable[Any], next_cursor: str | None) -> Result:
    return Result(200, bodies.Page(items=list(items), next_cursor=next_cursor))


def cursor_of(*parts: object) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(parts)).decode().rstrip("=")


def read_cursor(cursor: str, shape: Any) -> Any:
    """Return what the cursor holds; None for the first page."""
    if not cursor:
        return None
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        return msgspec.json.decode(raw, type=shape)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise Invalid(f"cursor: {cursor!r} is not one of ours: use next_cursor of the page before, unchanged") from None


def searched(
    read: Callable[[Any, int], list[tuple[Any, T]]], text_of: Callable[[T], str], *, text: str, start: Any, limit: int
) -> tuple[list[T], Any]:
    """Return a page of the items that contain the text, and the key to continue after, None at the end.

    `read` returns the next items after a key, each with its key. One request reads at most MAX_SEARCHED items, in the order of
    the list, so its cost does not grow with the history. If the page is not full by then, the key continues the search.
    """
    found: list[tuple[Any, T]] = []
    after = start
    for _ in range(MAX_SEARCHED // SEARCHED_AT_ONCE if text else 1):
        most = SEARCHED_AT_ONCE if text else limit + 1
        rows = read(after, most)
        found += [(key, item) for key, item in rows if not text or text in folded(text_of(item))]
        if len(found) > limit:
            return [item for _, item in found[:limit]], found[limit - 1][0]
        if len(rows) < most:
            return [item for _, item in found], None
        after = rows[-1][0]
    return [item for _, item in found], after


def split_page(rows: list[Any], limit: int) -> tuple[list[Any], Any]:
    """Return the page, and its last row if there is another page."""
    return rows[:limit], rows[limit - 1] if len(rows) > limit else None


def in_utc(moment: M, key: str) -> M:
    if moment is None:
        return moment
    if moment.tzinfo is None:
        raise Invalid(f"{key}: {moment.isoformat()} has no zone: write it in UTC, like 2030-01-01T12:00:00Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise Invalid(f"{key}: {moment.isoformat()} is no time in UTC: choose a time before the year 9000") from None


def request_digest(method: str, target: str, body: bytes) -> str:
    """Return what tells whether two requests are the same."""
    return hashlib.sha256(b"\n".join((method.encode(), target.encode(), body))).hexdigest()
