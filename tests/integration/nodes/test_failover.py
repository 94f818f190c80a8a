"""A replica is promoted: what it never had does not come again under the same names, and nobody is left behind."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from forewarn.core.errors import Conflict, StoreUnavailable
from forewarn.store import AuditQuery, Focus
from forewarn.store.postgres.store import PostgresStore
from tests.folders import folder_for_every_user
from tests.integration.nodes.hook_messages import SCOPES, Messages, create_hooks, secrets_of, wanted_of
from tests.integration.nodes.nodes import some_nodes
from tests.support.postgres_servers import SHARED, UNHURRIED, Server
from tests.support.records import change, entry, saved_scope, scope
from tests.support.waiting import until
from tests.support.webhook_receiver import receiving


class Pair:
    """A primary, and a replica that follows it."""

    def __init__(self, folder: Path) -> None:
        self.primary = Server(folder / "primary").make().start()
        self.primary.execute("CREATE DATABASE forewarn")
        self.replica = self.primary.copy(folder / "replica").start()
        self.address = f"postgresql://postgres@127.0.0.1:{self.primary.port},127.0.0.1:{self.replica.port}/forewarn?connect_timeout=20"

    def caught_up(self) -> bool:
        """Whether the replica has all there is."""
        (row,) = self.primary.execute(
            "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()"
        )
        return row == (1,)

    def part(self) -> None:
        """From here on the replica hears nothing of the primary."""
        self.replica.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.replica.execute("SELECT pg_reload_conf()")
        until(lambda: self.primary.execute("SELECT count(*) FROM pg_stat_replication") == [(0,)])

    def fail_over(self) -> None:
        self.primary.kill()
        self.replica.execute("SELECT pg_promote()")

    def close(self) -> None:
        self.primary.close()
        self.replica.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    folder = folder_for_every_user("forewarn-pair-")
    made = Pair(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


def test_lost_commits_do_not_come_again_under_the_same_names(pair: Pair, tmp_path: Path) -> None:
    """Guests saw a document that the promoted replica never had: every node goes on with a new epoch, by itself.

    Hooks get every entry that survived, in the order of the audit, and none of them under a second id.
    """
    options = {"FOREWARN_HOOK_TARGETS": "127.0.0.1"}
    with some_nodes(tmp_path) as nodes, receiving() as receiver:
        first, second = nodes.start(pair.address, **options), nodes.start(pair.address, **options)
        hooks = create_hooks(second, receiver.url)
        receiver.hook_secrets = secrets_of(hooks)

        def messages(scope: str) -> Messages:
            return Messages(hooks[scope], receiver.accepted)

        first.document()
        second.reboot("blog", "web-1")
        until(pair.caught_up)
        pair.part()
        survive = wanted_of(first, "")
        first.reboot()
        (*_, lost_entry) = wanted_of(first, "shop")
        until(lambda: lost_entry in messages("").ids and lost_entry in messages("shop").ids)
        receiver.status = 503
        lost = first.document()
        assert lost.etag == '"2"'
        assert second.document(etag=lost.etag).status == 304

        def both_show_a_new_document() -> bool:
            one, other = first.poll(), second.poll()
            return one.status == other.status == 200 and one.etag == other.etag != lost.etag

        pair.fail_over()
        until(lambda: first.ready()[0] == second.ready()[0] == 200)
        until(both_show_a_new_document)
        after = first.document(etag=lost.etag)
        assert (after.status, after.events) == (200, [])
        second.reboot()
        again = first.document(etag=second.document().etag)
        assert again.status == 304
        assert again.etag.startswith('"2-')
        (entry,) = [e for e in first.answered("GET", "/v1/audit")[1]["items"] if e["action"] == "database failed over"]  # type: ignore[attr-defined]
        assert "commits may be lost" in entry["detail"]

        receiver.status = 204
        for hook in hooks.values():
            # This saves the test the wait for the next attempt.
            first.change(f"/v1/hooks/{hook['id']}/enable")
        wanted = {scope: wanted_of(first, scope) for scope in SCOPES}
        assert wanted[""][: len(survive)] == survive
        assert len(wanted[""]) > len(survive) > 0
        until(lambda: all(set(wanted[scope]) <= messages(scope).ids.keys() for scope in SCOPES))
        for scope in SCOPES:
            assert [entry for entry in messages(scope).entries if entry in wanted[scope]] == wanted[scope]
            assert messages(scope).under_several_ids == []
        assert lost_entry not in wanted[""]


def test_new_epochs_begin_whatever_a_node_knew_of_standbys(pair: Pair) -> None:
    """The standby was taken out of service while one node was cut off: what others saved then must not come again."""
    pair.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    pair.primary.execute("SELECT pg_reload_conf()")
    cut_off, other = (PostgresStore(pair.address, limits=UNHURRIED) for _ in range(2))
    feed = cut_off.feed()
    until(lambda: not feed.poll(None, 0.0).warning)
    other.apply(change(scopes=[scope(epoch=3, incarnation=7)]))
    # Its commit need not have waited: the server's processes read the settings one after the other.
    until(pair.caught_up)
    pair.primary.execute("ALTER SYSTEM RESET synchronous_standby_names")
    pair.primary.execute("SELECT pg_reload_conf()")
    pair.part()
    other.apply(change(expect=[("shop", 1)], scopes=[replace(saved_scope(other), incarnation=8)]))
    pair.fail_over()
    until(lambda: _works(cut_off))
    known = saved_scope(cut_off)
    assert (known.epoch, known.incarnation, known.version) == (1_003, 1, 1_000_001)
    feed.close()
    cut_off.close()
    other.close()


def test_a_stream_goes_on_after_a_failover_and_the_old_primary_is_refused(pair: Pair) -> None:
    """Numbers that lost commits had are not given again. A primary that comes back unfenced is neither read nor written."""
    store = PostgresStore(pair.address, limits=UNHURRIED)
    store.apply(change(scopes=[scope()], audit=[entry()]))
    feed = store.feed()
    feed.poll(None, 0.0)
    until(pair.caught_up)
    pair.part()
    for _ in range(40):  # more than a standby's sequences may be ahead
        store.apply(change(audit=[entry()]))
    (seen,) = store.audit(AuditQuery(limit=1))
    pair.fail_over()
    until(lambda: _works(store))
    (first, *_) = store.audit(AuditQuery(after=seen.id))
    assert first.action == "database failed over"
    feed.close()  # its connection died with the primary
    position = feed.poll(None, 0.0).position
    assert position.cluster[1] == 2
    pair.replica.kill()
    pair.primary.start()
    # What the feed found out must still count when the store is used next, however long that takes.
    store.dsn.limits = replace(UNHURRIED, away_s=600)
    why = "this server was replaced by another (its timeline is 1, the nodes agreed on 2): fence it"
    until(lambda: why in _refusal(lambda: feed.poll(position, 0.0)))
    assert why in _refusal(store.scopes)  # whoever follows has told everybody
    store._pool.came_back()
    assert why in _refusal(lambda: store.apply(change(audit=[entry()])))
    assert pair.primary.execute("SELECT max(id) FROM forewarn.audit", "forewarn") == [(seen.id,)]
    feed.close()
    store.close()


def _refusal(use: Callable[[], object]) -> str:
    try:
        use()
    except StoreUnavailable as error:
        return str(error)
    return ""


def _works(store: PostgresStore) -> bool:
    try:
        store.apply(change(audit=[entry()]))
    except (StoreUnavailable, Conflict):
        return False
    return True


def test_a_copy_restored_elsewhere_begins_new_epochs() -> None:
    """A database that came from a dump is another one: its nodes notice, and so do streams of what was forgotten."""
    address = SHARED.fresh()
    store = PostgresStore(address, limits=UNHURRIED)
    store.apply(change(scopes=[scope(epoch=1, incarnation=4)], audit=[entry()]))
    feed = store.feed()
    position = feed.poll(None, 0.0).position
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("UPDATE forewarn.cluster SET identity = 'the one it was dumped from'")
    news = feed.poll(position, 0.0)
    assert news.everything
    known = saved_scope(store)
    assert known.epoch > 1_000_000, "the same dump restored at another time begins others"
    assert known.incarnation == 1
    assert known.version > known.epoch
    assert not feed.poll(news.position, 0.0).everything
    feed.close()
    store.close()


def test_an_agreement_may_be_lost_with_the_next_failover() -> None:
    """What was begun on the timeline between is not begun again: every timeline is a step of its own."""
    address = SHARED.fresh()
    store = PostgresStore(address, limits=UNHURRIED)
    store.apply(change(scopes=[scope(epoch=1, incarnation=4)]))
    version = saved_scope(store).version
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("UPDATE forewarn.cluster SET timeline = timeline - 2")
    feed = store.feed()
    feed.poll(None, 0.0)
    known = saved_scope(store)
    assert (known.epoch, known.incarnation, known.version) == (2_001, 1, version + 2_000_000)
    feed.close()
    store.close()


def test_what_guests_are_shown_is_never_of_a_server_nobody_agreed_on(pair: Pair) -> None:
    """The first read after a failover that lost commits returns a new epoch, not the document of the old epoch."""
    store = PostgresStore(pair.address, limits=UNHURRIED)
    store.apply(change(scopes=[scope(epoch=1, incarnation=4)]))
    until(pair.caught_up)
    pair.part()
    store.apply(change(expect=[("shop", 1)], scopes=[replace(saved_scope(store), incarnation=5)]))
    pair.fail_over()

    def shown() -> tuple[int, int] | None:
        try:
            found = store.snapshot(Focus(scopes=("shop",), whole_maintenances=False, document_only=True)).scopes["shop"]
        except StoreUnavailable:
            return None
        return found.epoch, found.incarnation

    seen: list[tuple[int, int] | None] = [None]

    def answered() -> bool:
        seen.append(shown())
        return seen[-1] is not None

    until(answered)
    assert seen[-1] == (1_001, 1)
    store.close()


def test_what_was_read_before_the_nodes_agreed_does_not_count() -> None:
    """Another node agrees on the new server just after this one has read: it reads again, and that is everything."""
    address = SHARED.fresh()
    store, other = PostgresStore(address, limits=UNHURRIED), PostgresStore(address, limits=UNHURRIED)
    store.apply(change(scopes=[scope(epoch=1, incarnation=4)]))
    feed = store.feed()
    position = feed.poll(None, 0.0).position
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("UPDATE forewarn.cluster SET timeline = 99")
    # As far as this node knows, the timeline was 99 all the time.
    position = replace(position, cluster=(position.cluster[0], 99))
    store.adopt = lambda: other.adopt() and False  # type: ignore[method-assign]
    assert feed.poll(position, 0.0).everything
    feed.close()
    other.close()
    store.close()


def test_a_standby_alone_is_named_as_what_it_is(pair: Pair) -> None:
    """The message for a wrong server names the right one."""
    PostgresStore(pair.address, limits=UNHURRIED).close()
    until(pair.caught_up)
    with pytest.raises(StoreUnavailable, match="standby, which cannot be written: name the primary"):
        PostgresStore(pair.replica.address("forewarn"))
