"""Hooks get every entry of their kinds, in order, at least once, whatever fails and whatever node delivers."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, cast

import pytest

from forewarn.app.service import Service
from forewarn.core.errors import Conflict, Invalid, NotFound, Refused, TooManyRequests
from forewarn.core.fleet import Fleet
from forewarn.core.hooks import ALL_KINDS, secret_text
from forewarn.core.model import AuditEntry, HoldCause, StoreHold
from forewarn.core.operator_model import MAX_HOOKS_PER_SCOPE, Hook, Role
from forewarn.service.control import Control
from forewarn.service.hook_sender import (
    BATCH,
    BATCHES_IN_TURN,
    MAX_AT_ONCE,
    MAX_AT_ONCE_PER_SCOPE,
    MAX_TESTS_AT_ONCE,
    TURN_S,
    DeliveryFailed,
    HookSender,
    Reply,
)
from forewarn.store import AuditQuery, Store
from forewarn.store.memory import MemoryStore
from tests.support.records import at, change, entry, hook, token
from tests.support.records import scope as scope_record
from tests.support.services import OPERATOR, make_service, reboot

DAY_S = 86_400
SECRET = secret_text(b"s" * 32)


@dataclass
class FakeTransport:
    """Records what is sent to each URL, and fails as a test says."""

    sent: list[tuple[str, str]] = field(default_factory=list)
    replies: dict[str, Reply | DeliveryFailed] = field(default_factory=dict)
    signatures: list[str] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        del body
        self.meanwhile()
        reply = self.replies.get(url, Reply(200))
        self.signatures.append(headers["webhook-signature"])
        if isinstance(reply, DeliveryFailed):
            raise reply
        if reply.status < 300:
            self.sent.append((url, headers["webhook-id"]))
        return reply

    def why_not(self, url: str) -> str:
        return "" if url.startswith("https:") else "only https"

    def entries(self, url: str = "https://a.example/in") -> list[int]:
        """The ids of the entries that a URL accepted, in order."""
        return [int(message.split("_")[2].split("-")[0]) for to, message in self.sent if to == url]


class Site:
    """A service with a sender on a manual clock and manual real time."""

    def __init__(self, store: Store, **settings: Any) -> None:
        self.service: Service = make_service(store, scopes=2, **settings)
        self.store, self.control = store, self.service.control
        self.transport = FakeTransport()
        self.real_s = 0.0
        self.may_send = True
        self.sender = self.another_node()

    def another_node(self) -> HookSender:
        return HookSender(
            self.control,
            self.store,
            self.service.clock,
            self.transport,
            may_send=lambda: self.may_send,
            disable_after_s=3 * DAY_S,
            monotonic=lambda: self.real_s,
            unix_s=lambda: 1_900_000_000,
        )

    def add(self, hook_id: str = "H1", **facts: object) -> Hook:
        given = {"url": "https://a.example/in", "kinds": ALL_KINDS, "secrets": (SECRET,), **facts}
        return self.control.add_hook(hook(hook_id, **given), OPERATOR)

    def hook(self, hook_id: str = "H1") -> Hook:
        return self.control.hook(hook_id)

    def note(self, count: int = 1, scope: str = "s-0", action: str = "event started") -> None:
        entries = [
            entry(at=self.service.clock.now(), action=action, scope=scope, event_id="", maintenance_id="")
            for _ in range(count)
        ]
        self.store.apply(change(audit=entries))

    def wanted(self, after: int, scope: str = "") -> list[int]:
        return [e.id for e in self.store.audit(AuditQuery(after=after, scope=scope, limit=1_000))]

    def wait(self, seconds: float) -> None:
        """Let real time and the service clock go on, and deliver what is due then."""
        self.real_s += seconds
        self.service.ticker.advance(seconds)
        self.sender.cycle()


@pytest.fixture
def site() -> Site:
    return Site(MemoryStore())


def actions(store: Store, name: str) -> list[AuditEntry]:
    return [e for e in store.audit(AuditQuery(limit=1_000)) if e.action == name]


# -- what is delivered


def test_a_hook_gets_every_entry_after_its_creation_in_order(store: Store) -> None:
    """A whole maintenance, from its submission to its end, once and in the order of the audit."""
    site = Site(store, executor="simulated")
    begun = site.add().cursor
    reboot(site.service, "s-0")
    reboot(site.service, "s-1")
    site.sender.cycle()
    site.service.ticker.advance(7_200)
    site.sender.cycle()
    assert site.transport.entries() == site.wanted(begun)
    assert len(actions(store, "maintenance ended")) == 2
    site.sender.cycle()
    assert site.transport.entries() == site.wanted(begun), "nothing is sent twice without need"
    assert site.hook().cursor == site.wanted(begun)[-1]
    assert {d.attempts for d in store.hook_deliveries("H1", 100)} == {1}


def test_a_hook_gets_only_its_scope_and_its_kinds(site: Site) -> None:
    """Other entries are passed."""
    site.add(scope="s-1", kinds=("failed",))
    for scope, action in (
        ("s-0", "order failed"),
        ("s-1", "event started"),
        ("s-1", "order failed"),
        ("", "order failed"),
    ):
        site.note(1, scope, action)
    site.sender.cycle()
    (sent,) = site.transport.entries()
    (found,) = [e for e in site.store.audit(AuditQuery(scope="s-1", limit=100)) if e.id == sent]
    assert (found.scope, found.action) == ("s-1", "order failed")


def test_a_long_backlog_is_delivered_in_turns(site: Site) -> None:
    """More than a hook may send in one turn; every entry comes, in order."""
    begun = site.add().cursor
    count = BATCH * BATCHES_IN_TURN + 7
    site.note(count)
    site.sender.cycle()
    assert len(site.transport.entries()) == BATCH * BATCHES_IN_TURN
    site.sender.cycle()
    assert site.transport.entries() == site.wanted(begun)


def test_only_so_many_hooks_send_at_once_and_all_get_a_turn() -> None:
    """The hooks that were served longest ago come first; a failing hook holds up no other."""
    site = Site(MemoryStore())
    started: list[object] = []
    site.store.apply(
        change(
            expect=[(f"x{n}", 0) for n in range(1, MAX_AT_ONCE + 2)],
            scopes=[scope_record(f"x{n}") for n in range(1, MAX_AT_ONCE + 2)],
        )
    )
    for n in range(MAX_AT_ONCE + 2):
        site.add(f"H{n:02}", url=f"https://r{n}.example/in", scope=f"x{n}" if n else "", created=at(n))
    site.sender._start = started.append
    site.sender.cycle()
    site.sender.cycle()
    assert len(started) == MAX_AT_ONCE
    site.sender._start = lambda work: work()
    for work in started:
        work()  # type: ignore[operator]
    site.real_s += 1
    site.sender.cycle()
    assert len(site.sender._busy) == 0
    assert all(progress.passed for progress in site.sender._progress.values())


def test_a_slow_receiver_gives_others_their_turn(site: Site) -> None:
    """A turn ends after a few seconds; what was sent is saved, and the next turn goes on behind it."""
    begun = site.add().cursor
    site.note(5)

    def answer_slowly() -> None:
        site.real_s += TURN_S / 2

    site.transport.meanwhile = answer_slowly
    site.sender.cycle()
    first = site.wanted(begun)[:2]
    assert site.transport.entries() == first
    assert site.hook().cursor == first[-1]
    site.sender.cycle()
    site.sender.cycle()
    assert site.transport.entries() == site.wanted(begun)


def test_the_hooks_of_one_scope_leave_room_for_others(site: Site) -> None:
    """However long its receivers take, other scopes and the fleet send."""
    for n in range(MAX_HOOKS_PER_SCOPE):
        site.add(f"A{n}", scope="s-0", created=at(n))
    site.add("B", scope="s-1", created=at(100))
    site.add("C", created=at(101))
    site.note(1, "s-0")
    site.note(1, "s-1")
    works: list[Callable[[], None]] = []
    site.sender._start = works.append
    site.sender.cycle()
    site.sender.cycle()
    assert sorted(site.sender._busy.values()) == ["", *["s-0"] * MAX_AT_ONCE_PER_SCOPE, "s-1"]
    for work in works:
        work()
    site.sender._start = lambda work: work()
    for _ in range(2):
        site.real_s += 1
        site.sender.cycle()
    assert all(site.hook(f"A{n}").delivered for n in range(MAX_HOOKS_PER_SCOPE))


def test_only_a_few_tests_are_under_way(site: Site) -> None:
    """One of each hook, and few in all: each holds a thread of the API. When one has ended, the next may begin."""
    hooks = [site.add(f"H{n}") for n in range(MAX_TESTS_AT_ONCE + 1)]
    begun: list[Hook] = []

    def test_more() -> None:
        with pytest.raises(TooManyRequests, match="a test of this hook is under way"):
            site.sender.test(hooks[len(begun)], "again")
        begun.append(hooks[len(begun)])
        if len(begun) < MAX_TESTS_AT_ONCE:
            site.sender.test(hooks[len(begun)], "meanwhile")
        else:
            with pytest.raises(TooManyRequests, match="4 tests of hooks are under way"):
                site.sender.test(hooks[-1], "one too many")

    site.transport.meanwhile = test_more
    site.sender.test(hooks[0], "first")
    assert len(site.transport.sent) == MAX_TESTS_AT_ONCE
    site.transport.meanwhile = lambda: None
    assert site.sender.test(hooks[-1], "last").delivered


def test_a_hook_ends_with_the_token_of_its_owner(site: Site) -> None:
    """It is disabled, says why, and sends nothing more; an owner or operator can enable it again."""
    for name, expires in (("T1", None), ("T2", site.service.clock.now() + timedelta(seconds=60))):
        site.control.add_token(token(name, role=Role.OWNER, scopes=("s-0",), expires=expires), OPERATOR)
        site.add(f"of {name}", scope="s-0", owner_token=name, kinds=("started",))
    site.add("other", scope="s-0", kinds=("started",))
    site.note()
    site.sender.cycle()
    assert [site.hook(h).disabled for h in ("of T1", "of T2", "other")] == [None, None, None]
    site.control.revoke_token("T1", OPERATOR)
    site.wait(60)
    site.note()
    site.sender.cycle()
    assert [bool(site.hook(h).disabled) for h in ("of T1", "of T2", "other")] == [True, True, False]
    assert len(site.transport.sent) == 4
    assert site.hook("of T1").error == "the token of its owner has ended"
    noted = actions(site.store, "hook disabled")
    assert [(e.scope, e.who, "the token of its owner has ended" in e.detail) for e in noted] == [
        ("s-0", "service", True)
    ] * 2
    site.control.enable_hook("of T1", OPERATOR)
    site.sender.cycle()
    assert len(site.transport.sent) == 5
    assert (site.hook("of T1").disabled, site.hook("of T1").error) == (None, "")


def test_a_hook_that_changes_meanwhile_is_disabled_later(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next cycle reads it again."""
    site.add(owner_token="T1")

    def lose(*_: object) -> None:
        raise Conflict("changed")

    with monkeypatch.context() as patched:
        patched.setattr(site.control, "note_hook", lose)
        site.sender.cycle()
    assert site.hook().disabled is None
    site.sender.cycle()
    assert site.hook().disabled is not None
    assert site.transport.sent == []


