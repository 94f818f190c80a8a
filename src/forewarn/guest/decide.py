"""What the agent does next: one pure function. Knows no clock, no file, no network; the shell (`agent`) carries it out.

The rules, in the order they are looked at:

1. What the document says is noted first: an event seen, changed, started, over.
2. Who is to be told is told, unless time is short.
3. The most urgent event first, each step it wants is prepared, once for all events that want it, within the budget:
   the time to NotBefore less the reserve. An optional step begins only if its whole time-out fits before those of the
   required steps to come; required steps share what there is. An event that has Started gets nothing begun, and no step
   begins that would not end before a more urgent event may take the machine down.
4. An event is approved when every step it wants has ended and every required one of them is prepared and verified, and
   verifies once more at that very moment; one that does not is prepared again. Then the next event's turn comes.
5. What no open event wants any more is undone, in reverse. Then health must be green. Then the machine is in service.

Invariant: Approve is never returned for an event while `why_not_approved` has a reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Union

from forewarn.guest.document import SCHEDULED, Document, Event, event_json
from forewarn.guest.names import Me
from forewarn.guest.plan import Plan, Step
from forewarn.guest.state import CANCELLED, COMPLETED, REBOOTED, EventState, News, State

# At most this part of the notice is kept as reserve: of a Preempt's 30 s there is something left to use.
RESERVE_PART = 0.25
# Less than this is no time to begin anything in.
MIN_SHARE_S = 1.0
# With less time than this, steps come before messages.
URGENT_S = 60.0
MAX_TELLING = 3
# So often a step that was undone behind our back is prepared again.
MAX_LAPSES = 3
REBOOTING = ("Reboot", "Redeploy")


@dataclass(frozen=True)
class Note:
    """Something to remember; nothing happens outside."""

    record: Mapping[str, Any]


@dataclass(frozen=True)
class Prepare:
    step: Step
    event: Event
    share_s: float


@dataclass(frozen=True)
class Recover:
    step: Step
    event: Optional[Event]


@dataclass(frozen=True)
class Approve:
    event: Event
    left_s: Optional[float]
    # Verified long ago, perhaps: each must still hold, or it is not approved.
    required: Tuple[Step, ...] = ()


@dataclass(frozen=True)
class CheckHealth:
    event: Optional[Event]


@dataclass(frozen=True)
class Tell:
    news: News
    step: Step


@dataclass(frozen=True)
class Wait:
    """Nothing to do before the document changes, or before so many seconds have passed."""

    seconds: Optional[float] = None


Action = Union[Note, Prepare, Recover, Approve, CheckHealth, Tell, Wait]


@dataclass(frozen=True)
class View:
    """What is known from outside: the last document, the monotonic clock, and what may be tried again only when."""

    now_s: float
    document: Optional[Document] = None
    not_before_s: Mapping[str, float] = field(default_factory=dict)
    # How long the change may have gone unseen, at most; for the record.
    delay_s: float = 0.0

    def left_s(self, event: Event) -> Optional[float]:
        """Seconds to NotBefore, as the document has it now; None when nobody knows."""
        if self.document is None:
            return None
        now = self.document.event(event.id)
        return self.document.time_left_s(event if now is None or now.started else now, self.now_s)

    def due(self, what: str) -> bool:
        return self.not_before_s.get(what, 0.0) <= self.now_s


def decide(plan: Plan, me: Me, state: State, view: View) -> Action:
    """The one thing to do now."""
    for choice in (_noted, _told_in_time, _readied, _told, _recovered, _healthy):
        action = choice(plan, me, state, view)
        if action is not None:
            return action
    return _wait(state, view)


def _wait(state: State, view: View) -> Wait:
    """Until something may be tried again, or until an event that others wait behind is due."""
    later_s = [at_s - view.now_s for at_s in view.not_before_s.values()]
    later_s += [view.left_s(known.event) or 0.0 for known in _in_the_way(state)] if len(state.events) > 1 else []
    return Wait(min((seconds for seconds in later_s if seconds > 0), default=None))


# -- 1. what the document says


def _noted(plan: Plan, me: Me, state: State, view: View) -> Optional[Action]:
    if view.document is None:
        return None
    for event in view.document.events:
        if me.is_in(event):
            new = _is_new(state, event)
            record = _first_sight(plan, event, view) if new else _change(plan, event, state, view)
            if record is not None:
                return Note(record)
    for known in state.events.values():
        if not known.gone and _is_gone(me, known, view.document.event(known.event.id)):
            return Note(_over(plan, known, _how_it_went(known, view)))
    return None


def _is_new(state: State, event: Event) -> bool:
    """Never seen; or gone and listed again before the machine was back."""
    return event.id not in state.events or state.events[event.id].gone


def _is_gone(me: Me, known: EventState, now: Optional[Event]) -> bool:
    """No longer listed, or no longer ours; but a name that never was in it tells nothing: the host's may stand in."""
    return now is None or (me.is_in(known.event) and not me.is_in(now))


