"""Wait for changes: from the server's stream, or from the audit log page by page while there is no stream.

One thread reads and one queue holds the changes that it read. After a lost connection the thread continues after the last
change that it has. A caller that waits is also woken from time to time, so that it can read for itself and does not depend on
the stream alone.
"""

import json
import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType

from forewarn.cli.api import Json
from forewarn.cli.client import Client, Message
from forewarn.core.errors import ForewarnError

POLL_S = 1.0
# How long to wait at most for a change while the stream works.
STREAM_POLL_S = 5.0
MAX_QUEUED = 10_000
PAGE = 500
MAX_PAGES = 200


class Changes:
    """Every change from now on, oldest first; a context manager."""

    def __init__(self, api: Client, *, poll_s: float = POLL_S) -> None:
        self._api = api
        self._poll_s = poll_s
        self._queue: queue.Queue[Json] = queue.Queue(MAX_QUEUED)
        self._ended = threading.Event()
        self.streaming = False
        self._last_id = 0

    def __enter__(self) -> "Changes":
        newest = self._api.get("/v1/audit", {"limit": 1})["items"]
        self._last_id = newest[0]["id"] if newest else 0
        threading.Thread(target=self._run, name="changes", daemon=True).start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._ended.set()

    def next(self, seconds: float) -> Json | None:
        """Return the next change, or None if there is none in time."""
        try:
            return self._queue.get(timeout=seconds) if seconds > 0 else self._queue.get_nowait()
        except queue.Empty:
            return None

    def wait_for(self, concerns: Callable[[Json], bool], seconds: float | None = None) -> None:
        """Return at a change for which `concerns` is true, or when it is time for the caller to read again.

        Take all queued changes: many changes at once are one reason to read again.
        """
        poll_s = STREAM_POLL_S if self.streaming else self._poll_s
        deadline_s = time.monotonic() + (poll_s if seconds is None else min(poll_s, max(seconds, 0.0)))
        concerned = False
        while not concerned:
            change = self.next(max(deadline_s - time.monotonic(), 0.0))
            if change is None:
                return
            concerned = concerns(change)
            for _ in range(self._queue.qsize()):
                change = self.next(0.0)
                concerned = (change is not None and concerns(change)) or concerned

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                for message in self._api.stream(str(self._last_id)):
                    self.streaming = True
                    if message is not None:
                        self._take(message)
                    if self._ended.is_set():
                        return
            except ForewarnError:
                pass
            finally:
                self.streaming = False
            self._read_audit()
            self._ended.wait(self._poll_s)

    def _take(self, message: Message) -> None:
        if message.event == "change":
            self._put(json.loads(message.data))

    def _read_audit(self) -> None:
        """Queue the changes that the stream did not deliver. If the server does not answer, `_run` tries again later."""
        missed: list[Json] = []
        cursor: str | None = None
        try:
            for _ in range(MAX_PAGES):
                page = self._api.get("/v1/audit", {"limit": PAGE, "cursor": cursor})
                new = [change for change in page["items"] if change["id"] > self._last_id]
                missed += new
                cursor = page["next_cursor"]
                if cursor is None or len(new) < len(page["items"]):
                    break
        except ForewarnError:
            return
        for change in reversed(missed):
            self._put(change)

    def _put(self, change: Json) -> None:
        self._last_id = max(self._last_id, int(change["id"]))
        while not self._ended.is_set():
            try:
                self._queue.put(change, timeout=self._poll_s)
                return
            except queue.Full:
                continue
