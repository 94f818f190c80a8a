"""The store of the emulator and of simulations: dictionaries under one lock. It ends with the process."""

from forewarn.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
