"""Check starts and work: nothing starts twice or early, and the command ran once per attempt, by its own records.

Every node has its own state folder, and commands are not repeatable: an attempt begins once, whatever happens to its node, and
two attempts of an order never run at the same time.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.integration.chaos.check_documents import DocumentChecks, stage
from tests.integration.chaos.history import BEHIND_S, Event, History

NOTICE_S = {"Freeze": 900, "Reboot": 900, "Redeploy": 600, "Preempt": 30}
HAS_STARTED = ("Started", "Completed", "Abandoned")
_ATTEMPT = re.compile(r"attempt (\d+) by ")


class WorkChecks:
    def __init__(self, history: History, documents: DocumentChecks) -> None:
        self.history, self._documents = history, documents
        self._approval = {scope.name: scope.approval for scope in history.scopes}
        self._descriptions = {m.id: m.description for m in history.maintenances}
        self._noted: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._taken_at: dict[tuple[str, int], float] = {}
        for entry in history.audit:
            self._noted[entry.action, entry.event].append(entry.at)
            if entry.action == "order taken" and (found := _ATTEMPT.match(entry.detail)):
                self._taken_at[entry.event, int(found[1])] = entry.at
        self._approved_by: dict[str, set[str]] = defaultdict(set)  # as recorded: machines, "" for an operator
        for entry in history.audit:
            if entry.action == "event approved":
                self._approved_by[entry.event].add(entry.who.partition("/")[2])
        self._approvals: dict[str, list[tuple[float, str]]] = defaultdict(
            list
        )  # when, by which machine or "" an operator
        for request in history.requests:
            if request.what in ("approve", "approve event") and not request.refused:
                for event_id in request.ids:
                    self._approvals[event_id].append((history.at(request.begin_s), request.machine))
        self.early = {event.id for event in history.events if self._is_early(event)}

    def complaints(self) -> Iterator[str]:
        for event in self.history.events:
            yield from self._started_once(event)
            yield from self._recorded(event)
            yield from self._noticed(event)
        for event_id in sorted(self.early):
            yield f"event {event_id} started before its NotBefore and without approval"
        yield from self._worked()
        yield from self._gone_while_at_work()

    # -- starts

    def _started_once(self, event: Event) -> Iterator[str]:
        starts = len(self._noted["event started", event.id])
        if starts > 1:
            yield f"event {event.id} started {starts} times"
        if (starts > 0) != (event.status in HAS_STARTED):
            yield f"event {event.id} is {event.status} and started {starts} times in the audit"

    def _recorded(self, event: Event) -> Iterator[str]:
        """An early start has its approval in the audit."""
        early = [at for at in self._noted["event started", event.id] if at < (event.not_before_at or 0.0)]
        if early and not self._suffices(event, self._approved_by[event.id]):
            yield f"event {event.id} started before its NotBefore and no approval is recorded"

    def _noticed(self, event: Event) -> Iterator[str]:
        if event.published_at is None or event.not_before_at is None:
            if event.status in HAS_STARTED:
                yield f"event {event.id} started and was never published"
        elif event.not_before_at - event.published_at < NOTICE_S[event.type]:
            yield f"event {event.id} gives less than its notice of {NOTICE_S[event.type]} s"

    def _is_early(self, event: Event) -> bool:
        """Whether it started early, by the audit, by the command's records, or by what guests saw."""
        if event.not_before_at is None:
            return False
        # Each start by its record, and the latest time at which it can really have been: the audit has a node's time, which may
        # be behind.
        starts = [(at, at + BEHIND_S) for at in self._noted["event started", event.id]]
        starts += [(worked.at, worked.at) for worked in self.history.worked if worked.order == event.id]
        starts += [
            (self.history.at(poll.end_s), self.history.at(poll.end_s))
            for poll in self._documents.polls
            if poll.scope == event.scope
            and (shown := self._documents.shown(poll).get(event.id)) is not None
            and shown["EventStatus"] == "Started"
        ]
        return any(at < event.not_before_at and not self._had_go(event, by) for at, by in starts)

    def _had_go(self, event: Event, by: float) -> bool:
        """Whether the approvals that may have been given by then suffice."""
        return self._suffices(event, {machine for at, machine in self._approvals[event.id] if at <= by})

    def _suffices(self, event: Event, machines: set[str]) -> bool:
        if "" in machines or self._approval[event.scope] != "all":
            return bool(machines)
        return machines >= set(event.resources)

    # -- work

    def _worked(self) -> Iterator[str]:
        events = {event.id: event for event in self.history.events}
        for order, attempt in repeated(self.history):
            yield f"attempt {attempt} of order {order} was begun more than once"
        for order in overlapping(self.history):
            yield f"two commands of order {order} ran at the same time"
        for worked in self.history.worked:
            if worked.order not in events:
                yield f"work was done for order {worked.order}, which does not exist"
            elif worked.at < self._taken_at.get((worked.order, worked.attempt), float("inf")):
                yield f"attempt {worked.attempt} of order {worked.order} began before it was taken and saved"
        ended = {worked.order for worked in self.history.worked if worked.what == "ended"}
        for event in self.history.events:
            if self._noted["order finished", event.id] and event.id not in ended:
                yield f"order {event.id} is finished and its work was never done"
            yield from self._failed(event)

    def _failed(self, event: Event) -> Iterator[str]:
        """Work fails only in the first attempt of a maintenance whose description says fails-once."""
        failures = len(self._noted["order failed", event.id])
        if failures > (1 if "fails-once" in self._descriptions.get(event.maintenance, "") else 0):
            yield f"order {event.id} failed {failures} times, and its work did not"

    def _gone_while_at_work(self) -> Iterator[str]:
        """A Started event is shown until its work has ended."""
        for event in self.history.events:
            settled = (
                self._noted["event finish by operator", event.id] + self._noted["event abandon by operator", event.id]
            )
            ends = [worked.at for worked in self.history.worked if (worked.what, worked.order) == ("ended", event.id)]
            stages = self._documents.contents[event.scope]
            since = [at for at, content in stages.items() if content.get(event.id, {}).get("EventStatus") == "Started"]
            if settled or not ends or not since:
                continue
            for poll in self._documents.polls:
                later = poll.scope == event.scope and stage(poll.etag) > min(since)
                early = self.history.at(poll.end_s) < max(ends)
                if later and early and event.id not in self._documents.shown(poll):
                    yield f"event {event.id} was gone for {poll.scope}/{poll.machine} while its work went on"
                    break


def repeated(history: History) -> list[tuple[str, int]]:
    """The orders and attempts whose command began more than once, by what the commands wrote down."""
    began = Counter((worked.order, worked.attempt) for worked in history.worked if worked.what == "began")
    return [key for key, count in began.items() if count > 1]


def overlapping(history: History) -> list[str]:
    """The orders of which two commands ran at the same time, by what the commands wrote down."""
    running: Counter[str] = Counter()
    found: dict[str, None] = {}
    for worked in sorted(history.worked, key=lambda each: each.at):
        running[worked.order] += 1 if worked.what == "began" else -1
        if running[worked.order] > 1:
            found[worked.order] = None
    return list(found)
