"""Every change as it happens: server-sent events read from the audit, so that whoever comes back misses nothing.

A bell of this process wakes the streams at once; what other processes saved is found within a second.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from forewarn.core.errors import Invalid, ServiceError, TooManyStreams
from forewarn.operator.api import views
from forewarn.operator.api.access import Identity
from forewarn.operator.api.context import HEADERS
from forewarn.store import AuditQuery, Store

MAX_STREAMS = 100
MAX_OF_ONE_TOKEN = 20
BATCH = 200
LOOK_EVERY_S = 1.0
WRITE_WITHIN_S = 60.0
KEEP_ALIVE_EVERY_S = 15.0


class Streams:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bells: dict[asyncio.Event, str] = {}

    def ring(self) -> None:
        """Something was saved; from any thread."""
        if self._loop is not None and self._bells:
            with suppress(RuntimeError):  # the listener has stopped: nobody is left to be told
                self._loop.call_soon_threadsafe(self._ring_all)

    def _ring_all(self) -> None:
        for bell in self._bells:
            bell.set()

    async def answer(self, request: Request, who: Identity, still_known: Callable[[], bool]) -> Response:
        last = request.headers.get("last-event-id", "")
        if last and not (last.isascii() and last.isdecimal() and len(last) < 19):
            raise Invalid(f"Last-Event-ID: {last[:40]!r} is not the id of an entry: use the last one you were sent")
        if request.query_params:
            raise Invalid("the stream takes no parameters: say where to begin with Last-Event-ID")
        lines, give_up = await self.open(who, int(last) if last else None, still_known)
        return Timely(lines, give_up)

    async def open(
        self, who: Identity, last: int | None, still_known: Callable[[], bool]
    ) -> tuple[AsyncIterator[bytes], Callable[[], None]]:
        """From after `last`, or from now on, for as long as whoever asked is still known; and how its place is given up."""
        if len(self._bells) >= MAX_STREAMS or list(self._bells.values()).count(who.token_id) >= MAX_OF_ONE_TOKEN:
            raise TooManyStreams(
                f"{MAX_STREAMS} streams are open, or {MAX_OF_ONE_TOKEN} with this token: close one, or ask again later"
            )
        self._loop = asyncio.get_running_loop()
        bell = asyncio.Event()
        self._bells[bell] = who.token_id
        try:
            if last is None:
                newest = await run_in_threadpool(self._store.audit, AuditQuery(limit=1))
                last = newest[0].id if newest else 0
        except BaseException:
            self._forget(bell)
            raise
        return self._lines(bell, who.within, last, still_known), lambda: self._forget(bell)

    def _forget(self, bell: asyncio.Event) -> None:
        self._bells.pop(bell, None)

    async def _lines(
        self, bell: asyncio.Event, within: tuple[str, ...] | None, last: int, still_known: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        silent_s = 0.0
        yield b": every change from here on\n\n"
        while True:
            bell.clear()
            try:
                if not await run_in_threadpool(still_known):
                    return
                query = AuditQuery(within=within, after=last, limit=BATCH)
                entries = await run_in_threadpool(self._store.audit, query)
            except ServiceError:
                entries = []  # the store is away: nothing changes meanwhile
            for entry in entries:
                last = entry.id
                data = msgspec.json.encode(views.audit_out(entry, within))
                yield b"id: %d\nevent: change\ndata: %b\n\n" % (last, data)
            silent_s = 0.0 if entries else silent_s + LOOK_EVERY_S
            if silent_s >= KEEP_ALIVE_EVERY_S:
                silent_s = 0.0
                yield b": keep-alive\n\n"
            if len(entries) < BATCH:
                with suppress(TimeoutError):
                    await asyncio.wait_for(bell.wait(), LOOK_EVERY_S)


class Timely(StreamingResponse):
    """A stream whose place is given up however it ends; a reader that does not read loses it."""

    def __init__(self, lines: AsyncIterator[bytes], give_up: Callable[[], None]) -> None:
        super().__init__(lines, media_type="text/event-stream", headers=HEADERS)
        self._give_up = give_up

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._give_up()

    async def stream_response(self, send: Send) -> None:
        async def timely(message: Message) -> None:
            async with asyncio.timeout(WRITE_WITHIN_S):
                await send(message)

        with suppress(TimeoutError):
            await super().stream_response(timely)
