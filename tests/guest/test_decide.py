"""`decide` as a pure function: the arithmetic of the budget, and which action comes first."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from forewarn.guest.actions import Approve, Note, Prepare, View, Wait
from forewarn.guest.budget import limit_s
from forewarn.guest.decide import decide, is_needed, record_document, why_not_approved
from forewarn.guest.document import Document, Event
from forewarn.guest.names import Me
from forewarn.guest.plan import Plan, Rule, Step, When
from forewarn.guest.state import State
from tests.support.fake_endpoint import E1, E2

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ME = Me("web-0")
E3, E4 = E1[:-1] + "3", E1[:-1] + "4"


def event_in(seconds: float, event_id: str = E1, **more: object) -> Event:
    fields = {"status": "Scheduled", "type": "Reboot", "resources": ("web-0",), **more}
    return Event(id=event_id, not_before=NOW + timedelta(seconds=seconds + 1), **fields)  # type: ignore[arg-type]


def view_of(*events: Event, now_s: float = 0.0, awaited: Mapping[str, float] | None = None) -> View:
    return View(now_s=now_s, document=Document("1", events, date=NOW, received_s=0.0), awaited=awaited or {})


def step_of(name: str, timeout_s: float, *, required: bool = False) -> Step:
    return Step(name, "command", None, timeout_s=timeout_s, required=required)


def first_choice(plan: Plan, view: View) -> tuple[State, Prepare | Approve | Wait]:
    """Return the state and the first action that is not a Note."""
    state = State()
    while True:
        action = decide(plan, ME, state, view)
        if not isinstance(action, Note):
            assert isinstance(action, Prepare | Approve | Wait)
            return state, action
        state.apply(action.record)


@pytest.mark.parametrize(
    ("left_s", "steps", "expected"),
    [
        (900, [("a", 60, True), ("b", 120, True)], ("a", 60)),  # there is time for everything
        (130, [("a", 60, True), ("b", 120, True)], ("a", 33.3)),  # 100 s shared out 1 : 2
        (900, [("a", 600, False), ("b", 200, True)], ("a", 600)),  # an optional one that fits before the required
        (900, [("a", 700, False), ("b", 200, True)], ("b", 200)),  # one that does not is passed over
        (30, [("a", 60, False)], None),  # and then there is nothing to wait for
        (30, [("a", 60, True)], ("a", 22.5)),  # the reserve is at most a quarter
        (1, [("a", 60, True)], None),  # less than a second is no time
    ],
)
def test_how_the_budget_is_shared(
    left_s: float, steps: list[tuple[str, float, bool]], expected: tuple[str, float] | None
) -> None:
    """Required steps share the time to NotBefore less the reserve, and no step begins that cannot end."""
    plan = Plan(steps=tuple(step_of(name, timeout_s, required=required) for name, timeout_s, required in steps))
    _, action = first_choice(plan, view_of(event_in(left_s)))
    if expected is None:
        assert not isinstance(action, Prepare)
    else:
        assert isinstance(action, Prepare)
        assert (action.step.name, round(action.share_s, 1)) == expected


def test_steps_begin_no_earlier_than_prepare_within() -> None:
    """The agent waits until then, approves nothing meanwhile, and prepares a more urgent event at once."""
    plan = Plan(prepare_within_s=300, steps=(step_of("a", 60, required=True),))
    state, action = first_choice(plan, view_of(event_in(900)))
    assert action == Wait(600)
    assert why_not_approved(plan, ME, state, state.events[E1]) == "step 'a' is yet to be done"
    assert isinstance(decide(plan, ME, state, view_of(event_in(900), now_s=600)), Prepare)
    _, urgent = first_choice(plan, view_of(event_in(900), event_in(200, E2)))
    assert isinstance(urgent, Prepare)
    assert urgent.event.id == E2
    _, at_once = first_choice(Plan(steps=plan.steps), view_of(event_in(900)))
    assert isinstance(at_once, Prepare)


def test_an_event_without_steps_is_approved_at_once() -> None:
    """There is nothing to prepare later."""
    _, action = first_choice(Plan(prepare_within_s=300), view_of(event_in(900)))
    assert isinstance(action, Approve)


def test_a_new_event_limits_the_current_step() -> None:
    """An urgent event limits the current step before it is recorded, unless it is ignored or names another machine."""
    plan = Plan(rules=(Rule(When(types=("Freeze",)), "ignore"),), steps=(step_of("a", 600),))
    state, _ = first_choice(plan, view_of(event_in(900)))
    assert limit_s(plan, ME, state, view_of(event_in(900))) == 870
    preempt = event_in(40, E2, type="Preempt")
    assert limit_s(plan, ME, state, view_of(event_in(900), preempt)) == 30
    assert limit_s(plan, ME, state, view_of(event_in(900), event_in(40, E2, type="Freeze"))) == 870
    assert limit_s(plan, ME, state, view_of(event_in(900), event_in(40, E2, resources=("web-1",)))) == 870
    assert limit_s(plan, ME, State(), view_of()) is None
    assert limit_s(plan, ME, state, view_of(event_in(90)), E1) == 60, "its NotBefore moved meanwhile"


def test_an_event_without_time_or_steps_limits_no_other() -> None:
    """An event inside its reserve or overdue does not limit other events; an event's own budget always counts."""
    plan = Plan(approve="never", steps=(step_of("a", 5), Step("b", "command", None, When(types=("Redeploy",)), 5.0)))
    view = view_of(event_in(900, type="Redeploy"), event_in(400, E2))
    state, _ = first_choice(plan, view)
    assert limit_s(plan, ME, state, view, E1) == 370
    assert limit_s(plan, ME, state, View(380.0, view.document), E1) == 490, "E2 is inside its reserve"
    assert limit_s(plan, ME, state, View(500.0, view.document), E1) == 370, "E2 is overdue"
    assert limit_s(plan, ME, state, View(880.0, view.document), E1) == 0
    about = {"step": "a", "event": E2, "phase": "prepare"}
    state.apply({"kind": "begin", "share_s": 1, **about})
    state.apply({"kind": "end", "ok": True, "took_s": 1, **about})
    assert limit_s(plan, ME, state, view, E1) == 870, "E2 misses no step"


