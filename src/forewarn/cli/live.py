"""Show something again after each change until it has ended. The live views of maintenances and events use this loop."""

import time
from collections.abc import Callable

from forewarn.cli.api import Json, NotReachable, Query
from forewarn.cli.change_stream import Changes
from forewarn.cli.session import Session

# How long to wait for a service that restarts.
AWAY_S = 60.0
AWAY_RETRY_S = 1.0

# Shows a thing; it gets the thing as it was shown before, None at first, and as it is now.
Show = Callable[[Json | None, Json], None]


def follow(
    session: Session,
    path: str,
    show: Show,
    ended: Callable[[Json], bool],
    *,
    query: Query | None = None,
    concerns: Callable[[Json], bool] = bool,
    timeout_s: float | None = None,
) -> Json:
    """Fetch `path` and show it, again at changes that concern it, until it has ended or time is up; return it."""
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    before: Json | None = None
    with Changes(session.api) as changes:
        while True:
            current = get_when_back(session, path, query)
            show(before, current)
            before = current
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if ended(current) or (left_s is not None and left_s <= 0):
                return current
            changes.wait_for(concerns, left_s)


def get_when_back(session: Session, path: str, query: Query | None = None) -> Json:
    """Call GET; while the service cannot be reached, try again for AWAY_S."""
    began_s = time.monotonic()
    reported = False
    while True:
        try:
            response: Json = session.api.get(path, query)
            return response
        except NotReachable as error:
            if time.monotonic() - began_s > AWAY_S:
                raise
            if not reported:
                session.out.aside(f"{error}; trying again for {AWAY_S:g}s")
            reported = True
            time.sleep(AWAY_RETRY_S)