def test_the_hooks_of_a_removed_scope_are_deleted_with_it(store: Store) -> None:
    """In the same change, with an entry for each; a dry run deletes none, and other hooks stay."""
    site = Site(store)
    for name, scope in (("A", "s-0"), ("B", "s-0"), ("C", "s-1"), ("D", "")):
        site.add(name, scope=scope)
    nothing = Fleet({}, {})
    site.control.apply_fleet(nothing, OPERATOR, prune=True, dry_run=True)
    assert len(store.hooks()) == 4
    for machine in list(store.inventory().machines):
        site.control.remove_machine(machine, OPERATOR)
    site.control.remove_scope("s-0", OPERATOR)
    assert {h.id for h in store.hooks()} == {"C", "D"}
    assert [e.scope for e in actions(store, "hook deleted")] == ["s-0", "s-0"]
    assert all("its scope is removed" in e.detail for e in actions(store, "hook deleted"))
    site.control.apply_fleet(nothing, OPERATOR, prune=True)
    assert [h.id for h in store.hooks()] == ["D"]


@pytest.mark.parametrize("first", ["the hook", "the removal"])
def test_no_hook_outlives_its_scope_whichever_node_is_first(store: Store, first: str) -> None:
    """One node creates a hook while another removes its scope, between what that node read and what it saves."""
    site = Site(store)
    for machine in list(store.inventory().machines):
        site.control.remove_machine(machine, OPERATOR)

    def add(control: Control) -> None:
        control.add_hook(hook("A", scope="s-0"), OPERATOR)

    def remove(control: Control) -> None:
        control.remove_scope("s-0", OPERATOR)

    slow, quick = (remove, add) if first == "the hook" else (add, remove)
    interrupted = Interrupted(store, lambda: quick(site.control))
    other = Control(cast(Store, interrupted), site.service.clock, new_id=lambda: "N", order_timeout_s=0)
    with nullcontext() if first == "the hook" else pytest.raises(NotFound, match="there is no scope 's-0'"):
        slow(other)
    assert interrupted.done
    assert ("s-0" in store.scopes(), store.hooks()) == (False, [])
    deleted = [entry.detail for entry in actions(store, "hook deleted")]
    assert len(deleted) == (1 if first == "the hook" else 0)


