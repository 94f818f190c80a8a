"""`patroni` with a fake cluster over HTTP: wrong or missing answers, and an agent that is killed."""

import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from forewarn.core.model import Status
from forewarn.guest.clock import Time
from forewarn.guest.errors import ConfigError, OutOfTime, StepFailed
from forewarn.guest.handlers import patroni
from forewarn.guest.handlers.patroni_members import Spec
from tests.integration.handlers.agent_process import fast_run, new_run, recorded_timeouts_s
from tests.integration.handlers.fake_patroni import STEP, FakePatroni, fake_patroni
from tests.integration.handlers.service_with_event import service_with_event
from tests.support.fake_endpoint import respond
from tests.support.waiting import PATIENCE_S, until


def spec_of(cluster: FakePatroni, **more: object) -> Spec:
    return patroni.parse({"url": cluster.urls["pg0"], "member": "pg0", **more}, "here")


def test_the_best_candidate_is_requested() -> None:
    """A synchronous member first, then the least lag; never one that must not lead or whose lag is unknown."""
    with fake_patroni() as cluster:
        cluster.more = {"pg1": {"lag": 900}, "pg2": {"lag": 10}}
        patroni.prepare(spec_of(cluster), new_run())
        assert cluster.candidates == ["pg2"]
        cluster.leader, cluster.more["pg1"] = "pg0", {"lag": 900, "role": "sync_standby"}
        patroni.prepare(spec_of(cluster), new_run())
        assert cluster.candidates == ["pg2", "pg1"]
        cluster.leader, cluster.more = "pg0", {"pg1": {"tags": {"nofailover": True}}, "pg2": {"lag": 5}}
        patroni.prepare(spec_of(cluster), new_run())
        cluster.leader = "pg0"
        patroni.prepare(spec_of(cluster, candidate="pg2"), new_run())
        assert cluster.candidates == ["pg2", "pg1", "pg2", "pg2"]


def test_without_a_candidate_the_reasons_are_listed() -> None:
    """The reason lists why each member cannot lead, and no switchover is requested."""
    with fake_patroni() as cluster:
        cluster.more = {"pg1": {"tags": {"nofailover": True}}, "pg2": {"lag": "unknown"}}
        with pytest.raises(OutOfTime, match="pg1: its tags say nofailover; pg2: its lag is not known"):
            patroni.prepare(spec_of(cluster), fast_run())
        cluster.more = {"pg1": {"lag": 2**30}, "pg2": {"state": "stopped"}}
        with pytest.raises(OutOfTime, match="pg1: it lags 1073741824 bytes behind; pg2: it is stopped"):
            patroni.prepare(spec_of(cluster), fast_run())
        cluster.more, cluster.streams_to = {}, []
        with pytest.raises(OutOfTime, match="pg1: the leader does not stream to it; pg2: the leader does not stream"):
            patroni.prepare(spec_of(cluster), fast_run())
        cluster.more = {"pg1": {"tags": {"failover_priority": 0}}, "pg2": {"tags": {"nofailover": True}}}
        with pytest.raises(StepFailed, match="no member can take over"):
            patroni.prepare(spec_of(cluster), new_run())
        assert cluster.candidates == []


def test_a_candidate_refused_with_412_is_skipped() -> None:
    """The next candidate is requested; any other refusal fails the step."""
    with fake_patroni() as cluster:
        cluster.on_switch = lambda who: (412, "candidate is not healthy") if who == "pg1" else cluster.obey(who)
        patroni.prepare(spec_of(cluster), new_run())
        assert cluster.candidates == ["pg1", "pg2"]
        cluster.leader, cluster.on_switch = "pg0", lambda _: (412, "no good candidates")
        with pytest.raises(StepFailed, match="pg1: no good candidates; pg2: no good candidates"):
            patroni.prepare(spec_of(cluster), new_run())


def test_a_candidate_that_does_not_take_over_is_skipped() -> None:
    """While this member leads, the next candidate is requested, whatever Patroni answered."""
    with fake_patroni() as cluster:
        cluster.on_switch = lambda who: (503, "Switchover failed") if who == "pg1" else cluster.obey(who)
        patroni.prepare(spec_of(cluster), new_run(8))
        assert cluster.candidates == ["pg1", "pg2"]


@pytest.mark.parametrize("url", ["http://[::1", "http://a:port", "http://a\0b:1", "x", ""])
def test_a_member_whose_address_is_none(url: str) -> None:
    """It does not answer, and that is no fault of ours."""
    with fake_patroni() as cluster:
        cluster.leader = "pg1"
        cluster.urls["pg1"] = url
        assert patroni.verify(spec_of(cluster), new_run(5)) in (None, False)


def test_an_answer_without_end_is_none() -> None:
    """However deep it goes."""
    with fake_patroni() as cluster:
        spec = spec_of(cluster)
        cluster.before_answer = lambda _, handler: respond(handler, 200, b"[" * 200_000)
        assert patroni.verify(spec, new_run(5)) is None


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({}, "pg0 itself is still master (Patroni had answered 200: done)"),
        ({"pg0": "pg1"}, "pg0 itself is still master"),
    ],
)
def test_a_switchover_that_did_not_happen_is_noticed(lie: dict[str, str], message: str) -> None:
    """Neither the answer nor the cluster's list is believed while this server leads."""
    with fake_patroni() as cluster:
        cluster.on_switch = lambda _: (cluster.believes.update(lie), (200, "done"))[1]
        with pytest.raises(OutOfTime) as caught:
            patroni.prepare(spec_of(cluster), fast_run())
        assert message in str(caught.value)
        assert patroni.verify(spec_of(cluster), new_run()) is False


