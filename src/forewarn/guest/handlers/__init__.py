"""The handlers: what a step can do. A handler is one module with these functions.

`spec` is what its `parse` returned. `run` (`steps.Run`) has the event, the phase and the time left, and runs programs.

    parse(table, where)     return the spec of the TOML table, or raise ConfigError
    check(spec)             return what is wrong on this machine, as sentences; change nothing
    prepare(spec, run)      do it, or raise StepFailed
    verify(spec, run)       return True if it is prepared, False if not, None if that cannot be known
    recover(spec, run)      undo it, or raise StepFailed; harmless when there is nothing to undo
    PROGRAMS                the names of the fields of `spec` that are commands, where there are any
    UNDOES_AGAIN = True     an interrupted recover runs again and does what is left to do

The agent also calls `verify` right before it approves (`run.phase` is "approve" then), so it must be quick. A handler in
`plan.EACH_EVENT` is prepared for each event.

A handler that reports changes (`plan.NOTIFIERS`) has `notify(spec, run)` as well; its other functions do nothing.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Iterator, Mapping

NAMES = (
    "command", "process", "systemd", "windows_service", "haproxy", "nginx", "http", "patroni", "redis", "checkpoint", "log",
    "notify",
)  # fmt: skip


class _Handlers(Mapping[str, ModuleType]):
    """The modules by their names. Reading one imports it, so the agent holds only the handlers that its plan names."""

    def __getitem__(self, name: str) -> ModuleType:
        if name not in NAMES:
            raise KeyError(name)
        return import_module(f"{__name__}.{name}")

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


HANDLERS: Mapping[str, ModuleType] = _Handlers()
