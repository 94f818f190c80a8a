"""Translate PostgreSQL's errors into forewarn's. No message contains a password."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from forewarn.core.errors import Conflict, ForewarnError, InvariantBroken, StoreUnavailable
from forewarn.store.postgres.dsn import LOCK_WITHIN_S, SILENT_WITHIN_S, STATEMENT_WITHIN_S, Dsn

if TYPE_CHECKING:
    from forewarn.store.postgres.pool import Pool

# The errors of a server that is no longer the primary.
READ_ONLY = ("25006", "55000")


@contextmanager
def translated_errors(dsn: Dsn, pool: "Pool | None" = None) -> Iterator[None]:
    """Translate PostgreSQL's errors: what happened, where, and what to do. Tell the pool about a broken connection."""
    try:
        yield
    except ForewarnError:
        raise
    except psycopg.Error as error:
        translated = _translate(error, dsn)
        if pool is not None:
            translated = pool.after_error(error, translated)
        lost = isinstance(error, psycopg.OperationalError) and (error.sqlstate or "")[:2] in (
            "",
            "08",
            "57",
            "53",
            "28",
            "3D",
        )
        if pool is not None and lost and error.sqlstate not in ("57014", "53200"):
            pool.went_away(str(translated))
        raise translated from None


_ADVICE = {
    "25006": "it is a standby, which cannot be written: name the primary, or all hosts as postgresql://one,two/database",
    "55000": "it is a standby, which cannot be written: name the primary, or all hosts as postgresql://one,two/database",
    "25P03": f"it ended a transaction of this process that was silent for {SILENT_WITHIN_S} s: this process hung, or the network",
    "28P01": "it refuses the password: check the user and the password in the store's address, or PGPASSWORD, or ~/.pgpass",
    "28000": "it refuses this user: check the user in the store's address, and the server's pg_hba.conf",
    "3D000": "there is no such database: create it with createdb, or name another with --store postgresql://…/DATABASE",
    "3F000": "it has no forewarn schema: run 'forewarn db migrate --store postgresql://…'",
    "42P01": "it has no forewarn tables: run 'forewarn db migrate --store postgresql://…'",
    "42501": "this user may not do that: let it own the database, or the schema forewarn in it",
    "53100": "its disk is full: free some space there",
    "53300": "it has no connection left: raise max_connections there, or lower the limits of its other clients",
    "57014": f"it did not answer within {STATEMENT_WITHIN_S} s: check what else it does (pg_stat_activity)",
}


def _translate(error: psycopg.Error, dsn: Dsn) -> ForewarnError:
    state = error.sqlstate or ""
    if state == "FW001":
        return Conflict("it was decided too long ago by the database's clock: this process or the database was stalled")
    if state == "55P03" and not error.diag.context:  # a row lock has a context, the commit lock has none
        return does_not_commit(dsn)
    if state in ("40001", "40P01", "55P03"):
        return Conflict("another request or node changed the same rows at the same time: try again")
    if state.startswith("23"):
        constraint = error.diag.constraint_name or ""
        if constraint in ("machine_addresses_pkey", "machines_by_instance_id"):
            return Conflict(f"another machine has the same address or instance id ({constraint})")
        reason = error.diag.message_primary or constraint
        return InvariantBroken(f"the database refused a change that breaks its rules ({reason}); nothing was saved")
    advice = _ADVICE.get(state) or _advice_from_text(error, dsn)
    return StoreUnavailable(f"{dsn.shown}: {advice} ({state or type(error).__name__})")


def does_not_commit(dsn: Dsn) -> StoreUnavailable:
    return StoreUnavailable(
        f"{dsn.shown}: it does not commit, for {LOCK_WITHIN_S} s now: is a synchronous standby missing? Nothing was saved"
    )


def is_read_only(error: BaseException) -> bool:
    return isinstance(error, psycopg.Error) and error.sqlstate in READ_ONLY


# Errors while connecting have no SQLSTATE, only text.
_STATE_OF_TEXT = {
    r"authentication failed": "28P01",
    r"read-write|read-only": "25006",
    r'role ".*" (does not exist|is not permitted)|no pg_hba\.conf entry': "28000",
    r'database ".*" does not exist': "3D000",
    r"too many (clients|connections)|connection slots are reserved": "53300",
}


def _advice_from_text(error: psycopg.Error, dsn: Dsn) -> str:
    """Return advice for a known text, and libpq's text in one line without the password."""
    text = " ".join(str(error).split()) or "it cannot be reached: check that it runs and that this machine may connect"
    advice = next((_ADVICE[state] for pattern, state in _STATE_OF_TEXT.items() if re.search(pattern, text)), "")
    text = f"{advice} ({text})" if advice else text
    return text.replace(dsn.secret, "***") if dsn.secret else text
