"""The behaviours: a name, what must be claimed for it, what is looked at, why it matters, and the function that looks.

Each gets a stage of its own: a fresh emulator on a manual clock, and the agent, not yet started. It returns when all is well
and raises AgentFailed with what was seen instead. Waits are for what the agent does; where something must not happen, the
agent has gone on to its next request first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

from forewarn.core.document import VERSIONS
from forewarn.core.model import Actor
from forewarn.testing.conform.stage import MACHINE, SEEN_WITHIN_S, AgentFailed, Stage
from forewarn.testing.emulator import SCOPE, Scheduled

ALONE = ((MACHINE, 0),)
PAIR = ((MACHINE, 0), ("vm-1", 1))
IDLE_S = 3.0
ENDS_WITHIN_S = 5.0
# "Up to two minutes" in reality; here as long as a default time-out that is too short would not last.
FIRST_ANSWER_S = 4
# Retry-After says one second; a poll a second is sent a little sooner now and then.
RETRY_AFTER_S = 0.9
NOWHERE = "http://127.0.0.1:9"
HARNESS = Actor("conform")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """`checks` and `why` are sentences for people. `faults` befall the agent from its first request on."""

    name: str
    claims: tuple[str, ...]
    checks: str
    why: str
    check: Callable[[Stage], None]
    machines: Sequence[tuple[str, int]] = ALONE
    faults: Sequence[Mapping[str, object]] = ()


def _held(stage: Stage, kind: str = "Reboot", *machines: str) -> Scheduled:
    """An event that stays Scheduled whoever approves: it has a hard earliest start."""
    return stage.emulated.schedule(kind, *(machines or (MACHINE,)), earliest=timedelta(hours=2))


# -- asking


def sends_the_header(stage: Stage) -> None:
    stage.start()
    asked = stage.until(lambda: stage.polls, "it asked for the document")[0]
    value = asked.header("metadata") or ""
    stage.expect(value.lower() == "true", f"its request had {f'Metadata: {value}' if value else 'no Metadata header'}")


def names_a_version(stage: Stage) -> None:
    stage.start()
    asked = stage.until(lambda: stage.polls, "it asked for the document")[0]
    known = [f"api-version={version}" for version in VERSIONS]
    stage.expect(any(each in asked.target for each in known), f"it asked for {asked.target}")


def polls_often(stage: Stage) -> None:
    stage.start()
    stage.first_poll()
    stage.wait_seen(stage.emulated.schedule("Freeze", MACHINE))


def does_not_hammer(stage: Stage) -> None:
    stage.start()
    stage.first_poll()
    stage.quiet(IDLE_S)
    turned_away = sum(each.status == 429 for each in stage.requests)
    stage.expect(not turned_away, f"{turned_away} of its {len(stage.requests)} requests in {IDLE_S:g} s were too many")


def ignores_proxies(stage: Stage) -> None:
    stage.start(http_proxy=NOWHERE, HTTP_PROXY=NOWHERE, all_proxy=NOWHERE, ALL_PROXY=NOWHERE)
    stage.until(lambda: stage.polls, "it reached the endpoint although http_proxy was set")


def ends_when_told(stage: Stage) -> None:
    stage.start()
    stage.first_poll()
    stage.expect(stage.ends_on_sigterm(ENDS_WITHIN_S), f"it ran on for {ENDS_WITHIN_S:g} s after SIGTERM")


# -- whose event it is


def _leaves_alone(stage: Stage, other: str) -> None:
    foreign = stage.emulated.schedule("Reboot", other)
    stage.start()
    stage.has_gone_on(foreign)
    stage.expect(not stage.approvals(foreign), f"it approved an event of {other} alone")
    stage.expect(not stage.prepared, f"it prepared for an event of {other} alone")


def leaves_others_alone(stage: Stage) -> None:
    _leaves_alone(stage, "vm-1")


def compares_whole_names(stage: Stage) -> None:
    _leaves_alone(stage, "vm-01")


def finds_itself_among_others(stage: Stage) -> None:
    shared = stage.emulated.schedule("Reboot", "vm-1", MACHINE)
    stage.start()
    stage.wait_handled(shared)


# -- preparing and approving


def approves(stage: Stage) -> None:
    event = stage.emulated.schedule("Reboot", MACHINE)
    stage.start()
    stage.wait_approved(event)


def approves_once(stage: Stage) -> None:
    event = _held(stage)
    stage.start()
    stage.wait_approved(event)
    _show_it_again(stage, event)
    count = len(stage.approvals(event))
    stage.expect(count == 1, f"it approved the event {count} times")


def prepares_once(stage: Stage) -> None:
    event = _held(stage)
    stage.start()
    stage.wait_prepared()
    _show_it_again(stage, event)
    stage.expect(stage.prepared == 1, f"it prepared {stage.prepared} times for one event")


def _show_it_again(stage: Stage, event: Scheduled) -> None:
    """Documents that differ, with the same event in them."""
    for _ in range(2):
        before = stage.answered
        stage.emulated.schedule("Redeploy", "vm-1", source="User")
        stage.has_gone_on(event, but=before)


def prepares_first(stage: Stage) -> None:
    event = stage.emulated.schedule("Reboot", MACHINE)
    stage.start()
    asked = stage.wait_approved(event)
    stage.expect(bool(stage.emulated.prepared_by.get(asked.number)), "it approved before its prepare hook had ended")


def does_not_approve_unprepared(stage: Stage) -> None:
    stage.break_preparation()
    event = stage.emulated.schedule("Reboot", MACHINE)
    stage.start()
    stage.has_gone_on(event)
    stage.expect(not stage.approvals(event), "it approved although its prepare hook had failed")


def several_events(stage: Stage) -> None:
    waiting = [stage.emulated.schedule("Freeze", MACHINE), stage.emulated.schedule("Reboot", MACHINE, source="User")]
    stage.start()
    while waiting:
        approved = stage.until(
            lambda: next((e for e in waiting if stage.approvals(e)), None), "it approved both events"
        )
        waiting.remove(approved)


def thirty_seconds_are_enough(stage: Stage) -> None:
    event = stage.emulated.schedule("Preempt", MACHINE)
    stage.start()
    stage.wait_handled(event)


def no_notice(stage: Stage) -> None:
    started = stage.emulated.schedule("Redeploy", MACHINE, emergency=True)
    stage.start()
    stage.has_gone_on(started, "Started")
    asked = [each for each in stage.requests if started.id in each.approves]
    stage.expect(not asked, "it approved an event that had started")
    stage.emulated.finish(started)
    stage.wait_handled(stage.emulated.schedule("Reboot", MACHINE))


# -- coming back


def undoes_after_the_event(stage: Stage) -> None:
    event = stage.emulated.schedule("Reboot", MACHINE)
    stage.start()
    stage.wait_prepared()
    if "approval" in stage.claims:
        stage.wait_approved(event)
    else:
        stage.emulated.approve(event)
    stage.has_gone_on(event, "Started")
    stage.expect(not stage.recovered, "it undid its preparation while the event was under way")
    stage.emulated.finish(event)
    _wait_recovered_once(stage)


def undoes_a_cancelled_event(stage: Stage) -> None:
    event = _held(stage)
    stage.start()
    stage.wait_prepared()
    stage.has_gone_on(event)
    stage.expect(not stage.recovered, "it undid its preparation while the event was still scheduled")
    stage.emulated.cancel(event)
    _wait_recovered_once(stage)


def _wait_recovered_once(stage: Stage) -> None:
    stage.until(lambda: stage.recovered, "its recover hook wrote a line")
    stage.quiet()
    stage.expect(stage.recovered == 1, f"it undid its preparation {stage.recovered} times")


# -- the document


def incarnation_starts_again(stage: Stage) -> None:
    stage.start()
    stage.first_poll()
    others = [stage.emulated.schedule("Reboot", "vm-1", source="User") for _ in range(4)]
    stage.until(lambda: any((each.incarnation or 0) >= 5 for each in stage.polls), "it got the document 5")
    for each in others:
        stage.emulated.cancel(each)
    control = stage.emulated.service.control
    control.disable(SCOPE, HARNESS)
    control.enable(SCOPE, HARNESS)
    stage.wait_handled(stage.emulated.schedule("Reboot", MACHINE))


def tolerates_what_it_does_not_know(stage: Stage) -> None:
    event = stage.emulated.schedule("Reboot", MACHINE)
    stage.start()
    stage.wait_handled(event)


# -- when the endpoint is in trouble


def _survives(stage: Stage, count: int = 2) -> None:
    """The event is there from the beginning: nothing may be done about it before an answer came whole."""
    event = stage.emulated.schedule("Reboot", MACHINE)
    stage.start()
    stage.until(lambda: sum(bool(each.fault) for each in stage.requests) >= count, f"it asked {count} times in vain")
    # Faults by time end here; on the agent's own clock they were shorter.
    stage.emulated.advance(seconds=70)
    stage.wait_handled(event)
    whole = stage.seen(event)
    early = [each for each in stage.requests if each.approves and (whole is None or each.number < whole.number)]
    stage.expect(not early, "it approved an event on the strength of an answer that was not whole")


def survives(stage: Stage) -> None:
    _survives(stage)


def backs_off(stage: Stage) -> None:
    _survives(stage)
    asked = stage.polls
    for one, after in pairwise(asked):
        pause_s = after.at_s - (one.answered_s or one.at_s)
        if one.status == 429 and pause_s < RETRY_AFTER_S:
            raise AgentFailed(f"it asked again {pause_s:.2f} s after a 429 with Retry-After: 1")


def waits_for_the_first_answer(stage: Stage) -> None:
    event = stage.emulated.schedule("Reboot", MACHINE)
    stage.start()
    stage.until(lambda: stage.polls, "it asked for the document")
    stage.until(lambda: stage.polls[0].answered_s, "the first answer was sent", 2.0 * FIRST_ANSWER_S)
    first, *others = stage.polls
    sooner = [each for each in others if each.at_s < (first.answered_s or 0.0)]
    stage.expect(not sooner, "it asked again before the first answer came")
    stage.wait_handled(event)


def repeats_a_lost_approval(stage: Stage) -> None:
    event = stage.emulated.schedule("Reboot", MACHINE)
    stage.start()
    stage.wait_approved(event)


# -- killed


def killed_before_approving(stage: Stage) -> None:
    event = stage.emulated.schedule("Reboot", MACHINE)
    stage.start()
    stage.until(lambda: any(event.id in each.approves for each in stage.requests), "it tried to approve the event")
    stage.kill()
    stage.emulated.set_faults(())
    stage.start()
    stage.wait_approved(event)


def killed_after_approving(stage: Stage) -> None:
    event = stage.emulated.schedule("Reboot", MACHINE)
    stage.start()
    stage.wait_approved(event)
    stage.has_gone_on(event, "Started")
    before, number = stage.answered, stage.emulated.log.last_number
    stage.kill()
    stage.start()
    stage.has_gone_on(event, "Started", but=before)
    stage.expect(stage.prepared == 1, f"it prepared {stage.prepared} times for one event")
    again = [each for each in stage.requests if event.id in each.approves and each.number > number]
    stage.expect(not again, "it approved an event that had started")


def killed_before_undoing(stage: Stage) -> None:
    event = _held(stage)
    stage.start()
    stage.wait_prepared()
    stage.has_gone_on(event)
    stage.kill()
    stage.emulated.cancel(event)
    stage.start()
    _wait_recovered_once(stage)


FIRST_TWO = {"requests": "1-2", "method": "GET"}
BEHAVIOURS = (
    Behaviour(
        "metadata-header", (), "sends the header `Metadata: true`",
        "without it the service answers 400: a request that was redirected by accident must not be answered",
        sends_the_header,
    ),
    Behaviour(
        "api-version", (), "names a published api-version",
        "the version is mandatory, and `latest` is none",
        names_a_version,
    ),
    Behaviour(
        "polls-often", (), f"sees a new event within {SEEN_WITHIN_S:g} s",
        "a Preempt has 30 s of notice in all: who asks once a minute may never see it",
        polls_often,
    ),
    Behaviour(
        "does-not-hammer", (), f"is never turned away with 429 in {IDLE_S:g} s of nothing",
        "five requests a second are taken from a machine, and everything on it that asks shares them",
        does_not_hammer,
    ),
    Behaviour(
        "ignores-proxies", (), "reaches the endpoint although http_proxy is set",
        "the endpoint is link-local: a proxy cannot reach it, or reaches its own",
        ignores_proxies,
    ),
    Behaviour(
        "ends-when-told", (), f"ends within {ENDS_WITHIN_S:g} s of SIGTERM",
        "a machine that goes down waits for it, and kills it in the middle of something",
        ends_when_told,
    ),
    Behaviour(
        "own-events-only", (), "does nothing about an event whose Resources do not name it",
        "every machine of a scope sees all its events, and one approval counts for whoever is in it",
        leaves_others_alone, machines=PAIR,
    ),
    Behaviour(
        "whole-names", (), "does not take vm-01 for vm-0",
        "looking for a name within a text finds the neighbours' too",
        compares_whole_names, machines=((MACHINE, 0), ("vm-01", 1)),
    ),
    Behaviour(
        "among-others", (), "handles an event that names it beside others",
        "a host's maintenance is one event for all its machines of an update domain",
        finds_itself_among_others, machines=((MACHINE, 0), ("vm-1", 0)),
    ),
    Behaviour(
        "approves", ("approval",), "approves an event of its own",
        "an approval brings the maintenance forward to when the machine is ready, instead of when time is up",
        approves,
    ),
    Behaviour(
        "approves-once", ("approval",), "approves an event once, however often the document shows it",
        "an approval each second is noise that hides the one that counts, and a share of the rate limit",
        approves_once, machines=PAIR,
    ),
    Behaviour(
        "prepares-once", ("prepare",), "prepares once for an event, however often the document shows it",
        "draining a machine that is drained already may fail, or drain what came to help",
        prepares_once, machines=PAIR,
    ),
    Behaviour(
        "prepares-first", ("prepare", "approval"), "has prepared when it approves",
        "an approved event may start the moment the approval arrives",
        prepares_first,
    ),
    Behaviour(
        "failed-preparation", ("prepare", "approval"), "does not approve when its preparation failed",
        "time may still mend it until NotBefore; an approval gives that time away",
        does_not_approve_unprepared,
    ),
    Behaviour(
        "several-events", ("approval",), "approves two events that are there at once",
        "a Freeze and a user's restart overlap easily; who looks at the first only keeps the other waiting",
        several_events,
    ),
    Behaviour(
        "preempt", ("preempt",), "handles an event with 30 s of notice",
        "a spot machine has no more than that",
        thirty_seconds_are_enough,
    ),
    Behaviour(
        "no-notice", (), "does not approve what has started, and goes on to the next event",
        "hardware fails without notice: there is nothing to bring forward, and NotBefore is empty",
        no_notice,
    ),
    Behaviour(
        "undoes-after-the-event", ("prepare", "recover"), "undoes its preparation once, when the event is gone and not before",
        "a machine that never comes back into service is an outage that the maintenance was not",
        undoes_after_the_event,
    ),
    Behaviour(
        "undoes-a-cancelled-event", ("prepare", "recover"), "undoes its preparation once when the event goes without starting",
        "no status ever says cancelled: an event that is no longer listed is over",
        undoes_a_cancelled_event,
    ),
    Behaviour(
        "incarnation-reset", (), "handles an event in a document whose incarnation is lower than the last",
        "the incarnation starts again at 1 when a scope was asleep for a day: it is compared, never ordered",
        incarnation_starts_again, machines=PAIR,
    ),
    Behaviour(
        "unknown-things", (), "handles its event in a document with unknown fields, an unknown type and an empty EventSource",
        "the protocol has grown seven times and goes on growing",
        tolerates_what_it_does_not_know, faults=({"fault": "newer"},),
    ),
    Behaviour(
        "gone-410", (), "keeps asking through 410 for 70 s (on the service's clock; real time is shorter)",
        "that is what an endpoint being moved answers",
        survives, faults=({"fault": "status", "status": 410, "for": "70s"},),
    ),
    Behaviour(
        "not-found-404", (), "keeps asking through 404 for 70 s (on the service's clock; real time is shorter)",
        "a machine that just booted may not be known yet",
        survives, faults=({"fault": "status", "status": 404, "for": "70s"},),
    ),
    Behaviour(
        "too-many-429", (), "waits as Retry-After says after a 429, and goes on",
        "whoever asks at once again stays turned away",
        backs_off, faults=({"fault": "status", "status": 429, **FIRST_TWO},),
    ),
    Behaviour(
        "server-errors", (), "keeps asking through 500 and 503",
        "the service restarts too",
        survives, faults=(
            {"fault": "status", "status": 500, "requests": 1, "method": "GET"},
            {"fault": "status", "status": 503, "requests": 2, "method": "GET"},
        ),
    ),
    Behaviour(
        "cut-body", (), "does nothing about half an answer, and asks again",
        "a connection that breaks leaves half a document, in which an event seems gone or seems another",
        survives, faults=({"fault": "cut", **FIRST_TWO},),
    ),
    Behaviour(
        "bad-json", (), "does nothing about an answer that is no JSON, and asks again",
        "what cannot be read whole must not be acted on in part",
        survives, faults=({"fault": "bad-json", **FIRST_TWO},),
    ),
    Behaviour(
        "connection-reset", (), "asks again after its connection was reset",
        "an endpoint that restarts drops everybody",
        survives, faults=({"fault": "reset", **FIRST_TWO},),
    ),
    Behaviour(
        "slow-first-answer", (), f"waits for a first answer that takes {FIRST_ANSWER_S} s (up to two minutes in reality)",
        "the first request enables the scope, and that takes its time; who hangs up begins anew",
        waits_for_the_first_answer, faults=({"fault": "slow", "delay": f"{FIRST_ANSWER_S}s", "requests": 1, "method": "GET"},),
    ),
    Behaviour(
        "lost-approval", ("approval",), "approves again after its approval was answered 503",
        "an approval that nobody heard is none; repeating one is always safe",
        repeats_a_lost_approval, faults=({"fault": "status", "status": 503, "requests": 1, "method": "POST"},),
    ),
    Behaviour(
        "killed-before-approving", ("approval", "restart"), "approves after a kill -9 that came before its approval was taken",
        "agents are killed, by their own machine's troubles most of all",
        killed_before_approving, faults=({"fault": "status", "status": 503, "method": "POST"},),
    ),
    Behaviour(
        "killed-after-approving", ("prepare", "approval", "restart"), "neither prepares nor approves again after a later kill -9",
        "the agent ends with the reboot it prepared for, and begins anew while the event is still there",
        killed_after_approving,
    ),
    Behaviour(
        "killed-before-undoing", ("prepare", "recover", "restart"), "undoes what it prepared before a kill -9, once",
        "an agent that forgets at the reboot what it drained leaves it drained",
        killed_before_undoing,
    ),
)  # fmt: skip
