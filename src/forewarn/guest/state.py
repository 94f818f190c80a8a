"""What the agent remembers: the state that the journal's records add up to.

Pure: the same records give the same state on any machine. A record is a dict with a `kind`; KINDS below maps each kind to the
function that applies it. Nothing else changes the state, so an agent that was killed finds everything in its journal. Records
name an event by its `key`, the id in upper case.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Set, Tuple, TypeVar

from forewarn.guest.document import Event, event_json, parse_event
from forewarn.guest.errors import BadDocument

Record = Mapping[str, Any]
Stored = TypeVar("Stored")
# How an event can end for this machine.
COMPLETED, CANCELLED, REBOOTED = "completed", "cancelled", "rebooted"
# A hostile endpoint can list other events at every poll: of those that are gone and of their messages, the last ones are kept.
MAX_ENDED_EVENTS = 20
MAX_MESSAGES = 100
# Of the events that local clients have approved, the last ones are kept.
MAX_CLIENT_APPROVED_EVENTS = 1_000


@dataclass
class EventState:
    """An event that names this machine, kept until the event is gone and the machine is back in service."""

    event: Event
    do: str
    reserve_s: float
    # The boot in which the event was last seen Scheduled, or first seen. Started in a later boot, its reboot has happened.
    boot: str
    started: bool = False
    # It was first seen Started: there was no notice.
    missed: bool = False
    approved: bool = False
    # How often it was approved again, because it stayed Scheduled.
    repeats: int = 0
    refused: str = ""
    # How it ended; "" while it is open.
    over: str = ""
    # It is no longer in the document.
    gone: bool = False
    # The machine has been back in service since the event ended.
    back: bool = False

    @property
    def open(self) -> bool:
        return not self.over

    @property
    def prepares(self) -> bool:
        return self.open and self.do in ("prepare", "prepare-only")


@dataclass
class StepState:
    """A step as it is on this machine: prepared once for all events that need it, and undone once."""

    # Prepared, verified, and not undone since.
    prepared: bool = False
    # Preparing began and was not undone since: there may be something to undo.
    dirty: bool = False
    # "prepare" or "recover" while that phase runs or was interrupted.
    under_way: str = ""
    # Unknown whether it is still prepared: the machine was rebooted since, or undoing has begun.
    doubtful: bool = False
    # How often it was found undone by a person or program.
    lapses: int = 0
    # Whether it verified when undoing began, in this boot.
    verified: Optional[bool] = None
    share_s: float = 0.0
    child: Tuple[int, int] = (0, 0)
    # What the handler needs to undo it, such as how things were before.
    kept: Dict[str, Any] = field(default_factory=dict)
    # By event id: whether preparing succeeded, and if not, why.
    outcomes: Dict[str, Tuple[bool, str]] = field(default_factory=dict)
    # The events for which it was skipped.
    skipped: Set[str] = field(default_factory=set)


@dataclass
class Message:
    """A change that a step is to report, once."""

    step: str
    change: str
    event: Event
    attempts: int = 0

    @property
    def key(self) -> Dict[str, str]:
        """Return the fields by which journal records name this message."""
        return {"step": self.step, "id": self.event.key, "change": self.change}


@dataclass
class Tally:
    """What the metrics file shows."""

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
    """What the agent knows after the records given to `apply`."""

    def __init__(self) -> None:
        self.boot = ""
        # The journal began empty and no event has ended since: an earlier journal may be lost, with steps prepared.
        self.new = False
        self.events: Dict[str, EventState] = {}
        self.steps: Dict[str, StepState] = {}
        self.messages: List[Message] = []
        # By event id: the local clients that have approved it. An event may be here before it is seen.
        self.client_approvals: Dict[str, List[str]] = {}
        self.tally = Tally()
        # A step was prepared or an event started, and health has not passed since.
        self.out_of_service = False
        self.last_health = ""
        # Records that could not be applied, from a damaged journal.
        self.damaged = 0
        # Grows with every record.
        self.version = 0

    def apply(self, record: Record) -> None:
        self.version += 1
        apply = KINDS.get(str(record.get("kind")))
        if apply is not None:  # a record of a later version of the agent is left alone
            apply(self, record)

    def step(self, name: str) -> StepState:
        return self.steps.setdefault(name, StepState())

    @property
    def quiet(self) -> bool:
        """Whether nothing is open."""
        return not (self.events or self.messages or self.out_of_service or any(s.dirty for s in self.steps.values()))

    def missing_approvals(self, event_id: str, clients: Iterable[str]) -> List[str]:
        """Return which of these clients have not approved the event."""
        return [client for client in clients if client not in self.client_approvals.get(event_id, ())]

    def unreturned(self) -> List[EventState]:
        """Return the events that are over and since which the machine has not been back in service."""
        return [known for known in self.events.values() if known.over and not known.back]

    def add_messages(self, record: Record, event: Event, change: str) -> None:
        self.messages += [Message(step, change, event) for step in record.get("tell", ())]
        del self.messages[:-MAX_MESSAGES]


def _start(state: State, record: Record) -> None:
    boot = str(record.get("boot", ""))
    state.new = state.new or bool(record.get("new"))
    if state.boot and boot and boot != state.boot:
        for step in state.steps.values():
            step.child, step.verified = (0, 0), None
            if step.prepared:
                step.prepared, step.doubtful = False, True
                step.outcomes.clear()
    state.boot = boot or state.boot


def _seen(state: State, record: Record) -> None:
    event = parse_event(record["event"])
    if event.key in state.events:
        _forget(state, event.key)
    state.events[event.key] = EventState(event, record["do"], float(record["reserve_s"]), state.boot)
    state.tally.events += 1
    state.tally.detection_delay_s = float(record.get("delay_s") or 0.0)
    state.add_messages(record, event, "scheduled" if not event.started else "started")


def _changed(state: State, record: Record) -> None:
    """Allow skipped steps again: a new NotBefore is a new budget."""
    event = parse_event(record["event"])
    known = state.events[event.key]
    known.event, known.do, known.reserve_s = event, record["do"], float(record["reserve_s"])
    for step in state.steps.values():
        if event.key in step.skipped:
            step.skipped.discard(event.key)
            step.outcomes.pop(event.key, None)


def _still(state: State, record: Record) -> None:
    state.events[record["id"]].boot = state.boot


def _started(state: State, record: Record) -> None:
    known = state.events[record["id"]]
    known.started, known.missed = True, bool(record.get("missed"))
    known.event = parse_event({**known.event.raw, "EventStatus": "Started", "NotBefore": ""})
    state.tally.missed_notices += known.missed
    if known.do != "ignore":
        state.out_of_service = True
    state.add_messages(record, known.event, "started")


def _begin(state: State, record: Record) -> None:
    step = state.step(record["step"])
    pid, ticks = record.get("child", (0, 0))
    step.under_way, step.share_s, step.child = record["phase"], float(record["share_s"]), (int(pid), int(ticks))
    if record["phase"] == "prepare":
        step.dirty = True
        state.out_of_service = True
    else:
        step.prepared, step.doubtful, step.verified = False, True, record.get("verified")
        step.outcomes.clear()


def _child(state: State, record: Record) -> None:
    state.step(record["step"]).child = (int(record["pid"]), int(record["ticks"]))


def _kept(state: State, record: Record) -> None:
    state.step(record["step"]).kept.update(record["kept"])


def _end(state: State, record: Record) -> None:
    step, ok, phase = state.step(record["step"]), bool(record["ok"]), record["phase"]
    state.tally.step_s[(record["step"], phase)] = float(record["took_s"])
    state.tally.step_failures += not ok and not record.get("interrupted")
    step.under_way, step.child = "", (0, 0)
    if phase == "prepare":
        step.prepared, step.doubtful = ok, False
        step.outcomes[record["event"]] = (ok, str(record.get("reason", "")))
        step.skipped.discard(record["event"])
    elif ok:
        state.steps[record["step"]] = StepState()


def _lapsed(state: State, record: Record) -> None:
    """Prepare the step again for each event, or count it as failed for each."""
    step = state.step(record["step"])
    step.prepared, step.doubtful, step.lapses = False, True, step.lapses + 1
    failed = {event_id: (False, str(record["reason"])) for event_id in (*step.outcomes, record["event"])}
    step.outcomes = {} if record["again"] else failed


def _skip(state: State, record: Record) -> None:
    """Skip the step. It becomes dirty only if a lost journal may have recorded that it was prepared."""
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
        if known is not None and known.approved:
            known.repeats += 1
        elif known is not None:
            known.approved, known.refused = True, ""
            state.tally.approvals += 1
            state.add_messages(record, known.event, "approved")
    if record.get("left_s") is not None:
        state.tally.lead_time_s = float(record["left_s"])


def _client_approved(state: State, record: Record) -> None:
    """Add the approvals to a copy: the thread of a connection applies this while the agent's thread may read the old one."""
    approvals = dict(state.client_approvals)
    for each in record["ids"]:
        approvals[str(each)] = [*approvals.get(str(each), ()), str(record["client"])]
    while len(approvals) > MAX_CLIENT_APPROVED_EVENTS:
        del approvals[next(iter(approvals))]
    state.client_approvals = approvals


