"""`redis` with real servers and Sentinels: takeover by FAILOVER and through Sentinel."""

import signal
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from forewarn.guest.errors import ConfigError, OutOfTime, StepFailed
from forewarn.guest.handlers import redis
from forewarn.guest.handlers.redis_protocol import Reply
from forewarn.guest.handlers.redis_replication import Spec, split_address
from tests.integration.handlers.agent_process import fast_run, new_run
from tests.integration.handlers.redis_servers import Server, pair, watched
from tests.integration.handlers.service_with_event import page_steps
from tests.integration.handlers.steady_writer import Writer, writing
from tests.support.budget import BUDGET
from tests.support.fake_endpoint import StepTime
from tests.support.own_network import own_network
from tests.support.waiting import until


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[None]:
    with own_network():
        yield


class Keys:
    """Adds each number to a set on the current master; a server that is not master refuses."""

    def __init__(self, servers: list[Server]) -> None:
        self._master = next(each for each in servers if each.role == "master")

    def write(self, number: int) -> None:
        assert self._master.say("SADD", "numbers", str(number)) == 1

    def close(self) -> None:
        pass


def stored(server: Server) -> set[int]:
    members: Reply = server.say("SMEMBERS", "numbers")
    assert isinstance(members, list)
    return {int(str(each)) for each in members}


def went_on(writer: Writer, moment_s: float) -> None:
    until(lambda: writer.last_s > moment_s)


def page_step(number: int, server: Server, sentinels: Sequence[Server] = (), password_file: str = "") -> Spec:
    """An example of the documentation, with these servers' addresses."""
    (table,) = tomllib.loads(page_steps("redis")[number])["steps"]
    values = {**table["redis"], "address": server.address}
    if sentinels:
        values["sentinels"] = [each.address for each in sentinels]
    if password_file:
        values["password_file"] = password_file
    return redis.parse(values, "here")


def spec_of(server: Server, **more: object) -> Spec:
    return redis.parse({"address": server.address, **more}, "here")


def test_a_master_hands_over_and_comes_back_as_a_replica(tmp_path: Path) -> None:
    """No acknowledged write is lost; a server that restarts as a master follows the one that took over."""
    with pair(tmp_path) as (first, second):
        spec = spec_of(first)
        until(lambda: redis.check(spec) == [])
        assert redis.verify(spec, new_run()) is False
        run = new_run()
        with writing(lambda: Keys([first, second])) as writer:
            redis.prepare(spec, run)
            assert (first.role, second.role) == ("slave", "master")
            went_on(writer, writer.last_s)
        print(f"FAILOVER: {writer.longest_gap_s():.2f} s without writes")
        assert set(writer.acknowledged) - stored(second) == set()
        assert redis.verify(spec, new_run()) is True
        redis.prepare(spec, new_run())  # again: nothing is left to do
        assert (first.role, second.role) == ("slave", "master")
        first.down()
        first.up()
        assert first.role == "master"
        redis.recover(spec, new_run(**run.kept))
        assert first.linked
        assert stored(first) == stored(second)
        redis.recover(spec, new_run(**run.kept))


def test_there_and_back_again(tmp_path: Path) -> None:
    """However often it changes, both sides agree on it and no acknowledged write is lost."""
    with pair(tmp_path) as (first, second):
        with writing(lambda: Keys([first, second])) as writer:
            for _ in range(3 * BUDGET):
                old, new = (first, second) if first.role == "master" else (second, first)
                redis.prepare(spec_of(old), new_run())
                assert (old.role, new.role) == ("slave", "master")
                went_on(writer, writer.last_s)
                redis.recover(spec_of(old), new_run())
        assert set(writer.acknowledged) - stored(new) == set()


def test_a_replica_has_nothing_to_do(tmp_path: Path) -> None:
    """It counts as prepared only while there is a master, and as back when it has its link."""
    with pair(tmp_path) as (first, second):
        spec, run = spec_of(second), new_run()
        redis.prepare(spec, run)
        redis.recover(spec, new_run(**run.kept))
        assert (first.role, second.role) == ("master", "slave")
        first.down()
        assert redis.verify(spec, new_run()) is None
        with pytest.raises(OutOfTime, match=f"{first.address}, which should be master, does not answer"):
            redis.prepare(spec, fast_run())
        with pytest.raises(OutOfTime, match=f"it has no link to {first.address}"):
            redis.recover(spec, fast_run(**run.kept))


def test_a_master_without_replicas(tmp_path: Path) -> None:
    """The step fails at once, and the master still accepts writes."""
    with pair(tmp_path) as (first, second):
        with pytest.raises(StepFailed, match=r"no replica can take over: 127.0.0.99:6379 is not online at 127.0.0.20"):
            redis.prepare(spec_of(first, replica="127.0.0.99:6379"), new_run())
        second.down()
        until(lambda: "connected_slaves:0" in str(first.say("INFO")))
        with pytest.raises(StepFailed, match=r"no replica can take over: none is online at 127.0.0.20"):
            redis.prepare(spec_of(first), new_run())
        assert first.say("SET", "a", "b") == "OK"


