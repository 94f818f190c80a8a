"""Check requests: nothing acknowledged is lost, nothing happened without a request, and everything has ended.

Every request is compared with the audit and with the state at the end.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.integration.chaos.history import BEHIND_S, Audited, Event, History, Request
from tests.integration.chaos.load import WRONG_ID

# The time of an audit entry is the moment of the decision: at most 5 s before it was saved.
DECIDED_S = 6.0
RESOLVING_VERBS = ("retry", "finish", "abandon")
ENDED = ("Completed", "Cancelled", "Abandoned")


class ChangeChecks:
    def __init__(self, history: History) -> None:
        self.history = history
        self.events = {event.id: event for event in history.events}
        self._noted: dict[tuple[str, str], list[Audited]] = defaultdict(list)
        for entry in history.audit:
            self._noted[entry.action, entry.event or entry.maintenance].append(entry)
        self._requests: dict[tuple[str, str], list[Request]] = defaultdict(list)
        for request in history.requests:
            for thing in request.ids:
                self._requests[request.what, thing].append(request)

    def complaints(self) -> Iterator[str]:
        yield from self._submitted()
        for maintenance in self.history.maintenances:
            yield from self._paused(maintenance.id)
            yield from self._cancelled(maintenance.id)
        yield from self._cancelled_events()
        yield from self._approved()
        yield from self._approvals_recorded()
        yield from self._resolved()
        yield from self._ended()
        if any(entry.action == "clock jumped forward" for entry in self.history.audit):
            yield "a node found that the clock jumped, and none did"

    # -- one key, one maintenance

    def _submitted(self) -> Iterator[str]:
        by_key: dict[str, list[Request]] = defaultdict(list)
        for request in self.history.requests:
            if request.what == "submit":
                by_key[request.key].append(request)
        found: dict[str, list[str]] = defaultdict(list)
        for maintenance in self.history.maintenances:
            found[maintenance.key].append(maintenance.id)
        for key, requests in by_key.items():
            answers = list(dict.fromkeys(r.answered_ids for r in requests if r.acknowledged))
            if len(answers) > 1:
                yield f"request {key} was answered in two ways: {answers}"
            if len(found[key]) > 1:
                yield f"request {key} became {len(found[key])} maintenances"
            if answers and answers[0][0] not in found[key]:
                yield f"request {key} was answered with maintenance {answers[0][0]}, which is lost"
            elif answers:
                events = {event.id for event in self.history.events if event.maintenance == answers[0][0]}
                if events != set(answers[0][1:]):
                    yield f"the answer about maintenance {answers[0][0]} had other events than it has"
            if found[key] and all(r.refused for r in requests):
                yield f"request {key} was refused and became maintenance {found[key][0]}"
        for key in found.keys() - by_key.keys():
            yield f"maintenance {found[key][0]} was requested by nobody"

    # -- pause, resume, cancel

    def _paused(self, maintenance: str) -> Iterator[str]:
        pauses, resumes = (
            self._noted["maintenance paused", maintenance],
            self._noted["maintenance resumed", maintenance],
        )
        steps = sorted([*pauses, *resumes], key=lambda entry: entry.id)
        for number, entry in enumerate(steps):
            if entry.action != ("maintenance paused", "maintenance resumed")[number % 2]:
                yield f"{entry.action} twice in a row: {maintenance}"
        for what, entries in (("pause maintenance", pauses), ("resume maintenance", resumes)):
            if len(entries) > sum(not r.refused for r in self._requests[what, maintenance]):
                yield f"{what} {maintenance} is in the audit more often than it was requested"
        moments = [entry.at for entry in steps]
        for request in self._requests["pause maintenance", maintenance]:
            if request.acknowledged and not self._was_paused(request, moments):
                yield f"{request.who} paused maintenance {maintenance}; that was acknowledged, and it is lost"
            if request.acknowledged:
                yield from self._started_meanwhile(request, maintenance)
        for request in self._requests["resume maintenance", maintenance]:
            if request.acknowledged and not self._was_not_paused(request, moments):
                yield f"{request.who} resumed maintenance {maintenance}; that was acknowledged, and it is lost"

    def _span(self, request: Request) -> tuple[float, float]:
        return self.history.at(request.begin_s) - DECIDED_S, self.history.at(request.end_s) + BEHIND_S

    def _was_paused(self, request: Request, moments: list[float]) -> bool:
        begin, end = self._span(request)
        ends = [*moments[1::2], float("inf")]
        return any(since <= end and until >= begin for since, until in zip(moments[::2], ends, strict=False))

    def _was_not_paused(self, request: Request, moments: list[float]) -> bool:
        begin, end = self._span(request)
        begins = [*moments[::2], float("inf")]
        return any(since <= end and until >= begin for since, until in zip([0.0, *moments[1::2]], begins, strict=False))

    def _started_meanwhile(self, pause: Request, maintenance: str) -> Iterator[str]:
        """No event starts between the answer and the first resumption.

        A start has a node's time, which may be `BEHIND_S` behind.
        """
        resumes = [
            r.begin_s
            for r in self._requests["resume maintenance", maintenance]
            if not r.refused and r.end_s > pause.begin_s
        ]
        until = self.history.at(min(resumes, default=float("inf"))) - BEHIND_S
        for event in self.history.events:
            started = event.started_at if event.maintenance == maintenance else None
            if started is not None and self.history.at(pause.end_s) < started < until:
                yield f"event {event.id} started while its maintenance was paused"

    def _cancelled(self, maintenance: str) -> Iterator[str]:
        noted, requests = (
            self._noted["maintenance cancelled", maintenance],
            self._requests["cancel maintenance", maintenance],
        )
        if len(noted) > 1:
            yield f"maintenance {maintenance} was cancelled twice"
        if noted and all(r.refused for r in requests):
            yield f"maintenance {maintenance} was cancelled by nobody"
        for request in requests:
            if request.acknowledged and not noted:
                yield f"{request.who} cancelled maintenance {maintenance}; that was acknowledged, and it is lost"
            for event in self.history.events if request.acknowledged else ():
                started = event.started_at if event.maintenance == maintenance else None
                if started is not None and started > self.history.at(request.end_s):
                    yield f"event {event.id} started after its maintenance was cancelled"

    def _cancelled_events(self) -> Iterator[str]:
        for event in self.history.events:
            for request in self._requests["cancel event", event.id]:
                if request.acknowledged and event.status != "Cancelled":
                    yield f"{request.who} cancelled event {event.id}; that was acknowledged, and it is {event.status}"

    # -- approvals

    def _approved(self) -> Iterator[str]:
        """An acknowledged approval counts, unless the event no longer waited."""
        modes = {scope.name: scope.approval for scope in self.history.scopes}
        for request in self.history.requests:
            if (
                request.what == "approve"
                and (WRONG_ID in request.ids) != request.refused
                and request.status in (200, 400)
            ):
                yield f"{request.who} approved {', '.join(request.ids)} and got {request.status}"
            for event_id in (
                request.ids if request.what in ("approve", "approve event") and request.acknowledged else ()
            ):
                event = self.events.get(event_id)
                if event is None:
                    yield f"{request.who} approved event {event_id}; that was acknowledged, and there is no such event"
                    continue
                given = {entry.who for entry in self._noted["event approved", event_id]}
                if request.what == "approve event":
                    counts = any("/" not in who for who in given)
                elif modes[event.scope] == "all":
                    counts = request.machine not in event.resources or f"{event.scope}/{request.machine}" in given
                else:
                    counts = bool(given)
                if not counts and not self._waited_no_longer(event, self.history.at(request.end_s)):
                    yield f"{request.who} approved event {event_id}; that was acknowledged, and it is lost"

    def _waited_no_longer(self, event: Event, at: float) -> bool:
        """Whether the event was cancelled or started by then; audit times are never later than the save."""
        ends = [entry.at for entry in self._noted["event cancelled", event.id]]
        ends += [event.started_at] if event.started_at is not None else []
        return any(moment <= at for moment in ends)

    def _approvals_recorded(self) -> Iterator[str]:
        for event in self.history.events:
            entries = self._noted["event approved", event.id]
            for who, count in Counter(entry.who for entry in entries).items():
                if count > 1:
                    yield f"the approval of event {event.id} by {who} was recorded {count} times"
            for entry in entries:
                by_guest = "/" in entry.who
                requests = self._requests["approve" if by_guest else "approve event", event.id]
                if not any(
                    not r.refused
                    and (not by_guest or f"{r.scope}/{r.machine}" == entry.who)
                    and self.history.at(r.begin_s) <= entry.at + BEHIND_S
                    for r in requests
                ):
                    yield f"event {event.id} was approved for {entry.who}, which never sent an approval"

    # -- the rest

    def _resolved(self) -> Iterator[str]:
        for event in self.history.events:
            for verb in RESOLVING_VERBS:
                requests = self._requests[f"{verb} event", event.id]
                noted = len(self._noted[f"event {verb} by operator", event.id])
                least, most = sum(r.acknowledged for r in requests), sum(not r.refused for r in requests)
                if noted < least:
                    yield f"an operator requested {verb} of event {event.id}; that was acknowledged, and it is lost"
                if noted > most:
                    yield f"{verb} of event {event.id} is in the audit more often than it was requested"

    def _ended(self) -> Iterator[str]:
        for maintenance in self.history.maintenances:
            if not maintenance.ended:
                yield f"maintenance {maintenance.id} has not ended: it is {maintenance.status}"
        for event in self.history.events:
            if event.status not in ENDED:
                yield f"event {event.id} has not ended: it is {event.status}"
