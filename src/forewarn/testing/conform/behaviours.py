"""The table of behaviours: name, claims, what the agent does, why that matters, the check, and the faults during the check."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from forewarn.testing.conform import checks
from forewarn.testing.conform.event_kinds import EventKind, parse_event
from forewarn.testing.conform.probe import Finding, KindResult, find_unapproved, find_unhandled, find_unprepared
from forewarn.testing.conform.trial import SEEN_WITHIN_S, Trial

PREEMPT = parse_event("type=Preempt")


class ShownBy(Enum):
    """What shows a behaviour: requests alone, that the agent goes on polling, or that it approves or prepares.

    The last two need an event of a kind that the agent handles, as far as there is one.
    """

    REQUESTS = "requests"
    POLLING = "polling"
    ACTION = "action"


class ProbeCheck(Protocol):
    """Decides about a behaviour by the results of the probe. It returns None if the agent has the behaviour."""

    def __call__(self, results: Sequence[KindResult], *, declared: bool) -> Finding | None: ...


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A behaviour. `checks` and `why` are sentences for people. `faults` apply from the agent's first request on.

    If `needs_a_document` and the agent never gets one, the outcome is `not reached`. `suits` chooses the kinds of events that
    the check can use, and `needs_event` describes them. With `probe_check`, the results of the probe decide, and the check only
    if the agent handled none. `after` is the behaviour without which this one has no meaning. An agent fails only if it failed
    `tries` times, each time started anew with an emulator of its own.
    """

    name: str
    claims: tuple[str, ...]
    checks: str
    why: str
    check: Callable[[Trial], None]
    faults: Sequence[Mapping[str, object]] = ()
    needs_a_document: bool = True
    shown_by: ShownBy = ShownBy.ACTION
    suits: Callable[[EventKind], bool] = lambda _: True
    needs_event: str = "an event that it handles"
    probe_check: ProbeCheck | None = None
    after: str = ""
    tries: int = 1


