"""The use cases on windows and no-go times. `core.window_verbs` holds the rules."""

from collections.abc import Iterator
from datetime import datetime

from forewarn.core import window_verbs
from forewarn.core.change import Change, Snapshot
from forewarn.core.fleet_rules import NoGoTime, Window
from forewarn.core.formatting import names
from forewarn.core.model import UNFINISHED, Actor
from forewarn.core.selectors import Selection
from forewarn.service.decisions import Decisions
from forewarn.store import Focus, MaintenanceQuery

READ_AT_ONCE = 500


class WindowUseCases(Decisions):
    def put_window(self, window: Window, actor: Actor) -> None:
        self._decide(Focus(), lambda s, now: window_verbs.put_window(s, window, now=now, actor=actor))

    def remove_window(self, name: str, actor: Actor) -> None:
        """Remove a window that no scope and no open maintenance uses."""

        def decide(snapshot: Snapshot, now: datetime) -> Change:
            used_by = [*self._scopes_with(name), *self._maintenances_with(name)]
            return window_verbs.remove_window(snapshot, name, used_by, now=now, actor=actor)

        self._decide(Focus(), decide)

    def extend_window(self, name: str, until: datetime, actor: Actor) -> None:
        """Keep a window open until this time."""
        self._decide(Focus(), lambda s, now: window_verbs.extend_window(s, name, until, now=now, actor=actor))

    def put_no_go_time(self, no_go: NoGoTime, actor: Actor) -> None:
        """Add a no-go time, or change it. Raise NotFound if no machine has its labels: it would bind nothing."""
        if no_go.labels:
            selection = Selection((), no_go.labels)
            machines = self._store.labelled_machines(no_go.scopes or None)
            chosen = [m.key for m in machines if selection.takes(f"{m.scope}/{m.name}", m.labels, m.host_labels)]
            selection.refuse_unmatched(f"machine{f' of {names(no_go.scopes)}' if no_go.scopes else ''}", chosen)

        def decide(snapshot: Snapshot, now: datetime) -> Change:
            return window_verbs.put_no_go_time(snapshot, no_go, self._store.scopes(), now=now, actor=actor)

        self._decide(Focus(), decide)

    def remove_no_go_time(self, name: str, actor: Actor) -> None:
        self._decide(Focus(), lambda s, now: window_verbs.remove_no_go_time(s, name, now=now, actor=actor))

    def _scopes_with(self, window: str) -> Iterator[str]:
        return (f"scope {scope.name}" for scope in self._store.scopes().values() if window in scope.windows)

    def _maintenances_with(self, window: str) -> Iterator[str]:
        before: tuple[datetime, str] | None = None
        while found := self._store.maintenances(
            MaintenanceQuery(statuses=UNFINISHED, before=before, limit=READ_AT_ONCE)
        ):
            yield from (f"maintenance {each.id}" for each in found if window in each.strategy.windows)
            before = found[-1].created, found[-1].id
