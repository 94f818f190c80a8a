"""What guests saw: never an older document than before, one content per tag, what is saved soon after, and notice in time."""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from forewarn.core.change import Change
from tests.sim.account import Account, Stage
from tests.sim.history import Answered, Approved, Committed, Shown, Submitted, Unanswered
from tests.sim.node import DISABLE_AFTER_S, LOOK_EVERY_MS, MAX_STALE_MS
from tests.sim.people import WRONG_ID

# A change shows on every node that still answers.
EVERYWHERE_MS = MAX_STALE_MS + LOOK_EVERY_MS
# Last-seen times are written in batches, and the last batch of a killed node is lost.
UNWRITTEN_MS = 300_000
IDLE_SLACK_MS = 60_000
# Whoever asked for so long and was never answered has reason to complain.
IN_VAIN_MS = 300_000


class Notice(NamedTuple):
    """Guests who were promised a notice and asked while it ran, and those of them who held it."""

    promised: int
    held: int


def stage(etag: str) -> Stage:
    """(epoch, incarnation) of one of our tags; (0, 0) for anything else."""
    incarnation, _, epoch = etag.strip('"').partition("-")
    return (int(epoch or 1), int(incarnation)) if incarnation.isdigit() and (not epoch or epoch.isdigit()) else (0, 0)