@pytest.mark.parametrize(
    ("believes", "message"),
    [
        ({"pg0": "pg1"}, "pg1 is listed as leader, and says that it is replica"),
        ({"pg2": "pg0"}, "pg2 does not see pg1 lead"),
        ({"pg0": "nobody"}, "the cluster has no leader"),
    ],
)
def test_a_leader_is_confirmed_by_all_members_that_answer(believes: dict[str, str], message: str) -> None:
    """One member that sees another leader is enough to wait."""
    with fake_patroni() as cluster:
        cluster.leader = "pg2" if believes == {"pg0": "pg1"} else "pg1"
        cluster.believes = believes
        with pytest.raises(OutOfTime, match=f"no other leader was confirmed: {message}"):
            patroni.prepare(spec_of(cluster), fast_run())
        assert patroni.verify(spec_of(cluster), new_run()) is False


def test_a_patroni_that_is_down_hangs_or_trickles() -> None:
    """The step fails with a message, within its time."""
    with fake_patroni() as cluster:
        spec = spec_of(cluster)
        gone = patroni.parse({"url": "http://127.0.0.1:9", "member": "pg0"}, "here")
        with pytest.raises(StepFailed, match=r"Patroni does not answer at http://127.0.0.1:9"):
            patroni.prepare(gone, fast_run())
        assert patroni.verify(gone, new_run()) is None
        assert patroni.check(gone) == ["Patroni does not answer at http://127.0.0.1:9"]
        over = threading.Event()

        def trickle(_name: str, handler: BaseHTTPRequestHandler) -> None:
            while not over.wait(0.05):
                handler.wfile.write(b"H")

        def hang(_name: str, _handler: BaseHTTPRequestHandler) -> None:
            over.wait()

        for misbehave in (hang, trickle):
            over.clear()
            cluster.before_answer = misbehave
            with recorded_timeouts_s() as given, pytest.raises(StepFailed, match="does not answer"):
                patroni.prepare(spec, new_run(1.5, time=Time()))
            assert max(given) <= 1.5
            over.set()
        assert cluster.candidates == []


def test_a_member_is_back_when_another_streams_to_it() -> None:
    """Running is not enough; the member that streams must confirm it."""
    with fake_patroni() as cluster:
        cluster.leader = "pg1"
        patroni.recover(spec_of(cluster), new_run())
        cluster.streams_to = ["pg2"]
        with pytest.raises(OutOfTime, match="pg0 is not back: no member streams to it"):
            patroni.recover(spec_of(cluster), fast_run())
        cluster.leader = "pg0"
        patroni.recover(spec_of(cluster), new_run())


def test_killed_between_handing_over_and_confirming(tmp_path: Path) -> None:
    """The next agent requests no second switchover, confirms the first, and approves."""
    with fake_patroni() as cluster, service_with_event(tmp_path) as service:
        requested, go_on = threading.Event(), threading.Event()

        def slowly(candidate: str) -> tuple[int, str]:
            requested.set()
            go_on.wait()
            return cluster.obey(candidate)

        cluster.on_switch = slowly
        agent = service.agent(STEP.format(url=cluster.urls["pg0"]))
        agent.up()
        assert requested.wait(PATIENCE_S)
        agent.kill()
        assert "approving" not in agent.kinds
        agent.up()
        looked = cluster.looks
        until(lambda: cluster.looks >= looked + 2)  # it looks, and does not ask
        go_on.set()
        until(lambda: "approved" in agent.kinds)
        assert cluster.candidates == ["pg1"]
        until(lambda: service.status is Status.STARTED)


def test_an_unconfirmed_switchover_is_not_approved(tmp_path: Path) -> None:
    """The event stays unapproved, and the log gives the reason."""
    with fake_patroni() as cluster, service_with_event(tmp_path) as service:
        cluster.on_switch = lambda _: (200, "done")
        agent = service.agent(STEP.format(url=cluster.urls["pg0"]).replace('"20s"', '"8s"'))
        agent.up()
        until(lambda: bool(agent.ended("prepare")))
        # What it saw last, eight seconds after its start, depends on the machine; the reasons have tests of their own.
        assert "no other leader was confirmed: " in agent.log
        assert "approving" not in agent.kinds
        assert service.status is Status.SCHEDULED


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "here: url is missing: write where this machine's Patroni answers"),
        ({"url": "http://x:8008"}, "here: member is missing: write this machine's name in the cluster"),
        ({"url": "x:8008", "member": "a"}, "here.url: 'x:8008' is not the address of a REST API"),
        ({"url": "http://a:b@x:8008", "member": "a"}, "is not the address of a REST API"),
        ({"url": "http://x", "member": "a", "candidate": "a"}, "here.candidate: 'a' is this machine itself"),
        ({"url": "http://x", "member": "a", "max_lag": "1MB"}, "here.max_lag: '1MB' is not a number of bytes"),
        ({"url": "http://x", "member": "a", "pasword": "x"}, "here.pasword: unknown key"),
    ],
)
def test_what_the_file_may_not_say(table: dict[str, object], message: str) -> None:
    """Where it stands, and what to write instead."""
    with pytest.raises(ConfigError) as caught:
        patroni.parse(table, "here")
    assert message in str(caught.value)
