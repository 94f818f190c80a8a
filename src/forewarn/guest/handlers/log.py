"""`log`: writes each event and change as one JSON line to a file or to the system log."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, List, Mapping, NamedTuple

from forewarn.guest.config_values import check_keys, text
from forewarn.guest.errors import ConfigError, StepFailed
from forewarn.guest.safe_files import open_regular
from forewarn.guest.steps import Run
from forewarn.guest.system import system


class Spec(NamedTuple):
    file: str = ""
    syslog: str = ""


def parse(table: Mapping[str, Any], where: str) -> Spec:
    check_keys(table, Spec._fields, where)
    spec = Spec(**{key: text(value, f"{where}.{key}") for key, value in table.items()})
    if bool(spec.file) == bool(spec.syslog):
        raise ConfigError(f'{where}: write either `file = "/var/log/…"` or `syslog = "daemon"`')
    return spec


def check(spec: Spec) -> List[str]:
    if spec.file:
        folder = Path(spec.file).parent
        return [] if os.access(folder, os.W_OK) else [f"{folder} cannot be written to"]
    return (
        []
        if system.syslog_facility(spec.syslog) is not None
        else [f"this machine has no syslog, or no facility {spec.syslog!r}"]
    )


def notify(spec: Spec, run: Run) -> None:
    line = json.dumps({"change": run.change, "event": run.event}, separators=(",", ":"))
    facility = system.syslog_facility(spec.syslog)
    if spec.file:
        try:
            _append(spec.file, line.encode() + b"\n")
        except OSError as error:
            raise StepFailed(f"{spec.file} cannot be written: {error.strerror}") from None
    elif facility is not None:
        system.write_syslog(facility, line)


def _append(path: str, line: bytes) -> None:
    """Append a line; refuse a link, a pipe, and a file that has a second name elsewhere."""
    file = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        if os.fstat(file).st_nlink > 1:
            raise OSError(errno.EMLINK, "it has another name: remove that hard link")
        while line:
            line = line[os.write(file, line) :]
    finally:
        os.close(file)


def do_nothing(*_: object) -> None:
    """Stand in for a function that a handler without preparation does not need."""


prepare = verify = recover = do_nothing