FIRST_TWO = {"requests": "1-2", "method": "GET"}
BEHAVIOURS = (
    Behaviour(
        "metadata-header", (), "sends the header `Metadata: true`",
        "without it the service answers 400, so that it does not answer a request that was redirected by accident",
        checks.sends_the_header, needs_a_document=False, shown_by=ShownBy.REQUESTS,
    ),
    Behaviour(
        "api-version", (), "names a published api-version",
        "the version is mandatory, and `latest` is not a version",
        checks.names_a_version, needs_a_document=False, shown_by=ShownBy.REQUESTS,
    ),
    Behaviour(
        "polls-often", (), f"sees a new event within {SEEN_WITHIN_S:g} s",
        "a Preempt has only 30 s of notice: an agent that polls once a minute may never see it",
        checks.polls_often, shown_by=ShownBy.REQUESTS,
    ),
    Behaviour(
        "does-not-hammer", (), f"never gets 429 in {checks.IDLE_S:g} s without events",
        "a machine may send five requests a second, and all its programs share that limit",
        checks.does_not_hammer, shown_by=ShownBy.REQUESTS,
    ),
    Behaviour(
        "ignores-proxies", (), "reaches the endpoint although http_proxy is set",
        "the endpoint is link-local: a proxy cannot reach it, or reaches the endpoint of its own machine",
        checks.ignores_proxies, needs_a_document=False, shown_by=ShownBy.REQUESTS,
    ),
    Behaviour(
        "ends-when-told", (), f"ends within {checks.ENDS_WITHIN_S:g} s of SIGTERM",
        "a machine that shuts down waits for the agent, and then kills it in the middle of its work",
        checks.ends_on_signal, shown_by=ShownBy.REQUESTS, tries=checks.TRIES,
    ),
    Behaviour(
        "own-events-only", (), "does nothing about an event whose Resources do not name it",
        "every machine of a scope sees all events of the scope, and one approval counts for all machines of the event",
        checks.leaves_other_alone,
    ),
    Behaviour(
        "whole-names", (), "does not take a machine with a longer name for its own, like vm-01 for vm-0",
        "a search for the name within the text also finds longer names",
        checks.leaves_longer_name_alone,
    ),
    Behaviour(
        "among-others", (), "handles an event that names it and other machines",
        "maintenance of a host is one event for all its machines in an update domain",
        checks.finds_itself_among_others,
        suits=EventKind.may_name_several_machines, needs_event="an event that can name several machines",
    ),
    Behaviour(
        "approves", ("approval",), "approves an event of its own",
        "with an approval the maintenance starts when the machine is ready, and not only when the notice has run out",
        checks.approves, probe_check=find_unapproved,
    ),
    Behaviour(
        "prepares", ("prepare",), "prepares for an event of its own",
        "without preparation the machine's work is interrupted at the start of the maintenance",
        checks.handles, probe_check=find_unprepared,
    ),
    Behaviour(
        "approves-once", ("approval",),
        f"approves an event once, or again after {checks.REPEAT_S:g} s or more, however often the document shows it",
        "repeated approvals hide the one that counts, and use up the rate limit",
        checks.approves_once,
    ),
    Behaviour(
        "ids-as-received", ("approval",), "sends an EventId in the letter case in which it received it",
        "an endpoint may compare ids exactly: then it answers 200 to another case, and does not start the event",
        checks.sends_ids_as_received, faults=({"fault": "lower-ids"},),
    ),
    Behaviour(
        "prepares-once", ("prepare",), "prepares once for an event, however often the document shows it",
        "to drain a drained machine again may fail, or may drain its replacement",
        checks.prepares_once,
    ),
    Behaviour(
        "prepares-first", ("prepare", "approval"), "has prepared when it approves",
        "an approved event may start the moment the approval arrives",
        checks.prepares_first,
    ),
    Behaviour(
        "failed-preparation", ("prepare", "approval"), "does not approve when its preparation failed",
        "until NotBefore the problem may still be solved; an approval gives up that time",
        checks.does_not_approve_unprepared,
    ),
    Behaviour(
        "several-events", ("approval",), "approves two events in the same document",
        "a Freeze and a restart by a user often overlap; an agent that handles only the first delays the other",
        checks.several_events,
    ),
    Behaviour(
        "preempt", ("preempt",), "handles a Preempt of its own machine",
        "a spot machine is taken back, and gets only 30 s of notice",
        checks.handles, suits=lambda kind: kind.type is PREEMPT.type, needs_event="a Preempt", probe_check=find_unhandled,
    ),
    Behaviour(
        "no-notice", (), "does not approve a started event, and handles the next event",
        "hardware fails without notice: the event has already started, and its NotBefore is empty",
        checks.no_notice,
        suits=EventKind.may_start_without_notice, needs_event="an event that can start without notice",
    ),
    Behaviour(
        "undoes-after-the-event", ("prepare", "recover"), "undoes its preparation once, after the event is gone and not before",
        "a machine that does not return to service is a longer outage than the maintenance itself",
        checks.undoes_after_the_event,
        suits=EventKind.leaves_the_machine, needs_event="an event after which the machine still exists",
    ),
    Behaviour(
        "undoes-a-cancelled-event", ("prepare", "recover"),
        "undoes its preparation once if the event disappears without starting",
        "there is no status for a cancelled event: an event that is no longer listed is over",
        checks.undoes_a_cancelled_event,
    ),
    Behaviour(
        "incarnation-reset", (), "handles an event in a document whose incarnation is lower than the last",
        "the incarnation restarts at 1 after a day without polls: compare it only for equality",
        checks.incarnation_starts_again,
    ),
    Behaviour(
        "unknown-things", (), "handles its event in a document with unknown fields, an unknown type and an empty EventSource",
        "the protocol has seven versions so far, and more will come",
        checks.handles, faults=({"fault": "newer"},),
        suits=EventKind.is_from_the_platform, needs_event="an event that it does not recognise by its EventSource",
    ),
    Behaviour(
        "gone-410", (), f"keeps polling during {checks.OUTAGE_S} s of 410 (on the service clock, unless --real-time)",
        "an endpoint that is being moved answers 410",
        checks.outlasts, shown_by=ShownBy.POLLING, faults=({"fault": "status", "status": 410, "for": f"{checks.OUTAGE_S}s"},),
    ),
    Behaviour(
        "not-found-404", (), f"keeps polling during {checks.OUTAGE_S} s of 404 (on the service clock, unless --real-time)",
        "the endpoint may not know a machine yet that has just booted",
        checks.outlasts, shown_by=ShownBy.POLLING, faults=({"fault": "status", "status": 404, "for": f"{checks.OUTAGE_S}s"},),
    ),
    Behaviour(
        "too-many-429", (), "waits after a 429 as long as Retry-After says, and then continues",
        "an agent that retries at once stays over the rate limit",
        checks.backs_off, shown_by=ShownBy.POLLING, faults=({"fault": "status", "status": 429, **FIRST_TWO},),
    ),
    Behaviour(
        "server-errors", (), "keeps polling after 500 and 503",
        "the service may restart at any time",
        checks.survives, shown_by=ShownBy.POLLING, faults=(
            {"fault": "status", "status": 500, "requests": 1, "method": "GET"},
            {"fault": "status", "status": 503, "requests": 2, "method": "GET"},
        ),
    ),
    Behaviour(
        "cut-body", (), "ignores half an answer, and polls again",
        "after a broken connection half a document remains, in which an event may be missing or look different",
        checks.survives, faults=({"fault": "cut", **FIRST_TWO},),
    ),
    Behaviour(
        "bad-json", (), "ignores an answer that is not JSON, and polls again",
        "an agent must not act on a part of an answer that it cannot read completely",
        checks.survives, faults=({"fault": "bad-json", **FIRST_TWO},),
    ),
    Behaviour(
        "connection-reset", (), "polls again after its connection was reset",
        "an endpoint that restarts closes all connections",
        checks.survives, shown_by=ShownBy.POLLING, faults=({"fault": "reset", **FIRST_TWO},),
    ),
    Behaviour(
        "slow-first-answer", (), "waits for a first answer that takes 4 s (120 s with --real-time, as in reality)",
        "the first request enables the scope, which takes time; an agent that hangs up has to start again",
        checks.waits_for_the_first_answer, shown_by=ShownBy.POLLING,
    ),
    Behaviour(
        "lost-approval", ("approval",), "approves again after its approval was answered 503",
        "an approval that was not answered with 200 does not count; to repeat one is always safe",
        checks.approves, faults=({"fault": "status", "status": 503, "requests": 1, "method": "POST"},),
    ),
    Behaviour(
        "killed-before-approving", ("approval", "restart"), "approves after a kill -9 that came before its approval succeeded",
        "agents are killed, often by problems of their own machine",
        checks.killed_before_approving, faults=({"fault": "status", "status": 503, "method": "POST"},),
    ),
    Behaviour(
        "killed-after-approving", ("prepare", "approval", "restart"),
        "neither prepares nor approves again after a kill -9 that came after its approval",
        "the reboot ends the agent, and the agent starts again while the event is still listed",
        checks.killed_after_approving,
    ),
    Behaviour(
        "killed-before-undoing", ("prepare", "recover", "restart"), "undoes once what it prepared before a kill -9",
        "if the agent forgets at the reboot what it drained, that stays drained",
        checks.killed_before_undoing, after="undoes-a-cancelled-event",
    ),
)  # fmt: skip
DOCUMENTLESS = ", ".join(each.name for each in BEHAVIOURS if not each.needs_a_document)
