"""The loop: poll, decide, act, remember. Everything that happens outside happens here, one action at a time.

Each action is journaled before it begins and after it ended, so killing the agent at any moment loses nothing: the next one reads
the journal, and `decide` finds what is to be done now. No rule lives here.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from forewarn.guest.client import LONG_POLL_S, Client
from forewarn.guest.clock import Time
from forewarn.guest.decide import (
    Approve,
    CheckHealth,
    Note,
    Prepare,
    Recover,
    Tell,
    View,
    Wait,
    decide,
    lapsed,
    limit_s,
    tellers_of,
)
from forewarn.guest.document import Document, Event, event_json
from forewarn.guest.errors import EndpointError, Refused, StepFailed
from forewarn.guest.handlers import HANDLERS
from forewarn.guest.journal import Journal, Memory
from forewarn.guest.names import Me
from forewarn.guest.plan import Plan, Step
from forewarn.guest.state import State, StepState, folded
from forewarn.guest.steps import HEALTH_TIMEOUT_S, Run, await_orphan

GLANCE_TIMEOUT_S = 2.0
RETRY_S = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
TELL_WITHIN_S = 5.0
ASK_ME_EVERY_S = 30.0
# More than any honest turn needs: a turn that does not come to rest is a fault, and must not spin.
MAX_ACTIONS = 10_000

log = logging.getLogger("forewarn.guest.agent")


class Agent:
    """One machine's agent. `turn` acts until there is only waiting left; `run` does so for ever."""

    def __init__(
        self,
        plan: Plan,
        client: Client,
        journal: Union[Journal, Memory],
        *,
        boot: str = "",
        time: Optional[Time] = None,
        dry: bool = False,
        shown: Callable[[Agent], None] = lambda _: None,
    ) -> None:
        self.plan, self.client, self.journal = plan, client, journal
        self.time = time or Time()
        self.dry = dry
        records = journal.records
        self.state: State = folded(records)
        if self.state.damaged:
            log.error("%d record(s) of the journal make no sense and are passed over", self.state.damaged)
        self.me: Optional[Me] = None
        self.document: Optional[Document] = None
        self.doing = ""
        self._shown, self._shown_version = shown, -1
        self._retries: Dict[str, Tuple[int, float]] = {}
        self._asked_me_s = self._unseen_since_s = self.time.monotonic()
        self._delay_s = 0.0
        self._remember({"kind": "start", "boot": boot, **({} if records else {"new": True})})

    # -- the loop

    def run(self) -> None:
        """Until the process ends."""
        wait_s: Optional[float] = None
        while True:
            self.look(LONG_POLL_S if wait_s is None else wait_s)
            wait_s = self.turn()

    def look(self, wait_s: float, timeout_s: float = 0.0) -> None:
        """Ask for the document; on failure the one we have stands."""
        document = self.client.next(wait_s, timeout_s)
        if document is None:
            self._show()
            return
        self._identify(document)
        now_s = self.time.monotonic()
        # With a long poll the answer comes with the change; else the change may have come right after the last answer.
        self._delay_s = 0.0 if self.client.long_polls else now_s - self._unseen_since_s
        self._unseen_since_s = now_s
        self.document = document

    def _identify(self, document: Document) -> None:
        """Ask who we are; again and again, but seldom, while only the host name stands in."""
        now_s = self.time.monotonic()
        if self.me is not None:
            overdue = document.differs(self.document) or now_s - self._asked_me_s >= ASK_ME_EVERY_S
            if self.me.origin != "hostname" or not overdue:
                return
        self._asked_me_s = now_s
        me = self.client.me()
        if me != self.me:
            log.info("this machine is %s (%s)", me.name, me.origin)
        self.me = me

    def turn(self) -> Optional[float]:
        """Act until only waiting is left; how long at most, None: until the document changes."""
        for _ in range(MAX_ACTIONS):
            action = decide(self.plan, self.me or Me(""), self.state, self.view())
            if isinstance(action, Wait):
                self._tidy()
                self._show()
                return action.seconds
            self._act(action)
        log.error("the agent does not come to rest: it pauses; please report this")
        return RETRY_S[0]

    def _tidy(self) -> None:
        """A journal that has grown large and holds nothing open begins anew."""
        if self.state.quiet and self.journal.rotate():
            boot, self.state = self.state.boot, State()
            self._remember({"kind": "start", "boot": boot})

    def view(self) -> View:
        return View(
            now_s=self.time.monotonic(),
            document=self.document if self.me is not None else None,
            not_before_s={what: at_s for what, (_, at_s) in self._retries.items()},
            delay_s=self._delay_s,
        )

    # -- acting

    def _act(self, action: Union[Note, Prepare, Recover, Approve, CheckHealth, Tell]) -> None:
        if isinstance(action, Note):
            self._note(action)
        elif isinstance(action, Prepare):
            self._prepare(action)
        elif isinstance(action, Approve):
            self._approve(action)
        elif isinstance(action, Recover):
            self._recover(action)
        elif isinstance(action, CheckHealth):
            self._check_health(action)
        else:
            self._tell(action)

    def _note(self, action: Note) -> None:
        record = action.record
        said = NOTES.get(str(record["kind"]))
        if said is not None:
            event = record.get("event")
            about = {**record, **(event if isinstance(event, dict) else self._about(record.get("id")))}
            log.log(said[0], said[1].format_map(_Blank(about)))
        self._remember(record)

    def _about(self, event_id: Any) -> Mapping[str, Any]:
        known = self.state.events.get(str(event_id))
        return event_json(known.event) if known is not None else {"EventId": event_id}

    def _prepare(self, action: Prepare) -> None:
        step, remembered = action.step, self.state.step(action.step.name)
        interrupted, child = bool(remembered.under_way) or remembered.doubtful, remembered.child
        self._begin(step, "prepare", action.event, action.share_s)

        def work(run: Run) -> None:
            handler = HANDLERS[step.handler]
            if interrupted:
                await_orphan(child, run, self.time)
                if handler.verify(step.spec, run) is True:
                    return
                if not step.repeatable:
                    raise StepFailed("it was interrupted, or no longer holds, and must not be repeated")
            handler.prepare(step.spec, run)
            if handler.verify(step.spec, run) is False:
                raise StepFailed("it ended well, but verifying says that it is not prepared")

        self._finish(step, "prepare", action.event, action.share_s, work, limited=True)

    def _recover(self, action: Recover) -> None:
        step, remembered = action.step, self.state.step(action.step.name)
        interrupted, child = remembered.under_way == "recover", remembered.child
        verified = remembered.verified
        if not interrupted:
            verified, _ = self._verified(step, "recover", action.event, step.timeout_s)
        self._begin(step, "recover", action.event, step.timeout_s, verified=verified)

        def work(run: Run) -> None:
            handler = HANDLERS[step.handler]
            await_orphan(child, run, self.time)
            if interrupted and not getattr(handler, "UNDOES_AGAIN", False):
                # What did not verify before its undoing began does not tell by that whether it was undone.
                now = handler.verify(step.spec, run)
                if (verified is True and now is False) or (now is not True and not step.repeatable):
                    return  # it was undone, or must not be undone a second time: health has the last word
            handler.recover(step.spec, run)

        ok = self._finish(step, "recover", action.event, step.timeout_s, work, limited=False)
        self._settle(f"recover {step.name}", ok)
        if not ok:
            log.error("THE MACHINE IS NOT BACK IN SERVICE: step %r cannot be undone; trying again", step.name)

    def _verified(self, step: Step, phase: str, event: Optional[Event], share_s: float) -> Tuple[Optional[bool], str]:
        """Does it hold? None: nobody can tell; and what went wrong, if something did."""
        child = self.state.step(step.name).child
        said: List[Optional[bool]] = []

        def work(run: Run) -> None:
            await_orphan(child, run, self.time)
            said.append(HANDLERS[step.handler].verify(step.spec, run))

        reason = self._worked(work, self._run(step.name, phase, event, share_s, limited=phase == "approve"))
        return (said[0] if said else None), reason

    def _begin(self, step: Step, phase: str, event: Optional[Event], share_s: float, **more: Optional[bool]) -> None:
        self.doing = f"{phase} {step.name!r}"
        event_id = event.id if event is not None else ""
        log.info("%s %r for %s, at most %.0f s", phase, step.name, event_id or "no event", share_s)
        begin = {"kind": "begin", "phase": phase, "step": step.name, "event": event_id, "share_s": round(share_s, 3)}
        # A program of an earlier agent stays known until it is gone.
        self._remember({**begin, **more, "child": list(self.state.step(step.name).child)})
        self._show()

    def _finish(
        self,
        step: Step,
        phase: str,
        event: Optional[Event],
        share_s: float,
        work: Callable[[Run], None],
        *,
        limited: bool,
    ) -> bool:
        began_s = self.time.monotonic()
        reason = self._worked(work, self._run(step.name, phase, event, share_s, limited=limited))
        took_s = self.time.monotonic() - began_s
        if reason:
            log.warning("%s %r failed after %.1f s: %s", phase, step.name, took_s, reason)
        else:
            log.info("%s %r done in %.1f s", phase, step.name, took_s)
        self.doing = ""
        self._remember(
            {
                "kind": "end",
                "phase": phase,
                "step": step.name,
                "event": event.id if event is not None else "",
                "ok": not reason,
                "reason": reason,
                "took_s": round(took_s, 3),
            }
        )
        return not reason

    def _worked(self, work: Callable[[Run], None], run: Run) -> str:
        """ "" or why not. In a dry run nothing is done, and that works."""
        if self.dry:
            return ""
        try:
            work(run)
        except StepFailed as error:
            return str(error)
        except OSError as error:
            return f"{type(error).__name__}: {error.strerror}"
        except Exception as error:  # a handler's fault is a failed step, not the end of the agent
            log.exception("a fault in the handler of %r: please report it", run.step)
            return f"a fault in the handler: {type(error).__name__}"
        return ""

    def _run(self, step: str, phase: str, event: Optional[Event], share_s: float, *, limited: bool) -> Run:
        health = self.plan.health
        return Run(
            step=step,
            phase=phase,
            event=event_json(event) if event is not None else {},
            share_s=share_s,
            time=self.time,
            # An approval may use its own event's reserve; it is no reason to be late for another.
            limit_s=(lambda: self._limit_s(event if phase == "prepare" else None)) if limited else (lambda: None),
            glance=self._glance,
            note_child=lambda pid, ticks: self._note_child(step, phase, pid, ticks),
            kept=self.state.steps.get(step, StepState()).kept,
            note_kept=lambda kept: self._remember({"kind": "kept", "step": step, "kept": kept}),
            health=health.command if health is not None else (),
            health_timeout_s=health.timeout_s if health is not None else HEALTH_TIMEOUT_S,
        )

    def _limit_s(self, event: Optional[Event]) -> Optional[float]:
        event_id = event.id if event is not None else ""
        return limit_s(self.plan, self.me or Me(""), self.state, self.view(), event_id)

    def _note_child(self, step: str, phase: str, pid: int, ticks: int) -> None:
        if phase in ("prepare", "recover"):
            self._remember({"kind": "child", "step": step, "pid": pid, "ticks": ticks})

    def _glance(self) -> None:
        """See whether something more urgent has come up, without waiting for it."""
        if self.client.due_in_s() == 0.0:
            self.look(0.0, GLANCE_TIMEOUT_S)

    def _approve(self, action: Approve) -> None:
        event = action.event
        known = self.state.events[event.id]
        if not self._all_hold(action):
            return
        self._remember({"kind": "approving", "ids": [event.id]})
        try:
            if not self.dry:
                self.client.approve(event)
        except (Refused, EndpointError) as error:
            self._not_approved(event, f"the endpoint refused it: {error}")
            return
        left_s = round(action.left_s, 3) if action.left_s is not None else None
        log.info("approved %s %s%s", event.type, event.id, " (dry run: not really)" if self.dry else "")
        tell = tellers_of(self.plan, event, known.do)
        self._remember({"kind": "approved", "ids": [event.id], "left_s": left_s, "tell": tell})
        self._settle(f"approve {event.id}", True)

    def _all_hold(self, action: Approve) -> bool:
        """Each required step is asked once more: its verifying may be long ago, and somebody may have undone it since."""
        event, document = action.event, self.document
        for step in action.required:
            self.doing = f"verify {step.name!r}"
            share_s = min(step.timeout_s, self.view().left_s(event) or step.timeout_s)
            holds, reason = self._verified(step, "approve", event, share_s)
            self.doing = ""
            if reason:
                self._not_approved(event, f"step {step.name!r} cannot be verified: {reason}")
                return False
            if holds is False:
                record = lapsed(self.state, step, event)
                log.warning("%s is not approved: step %r: %s", event.id, step.name, record["reason"])
                self._remember(record)
                return False
        # Meanwhile it may have started, moved, or gone: then it is decided anew.
        return self.document is document or not (self.document and self.document.differs(document))

    def _not_approved(self, event: Event, reason: str) -> None:
        log.warning("%s is not approved, and will be tried again: %s", event.id, reason)
        self._remember({"kind": "refused", "ids": [event.id], "reason": reason})
        self._settle(f"approve {event.id}", False)

    def _check_health(self, action: CheckHealth) -> None:
        health = self.plan.health
        began_s, reason = self.time.monotonic(), ""
        self.doing = "checking health"
        if health is not None:
            run = self._run("health", "health", action.event, health.timeout_s, limited=False)
            command = health.command
            reason = self._worked(lambda run: run.check(command), run)
        self.doing = ""
        ended = self.state.coming_back()
        tell = sorted({name for known in ended for name in tellers_of(self.plan, known.event, known.do)})
        if reason:
            log.error("THE MACHINE IS NOT BACK IN SERVICE: it is not healthy: %s; trying again", reason)
            first = not self.state.last_health
            took_s = round(self.time.monotonic() - began_s, 3)
            record = {"kind": "health", "ok": False, "reason": reason, "took_s": took_s, "tell": tell if first else []}
            self._remember(record)
        else:
            log.info("the machine is back in service")
            self._remember({"kind": "in-service", "tell": tell})
        self._settle("health", not reason)

    def _tell(self, action: Tell) -> None:
        news, step = action.news, action.step
        about = {"step": news.step, "id": news.event.id, "change": news.change}
        self._remember({"kind": "telling", **about})
        run = self._run(step.name, "tell", news.event, min(TELL_WITHIN_S, step.timeout_s), limited=False)
        run.change = news.change
        reason = self._worked(lambda run: HANDLERS[step.handler].tell(step.spec, run), run)
        self._settle(f"tell {step.name}", not reason)
        if reason:
            log.warning("%r was not told that %s is %s: %s", step.name, news.event.id, news.change, reason)
        else:
            self._remember({"kind": "told", **about, "ok": True})

    # -- remembering

    def _remember(self, record: Mapping[str, Any]) -> None:
        self.state.apply(self.journal.append(record))

    def _settle(self, what: str, ok: bool) -> None:
        """Failed: not again before a pause that grows."""
        if ok:
            self._retries.pop(what, None)
            return
        count = self._retries.get(what, (0, 0.0))[0]
        self._retries[what] = (count + 1, self.time.monotonic() + RETRY_S[min(count, len(RETRY_S) - 1)])

    def _show(self) -> None:
        """Status and metrics, when something has changed: an idle agent writes nothing."""
        version = hash((self.state.version, self.doing, self.client.failures.last))
        if version != self._shown_version:
            self._shown_version = version
            self._shown(self)


class _Blank(Dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return ""


NOTES: Mapping[str, Tuple[int, str]] = {
    "seen": (logging.INFO, "{EventType} {EventId} of {Resources} is {EventStatus}, not before {NotBefore}: {do}"),
    "changed": (logging.INFO, "{EventType} {EventId} of {Resources} is now not before {NotBefore}: {do}"),
    "started": (logging.INFO, "{EventType} {EventId} has started"),
    "over": (logging.INFO, "{EventType} {EventId} is over: {how}"),
    "skip": (logging.WARNING, "step {step!r} is skipped: {reason}"),
    "end": (logging.ERROR, "step {step!r}: {reason}"),
    "told": (logging.WARNING, "{step!r} could not be told of {id} {change}: given up"),
}