class Interrupted:
    """A store in which something else happens after the hooks were read for the first time."""

    def __init__(self, store: Store, interruption: Callable[[], None]) -> None:
        self._store, self._interruption, self.done = store, interruption, False

    def hooks(self) -> list[Hook]:
        found = self._store.hooks()
        if not self.done:
            self.done = True
            self._interruption()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_work_that_cannot_be_started_is_started_later(site: Site) -> None:
    """Where the system has no thread left, say."""
    begun = site.add().cursor

    def refuse(work: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    site.sender._start = refuse
    with pytest.raises(RuntimeError):
        site.sender.cycle()
    site.sender._start = lambda work: work()
    site.sender.cycle()
    assert site.transport.entries() == site.wanted(begun)


# -- failures


def test_a_failed_message_is_tried_again_and_nothing_overtakes_it(site: Site) -> None:
    """The schedule is 1, 5, 15, 60, 300 seconds; entries behind it wait; afterwards all come in order."""
    begun = site.add().cursor
    site.note(3)
    site.transport.replies["https://a.example/in"] = DeliveryFailed("refused")
    attempts = []
    site.sender.cycle()
    for second in range(1, 1_000):
        before = site.sender.failed
        site.wait(1)
        if site.sender.failed > before:
            attempts.append(second)
    assert attempts == [1, 6, 21, 81, 381, 681, 981]
    assert site.transport.sent == []
    failing = site.hook()
    assert (failing.failures, failing.error, failing.cursor) == (8, "refused", begun)
    (only,) = site.store.hook_deliveries("H1", 10)
    assert (only.audit_id, only.attempts, only.delivered, only.status) == (begun + 1, 8, False, 0)
    site.transport.replies.clear()
    site.wait(300)
    assert site.transport.entries() == site.wanted(begun)
    healed = site.hook()
    assert (healed.failures, healed.failing_since, healed.error) == (0, None, "")


def test_a_receiver_may_ask_for_more_time(site: Site) -> None:
    """Retry-After counts when it is longer than our own wait."""
    site.add()
    site.note()
    site.transport.replies["https://a.example/in"] = Reply(503, "busy", retry_after_s=30)
    site.sender.cycle()
    assert site.hook().error == "the receiver answered 503: busy"
    assert site.sender.next_attempt(site.hook()) == site.service.clock.now() + timedelta(seconds=30)
    site.wait(29)
    assert site.sender.next_attempt(site.hook()) == site.service.clock.now() + timedelta(seconds=1)
    site.control.enable_hook("H1", OPERATOR)
    assert site.sender.next_attempt(site.hook()) is None
    assert site.sender.failed == 1
    site.wait(1)
    assert site.sender.failed == 2


def test_a_receiver_that_is_away_for_a_day_gets_everything(site: Site) -> None:
    """A day is shorter than the time after which a hook is disabled."""
    begun = site.add().cursor
    site.transport.replies["https://a.example/in"] = DeliveryFailed("refused")
    for _ in range(96):
        site.note()
        site.wait(900)
    site.transport.replies.clear()
    site.wait(300)
    assert site.transport.entries() == site.wanted(begun)


def test_a_hook_that_fails_too_long_is_disabled_and_keeps_its_cursor(site: Site) -> None:
    """The audit says so; it sends nothing more until an operator enables it, and then everything."""
    begun = site.add().cursor
    site.note()
    site.transport.replies["https://a.example/in"] = DeliveryFailed("refused")
    site.sender.cycle()
    site.wait(3 * DAY_S - 1)
    assert site.hook().disabled is None
    site.wait(300)
    assert site.hook().disabled == site.service.clock.now()
    (entry,) = actions(site.store, "hook disabled")
    assert entry.who == "service"
    assert "H1 to a.example: failing since" in entry.detail
    site.transport.replies.clear()
    site.wait(3_600)
    assert site.transport.sent == []
    site.control.enable_hook("H1", OPERATOR)
    site.sender.cycle()
    assert site.transport.entries() == site.wanted(begun)
    assert len(actions(site.store, "hook enabled")) == 1


def test_a_receiver_that_is_gone_disables_its_hook(site: Site) -> None:
    """410 means that nobody wants the messages any more."""
    site.add()
    site.note()
    site.transport.replies["https://a.example/in"] = Reply(410)
    site.sender.cycle()
    assert site.hook().disabled is not None


def test_an_error_of_the_store_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    """The work of a hook that fails unexpectedly is logged once and tried again."""

    class Broken(MemoryStore):
        broken = True

        def save_hooks(self, hooks: object, deliveries: object = ()) -> None:
            if self.broken:
                raise RuntimeError("no")
            super().save_hooks(hooks, deliveries)  # type: ignore[arg-type]

    store = Broken()
    site = Site(store)
    begun = site.add().cursor
    site.note()
    site.sender.cycle()
    site.wait(2)
    assert caplog.text.count("messages cannot be delivered") == 1
    store.broken = False
    site.wait(2)
    assert set(site.transport.entries()) == set(site.wanted(begun))


# -- who delivers


def test_another_node_goes_on_where_the_first_one_was_killed(store: Store) -> None:
    """What was sent but not saved is sent again under the same id; nothing is left out."""
    site = Site(store)
    begun = site.add().cursor
    site.note(30)

    class Killed(BaseException):
        """The process ends here."""

    def killed(hooks: object, deliveries: object = ()) -> None:
        raise Killed

    saving = store.save_hooks
    store.save_hooks = killed  # type: ignore[method-assign]
    with pytest.raises(Killed):
        site.sender.cycle()
    store.save_hooks = saving  # type: ignore[method-assign]
    first = site.transport.entries()
    assert first
    site.another_node().cycle()
    assert site.transport.entries() == [*first, *site.wanted(begun)]
    ids = [message for _, message in site.transport.sent]
    assert ids[: len(first)] == ids[len(first) : 2 * len(first)]


def test_a_node_that_may_not_send_sends_nothing(site: Site) -> None:
    """It stops between two messages, and saves how far it came."""
    begun = site.add().cursor
    site.note(3)
    site.may_send = False
    site.sender.cycle()
    assert site.transport.sent == []
    site.may_send = True
    post = site.transport.post

    def last(url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        site.may_send = False
        return post(url, headers, body)

    site.transport.post = last  # type: ignore[method-assign]
    site.sender.cycle()
    assert site.transport.entries() == [begun + 1]
    assert site.hook().cursor == begun + 1


def test_a_node_that_was_replaced_does_not_move_the_cursor_back(site: Site) -> None:
    """Its save is a conflict: the other node's cursor stays."""
    site.add()
    site.note(2)
    other = site.another_node()
    post = site.transport.post

    def overtaken(url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        site.transport.post = post  # type: ignore[method-assign]
        other.cycle()
        return post(url, headers, body)

    site.transport.post = overtaken  # type: ignore[method-assign]
    site.sender.cycle()
    assert site.hook().cursor == site.wanted(0)[-1]
    assert site.hook().version == 2, "one save, by the other node"


@pytest.mark.parametrize("cause", [HoldCause.RESTORED, HoldCause.REPLACED])
def test_a_restored_database_sends_nothing_until_it_is_resumed(site: Site, cause: HoldCause) -> None:
    """It may be a copy while the original is still in use."""
    begun = site.add().cursor
    site.note()
    hold = StoreHold(cause=cause, detail="x", who="y", held=site.service.clock.now())
    site.store.apply(replace(change(), store_hold=hold))
    site.sender.cycle()
    assert site.transport.sent == []
    site.control.resume_store(hold.held, OPERATOR)
    site.sender.cycle()
    assert site.transport.entries() == site.wanted(begun)


def test_a_hold_on_request_does_not_stop_messages(site: Site) -> None:
    """People want to hear of it."""
    begun = site.add().cursor
    site.control.hold_store("look", OPERATOR)
    site.sender.cycle()
    assert site.transport.entries() == site.wanted(begun)


# -- cursor and gaps


def test_entries_that_nobody_wants_are_passed_and_saved_now_and_then(site: Site) -> None:
    """So their deletion is no gap."""
    site.add(kinds=("failed",))
    site.sender.cycle()
    begun = site.hook().cursor
    site.note(50)
    site.sender.cycle()
    assert site.hook().cursor == begun, "not for every entry"
    site.wait(60)
    site.wait(60)
    assert site.hook().cursor == site.wanted(0)[-1]
    assert site.transport.sent == []
    site.store.prune(site.service.clock.now() + timedelta(days=1), 1_000)
    site.sender.cycle()
    assert site.hook().gap_until == 0


def test_deleted_entries_are_a_gap_that_everybody_hears_of(site: Site) -> None:
    """The audit names them once, the hook shows them, and the receiver gets a message before what follows."""
    begun = site.add().cursor
    site.transport.replies["https://a.example/in"] = Reply(410)
    site.note(5)
    site.sender.cycle()
    site.store.prune(site.service.clock.now() + timedelta(days=1), 1_000)
    lost = site.store.audit_chain().start.id
    for _ in range(2):
        site.sender.cycle()
    (entry,) = actions(site.store, "hook gap")
    assert f"entries {begun + 1} to {lost} were deleted" in entry.detail
    assert (site.hook().gap_after, site.hook().gap_until, site.hook().cursor) == (begun, lost, begun)
    site.store.prune(site.service.clock.now() + timedelta(days=1), 1_000)
    later = site.store.audit_chain().start.id
    assert later > lost
    site.sender.cycle()
    assert len(actions(site.store, "hook gap")) == 0, "pruned, and not said again while the hook is disabled"
    site.control.enable_hook("H1", OPERATOR)
    site.transport.replies.clear()
    site.sender.cycle()
    site.sender.cycle()
    assert (site.hook().gap_after, site.hook().gap_until) == (begun, later)
    (_, first), *rest = site.transport.sent
    assert first == f"msg_H1_gap-{later}"
    assert [int(i.split("_")[2].split("-")[0]) for _, i in rest] == site.wanted(later)
    assert {d.kind for d in site.store.hook_deliveries("H1", 100) if d.audit_id == later} == {"forewarn.hook.gap"}


def test_a_gap_message_that_fails_is_tried_again(site: Site) -> None:
    """Nothing is sent before the receiver knows what is missing."""
    site.add()
    site.note(2)
    site.store.prune(site.service.clock.now() + timedelta(days=1), 1_000)
    site.transport.replies["https://a.example/in"] = DeliveryFailed("refused")
    site.sender.cycle()
    assert site.hook().failures == 1
    site.transport.replies.clear()
    site.wait(1)
    assert site.transport.sent[0][1].startswith("msg_H1_gap-")


# -- what operators do


def test_a_rotated_hook_signs_with_both_secrets_for_a_while(site: Site) -> None:
    """Then with the new one alone."""
    site.add()
    site.control.rotate_hook("H1", secret_text(b"n" * 32), OPERATOR, keep_s=3_600)
    site.sender.cycle()
    assert len(site.transport.signatures[-1].split()) == 2
    site.note()
    site.wait(3_600)
    assert len(site.transport.signatures[-1].split()) == 1
    (entry,) = actions(site.store, "hook secret rotated")
    assert "whsec_" not in entry.detail


def test_a_replay_sends_entries_again_or_skips_them(site: Site) -> None:
    """From an entry that the audit holds; the audit says where the hook was."""
    begun = site.add().cursor
    site.note(3)
    site.sender.cycle()
    site.transport.sent.clear()
    site.control.replay_hook("H1", begun + 2, OPERATOR)
    site.sender.cycle()
    assert site.transport.entries() == site.wanted(begun + 1)
    assert "from entry" in actions(site.store, "hook replayed")[0].detail
    with pytest.raises(Invalid, match="not an entry that the audit log holds"):
        site.control.replay_hook("H1", 10_000, OPERATOR)


def test_a_deleted_hook_gets_nothing_more(site: Site) -> None:
    """It is unknown from then on."""
    site.add()
    site.control.remove_hook("H1", OPERATOR)
    site.note()
    site.sender.cycle()
    assert site.transport.sent == []
    for call in (site.control.remove_hook, site.control.enable_hook):
        with pytest.raises(NotFound, match="no hook H1"):
            call("H1", OPERATOR)


def test_hooks_are_limited(site: Site) -> None:
    """Of a scope there are only so many."""
    for n in range(MAX_HOOKS_PER_SCOPE):
        site.add(f"H{n}", scope="s-0")
    with pytest.raises(Refused, match="scope s-0 has 10 hooks"):
        site.add("H99", scope="s-0")


def test_a_hook_that_changed_meanwhile_is_not_overwritten(site: Site) -> None:
    """The service notes a gap or an end only of the hook that it read."""
    read = site.add()
    with pytest.raises(Conflict):
        site.control.note_hook(replace(read, version=7), "hook disabled", "x")


def test_a_test_message_changes_nothing(site: Site) -> None:
    """It is sent at once, also for a disabled hook, and its result is returned."""
    known = site.add()
    assert (site.sender.why_not(known.url), site.sender.why_not("http://x")) == ("", "only https")
    attempt = site.sender.test(known, "abc")
    assert (attempt.delivered, attempt.status) == (True, 200)
    site.transport.replies["https://a.example/in"] = Reply(404)
    assert site.sender.test(known, "abc").error == "the receiver answered 404"
    assert site.hook() == replace(known, version=1)
    assert site.store.hook_deliveries("H1", 10) == []


def test_the_loop_ends_when_it_is_told_to(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """An error of a cycle is logged and does not end the loop."""
    calls = 0

    def hooks() -> list[Hook]:
        nonlocal calls
        calls += 1
        if calls > 2:
            site.sender.stop()
        raise RuntimeError("broken")

    site.store.hooks = hooks  # type: ignore[method-assign]
    site.sender._nudged.set()
    site.sender._nudged.clear = lambda: None  # type: ignore[method-assign]
    site.sender.run()
    assert calls == 3
    assert caplog.text.count("messages cannot be delivered") == 1


def test_a_sender_that_stops_waits_for_answers_and_saves_them(site: Site) -> None:
    """So that a restart sends little twice. What fails while it stops is not logged as trouble."""
    begun = site.add().cursor
    started: list[Callable[[], None]] = []
    site.sender._start = started.append
    site.sender.cycle()
    site.sender.stop()
    site.sender._wait = lambda: started.pop()()  # type: ignore[method-assign]
    site.sender.run()
    assert (started, site.sender._busy) == ([], {})
    assert site.transport.sent == [], "it had not begun"
    site.another_node().cycle()
    assert site.transport.entries() == site.wanted(begun)
