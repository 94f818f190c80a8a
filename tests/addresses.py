"""Addresses for tests that close a listener and open it again."""

import os


def own_loopback_address() -> str:
    """A loopback address that this process alone uses: nobody else is given a port of it between a close and an open."""
    high, low = divmod(os.getpid() % (250 * 250), 250)
    return f"127.88.{high + 1}.{low + 1}"