def _first_sight(plan: Plan, event: Event, view: View) -> Dict[str, Any]:
    left_s, do = view.left_s(event), plan.do(event)
    return {
        "kind": "seen",
        "event": event_json(event),
        "do": do,
        "left_s": None if left_s is None else round(left_s, 3),
        "reserve_s": round(_reserve_s(plan, left_s), 3),
        "delay_s": round(view.delay_s, 3),
        # Straight to Started is told as that, by the record that follows.
        "tell": tellers_of(plan, event, do) if not event.started else [],
    }


def _reserve_s(plan: Plan, left_s: Optional[float]) -> float:
    return plan.reserve_s if left_s is None else min(plan.reserve_s, left_s * RESERVE_PART)


def _change(plan: Plan, event: Event, state: State, view: View) -> Optional[Dict[str, Any]]:
    known = state.events[event.id]
    if event.started and not known.started:
        missed = known.event.started
        return {
            "kind": "started",
            "id": event.id,
            "missed": missed and known.do != "ignore",
            "tell": tellers_of(plan, event, known.do),
        }
    if known.over:
        return None
    if not event.started and _what_counts(event) != _what_counts(known.event):
        return {
            "kind": "changed",
            "event": event_json(event),
            "do": plan.do(event),
            "reserve_s": round(_reserve_s(plan, view.left_s(event)), 3),
        }
    if known.boot == state.boot:
        return None
    if not event.started:
        return {"kind": "still", "id": event.id}
    if event.type in REBOOTING:
        return _over(plan, known, REBOOTED)
    return None


def _what_counts(event: Event) -> Tuple[Any, ...]:
    """To the second, as the journal keeps it."""
    not_before = event.not_before and event.not_before.replace(microsecond=0)
    return event.type, event.resources, not_before, event.source, event.duration_s


def _over(plan: Plan, known: EventState, how: str) -> Dict[str, Any]:
    return {"kind": "over", "id": known.event.id, "how": how, "tell": tellers_of(plan, known.event, known.do)}


def _how_it_went(known: EventState, view: View) -> str:
    """Started or approved and gone is completed, also when it was too quick to be seen Started."""
    passed = view.left_s(known.event) == 0.0
    return COMPLETED if known.started or known.approved or passed else CANCELLED


def tellers_of(plan: Plan, event: Event, do: str) -> List[str]:
    return [] if do == "ignore" else [step.name for step in plan.tellers(event)]


# -- 2. who is to be told


def _told_in_time(plan: Plan, me: Me, state: State, view: View) -> Optional[Action]:
    lefts = [view.left_s(known.event) for known in state.events.values() if known.open and not known.started]
    urgent = any(left_s is not None and left_s < URGENT_S for left_s in lefts)
    return None if urgent else _told(plan, me, state, view)