def test_a_step_waits_behind_an_event_that_would_interrupt_it() -> None:
    """It begins when the more urgent event has started or is overdue."""
    plan = Plan(approve="never", steps=(Step("a", "command", None, When(types=("Redeploy",)), 60.0),))
    near, far = event_in(40), event_in(900, E2, type="Redeploy")
    _, action = first_choice(plan, view_of(near, far))
    assert action == Wait(40.0)
    _, action = first_choice(plan, view_of(near, far, now_s=41.0))
    assert isinstance(action, Prepare)
    _, action = first_choice(plan, view_of(event_in(40, status="Started"), far))
    assert isinstance(action, Prepare)
    _, action = first_choice(plan, view_of(event_in(40, type="Freeze"), far))
    assert isinstance(action, Prepare), "a freeze interrupts nothing"


def test_the_urgent_event_is_approved_before_the_next_is_prepared() -> None:
    """An approval does not wait for another event's steps."""
    plan = Plan(steps=(Step("a", "command", None, When(types=("Redeploy",)), 60.0),))
    _, action = first_choice(plan, view_of(event_in(900, E2, type="Redeploy"), event_in(700)))
    assert isinstance(action, Approve)
    assert action.event.id == E1


def test_a_step_is_needed_by_open_events_only() -> None:
    """A step is needed from the first event that wants it to the end of the last one; its type and the rules count."""
    step = Step("a", "command", None, When(types=("Reboot",)))
    plan = Plan(approve="never", rules=(Rule(When(sources=("User",)), "ignore"),), steps=(step,))
    state = State()
    for events, needed in [
        ((event_in(900, type="Freeze"), event_in(900, E2, source="User")), False),
        ((event_in(900, E3), event_in(900, E4)), True),
        ((event_in(900, E3, status="Started"),), True),
        ((event_in(900, E4, type="Freeze"),), False),
    ]:
        while (note := record_document(plan, ME, state, view_of(*events))) is not None:
            state.apply(note.record)
        assert is_needed(plan, state, step) is needed


def test_without_a_document_nothing_is_decided_about_events() -> None:
    """Without a document no event counts as gone."""
    plan = Plan(steps=(step_of("a", 60),))
    state, _ = first_choice(plan, view_of(event_in(900)))
    assert decide(plan, ME, state, View(now_s=0.0)) == Wait(None)


def test_an_awaited_client_delays_the_approval() -> None:
    """The agent waits until the first of the missing clients would be silent for too long; others do not matter."""
    view = view_of(event_in(900), awaited={"slow": 50.0, "fast": 20.0})
    state, action = first_choice(Plan(), view)
    assert action == Wait(20.0)
    state.apply({"kind": "client-approved", "client": "fast", "ids": [E1, E2]})
    assert decide(Plan(), ME, state, view) == Wait(50.0)
    known = state.events[E1]
    assert why_not_approved(Plan(), ME, state, known, view.awaited) == "client 'slow' has not approved it"
    assert isinstance(decide(Plan(), ME, state, view_of(event_in(900), awaited={"fast": 20.0})), Approve)
    state.apply({"kind": "client-approved", "client": "slow", "ids": [E1]})
    assert isinstance(decide(Plan(), ME, state, view), Approve)


def test_a_checkpoint_is_prepared_for_each_event() -> None:
    """A checkpoint for one event does not serve the next; any other step is prepared once for both."""
    plan = Plan(approve="never", steps=(Step("a", "command", None), Step("b", "checkpoint", None)))
    view = view_of(event_in(900), event_in(950, E2))
    state, action = first_choice(plan, view)
    prepared = []
    while isinstance(action, Prepare):
        prepared.append((action.step.name, action.event.id))
        about = {"step": action.step.name, "event": action.event.id, "phase": "prepare"}
        state.apply({"kind": "begin", "share_s": 1, **about})
        state.apply({"kind": "end", "ok": True, "took_s": 1, **about})
        action = decide(plan, ME, state, view)  # type: ignore[assignment]
    assert prepared == [("a", E1), ("b", E1), ("b", E2)]
