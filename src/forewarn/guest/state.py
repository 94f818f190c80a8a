"""What the agent remembers: the journal's records, folded. Pure: the same records give the same state, on any machine.

A record is a dict with a `kind`; KINDS below is the whole list. Nothing else may change what is remembered, so whatever was
going on when the agent was killed is found again by reading the journal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

from forewarn.guest.document import Event, parse_event
from forewarn.guest.errors import BadDocument

Record = Mapping[str, Any]
# How an event can be over for this machine.
COMPLETED, CANCELLED, REBOOTED = "completed", "cancelled", "rebooted"


@dataclass
class EventState:
    """An event that means this machine, from first sight until it is gone and the machine is back."""

    event: Event
    do: str
    reserve_s: float
    # The boot during which it was last Scheduled, or first seen: Started in a later one, its reboot is behind us.
    boot: str
    started: bool = False
    # It was never seen Scheduled: there was no notice to use.
    missed: bool = False
    approved: bool = False
    refused: str = ""
    over: str = ""
    gone: bool = False
    # The machine has been back in service since it was over.
    back: bool = False

    @property
    def open(self) -> bool:
        return not self.over

    @property
    def prepares(self) -> bool:
        return self.open and self.do in ("prepare", "prepare-only")


@dataclass
class StepState:
    """A step is the machine's, not an event's: prepared once however many events want it, undone once."""

    # Prepared, verified, and not undone since.
    held: bool = False
    # Its preparing was begun and not undone since: there may be something to undo.
    dirty: bool = False
    # "prepare" or "recover" while that is begun and has not ended.
    under_way: str = ""
    # The machine has been rebooted since it was prepared, or its undoing has begun: who knows whether it still holds.
    doubtful: bool = False
    # How often it was found undone by somebody else.
    lapses: int = 0
    # Whether it verified when its undoing began, in this boot.
    verified: Optional[bool] = None
    share_s: float = 0.0
    child: Tuple[int, int] = (0, 0)
    # What the handler must know to undo it: how things were before.
    kept: Dict[str, Any] = field(default_factory=dict)
    # By event: whether it went well, and why not.
    outcomes: Dict[str, Tuple[bool, str]] = field(default_factory=dict)
    # The events it was not begun for.
    skipped: Set[str] = field(default_factory=set)


@dataclass
class News:
    """A change somebody is to be told of, once."""

    step: str
    change: str
    event: Event
    tried: int = 0


@dataclass
class Tally:
    """What the metrics count."""

    approvals: int = 0
    missed_notices: int = 0
    events: int = 0
    recoveries: int = 0
    health_failures: int = 0
    detection_delay_s: float = 0.0
    lead_time_s: float = 0.0
    step_s: Dict[Tuple[str, str], float] = field(default_factory=dict)
    step_failures: int = 0


class State:
    """Fold records into it with `apply`."""

    def __init__(self) -> None:
        self.boot = ""
        # The journal began with nothing, and no event has ended since: an agent whose journal is lost may have prepared.
        self.new = False
        self.events: Dict[str, EventState] = {}
        self.steps: Dict[str, StepState] = {}
        self.news: List[News] = []
        self.tally = Tally()
        # Something was prepared, or an event started: the machine is not back in service until health says so.
        self.out_of_service = False
        self.last_health = ""
        # Records that made no sense: of a journal that a disk has damaged.
        self.damaged = 0
        # Grows with every record: who has shown this state need not show it again.
        self.version = 0

    def apply(self, record: Record) -> None:
        self.version += 1
        fold = KINDS.get(str(record.get("kind")))
        if fold is not None:  # a later agent's record, found by an earlier one, is left alone
            fold(self, record)

    def step(self, name: str) -> StepState:
        return self.steps.setdefault(name, StepState())

    @property
    def quiet(self) -> bool:
        """Nothing is open: the journal could begin anew."""
        return not (self.events or self.news or self.out_of_service or any(s.dirty for s in self.steps.values()))

    def coming_back(self) -> List[EventState]:
        """The events that are over, and the machine not back since."""
        return [known for known in self.events.values() if known.over and not known.back]

    def tell(self, record: Record, event: Event, change: str) -> None:
        self.news += [News(step, change, event) for step in record.get("tell", ())]


def _start(state: State, record: Record) -> None:
    boot = str(record.get("boot", ""))
    state.new = state.new or bool(record.get("new"))
    if state.boot and boot and boot != state.boot:
        for step in state.steps.values():
            step.child, step.verified = (0, 0), None
            if step.held:
                step.held, step.doubtful = False, True
                step.outcomes.clear()
    state.boot = boot or state.boot


def _seen(state: State, record: Record) -> None:
    event = parse_event(record["event"])
    if event.id in state.events:
        _forget(state, event.id)
    state.events[event.id] = EventState(event, record["do"], float(record["reserve_s"]), state.boot)
    state.tally.events += 1
    state.tally.detection_delay_s = float(record.get("delay_s") or 0.0)
    state.tell(record, event, "scheduled" if not event.started else "started")


def _changed(state: State, record: Record) -> None:
    """Another NotBefore is another budget: what was skipped may be begun after all."""
    event = parse_event(record["event"])
    known = state.events[event.id]
    known.event, known.do, known.reserve_s = event, record["do"], float(record["reserve_s"])
    for step in state.steps.values():
        if event.id in step.skipped:
            step.skipped.discard(event.id)
            step.outcomes.pop(event.id, None)


def _still(state: State, record: Record) -> None:
    state.events[record["id"]].boot = state.boot


def _started(state: State, record: Record) -> None:
    known = state.events[record["id"]]
    known.started, known.missed = True, bool(record.get("missed"))
    known.event = parse_event({**known.event.raw, "EventStatus": "Started", "NotBefore": ""})
    state.tally.missed_notices += known.missed
    if known.do != "ignore":
        state.out_of_service = True
    state.tell(record, known.event, "started")


def _begin(state: State, record: Record) -> None:
    step = state.step(record["step"])
    pid, ticks = record.get("child", (0, 0))
    step.under_way, step.share_s, step.child = record["phase"], float(record["share_s"]), (int(pid), int(ticks))
    if record["phase"] == "prepare":
        step.dirty = True
        state.out_of_service = True
    else:
        step.held, step.doubtful, step.verified = False, True, record.get("verified")
        step.outcomes.clear()


def _child(state: State, record: Record) -> None:
    state.step(record["step"]).child = (int(record["pid"]), int(record["ticks"]))


def _kept(state: State, record: Record) -> None:
    state.step(record["step"]).kept.update(record["kept"])


def _end(state: State, record: Record) -> None:
    step, ok, phase = state.step(record["step"]), bool(record["ok"]), record["phase"]
    state.tally.step_s[(record["step"], phase)] = float(record["took_s"])
    state.tally.step_failures += not ok
    step.under_way, step.child = "", (0, 0)
    if phase == "prepare":
        step.held, step.doubtful = ok, False
        step.outcomes[record["event"]] = (ok, str(record.get("reason", "")))
        step.skipped.discard(record["event"])
    elif ok:
        state.steps[record["step"]] = StepState()


def _lapsed(state: State, record: Record) -> None:
    """Wanted again by each event; or failed for each."""
    step = state.step(record["step"])
    step.held, step.doubtful, step.lapses = False, True, step.lapses + 1
    failed = {event_id: (False, str(record["reason"])) for event_id in (*step.outcomes, record["event"])}
    step.outcomes = {} if record["again"] else failed


def _skip(state: State, record: Record) -> None:
    """Not begun is not dirty; unless a journal that is lost may have known better."""
    step = state.step(record["step"])
    known = state.events.get(record["event"])
    step.dirty = step.dirty or (state.new and known is not None and known.missed)
    step.outcomes[record["event"]] = (False, str(record["reason"]))
    step.skipped.add(record["event"])
    if step.under_way == "prepare":
        step.under_way = ""


def _approved(state: State, record: Record) -> None:
    for each in record["ids"]:
        known = state.events.get(each)
        if known is not None and not known.approved:
            known.approved, known.refused = True, ""
            state.tally.approvals += 1
            state.tell(record, known.event, "approved")
    if record.get("left_s") is not None:
        state.tally.lead_time_s = float(record["left_s"])


def _refused(state: State, record: Record) -> None:
    for each in record["ids"]:
        if each in state.events:
            state.events[each].refused = str(record["reason"])


def _over(state: State, record: Record) -> None:
    """Gone from the document, or Started in an earlier boot."""
    known = state.events[record["id"]]
    known.gone = record["how"] != REBOOTED
    if known.open:
        known.over = record["how"]
        state.tell(record, known.event, record["how"])
    if known.gone and not state.out_of_service:
        _forget(state, known.event.id)


def _health(state: State, record: Record) -> None:
    state.last_health = "" if record["ok"] else str(record["reason"])
    state.tally.health_failures += not record["ok"]
    if not record["ok"]:
        for known in state.coming_back():
            state.tell(record, known.event, "not healthy")


def _in_service(state: State, record: Record) -> None:
    state.out_of_service, state.last_health, state.new = False, "", False
    state.tally.recoveries += 1
    for known in state.coming_back():
        state.tell(record, known.event, "back in service")
        known.back = True
    for known in list(state.events.values()):
        if known.gone:
            _forget(state, known.event.id)


def _telling(state: State, record: Record) -> None:
    for news in _news(state, record):
        news.tried += 1


def _told(state: State, record: Record) -> None:
    state.news = [news for news in state.news if news not in _news(state, record)]


def _forget(state: State, event_id: str) -> None:
    del state.events[event_id]
    for step in state.steps.values():
        step.outcomes.pop(event_id, None)
        step.skipped.discard(event_id)


def _news(state: State, record: Record) -> List[News]:
    key = (record["step"], record["id"], record["change"])
    return [news for news in state.news if (news.step, news.event.id, news.change) == key][:1]


def _nothing(state: State, record: Record) -> None:
    del state, record


KINDS: Mapping[str, Callable[[State, Record], None]] = {
    "start": _start,  # the agent began: which boot this is, and whether it found no journal
    "seen": _seen,  # an event that means us, for the first time
    "changed": _changed,  # its NotBefore, its Resources, its type
    "still": _still,  # an event that is still Scheduled after a reboot that was not its own
    "started": _started,
    "begin": _begin,  # a step's prepare or recover is about to begin
    "child": _child,  # the program that does it, before it may go
    "kept": _kept,  # what undoing it will need to know
    "end": _end,  # and what came of it
    "lapsed": _lapsed,  # a step that was prepared does not hold any more, seen before approving
    "skip": _skip,  # a step that will not be begun for this event, and why
    "approving": _nothing,  # about to say go
    "approved": _approved,
    "refused": _refused,
    "over": _over,
    "health": _health,
    "in-service": _in_service,
    "telling": _telling,  # somebody is about to be told
    "told": _told,
}


def folded(records: List[Dict[str, Any]]) -> State:
    state = State()
    for record in records:
        try:
            state.apply(record)
        except (KeyError, TypeError, ValueError, BadDocument):
            state.damaged += 1
    return state
