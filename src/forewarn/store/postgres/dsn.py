"""The address of a PostgreSQL database, the settings of a session, and the beginning of a transaction.

No message contains a password.
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from forewarn.core.errors import InvalidSettings

SCHEMA = "forewarn"
CONNECT_WITHIN_S = 3
STATEMENT_WITHIN_S = 5
LOCK_WITHIN_S = 3
# The server ends a transaction whose client is silent for so long, so that a process that hangs does not keep its locks.
SILENT_WITHIN_S = 5
FREE_WITHIN_S = 3.0
# The extra time before a silent server counts as dead, after it should have given up on the statement itself.
PATIENCE_S = 2.0
# For so long after the database went away, requests fail at once without trying it.
AWAY_S = 5.0

READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """How long a connect, a statement, a lock and the silence of a client may take, and how long the pool waits.

    Tests change them.
    """

    connect_s: int = CONNECT_WITHIN_S
    statement_s: float = STATEMENT_WITHIN_S
    lock_s: float = LOCK_WITHIN_S
    silent_s: float = SILENT_WITHIN_S
    free_s: float = FREE_WITHIN_S
    patience_s: float = PATIENCE_S
    away_s: float = AWAY_S


class Dsn:
    """A parsed address: `conninfo` to connect with, `shown` for messages. `pooled` says that it may lead to a pooler."""

    def __init__(self, text: str, *, pooled: bool = False, limits: TimeLimits | None = None) -> None:
        self.limits = limits or TimeLimits()
        try:
            given = conninfo_to_dict(text)
        except psycopg.Error:
            given = {"host": "@"}
        if "@" in str(given.get("host", "")):
            # libpq's message may quote any part of the address, and an @ in the password makes the rest of the password the host.
            raise InvalidSettings(
                "store: this is not a PostgreSQL address: write it like postgresql://user@host:5432/database, and every"
                " character of the password that is not a letter or digit as %XX"
            ) from None
        self.secret = str(given.get("password") or "")
        host, port = given.get("host") or given.get("hostaddr") or "localhost", given.get("port") or "5432"
        self.shown = f"postgresql://{host}:{port}/{given.get('dbname') or given.get('user') or ''}"
        self.pooled = pooled
        self.unverified = _unverified(given)
        ours: dict[str, Any] = {
            "application_name": "forewarn",
            "connect_timeout": self.limits.connect_s,
            # Of several hosts, choose the one that accepts writes.
            "target_session_attrs": "read-write",
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        }
        settings = {**ours, **{k: v for k, v in given.items() if v is not None}}
        if not pooled:
            # The last of two settings counts; the promises of this store depend on its own.
            set_here = [f"-c {name}={value}" for name, value in self._session_settings().items()]
            settings["options"] = " ".join([str(given.get("options") or ""), *set_here]).strip()
        self.conninfo = make_conninfo(**settings)

    def begin(self, how: str, within_s: float) -> str:
        """Return the statement that begins a transaction; through a pooler it includes every session setting."""
        settings = self._session_settings() if self.pooled else {}
        if within_s != self.limits.statement_s:
            settings["statement_timeout"] = f"{within_s}s"
            if how is READ:  # reading a large fleet takes long, and holds no locks
                settings["idle_in_transaction_session_timeout"] = f"{within_s}s"
        return "; ".join([how, *(f"SET LOCAL {name} = '{value}'" for name, value in settings.items())])

    def _session_settings(self) -> dict[str, str]:
        return {
            "search_path": SCHEMA,
            "TimeZone": "UTC",
            "statement_timeout": f"{self.limits.statement_s}s",
            "lock_timeout": f"{self.limits.lock_s}s",
            "idle_in_transaction_session_timeout": f"{self.limits.silent_s}s",
            # An acknowledged commit is on disk and on the synchronous standby, if there is one, whatever the server's default.
            "synchronous_commit": "on",
            # Tables without statistics look large to the server: it would compile a statement for seconds to read a few rows.
            "jit": "off",
        }


def _unverified(given: Mapping[str, Any]) -> str:
    """Return why an attacker on the network could read and change everything, or ""."""
    mode = str(given.get("sslmode") or os.environ.get("PGSSLMODE") or "prefer")
    hosts = str(given.get("hostaddr") or given.get("host") or os.environ.get("PGHOST") or "").split(",")
    away = [host for host in hosts if host and not host.startswith("/") and not _is_here(host)]
    if mode in ("verify-ca", "verify-full") or not away:
        return ""
    return (
        f"{away[0]} is not on this machine, and sslmode={mode} does not verify the server: add to the address"
        " ?sslmode=verify-full&sslrootcert=FILE"
    )


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
