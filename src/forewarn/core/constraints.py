"""What can hold back a wave beside its notice and other events: a list of constraints for its publication, one for its start.

A constraint returns its reasons to wait, or nothing. The same function decides and explains. A wave that a constraint holds
back is not due, so it holds up no other wave in the queue of a scope. If time alone ends a wait, the reason says when in
`until`: the ticker then examines the maintenance again. Any other change must wake the maintenance.
"""

from collections.abc import Callable

from forewarn.core.budgets import budget_waits
from forewarn.core.deadline import deadline_waits
from forewarn.core.draft import Draft
from forewarn.core.model import Event, Maintenance
from forewarn.core.reason import Waiting
from forewarn.core.requested_start import requested_publication_waits, requested_start_waits
from forewarn.core.strategy import bake_waits
from forewarn.core.target_waits import target_waits
from forewarn.core.window_rules import window_publication_waits, window_start_waits

Constraint = Callable[[Draft, Maintenance, list[Event]], list[Waiting]]

# A planned wave is published when none of these holds it back.
BEFORE_PUBLICATION: tuple[Constraint, ...] = (
    window_publication_waits,
    requested_publication_waits,
    bake_waits,
    target_waits,
    budget_waits,
)
# A published wave that is ready starts when none of these holds it back.
BEFORE_START: tuple[Constraint, ...] = (window_start_waits, requested_start_waits, deadline_waits, target_waits)


def publication_waits(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Waiting]:
    """Return why a planned wave cannot be published now."""
    return [reason for constraint in BEFORE_PUBLICATION for reason in constraint(draft, maintenance, wave)]


def start_waits(draft: Draft, maintenance: Maintenance, wave: list[Event]) -> list[Waiting]:
    """Return why a published wave cannot start now, whatever its notice and its approvals."""
    return [reason for constraint in BEFORE_START for reason in constraint(draft, maintenance, wave)]
