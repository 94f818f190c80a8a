"""What a step can be. A handler is one small module with these functions; `spec` is what its `parse` made of the TOML table.

    parse(table, where)     the spec, or ConfigError
    check(spec)             what is wrong on this machine, as sentences; no effect
    prepare(spec, run)      do it, or raise StepFailed
    verify(spec, run)       True: it is prepared; False: it is not; None: nobody can tell
    recover(spec, run)      undo it, or raise StepFailed; harmless when there is nothing to undo
    UNDOES_AGAIN = True     where undoing has several parts: an interrupted one is repeated, and finds what is left to do

`verify` is also asked right before approving (`run.phase` is "approve" then), and must be quick. What is good for one event only
is in `plan.EACH_EVENT`: it is prepared for each.

A handler that is told of changes (`plan.TELLERS`) has `tell(spec, run)` as well and does nothing in the others.
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
)

HANDLERS: Mapping[str, ModuleType] = {
    "command": command,
    "process": process,
    "systemd": systemd,
    "haproxy": haproxy,
    "nginx": nginx,
    "http": http,
    "patroni": patroni,
    "redis": redis,
    "checkpoint": checkpoint,
    "log": log,
    "notify": notify,
}
