"""HAProxy's runtime API: how a proxy sees the servers of a backend, and telling it to see one otherwise.

What a `set server` command answers is not believed: an empty line means "done", and whether it was is asked for.
"""

from __future__ import annotations

import csv
from typing import Dict, List, Mapping, NamedTuple

from forewarn.guest.errors import StepFailed
from forewarn.guest.sockets import Deadline, ask

# Of srv_admin_state: forced by command; the others are inherited, configured or the resolver's.
_FORCED_MAINT, _FORCED_DRAIN = 0x01, 0x08
# What was configured (`disabled`) is a memory only, once it was set otherwise.
_REMEMBERED = 0x04
# Of srv_op_state: starting (slowly) and running.
_UP = ("1", "2")
_MAX_TOLD = 120


class Seen(NamedTuple):
    """A server as one proxy has it."""

    # ready, drain or maint.
    admin: str
    # It gets requests: up, neither draining nor in maintenance, with a weight.
    usable: bool
    # Those it serves and those that wait for it.
    sessions: int


class Place(NamedTuple):
    """One server at one proxy."""

    proxy: str
    backend: str
    name: str

    def __str__(self) -> str:
        return f"{self.backend}/{self.name} at {self.proxy}"

    def look(self, deadline: Deadline) -> Seen:
        found = servers(self.proxy, self.backend, deadline)
        if self.name not in found:
            there = ", ".join(sorted(found))[:_MAX_TOLD] or "none"
            raise StepFailed(f"{self}: there is no such server; the backend has {there}")
        return found[self.name]

    def change(self, state: str, deadline: Deadline) -> None:
        """Tell the proxy, and see that it is so."""
        said = asked(self.proxy, f"set server {self.backend}/{self.name} state {state}", deadline)
        if self.look(deadline).admin != state:
            raise StepFailed(f"{self} was told {state} and is not" + (f": {said[:_MAX_TOLD]}" if said else ""))


def servers(proxy: str, backend: str, deadline: Deadline) -> Dict[str, Seen]:
    """Every server of the backend by name; StepFailed when the proxy does not say."""
    states = _table(proxy, backend, asked(proxy, f"show servers state {backend}", deadline), "srv_admin_state", " ")
    loads = _table(proxy, backend, asked(proxy, f"show stat {backend} 4 -1", deadline), "scur", ",")
    sessions = {row["svname"]: _number(row["scur"]) + _number(row["qcur"]) for row in loads}
    return {row["srv_name"]: _seen(row, sessions.get(row["srv_name"], 0)) for row in states}


def asked(proxy: str, line: str, deadline: Deadline) -> str:
    try:
        return ask(proxy, line, deadline).strip()
    except OSError as error:
        raise StepFailed(
            f"the proxy {proxy} does not answer: {error.strerror or error or 'no answer in time'}"
        ) from None


def _seen(row: Mapping[str, str], sessions: int) -> Seen:
    flags = _number(row["srv_admin_state"])
    admin = "maint" if flags & _FORCED_MAINT else "drain" if flags & _FORCED_DRAIN else "ready"
    usable = not flags & ~_REMEMBERED and row["srv_op_state"] in _UP and _number(row["srv_uweight"]) > 0
    return Seen(admin, usable, sessions)


def _table(proxy: str, backend: str, answer: str, column: str, separator: str) -> List[Dict[str, str]]:
    """The rows below the line that names the columns, which begins with `# `."""
    lines = answer.splitlines()
    titles = next((n for n, line in enumerate(lines) if line.startswith("# ")), None)
    rows = [] if titles is None else list(csv.reader([lines[titles][2:], *lines[titles + 1 :]], delimiter=separator))
    if not rows or column not in rows[0]:
        said = lines[0][:_MAX_TOLD] if lines else "nothing"
        raise StepFailed(f"the proxy {proxy} says of the backend {backend}: {said}")
    return [dict(zip(rows[0], row)) for row in rows[1:] if len(row) >= len(rows[0]) - 1]


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
