"""The check of each behaviour: one function each, with its own trial, in which the agent is not started yet.

A check returns if the agent has the behaviour and raises AgentFailed with the observation if not. It waits for acts of the agent.
To check that something does not happen, it first waits for the agent's next poll.
"""

from contextlib import closing, suppress
from itertools import pairwise
from urllib.parse import parse_qsl

from forewarn.core.document import VERSIONS
from forewarn.core.model import Actor
from forewarn.testing.conform.agent_process import AgentFailed
from forewarn.testing.conform.dead_proxy import DeadProxy
from forewarn.testing.conform.event_kinds import parse_event
from forewarn.testing.conform.outcomes import NOT_SHOWN, SKIPPED, NotTested
from forewarn.testing.conform.probe import KindResult, kind_list
from forewarn.testing.conform.trial import PATIENCE_POLLS, SEEN_WITHIN_S, Trial
from forewarn.testing.default_machines import SCOPE
from forewarn.testing.emulator import Scheduled
from forewarn.testing.request_log import LoggedRequest

IDLE_S = 3.0
ENDS_WITHIN_S = 5.0
# An agent is too slow only if it was too slow this many times in a row: a busy machine may delay it now and then.
TRIES = 3
# Retry-After is one second; an agent that polls once a second is sometimes a little early.
MIN_RETRY_PAUSE_S = 0.9
# How long a fault with a time limit lasts, on the service's clock.
OUTAGE_S = 70
# An approval of an event that stays Scheduled may have been lost. It may be repeated after so long.
REPEAT_S = 30.0
CONFORM = Actor("conform")
# Every api-version shows it. For behaviours in which the agent only has to see an event.
VISIBLE_KIND = parse_event("type=Freeze")


# -- requests


def sends_the_header(trial: Trial) -> None:
    for request in _opening_polls(trial):
        value = request.header("metadata") or ""
        sent = f"Metadata: {value}" if value else "no Metadata header"
        trial.expect(value.lower() == "true", f"its request {request.number} had {sent}")


def names_a_version(trial: Trial) -> None:
    opening = _opening_polls(trial)
    for request in opening:
        parameters = parse_qsl(request.target.partition("?")[2])
        versions = [value for name, value in parameters if name.lower() == "api-version"]
        # "clients fall back on 404": an agent may try a later version first, but must not keep using it.
        fell_back = request.status == 404 and request is not opening[-1]
        trial.expect(fell_back or (len(versions) == 1 and versions[0] in VERSIONS), f"it requested {request.target}")


def _opening_polls(trial: Trial) -> list[LoggedRequest]:
    """Return the polls up to the first document, or until the agent is refused for good or ends."""
    trial.start()
    trial.until(lambda: trial.polls, "the agent polls")
    with suppress(AgentFailed):
        trial.first_poll()
    polls = trial.polls
    first = next((index for index, each in enumerate(polls) if each.incarnation is not None), len(polls))
    return polls[: first + 1]


def polls_often(trial: Trial) -> None:
    trial.start()
    trial.first_poll()
    # An event waits for the agent at most from one answer to its next request. A busy machine may delay one request.
    pauses_s = [_pause_before_seen(trial)]
    while pauses_s[-1] > SEEN_WITHIN_S and len(pauses_s) < TRIES:
        pauses_s.append(_pause_before_seen(trial))
    trial.expect(min(pauses_s) <= SEEN_WITHIN_S, f"it polled again only after {min(pauses_s):.1f} s")


def _pause_before_seen(trial: Trial) -> float:
    """Schedule an event and return how long the agent had not polled when it saw the event."""
    seen = trial.wait_seen(trial.schedule(VISIBLE_KIND))
    before = [each.answered_s for each in trial.polls if each.number < seen.number and each.answered_s is not None]
    return seen.at_s - max(before, default=seen.at_s)


def does_not_hammer(trial: Trial) -> None:
    trial.start()
    trial.first_poll()
    trial.quiet(IDLE_S)
    refused = trial.rate_limited
    trial.expect(
        not refused, f"{refused} of its {len(trial.requests)} requests in {IDLE_S:g} s exceeded the rate limit"
    )


def ignores_proxies(trial: Trial) -> None:
    with closing(DeadProxy(trial.emulator.endpoint)) as proxy:
        trial.start(http_proxy=proxy.url, HTTP_PROXY=proxy.url, all_proxy=proxy.url, ALL_PROXY=proxy.url)

        def polls() -> list[LoggedRequest]:
            proxied, polls = proxy.count_requests(), trial.polls
            trial.expect(proxied < PATIENCE_POLLS or bool(polls), f"it used the proxy for the endpoint {proxied} times")
            return polls

        trial.until(polls, "the agent reaches the endpoint although http_proxy is set")


def ends_on_signal(trial: Trial) -> None:
    trial.start()
    trial.first_poll()
    trial.expect(trial.ends_on_sigterm(ENDS_WITHIN_S), f"it still ran {ENDS_WITHIN_S:g} s after SIGTERM")


