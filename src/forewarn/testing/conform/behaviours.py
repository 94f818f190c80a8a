"""The behaviours, as a table: a name, what must be claimed for it, what is looked at, why it matters, and what befalls the agent.

`checks` looks; this is what people read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from forewarn.testing.conform import checks
from forewarn.testing.conform.stage import MACHINE, SEEN_WITHIN_S, Stage

ALONE = ((MACHINE, 0),)
PAIR = ((MACHINE, 0), ("vm-1", 1))


@dataclass(frozen=True, slots=True)
class Behaviour:
    """`checks` and `why` are sentences for people. `faults` befall the agent from its first request on.

    Most need an agent that gets a document at all; one that does not has not reached them.
    """

    name: str
    claims: tuple[str, ...]
    checks: str
    why: str
    check: Callable[[Stage], None]
    machines: Sequence[tuple[str, int]] = ALONE
    faults: Sequence[Mapping[str, object]] = ()
    needs_a_document: bool = True


FIRST_TWO = {"requests": "1-2", "method": "GET"}
BEHAVIOURS = (
    Behaviour(
        "metadata-header", (), "sends the header `Metadata: true`",
        "without it the service answers 400: a request that was redirected by accident must not be answered",
        checks.sends_the_header, needs_a_document=False,
    ),
    Behaviour(
        "api-version", (), "names a published api-version",
        "the version is mandatory, and `latest` is none",
        checks.names_a_version, needs_a_document=False,
    ),
    Behaviour(
        "polls-often", (), f"sees a new event within {SEEN_WITHIN_S:g} s",
        "a Preempt has 30 s of notice in all: who asks once a minute may never see it",
        checks.polls_often,
    ),
    Behaviour(
        "does-not-hammer", (), f"is never turned away with 429 in {checks.IDLE_S:g} s of nothing",
        "five requests a second are taken from a machine, and everything on it that asks shares them",
        checks.does_not_hammer,
    ),
    Behaviour(
        "ignores-proxies", (), "reaches the endpoint although http_proxy is set",
        "the endpoint is link-local: a proxy cannot reach it, or reaches its own",
        checks.ignores_proxies, needs_a_document=False,
    ),
    Behaviour(
        "ends-when-told", (), f"ends within {checks.ENDS_WITHIN_S:g} s of SIGTERM",
        "a machine that goes down waits for it, and kills it in the middle of something",
        checks.ends_when_told,
    ),
    Behaviour(
        "own-events-only", (), "does nothing about an event whose Resources do not name it",
        "every machine of a scope sees all its events, and one approval counts for whoever is in it",
        checks.leaves_others_alone, machines=PAIR,
    ),
    Behaviour(
        "whole-names", (), "does not take vm-01 for vm-0",
        "looking for a name within a text finds the neighbours' too",
        checks.compares_whole_names, machines=((MACHINE, 0), ("vm-01", 1)),
    ),
    Behaviour(
        "among-others", (), "handles an event that names it beside others",
        "a host's maintenance is one event for all its machines of an update domain",
        checks.finds_itself_among_others, machines=((MACHINE, 0), ("vm-1", 0)),
    ),
    Behaviour(
        "approves", ("approval",), "approves an event of its own",
        "an approval brings the maintenance forward to when the machine is ready, instead of when time is up",
        checks.approves,
    ),
    Behaviour(
        "approves-once", ("approval",), "approves an event once, however often the document shows it",
        "an approval each second is noise that hides the one that counts, and a share of the rate limit",
        checks.approves_once, machines=PAIR,
    ),
    Behaviour(
        "prepares-once", ("prepare",), "prepares once for an event, however often the document shows it",
        "draining a machine that is drained already may fail, or drain what came to help",
        checks.prepares_once, machines=PAIR,
    ),
    Behaviour(
        "prepares-first", ("prepare", "approval"), "has prepared when it approves",
        "an approved event may start the moment the approval arrives",
        checks.prepares_first,
    ),
    Behaviour(
        "failed-preparation", ("prepare", "approval"), "does not approve when its preparation failed",
        "time may still mend it until NotBefore; an approval gives that time away",
        checks.does_not_approve_unprepared,
    ),
    Behaviour(
        "several-events", ("approval",), "approves two events that are there at once",
        "a Freeze and a user's restart overlap easily; who looks at the first only keeps the other waiting",
        checks.several_events,
    ),
    Behaviour(
        "preempt", ("preempt",), "handles an event with 30 s of notice",
        "a spot machine has no more than that",
        checks.thirty_seconds_are_enough,
    ),
    Behaviour(
        "no-notice", (), "does not approve what has started, and goes on to the next event",
        "hardware fails without notice: there is nothing to bring forward, and NotBefore is empty",
        checks.no_notice,
    ),
    Behaviour(
        "undoes-after-the-event", ("prepare", "recover"), "undoes its preparation once, when the event is gone and not before",
        "a machine that never comes back into service is an outage that the maintenance was not",
        checks.undoes_after_the_event,
    ),
    Behaviour(
        "undoes-a-cancelled-event", ("prepare", "recover"), "undoes its preparation once when the event goes without starting",
        "no status ever says cancelled: an event that is no longer listed is over",
        checks.undoes_a_cancelled_event,
    ),
    Behaviour(
        "incarnation-reset", (), "handles an event in a document whose incarnation is lower than the last",
        "the incarnation starts again at 1 when a scope was asleep for a day: it is compared, never ordered",
        checks.incarnation_starts_again, machines=PAIR,
    ),
    Behaviour(
        "unknown-things", (), "handles its event in a document with unknown fields, an unknown type and an empty EventSource",
        "the protocol has grown seven times and goes on growing",
        checks.tolerates_what_it_does_not_know, faults=({"fault": "newer"},),
    ),
    Behaviour(
        "gone-410", (), f"keeps asking through 410 for {checks.TROUBLE_S} s (on the service's clock, unless --real-time)",
        "that is what an endpoint being moved answers",
        checks.outlasts, faults=({"fault": "status", "status": 410, "for": f"{checks.TROUBLE_S}s"},),
    ),
    Behaviour(
        "not-found-404", (), f"keeps asking through 404 for {checks.TROUBLE_S} s (on the service's clock, unless --real-time)",
        "a machine that just booted may not be known yet",
        checks.outlasts, faults=({"fault": "status", "status": 404, "for": f"{checks.TROUBLE_S}s"},),
    ),
    Behaviour(
        "too-many-429", (), "waits as Retry-After says after a 429, and goes on",
        "whoever asks at once again stays turned away",
        checks.backs_off, faults=({"fault": "status", "status": 429, **FIRST_TWO},),
    ),
    Behaviour(
        "server-errors", (), "keeps asking through 500 and 503",
        "the service restarts too",
        checks.survives, faults=(
            {"fault": "status", "status": 500, "requests": 1, "method": "GET"},
            {"fault": "status", "status": 503, "requests": 2, "method": "GET"},
        ),
    ),
    Behaviour(
        "cut-body", (), "does nothing about half an answer, and asks again",
        "a connection that breaks leaves half a document, in which an event seems gone or seems another",
        checks.survives, faults=({"fault": "cut", **FIRST_TWO},),
    ),
    Behaviour(
        "bad-json", (), "does nothing about an answer that is no JSON, and asks again",
        "what cannot be read whole must not be acted on in part",
        checks.survives, faults=({"fault": "bad-json", **FIRST_TWO},),
    ),
    Behaviour(
        "connection-reset", (), "asks again after its connection was reset",
        "an endpoint that restarts drops everybody",
        checks.survives, faults=({"fault": "reset", **FIRST_TWO},),
    ),
    Behaviour(
        "slow-first-answer", (), "waits for a first answer that takes 4 s (120 s with --real-time, as in reality)",
        "the first request enables the scope, and that takes its time; who hangs up begins anew",
        checks.waits_for_the_first_answer,
    ),
    Behaviour(
        "lost-approval", ("approval",), "approves again after its approval was answered 503",
        "an approval that nobody heard is none; repeating one is always safe",
        checks.repeats_a_lost_approval, faults=({"fault": "status", "status": 503, "requests": 1, "method": "POST"},),
    ),
    Behaviour(
        "killed-before-approving", ("approval", "restart"), "approves after a kill -9 that came before its approval was taken",
        "agents are killed, by their own machine's troubles most of all",
        checks.killed_before_approving, faults=({"fault": "status", "status": 503, "method": "POST"},),
    ),
    Behaviour(
        "killed-after-approving", ("prepare", "approval", "restart"), "neither prepares nor approves again after a later kill -9",
        "the agent ends with the reboot it prepared for, and begins anew while the event is still there",
        checks.killed_after_approving,
    ),
    Behaviour(
        "killed-before-undoing", ("prepare", "recover", "restart"), "undoes what it prepared before a kill -9, once",
        "an agent that forgets at the reboot what it drained leaves it drained",
        checks.killed_before_undoing,
    ),
)  # fmt: skip
