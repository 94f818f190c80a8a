"""What the agent does next: one pure function. Knows no clock, no file, no network; `agent` carries out what it returns.

The rules, in the order in which they apply:

1. Record what the document says: an event is seen, changed, started or over.
2. Notify the steps that report changes, unless time is short.
3. Take the most urgent event first. Prepare each step it needs, once for all events that need it, within the budget
   (`budget`), and not earlier than `prepare_within` before NotBefore. Begin nothing for an event that has Started. Begin no
   step that would still run when a more urgent event may take the machine down.
4. Approve an event when each of its steps has ended, each required step is prepared and verified, and each awaited client has
   approved. The agent verifies the required steps once more right before it approves; a step that no longer holds is prepared
   again. An approved event that stays Scheduled is approved again after a while (`View.not_before_s`): the endpoint may have
   lost the approval.
5. Undo the steps that no open event needs any more, in reverse order; the agent first interrupts one that runs. Then health
   must pass. Then the machine is in service.

Invariant: `decide` never returns Approve for an event while `why_not_ready` gives a reason.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Tuple

from forewarn.guest.actions import Action, Approve, CheckHealth, Note, Notify, Prepare, Recover, View, Wait
from forewarn.guest.budget import is_new, pending_steps, reserve_s, step_share_s
from forewarn.guest.document import SCHEDULED, Event, event_json
from forewarn.guest.names import Me
from forewarn.guest.plan import Plan, Step
from forewarn.guest.state import CANCELLED, COMPLETED, REBOOTED, EventState, State

# With less time than this, steps come before messages.
URGENT_S = 60.0
MAX_NOTIFY_ATTEMPTS = 3
# How often a step that a person or program undid is prepared again.
MAX_LAPSES = 3
REBOOTING = ("Reboot", "Redeploy")


def decide(plan: Plan, me: Me, state: State, view: View) -> Action:
    """Return the one thing to do now."""
    for choose in (
        record_document,
        _notify_unless_urgent,
        _prepare_or_approve,
        _notify,
        _recover_unneeded_step,
        _check_health,
    ):
        action = choose(plan, me, state, view)
        if action is not None:
            return action
    return _wait(plan, state, view)


def _wait(plan: Plan, state: State, view: View) -> Wait:
    """Wait until the next retry, until an event is to be prepared, or is due and delays the steps of another event.

    A client that stays silent is no longer awaited at some moment: that ends the wait too.
    """
    waits_s = [at_s - view.now_s for at_s in view.not_before_s.values()]
    if len(state.events) > 1:
        waits_s += [view.left_s(known.event) or 0.0 for known in _interrupting_events(state)]
    waits_s += [_early_s(plan, known, view) for known in state.events.values() if known.prepares]
    for known in state.events.values():
        if known.open and not known.started and not known.approved:
            waits_s += [view.awaited[name] for name in state.missing_approvals(known.event.key, view.awaited)]
    return Wait(min((seconds for seconds in waits_s if seconds > 0), default=None))


# -- 1. record what the document says


def record_document(plan: Plan, me: Me, state: State, view: View) -> Optional[Note]:
    """Return the next record of what the document says, or None when all of it is recorded; also while a step runs."""
    if view.document is None:
        return None
    for event in view.document.events:
        if me.is_in(event):
            new = is_new(state, event)
            record = _seen_record(plan, event, view) if new else _change_record(plan, event, state, view)
            if record is not None:
                return Note(record)
    for known in state.events.values():
        if not known.gone and _is_gone(me, known, view.document.event(known.event.key)):
            return Note(_over_record(plan, known, _outcome(known, view)))
    return None


def _is_gone(me: Me, known: EventState, listed: Optional[Event]) -> bool:
    """Return whether the event is no longer listed, or no longer names this machine.

    If our name was never in the event, its absence now proves nothing: we may know only the host name.
    """
    return listed is None or (me.is_in(known.event) and not me.is_in(listed))


def _seen_record(plan: Plan, event: Event, view: View) -> Dict[str, Any]:
    left_s, do = view.left_s(event), plan.do(event)
    return {
        "kind": "seen",
        "event": event_json(event),
        "do": do,
        "left_s": None if left_s is None else round(left_s, 3),
        "reserve_s": round(reserve_s(plan, left_s), 3),
        "delay_s": round(view.delay_s, 3),
        # The "started" record that follows notifies about an event that is first seen Started.
        "tell": notifiers_of(plan, event, do) if not event.started else [],
    }


def _change_record(plan: Plan, event: Event, state: State, view: View) -> Optional[Dict[str, Any]]:
    known = state.events[event.key]
    if event.started and not known.started:
        missed = known.event.started
        return {
            "kind": "started",
            "id": event.key,
            "missed": missed and known.do != "ignore",
            "tell": notifiers_of(plan, event, known.do),
        }
    if known.over:
        return None
    if not event.started and _compared_fields(event) != _compared_fields(known.event):
        return {
            "kind": "changed",
            "event": event_json(event),
            "do": plan.do(event),
            "reserve_s": round(reserve_s(plan, view.left_s(event)), 3),
        }
    if known.boot == state.boot:
        return None
    if not event.started:
        return {"kind": "still", "id": event.key}
    if event.type in REBOOTING:
        return _over_record(plan, known, REBOOTED)
    return None


def _compared_fields(event: Event) -> Tuple[Any, ...]:
    """Return the fields whose change matters; NotBefore to the second, as the journal stores it."""
    not_before = event.not_before and event.not_before.replace(microsecond=0)
    return event.type, event.resources, not_before, event.source, event.duration_s


def _over_record(plan: Plan, known: EventState, how: str) -> Dict[str, Any]:
    return {"kind": "over", "id": known.event.key, "how": how, "tell": notifiers_of(plan, known.event, known.do)}


def _outcome(known: EventState, view: View) -> str:
    """Return how an event that is gone has ended.

    An approved event has completed even if it was too quick to be seen Started.
    """
    due = view.left_s(known.event) == 0.0
    return COMPLETED if known.started or known.approved or due else CANCELLED


def notifiers_of(plan: Plan, event: Event, do: str) -> List[str]:
    return [] if do == "ignore" else [step.name for step in plan.notifying(event)]


# -- 2. notify


def _notify_unless_urgent(plan: Plan, me: Me, state: State, view: View) -> Optional[Action]:
    lefts = [view.left_s(known.event) for known in state.events.values() if known.open and not known.started]
    urgent = any(left_s is not None and left_s < URGENT_S for left_s in lefts)
    return None if urgent else _notify(plan, me, state, view)


def _notify(plan: Plan, _: Me, state: State, view: View) -> Optional[Action]:
    for message in state.messages:
        step = plan.step(message.step)
        if step is None or message.attempts >= MAX_NOTIFY_ATTEMPTS:
            return Note({"kind": "told", **message.key, "ok": False})
        if view.due(f"notify {message.step}"):
            return Notify(message, step)
    return None


# -- 3. prepare


def _prepare_or_approve(plan: Plan, me: Me, state: State, view: View) -> Optional[Action]:
    if view.document is None:
        return None
    for known in _by_urgency(state, view):
        step = next(pending_steps(plan, state, known), None) if known.prepares else None
        if step is not None and _early_s(plan, known, view) > 0:
            continue
        action = (
            _approve(plan, me, state, known, view) if step is None else _prepare_or_skip(plan, state, known, step, view)
        )
        if action is not None:
            return action
    return None


def _early_s(plan: Plan, known: EventState, view: View) -> float:
    """Return how long the steps of an event still wait because its NotBefore is far away; 0 if they need not wait."""
    left_s = view.left_s(known.event)
    if left_s is None or plan.prepare_within_s is None or known.started:
        return 0.0
    return max(0.0, left_s - plan.prepare_within_s)


def _by_urgency(state: State, view: View) -> List[EventState]:
    def left_s(known: EventState) -> float:
        left = view.left_s(known.event)
        return float("inf") if left is None else left

    return sorted(state.events.values(), key=left_s)


def _prepare_or_skip(plan: Plan, state: State, known: EventState, step: Step, view: View) -> Optional[Action]:
    share_s, reason = step_share_s(plan, state, known, step, view)
    if reason:
        return Note({"kind": "skip", "step": step.name, "event": known.event.key, "reason": reason})
    lefts_s = [view.left_s(other.event) for other in _interrupting_events(state) if other is not known]
    if any(left_s is not None and 0 < left_s < share_s for left_s in lefts_s):
        return None  # wait until the other event has started, or is overdue
    return Prepare(step, known.event, share_s)


def _interrupting_events(state: State) -> List[EventState]:
    """Return the events that will take the machine down, and interrupt any step that runs then."""
    return [
        known for known in state.events.values() if known.open and not known.started and known.event.type != "Freeze"
    ]


# -- 4. approve


def _approve(plan: Plan, me: Me, state: State, known: EventState, view: View) -> Optional[Action]:
    # An approved event is approved again only at a moment that the agent has set.
    at_s = view.not_before_s.get(f"approve {known.event.key}", float("inf") if known.approved else 0.0)
    if view.document is None or why_not_ready(plan, me, state, known, view.awaited) or at_s > view.now_s:
        return None
    event = view.document.event(known.event.key)
    if event is None or event.status != SCHEDULED or not me.is_in(event):
        return None
    steps = plan.preparing(known.event) if known.do == "prepare" else ()
    return Approve(event, view.left_s(event), tuple(step for step in steps if step.required))


def lapsed_record(state: State, step: Step, event: Event) -> Dict[str, Any]:
    """Return the record of a required step that is no longer prepared; it is prepared again MAX_LAPSES times."""
    again = state.step(step.name).lapses < MAX_LAPSES
    reason = "it was prepared, and " + ("no longer is" if again else "does not stay so")
    return {"kind": "lapsed", "step": step.name, "event": event.key, "again": again, "reason": reason}


def why_not_approved(plan: Plan, me: Me, state: State, known: EventState, awaited: Iterable[str] = ()) -> str:
    """Return the reason not to approve, for people, or "" when there is none. `awaited` are the clients to wait for."""
    return "it is approved" if known.approved else why_not_ready(plan, me, state, known, awaited)


def why_not_ready(plan: Plan, me: Me, state: State, known: EventState, awaited: Iterable[str] = ()) -> str:
    """Return the reason not to approve now, whether or not it was approved before; "" when there is none."""
    if known.started:
        return "it has started"
    if known.over:
        return f"it is over: {known.over}"
    if known.do in ("ignore", "prepare-only"):
        return f"a rule says {known.do}"
    if plan.approve == "never":
        return 'approve = "never"'
    if plan.approve == "first-in-resources" and not me.is_first_in(known.event):
        return f"{known.event.resources[0] if known.event.resources else 'another machine'} is first in Resources"
    why = _why_not_prepared(plan, state, known) if known.do == "prepare" else ""
    missing = state.missing_approvals(known.event.key, awaited)
    return why or (f"client {missing[0]!r} has not approved it" if missing else "")


def _why_not_prepared(plan: Plan, state: State, known: EventState) -> str:
    for step in pending_steps(plan, state, known):
        begun = state.step(step.name).under_way == "prepare"
        return f"step {step.name!r} is {'under way' if begun else 'yet to be done'}"
    for step in plan.preparing(known.event):
        step_state = state.step(step.name)
        if step.required and not step_state.prepared:
            _, reason = step_state.outcomes.get(known.event.key, (False, ""))
            return f"required step {step.name!r} is not prepared: {reason}"
    return ""


# -- 5. return to service


def _may_return(state: State, view: View) -> bool:
    """Return whether an event is over, or there is none to wait for, as when a damaged journal has lost it."""
    if any(known.over for known in state.events.values()):
        return True
    return view.document is not None and not any(known.do != "ignore" for known in state.events.values())


def is_needed(plan: Plan, state: State, step: Step) -> bool:
    """Return whether an open event needs the step. If none does, a step that runs is interrupted, and a dirty one is undone."""
    return any(step in plan.preparing(known.event) for known in state.events.values() if known.prepares)


def _recover_unneeded_step(plan: Plan, _: Me, state: State, view: View) -> Optional[Action]:
    if view.document is None and not _may_return(state, view):
        return None
    for step in reversed(plan.steps):
        step_state = state.steps.get(step.name)
        if step_state is not None and step_state.dirty and not is_needed(plan, state, step):
            # In reverse order: the steps before this one wait until it is undone.
            return (
                Recover(step, _last_ended_event(state))
                if view.due(f"recover {step.name}")
                else _wait(plan, state, view)
            )
    for name, step_state in state.steps.items():
        if step_state.dirty and plan.step(name) is None and _may_return(state, view):
            reason = "it is no longer configured: it cannot be undone"
            record = {"phase": "recover", "step": name, "ok": True, "reason": reason, "took_s": 0, "event": ""}
            return Note({"kind": "end", **record})
    return None


def _check_health(plan: Plan, _: Me, state: State, view: View) -> Optional[Action]:
    dirty = any(step.dirty for step in state.steps.values())
    under_way = any(known.open and known.started and known.do != "ignore" for known in state.events.values())
    if not (state.out_of_service and _may_return(state, view)) or dirty or under_way:
        return None
    if plan.health is not None and not view.due("health"):
        return _wait(plan, state, view)
    return CheckHealth(_last_ended_event(state))


def _last_ended_event(state: State) -> Optional[Event]:
    return next((known.event for known in reversed(list(state.events.values())) if known.over), None)
