"""Every change as it happens: server-sent events read from the audit log, so that a client that reconnects misses nothing.

A change of this process wakes the streams at once; a change of another process is found within a second.
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
MAX_STREAMS_PER_TOKEN = 20
BATCH = 200
READ_EVERY_S = 1.0
WRITE_WITHIN_S = 60.0
KEEP_ALIVE_EVERY_S = 15.0


class Streams:
    """The open streams of this process, each with the event that wakes it and the token that opened it."""

    def __init__(self, store: Store, *, max_streams: int = MAX_STREAMS) -> None:
        self._store = store
        self._max_streams = max_streams
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[asyncio.Event, str] = {}

    def notify(self) -> None:
        """Wake every stream after a change was saved. May be called from any thread."""
        if self._loop is not None and self._open:
            with suppress(RuntimeError):  # the listener has stopped: no stream is left
                self._loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        for wake in self._open:
            wake.set()

    async def respond(self, request: Request, caller: Identity, still_known: Callable[[], bool]) -> Response:
        last = request.headers.get("last-event-id", "")
        if last and not (last.isascii() and last.isdecimal() and len(last) < 19):
            raise Invalid(f"Last-Event-ID: {last[:40]!r} is not the id of an entry: use the last id you received")
        if request.query_params:
            raise Invalid("the stream takes no parameters: use Last-Event-ID to say where to begin")
        lines, close = await self.open(caller, int(last) if last else None, still_known)
        return StreamResponse(lines, close)

    async def open(
        self, caller: Identity, last: int | None, still_known: Callable[[], bool]
    ) -> tuple[AsyncIterator[bytes], Callable[[], None]]:
        """Return the lines after entry `last`, or from now on, while the caller is still known; and how to close the stream."""
        opened = list(self._open.values())
        if len(opened) >= self._max_streams or opened.count(caller.token_id) >= MAX_STREAMS_PER_TOKEN:
            raise TooManyStreams(
                f"{self._max_streams} streams are open, or {MAX_STREAMS_PER_TOKEN} with this token: close one, or try later"
            )
        self._loop = asyncio.get_running_loop()
        wake = asyncio.Event()
        self._open[wake] = caller.token_id
        try:
            if last is None:
                newest = await run_in_threadpool(self._store.audit, AuditQuery(limit=1))
                last = newest[0].id if newest else 0
        except BaseException:
            self._close(wake)
            raise
        return self._lines(wake, caller.within, last, still_known), lambda: self._close(wake)

    def _close(self, wake: asyncio.Event) -> None:
        self._open.pop(wake, None)

    async def _lines(
        self, wake: asyncio.Event, within: tuple[str, ...] | None, last: int, still_known: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        silent_s = 0.0
        yield b": every change from here on\n\n"
        while True:
            wake.clear()
            try:
                query = AuditQuery(within=within, after=last, limit=BATCH)
                entries = await run_in_threadpool(self._store.audit, query)
                # After the entries are read: none of them is newer than the token's revocation.
                if not await run_in_threadpool(still_known):
                    return
            except ServiceError:
                entries = []  # while the store is away nothing changes
            for entry in entries:
                last = entry.id
                data = msgspec.json.encode(views.audit_out(entry, within))
                yield b"id: %d\nevent: change\ndata: %b\n\n" % (last, data)
            silent_s = 0.0 if entries else silent_s + READ_EVERY_S
            if silent_s >= KEEP_ALIVE_EVERY_S:
                silent_s = 0.0
                yield b": keep-alive\n\n"
            if len(entries) < BATCH:
                with suppress(TimeoutError):
                    await asyncio.wait_for(wake.wait(), READ_EVERY_S)


class StreamResponse(StreamingResponse):
    """A stream that is closed however its response ends, and that ends when its client does not read."""

    def __init__(self, lines: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(lines, media_type="text/event-stream", headers=HEADERS)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(WRITE_WITHIN_S):
                await send(message)

        with suppress(TimeoutError):
            await super().stream_response(send_in_time)
