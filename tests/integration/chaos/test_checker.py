"""The checker accepts a small correct history and rejects each history that was changed in one way."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.integration.chaos.checker import check
from tests.integration.chaos.example_history import WALL_S, document, example_history, note, poll, request
from tests.integration.chaos.history import (
    Audited,
    Entry,
    Event,
    History,
    Maintenance,
    Recorder,
    Request,
    Run,
    Scope,
    Worked,
    collected,
    read,
)

T = TypeVar("T")


def complaints(entries: Iterable[Entry]) -> tuple[str, ...]:
    return check(collected(entries)).complaints


def test_a_true_history_has_no_complaint() -> None:
    """It contains unanswered, refused and repeated requests and a take-over; notice is counted."""
    verdict = check(collected(example_history()))
    assert verdict.complaints == ()
    assert (verdict.promised, verdict.held) == (1, 1)
    assert "notice delivered: 1 of 1 (100%)" in str(verdict)
    assert "no complaint" in str(verdict)


def test_a_kept_history_has_the_same_verdict(tmp_path: Path) -> None:
    """A history read back from its file equals the recorded one."""
    first, *rest = example_history()
    assert isinstance(first, Run)
    path = tmp_path / "history.jsonl"
    with path.open("w", encoding="utf-8") as file:
        recorder = Recorder(first, file)
        for entry in rest:
            recorder.record(entry)
    assert read(path) == recorder.history == collected(example_history())


# -- ways to bend it

Bend = Callable[[list[Entry]], list[Entry]]


def changed(kind: type[T], which: Callable[[T], bool], **values: Any) -> Bend:
    """All of these are otherwise; there must be some."""

    def bend(entries: list[Entry]) -> list[Entry]:
        found = [e for e in entries if isinstance(e, kind) and which(e)]
        assert found
        return [replace(e, **values) if any(e is each for each in found) else e for e in entries]

    return bend


def without(kind: type[T], which: Callable[[T], bool]) -> Bend:
    def bend(entries: list[Entry]) -> list[Entry]:
        left = [e for e in entries if not (isinstance(e, kind) and which(e))]
        assert len(left) < len(entries)
        return left

    return bend


def also(*more: Entry) -> Bend:
    return lambda entries: [*entries, *more]


def both(first: Bend, second: Bend) -> Bend:
    return lambda entries: second(first(entries))


def matching(what: str, **values: object) -> Callable[[Request], bool]:
    return lambda r: r.what == what and all(getattr(r, name) == value for name, value in values.items())


def noted(action: str, event: str = "", maintenance: str = "") -> Callable[[Audited], bool]:
    return lambda a: a.action == action and event in ("", a.event) and maintenance in ("", a.maintenance)


def named(thing: str) -> Callable[[Any], bool]:
    return lambda found: bool(found.id == thing)


BENT: dict[str, tuple[Bend, str]] = {
    # What guests saw.
    "another content under one tag": (
        also(poll(7.5, 4, ("P", "Scheduled"), node="node-3")), "with another content than somebody else"),
    "another incarnation inside": (
        changed(Request, matching("poll", etag='"9"'), body=document(8)), "with another incarnation inside"),
    "a tag out of nowhere": (
        also(poll(7.5, 5, held=5)), "which nobody was ever shown in full"),
    "a 304 with another tag": (
        changed(Request, matching("poll", begin_s=7.2), etag='"3"'), "which is not"),
    "older than the tag it sent": (
        also(poll(10.5, 6, ("P", "Scheduled"), ("R-1", "Started"), held=7, node="node-2")), "showed it the older"),
    "older than what it saw": (
        also(poll(10.5, 6, ("P", "Scheduled"), ("R-1", "Started"), held=4, node="node-2")), "showed it the older"),
    "an older epoch": (
        also(poll(48, 1, who="guest shop/m1", machine="m1", etag='"1-2"'),
             poll(49, 9, held=9, who="guest shop/m1", machine="m1", if_none_match='"1-2"', status=200, body=document(9))),
        "showed it the older"),
    "long replaced": (
        also(poll(30, 3, ("P", "Scheduled"), ("R-1", "Scheduled"), who="guest shop/m1", machine="m1", node="node-3")),
        "long after it was replaced"),
    "an event that comes back": (
        also(poll(48, 10, ("P", "Scheduled"), held=9)), "was gone and came back"),
    "a start undone": (
        changed(Request, matching("poll", etag='"6"'), body=document(6, ("P", "Scheduled"), ("R-1", "Scheduled"))),
        "went back from Started to Scheduled"),
    "another NotBefore": (
        changed(Request, matching("poll", etag='"3"'),
                body=document(3, ("P", "Scheduled"), ("R-1", "Scheduled")).replace("later", "sooner")),
        "changed its NotBefore"),
    "a machine in two started events": (
        changed(Request, matching("poll", etag='"8"'), body=document(8, ("P", "Started"), ("Q", "Started"))),
        "is in two started events"),
    "a submission not shown where it was answered": (
        also(poll(5.3, 2, ("P", "Scheduled"), who="operator 1")), "acknowledged submit of operator 1 and showed"),
    "a cancelled event still shown there": (
        changed(Request, matching("poll", etag='"6"'),
                body=document(6, ("P", "Scheduled"), ("R-1", "Started"), ("C", "Scheduled"))),
        "acknowledged cancel maintenance of operator 1 and showed"),
    # What was answered with yes.
    "a maintenance lost": (without(Maintenance, named("of-R-1")), "which is lost"),
    "a maintenance twice": (
        also(Maintenance(id="of-P2", status="Completed", description="k-p by hand", ended=True)), "became 2 maintenances"),
    "two answers to one key": (
        also(request(4.5, "submit", key="k-p", status=201, answered_ids=("of-P2", "P2"))), "was answered in two ways"),
    "a maintenance of nobody": (
        also(Maintenance(id="of-X", status="Completed", description="k-x", ended=True)), "was requested by nobody"),
    "refused and done": (
        changed(Request, matching("submit", key="k-c"), status=409, answered_ids=()), "was refused and became maintenance"),
    "other events than answered": (
        changed(Request, matching("submit", key="k-r"), answered_ids=("of-R-1", "R-1", "R-2")), "had other events than it has"),
    "a pause lost": (
        without(Audited, lambda a: a.action in ("maintenance paused", "maintenance resumed")),
        "paused maintenance of-C; that was"),
    "a pause that nobody requested": (
        changed(Request, matching("pause maintenance"), status=409), "more often than it was requested"),
    "two pauses in a row": (
        changed(Audited, noted("maintenance resumed"), action="maintenance paused"), "twice in a row"),
    "a resume lost": (
        both(changed(Request, matching("resume maintenance"), status=200, begin_s=18.0, end_s=18.1),
             without(Audited, noted("maintenance resumed"))), "resumed maintenance of-C; that was"),
    "a start while paused": (
        both(both(changed(Event, named("C"), status="Completed", started_at=WALL_S + 8.65),
                  changed(Request, matching("cancel maintenance"), status=0)),
             changed(Request, matching("resume maintenance"), begin_s=12.2, end_s=12.3)),
        "started while its maintenance was paused"),
    "a cancellation lost": (without(Audited, noted("maintenance cancelled")), "cancelled maintenance of-C; that was"),
    "a start after the cancellation": (
        changed(Event, named("C"), started_at=WALL_S + 9.5), "started after its maintenance was cancelled"),
    "an event's cancellation lost": (also(request(9, "cancel event", ids=("P",))), "cancelled event P; that was acknowledged"),
    "an approval lost": (without(Audited, noted("event approved", "R-1")), "event R-1; that was acknowledged, and it is lost"),
    "an approval of all lost": (
        both(changed(Scope, lambda s: s.name == "shop", approval="all"),
             also(request(6.1, "approve", who="guest shop/m0", scope="shop", machine="m0", ids=("C", "P")))),
        "approved event P; that was acknowledged, and it is lost"),
    "an approval recorded twice": (
        also(note(20, 6.3, "event approved", who="shop/m1", event="R-1", maintenance="of-R-1")), "was recorded 2 times"),
    "an approval nobody gave": (
        also(note(20, 20, "event approved", who="shop/m0", event="P", maintenance="of-P")), "which never sent an approval"),
    "an approval recorded long before it was sent": (
        changed(Request, matching("approve", machine="m1"), begin_s=10.1, end_s=10.2), "which never sent an approval"),
    "a wrong id accepted": (changed(Request, matching("approve", machine="m0"), status=200), "and got 200"),
    "a right id refused": (changed(Request, matching("approve", status=200), status=400), "and got 400"),
    "a retry lost": (without(Audited, noted("event retry by operator")), "requested retry of event R-1"),
    "a retry too many": (
        also(note(20, 8.05, "event retry by operator", event="R-1")), "in the audit more often than it was requested"),
    "a maintenance that never ends": (
        changed(Maintenance, named("of-P"), ended=False, status="Running"), "has not ended: it is Running"),
    "an event that never ends": (changed(Event, named("P"), status="Started"), "event P has not ended"),
    "a clock that did not jump": (also(note(20, 30, "clock jumped forward", who="clock")), "clock jumped, and none did"),
    # Starts and work.
    "started twice": (also(note(20, 36, "event started", event="P")), "event P started 2 times"),
    "a start without a trace": (without(Audited, noted("event started", "P")), "started 0 times in the audit"),
    "early by what is saved": (changed(Audited, noted("event started", "P"), at=WALL_S + 34.9), "before its NotBefore"),
    "early by the command": (
        also(Worked(what="began", order="P", attempt=1, at=WALL_S + 34.9)), "before its NotBefore"),
    "early by what a guest saw": (
        changed(Request, matching("poll", etag='"8"'), begin_s=34.0, end_s=34.1), "before its NotBefore"),
    "an approval that came after the start": (
        changed(Request, matching("approve", machine="m1"), begin_s=6.9, end_s=7.0), "R-1 started before its NotBefore"),
    "an approval that came long after the audited start": (
        both(changed(Request, matching("approve", machine="m1"), begin_s=10.1, end_s=10.2),
             both(without(Worked, lambda w: w.order == "R-1"),
                  without(Request, lambda r: r.etag in ('"4"', '"6"')))),  # no guest saw it Started
        "R-1 started before its NotBefore and without approval"),
    "not all of them approved": (
        both(changed(Scope, lambda s: s.name == "shop", approval="all"), changed(Event, named("R-1"), resources=("m1", "m2"))),
        "R-1 started before its NotBefore"),
    "an early start on nobody's record": (
        without(Audited, noted("event approved", "R-1")), "R-1 started before its NotBefore and no approval is recorded"),
    "less notice than due": (changed(Event, named("P"), not_before_at=WALL_S + 34), "less than its notice of 30 s"),
    "no notice at all": (changed(Event, named("R-1"), published_at=None, not_before_at=None), "was never published"),
    "work begun again after its end": (
        also(Worked(what="began", order="P", attempt=1, at=WALL_S + 46.05),
             Worked(what="ended", order="P", attempt=1, at=WALL_S + 46.06)), "attempt 1 of order P was begun more than once"),
    "work begun again where its node was away": (
        also(Worked(what="began", order="P", attempt=1, at=WALL_S + 45.75)), "two commands of order P ran at the same time"),
    "an attempt begun before the end of the one before": (
        changed(Worked, lambda w: (w.order, w.attempt, w.what) == ("R-1", 2, "began"), at=WALL_S + 7.0),
        "two commands of order R-1 ran at the same time"),
    "work for nobody": (also(Worked(what="began", order="X", attempt=1, at=WALL_S + 9)), "which does not exist"),
    "work before it was saved": (
        changed(Audited, noted("order taken", "P"), at=WALL_S + 45.8), "began before it was taken and saved"),
    "finished without work": (
        without(Worked, lambda w: w.order == "P" and w.what == "ended"), "its work was never done"),
    "failed without reason": (also(note(20, 36, "order failed", event="P")), "and its work did not"),
    "gone while at work": (
        changed(Worked, lambda w: w.order == "P" and w.what == "ended", at=WALL_S + 48), "while its work went on"),
    # Notice.
    "a guest that polled and was not shown": (
        both(
            without(Request, lambda r: r.what == "poll" and r.who == "guest shop/m0" and r.begin_s not in (1, 20, 47)),
            changed(Request, matching("poll", begin_s=20, who="guest shop/m0"), if_none_match='"1"', etag='"1"'),
        ), "did not have its notice of event P"),
}  # fmt: skip


@pytest.mark.parametrize("way", BENT)
def test_every_wrong_history_is_complained_of(way: str) -> None:
    """Each change leads to its complaint."""
    bend, sentence = BENT[way]
    found = complaints(bend(example_history()))
    assert any(sentence in each for each in found), found


def test_a_node_whose_clock_is_behind_is_not_complained_of() -> None:
    """A reading of the database's clock can be three seconds old.

    An approval seems to come after the start that it caused, and a start before the resumption that allowed it.
    """
    approved = both(
        changed(Audited, noted("event approved", "R-1"), at=WALL_S + 3.2),
        both(
            changed(Audited, noted("event started", "R-1"), at=WALL_S + 3.5),
            changed(Event, named("R-1"), started_at=WALL_S + 3.5, published_at=WALL_S + 2),
        ),
    )
    assert complaints(approved(example_history())) == ()
    entries = example_history()
    for bend in (
        without(Request, matching("cancel maintenance")),
        without(Audited, noted("maintenance cancelled")),
        without(Audited, noted("event cancelled", "C")),
        also(request(8.3, "approve event", ids=("C",)), note(20, 8.35, "event approved", event="C")),
        changed(Audited, noted("maintenance resumed"), at=WALL_S + 8.6),
        changed(Request, matching("resume maintenance"), begin_s=9.0, end_s=9.1),
        changed(Event, named("C"), status="Completed", started_at=WALL_S + 8.65),
        also(note(21, 8.65, "event started", event="C")),
    ):
        entries = bend(entries)
    assert complaints(entries) == ()


def test_notice_that_was_not_held_is_counted() -> None:
    """A start before NotBefore takes the notice from the guests that saw the event."""
    bend, _ = BENT["early by what is saved"]
    verdict = check(collected(bend(example_history())))
    assert (verdict.promised, verdict.held) == (1, 0)
    assert "notice delivered: 0 of 1 (0%)" in str(verdict)


def test_a_history_says_first_what_it_is_of() -> None:
    """What begins with anything else is no history."""
    with pytest.raises(ValueError, match="begins with"):
        collected(example_history()[1:])


def test_an_empty_run_promised_nothing() -> None:
    """And says so."""
    verdict = check(History(Run(seed=2, wall_minus_monotonic_s=0, max_stale_s=6, disturbed_s=0)))
    assert (verdict.complaints, verdict.promised, verdict.share) == ((), 0, 1.0)