def _refused(state: State, record: Record) -> None:
    for each in record["ids"]:
        if each in state.events:
            state.events[each].refused = str(record["reason"])


def _over(state: State, record: Record) -> None:
    """End an event: it is gone from the document, or it was Started in an earlier boot."""
    known = state.events[record["id"]]
    known.gone = record["how"] != REBOOTED
    if known.gone:
        state.client_approvals.pop(known.event.key, None)
    if known.open:
        known.over = record["how"]
        state.add_messages(record, known.event, record["how"])
    if known.gone and not state.out_of_service:
        _forget(state, known.event.key)
    ended = [event_id for event_id, each in state.events.items() if each.gone]
    for event_id in ended[:-MAX_ENDED_EVENTS]:
        _forget(state, event_id)


def _health(state: State, record: Record) -> None:
    state.last_health = "" if record["ok"] else str(record["reason"])
    state.tally.health_failures += not record["ok"]
    if not record["ok"]:
        for known in state.unreturned():
            state.add_messages(record, known.event, "not healthy")


def _in_service(state: State, record: Record) -> None:
    state.out_of_service, state.last_health, state.new = False, "", False
    state.tally.recoveries += 1
    for known in state.unreturned():
        state.add_messages(record, known.event, "back in service")
        known.back = True
    for known in list(state.events.values()):
        if known.gone:
            _forget(state, known.event.key)


