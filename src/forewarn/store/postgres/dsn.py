"""Where a PostgreSQL database is and how it is talked to: the address, what a session is set to, how a transaction begins.

No message of ours ever holds a password.
"""

import ipaddress
import os
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from forewarn.core.errors import InvalidSettings

SCHEMA = "forewarn"
CONNECT_WITHIN_S = 3
STATEMENT_WITHIN_S = 5
LOCK_WITHIN_S = 3
# The server ends a transaction whose client has fallen silent: nobody waits longer for the locks of a process that hangs.
SILENT_WITHIN_S = 5

READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"


class Dsn:
    """Where the database is: what to connect with, and how it may be shown. `pooled`: a pooler may stand in between."""

    def __init__(self, text: str, *, pooled: bool = False) -> None:
        try:
            given = conninfo_to_dict(text)
        except psycopg.Error:
            given = {"host": "@"}
        if "@" in str(given.get("host", "")):
            # What libpq says of it may quote any part of it, and an @ in the password makes the rest of that the host.
            raise InvalidSettings(
                "store: this is no PostgreSQL address: write it like postgresql://user@host:5432/database, and any sign of a"
                " password that is not a letter or digit as %XX"
            ) from None
        self.secret = str(given.get("password") or "")
        host, port = given.get("host") or given.get("hostaddr") or "localhost", given.get("port") or "5432"
        self.shown = f"postgresql://{host}:{port}/{given.get('dbname') or given.get('user') or ''}"
        self.pooled = pooled
        self.unverified = _unverified(given)
        ours: dict[str, Any] = {
            "application_name": "forewarn",
            "connect_timeout": CONNECT_WITHIN_S,
            # Of several hosts the one that can be written.
            "target_session_attrs": "read-write",
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        }
        settings = {**ours, **{k: v for k, v in given.items() if v is not None}}
        if not pooled:
            # Of two the last counts, and what we promise depends on ours.
            set_here = [f"-c {name}={value}" for name, value in _session_settings().items()]
            settings["options"] = " ".join([str(given.get("options") or ""), *set_here]).strip()
        self.conninfo = make_conninfo(**settings)

    def begin(self, how: str, within_s: int) -> str:
        """One message: through a pooler nothing lasts longer than the transaction, so it brings all its settings along."""
        settings = _session_settings() if self.pooled else {}
        if within_s != STATEMENT_WITHIN_S:
            settings["statement_timeout"] = f"{within_s}s"
            if how is READ:  # whoever reads a large fleet takes his time over it, and nobody waits for him
                settings["idle_in_transaction_session_timeout"] = f"{within_s}s"
        return "; ".join([how, *(f"SET LOCAL {name} = '{value}'" for name, value in settings.items())])


def _unverified(given: Mapping[str, Any]) -> str:
    """ "" or why somebody on the way could read and change everything."""
    mode = str(given.get("sslmode") or os.environ.get("PGSSLMODE") or "prefer")
    hosts = str(given.get("hostaddr") or given.get("host") or os.environ.get("PGHOST") or "").split(",")
    away = [host for host in hosts if host and not host.startswith("/") and not _is_here(host)]
    if mode in ("verify-ca", "verify-full") or not away:
        return ""
    return (
        f"{away[0]} is not on this machine, and with sslmode={mode} nobody checks that it is the right one: give the address"
        " ?sslmode=verify-full&sslrootcert=FILE"
    )


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _session_settings() -> dict[str, str]:
    return {
        "search_path": SCHEMA,
        "TimeZone": "UTC",
        "statement_timeout": f"{STATEMENT_WITHIN_S}s",
        "lock_timeout": f"{LOCK_WITHIN_S}s",
        "idle_in_transaction_session_timeout": f"{SILENT_WITHIN_S}s",
        # What is acknowledged is on disk, and on the synchronous standby where there is one, whatever the server's default.
        "synchronous_commit": "on",
    }
