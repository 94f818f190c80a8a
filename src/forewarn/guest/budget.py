"""How much time a step may take. Pure: knows no clock, no file, no network.

The budget of an event is the time to its NotBefore less the reserve. Required steps share the budget in proportion to their
time-outs. An optional step begins only if its whole time-out fits before the time-outs of the required steps to come.
"""

from __future__ import annotations

from typing import Iterator, Optional, Tuple

from forewarn.guest.actions import View
from forewarn.guest.document import Event
from forewarn.guest.names import Me
from forewarn.guest.plan import Plan, Step
from forewarn.guest.state import EventState, State

# The reserve is at most this part of the notice, so that even the 30 s of a Preempt leave time for steps.
RESERVE_PART = 0.25
# A step does not begin with less time than this.
MIN_SHARE_S = 1.0


def reserve_s(plan: Plan, left_s: Optional[float]) -> float:
    """Return the time to keep free before NotBefore."""
    return plan.reserve_s if left_s is None else min(plan.reserve_s, left_s * RESERVE_PART)


def budget_left_s(known: EventState, view: View) -> Optional[float]:
    """Return the time to NotBefore less the reserve, or None when no limit is known."""
    left_s = view.left_s(known.event)
    return None if left_s is None else max(0.0, left_s - known.reserve_s)


def is_new(state: State, event: Event) -> bool:
    """Return whether the event was never seen, or is listed again after it was gone."""
    return event.key not in state.events or state.events[event.key].gone


def pending_steps(plan: Plan, state: State, known: EventState) -> Iterator[Step]:
    """Yield the steps of this event that are neither prepared nor have failed or been skipped for it."""
    for step in plan.preparing(known.event):
        step_state = state.step(step.name)
        ended = known.event.key in step_state.outcomes or (step_state.prepared and not step.each_event)
        if step_state.under_way == "prepare" or not ended:
            yield step


def step_share_s(plan: Plan, state: State, known: EventState, step: Step, view: View) -> Tuple[float, str]:
    """Return how long the step may take for this event and "", or 0 and why it must not begin."""
    if known.started:
        return 0.0, "the event has started" if not known.missed else "the event started without notice"
    budget_s = budget_left_s(known, view)
    if budget_s is None:
        return step.timeout_s, ""
    to_come = [other for other in pending_steps(plan, state, known) if other.name != step.name and other.required]
    required_s = sum(other.timeout_s for other in to_come)
    if step.required:
        share_s = min(step.timeout_s, budget_s * step.timeout_s / (step.timeout_s + required_s))
        return (share_s, "") if share_s >= MIN_SHARE_S else (0.0, f"no time is left: {budget_s:.0f} s")
    if budget_s - required_s >= step.timeout_s:
        return step.timeout_s, ""
    return 0.0, f"it may take {step.timeout_s:.0f} s, and {max(0.0, budget_s - required_s):.0f} s are left for it"


def limit_s(plan: Plan, me: Me, state: State, view: View, event_key: str = "") -> Optional[float]:
    """Return how long the current step for this event may go on.

    The limit is the smallest of the event's own budget and the budgets of all events that still have pending steps and
    time for them. Events that have just appeared in the document count too.
    """
    open_events = [known for known in state.events.values() if known.prepares and not known.started]
    open_events += [
        EventState(event, plan.do(event), reserve_s(plan, view.left_s(event)), state.boot)
        for event in (view.document.events if view.document is not None else ())
        if is_new(state, event) and me.is_in(event) and not event.started
    ]
    limits_s = []
    for known in open_events:
        budget_s = budget_left_s(known, view) if known.prepares else None
        pending = any(True for _ in pending_steps(plan, state, known))
        if budget_s is not None and (known.event.key == event_key or (budget_s > 0 and pending)):
            limits_s.append(budget_s)
    return min(limits_s, default=None)
