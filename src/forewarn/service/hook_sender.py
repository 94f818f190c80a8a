"""Delivers audit entries to hooks: each hook gets its entries one after the other, at least once, from its saved cursor.

The node that ticks delivers. A message is sent first and the cursor saved afterwards: after a crash or a failover the next node
sends the last few again, under the same id. A hook that fails waits for its next attempt and holds up no other hook.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

from forewarn.core.errors import Conflict, TooManyRequests
from forewarn.core.formatting import iso_seconds
from forewarn.core.hooks import (
    HookMessage,
    entry_message,
    gap_message,
    host_of,
    kind_of,
    lost_owner,
    retry_after_s,
    signed_headers,
    trial_message,
    valid_secrets,
)
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import AuditEntry, Event, HoldCause
from forewarn.core.operator_model import Hook, HookDelivery
from forewarn.service.clock import Clock
from forewarn.service.control import Control
from forewarn.service.logs import TroubleLog
from forewarn.store import AuditQuery, Focus, Store
from forewarn.store.audit_chain import AuditChain

MAX_AT_ONCE = 8
# Half of them: the receivers of one scope, or those of the whole fleet, hold up no other hook however slow they are.
MAX_AT_ONCE_PER_SCOPE = 4
# Test messages that are under way. Each holds a thread that the API needs for other calls.
MAX_TESTS_AT_ONCE = 4
BATCH = 100
# A hook that has a long way to go lets others take their turn after so many batches, or after so long.
BATCHES_IN_TURN = 5
TURN_S = 5.0
# The cursor is saved after so many messages, or when the last save is this long ago.
SAVE_AFTER = 20
SAVE_EVERY_S = 1.0
# How often it is saved that a hook has passed entries it does not want.
SAVE_PASSED_EVERY_S = 60.0
IDLE_WAIT_S = 1.0
PAUSE_S = 0.05
GONE = 410

log = logging.getLogger("forewarn.service.hooks")


class DeliveryFailed(Exception):
    """A message could not be sent; the text says why."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a receiver answered. `retry_after_s` is how long it asks to wait."""

    status: int
    text: str = ""
    retry_after_s: float = 0.0


class HookTransport(Protocol):
    """Sends a request. It follows no redirect and refuses addresses that are not allowed."""

    def why_not(self, url: str) -> str:
        """Return why nothing may be sent to this URL, or "" if that is not known before its name is resolved."""

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Return the reply, or raise DeliveryFailed."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How an attempt to send a message ended."""

    delivered: bool
    status: int
    error: str
    took_ms: int
    retry_after_s: float = 0.0


@dataclass(slots=True)
class _Progress:
    """What this process knows of a hook besides what is saved; it counts while the hook has this version."""

    version: int
    passed: int = 0
    retry_at_s: float = 0.0
    served_s: float = 0.0