# -- events of other machines


def leaves_other_alone(trial: Trial) -> None:
    _leaves_alone(trial, trial.names.other)


def leaves_longer_name_alone(trial: Trial) -> None:
    _leaves_alone(trial, trial.names.longer)


def _leaves_alone(trial: Trial, other: str) -> None:
    """Show the other machine's events of all kinds, except those that the agent cannot see or that only end it.

    An event of a kind that the agent handles is alone in the document, because some agents handle only the first one.
    """
    visible = [each for each in trial.results if each.seen and (each.handled or not each.ended)] or trial.usable
    documents = [[each] for each in visible if each.handled]
    documents.append([each for each in visible if not each.handled])
    shown: list[tuple[KindResult, Scheduled]] = []
    trial.start()
    try:
        for document in filter(None, documents):
            events = [(each, trial.schedule_held(each.kind, other)) for each in document]
            shown += events
            trial.wait_next_poll(events[-1][1])
            for _, event in events:
                trial.emulator.cancel(event)
    finally:  # if the agent ended after an approval, the approval is the reason
        approved = [each for each, event in shown if any(event.id in request.approves for request in trial.requests)]
        trial.expect(not approved, f"it approved events that name only {other}: {kind_list(approved)}")
    trial.expect(not trial.prepared, f"it prepared for an event that names only {other}")


def finds_itself_among_others(trial: Trial) -> None:
    # An approval counts for all machines of the event, so an agent may prepare and leave the approval to others.
    shared = trial.schedule(None, trial.names.neighbour, trial.machine)
    trial.start()
    if trial.usable[0].handled:
        trial.until(
            lambda: trial.approvals(shared) or trial.prepared, "the agent approves the event, or prepares for it"
        )
    else:
        trial.wait_next_poll(shared)


# -- preparing and approving


def handles(trial: Trial) -> None:
    event = trial.schedule()
    trial.start()
    trial.wait_handled(event)


def approves(trial: Trial) -> None:
    event = trial.schedule()
    trial.start()
    trial.wait_approved(event)


def approves_once(trial: Trial) -> None:
    event = trial.schedule_held()
    trial.start()
    trial.wait_approved(event)
    _show_it_again(trial, event)
    approvals = trial.approvals(event)
    pauses_s = [after.at_s - before.at_s for before, after in pairwise(approvals)]
    shortest_s = min(pauses_s, default=REPEAT_S)
    trial.expect(
        shortest_s >= REPEAT_S,
        f"it approved the event {len(approvals)} times, and once only {shortest_s:.1f} s after the time before",
    )


def sends_ids_as_received(trial: Trial) -> None:
    event = trial.schedule()
    trial.start()
    body = trial.wait_approved(event).body.decode("utf-8", "replace")
    trial.expect(event.id.lower() in body, f"it received {event.id.lower()}, and sent {body}")


def prepares_once(trial: Trial) -> None:
    event = trial.schedule_held()
    trial.start()
    trial.wait_prepared()
    _show_it_again(trial, event)
    trial.expect(trial.prepared == 1, f"it prepared {trial.prepared} times for one event")


def _show_it_again(trial: Trial, event: Scheduled) -> None:
    """Change the document twice while it still shows the event, by one user event of each type."""
    for type_ in ("Redeploy", "Reboot"):
        before = trial.answered
        trial.emulator.schedule(type_, trial.names.other, source="User")
        trial.wait_next_poll(event, but=before)


def prepares_first(trial: Trial) -> None:
    event = trial.schedule()
    trial.start()
    approval = trial.wait_approved(event)
    prepared = trial.emulator.prepared_at.get(approval.number)
    trial.expect(bool(prepared), "it approved before its prepare hook had ended")


def does_not_approve_unprepared(trial: Trial) -> None:
    trial.break_preparation()
    event = trial.schedule()
    trial.start()
    trial.wait_next_poll(event)
    trial.expect(not trial.approvals(event), "it approved although its prepare hook had failed")


def several_events(trial: Trial) -> None:
    first, second = [each.kind for each in (*trial.usable, *trial.usable)][:2]
    if first == second and not first.may_be_repeated():
        outcome = SKIPPED if trial.setup.declared else NOT_SHOWN
        raise NotTested(
            outcome, f"a machine cannot have two events at once that are a {first}, and it handles no other"
        )
    unapproved = [trial.schedule(first), trial.schedule(second)]
    trial.start()
    while unapproved:
        approved = trial.until(
            lambda: next((e for e in unapproved if trial.approvals(e)), None), "the agent approves both events"
        )
        unapproved.remove(approved)


def no_notice(trial: Trial) -> None:
    started = trial.schedule(emergency=True)
    trial.start()
    trial.wait_next_poll(started, "Started")
    approvals = [each for each in trial.requests if started.id in each.approves]
    trial.expect(not approvals, "it approved an event that had started")
    trial.emulator.finish(started)
    prepared = trial.prepared
    trial.wait_handled(trial.schedule(), prepared)


# -- recovery


