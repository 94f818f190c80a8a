"""HAProxy's runtime API: how a proxy sees the servers of a backend, and telling it to see one otherwise.

What a `set server` command answers is not believed: an empty line means "done", and whether it was is asked for.
"""

from __future__ import annotations

import csv
from typing import Dict, List, Mapping, NamedTuple

from forewarn.guest.errors import StepFailed, Unanswered
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
    # Somebody gave it the weight 0: it is to get none.
    unwanted: bool


class Place(NamedTuple):
    """One server at one proxy."""

    proxy: str
    backend: str
    name: str

    def __str__(self) -> str:
        return f"{self.backend}/{self.name} at {self.proxy}"

    def look(self, deadline: Deadline) -> Seen:
        return self.among(servers(self.proxy, self.backend, deadline))

    def among(self, found: Mapping[str, Seen]) -> Seen:
        if self.name not in found:
            there = ", ".join(sorted(found))[:_MAX_TOLD] or "none"
            raise StepFailed(f"{self}: there is no such server; the backend has {there}")
        return found[self.name]

    def change(self, state: str, deadline: Deadline) -> Seen:
        """Tell the proxy, and see that it is so."""
        said = asked(self.proxy, f"set server {self.backend}/{self.name} state {state}", deadline)
        seen = self.look(deadline)
        if seen.admin != state:
            raise StepFailed(f"{self} was told {state} and is not" + (f": {said[:_MAX_TOLD]}" if said else ""))
        return seen


def servers(proxy: str, backend: str, deadline: Deadline) -> Dict[str, Seen]:
    """Every server of the backend by name; StepFailed when the proxy does not say, also of one of them."""
    states, loads = (
        asked(proxy, f"show {what}", deadline) for what in (f"servers state {backend}", f"stat {backend} 4 -1")
    )
    try:
        rows = _table(proxy, backend, states, "srv_admin_state", " ")
        stats = _table(proxy, backend, loads, "scur", ",")
        sessions = {row["svname"]: int(row["scur"]) + int(row["qcur"]) for row in stats}
        return {row["srv_name"]: _seen(row, sessions[row["srv_name"]]) for row in rows}
    except (csv.Error, KeyError, ValueError):
        raise Unanswered(f"the proxy {proxy} does not answer sensibly") from None


def asked(proxy: str, line: str, deadline: Deadline) -> str:
    try:
        return ask(proxy, line, deadline).strip()
    except OSError as error:
        raise Unanswered(
            f"the proxy {proxy} does not answer: {error.strerror or error or 'no answer in time'}"
        ) from None


def _seen(row: Mapping[str, str], sessions: int) -> Seen:
    flags = int(row["srv_admin_state"])
    admin = "maint" if flags & _FORCED_MAINT else "drain" if flags & _FORCED_DRAIN else "ready"
    unwanted = int(row["srv_uweight"]) == 0
    usable = not flags & ~_REMEMBERED and row["srv_op_state"] in _UP and not unwanted
    return Seen(admin, usable, sessions, unwanted)


def _table(proxy: str, backend: str, answer: str, column: str, separator: str) -> List[Dict[str, str]]:
    """The rows below the line that names the columns, which begins with `# `."""
    lines = answer.splitlines()
    titles = next((n for n, line in enumerate(lines) if line.startswith("# ")), None)
    rows = [] if titles is None else list(csv.reader([lines[titles][2:], *lines[titles + 1 :]], delimiter=separator))
    if not rows or column not in rows[0]:
        if not lines:
            raise Unanswered(f"the proxy {proxy} says nothing of the backend {backend}")
        raise StepFailed(f"the proxy {proxy} says of the backend {backend}: {lines[0][:_MAX_TOLD]}")
    return [dict(zip(rows[0], row)) for row in rows[1:] if len(row) >= len(rows[0]) - 1]
