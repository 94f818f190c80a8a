"""Every change as it happens: server-sent events read from the audit, so that whoever comes back misses nothing.

A bell of this process wakes the streams at once; what other processes saved is found within a second.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
from starlette.concurrency import run_in_threadpool

from forewarn.core.errors import ServiceError, TooManyStreams
from forewarn.store import AuditQuery, Store
from forewarn.web.api import views

MAX_STREAMS = 100
BATCH = 200
LOOK_EVERY_S = 1.0
KEEP_ALIVE_EVERY_S = 15.0


class Streams:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bells: set[asyncio.Event] = set()

    def ring(self) -> None:
        """Something was saved; from any thread."""
        if self._loop is not None and self._bells:
            with suppress(RuntimeError):  # the listener has stopped: nobody is left to be told
                self._loop.call_soon_threadsafe(self._ring_all)

    def _ring_all(self) -> None:
        for bell in self._bells:
            bell.set()

    async def open(self, within: tuple[str, ...] | None, last: int | None) -> AsyncIterator[bytes]:
        """From after `last`, or from now on."""
        if len(self._bells) >= MAX_STREAMS:
            raise TooManyStreams(f"{MAX_STREAMS} streams are open already: close one, or ask again later")
        self._loop = asyncio.get_running_loop()
        if last is None:
            newest = await run_in_threadpool(self._store.audit, AuditQuery(limit=1))
            last = newest[0].id if newest else 0
        return self._lines(within, last)

    async def _lines(self, within: tuple[str, ...] | None, last: int) -> AsyncIterator[bytes]:
        bell = asyncio.Event()
        self._bells.add(bell)
        silent_s = 0.0
        try:
            yield b": every change from here on\n\n"
            while True:
                bell.clear()
                try:
                    query = AuditQuery(within=within, after=last, limit=BATCH)
                    entries = await run_in_threadpool(self._store.audit, query)
                except ServiceError:
                    entries = []  # the store is away: nothing changes meanwhile
                for entry in entries:
                    last = entry.id
                    data = msgspec.json.encode(views.audit_out(entry))
                    yield b"id: %d\nevent: change\ndata: %b\n\n" % (last, data)
                silent_s = 0.0 if entries else silent_s + LOOK_EVERY_S
                if silent_s >= KEEP_ALIVE_EVERY_S:
                    silent_s = 0.0
                    yield b": keep-alive\n\n"
                if len(entries) < BATCH:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(bell.wait(), LOOK_EVERY_S)
        finally:
            self._bells.discard(bell)
