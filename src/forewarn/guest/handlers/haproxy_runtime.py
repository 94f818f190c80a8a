"""HAProxy's runtime API: read how a proxy sees the servers of a backend, and change the state of one.

The answer to a `set server` command proves nothing: the state is read again to confirm the change.
"""

from __future__ import annotations

import csv
import socket
from typing import Dict, List, Mapping, NamedTuple

from forewarn.guest.errors import NoAnswerInTime, StepFailed, Unanswered
from forewarn.guest.sockets import Deadline, ask

# Flags of srv_admin_state that a command sets; the others are inherited, configured or set by the resolver.
_FORCED_MAINT, _FORCED_DRAIN = 0x01, 0x08
# Only records that the configuration contains `disabled`; a later command overrides it.
_REMEMBERED = 0x04
# Values of srv_op_state: starting (slowly) and running.
_UP = ("1", "2")
_MAX_QUOTED = 120


class ServerState(NamedTuple):
    """The state of a server at one proxy."""

    # ready, drain or maint.
    admin: str
    # It gets requests: it is up, neither draining nor in maintenance, and has a weight.
    usable: bool
    # The sessions it serves and those that wait for it.
    sessions: int
    # Its weight was set to 0: it is meant to get no requests.
    zero_weight: bool


class PoolServer(NamedTuple):
    """One server at one proxy."""

    proxy: str
    backend: str
    name: str

    def __str__(self) -> str:
        return f"{self.backend}/{self.name} at {self.proxy}"

    def read_state(self, deadline: Deadline) -> ServerState:
        return self.find_in(server_states(self.proxy, self.backend, deadline))

    def find_in(self, states: Mapping[str, ServerState]) -> ServerState:
        if self.name not in states:
            names = ", ".join(sorted(states))[:_MAX_QUOTED] or "none"
            raise StepFailed(f"{self}: there is no such server; the backend has {names}")
        return states[self.name]

    def set_state(self, state: str, deadline: Deadline) -> ServerState:
        """Change the state at the proxy, and confirm it."""
        answer = send_command(self.proxy, f"set server {self.backend}/{self.name} state {state}", deadline)
        server = self.read_state(deadline)
        if server.admin != state:
            raise StepFailed(f"{self} did not become {state}" + (f": {answer[:_MAX_QUOTED]}" if answer else ""))
        return server


def server_states(proxy: str, backend: str, deadline: Deadline) -> Dict[str, ServerState]:
    """Return the state of every server of the backend by name; raise StepFailed when the proxy does not give all of them."""
    states, loads = (
        send_command(proxy, f"show {what}", deadline) for what in (f"servers state {backend}", f"stat {backend} 4 -1")
    )
    try:
        rows = _table(proxy, backend, states, "srv_admin_state", " ")
        stats = _table(proxy, backend, loads, "scur", ",")
        sessions = {row["svname"]: int(row["scur"]) + int(row["qcur"]) for row in stats}
        return {row["srv_name"]: _server_state(row, sessions[row["srv_name"]]) for row in rows}
    except (csv.Error, KeyError, ValueError):
        raise Unanswered(f"the proxy {proxy} does not answer sensibly") from None


def send_command(proxy: str, line: str, deadline: Deadline) -> str:
    try:
        return ask(proxy, line, deadline).strip()
    except socket.timeout as error:
        raise NoAnswerInTime(f"the proxy {proxy} does not answer: {error or 'no answer in time'}") from None
    except OSError as error:
        raise Unanswered(f"the proxy {proxy} does not answer: {error.strerror or error}") from None


def _server_state(row: Mapping[str, str], sessions: int) -> ServerState:
    flags = int(row["srv_admin_state"])
    admin = "maint" if flags & _FORCED_MAINT else "drain" if flags & _FORCED_DRAIN else "ready"
    zero_weight = int(row["srv_uweight"]) == 0
    usable = not flags & ~_REMEMBERED and row["srv_op_state"] in _UP and not zero_weight
    return ServerState(admin, usable, sessions, zero_weight)


def _table(proxy: str, backend: str, answer: str, column: str, separator: str) -> List[Dict[str, str]]:
    """Return the rows below the line with the column names, which begins with `# `."""
    lines = answer.splitlines()
    titles = next((n for n, line in enumerate(lines) if line.startswith("# ")), None)
    rows = [] if titles is None else list(csv.reader([lines[titles][2:], *lines[titles + 1 :]], delimiter=separator))
    if not rows or column not in rows[0]:
        if not lines:
            raise Unanswered(f"the proxy {proxy} says nothing of the backend {backend}")
        raise StepFailed(f"the proxy {proxy} says of the backend {backend}: {lines[0][:_MAX_QUOTED]}")
    return [dict(zip(rows[0], row)) for row in rows[1:] if len(row) >= len(rows[0]) - 1]
