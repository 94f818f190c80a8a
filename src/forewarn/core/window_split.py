"""What windows mean for planning: scopes without a common window do not share a wave."""

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from itertools import chain

from forewarn.core.change import Snapshot
from forewarn.core.errors import NotFound, Refused
from forewarn.core.fleet_rules import Window
from forewarn.core.model import Maintenance
from forewarn.core.strategy import PlannedWave
from forewarn.core.windows import StartLimits

Choices = tuple[tuple[Window, ...], ...]


def split_by_window(snapshot: Snapshot, maintenance: Maintenance, wave: PlannedWave) -> list[PlannedWave]:
    """Split a wave into parts whose scopes have a window in common. A scope without windows joins the first part."""
    parts: list[tuple[Choices, PlannedWave]] = []
    own = _choice(snapshot, maintenance.strategy.windows)
    for event in wave:
        of_scope = _choice(snapshot, snapshot.scopes[event.scope].windows)
        for index, (choices, part) in enumerate(parts):
            together = tuple(dict.fromkeys(choices + of_scope))
            if together == choices or _meet(own + together, maintenance.created):
                parts[index] = together, [*part, event]
                break
        else:
            parts.append((of_scope, [event]))
    return [part for _, part in parts]


def refuse_windows_that_never_meet(
    snapshot: Snapshot, windows: tuple[str, ...], scopes: Iterable[str], now: datetime
) -> None:
    """Refuse windows of a maintenance that do not exist, or that are closed whenever a window of a scope is open."""
    for name in windows:
        if name not in snapshot.fleet_rules.windows:
            raise NotFound(f"there is no window {name!r}: `forewarn window list` shows them")
    own, met = _choice(snapshot, windows), set[Choices]()
    for scope in sorted(scopes) if own else ():
        choices = own + _choice(snapshot, snapshot.scopes[scope].windows)
        if choices not in met and not _meet(choices, now):
            raise Refused(
                f"scope {scope} has no window in common with {' or '.join(windows)}:"
                " choose another window, or leave the scope out"
            )
        met.add(choices)


def without_common_window(snapshot: Snapshot, maintenance: Maintenance, scopes: Iterable[str]) -> list[str]:
    """Return the scopes with windows if their windows and those of the maintenance are never open together."""
    bound = sorted(scope for scope in scopes if snapshot.scopes[scope].windows)
    choices = dict.fromkeys(chain.from_iterable(_choice(snapshot, snapshot.scopes[scope].windows) for scope in bound))
    together = _choice(snapshot, maintenance.strategy.windows) + tuple(choices)
    return bound if len(bound) > 1 and not _meet(together, maintenance.created) else []


def _choice(snapshot: Snapshot, names: tuple[str, ...]) -> Choices:
    """Return one choice: the windows with these names, of which one must be open. Return no choice if there are no names."""
    windows = snapshot.fleet_rules.windows
    return (tuple(windows[name] for name in names if name in windows),) if names else ()


@lru_cache(maxsize=1_024)
def _meet(choices: Choices, now: datetime) -> bool:
    """Whether the windows are ever open together."""
    return StartLimits(choices).first_after(now, now) is not None