class Sights:
    def __init__(self, account: Account) -> None:
        self._account = account
        self._bodies: dict[tuple[str, str], bytes] = {}
        self._shows: dict[str, dict[str, Stage]] = defaultdict(dict)
        self._showed: dict[str, dict[str, Stage]] = defaultdict(dict)
        self._first_sight: dict[tuple[str, str, str], int] = {}
        self._asked: dict[tuple[str, str], list[tuple[int, bool]]] = defaultdict(list)
        self._requests: set[tuple[str, str, str]] = set()
        self._answered_ms: dict[tuple[str, str], list[int]] = defaultdict(list)

    # -- documents

    def committed(self, entry: Committed) -> None:
        if any(noted.who == "idle watch" for noted in entry.change.audit):
            self._check_idle(entry.at_ms, entry.change)
        for key in entry.change.removed_machines:
            self._answered_ms.pop(key, None)  # when it asked is forgotten with it

    def answered(self, entry: Answered) -> None:
        """ "A node that answered a write has applied it first.\""""
        self._shows[entry.life].update({scope: (epoch, incarnation) for scope, epoch, incarnation in entry.stages})

    def shown(self, entry: Shown) -> None:
        account, key = self._account, (entry.scope, entry.machine)
        self._asked[key].append((entry.at_ms, True))
        self._answered_ms[key].append(entry.at_ms)
        who, seen = f"{entry.scope}/{entry.machine}", stage(entry.etag)
        # Until the nodes have agreed on another server, what is lost may have been seen.
        settled = not account.unsettled
        if settled and entry.if_none_match and seen < stage(entry.if_none_match):
            account.complain(f"{who} held {entry.if_none_match} and {entry.life} showed it the older {entry.etag}")
        if not entry.body and entry.etag != entry.if_none_match:
            account.complain(f"{who} was told that {entry.if_none_match} is unchanged by {entry.etag}")
        if settled and seen < self._shows[entry.life].get(entry.scope, seen):
            account.complain(f"{entry.life} answered a change and showed {who} the document before it, {entry.etag}")
        before = self._showed[entry.life].get(entry.scope, seen)
        if seen < before:
            account.complain(f"{entry.life} showed {who} the document before one which it had shown, {entry.etag}")
        self._showed[entry.life][entry.scope] = max(seen, before)
        due = [st for at_ms, st in account.stages[entry.scope] if at_ms <= entry.at_ms - EVERYWHERE_MS]
        if due and seen < due[-1]:
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
                self._first_sight.setdefault((event_id, entry.scope, entry.machine), entry.at_ms)
        if not entry.body or self._bodies.setdefault((entry.scope, entry.etag), entry.body) is entry.body:
            if entry.body:
                document = json.loads(entry.body)
                told = frozenset((event["EventId"], event["EventStatus"]) for event in document["Events"])
                if (document["DocumentIncarnation"], told) != (seen[1], content):
                    account.complain(f"{entry.scope} was shown {entry.etag} with another content than was saved")
        elif self._bodies[entry.scope, entry.etag] != entry.body:
            account.complain(f"{entry.scope} was shown {entry.etag} with two contents")

    def unanswered(self, entry: Unanswered) -> None:
        self._asked[entry.scope, entry.machine].append((entry.at_ms, False))

    def _check_idle(self, at_ms: int, change: Change) -> None:
        """Of whoever asked some while ago every node can know; of the very last not."""
        for scope in change.scopes:
            asked = [ms for (name, _), times in self._answered_ms.items() if name == scope.name for ms in times]
            for asked_ms in asked if not scope.enabled else ():
                silent_ms = at_ms - asked_ms + self._account.jumped_ms(asked_ms)
                if UNWRITTEN_MS <= silent_ms < DISABLE_AFTER_S * 1_000 - IDLE_SLACK_MS:
                    sentence = f"{scope.name} was disabled though a guest had asked {silent_ms / 1000:g} s before"
                    self._account.complain(sentence)
                    break

    # -- what was said yes to

    def approved(self, entry: Approved) -> None:
        account = self._account
        wrong = WRONG_ID in entry.event_ids
        if not wrong:
            self._requests |= {(event_id, entry.scope, entry.machine) for event_id in entry.event_ids}
        # One whose publication is lost with a server is known to nobody, or not yet.
        shown_once = [account.events.get(i) for i in entry.event_ids if i in account.lost_events]
        unknown = wrong or any(event is None or event.published is None for event in shown_once)
        if entry.status == (200 if wrong else 400) and wrong == unknown:
            account.complain(f"{entry.scope}/{entry.machine} approved {entry.event_ids} and was told {entry.status}")
        if entry.status != 200:
            return
        for event_id in entry.event_ids:
            event = account.events.get(event_id)
            given = account.approvals.get(event_id, set())
            counted = entry.machine in given or (event is not None and event.approval != "all" and bool(given))
            concerned = event is not None and (event.approval != "all" or entry.machine in event.resources)
            if (event_id, entry.machine) in account.lost_approvals:
                continue  # the yes came when what it was said to was gone already
            if event is None or (
                event.status == "Scheduled" and concerned and not counted and event.approval != "operator"
            ):
                account.complain(f"the approval of event {event_id} by {entry.machine} was acknowledged and is lost")

    def submitted(self, entry: Submitted) -> None:
        became = self._account.by_key[entry.key]
        gone = not became and entry.maintenance_id in self._account.lost_maintenances
        if became != [entry.maintenance_id] and not gone:
            self._account.complain(f"request {entry.key} was told to be {entry.maintenance_id} and became {became}")

    # -- in the end

    def end(self) -> None:
        for event_id, machines in self._account.approvals.items():
            scope = self._account.events[event_id].scope
            for machine in sorted(machines - {""}):
                if (event_id, scope, machine) not in self._requests:
                    self._account.complain(f"event {event_id} was approved for {machine}, which never asked for it")

    def notice(self) -> Notice:
        promised = held = 0
        for event_id, scope, machine in self._promises():
            promised += 1
            if (event_id, scope, machine) in self._first_sight and event_id not in self._account.early:
                held += 1
            else:
                self._account.complain(f"{scope}/{machine} asked and did not have its notice of event {event_id}")
        return Notice(promised, held)

    def _promises(self) -> Iterator[tuple[str, str, str]]:
        """Each machine of an event that was due notice, if it asked once every node showed it and before it began.

        Whoever asked for long and in vain counts where the whole notice ran; else only who was answered.
        """
        account = self._account
        for event_id, promised_s in account.promised_s.items():
            event = account.events[event_id]
            begin_ms = account.published_ms[event_id] + EVERYWHERE_MS
            end_ms = account.left_ms.get(event_id, 0)
            whole = end_ms - begin_ms >= promised_s * 1_000 - 2 * EVERYWHERE_MS
            for machine in event.resources if promised_s else ():
                asked = [(at_ms, ok) for at_ms, ok in self._asked[event.scope, machine] if begin_ms <= at_ms < end_ms]
                in_vain = whole and asked and asked[-1][0] - asked[0][0] >= IN_VAIN_MS
                if in_vain or any(ok for _, ok in asked):
                    yield event_id, event.scope, machine
