"""Check what guests see: no document older than before, one content per tag, every change in time, and their notice."""

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec

from forewarn.core.change import Change
from tests.sim.account import Account, Stage
from tests.sim.history import Answered, Approved, Committed, FailedOver, Shown, Submitted, Unanswered
from tests.sim.node import DISABLE_AFTER_S, MAX_STALE_MS, READ_EVERY_MS
from tests.sim.people import WRONG_ID

# After this time, every node that still answers shows a change.
EVERYWHERE_MS = MAX_STALE_MS + READ_EVERY_MS
# Last-seen times are written in batches, and the last batch of a killed node is lost.
UNWRITTEN_MS = 300_000
IDLE_SLACK_MS = 60_000
# A guest that polled for this long without an answer counts as not notified.
IN_VAIN_MS = 300_000
# A guest that does not poll any more this long before the event starts has given up.
GIVEN_UP_MS = 60_000


class Notice(NamedTuple):
    """How many guests were promised notice and polled while it ran, and how many of them got it."""

    promised: int
    held: int


@lru_cache(maxsize=1_000)
def stage(etag: str) -> Stage:
    """Return (epoch, incarnation) of a tag; (0, 0) for an unknown one."""
    incarnation, _, epoch = etag.strip('"').partition("-")
    return (int(epoch or 1), int(incarnation)) if incarnation.isdigit() and (not epoch or epoch.isdigit()) else (0, 0)


