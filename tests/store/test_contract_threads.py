"""What every store promises to threads that read and write at once: consistent moments, and no write lost."""

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from forewarn.core.errors import Conflict
from forewarn.core.model import OPEN, ApprovalMode
from forewarn.store import AuditQuery, EventQuery, Focus, Store
from tests.support.records import (
    START,
    approval,
    at,
    change,
    entry,
    event,
    maintenance,
    one_maintenance,
    receipt,
    saved_event,
    saved_maintenance,
    saved_scope,
    scope,
)


def run_at_once(*tasks: Callable[[], None]) -> None:
    """Run each in a thread of its own, all from one moment on; the first error, if any, is this thread's."""
    errors: list[BaseException] = []
    together = threading.Barrier(len(tasks))

    def guarded(task: Callable[[], None]) -> None:
        try:
            together.wait()
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns so often that a race has every chance to show."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual_s)


@pytest.mark.usefixtures("hurried")
def test_no_thread_sees_half_a_change(store: Store) -> None:
    """Eight threads read and write at once: two scopes always changed together are never read apart, no write is lost."""
    rounds = 15
    store.apply(change(scopes=[scope("shop"), scope("blog")]))
    pair = Focus(scopes=("shop", "blog"))
    written = threading.Semaphore(0)

    def write() -> None:
        try:
            for _ in range(rounds):
                while not write_once():
                    pass
        finally:
            written.release()

    def write_once() -> bool:
        known = store.snapshot(pair).scopes
        grown = [replace(s, incarnation=s.incarnation + 1) for s in known.values()]
        new = maintenance(f"M{grown[0].incarnation}", wake_at=at(grown[0].incarnation))
        events = [event(f"{new.id}-{s}", new.id, scope=s, position=n) for n, s in enumerate(known)]
        try:
            store.apply(
                change(
                    expect=[(s.name, s.version) for s in grown],
                    scopes=grown,
                    maintenances=[new],
                    events=events,
                    audit=[entry()],
                )
            )
        except Conflict:
            return False
        return True

    def read() -> None:
        read_once()
        while not written.acquire(blocking=False):
            read_once()

    def read_once() -> None:
        seen = store.snapshot(pair)
        grown = {s.incarnation for s in seen.scopes.values()}
        assert len(grown) == 1
        assert len(seen.events) == 2 * len(seen.maintenances) == 2 * (grown.pop() - 1)
        store.due(START, 5)
        store.next_wakeup()
        store.inventory()
        store.audit(AuditQuery(limit=5))

    run_at_once(write, read, write, read, write, read, write, read)

    assert saved_scope(store).incarnation == 1 + 4 * rounds
    assert [e.id for e in reversed(store.audit(AuditQuery(limit=500)))] == list(range(1, 1 + 4 * rounds))
    assert len(store.events(EventQuery(limit=500, statuses=OPEN)).events) == 8 * rounds


@pytest.mark.usefixtures("hurried")
def test_a_request_sent_twice_is_done_once(store: Store) -> None:
    """Two threads save the answer to one request: one is saved with its change, the other changes nothing."""
    rounds = 15
    conflicts: list[str] = []

    def answer(who: str) -> None:
        for n in range(rounds):
            try:
                store.apply(change(receipts=[receipt(f"K{n}", body=who)], audit=[entry(f"{n}", who=who)]))
            except Conflict:
                conflicts.append(f"{n}")

    run_at_once(lambda: answer("one"), lambda: answer("other"))
    done = {e.action: e.who for e in store.audit(AuditQuery(limit=500))}
    kept = {f"{n}": found.body for n in range(rounds) if (found := store.receipt("T1", f"K{n}")) is not None}
    assert kept == done
    assert sorted(conflicts, key=int) == list(done)[::-1] == [f"{n}" for n in range(rounds)]


@pytest.mark.usefixtures("hurried")
def test_many_machines_approve_at_once(store: Store) -> None:
    """Approvals rely on no version: all of them succeed while the scope is being changed."""
    store.apply(one_maintenance(approval_mode=ApprovalMode.ALL, resources=tuple(f"web-{n}" for n in range(7))))

    def decide() -> None:
        for _ in range(10):
            known = saved_scope(store)
            store.apply(change(expect=[("shop", known.version)], scopes=[known]))

    approve = [lambda n=n: store.apply(change(approvals=[approval(name=f"web-{n}")], wakes=["M1"])) for n in range(7)]
    run_at_once(decide, *approve)
    assert {a.machine for a in saved_event(store).approvals} == {f"web-{n}" for n in range(7)}
    assert saved_maintenance(store).version == 8