def _notifying(state: State, record: Record) -> None:
    for message in _matching(state, record):
        message.attempts += 1


def _notified(state: State, record: Record) -> None:
    state.messages = [message for message in state.messages if message not in _matching(state, record)]


def _forget(state: State, event_id: str) -> None:
    del state.events[event_id]
    for step in state.steps.values():
        step.outcomes.pop(event_id, None)
        step.skipped.discard(event_id)


def _matching(state: State, record: Record) -> List[Message]:
    key = {name: record[name] for name in ("step", "id", "change")}
    return [message for message in state.messages if message.key == key][:1]


def state_record(state: State) -> Dict[str, Any]:
    """Return one record that gives the same state as all records so far."""
    tally = {**vars(state.tally), "step_s": [[*key, seconds] for key, seconds in state.tally.step_s.items()]}
    return {
        "kind": "state",
        "boot": state.boot,
        "new": state.new,
        "out_of_service": state.out_of_service,
        "last_health": state.last_health,
        "events": [{**vars(known), "event": event_json(known.event)} for known in state.events.values()],
        "steps": {name: {**vars(step), "skipped": sorted(step.skipped)} for name, step in state.steps.items()},
        "messages": [{**vars(message), "event": event_json(message.event)} for message in state.messages],
        "client_approvals": state.client_approvals,
        "tally": tally,
    }


def _state(state: State, record: Record) -> None:
    events = [_of(EventState, each, event=parse_event(each["event"])) for each in record["events"]]
    state.boot, state.new = str(record["boot"]), bool(record["new"])
    state.out_of_service, state.last_health = bool(record["out_of_service"]), str(record["last_health"])
    state.events = {known.event.key: known for known in events}
    state.steps = {name: _step_state(stored) for name, stored in record["steps"].items()}
    state.messages = [_of(Message, each, event=parse_event(each["event"])) for each in record["messages"]]
    approvals = record.get("client_approvals", {})
    state.client_approvals = {str(event_id): list(clients) for event_id, clients in approvals.items()}
    step_s = {(step, phase): seconds for step, phase, seconds in record["tally"]["step_s"]}
    state.tally = _of(Tally, record["tally"], step_s=step_s)


def _of(kind: Callable[..., Stored], stored: Record, **more: Any) -> Stored:
    """Return the dataclass with the stored fields; a field of a later version of the agent is left out."""
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in stored.items() if name in names and name not in more}, **more)


def _step_state(stored: Record) -> StepState:
    """Return the state of a step from JSON, which has lists in the place of tuples and sets."""
    pid, ticks = stored["child"]
    outcomes = {event_id: (bool(ok), str(reason)) for event_id, (ok, reason) in stored["outcomes"].items()}
    return _of(StepState, stored, child=(pid, ticks), outcomes=outcomes, skipped=set(stored["skipped"]))


KINDS: Mapping[str, Callable[[State, Record], None]] = {
    "state": _state,  # takes the place of all records before it, when the journal has grown large
    "start": _start,  # the agent started; with the id of this boot, and whether the journal was empty
    "seen": _seen,  # an event that names this machine, for the first time
    "changed": _changed,  # its NotBefore, Resources or type changed
    "still": _still,  # it is still Scheduled after a reboot that was not its own
    "started": _started,
    "begin": _begin,  # a step is about to be prepared or undone
    "child": _child,  # the program that does it, written before the program may run
    "kept": _kept,  # what the handler will need to undo it
    "end": _end,  # the step has been prepared or undone, or has failed
    "lapsed": _lapsed,  # right before approving, a prepared step turned out to be undone
    "skip": _skip,  # a step will not begin for this event, and why
    "approving": lambda _state, _record: None,  # the approval is about to be sent
    "approved": _approved,
    "client-approved": _client_approved,  # a local client approved events, before it is answered
    "refused": _refused,
    "over": _over,
    "health": _health,
    "in-service": _in_service,
    "telling": _notifying,  # a step is about to report a change
    "told": _notified,  # it has, or the agent has given up
}


def fold_records(records: List[Dict[str, Any]]) -> State:
    """Return the state after these records; count the records that cannot be applied."""
    state = State()
    for record in records:
        try:
            state.apply(record)
        except (KeyError, TypeError, ValueError, BadDocument):
            state.damaged += 1
    return state
