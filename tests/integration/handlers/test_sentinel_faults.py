"""`redis` with fake Sentinels over sockets that hang, refuse or are slow, and an agent that is killed."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from forewarn.guest.errors import OutOfTime, StepFailed
from forewarn.guest.handlers import redis
from tests.integration.handlers.agent_process import cancelled_run, fast_run, new_run
from tests.integration.handlers.agent_with_endpoint import agent_with_endpoint
from tests.integration.handlers.fake_redis import bulk, fake_redis
from tests.integration.handlers.fake_sentinels import OK, SENTINELS, FakeSentinels


@pytest.fixture
def group() -> Iterator[FakeSentinels]:
    with ExitStack() as stack:
        group = FakeSentinels(stack)
        yield group


def test_writes_stay_paused_until_it_follows(group: FakeSentinels) -> None:
    """Writes are paused again at every check until the server follows, and not longer."""
    group.looks_needed = 5
    redis.prepare(group.spec, new_run())
    after = group.heard[group.heard.index("0 FAILOVER") :]
    looks = after[: after.index("REPLICAOF 127.0.0.1")]
    assert looks.count("0 GET-MASTER-ADDR-BY-NAME") >= 5
    for at, each in enumerate(looks):
        if each == "0 GET-MASTER-ADDR-BY-NAME":
            assert looks[at - 1] == "CLIENT PAUSE"
    assert group.heard.index("CLIENT PAUSE") < group.heard.index("0 FAILOVER")
    assert "CLIENT UNPAUSE" not in looks
    assert "CLIENT UNPAUSE" in after


def test_a_server_that_once_does_not_answer_follows(group: FakeSentinels) -> None:
    """It is asked again, and writes stay paused meanwhile."""
    group.ignored_commands = ["REPLICAOF"]
    redis.prepare(group.spec, new_run())
    assert group.follows
    assert group.heard.index("CLIENT UNPAUSE") > len(group.heard) - group.heard[::-1].index("REPLICAOF 127.0.0.1") - 1


def test_a_cancel_does_not_leave_two_masters(group: FakeSentinels) -> None:
    """A failover that a Sentinel has begun is completed: the old master would lose what it acknowledges."""
    redis.prepare(group.spec, cancelled_run(lambda: not group.failovers()))
    assert group.follows


def test_a_replica_that_does_not_catch_up_fails_the_step(group: FakeSentinels) -> None:
    """No failover is requested, and writes go on."""
    group.received = 5
    with pytest.raises(StepFailed, match=f"no replica took over: {group.other.address} have not received everything"):
        redis.prepare(group.spec, fast_run())
    assert group.failovers() == []
    assert group.heard[-1] == "CLIENT UNPAUSE"


def test_sentinels_that_name_no_master_in_time(group: FakeSentinels) -> None:
    """The step fails; the pause ends by itself, because the Sentinels may still promote the replica."""
    group.looks_needed = 1_000_000
    with pytest.raises(OutOfTime, match=f"no replica took over: the Sentinels name {group.me.address}"):
        redis.prepare(group.spec, fast_run())
    assert group.failovers() == ["0 FAILOVER"]
    assert "CLIENT UNPAUSE" not in group.heard


def test_a_sentinel_that_does_not_answer_may_have_started_a_failover(group: FakeSentinels) -> None:
    """No other Sentinel is asked, which would start a second failover."""
    group.ignores = {0: "FAILOVER"}
    with pytest.raises(OutOfTime, match="no replica took over"):
        redis.prepare(group.spec, fast_run())
    assert group.failovers() == ["0 FAILOVER"]


def test_a_sentinel_that_refuses_or_is_down_is_skipped(group: FakeSentinels) -> None:
    """The next one is asked; one that has a failover in progress is believed."""
    group.ignores = {0: "GET-MASTER-ADDR-BY-NAME"}
    group.refuses = {1: b"-NOGOODSLAVE No suitable replica to promote\r\n"}
    group.looks_needed = -1  # the first Sentinel, which counts them, does not answer
    redis.prepare(group.spec, new_run())
    assert group.failovers() == ["1 FAILOVER", "2 FAILOVER"]
    group.promoted = group.follows = False
    group.heard.clear()
    group.ignores = {}
    group.refuses = dict.fromkeys(range(SENTINELS), b"-NOGOODSLAVE No suitable replica to promote\r\n")
    with pytest.raises(StepFailed, match=r"no replica took over: Sentinel .* says: NOGOODSLAVE"):
        redis.prepare(group.spec, new_run())
    assert group.heard[-1] == "CLIENT UNPAUSE"


def test_killed_between_requesting_the_failover_and_following(group: FakeSentinels, tmp_path: Path) -> None:
    """The next agent requests no second failover and makes the server follow the new master."""
    group.looks_needed = 1_000_000
    with agent_with_endpoint(tmp_path, group.step(), lambda: group.follows) as (platform, agent):
        platform.announce()
        agent.wait_until(lambda: group.failovers() == ["0 FAILOVER"])
        agent.kill()
        group.looks_needed = 0
        agent.up()
        agent.wait_until(lambda: platform.approvals == [True])
        assert group.failovers() == ["0 FAILOVER"]


def test_the_next_agent_waits_for_the_failover_of_an_earlier_one(group: FakeSentinels) -> None:
    """It requests no second failover while the Sentinels still name the old master."""
    group.promoted, group.looks_needed = True, 3
    redis.prepare(group.spec, new_run(told=new_run().event["EventId"]))
    assert group.failovers() == []
    assert group.follows


@pytest.mark.parametrize("named", [("x", "y"), ("127.0.0.1", ""), ("127.0.0.1", "²"), ("a\0b", "1"), ("", "9" * 5000)])
def test_an_address_that_is_none(group: FakeSentinels, named: tuple[str, str]) -> None:
    """Named by the Sentinels, it is a server that does not answer and no fault of ours."""
    for each in group.sentinels:
        each.answer = lambda _: b"*2\r\n" + bulk(named[0]) + bulk(named[1])
    group.follows = True
    assert redis.verify(group.spec, new_run(5)) is None


@pytest.mark.parametrize("number", ["9" * 5000, "²", "-1"])
def test_a_number_that_is_none(number: str) -> None:
    """Said by a server of its replicas, it counts as nothing and is no fault of ours."""
    info = f"role:master\r\nrun_id:a\r\nconnected_slaves:{number}\r\n"
    failing = pytest.raises(StepFailed, match="no replica can take over")
    with fake_redis(lambda words: bulk(info) if words[0] == "INFO" else OK) as odd, failing:
        redis.prepare(redis.parse({"address": odd.address}, "here"), new_run(5))
