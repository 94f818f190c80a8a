"""Checks after every test of the test kit."""

import threading
from collections.abc import Iterator

import pytest

from tests.support.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def no_recorder_remains() -> Iterator[None]:
    """Wait for the threads of recorders, which end when their emulator has ended."""
    yield
    for thread in threading.enumerate():
        if thread.name == "recorder":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
