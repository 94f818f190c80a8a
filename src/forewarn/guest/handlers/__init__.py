"""The handlers: what a step can do. A handler is one module with these functions; `spec` is what its `parse` returned.

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

from types import ModuleType
from typing import Mapping

from forewarn.guest.handlers import (
    checkpoint,
    command,
    haproxy,
    http,
    log,
    nginx,
    notify,
    patroni,
    process,
    redis,
    systemd,
    windows_service,
)

HANDLERS: Mapping[str, ModuleType] = {
    "command": command,
    "process": process,
    "systemd": systemd,
    "windows_service": windows_service,
    "haproxy": haproxy,
    "nginx": nginx,
    "http": http,
    "patroni": patroni,
    "redis": redis,
    "checkpoint": checkpoint,
    "log": log,
    "notify": notify,
}
