"""The invariant of every approval, whatever happens to the steps."""

from hypothesis import given
from hypothesis import strategies as st

from forewarn.guest.actions import Approve, CheckHealth, Note, Prepare, Recover
from forewarn.guest.decide import decide, lapsed_record, why_not_approved
from forewarn.guest.plan import Plan
from forewarn.guest.state import State
from tests.guest.test_decide import E3, E4, ME, event_in, step_of, view_of
from tests.support.fake_endpoint import E1, E2

RED = {"kind": "health", "ok": False, "reason": "red"}


@given(data=st.data())
def test_an_approval_never_has_a_reason_against_it(data: st.DataObject) -> None:
    """However steps and clients act, Approve means that every required step is prepared and every awaited client approved."""
    steps = tuple(step_of(f"s{n}", 10, required=data.draw(st.booleans())) for n in range(data.draw(st.integers(0, 4))))
    plan, state = Plan(steps=steps), State()
    listed, to_come, holds = [event_in(900), event_in(700, E2)], [event_in(900, E3), event_in(800, E4)], set[str]()
    for _ in range(60):
        if data.draw(st.integers(0, 5)) == 0:
            listed = to_come[:1] if data.draw(st.booleans()) else []
            to_come = to_come[len(listed) :]
        chosen = data.draw(st.integers(0, 15))
        awaited = {name: 5.0 for name, bit in (("c0", 1), ("c1", 2)) if chosen & bit}
        if chosen & 4:
            state.apply({"kind": "client-approved", "client": "c0" if chosen & 8 else "c1", "ids": [E1, E3]})
        action = decide(plan, ME, state, view_of(*listed, awaited=awaited))
        if isinstance(action, Note):
            state.apply(action.record)
        elif isinstance(action, Prepare | Recover):
            phase = "prepare" if isinstance(action, Prepare) else "recover"
            about = {"step": action.step.name, "event": action.event.id if action.event else "", "phase": phase}
            state.apply({"kind": "begin", "share_s": 1, **about})
            holds.discard(action.step.name)
            if data.draw(st.booleans()):  # else it is interrupted here, and asked for again
                ok = data.draw(st.booleans())
                state.apply({"kind": "end", "ok": ok, "took_s": 1, "reason": "" if ok else "no", **about})
                holds |= {action.step.name} if ok and phase == "prepare" else set()
        elif isinstance(action, CheckHealth):
            state.apply({"kind": "in-service"} if data.draw(st.booleans()) else {**RED, "tell": []})
        elif isinstance(action, Approve):
            assert why_not_approved(plan, ME, state, state.events[action.event.id], awaited) == ""
            assert set(awaited) <= set(state.client_approvals.get(action.event.id, ()))
            required = [step for step in steps if step.required]
            assert all(step.name in holds for step in required)
            assert list(action.required) == required
            if data.draw(st.booleans()) and required:  # somebody has undone it meanwhile
                state.apply(lapsed_record(state, required[0], action.event))
                holds.discard(required[0].name)
                assert why_not_approved(plan, ME, state, state.events[action.event.id])
            else:
                state.apply({"kind": "approved", "ids": [action.event.id]})
