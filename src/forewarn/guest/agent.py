"""The loop: poll, decide, act, record. Every effect outside the agent happens here, one action at a time.

Each action is in the journal before it begins and after it ended. An agent that is killed loses nothing: the next one reads the
journal, and `decide` finds what to do now. This module holds no rules.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from forewarn.guest.actions import Approve, CheckHealth, Note, Notify, Prepare, Recover, View, Wait
from forewarn.guest.budget import limit_s
from forewarn.guest.client import LONG_POLL_S, Client
from forewarn.guest.clock import Time
from forewarn.guest.decide import decide, is_needed, lapsed_record, notifiers_of, record_document
from forewarn.guest.document import MAX_TEXT_CHARS, Document, Event, event_json
from forewarn.guest.errors import EndpointError, Interrupted, Refused, StepFailed
from forewarn.guest.handlers import HANDLERS
from forewarn.guest.journal import Journal, MemoryJournal
from forewarn.guest.names import Me
from forewarn.guest.plan import Plan, Step
from forewarn.guest.state import EventState, State, StepState, fold_records, state_record
from forewarn.guest.steps import HEALTH_TIMEOUT_S, Run, await_orphan, end_orphan

if TYPE_CHECKING:
    from forewarn.guest.serving.clients import Clients

BRIEF_POLL_TIMEOUT_S = 2.0
# With clients, a long poll and one that fails end before the document is too old for them.
SERVING_POLL_S = 30.0
RETRY_S = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
# After so long an approved event that is still Scheduled is approved again.
APPROVE_AGAIN_S = (60.0, 120.0, 240.0, 480.0, 900.0)
NOTIFY_WITHIN_S = 5.0
IDENTIFY_EVERY_S = 30.0
# More actions than any turn needs. A turn that goes on beyond this has a fault, and must not use up the machine.
MAX_ACTIONS = 10_000

log = logging.getLogger("forewarn.guest.agent")


class Agent:
    """The agent of one machine. `turn` acts until there is nothing left but to wait; `run` does so for ever."""

    def __init__(
        self,
        plan: Plan,
        client: Client,
        journal: Union[Journal, MemoryJournal],
        *,
        boot: str = "",
        time: Optional[Time] = None,
        dry_run: bool = False,
        handlers: Mapping[str, Any] = HANDLERS,
        on_change: Callable[[Agent], None] = lambda _: None,
        clients: Optional[Clients] = None,
    ) -> None:
        self.plan, self.client, self.journal = plan, client, journal
        self.time = time or Time()
        self.dry_run, self._handlers, self.clients = dry_run, handlers, clients
        # Held while a record is written and applied: threads of connections record the approvals of clients.
        self._recording = threading.RLock()
        records = journal.records
        self.state: State = fold_records(records)
        if self.state.damaged:
            log.error("%d record(s) of the journal cannot be understood and are ignored", self.state.damaged)
        if clients is not None:
            clients.remember(self.state.events)
        self.me: Optional[Me] = None
        self.document: Optional[Document] = None
        self.activity = ""
        self._on_change, self._shown_version = on_change, -1
        self._retries: Dict[str, Tuple[int, float]] = {}
        self._identified_s = self._last_document_s = self.time.monotonic()
        self._delay_s = 0.0
        for known in self.state.events.values():
            self._set_next_approval(known)
        self._record({"kind": "start", "boot": boot, **({} if records else {"new": True})})

    # -- the loop

    def run(self) -> None:
        """Poll and act until the process ends."""
        wait_s: Optional[float] = None
        while True:
            longest_s = LONG_POLL_S if self.clients is None else SERVING_POLL_S
            self.poll(longest_s if wait_s is None else min(wait_s, longest_s))
            wait_s = self.turn()

    def poll(self, wait_s: float, timeout_s: float = 0.0) -> None:
        """Request the document; keep the last one when that fails."""
        document = self.client.next(wait_s, timeout_s)
        if document is None:
            self._show()
            return
        self._identify(document)
        now_s = self.time.monotonic()
        # A long poll shows a change at once; otherwise the change may have come right after the last response.
        self._delay_s = 0.0 if self.client.long_polls else now_s - self._last_document_s
        self._last_document_s = now_s
        self.document = document
        if self.clients is not None and self.me is not None:
            self.clients.publish(document, self.me)

    def _identify(self, document: Document) -> None:
        """Find out this machine's name; ask again now and then while only the host name is known."""
        now_s = self.time.monotonic()
        if self.me is not None:
            overdue = document.differs(self.document) or now_s - self._identified_s >= IDENTIFY_EVERY_S
            if self.me.origin != "hostname" or not overdue:
                return
        self._identified_s = now_s
        me = self.client.me()
        if me != self.me:
            log.info("this machine is %s, %s", me.name, NAME_ORIGINS[me.origin])
        self.me = me

    def turn(self) -> Optional[float]:
        """Act until only waiting is left, and return how long at most; None means until the document changes."""
        for _ in range(MAX_ACTIONS):
            action = decide(self.plan, self.me or Me(""), self.state, self.view())
            if isinstance(action, Wait):
                self._show()
                return action.seconds
            self._act(action)
        log.error("the agent took %d actions without a pause; it pauses now; please report this", MAX_ACTIONS)
        return RETRY_S[0]

    def view(self) -> View:
        return View(
            now_s=self.time.monotonic(),
            document=self.document if self.me is not None else None,
            not_before_s={action: at_s for action, (_, at_s) in self._retries.items()},
            delay_s=self._delay_s,
            awaited=self.clients.awaited() if self.clients is not None else {},
        )

    def record_client_approval(self, client: str, event_ids: Sequence[str]) -> None:
        """Record that a client approves these events, and end the long poll. The thread of a connection calls this.

        An event that has ended meanwhile is left out: its end, which removes its approvals, may be recorded already.
        """
        with self._recording:
            listed = {event.key for event in self.document.events} if self.document is not None else set()
            new = [each for each in dict.fromkeys(event_ids) if self.state.missing_approvals(each, [client])]
            new = [each for each in new if each in listed]
            if not new:
                return
            # Only the agent's own thread compacts the journal: it changes parts of the state without a record.
            self.state.apply(self.journal.append({"kind": "client-approved", "client": client, "ids": new}))
        log.info("client %r approves %s", client, ", ".join(new))
        self.client.interrupt()

    # -- acting

    def _act(self, action: Union[Note, Prepare, Recover, Approve, CheckHealth, Notify]) -> None:
        methods: Mapping[type, Callable[[Any], None]] = {
            Note: self._note,
            Prepare: self._prepare,
            Approve: self._approve,
            Recover: self._recover,
            CheckHealth: self._check_health,
            Notify: self._notify,
        }
        methods[type(action)](action)

    def _note(self, action: Note) -> None:
        record = action.record
        line = LOG_LINES.get(str(record["kind"]))
        if line is not None:
            event = record.get("event")
            fields = {**record, **(event if isinstance(event, dict) else self._event_fields(record.get("id")))}
            fields["Resources"] = ", ".join(fields.get("Resources", ()))
            log.log(line[0], line[1].format_map(_Fields(fields)))
        if record["kind"] in ("started", "over"):
            self._retries.pop(f"approve {record['id']}", None)
        self._record(record)

    def _event_fields(self, event_id: Any) -> Mapping[str, Any]:
        known = self.state.events.get(str(event_id))
        return event_json(known.event) if known is not None else {"EventId": event_id}

    def _prepare(self, action: Prepare) -> None:
        step, step_state = action.step, self.state.step(action.step.name)
        interrupted, child = bool(step_state.under_way) or step_state.doubtful, step_state.child
        self._begin(step, "prepare", action.event, action.share_s)

        def work(run: Run) -> None:
            handler = self._handlers[step.handler]
            if interrupted:
                await_orphan(child, run, self.time)
                if handler.verify(step.spec, run) is True:
                    return
                if not step.repeatable:
                    raise StepFailed("it was interrupted, or is no longer prepared, and must not be repeated")
            handler.prepare(step.spec, run)
            if handler.verify(step.spec, run) is False:
                raise StepFailed("it ended without an error, but its verify says that it is not prepared")

        self._carry_out(step, "prepare", action.event, action.share_s, work, limited=True)

    def _recover(self, action: Recover) -> None:
        step, step_state = action.step, self.state.step(action.step.name)
        interrupted, child = step_state.under_way == "recover", step_state.child
        if step_state.under_way == "prepare" and not step.finish:
            end_orphan(child, self.time)
        verified = step_state.verified
        if not interrupted:
            verified, _ = self._verify(step, "recover", action.event, step.timeout_s)
        self._begin(step, "recover", action.event, step.timeout_s, verified=verified)

        def work(run: Run) -> None:
            handler = self._handlers[step.handler]
            await_orphan(child, run, self.time)
            if interrupted and not getattr(handler, "UNDOES_AGAIN", False):
                # Verifying shows whether undoing is complete only if the step verified before undoing began.
                now = handler.verify(step.spec, run)
                if (verified is True and now is False) or (now is not True and not step.repeatable):
                    return  # it was undone, or must not be undone a second time; the health check decides
            handler.recover(step.spec, run)

        ok = self._carry_out(step, "recover", action.event, step.timeout_s, work, limited=False)
        self._set_retry(f"recover {step.name}", ok)
        if not ok:
            log.error("THE MACHINE IS NOT BACK IN SERVICE: step %r cannot be undone; the agent tries again", step.name)

    def _verify(self, step: Step, phase: str, event: Optional[Event], share_s: float) -> Tuple[Optional[bool], str]:
        """Return whether the step is prepared (None: unknown), and what went wrong with verifying, or ""."""
        child = self.state.step(step.name).child
        results: List[Optional[bool]] = []

        def work(run: Run) -> None:
            await_orphan(child, run, self.time)
            results.append(self._handlers[step.handler].verify(step.spec, run))

        reason = self._attempt(work, self._run(step.name, phase, event, share_s, limited=phase == "approve"))
        return (results[0] if results else None), reason

    def _begin(self, step: Step, phase: str, event: Optional[Event], share_s: float, **more: Optional[bool]) -> None:
        self.activity = f"{phase} {step.name!r}"
        event_key = event.key if event is not None else ""
        log.info(
            "%s %r for %s, at most %.0f s", phase, step.name, event.id if event is not None else "no event", share_s
        )
        begin = {"kind": "begin", "phase": phase, "step": step.name, "event": event_key, "share_s": round(share_s, 3)}
        # Keeps a program of an earlier agent known until it is gone.
        self._record({**begin, **more, "child": list(self.state.step(step.name).child)})
        self._show()

    def _carry_out(
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
        reason = self._attempt(work, self._run(step.name, phase, event, share_s, limited=limited))
        took_s = self.time.monotonic() - began_s
        interrupted = bool(reason) and phase == "prepare" and not is_needed(self.plan, self.state, step)
        if interrupted:
            log.info("%s %r was interrupted after %.1f s: %s", phase, step.name, took_s, reason)
        elif reason:
            log.warning("%s %r failed after %.1f s: %s", phase, step.name, took_s, reason)
        else:
            log.info("%s %r done in %.1f s", phase, step.name, took_s)
        self.activity = ""
        self._record(
            {
                "kind": "end",
                "phase": phase,
                "step": step.name,
                "event": event.key if event is not None else "",
                "ok": not reason,
                "reason": reason,
                "took_s": round(took_s, 3),
                **({"interrupted": True} if interrupted else {}),
            }
        )
        return not reason

    def _attempt(self, work: Callable[[Run], object], run: Run) -> str:
        """Do the work and return "", or why it failed. A dry run does nothing and succeeds."""
        if self.dry_run:
            return ""
        try:
            work(run)
        except (StepFailed, Interrupted) as error:
            return str(error)[:MAX_TEXT_CHARS]
        except OSError as error:
            return f"{type(error).__name__}: {error.strerror}"
        except Exception as error:  # a fault in a handler fails the step and does not end the agent
            log.exception("a fault in the handler of %r: please report it", run.step)
            return f"a fault in the handler: {type(error).__name__}"
        return ""

    def _run(self, step: str, phase: str, event: Optional[Event], share_s: float, *, limited: bool) -> Run:
        health, configured = self.plan.health, self.plan.step(step)
        # Undoing a step is not interrupted: the machine must come back into service.
        interruptible = configured is not None and phase in ("prepare", "approve")
        return Run(
            step=step,
            phase=phase,
            event=event_json(event) if event is not None else {},
            share_s=share_s,
            time=self.time,
            # Verifying before an approval may use the reserve of its own event, but must not delay another event.
            limit_s=(lambda: self._limit_s(event if phase == "prepare" else None)) if limited else (lambda: None),
            poll=self._poll_and_record if interruptible else self._poll_briefly,
            needed=lambda: configured is None or not interruptible or is_needed(self.plan, self.state, configured),
            finish=configured is not None and configured.finish,
            record_child=lambda pid, ticks: self._record_child(step, phase, pid, ticks),
            kept=self.state.steps.get(step, StepState()).kept,
            record_kept=lambda kept: self._record({"kind": "kept", "step": step, "kept": kept}),
            health=health.command if health is not None else (),
            health_timeout_s=health.timeout_s if health is not None else HEALTH_TIMEOUT_S,
        )

    def _limit_s(self, event: Optional[Event]) -> Optional[float]:
        event_key = event.key if event is not None else ""
        return limit_s(self.plan, self.me or Me(""), self.state, self.view(), event_key)

    def _record_child(self, step: str, phase: str, pid: int, ticks: int) -> None:
        if phase in ("prepare", "recover"):
            self._record({"kind": "child", "step": step, "pid": pid, "ticks": ticks})

    def _poll_briefly(self) -> None:
        """Poll without waiting for a change, in case a more urgent event has come."""
        if self.client.due_in_s() == 0.0:
            self.poll(0.0, BRIEF_POLL_TIMEOUT_S)

    def _poll_and_record(self) -> None:
        """Poll briefly, and record what the document says: it may no longer need the step, and `status` shows it at once."""
        before = self.document
        self._poll_briefly()
        if self.document is before:
            return
        for _ in range(MAX_ACTIONS):
            note = record_document(self.plan, self.me or Me(""), self.state, self.view())
            if note is None:
                break
            self._note(note)
        self._show()

    def _approve(self, action: Approve) -> None:
        event = action.event
        known = self.state.events[event.key]
        if not self._still_prepared(action):
            return
        self._record({"kind": "approving", "ids": [event.key]})
        try:
            if not self.dry_run:
                self.client.approve(event)
        except (Refused, EndpointError) as error:
            self._not_approved(event, f"the endpoint refused it: {error}")
            return
        again = " again, because it is still Scheduled" if known.approved else ""
        dry = " (dry run: not sent)" if self.dry_run else ""
        log.log(
            logging.DEBUG if known.repeats else logging.INFO, "approved %s %s%s%s", event.type, event.id, again, dry
        )
        record: Dict[str, Any] = {"kind": "approved", "ids": [event.key]}
        if not again:
            record["left_s"] = round(action.left_s, 3) if action.left_s is not None else None
            record["tell"] = notifiers_of(self.plan, event, known.do)
        self._record(record)
        self._set_next_approval(known)

    def _set_next_approval(self, known: EventState) -> None:
        """Delay the next approval of an approved event; the pauses grow with each approval, also across restarts."""
        if known.approved and known.open:
            pause_s = APPROVE_AGAIN_S[min(known.repeats, len(APPROVE_AGAIN_S) - 1)]
            self._retries[f"approve {known.event.key}"] = (0, self.time.monotonic() + pause_s)

    def _still_prepared(self, action: Approve) -> bool:
        """Verify each required step once more: a person or program may have undone it since."""
        event, document = action.event, self.document
        for step in action.required:
            self.activity = f"verify {step.name!r}"
            share_s = min(step.timeout_s, self.view().left_s(event) or step.timeout_s)
            prepared, reason = self._verify(step, "approve", event, share_s)
            self.activity = ""
            if not is_needed(self.plan, self.state, step):
                return False
            if reason:
                self._not_approved(event, f"step {step.name!r} cannot be verified: {reason}")
                return False
            if prepared is False:
                record = lapsed_record(self.state, step, event)
                log.warning("%s is not approved: step %r: %s", event.id, step.name, record["reason"])
                self._record(record)
                return False
        # The event may have started, moved or gone meanwhile; then `decide` examines it again.
        return self.document is document or not (self.document and self.document.differs(document))

    def _not_approved(self, event: Event, reason: str) -> None:
        log.warning("%s is not approved: %s; the agent tries again", event.id, reason)
        self._record({"kind": "refused", "ids": [event.key], "reason": reason})
        self._set_retry(f"approve {event.key}", False)

    def _check_health(self, action: CheckHealth) -> None:
        health = self.plan.health
        began_s, reason = self.time.monotonic(), ""
        self.activity = "checking health"
        if health is not None:
            run = self._run("health", "health", action.event, health.timeout_s, limited=False)
            command = health.command
            reason = self._attempt(lambda run: run.command(command), run)
        self.activity = ""
        ended = self.state.unreturned()
        tell = sorted({name for known in ended for name in notifiers_of(self.plan, known.event, known.do)})
        if reason:
            log.error("THE MACHINE IS NOT BACK IN SERVICE: it is not healthy: %s; the agent tries again", reason)
            first = not self.state.last_health
            took_s = round(self.time.monotonic() - began_s, 3)
            record = {"kind": "health", "ok": False, "reason": reason, "took_s": took_s, "tell": tell if first else []}
            self._record(record)
        else:
            log.info("the machine is back in service")
            self._record({"kind": "in-service", "tell": tell})
        self._set_retry("health", not reason)

    def _notify(self, action: Notify) -> None:
        message, step = action.message, action.step
        self._record({"kind": "telling", **message.key})
        run = self._run(step.name, "notify", message.event, min(NOTIFY_WITHIN_S, step.timeout_s), limited=False)
        run.change = message.change
        reason = self._attempt(lambda run: self._handlers[step.handler].notify(step.spec, run), run)
        self._set_retry(f"notify {step.name}", not reason)
        if reason:
            log.warning("step %r did not report that %s is %s: %s", step.name, message.event.id, message.change, reason)
        else:
            self._record({"kind": "told", **message.key, "ok": True})

    # -- recording

    def _record(self, record: Mapping[str, Any]) -> None:
        with self._recording:
            self.state.apply(self.journal.append(record))
            if self.journal.is_large():
                self.journal.compact(state_record(self.state))

    def _set_retry(self, action: str, ok: bool) -> None:
        """Delay the next attempt of a failed action, longer with each failure."""
        if ok:
            self._retries.pop(action, None)
            return
        count = self._retries.get(action, (0, 0.0))[0]
        self._retries[action] = (count + 1, self.time.monotonic() + RETRY_S[min(count, len(RETRY_S) - 1)])

    def _show(self) -> None:
        """Report a change to `on_change`, which writes status and metrics; an idle agent writes nothing."""
        contacts = (*self.clients.contacts(), *self.clients.awaited()) if self.clients is not None else ()
        version = hash((self.state.version, self.activity, self.client.failures.last, contacts))
        if version != self._shown_version:
            self._shown_version = version
            self._on_change(self)


class _Fields(Dict[str, Any]):
    """Fields for a log line; a missing one is empty."""

    def __missing__(self, key: str) -> str:
        return ""


NAME_ORIGINS = {
    "configured": "as configured",
    "instance": "as the endpoint says",
    "hostname": "by its host name",
}
LOG_LINES: Mapping[str, Tuple[int, str]] = {
    "seen": (logging.INFO, "{EventType} {EventId} of {Resources} is {EventStatus}, not before {NotBefore}: {do}"),
    "changed": (logging.INFO, "{EventType} {EventId} of {Resources} is now not before {NotBefore}: {do}"),
    "started": (logging.INFO, "{EventType} {EventId} has started"),
    "over": (logging.INFO, "{EventType} {EventId} is over: {how}"),
    "skip": (logging.WARNING, "step {step!r} is skipped: {reason}"),
    "end": (logging.ERROR, "step {step!r}: {reason}"),
    "told": (logging.WARNING, "step {step!r} could not report {id} {change}: the agent gives up"),
}