def test_a_replica_that_does_not_catch_up(tmp_path: Path) -> None:
    """The failover is called off at the end of the step's time: the master takes writes again."""
    with pair(tmp_path) as (first, second):
        assert second.process is not None
        second.process.send_signal(signal.SIGSTOP)  # connected, and receives nothing more
        first.say("SET", "a", "b")
        with pytest.raises(OutOfTime, match=f"no other master was confirmed: {first.address} is still master"):
            redis.prepare(spec_of(first), fast_run())
        assert first.say("SET", "a", "c") == "OK"
        assert first.role == "master"


def test_a_password_is_used_and_never_shown(tmp_path: Path) -> None:
    """It comes from a file that only its owner may read."""
    with pair(tmp_path, password="hunter2") as (first, second):
        path = tmp_path / "password"
        path.write_text("hunter2\n")
        path.chmod(0o600)
        spec = page_step(0, first, password_file=str(path))
        redis.prepare(spec, new_run())
        assert second.role == "master"
        path.write_text("hunter3")
        with pytest.raises(StepFailed, match="the login is refused: WRONGPASS") as caught:
            redis.prepare(spec, new_run())
        assert "hunter" not in str(caught.value)
        path.chmod(0o644)
        assert redis.check(spec) == [f"other users may read {path}, which holds a secret: chmod 600 it"]
        with pytest.raises(StepFailed, match="NOAUTH"):
            redis.prepare(spec_of(first), new_run())


def test_through_sentinel(tmp_path: Path) -> None:
    """The Sentinels name the other, the old master follows it at once, no acknowledged write is lost, and it comes back."""
    with watched(tmp_path) as (first, second, sentinels):

        def named() -> Keys:
            master = sentinels[1].say("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "shop")
            assert isinstance(master, list)
            return Keys([each for each in (first, second) if split_address(each.address)[0] == master[0]])

        spec = page_step(1, first, sentinels)
        until(lambda: redis.check(spec) == [])
        assert redis.verify(spec, new_run()) is False
        with writing(named) as writer:
            # A Sentinel that was held up for seconds accepts the request, and does nothing for the next 30 s (its TILT mode).
            redis.prepare(spec, new_run(90))
            # A Sentinel may close the connections of the server that it demotes.
            until(lambda: (first.role, second.role) == ("slave", "master"))
            went_on(writer, writer.last_s)
        print(f"Sentinel: {writer.longest_gap_s():.2f} s without writes")
        assert set(writer.acknowledged) - stored(second) == set()
        assert redis.verify(spec, new_run()) is True
        first.down()
        first.up()
        redis.recover(spec, new_run())
        assert first.linked
        assert stored(first) == stored(second)
        for each in sentinels[1:]:
            each.down()
        assert redis.verify(spec, new_run()) is None  # one of three is no majority


def test_a_failover_requested_by_a_killed_agent(tmp_path: Path) -> None:
    """The server follows the master that the Sentinels name, and no second failover is requested."""
    with watched(tmp_path) as (first, second, sentinels):
        sentinels[0].say("SENTINEL", "FAILOVER", "shop")
        until(lambda: second.role == "master")
        # Its time passes ten times slower than ours: the other Sentinels may learn late who is master.
        run = new_run(time=StepTime(rate=0.1), told=new_run().event["EventId"])
        redis.prepare(page_step(1, first, sentinels), run)
        until(lambda: (first.role, second.role) == ("slave", "master"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "here: address is missing"),
        ({"address": "nowhere"}, "here.address: 'nowhere' is not an address: write it like 10.0.0.4:6379"),
        ({"address": "a:70000"}, "'a:70000' is not an address"),
        (
            {"address": "a:1", "sentinels": ["b:2"]},
            "`sentinels` and `master`, the name they know it by, or neither",
        ),
        ({"address": "a:1", "sentinels": ["b"], "master": "m"}, "here.sentinels[0]: 'b' is not an address"),
        (
            {"address": "a:1", "sentinels": ["b:2"], "master": "m", "replica": "c:3"},
            "the Sentinels choose who takes over",
        ),
        ({"address": "a:1", "user": "u"}, "here.user: password_file is missing"),
        ({"address": "a:1", "password": "x"}, "here.password: unknown key"),
    ],
)
def test_what_the_file_may_not_say(table: dict[str, object], message: str) -> None:
    """Where it stands, and what to write instead."""
    with pytest.raises(ConfigError) as caught:
        redis.parse(table, "here")
    assert message in str(caught.value)