class HookSender:
    """Sends messages while `may_send` is true. `run` is the loop; `cycle` starts what is due."""

    def __init__(
        self,
        control: Control,
        store: Store,
        clock: Clock,
        transport: HookTransport,
        *,
        may_send: Callable[[], bool],
        disable_after_s: int,
        unix_s: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], object] = lambda work: work(),
    ) -> None:
        """`start` runs the work of one hook, maybe in a thread. A hook that fails for `disable_after_s` is disabled; 0 never.

        `unix_s` is the machine's time, by which receivers check how old a message is.
        """
        self._control = control
        self._store = store
        self._clock = clock
        self._transport = transport
        self._may_send = may_send
        self._disable_after = timedelta(seconds=disable_after_s) if disable_after_s else None
        self._monotonic = monotonic
        self._unix_s = unix_s
        self._start = start
        self._progress: dict[str, _Progress] = {}
        self._busy: dict[str, str] = {}  # the hooks at work, each with its scope
        self._tests: set[str] = set()
        self._tests_lock = threading.Lock()
        self._save_passed_at_s = 0.0
        self._nudged = threading.Event()
        self._stopping = threading.Event()
        self._trouble = TroubleLog(log, "messages cannot be delivered")
        self.delivered = self.failed = 0

    # -- the loop

    def run(self) -> None:
        """Deliver until `stop`; survive a store that is away and unexpected errors."""
        while not self._stopping.is_set():
            try:
                self.cycle()
                self._trouble.last = ""
            except Exception as error:
                self._note_trouble(error)
            self._wait()
            # Many changes at once make one cycle.
            self._stopping.wait(PAUSE_S)
        # What was sent is saved, if the receivers answer in time.
        while self._busy:
            self._wait()

    def _wait(self) -> None:
        self._nudged.wait(IDLE_WAIT_S)
        self._nudged.clear()

    def stop(self) -> None:
        self._stopping.set()
        self.nudge()

    def nudge(self) -> None:
        """Start the next cycle now: something changed."""
        if not self._nudged.is_set():  # `set` takes a lock. Row of the bench: one event per commit.
            self._nudged.set()

    def cycle(self) -> None:
        """Start the work of each hook that has something to do now."""
        if not self._may_send():
            return
        # Before the hooks are read: a hook whose work ends meanwhile is read as it was before its work.
        busy = dict(self._busy)
        hooks = [hook for hook in self._store.hooks() if hook.id not in busy]
        if not hooks or self._is_copy():
            return
        hooks = self._with_owners(hooks)
        chain = self._store.audit_chain()
        for hook in hooks:
            if self._progress_of(hook).version != hook.version:
                self._progress[hook.id] = _Progress(hook.version)
        due = [hook for hook in hooks if self._is_due(hook, chain)]
        due.sort(key=lambda hook: self._progress_of(hook).served_s)
        for hook in due:
            scopes = list(busy.values())
            if len(busy) >= MAX_AT_ONCE:
                break
            if scopes.count(hook.scope) >= MAX_AT_ONCE_PER_SCOPE:
                continue
            busy[hook.id] = self._busy[hook.id] = hook.scope
            try:
                self._start(partial(self._work, hook, chain))
            except BaseException:  # no thread could be started
                self._busy.pop(hook.id, None)
                raise
        self._save_passed(hooks)

    def _with_owners(self, hooks: list[Hook]) -> list[Hook]:
        """Disable the hooks of owners whose token has ended. Return the others."""
        active = any(hook.owner_token and hook.disabled is None for hook in hooks)
        tokens, now = self._store.tokens() if active else [], self._clock.now()
        lost = [hook for hook in hooks if hook.disabled is None and lost_owner(hook, tokens, now)]
        for hook in lost:
            why = "the token of its owner has ended"
            with suppress(Conflict):  # another node or an operator changed it: the next cycle reads it again
                self._control.note_hook(replace(hook, disabled=now, error=why), "hook disabled", why)
                log.warning("hook %s to %s is disabled: %s", hook.id[:8], host_of(hook), why)
        return [hook for hook in hooks if hook not in lost]

    def why_not(self, url: str) -> str:
        """Return why no message may go to this URL, or "" if that is not known yet."""
        return self._transport.why_not(url)

    def test(self, hook: Hook, mark: str) -> Attempt:
        """Send a test message, also for a hook that is disabled. It changes nothing that is saved.

        Raise TooManyRequests if a test of this hook, or too many of other hooks, are under way.
        """
        with self._tests_lock:
            if hook.id in self._tests:
                raise TooManyRequests("a test of this hook is under way: wait for its result")
            if len(self._tests) >= MAX_TESTS_AT_ONCE:
                raise TooManyRequests(f"{MAX_TESTS_AT_ONCE} tests of hooks are under way: try again soon")
            self._tests.add(hook.id)
        try:
            return self._send(hook, trial_message(hook, self._clock.now(), self._source(), mark))
        finally:
            self._tests.discard(hook.id)

    def next_attempt(self, hook: Hook) -> datetime | None:
        """Return when this node tries a failing hook again, or None if this node does not know it."""
        progress = self._progress.get(hook.id)
        if not hook.failures or hook.disabled is not None or progress is None or progress.version != hook.version:
            return None
        return self._clock.now() + timedelta(seconds=max(0.0, progress.retry_at_s - self._monotonic()))

    # -- what is due

    def _is_copy(self) -> bool:
        """Return whether this may be a copy of a database that another service still uses."""
        hold = self._control.store_hold()
        return hold is not None and hold.cause is not HoldCause.REQUESTED

    def _progress_of(self, hook: Hook) -> _Progress:
        return self._progress.setdefault(hook.id, _Progress(hook.version))

    def _is_due(self, hook: Hook, chain: AuditChain) -> bool:
        if self._lost(hook, chain) and (hook.disabled is None or hook.gap_until <= hook.cursor):
            return True
        progress = self._progress_of(hook)
        if hook.disabled is not None or self._monotonic() < progress.retry_at_s:
            return False
        return max(hook.cursor, progress.passed) < chain.head.id

    def _lost(self, hook: Hook, chain: AuditChain) -> bool:
        """Return whether entries were deleted that the hook has not passed, and that no gap of the hook names."""
        return chain.start.id > max(hook.cursor, hook.gap_until, self._progress_of(hook).passed)

    # -- the work of one hook

    def _work(self, hook: Hook, chain: AuditChain) -> None:
        progress = self._progress_of(hook)
        try:
            if self._lost(hook, chain):
                hook = self._note_gap(hook, chain)
            if hook.disabled is None:
                self._deliver(hook, chain.head.id)
        except Conflict:
            pass  # an operator or another node changed the hook: the next cycle reads it again
        except Exception as error:
            progress.retry_at_s = self._monotonic() + retry_after_s(1)
            self._note_trouble(error)
        finally:
            progress.served_s = self._monotonic()
            self._busy.pop(hook.id, None)
            self.nudge()

    def _note_gap(self, hook: Hook, chain: AuditChain) -> Hook:
        """Save that entries were deleted before the hook got them."""
        after = hook.gap_after if hook.gap_until > hook.cursor else hook.cursor
        gap = replace(hook, gap_after=after, gap_until=chain.start.id)
        detail = f"entries {after + 1} to {chain.start.id} were deleted before they were delivered"
        self._control.note_hook(gap, "hook gap", detail)
        log.error("hook %s to %s: %s", hook.id[:8], host_of(hook), detail)
        return self._saved(gap)

    def _deliver(self, hook: Hook, head: int) -> None:
        progress, begun_s = self._progress_of(hook), self._monotonic()
        source = self._source()
        if hook.gap_until > hook.cursor:
            message = gap_message(hook, self._clock.now(), source)
            hook = self._send_and_save(hook, hook.gap_until, message)
            if hook.failures:
                return
        position, saved_s = max(hook.cursor, progress.passed), self._monotonic()
        sent: list[HookDelivery] = []
        for _ in range(BATCHES_IN_TURN):
            entries = self._store.audit(AuditQuery(scope=hook.scope, after=position, limit=BATCH))
            wanted = [entry for entry in entries if kind_of(entry.action) in hook.kinds]
            events = self._events_of(wanted)
            for entry in wanted:
                if self._stopping.is_set() or not self._may_send():
                    self._save(hook, sent)
                    return
                message = entry_message(hook, entry, events.get(entry.event_id), source)
                hook, delivery = self._send_entry(hook, entry.id, message, sent)
                if hook.failures:
                    return
                sent.append(delivery)
                if len(sent) >= SAVE_AFTER or self._monotonic() - saved_s > SAVE_EVERY_S:
                    hook, saved_s = self._save(hook, sent), self._monotonic()
                    sent = []
                if self._monotonic() - begun_s >= TURN_S:  # at least one message was sent, so every turn gets on
                    self._save(hook, sent)
                    return
            position = entries[-1].id if entries else position
            if len(entries) < BATCH:
                # The head was read before the entries: none of them up to the head is missing.
                position = max(position, head)
                break
        self._save(hook, sent)
        progress.passed = position

    def _send_and_save(self, hook: Hook, audit_id: int, message: HookMessage) -> Hook:
        hook, delivery = self._send_entry(hook, audit_id, message, [])
        return hook if hook.failures else self._save(hook, [delivery])

    def _send_entry(
        self, hook: Hook, audit_id: int, message: HookMessage, sent: list[HookDelivery]
    ) -> tuple[Hook, HookDelivery]:
        """Return the hook after the attempt, and the attempt. A failure is saved at once, with the `sent` ones before it."""
        attempt = self._send(hook, message)
        delivery = HookDelivery(
            hook_id=hook.id,
            audit_id=audit_id,
            kind=message.kind,
            at=self._clock.now(),
            attempts=hook.failures + 1,
            delivered=attempt.delivered,
            status=attempt.status,
            took_ms=attempt.took_ms,
            error=attempt.error,
        )
        if attempt.delivered:
            if hook.failures:
                log.info("hook %s to %s: it works again", hook.id[:8], host_of(hook))
            after = replace(hook, cursor=audit_id, delivered=delivery.at, failing_since=None, failures=0, error="")
            return after, delivery
        return self._save_failure(hook, attempt, [*sent, delivery]), delivery

    def _save_failure(self, hook: Hook, attempt: Attempt, deliveries: list[HookDelivery]) -> Hook:
        now, name = deliveries[-1].at, f"hook {hook.id[:8]} to {host_of(hook)}"
        since = hook.failing_since or now
        if not hook.failures:
            log.warning("%s: %s; trying again", name, attempt.error)
        hook = replace(hook, failing_since=since, failures=hook.failures + 1, error=attempt.error)
        hook = self._save(hook, deliveries)
        self._progress_of(hook).retry_at_s = self._monotonic() + retry_after_s(hook.failures, attempt.retry_after_s)
        too_long = self._disable_after is not None and now - since >= self._disable_after
        if too_long or attempt.status == GONE:
            detail = f"failing since {iso_seconds(since)}: {attempt.error}"
            self._control.note_hook(replace(hook, disabled=now), "hook disabled", detail)
            log.error("%s is disabled, %s; enable it with `forewarn hook enable`", name, detail)
        return hook

    def _send(self, hook: Hook, message: HookMessage) -> Attempt:
        headers = signed_headers(message, valid_secrets(hook, self._clock.now()), int(self._unix_s()))
        begun_s = self._monotonic()
        try:
            reply = self._transport.post(hook.url, headers, message.body)
            error = (
                "" if 200 <= reply.status < 300 else f"the receiver answered {reply.status}: {reply.text}".rstrip(": ")
            )
        except DeliveryFailed as failure:
            reply, error = Reply(0), str(failure)
        took_ms = int(1000 * (self._monotonic() - begun_s))
        if error:
            self.failed += 1
        else:
            self.delivered += 1
        return Attempt(not error, reply.status, error, took_ms, reply.retry_after_s)

    # -- the store

    def _events_of(self, entries: list[AuditEntry]) -> Mapping[str, Event]:
        ids = tuple(dict.fromkeys(entry.event_id for entry in entries if entry.event_id))
        focus = Focus(events=ids, whole_maintenances=False, open_events=False, document_only=True)
        return self._store.snapshot(focus).events if ids else {}

    def _source(self) -> str:
        """Return a name of this database: the ids of its messages are unique together with it."""
        position = self._store.position()
        return f"/forewarn/{position.identity}" if position is not None else "/forewarn"

    def _save(self, hook: Hook, deliveries: list[HookDelivery]) -> Hook:
        if not deliveries:
            return hook
        self._store.save_hooks([hook], deliveries)
        return self._saved(hook)

    def _saved(self, hook: Hook) -> Hook:
        """Return the hook with the version that it has after it was saved."""
        self._progress_of(hook).version = hook.version + 1
        return replace(hook, version=hook.version + 1)

    def _save_passed(self, hooks: list[Hook]) -> None:
        """Move the cursors over entries that hooks do not want, so that their deletion is no gap."""
        if self._monotonic() < self._save_passed_at_s:
            return
        self._save_passed_at_s = self._monotonic() + SAVE_PASSED_EVERY_S
        for hook in hooks:
            progress = self._progress_of(hook)
            idle = hook.id not in self._busy and progress.version == hook.version
            if idle and not hook.failures and progress.passed > hook.cursor:
                try:
                    self._store.save_hooks([replace(hook, cursor=progress.passed)])
                    self._saved(hook)
                except Conflict:
                    continue

    def _note_trouble(self, error: Exception) -> None:
        if not self._stopping.is_set():
            self._trouble.note(error)