def undoes_after_the_event(trial: Trial) -> None:
    event = trial.schedule()
    trial.start()
    trial.wait_prepared()
    if trial.usable[0].approved:
        trial.wait_approved(event)
    else:
        trial.emulator.approve(event)
    trial.wait_next_poll(event, "Started")
    trial.expect(not trial.recovered, "it undid its preparation while the event was under way")
    trial.emulator.finish(event)
    _wait_recovered_once(trial)


def undoes_a_cancelled_event(trial: Trial) -> None:
    event = trial.schedule_held()
    trial.start()
    trial.wait_prepared()
    trial.wait_next_poll(event)
    trial.expect(not trial.recovered, "it undid its preparation while the event was still scheduled")
    trial.emulator.cancel(event)
    _wait_recovered_once(trial)


def _wait_recovered_once(trial: Trial) -> None:
    trial.until(lambda: trial.recovered, "the recover hook writes a line")
    trial.quiet()
    trial.expect(trial.recovered == 1, f"it undid its preparation {trial.recovered} times")


# -- the document


def incarnation_starts_again(trial: Trial) -> None:
    trial.start()
    trial.first_poll()
    others = [trial.schedule_held(VISIBLE_KIND, trial.names.other) for _ in range(4)]
    trial.until(lambda: any((each.incarnation or 0) >= 5 for each in trial.polls), "the agent gets document 5")
    for each in others:
        trial.emulator.cancel(each)
    control = trial.emulator.service.control
    control.disable(SCOPE, CONFORM)
    control.enable(SCOPE, CONFORM)
    trial.wait_handled(trial.schedule())


# -- failures of the endpoint


def _survives(trial: Trial, failures: int = 2, *, outage_s: float = 0.0) -> None:
    """Check that the agent handles an event after the failures, and not before it got a complete answer."""
    event = trial.schedule()
    trial.start()
    trial.until(lambda: sum(bool(each.fault) for each in trial.requests) >= failures, f"{failures} requests fail")
    trial.quiet(outage_s)
    # Faults with a time limit end here. On the agent's own clock they were shorter, unless the run is in real time.
    trial.emulator.advance(OUTAGE_S)
    trial.wait_handled(event)
    complete = trial.seen(event)
    early = [each for each in trial.requests if each.approves and (complete is None or each.number < complete.number)]
    trial.expect(not early, "it approved an event from an incomplete answer")


def survives(trial: Trial) -> None:
    _survives(trial)


def outlasts(trial: Trial) -> None:
    _survives(trial, outage_s=trial.delays.outage_s)


def backs_off(trial: Trial) -> None:
    _survives(trial)
    for poll, following in pairwise(trial.polls):
        pause_s = following.at_s - (poll.answered_s or poll.at_s)
        if poll.status == 429 and pause_s < MIN_RETRY_PAUSE_S:
            raise AgentFailed(f"it polled again {pause_s:.2f} s after a 429 with Retry-After: 1")


def waits_for_the_first_answer(trial: Trial) -> None:
    delay_s = trial.delays.first_answer_s
    trial.emulator.set_faults([{"fault": "slow", "delay": f"{delay_s}s", "requests": 1, "method": "GET"}])
    event = trial.schedule()
    trial.start()
    trial.until(lambda: trial.polls, "the agent polls")

    def ended() -> LoggedRequest | None:
        return next((each for each in trial.polls[:1] if each.left or each.answered_s is not None), None)

    trial.quiet(delay_s, until=ended)
    first = trial.until(ended, "the first answer is sent")
    sooner = any(each.at_s < (first.answered_s or 0.0) for each in trial.polls[1:])
    trial.expect(not first.left and not sooner, "it did not wait for the first answer")
    trial.wait_handled(event)


# -- killed


def killed_before_approving(trial: Trial) -> None:
    event = trial.schedule()
    trial.start()
    trial.until(
        lambda: any(event.id in each.approves and each.status is not None for each in trial.requests),
        "the agent tries to approve the event",
    )  # answered with 503: until then the approval could still succeed when the fault is gone
    trial.kill()
    trial.emulator.set_faults(())
    trial.start()
    trial.wait_approved(event)


def killed_after_approving(trial: Trial) -> None:
    event = trial.schedule()
    trial.start()
    trial.wait_approved(event)
    trial.wait_next_poll(event, "Started")
    trial.kill()
    before, number = trial.answered, trial.emulator.log.last_number
    trial.start()
    trial.wait_next_poll(event, "Started", but=before)
    trial.expect(trial.prepared == 1, f"it prepared {trial.prepared} times for one event")
    again = [each for each in trial.requests if event.id in each.approves and each.number > number]
    trial.expect(not again, "it approved an event that had started")


def killed_before_undoing(trial: Trial) -> None:
    event = trial.schedule_held()
    trial.start()
    trial.wait_prepared()
    trial.wait_next_poll(event)
    trial.kill()
    trial.emulator.cancel(event)
    trial.start()
    _wait_recovered_once(trial)