def _told(plan: Plan, me: Me, state: State, view: View) -> Optional[Action]:
    del me
    for news in state.news:
        step = plan.step(news.step)
        if step is None or news.tried >= MAX_TELLING:
            return Note({"kind": "told", "step": news.step, "id": news.event.id, "change": news.change, "ok": False})
        if view.due(f"tell {news.step}"):
            return Tell(news, step)
    return None


# -- 3. preparing


def _readied(plan: Plan, me: Me, state: State, view: View) -> Optional[Action]:
    if view.document is None:
        return None
    for known in _by_urgency(state, view):
        step = next(_missing(plan, state, known), None) if known.prepares else None
        action = _begin(plan, state, known, step, view) if step is not None else _approval(plan, me, state, known, view)
        if action is not None:
            return action
    return None


def _by_urgency(state: State, view: View) -> List[EventState]:
    def left_s(known: EventState) -> float:
        left = view.left_s(known.event)
        return float("inf") if left is None else left

    return sorted(state.events.values(), key=left_s)


def _missing(plan: Plan, state: State, known: EventState) -> Iterator[Step]:
    """The steps this event wants that are neither prepared nor settled for it."""
    for step in plan.wanted(known.event):
        remembered = state.step(step.name)
        settled = known.event.id in remembered.outcomes or (remembered.held and not step.each_event)
        if remembered.under_way == "prepare" or not settled:
            yield step


def _begin(plan: Plan, state: State, known: EventState, step: Step, view: View) -> Optional[Action]:
    share_s, reason = share_of(plan, state, known, step, view)
    if reason:
        return Note({"kind": "skip", "step": step.name, "event": known.event.id, "reason": reason})
    lefts_s = [view.left_s(other.event) for other in _in_the_way(state) if other is not known]
    if any(left_s is not None and 0 < left_s < share_s for left_s in lefts_s):
        return None  # not before that has started, or is overdue
    return Prepare(step, known.event, share_s)


def _in_the_way(state: State) -> List[EventState]:
    """Events that will take the machine down, and with it whatever is under way then."""
    return [
        known for known in state.events.values() if known.open and not known.started and known.event.type != "Freeze"
    ]


def share_of(plan: Plan, state: State, known: EventState, step: Step, view: View) -> Tuple[float, str]:
    """How long the step may take for this event; or why it is not begun."""
    if known.started:
        return 0.0, "the event has started" if not known.missed else "the event started without notice"
    budget_s = budget_left_s(known, view)
    if budget_s is None:
        return step.timeout_s, ""
    to_come = [each for each in _missing(plan, state, known) if each.name != step.name and each.required]
    required_s = sum(each.timeout_s for each in to_come)
    if step.required:
        share_s = min(step.timeout_s, budget_s * step.timeout_s / (step.timeout_s + required_s))
        return (share_s, "") if share_s >= MIN_SHARE_S else (0.0, f"no time is left: {budget_s:.0f} s")
    if budget_s - required_s >= step.timeout_s:
        return step.timeout_s, ""
    return 0.0, f"it may take {step.timeout_s:.0f} s, and {max(0.0, budget_s - required_s):.0f} s are left for it"


def budget_left_s(known: EventState, view: View) -> Optional[float]:
    """The time to NotBefore less the reserve; None: no limit is known."""
    left_s = view.left_s(known.event)
    return None if left_s is None else max(0.0, left_s - known.reserve_s)


def limit_s(plan: Plan, me: Me, state: State, view: View, event_id: str = "") -> Optional[float]:
    """How long what is under way for this event may go on: within its budget, and within that of each that still misses
    a step and has time for it; also of one that only just appeared.
    """
    open_ = [known for known in state.events.values() if known.prepares and not known.started]
    open_ += [
        EventState(event, plan.do(event), _reserve_s(plan, view.left_s(event)), state.boot)
        for event in (view.document.events if view.document is not None else ())
        if _is_new(state, event) and me.is_in(event) and not event.started
    ]
    limits_s = []
    for known in open_:
        budget_s = budget_left_s(known, view) if known.prepares else None
        misses = any(True for _ in _missing(plan, state, known))
        if budget_s is not None and (known.event.id == event_id or (budget_s > 0 and misses)):
            limits_s.append(budget_s)
    return min(limits_s, default=None)