class GuestChecks:
    def __init__(self, account: Account) -> None:
        self._account = account
        self._bodies: dict[tuple[str, str], bytes] = {}
        self._shows: dict[str, dict[str, Stage]] = defaultdict(dict)
        self._showed: dict[str, dict[str, Stage]] = defaultdict(dict)
        self._first_seen_ms: dict[tuple[str, str, str], int] = {}
        self._polls: dict[tuple[str, str], list[tuple[int, bool]]] = defaultdict(list)
        self._requests: set[tuple[str, str, str]] = set()
        self._answered_ms: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._removed: set[tuple[str, str]] = set()

    # -- documents

    def committed(self, entry: Committed) -> None:
        if any(noted.who == "idle watch" for noted in entry.change.audit):
            self._check_idle(entry.at_ms, entry.change)
        for key in entry.change.removed_machines:
            self._answered_ms.pop(key, None)  # its last-seen time is removed with it
            self._removed.add(key)  # a node that does not know it yet may answer it, and no time is saved
        if self._removed:
            self._removed -= {machine.key for machine in entry.change.machines}

    def failed_over(self, entry: FailedOver) -> None:
        """Forget the polls whose last-seen times may be lost: no node writes a time again."""
        self._removed -= {key for change in entry.lost for key in change.removed_machines}
        if entry.lost_ms:
            since_ms = entry.at_ms - entry.lost_ms - UNWRITTEN_MS
            for key, times in self._answered_ms.items():
                self._answered_ms[key] = [ms for ms in times if ms < since_ms]

    def answered(self, entry: Answered) -> None:
        """ "A node that answered a write has applied it first.\""""
        self._shows[entry.life].update({scope: (epoch, incarnation) for scope, epoch, incarnation in entry.stages})

    def shown(self, entry: Shown) -> None:
        account, key = self._account, (entry.scope, entry.machine)
        self._polls[key].append((entry.at_ms, True))
        if key not in self._removed:
            self._answered_ms[key].append(entry.at_ms)
        who, seen = f"{entry.scope}/{entry.machine}", stage(entry.etag)
        # Until the nodes have agreed on the new server, guests may have seen what was lost.
        agreed = not account.failover_open
        if agreed and entry.if_none_match and seen < stage(entry.if_none_match):
            account.complain(f"{who} held {entry.if_none_match} and {entry.life} showed it the older {entry.etag}")
        if not entry.body and entry.etag != entry.if_none_match:
            account.complain(f"{who} was answered that {entry.if_none_match} is unchanged by {entry.etag}")
        if agreed and seen < self._shows[entry.life].get(entry.scope, seen):
            account.complain(f"{entry.life} answered a change and showed {who} the document before it, {entry.etag}")
        before = self._showed[entry.life].get(entry.scope, seen)
        if seen < before:
            account.complain(f"{entry.life} showed {who} the document before one which it had shown, {entry.etag}")
        self._showed[entry.life][entry.scope] = max(seen, before)
        since_ms = entry.at_ms - EVERYWHERE_MS
        due = next((st for at_ms, st in reversed(account.stages[entry.scope]) if at_ms <= since_ms), None)
        if due is not None and seen < due:
            account.complain(f"{who} was shown {entry.etag} long after it was replaced")
        self._check_content(entry, seen)

    def _check_content(self, entry: Shown, seen: Stage) -> None:
        account = self._account
        content = account.contents.get((entry.scope, seen))
        if content is None:
            account.complain(f"{entry.scope}/{entry.machine} was shown {entry.etag}, which was never saved")
            return
        for event_id, status in content:
            if status == "Scheduled":
                self._first_seen_ms.setdefault((event_id, entry.scope, entry.machine), entry.at_ms)
        if not entry.body or self._bodies.setdefault((entry.scope, entry.etag), entry.body) is entry.body:
            if entry.body:
                document = msgspec.json.decode(entry.body)
                events = frozenset((event["EventId"], event["EventStatus"]) for event in document["Events"])
                if (document["DocumentIncarnation"], events) != (seen[1], content):
                    account.complain(f"{entry.scope} was shown {entry.etag} with another content than was saved")
        elif self._bodies[entry.scope, entry.etag] != entry.body:
            account.complain(f"{entry.scope} was shown {entry.etag} with two contents")

    def unanswered(self, entry: Unanswered) -> None:
        self._polls[entry.scope, entry.machine].append((entry.at_ms, False))

    def _check_idle(self, at_ms: int, change: Change) -> None:
        """Check that no scope is disabled whose guests polled, except for polls too recent for every node to know."""
        for scope in change.scopes:
            polls = [ms for (name, _), times in self._answered_ms.items() if name == scope.name for ms in times]
            # Jumps only make the silence longer.
            since_ms = at_ms - DISABLE_AFTER_S * 1_000
            for polled_ms in [ms for ms in polls if ms > since_ms] if not scope.enabled else ():
                # A node may have recorded the poll by the time before a jump that it had not noticed.
                silent_ms = at_ms - polled_ms + self._account.jumped_ms(polled_ms - EVERYWHERE_MS)
                if UNWRITTEN_MS <= silent_ms < DISABLE_AFTER_S * 1_000 - IDLE_SLACK_MS:
                    sentence = f"{scope.name} was disabled though a guest had polled {silent_ms / 1000:g} s before"
                    self._account.complain(sentence)
                    break

    # -- acknowledged requests

    def approved(self, entry: Approved) -> None:
        account = self._account
        wrong = WRONG_ID in entry.event_ids
        if not wrong:
            self._requests |= {(event_id, entry.scope, entry.machine) for event_id in entry.event_ids}
        # An event whose publication was lost in a failover is unknown, or not published again yet.
        republished = [account.events.get(i) for i in entry.event_ids if i in account.lost_events]
        unknown = wrong or any(event is None or event.published is None for event in republished)
        if entry.status == (200 if wrong else 400) and wrong == unknown:
            account.complain(f"{entry.scope}/{entry.machine} approved {entry.event_ids} and got status {entry.status}")
        if entry.status != 200:
            return
        for event_id in entry.event_ids:
            event = account.events.get(event_id)
            approved_by = account.approvals.get(event_id, set())
            counted = entry.machine in approved_by or (
                event is not None and event.approval_mode != "all" and bool(approved_by)
            )
            concerned = event is not None and (event.approval_mode != "all" or entry.machine in event.resources)
            if (event_id, entry.machine) in account.lost_approvals:
                continue  # acknowledged, and lost in a failover
            if event is None or (
                event.status == "Scheduled" and concerned and not counted and event.approval_mode != "operator"
            ):
                account.complain(f"the approval of event {event_id} by {entry.machine} was acknowledged and is lost")

    def submitted(self, entry: Submitted) -> None:
        became = self._account.by_key[entry.key]
        gone = not became and entry.maintenance_id in self._account.lost_maintenances
        if became != [entry.maintenance_id] and not gone:
            self._account.complain(f"request {entry.key} was answered with {entry.maintenance_id} and became {became}")

    # -- the end of the run

    def end(self) -> None:
        for event_id, machines in self._account.approvals.items():
            scope = self._account.events[event_id].scope
            for machine in sorted(machines - {""}):
                if (event_id, scope, machine) not in self._requests:
                    self._account.complain(f"event {event_id} was approved for {machine}, which never approved it")

    def notice(self) -> Notice:
        promised = held = 0
        for event_id, scope, machine in self._promises():
            promised += 1
            if (event_id, scope, machine) in self._first_seen_ms and event_id not in self._account.early:
                held += 1
            else:
                self._account.complain(f"{scope}/{machine} polled and did not get its notice of event {event_id}")
        return Notice(promised, held)

    def _promises(self) -> Iterator[tuple[str, str, str]]:
        """Yield each machine of an event with notice that polled after every node showed the event and before it started.

        A machine that polled without an answer counts only if it did so for long, until the start, and the whole notice ran.
        A poll counts only while the event waits, and not after a start that a failover lost later.
        """
        account = self._account
        for event_id, promised_s in account.promised_s.items():
            event = account.events[event_id]
            begin_ms = account.published_ms[event_id] + EVERYWHERE_MS
            end_ms = account.left_ms.get(event_id, 0)
            whole = end_ms - begin_ms >= promised_s * 1_000 - 2 * EVERYWHERE_MS
            for machine in event.resources if promised_s else ():
                polls = [
                    (at_ms, ok)
                    for at_ms, ok in self._polls[event.scope, machine]
                    if begin_ms <= at_ms < end_ms and not self._seemed_started(event_id, at_ms)
                ]
                long = bool(polls) and polls[-1][0] - polls[0][0] >= IN_VAIN_MS
                in_vain = whole and long and end_ms - polls[-1][0] <= GIVEN_UP_MS
                if in_vain or any(ok for _, ok in polls):
                    yield event_id, event.scope, machine

    def _seemed_started(self, event_id: str, at_ms: int) -> bool:
        """Whether nodes showed the event as started, by a commit that was lost later."""
        spans = self._account.lost_starts.get(event_id, ())
        return any(from_ms <= at_ms < to_ms + EVERYWHERE_MS for from_ms, to_ms in spans)
