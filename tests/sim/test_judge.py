"""The judge accepts a correct history and complains of each kind of wrong one."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.change import Change
from forewarn.core.model import (
    Approval,
    ApprovalMode,
    AuditEntry,
    ClockHold,
    Event,
    EventType,
    Maintenance,
    MaintenanceStatus,
    Order,
    OrderState,
    Scope,
    ScopeKind,
    Source,
    Status,
)
from forewarn.core.operator_model import Receipt
from forewarn.store.memory import MemoryStore
from tests.sim.history import (
    Acknowledged,
    Adopted,
    Alarm,
    Answered,
    Approved,
    ClockMoved,
    Committed,
    Entry,
    ExecutorCalled,
    FailedOver,
    Forgotten,
    NodeStarted,
    Shown,
    StatusRequested,
    Submitted,
    Unanswered,
)
from tests.sim.judge import judge
from tests.sim.people import WRONG_ID
from tests.sim.universe import START

MINUTE = 60_000
PUBLISHED, STARTED, ENDED = 1 * MINUTE, 17 * MINUTE, 20 * MINUTE


def at(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


SCOPE = Scope(name="shop", kind=ScopeKind.AVAILABILITY_SET, approval=ApprovalMode.ALL, changed=START)
ENABLED = replace(SCOPE, enabled=True, epoch=1, version=1)
MAINTENANCE = Maintenance(
    id="M", type=EventType.REBOOT, source=Source.PLATFORM, created=START + at(PUBLISHED), created_by="operator"
)
EVENT = Event(
    id="E",
    maintenance_id="M",
    wave=1,
    position=0,
    scope="shop",
    update_domain=0,
    type=EventType.REBOOT,
    source=Source.PLATFORM,
    resources=("web-0",),
    status=Status.SCHEDULED,
    approval_mode=ApprovalMode.ALL,
    sequence=1,
    published=START + at(PUBLISHED),
    not_before=START + at(16 * MINUTE),
    minimum_notice_s=900,
)
STARTS = replace(EVENT, status=Status.STARTED, started=START + at(STARTED))
ENDS = replace(STARTS, status=Status.COMPLETED, ended=START + at(ENDED))
ORDER = Order(id="E", issued=START + at(STARTED))
TAKEN = replace(ORDER, state=OrderState.RUNNING, node="executor on n1", taken=START + at(STARTED))
DONE = replace(TAKEN, state=OrderState.DONE, ended=START + at(ENDED))


def noted(action: str, ms: int, who: str = "ticker") -> tuple[AuditEntry, ...]:
    event_id, maintenance_id = ("", "") if action.startswith("scope") else ("E", "M")
    at_ = START + at(ms)
    entry = AuditEntry(at=at_, who=who, action=action, scope="shop", event_id=event_id, maintenance_id=maintenance_id)
    return (entry,)


def scope(incarnation: int, version: int, ms: int) -> tuple[Scope, ...]:
    return (replace(ENABLED, incarnation=incarnation, version=version, changed=START + at(ms)),)


def shown(ms: int, etag: str, *, held: str = "", life: str = "n1", machine: str = "web-0") -> Shown:
    events = {
        '"1"': "",
        '"2"': '{"EventId":"E","EventStatus":"Scheduled"}',
        '"3"': '{"EventId":"E","EventStatus":"Started"}',
        '"4"': "",
    }
    body = b"" if held == etag else f'{{"DocumentIncarnation":{etag[1]},"Events":[{events[etag]}]}}'.encode()
    return Shown(ms, life, "shop", machine, held, etag, body)


def changes() -> dict[str, tuple[int, Change]]:
    """Return a correct history: a fleet is applied and enabled; an unapproved Reboot is published, starts in time, and ends."""
    ended = replace(MAINTENANCE, status=MaintenanceStatus.COMPLETED, ended=START + at(ENDED), version=1)
    receipt = Receipt(token_id="t", key="key-1", digest="d", status=201, body="M", at=START)
    return {
        "stated": (0, Change(at=START, scopes=(SCOPE,))),
        "enabled": (1, Change(at=START, scopes=(ENABLED,), audit=noted("scope enabled", 0))),
        "published": (
            PUBLISHED,
            Change(
                at=START + at(PUBLISHED),
                scopes=scope(2, 2, PUBLISHED),
                maintenances=(MAINTENANCE,),
                events=(EVENT,),
                receipts=(receipt,),
                audit=noted("event published", PUBLISHED),
            ),
        ),
        "started": (
            STARTED,
            Change(
                at=START + at(STARTED),
                scopes=scope(3, 3, STARTED),
                events=(STARTS,),
                orders=(ORDER,),
                audit=noted("event started", STARTED),
            ),
        ),
        "taken": (STARTED + 1, Change(at=START + at(STARTED), scopes=scope(3, 4, STARTED), orders=(TAKEN,))),
        "ended": (
            ENDED,
            Change(
                at=START + at(ENDED),
                scopes=scope(4, 5, ENDED),
                events=(ENDS,),
                orders=(DONE,),
                maintenances=(ended,),
                audit=noted("event completed", ENDED),
            ),
        ),
    }


class Case:
    """A correct history that a test changes into a wrong one."""

    def __init__(self) -> None:
        self.changes = changes()
        self.others: list[Entry] = [
            shown(2, '"1"'),
            shown(5 * MINUTE, '"2"', held='"1"'),
            shown(6 * MINUTE, '"2"', held='"2"'),
            Submitted(PUBLISHED + 1, "key-1", "M"),
            ExecutorCalled(STARTED + 2, "n1", "E", 1, True),
            shown(18 * MINUTE, '"3"', held='"2"'),
            shown(21 * MINUTE, '"4"', held='"3"'),
        ]
        self.lost: set[str] = set()

    def add(self, *entries: Entry) -> None:
        self.others += entries

    def drop(self, kind: type) -> None:
        self.others = [entry for entry in self.others if not isinstance(entry, kind)]

    def drop_after(self, ms: int) -> None:
        self.others = [entry for entry in self.others if entry.at_ms <= ms or not isinstance(entry, Shown)]

    def bend(self, name: str, ms: int | None = None, **fields: object) -> None:
        known, change = self.changes[name]
        self.changes[name] = (known if ms is None else ms, replace(change, **fields))  # type: ignore[arg-type]

    def verdict(self) -> tuple[list[str], tuple[int, int]]:
        store, entries = MemoryStore(), list(self.others)
        store._check = lambda change: None  # type: ignore[method-assign]
        for name, (ms, change) in sorted(self.changes.items(), key=lambda row: row[1][0]):
            if name not in self.lost:
                store.apply(change)
            entries += [Committed(ms, "n1", change), Acknowledged(ms, "n1", change)]
        entries.sort(key=lambda entry: entry.at_ms)
        return judge(entries, store, tolerance_ms=1_000)


def test_a_correct_history_gives_no_complaint() -> None:
    """The judge has no complaint, and the guest got its notice."""
    assert Case().verdict() == ([], (1, 1))


def early(case: Case) -> None:
    case.bend("started", 10 * MINUTE, events=(replace(STARTS, started=START + at(10 * MINUTE)),))


def early_by_a_clock_that_jumped(case: Case) -> None:
    case.bend("started", 10 * MINUTE)


def before_earliest(case: Case) -> None:
    case.bend("published", maintenances=(replace(MAINTENANCE, earliest=START + at(ENDED)),))


def started_while_paused(case: Case) -> None:
    case.bend("published", maintenances=(replace(MAINTENANCE, paused=True),))


def started_while_cancelled(case: Case) -> None:
    case.bend("published", maintenances=(replace(MAINTENANCE, cancelled=True),))


def started_twice(case: Case) -> None:
    again = Change(at=START + at(ENDED), scopes=scope(5, 6, ENDED), events=(STARTS,))
    case.changes["again"] = (ENDED + 1, again)


def no_order(case: Case) -> None:
    case.bend("started", orders=())


def too_little_notice(case: Case) -> None:
    case.bend("published", events=(replace(EVENT, not_before=START + at(10 * MINUTE)),))


def notice_half_gone(case: Case) -> None:
    case.changes["published"] = (PUBLISHED + 2 * MINUTE, case.changes["published"][1])
    case.drop(Submitted)


def moved_not_before(case: Case) -> None:
    case.bend("started", events=(replace(STARTS, not_before=START + at(5 * MINUTE)),))


def two_domains(case: Case) -> None:
    other = replace(EVENT, id="F", maintenance_id="N", update_domain=1, resources=("web-1",), needs_approval=False)
    case.bend("published", events=(EVENT, other), maintenances=(MAINTENANCE, replace(MAINTENANCE, id="N")))
    started = (STARTS, replace(other, status=Status.STARTED, started=START + at(STARTED)))
    case.bend("started", events=started, orders=(ORDER, replace(ORDER, id="F")))


def one_machine_twice(case: Case) -> None:
    other = replace(EVENT, id="F", maintenance_id="N", needs_approval=False)
    case.bend("published", events=(EVENT, other), maintenances=(MAINTENANCE, replace(MAINTENANCE, id="N")))
    started = (STARTS, replace(other, status=Status.STARTED, started=START + at(STARTED)))
    case.bend("started", events=started, orders=(ORDER, replace(ORDER, id="F")))


def half_a_wave(case: Case) -> None:
    case.bend("published", events=(EVENT, replace(EVENT, id="F", resources=("web-1",))))


def two_waves(case: Case) -> None:
    case.bend("published", events=(EVENT, replace(EVENT, id="F", wave=2, resources=("web-1",))))


def overtaking(case: Case) -> None:
    waiting = replace(EVENT, id="F", maintenance_id="A", resources=("web-1",), needs_approval=False)
    case.bend("published", events=(EVENT, waiting), maintenances=(MAINTENANCE, replace(MAINTENANCE, id="A")))


def written_over(case: Case) -> None:
    case.bend("started", scopes=scope(3, 2, STARTED))


def maintenance_written_over(case: Case) -> None:
    case.bend("ended", maintenances=(replace(case.changes["ended"][1].maintenances[0], version=0),))


def incarnation_stays(case: Case) -> None:
    case.bend("started", scopes=scope(2, 3, STARTED))


def epoch_by_itself(case: Case) -> None:
    case.bend("started", scopes=(replace(scope(1, 3, STARTED)[0], epoch=2),))


def time_backwards(case: Case) -> None:
    case.bend("started", scopes=scope(3, 3, 0))


def approval_twice(case: Case) -> None:
    change = Change(at=START, approvals=(Approval(event_id="E", machine="web-0", who="w", at=START),))
    case.changes |= {"once": (2 * MINUTE, change), "twice": (3 * MINUTE, change)}
    case.add(Approved(2 * MINUTE, "n1", "shop", "web-0", ("E",), 200))


def approval_without_a_request(case: Case) -> None:
    change = Change(at=START, approvals=(Approval(event_id="E", machine="web-0", who="w", at=START),))
    case.changes["once"] = (2 * MINUTE, change)
    case.add(Approved(2 * MINUTE, "n1", "shop", "web-0", ("E", WRONG_ID), 503))


def approval_lost(case: Case) -> None:
    case.add(Approved(2 * MINUTE, "n1", "shop", "web-0", ("E",), 200))


def wrong_id_accepted(case: Case) -> None:
    case.add(Approved(2 * MINUTE, "n1", "shop", "web-0", ("E", WRONG_ID), 200))


def two_for_one_key(case: Case) -> None:
    case.drop(Submitted)
    case.add(Submitted(PUBLISHED + 1, "key-1", "another"))


def older_document(case: Case) -> None:
    case.add(shown(STARTED + 3_000, '"2"', held='"3"', life="n2"))


def not_its_own_write(case: Case) -> None:
    case.add(Answered(PUBLISHED + 2, "n1", (("shop", 1, 2),)), shown(PUBLISHED + 3, '"1"'))


def stale_for_too_long(case: Case) -> None:
    case.add(shown(10 * MINUTE, '"1"', life="n2", machine="web-9"))


def two_contents(case: Case) -> None:
    case.add(Shown(7 * MINUTE, "n2", "shop", "web-9", "", '"2"', b'{"DocumentIncarnation":2,"Events":[]}'))


def other_content(case: Case) -> None:
    case.others = [
        replaced._replace(body=b'{"DocumentIncarnation":4,"Events":[{"EventId":"E","EventStatus":"Started"}]}')
        if isinstance(replaced, Shown) and replaced.etag == '"4"'
        else replaced
        for replaced in case.others
    ]


def unchanged_by_another_tag(case: Case) -> None:
    case.add(Shown(7 * MINUTE, "n1", "shop", "web-0", '"1"', '"2"', b""))


def never_saved(case: Case) -> None:
    case.add(Shown(22 * MINUTE, "n1", "shop", "web-0", "", '"9"', b""))


def no_notice(case: Case) -> None:
    case.drop(Shown)
    case.add(*(Unanswered(minute * MINUTE, "shop", "web-0") for minute in range(2, 17)))


def disabled_while_polling(case: Case) -> None:
    off = (replace(scope(4, 6, ENDED)[0], enabled=False),)
    change = Change(at=START, scopes=off, audit=noted("scope disabled", ENDED, "idle watch"))
    case.changes["disabled"] = (22 * MINUTE, change)


def executed_before_saved(case: Case) -> None:
    case.drop(ExecutorCalled)
    case.add(ExecutorCalled(STARTED, "n1", "E", 1, True))


def executed_without_status(case: Case) -> None:
    case.add(ExecutorCalled(STARTED + 5, "n2", "E", 1, False))


def executed_though_known(case: Case) -> None:
    case.add(StatusRequested(STARTED + 4, "n2", "E", 1, False), ExecutorCalled(STARTED + 5, "n2", "E", 1, False))


def done_twice(case: Case) -> None:
    case.add(StatusRequested(STARTED + 4, "n2", "E", 1, True), ExecutorCalled(STARTED + 5, "n2", "E", 1, True))


def begun_after_it_failed(case: Case) -> None:
    """The order had failed before the node requested its status."""
    case.drop(ExecutorCalled)
    fail(case, STARTED + 10)
    case.add(StatusRequested(STARTED + 11, "n1", "E", 1, True), ExecutorCalled(STARTED + 12, "n1", "E", 1, True))


def fail(case: Case, ms: int) -> None:
    failed = replace(TAKEN, state=OrderState.FAILED, reason="timed out", ended=START + at(ms))
    case.add(Committed(ms, "n2", Change(at=START, orders=(failed,))))


def never_executed(case: Case) -> None:
    case.drop(ExecutorCalled)
    failed = replace(TAKEN, state=OrderState.FAILED, reason="timed out: no result", ended=START + at(ENDED))
    case.changes["late"] = (ENDED - 1, Change(at=START, orders=(failed,)))


def lost_change(case: Case) -> None:
    case.lost = {"ended"}


def early_by_an_unconfirmed_jump(case: Case) -> None:
    case.bend("started", 10 * MINUTE)
    case.add(ClockMoved(2 * MINUTE, 10 * MINUTE))


def early_though_it_was_held(case: Case) -> None:
    """A node that started after the jump could read that the clock is held."""
    case.bend("started", 10 * MINUTE)
    held = Change(at=START, hold=ClockHold(trusted=START + at(2 * MINUTE), noticed=START, jumped_s=600, node="n2"))
    case.add(ClockMoved(2 * MINUTE, 10 * MINUTE), Committed(2 * MINUTE + 1, "n2", held), NodeStarted(3 * MINUTE, "n1"))


def early_though_its_state_folder_knew(case: Case) -> None:
    """A node that started after the jump, on a machine that ran before it, has a reading of the clock from before."""
    case.bend("started", 10 * MINUTE)
    case.add(
        NodeStarted(0, "n1#1", "n1, boot 1"),
        ClockMoved(2 * MINUTE, 10 * MINUTE),
        NodeStarted(3 * MINUTE, "n1", "n1, boot 1"),
    )


def taken_over_without_status(case: Case) -> None:
    case.add(taken_over(STARTED + 5), ExecutorCalled(STARTED + 6, "n2", "E", 1, False))


def older_than_it_showed(case: Case) -> None:
    case.add(shown(18 * MINUTE + 1, '"2"', machine="web-1"))


def lost_by_no_failover(case: Case) -> None:
    failed_over(case, lost=())


def alarmed(case: Case) -> None:
    case.add(Alarm(5, "n1", "invariant 1: oh"))


WRONG: dict[Callable[[Case], None], str] = {
    early: "started before its NotBefore and without approval",
    early_by_a_clock_that_jumped: "started 540 s after its publication",
    before_earliest: "before the earliest start",
    started_while_paused: "was paused",
    started_while_cancelled: "was cancelled",
    started_twice: "went from Completed to Started",
    no_order: "started without an order",
    too_little_notice: "less than its notice of 900 s",
    notice_half_gone: "for the first part of its notice",
    moved_not_before: "changed its NotBefore",
    two_domains: "had another update domain",
    one_machine_twice: "had a machine of it",
    half_a_wave: "was left behind",
    two_waves: "visible at once",
    overtaking: "overtook event F",
    written_over: "scope shop was written over",
    maintenance_written_over: "maintenance M was written over",
    incarnation_stays: "the incarnation of shop went from 2 to 2",
    epoch_by_itself: "went from epoch 1 to 2",
    time_backwards: "time ran backwards for shop",
    approval_twice: "was recorded twice",
    approval_without_a_request: "which never approved it",
    approval_lost: "was acknowledged and is lost",
    wrong_id_accepted: "and got status 200",
    two_for_one_key: "request key-1 was answered with another",
    older_document: "showed it the older",
    not_its_own_write: "the document before it",
    stale_for_too_long: "long after it was replaced",
    two_contents: "with two contents",
    other_content: "with another content than was saved",
    unchanged_by_another_tag: "is unchanged by",
    never_saved: "which was never saved",
    no_notice: "did not get its notice of event E",
    disabled_while_polling: "was disabled though a guest had polled 1020 s before",
    executed_before_saved: "without having taken it",
    executed_without_status: "or requested its status",
    executed_though_known: "or requested its status",
    done_twice: "was done twice",
    begun_after_it_failed: "was done while it was saved as failed",
    never_executed: "never executed: it timed out",
    lost_change: "event E was acknowledged as Completed and is Started",
    early_by_an_unconfirmed_jump: "started 540 s after its publication",
    early_though_it_was_held: "started 540 s after its publication",
    early_though_its_state_folder_knew: "started 540 s after its publication",
    taken_over_without_status: "or requested its status",
    older_than_it_showed: "which it had shown",
    lost_by_no_failover: "an audit entry was acknowledged and is lost",
    alarmed: "raised an error that must not happen: invariant 1: oh",
}


@pytest.mark.parametrize("bend", WRONG, ids=lambda each: each.__name__)
def test_a_wrong_history_gives_its_complaint(bend: Callable[[Case], None]) -> None:
    """Each wrong history has a complaint of its own."""
    case = Case()
    bend(case)
    complaints, _ = case.verdict()
    assert any(WRONG[bend] in sentence for sentence in complaints), complaints


def test_a_node_is_not_blamed_for_what_it_could_not_know() -> None:
    """An order that the executor forgot may be done again; a small step of the clock excuses an early start."""
    case = Case()
    case.add(
        Forgotten(STARTED + 3, "E", 1),
        StatusRequested(STARTED + 4, "n2", "E", 1, True),
        ExecutorCalled(STARTED + 5, "n2", "E", 1, True),
    )
    assert case.verdict()[0] == []
    case = Case()
    case.bend("started", 16 * MINUTE - 30_000)
    case.add(ClockMoved(2 * MINUTE, 30_000))
    assert case.verdict()[0] == []


@pytest.mark.parametrize(("approved_ms", "blamed"), [(STARTED - 1_000, False), (STARTED - 3_000, True)])
def test_an_approval_that_is_saved_during_a_start_holds_nothing_back(approved_ms: int, blamed: bool) -> None:
    """The start was decided two seconds before it was saved: only the approvals before that put another event ahead."""
    case, rival = Case(), replace(MAINTENANCE, id="A")
    late = START + at(18 * MINUTE)
    waiting = replace(EVENT, id="F", maintenance_id="A", resources=("web-1",), not_before=late)
    event, later = replace(EVENT, not_before=late), replace(STARTS, not_before=late)
    case.bend("published", events=(event, waiting), maintenances=(MAINTENANCE, rival))
    given = [Approval(event_id=i, machine=m, who=m, at=START) for i, m in (("E", "web-0"), ("F", "web-1"))]
    case.changes["first"] = (STARTED - 10_000, Change(at=START + at(STARTED - 10_000), approvals=(given[0],)))
    case.changes["second"] = (approved_ms, Change(at=START + at(approved_ms), approvals=(given[1],)))
    case.bend("started", at=START + at(STARTED - 2_000), events=(later,))
    assert any("overtook event F" in complaint for complaint in case.verdict()[0]) is blamed


def test_an_order_may_fail_just_before_its_work_begins() -> None:
    """A node that stood still between taking an order and beginning it cannot know that the order failed meanwhile."""
    case = Case()
    case.drop(ExecutorCalled)
    fail(case, STARTED + 10)
    case.add(ExecutorCalled(STARTED + 12, "n1", "E", 1, True))
    assert "was done while" not in str(case.verdict()[0])


def taken_over(ms: int) -> Committed:
    return Committed(ms, "n2", Change(at=START, orders=(replace(TAKEN, node="executor on n2"),)))


def failed_over(case: Case, *, lost: tuple[Change, ...]) -> None:
    """Lose the last commit in a failover; the new server starts new epochs, and the event ends a second time."""
    case.lost = {"ended"}
    case.add(FailedOver(ENDED + 1, lost), Adopted(ENDED + 2))
    case.drop_after(ENDED)
    changed = {"epoch": 1_001, "version": 1_000_005, "changed": START + at(ENDED)}
    started = replace(ENABLED, incarnation=1, **changed)  # type: ignore[arg-type]
    ended = replace(MAINTENANCE, status=MaintenanceStatus.COMPLETED, ended=START + at(ENDED), version=1)
    again = Change(
        at=START + at(ENDED),
        scopes=(replace(started, incarnation=2),),
        events=(ENDS,),
        orders=(DONE,),
        maintenances=(ended,),
        audit=noted("event completed", ENDED),
    )
    case.changes["ended again"] = (ENDED + MINUTE, again)


def test_what_a_failover_lost_is_not_demanded() -> None:
    """A lost commit need not be in the store and may be made again; later commits must be there."""
    case = Case()
    failed_over(case, lost=(case.changes["ended"][1],))
    assert case.verdict()[0] == []
    case.add(ExecutorCalled(ENDED + 5, "n1", "E", 1, True))
    assert "order E (attempt 1) was done twice" in case.verdict()[0]


def test_a_late_acknowledgement_of_a_lost_commit_is_accepted() -> None:
    """A node may acknowledge a commit after the failover that lost it; without a failover this is a complaint."""
    lost = Change(
        at=START,
        maintenances=(replace(MAINTENANCE, id="M2"),),
        approvals=(Approval(event_id="E", machine="web-0", who="web-0", at=START),),
    )
    late = (
        Submitted(2 * MINUTE + 2, "key-2", "M2"),
        Approved(2 * MINUTE + 2, "n1", "shop", "web-0", ("E",), 200),
    )
    for failed, complaints in (((FailedOver(2 * MINUTE, (lost,)), Adopted(2 * MINUTE)), 0), ((), 2)):
        case = Case()
        case.add(*failed, *late)
        complaints_found = [each for each in case.verdict()[0] if "key-2" in each or "acknowledged and is lost" in each]
        assert len(complaints_found) == complaints, complaints_found


def test_a_jump_may_be_confirmed_or_unknown() -> None:
    """A jump excuses an early start if an operator confirmed it, or if the node could not read that the clock is held."""
    held = Change(at=START, hold=ClockHold(trusted=START + at(2 * MINUTE), noticed=START, jumped_s=600, node="n2"))
    jumped, saved = ClockMoved(2 * MINUTE, 10 * MINUTE), Committed(2 * MINUTE + 1, "n2", held)
    for entries in (
        (jumped, saved, Committed(3 * MINUTE, "n2", Change(at=START, releases_hold=held.hold))),
        (jumped, NodeStarted(3 * MINUTE, "n1")),
        (jumped, saved, FailedOver(3 * MINUTE, (held,)), Adopted(3 * MINUTE)),
    ):
        case = Case()
        case.bend("started", 10 * MINUTE)
        case.add(*entries)
        assert not [sentence for sentence in case.verdict()[0] if "after its publication" in sentence]


def test_a_hold_of_a_later_jump_does_not_reveal_an_earlier_one() -> None:
    """A node whose machine started after a jump cannot know it, though it notices and saves the next jump."""
    case = Case()
    case.bend("started", 10 * MINUTE)
    held = Change(at=START, hold=ClockHold(trusted=START + at(14 * MINUTE), noticed=START, jumped_s=600, node="n1"))
    case.add(
        NodeStarted(0, "n1#1", "n1, boot 1"),
        ClockMoved(2 * MINUTE, 10 * MINUTE),
        NodeStarted(3 * MINUTE, "n1", "n1, boot 2"),
        ClockMoved(4 * MINUTE, 10 * MINUTE),
        Committed(4 * MINUTE + 1, "n1", held),
    )
    assert not [sentence for sentence in case.verdict()[0] if "after its publication" in sentence]


def disabled(case: Case, *, ms: int = 18 * MINUTE) -> list[str]:
    """Return the complaints about a scope that the idle watch disabled at that moment."""
    off = (replace(scope(4, 6, ENDED)[0], enabled=False),)
    case.changes["disabled"] = (ms, Change(at=START, scopes=off, audit=noted("scope disabled", ENDED, "idle watch")))
    return [sentence for sentence in case.verdict()[0] if "was disabled" in sentence]


def test_polls_of_which_no_time_can_be_saved_do_not_keep_a_scope_enabled() -> None:
    """No time is saved for a machine that was removed, and a failover may lose a time that was saved."""

    def polled_at_8() -> Case:
        case = Case()
        case.drop(Shown)
        case.add(shown(8 * MINUTE, '"2"'))
        return case

    assert disabled(polled_at_8()) == ["shop was disabled though a guest had polled 600 s before"]
    case = polled_at_8()
    case.changes["removed"] = (7 * MINUTE, Change(at=START, removed_machines=(("shop", "web-0"),)))
    assert disabled(case) == []
    case = polled_at_8()
    case.add(FailedOver(9 * MINUTE, (), 0, 5_000), Adopted(9 * MINUTE))
    assert disabled(case) == []
    case = polled_at_8()
    case.add(FailedOver(9 * MINUTE, ()), Adopted(9 * MINUTE))
    assert disabled(case) != []


def test_a_poll_just_after_a_jump_may_have_the_time_before_it() -> None:
    """The node has not read the clock since: the guest seems silent for as long as the clock jumped."""
    for polled_ms, complaints in ((8 * MINUTE + 500, 0), (9 * MINUTE, 1)):
        case = Case()
        case.drop(Shown)
        case.add(ClockMoved(8 * MINUTE, 10 * MINUTE), shown(polled_ms, '"2"'))
        assert len(disabled(case)) == complaints


def test_a_guest_that_saw_a_start_that_was_lost_needs_no_notice_of_it() -> None:
    """A guest polls first when the event has started. A failover loses that start, and the event starts again."""
    case = Case()
    case.drop(Shown)
    started = case.changes["started"][1]
    version = scope(1, 1_000_003, STARTED)[0]
    again = Change(
        at=started.at,
        scopes=(replace(version, epoch=1_001, incarnation=2),),
        events=started.events,
        orders=started.orders,
    )
    case.changes = {name: case.changes[name] for name in ("stated", "enabled", "published", "started")}
    case.changes["again"] = (STARTED + MINUTE, again)
    case.add(
        shown(STARTED + 30_000, '"3"'),
        FailedOver(STARTED + 35_000, (started,)),
        Adopted(STARTED + 36_000),
    )
    assert not [sentence for sentence in case.verdict()[0] if "did not get its notice" in sentence]


def test_a_guest_that_gave_up_needs_no_notice() -> None:
    """A guest that polled in vain and stopped long before the start may have missed the answer that came then."""
    case = Case()
    case.drop(Shown)
    case.add(*(Unanswered(minute * MINUTE, "shop", "web-0") for minute in range(2, 15)))
    assert case.verdict() == ([], (0, 0))


def test_a_node_may_execute_a_taken_over_order_after_requesting_its_status() -> None:
    """A node that took an order itself need not request its status."""
    case = Case()
    case.add(
        taken_over(STARTED + 5),
        StatusRequested(STARTED + 6, "n2", "E", 1, True),
        ExecutorCalled(STARTED + 7, "n2", "E", 1, False),
    )
    assert case.verdict()[0] == []


def lost_end(case: Case) -> None:
    """Save the end of an order that no executor got, and lose it in a failover: the order runs again."""
    case.drop(ExecutorCalled)
    failed = Change(
        at=START, orders=(replace(TAKEN, state=OrderState.FAILED, reason="the executor could not take it"),)
    )
    case.changes["failed"] = (STARTED + 10, failed)
    case.lost = {"failed"}
    case.add(FailedOver(STARTED + 20, (failed,)), Adopted(STARTED + 30))


@pytest.mark.parametrize("jumped_ms, complaints", [(STARTED + 15, 0), (STARTED - MINUTE, 1)])
def test_an_order_whose_end_was_lost_is_taken_since_it_was_taken(jumped_ms: int, complaints: int) -> None:
    """A jump since the order was taken excuses that it timed out; a jump before that does not."""
    case = Case()
    lost_end(case)
    case.add(ClockMoved(jumped_ms, 10 * MINUTE))
    fail(case, STARTED + MINUTE)
    assert len([each for each in case.verdict()[0] if "never executed: it timed out" in each]) == complaints


@pytest.mark.parametrize("lost, complaints", [("failed", 1), ("taken", 0)])
def test_an_order_is_executed_without_its_status_only_if_its_taking_was_lost(lost: str, complaints: int) -> None:
    """If only the end of an order was lost, a node that takes it over must request its status."""
    case = Case()
    lost_end(case)
    if lost == "taken":
        case.drop(FailedOver)
        case.lost = {"failed", "taken"}
        case.add(FailedOver(STARTED + 20, (case.changes["taken"][1], case.changes["failed"][1])))
    case.add(taken_over(STARTED + 40), ExecutorCalled(STARTED + 41, "n2", "E", 1, True))
    assert len([each for each in case.verdict()[0] if "or requested its status" in each]) == complaints


def test_open_ends_are_told() -> None:
    """The judge names everything that has not ended at the end of the run."""
    case = Case()
    del case.changes["ended"]
    assert {"maintenance M is still Planned", "event E is still Started"} <= set(case.verdict()[0])
