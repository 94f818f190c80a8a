"""Check the history of a run and list every violation. Pure: the same history gives the same verdict.

It shares no rule with the core. `check_documents` checks what guests saw, `check_changes` what was acknowledged, `check_work`
starts and work. This module counts notice, as the simulation does: a machine that polled while every node had to show the
event must have seen it, and an event without approval must not begin before its NotBefore.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.integration.chaos.check_changes import ChangeChecks
from tests.integration.chaos.check_documents import STALE_SLACK_S, DocumentChecks
from tests.integration.chaos.check_work import WorkChecks, overlapping, repeated
from tests.integration.chaos.history import Event, History

# An event says when it was decided on: the database refuses to save it more than 2 s later, and a little more for many.
SAVED_WITHIN_S = 2.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """The complaints, each once; `promised` pairs of guest and event were due notice, and `held` had it."""

    seed: int
    complaints: tuple[str, ...]
    promised: int
    held: int
    counted: tuple[str, ...]

    @property
    def share(self) -> float:
        return self.held / self.promised if self.promised else 1.0

    def __str__(self) -> str:
        notice = f"notice delivered: {self.held} of {self.promised} ({self.share:.0%})"
        ends = self.complaints or ("no complaint",)
        return "\n".join([f"seed {self.seed}", *self.counted, notice, *ends])


def check(history: History) -> Verdict:
    documents = DocumentChecks(history)
    work_checks = WorkChecks(history, documents)
    pairs = list(_promised(history, documents))
    complaints = [*documents.complaints(), *ChangeChecks(history).complaints(), *work_checks.complaints()]
    held = 0
    for event, machine, seen in pairs:
        if seen and event.id not in work_checks.early:
            held += 1
        else:
            complaints.append(f"{event.scope}/{machine} polled and did not have its notice of event {event.id}")
    return Verdict(history.run.seed, tuple(dict.fromkeys(complaints)), len(pairs), held, tuple(_counted(history)))


def _promised(history: History, documents: DocumentChecks) -> Iterator[tuple[Event, str, bool]]:
    """Return each event and machine that was due notice, and whether the machine ever saw the event Scheduled."""
    left = {a.event: a.at for a in history.audit if a.action in ("event started", "event cancelled")}
    for event in history.events:
        if event.published_at is None or event.id not in left:
            continue
        begin = event.published_at + SAVED_WITHIN_S + history.run.max_stale_s + STALE_SLACK_S
        for machine in event.resources:
            polls = [p for p in documents.polls if p.who == f"guest {event.scope}/{machine}"]
            if any(begin <= history.at(p.begin_s) and history.at(p.end_s) < left[event.id] for p in polls):
                shown = (documents.shown(poll).get(event.id) for poll in polls)
                yield event, machine, any(each is not None and each["EventStatus"] == "Scheduled" for each in shown)


def _counted(history: History) -> Iterator[str]:
    """Return counts of what happened: a run without any load has no complaint either."""
    answers = Counter("yes" if r.acknowledged else "no" if r.refused else "unknown" for r in history.requests)
    yield f"requests: {len(history.requests)} ({', '.join(f'{count} {what}' for what, count in answers.most_common())})"
    faults = Counter(fault.what for fault in history.faults)
    yield f"faults: {', '.join(f'{count} {what}' for what, count in sorted(faults.items())) or 'none'}"
    actions = Counter(entry.action for entry in history.audit)
    began = sum(worked.what == "began" for worked in history.worked)
    alone = sum(
        e.started_at is not None and e.not_before_at is not None and e.started_at >= e.not_before_at
        for e in history.events
    )
    yield (
        f"maintenances: {len(history.maintenances)}, events: {len(history.events)}, {alone} started at NotBefore;"
        f" work begun {began} times, {len(repeated(history))} repeated, {len(overlapping(history))} overlapping;"
        f" orders: {actions['order in doubt']} in doubt, {actions['order taken over']} taken over"
    )
