"""What every call works with: what is asked and by whom, what is answered, pages, and things as far as the caller sees them."""

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from forewarn.core.change import Snapshot
from forewarn.core.errors import Invalid, NotFound
from forewarn.core.model import Event, MaintenanceRequest, Targets
from forewarn.operator.api import bodies, views
from forewarn.operator.api.access import Asking
from forewarn.operator.api.bodies import Said
from forewarn.operator.api.snapshot_cache import Looks
from forewarn.service.clock import Clock
from forewarn.service.control import Control, Once
from forewarn.store import (
    AuditQuery,
    Store,
)

MAX_TIMELINE = 500
MAX_BEGINNING = 50
WHOLE = slice(None)
JSON, TOML = "application/json", "application/toml"
# What every answer of ours to an operator carries.
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, already known to be allowed to its caller's role, and read."""

    who: Asking
    path: dict[str, str]
    query: Any
    body: Any
    key: str
    digest: str
    accept: str = JSON

    @property
    def once(self) -> Once | None:
        return Once(self.who.token_id, self.key, self.digest) if self.key else None


class Api:
    """What the calls work with."""

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
    ) -> None:
        """`advance` moves the clock, doing everything that becomes due at its own time; `catch_up` returns when this node
        knows all that others have saved."""
        self.catch_up = catch_up
        self.control = control
        self.store = store
        self.looks = Looks(control, store)
        self.clock = clock
        self.advance = advance
        self.new_id = new_id
        self.random = random

    # -- looking things up, as far as the caller may see them

    def event(self, ask: Ask) -> Event:
        event, _ = self.control.event(ask.path["id"])
        if not ask.who.sees(event.scope):
            raise NotFound(f"there is no event {ask.path['id']}")
        return event

    def told_events(self, ask: Ask, events: Sequence[Event]) -> list[bodies.EventOut]:
        snapshot = self.looks.told(events=events)
        waiting = self.control.waiting(snapshot, [e.id for e in events if e.id in snapshot.events])
        telling = views.Telling(snapshot, waiting, ask.who.within)
        return [telling.event(snapshot.events[e.id]) for e in events if e.id in snapshot.events]

    def told_event(self, ask: Ask, event_id: str) -> bodies.EventOut:
        event, order = self.control.event(event_id)
        snapshot = self.looks.told(events=[event])
        if event_id not in snapshot.events:
            raise NotFound(f"there is no event {event_id}")
        entries = self.store.audit(AuditQuery(event_id=event_id, limit=MAX_TIMELINE))
        if len(entries) == MAX_TIMELINE:  # how it began is told in any case
            first = self.store.audit(AuditQuery(event_id=event_id, after=0, limit=MAX_BEGINNING))
            entries += [entry for entry in reversed(first) if entry.id < entries[-1].id]
        timeline = views.long_timeline(entries, order, self.store.first_seen(event_id))
        waiting = self.control.waiting(snapshot, [event_id])
        return views.Telling(snapshot, waiting, ask.who.within).event(snapshot.events[event_id], timeline)

    def told_maintenance(
        self, ask: Ask, maintenance_id: str, snapshot: Snapshot | None = None, *, part: slice = WHOLE
    ) -> bodies.MaintenanceOut:
        """`part` of its events, in their order."""
        snapshot = snapshot or self.looks.told(maintenances=[maintenance_id])
        maintenance = snapshot.maintenances.get(maintenance_id)
        events = [e for e in snapshot.events.values() if e.maintenance_id == maintenance_id and ask.who.sees(e.scope)]
        if maintenance is None or not events:
            raise NotFound(f"there is no maintenance {maintenance_id}")
        events.sort(key=lambda event: event.position)
        waiting = self.control.waiting(snapshot, [e.id for e in events[part]])
        return views.Telling(snapshot, waiting, ask.who.within).maintenance(maintenance, events, part)

    def told_plan(self, ask: Ask, request: MaintenanceRequest) -> bodies.MaintenanceOut:
        """What would be done, and what of others is in its way now; nothing is saved."""
        maintenance_id, snapshot = self.control.plan(request, ask.who.actor, look=self.looks.at)
        return views.as_plan(self.told_maintenance(ask, maintenance_id, snapshot))

    def targets(self, said: bodies.TargetsIn) -> Targets:
        return Targets(
            machines=tuple(self.machine_key(name) for name in said.machines),
            scope=said.scope,
            update_domain=said.update_domain,
            hosts=tuple(said.hosts),
        )

    def machine_key(self, name: str) -> tuple[str, str]:
        """`scope/name`, or the name alone where only one machine has it."""
        scope, slash, rest = name.partition("/")
        if slash:
            return scope, rest
        found = self.store.machines_named(name)
        if not found:
            raise NotFound(f"there is no machine {name}: write it as scope/name")
        if len(found) > 1:
            those = " or ".join(f"{m.scope}/{m.name}" for m in found[:3])
            raise Invalid(f"several machines are called {name}: say which, {those}")
        return found[0].key


# -- pages


class Paged(Said):
    """One page of a list."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=500)] = 50
    cursor: str = ""


class DryRun(Said):
    """With dry_run nothing is saved."""

    dry_run: bool = False


Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


def told_page(items: Iterable[Any], next_cursor: str | None) -> Answer:
    return told_ok({"items": list(items), "next_cursor": next_cursor})


def cursor_of(*parts: object) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(parts)).decode().rstrip("=")


def said_cursor(cursor: str, shape: Any) -> Any:
    """What a cursor says; None for the first page."""
    if not cursor:
        return None
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        return msgspec.json.decode(raw, type=shape)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise Invalid(f"cursor: {cursor!r} is not one of ours: use next_cursor of the page before, unchanged") from None


def split_page(found: list[Any], limit: int) -> tuple[list[Any], Any]:
    """The page, and the last of it when there is another."""
    return found[:limit], found[limit - 1] if len(found) > limit else None


def told_ok(told: object, status: int = 200) -> Answer:
    return Answer(status, msgspec.json.encode(told))


def in_utc(moment: datetime | None, key: str) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise Invalid(f"{key}: {moment.isoformat()} has no zone: write it in UTC, like 2030-01-01T12:00:00Z")
    return moment.astimezone(UTC) if moment is not None else None


def request_digest(method: str, target: str, body: bytes) -> str:
    """What makes two requests the same."""
    return hashlib.sha256(b"\n".join((method.encode(), target.encode(), body))).hexdigest()