# -- 4. approving


def _approval(plan: Plan, me: Me, state: State, known: EventState, view: View) -> Optional[Action]:
    if view.document is None or why_not_approved(plan, me, state, known) or not view.due(f"approve {known.event.id}"):
        return None
    event = view.document.event(known.event.id)
    if event is None or event.status != SCHEDULED or not me.is_in(event):
        return None
    wanted = plan.wanted(known.event) if known.do == "prepare" else ()
    return Approve(event, view.left_s(event), tuple(step for step in wanted if step.required))


def lapsed(state: State, step: Step, event: Event) -> Dict[str, Any]:
    """A required step that no longer holds is prepared again, in the time there is; but not for ever."""
    again = state.step(step.name).lapses < MAX_LAPSES
    reason = "it was prepared, and " + ("no longer is" if again else "does not stay so")
    return {"kind": "lapsed", "step": step.name, "event": event.id, "again": again, "reason": reason}


def why_not_approved(plan: Plan, me: Me, state: State, known: EventState) -> str:
    """ "" when nothing keeps us from approving; else the reason, in words for people."""
    if known.approved:
        return "it is approved"
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
    return _unfinished(plan, state, known) if known.do == "prepare" else ""


def _unfinished(plan: Plan, state: State, known: EventState) -> str:
    for step in _missing(plan, state, known):
        begun = state.step(step.name).under_way == "prepare"
        return f"step {step.name!r} is {'under way' if begun else 'yet to be done'}"
    for step in plan.wanted(known.event):
        remembered = state.step(step.name)
        if step.required and not remembered.held:
            _, reason = remembered.outcomes.get(known.event.id, (False, ""))
            return f"required step {step.name!r} is not prepared: {reason}"
    return ""


# -- 5. coming back


def _comes_back(state: State, view: View) -> bool:
    """An event is over; or there is none to wait for, as when a damaged journal has lost it."""
    if any(known.over for known in state.events.values()):
        return True
    return view.document is not None and not any(known.do != "ignore" for known in state.events.values())


def _recovered(plan: Plan, me: Me, state: State, view: View) -> Optional[Action]:
    del me
    if view.document is None and not _comes_back(state, view):
        return None
    wanted = {step.name for known in state.events.values() if known.prepares for step in plan.wanted(known.event)}
    for step in reversed(plan.steps):
        remembered = state.steps.get(step.name)
        if remembered is not None and remembered.dirty and step.name not in wanted:
            # In reverse: what was prepared before it is not touched until this one is undone.
            return Recover(step, _last_over(state)) if view.due(f"recover {step.name}") else _wait(state, view)
    for name, remembered in state.steps.items():
        if remembered.dirty and plan.step(name) is None and _comes_back(state, view):
            reason = "it is no longer configured: it cannot be undone"
            return Note(
                {
                    "kind": "end",
                    "phase": "recover",
                    "step": name,
                    "ok": True,
                    "reason": reason,
                    "took_s": 0,
                    "event": "",
                }
            )
    return None


def _healthy(plan: Plan, me: Me, state: State, view: View) -> Optional[Action]:
    del me
    busy = any(step.dirty for step in state.steps.values())
    under_way = any(known.open and known.started and known.do != "ignore" for known in state.events.values())
    if not (state.out_of_service and _comes_back(state, view)) or busy or under_way:
        return None
    if plan.health is not None and not view.due("health"):
        return _wait(state, view)
    return CheckHealth(_last_over(state))


def _last_over(state: State) -> Optional[Event]:
    return next((known.event for known in reversed(list(state.events.values())) if known.over), None)
