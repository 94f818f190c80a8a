"""How each behaviour is looked at: one function each, on a stage of its own, with the agent not yet started.

It returns when all is well and raises AgentFailed with what was seen instead. Waits are for what the agent does; where something
must not happen, the agent has gone on to its next request first.
"""

from contextlib import closing, suppress
from datetime import timedelta
from itertools import pairwise
from urllib.parse import parse_qsl

from forewarn.core.document import VERSIONS
from forewarn.core.model import Actor
from forewarn.testing.conform.stage import MACHINE, SEEN_WITHIN_S, TURNS, AgentFailed, DeadProxy, Stage
from forewarn.testing.default_machines import SCOPE
from forewarn.testing.emulator import Scheduled
from forewarn.testing.request_log import Asked

IDLE_S = 3.0
ENDS_WITHIN_S = 5.0
# Retry-After says one second; a poll a second is sent a little sooner now and then.
RETRY_AFTER_S = 0.9
# What a fault by time lasts, on the service's clock.
TROUBLE_S = 70
HARNESS = Actor("conform")


def _held(stage: Stage, kind: str = "Reboot", *machines: str) -> Scheduled:
    """An event that stays Scheduled whoever approves: it has a hard earliest start."""
    return stage.emulated.schedule(kind, *(machines or (MACHINE,)), earliest=timedelta(hours=2))


# -- asking


def sends_the_header(stage: Stage) -> None:
    for asked in _opening(stage):
        value = asked.header("metadata") or ""
        told = f"Metadata: {value}" if value else "no Metadata header"
        stage.expect(value.lower() == "true", f"its request {asked.number} had {told}")


def names_a_version(stage: Stage) -> None:
    opening = _opening(stage)
    for asked in opening:
        named = [value for name, value in parse_qsl(asked.target.partition("?")[2]) if name.lower() == "api-version"]
        # "clients fall back on 404": to ask for a later version first is right, to stay with it is not.
        fell_back = asked.status == 404 and asked is not opening[-1]
        stage.expect(fell_back or (len(named) == 1 and named[0] in VERSIONS), f"it asked for {asked.target}")


def _opening(stage: Stage) -> list[Asked]:
    """What it asks until it has a document, or is refused for good, or ends."""
    stage.start()
    stage.until(lambda: stage.polls, "it asked for the document")
    with suppress(AgentFailed):
        stage.first_poll()
    polls = stage.polls
    first = next((index for index, each in enumerate(polls) if each.incarnation is not None), len(polls))
    return polls[: first + 1]


def polls_often(stage: Stage) -> None:
    stage.start()
    stage.first_poll()
    seen = stage.wait_seen(stage.emulated.schedule("Freeze", MACHINE))
    # However late we looked: an event waits for the agent at most from one answer to its next request.
    before = [each.answered_s for each in stage.polls if each.number < seen.number and each.answered_s is not None]
    pause_s = seen.at_s - max(before, default=seen.at_s)
    stage.expect(pause_s <= SEEN_WITHIN_S, f"it asked again only after {pause_s:.1f} s")


def does_not_hammer(stage: Stage) -> None:
    stage.start()
    stage.first_poll()
    stage.quiet(IDLE_S)
    turned_away = sum(each.status == 429 for each in stage.requests)
    stage.expect(not turned_away, f"{turned_away} of its {len(stage.requests)} requests in {IDLE_S:g} s were too many")


def ignores_proxies(stage: Stage) -> None:
    with closing(DeadProxy(stage.emulated.endpoint)) as proxy:
        stage.start(http_proxy=proxy.url, HTTP_PROXY=proxy.url, all_proxy=proxy.url, ALL_PROXY=proxy.url)

        def reached() -> list[Asked]:
            asked, polls = proxy.asked, stage.polls
            stage.expect(asked < TURNS or bool(polls), f"it asked a proxy for the endpoint {asked} times")
            return polls

        stage.until(reached, "it reached the endpoint although http_proxy was set")


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
    others = [_held(stage, "Reboot", "vm-1") for _ in range(4)]
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


def _survives(stage: Stage, count: int = 2, *, trouble_s: float = 0.0) -> None:
    """The event is there from the beginning: nothing may be done about it before an answer came whole."""
    event = stage.emulated.schedule("Reboot", MACHINE)
    stage.start()
    stage.until(lambda: sum(bool(each.fault) for each in stage.requests) >= count, f"it asked {count} times in vain")
    stage.quiet(trouble_s)
    # Faults by time end here; on the agent's own clock they were shorter, unless real time was asked for.
    stage.emulated.advance(TROUBLE_S)
    stage.wait_handled(event)
    whole = stage.seen(event)
    early = [each for each in stage.requests if each.approves and (whole is None or each.number < whole.number)]
    stage.expect(not early, "it approved an event on the strength of an answer that was not whole")


def survives(stage: Stage) -> None:
    _survives(stage)


def outlasts(stage: Stage) -> None:
    _survives(stage, trouble_s=stage.pace.trouble_s)


def backs_off(stage: Stage) -> None:
    _survives(stage)
    asked = stage.polls
    for one, after in pairwise(asked):
        pause_s = after.at_s - (one.answered_s or one.at_s)
        if one.status == 429 and pause_s < RETRY_AFTER_S:
            raise AgentFailed(f"it asked again {pause_s:.2f} s after a 429 with Retry-After: 1")


def waits_for_the_first_answer(stage: Stage) -> None:
    takes_s = stage.pace.first_answer_s
    stage.emulated.set_faults([{"fault": "slow", "delay": f"{takes_s}s", "requests": 1, "method": "GET"}])
    event = stage.emulated.schedule("Reboot", MACHINE)
    stage.start()
    stage.until(lambda: stage.polls, "it asked for the document")
    stage.quiet(takes_s)
    first = stage.until(
        lambda: next((each for each in stage.polls[:1] if each.left or each.answered_s is not None), None),
        "the first answer was sent",
    )
    sooner = any(each.at_s < (first.answered_s or 0.0) for each in stage.polls[1:])
    stage.expect(not first.left and not sooner, "it did not wait for the first answer")
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
