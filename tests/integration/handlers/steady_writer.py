"""A client that writes without pause and records what was acknowledged and how long writes failed."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from typing import Protocol

PAUSE_S = 0.01


class Connection(Protocol):
    """A connection that writes a number, or raises."""

    def write(self, number: int) -> None: ...

    def close(self) -> None: ...


class Writer:
    """Writes 1, 2, 3, …, over a new connection after each failure."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._over = threading.Event()
        self._acknowledged: list[tuple[int, float]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        numbers, way = count(1), None
        while not self._over.is_set():
            try:
                way = way or self._connect()
                number = next(numbers)
                way.write(number)
                self._acknowledged.append((number, time.monotonic()))
            except Exception:  # whatever it is, it was not acknowledged
                if way is not None:
                    way.close()
                way = None
            self._over.wait(PAUSE_S)
        if way is not None:
            way.close()

    @property
    def acknowledged(self) -> list[int]:
        return [number for number, _ in self._acknowledged]

    @property
    def last_s(self) -> float:
        return self._acknowledged[-1][1] if self._acknowledged else 0.0

    def longest_gap_s(self, since_s: float = 0.0) -> float:
        """Return the longest time between two writes of which the second came after this moment."""
        moments = [at_s for _, at_s in self._acknowledged]
        return max((b - a for a, b in pairwise(moments) if b >= since_s), default=0.0)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(30)


@contextmanager
def writing(connect: Callable[[], Connection]) -> Iterator[Writer]:
    """Run a writer, and yield it once it has written."""
    writer = Writer(connect)
    writer.start()
    try:
        while not writer.last_s:
            time.sleep(PAUSE_S)
        yield writer
    finally:
        writer.stop()
