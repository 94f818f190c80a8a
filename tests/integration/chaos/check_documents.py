"""Check what guests saw: one content per tag, never an older document, answered changes at once, nothing stale."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator

from tests.integration.chaos.history import History, Request

Stage = tuple[int, int]
Content = dict[str, dict[str, object]]

_ETAG = re.compile(r'"(\d+)(?:-(\d+))?"')
# A node may wait a little between the check that its documents are fresh and the answer.
STALE_SLACK_S = 1.0
ORDER = {"Scheduled": 0, "Started": 1}


def stage(etag: str) -> Stage:
    """Return what orders the tags of one scope: the epoch, then the incarnation."""
    found = _ETAG.fullmatch(etag)
    return (int(found[2] or 1), int(found[1])) if found else (0, 0)


class DocumentChecks:
    """Every document that was seen, by scope and stage."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.polls = [r for r in history.requests if r.what == "poll" and r.acknowledged]
        self.bodies: dict[tuple[str, Stage], str] = {}
        self.contents: dict[str, dict[Stage, Content]] = defaultdict(dict)
        for poll in self.polls:
            if poll.body and (poll.scope, stage(poll.etag)) not in self.bodies:
                self.bodies[poll.scope, stage(poll.etag)] = poll.body
                self.contents[poll.scope][stage(poll.etag)] = _content(poll.body)

    def shown(self, poll: Request) -> Content:
        """Return the document of an answer; for a 304 the one that the guest had."""
        return self.contents[poll.scope].get(stage(poll.etag), {})

    def complaints(self) -> Iterator[str]:
        yield from self._one_content()
        yield from self._never_older()
        yield from self._one_way()
        yield from self._at_once()
        yield from self._not_long_replaced()

    def _one_content(self) -> Iterator[str]:
        for poll in self.polls:
            shown = f"{poll.scope} was shown {poll.etag} by {poll.node}"
            if poll.status == 304 and poll.etag != poll.if_none_match:
                yield f"{poll.who} got 304 for {poll.if_none_match}, which is not {poll.etag}"
            elif (poll.scope, stage(poll.etag)) not in self.bodies:
                yield f"{shown}, which nobody was ever shown in full"
            elif poll.body and poll.body != self.bodies[poll.scope, stage(poll.etag)]:
                yield f"{shown} with another content than somebody else"
            elif poll.body and json.loads(poll.body)["DocumentIncarnation"] != stage(poll.etag)[1]:
                yield f"{shown} with another incarnation inside"

    def _never_older(self) -> Iterator[str]:
        """ "No machine that sends If-None-Match ever saw an older document than before." """
        newest: dict[str, Stage] = {}
        for poll in sorted(self.polls, key=lambda r: r.begin_s):
            seen, before = stage(poll.etag), newest.get(poll.who, (0, 0))
            if poll.if_none_match and seen < max(before, stage(poll.if_none_match)):
                yield f"{poll.who} held {poll.if_none_match} and {poll.node} showed it the older {poll.etag}"
            if poll.who.startswith("guest "):
                newest[poll.who] = max(before, seen)

    def _one_way(self) -> Iterator[str]:
        """An event appears, starts and goes; a machine is in one started event at a time."""
        for scope, stages in self.contents.items():
            was: Content = {}
            gone: set[str] = set()
            first: dict[str, object] = {}
            for _, content in sorted(stages.items()):
                gone |= was.keys() - content.keys()
                for event_id, event in content.items():
                    status = str(event["EventStatus"])
                    if event_id in gone:
                        yield f"event {event_id} of {scope} was gone and came back"
                    elif event_id in was and ORDER[status] < ORDER[str(was[event_id]["EventStatus"])]:
                        yield f"event {event_id} of {scope} went back from Started to {status}"
                    if status == "Scheduled" and first.setdefault(event_id, event["NotBefore"]) != event["NotBefore"]:
                        yield f"event {event_id} of {scope} changed its NotBefore"
                yield from _taken_twice(scope, content)
                was = content

    def _at_once(self) -> Iterator[str]:
        """A node that answered a change shows it in every later response."""
        by_life: dict[tuple[str, int], list[Request]] = defaultdict(list)
        for poll in self.polls:
            by_life[poll.node, poll.life].append(poll)
        scope_of = {event.id: event.scope for event in self.history.events}
        for change in self.history.requests:
            appears, gone, not_waiting = self._visible_part(change)
            if not change.acknowledged or not (appears or gone or not_waiting):
                continue
            for poll in by_life[change.node, change.life]:
                if poll.begin_s < change.end_s:
                    continue
                content = self.shown(poll)
                wrong = [e for e in gone if e in content]
                wrong += [e for e in not_waiting if e in content and content[e]["EventStatus"] == "Scheduled"]
                wrong += [e for e in appears if scope_of.get(e) == poll.scope and self._comes_after(e, poll)]
                for event_id in wrong:
                    yield (
                        f"{change.node} acknowledged {change.what} of {change.who} and showed"
                        f" {poll.scope}/{poll.machine} event {event_id} as it was before"
                    )

    def _visible_part(self, change: Request) -> tuple[list[str], list[str], list[str]]:
        """Return the events that a request makes visible, that it removes, and that it takes out of Scheduled."""
        appears: list[str] = []
        gone: list[str] = []
        not_waiting: list[str] = []
        if change.what == "submit":
            published = {a.event for a in self.history.audit if a.action == "event published" and a.who != "ticker"}
            appears = [event_id for event_id in change.answered_ids[1:] if event_id in published]
        elif change.what in ("finish event", "abandon event"):
            gone = list(change.ids)
        elif change.what == "cancel event":
            not_waiting = list(change.ids)
        elif change.what == "cancel maintenance":
            not_waiting = [event.id for event in self.history.events if event.maintenance in change.ids]
        return appears, gone, not_waiting

    def _comes_after(self, event_id: str, poll: Request) -> bool:
        """Whether the document shown is older than the event."""
        seen = stage(poll.etag)
        stages = self.contents[poll.scope]
        return event_id not in stages.get(seen, {}) and any(
            later > seen and event_id in content for later, content in stages.items()
        ) and not any(earlier < seen and event_id in content for earlier, content in stages.items())  # fmt: skip

    def _not_long_replaced(self) -> Iterator[str]:
        """A document that was replaced more than `max_stale` ago is not shown any more."""
        by_scope: dict[str, list[Request]] = defaultdict(list)
        for poll in self.polls:
            by_scope[poll.scope].append(poll)
        for polls in by_scope.values():
            ended = sorted(polls, key=lambda r: r.end_s)
            newest, known = (0, 0), 0
            for poll in sorted(polls, key=lambda r: r.begin_s):
                while ended[known].end_s < poll.begin_s - self.history.run.max_stale_s - STALE_SLACK_S:
                    newest = max(newest, stage(ended[known].etag))
                    known += 1
                if stage(poll.etag) < newest:
                    yield f"{poll.node} showed {poll.scope}/{poll.machine} {poll.etag} long after it was replaced"


def _content(body: str) -> Content:
    return {event["EventId"]: event for event in json.loads(body)["Events"]}


def _taken_twice(scope: str, content: Content) -> Iterator[str]:
    taken: dict[str, str] = {}
    for event_id, event in content.items():
        resources = event["Resources"]
        for machine in resources if event["EventStatus"] == "Started" and isinstance(resources, list) else ():
            if taken.setdefault(machine, event_id) != event_id:
                yield f"{scope}/{machine} is in two started events, {taken[machine]} and {event_id}"
