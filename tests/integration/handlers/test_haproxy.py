"""`haproxy` against real HAProxies: their state before, during and after the event, and when they misbehave."""

import logging
import math
import re
import shutil
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forewarn.guest.clock import Time
from forewarn.guest.config import parse as parse_config
from forewarn.guest.errors import ConfigError, Interrupted, OutOfTime, StepFailed
from forewarn.guest.handlers import haproxy
from forewarn.guest.handlers.haproxy import Spec
from forewarn.guest.sockets import Deadline, ask
from forewarn.guest.steps import CHECK_NEEDS_S, Run
from tests.integration.handlers.agent_process import cancelled_run, fast_run, new_run, recorded_timeouts_s
from tests.integration.handlers.agent_with_endpoint import agent_with_endpoint
from tests.integration.handlers.proxied_pool import OpenRequest, Pool, get, pool, relay
from tests.support.fake_endpoint import StepTime, event
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def web() -> Iterator[Pool]:
    with pool() as made:
        yield made


def spec_of(*proxies: str, **more: object) -> Spec:
    return haproxy.parse({"proxies": list(proxies), "servers": ["web/web-0"], **more}, "here")


def test_drained_then_in_maintenance_and_back(web: Pool) -> None:
    """A request under way ends well, new ones go elsewhere, and maintenance begins when the last session is over."""
    proxy = web.haproxy()
    spec, run = spec_of(proxy), new_run()
    until(lambda: haproxy.check(spec) == [])
    held = OpenRequest(web.front(), web.services["web-0"])
    preparing = threading.Thread(target=haproxy.prepare, args=(spec, run))
    preparing.start()
    until(lambda: web.server_state(proxy).admin == "drain")
    assert {get(web.front()) for _ in range(4)} == {"web-1"}
    assert haproxy.verify(spec, run) is False
    assert preparing.is_alive()
    assert set(held.answers()) <= {"web-0", "web-1"}
    preparing.join(PATIENCE_S)
    assert web.server_state(proxy) == ("maint", False, 0, False)
    assert haproxy.verify(spec, run) is True
    assert run.kept == {"before": {f"web/web-0 at {proxy}": "ready"}, "unused": [], "left": {}}
    haproxy.recover(spec, run)
    assert web.server_state(proxy).usable
    assert {get(web.front()) for _ in range(4)} == {"web-0", "web-1"}
    assert haproxy.verify(spec, run) is False


def test_a_cancel_ends_the_drain(web: Pool) -> None:
    """The server never goes into maintenance, also if its last session ends just then; undoing lets requests in again."""
    proxy = web.haproxy()
    held = OpenRequest(web.front(), web.services["web-0"])

    def needed() -> bool:
        """Cancel once the server drains, and end its last session at that moment."""
        if web.server_state(proxy).admin != "drain":
            return True
        held.answers()
        return False

    run = cancelled_run(needed)
    with pytest.raises(Interrupted):
        haproxy.prepare(spec_of(proxy), run)
    assert web.server_state(proxy) == ("drain", False, 0, False)
    haproxy.recover(spec_of(proxy), run)
    assert web.server_state(proxy).usable


@pytest.mark.parametrize("before", ["maint", "drain"])
def test_what_was_out_before_stays_out(web: Pool, before: str) -> None:
    """The state an operator gave it is the one it has afterwards, also when preparing was interrupted and done twice."""
    proxy = web.haproxy()
    web.set_state(proxy, before)
    spec, run = spec_of(proxy), new_run()
    haproxy.prepare(spec, run)
    assert web.server_state(proxy).admin == "maint"
    again = new_run(**run.kept)
    haproxy.prepare(spec, again)
    haproxy.recover(spec, again)
    assert web.server_state(proxy).admin == before


def test_every_proxy_must_confirm(web: Pool) -> None:
    """A proxy that is down fails the step and is named; the others are changed all the same."""
    one, two = web.haproxy("one"), web.haproxy("two")
    spec, run = spec_of(two, one), new_run()
    web.stop("two")
    short = fast_run()
    with pytest.raises(OutOfTime, match=f"^the proxy {two} does not answer: Connection refused$"):
        haproxy.prepare(spec, short)
    run.keep(**short.kept)
    assert web.server_state(one).admin == "maint"
    with pytest.raises(StepFailed, match="does not answer"):
        haproxy.verify(spec, run)
    with pytest.raises(StepFailed, match=f"^the proxy {two} does not answer"):
        haproxy.recover(spec, fast_run(**run.kept))
    assert web.server_state(one).usable
    until(lambda: haproxy.check(spec) == [f"the proxy {two} does not answer: Connection refused"])
    preparing = threading.Thread(target=haproxy.prepare, args=(spec, run))
    preparing.start()
    until(lambda: web.server_state(one).admin == "maint")
    assert preparing.is_alive(), "it waits for the other"
    Path(two).unlink()
    web.start_haproxy("two")
    preparing.join(PATIENCE_S)
    assert haproxy.verify(spec, run) is True
    web.set_state(two, "ready")
    assert haproxy.verify(spec, run) is False
    haproxy.recover(spec, run)
    assert web.server_state(one).usable
    assert web.server_state(two).usable


def test_the_last_one_does_not_leave(web: Pool) -> None:
    """With too few others up it waits for them, and fails at the end of its time with the server as it was."""
    proxy = web.haproxy()
    web.set_state(proxy, "maint", "web-1")
    with pytest.raises(OutOfTime, match=f"^too few others of its backend are up: web/web-0 at {proxy}$"):
        haproxy.prepare(spec_of(proxy), fast_run())
    assert web.server_state(proxy).usable
    threading.Timer(0.5, web.set_state, (proxy, "ready", "web-1")).start()
    run = new_run()
    haproxy.prepare(spec_of(proxy), run)
    web.set_state(proxy, "maint", "web-1")
    haproxy.prepare(spec_of(proxy), run)  # it is out already: nothing is lost by that
    haproxy.recover(spec_of(proxy), run)
    haproxy.prepare(spec_of(proxy, keep=0), run)
    assert web.server_state(proxy).admin == "maint"


def test_sessions_that_do_not_end(web: Pool, caplog: pytest.LogCaptureFixture) -> None:
    """Open sessions fail the step at the end of its time; with `drain_for` they are left behind, which is logged and recorded."""
    proxy = web.haproxy()
    held = OpenRequest(web.front(), web.services["web-0"])
    run = fast_run()
    with pytest.raises(OutOfTime, match=f"^sessions are still open: web/web-0 at {proxy}$"):
        haproxy.prepare(spec_of(proxy), run)
    assert web.server_state(proxy).admin == "drain"
    patient = new_run(**run.kept)
    with caplog.at_level(logging.WARNING):
        haproxy.prepare(spec_of(proxy, drain_for="1s"), patient)
    assert "1 session(s) are left behind after 1 s" in caplog.text
    assert patient.kept["left"] == {f"web/web-0 at {proxy}": 1}
    assert web.server_state(proxy) == ("maint", False, 1, False)
    assert haproxy.verify(spec_of(proxy), patient) is True
    for left in ({}, {f"web/web-0 at {proxy}.other": 1}):
        assert haproxy.verify(spec_of(proxy), new_run(left=left)) is False, "they were left behind elsewhere, not here"
    held.answers()
    haproxy.recover(spec_of(proxy), patient)
    assert web.server_state(proxy).usable


def test_draining_ends_before_the_time_does(web: Pool, caplog: pytest.LogCaptureFixture) -> None:
    """Where `drain_for` is longer than the time there is, sessions are left behind while it can still leave the pool."""
    proxy = web.haproxy()
    held = OpenRequest(web.front(), web.services["web-0"])
    run = new_run(share_s=20.0, time=StepTime(rate=10))
    with caplog.at_level(logging.WARNING):
        haproxy.prepare(spec_of(proxy, drain_for="90s"), run)
    assert "1 session(s) are left behind after 15 s" in caplog.text
    assert web.server_state(proxy).admin == "maint"
    assert haproxy.verify(spec_of(proxy), run) is True
    held.answers()


@pytest.mark.parametrize("phase", [haproxy.prepare, haproxy.recover])
@pytest.mark.parametrize("fault", ["hang", "garble", "nothing"])
def test_a_proxy_that_fails_once_is_asked_again(web: Pool, phase: Callable[[Spec, Run], None], fault: str) -> None:
    """A proxy that does not answer, or not sensibly, is asked again while there is time."""
    proxy = web.haproxy()
    with relay(proxy) as between:
        spec, run = spec_of(between.address), new_run(hangs=fault == "hang")
        if phase is haproxy.recover:
            haproxy.prepare(spec, run)
        between.mode = fault
        threading.Timer(1.0, between.heal).start()
        phase(spec, run)
        assert web.server_state(proxy).admin == ("maint" if phase is haproxy.prepare else "ready")


def test_a_hanging_proxy_does_not_delay_the_others(web: Pool) -> None:
    """It is asked once for all its servers, after the proxies that answer."""
    one = web.haproxy()
    with relay(one) as between:
        between.mode = "hang"
        servers = ["web/web-0", "web/web-1"]
        spec = haproxy.parse({"proxies": [between.address, one], "servers": servers, "keep": 0}, "here")
        run = new_run(share_s=12.0, time=Time())
        with pytest.raises(OutOfTime, match=f"^the proxy {between.address} does not answer: timed out$"):
            haproxy.prepare(spec, run)
        assert run.left_s() < CHECK_NEEDS_S, "it was given all of the time"
    assert {web.server_state(one, name).admin for name in ("web-0", "web-1")} == {"maint"}


class LongPauses(StepTime):
    """Time that is over after the first pause, as on a machine that stood still during it."""

    def sleep(self, seconds: float) -> None:
        self.move(math.inf)


def test_a_proxy_that_cannot_be_asked_again_keeps_its_reason(web: Pool) -> None:
    """The time is over before the next attempt: the reason is still that the proxy did not answer."""
    proxy = web.haproxy()
    web.stop()
    with pytest.raises(OutOfTime, match=f"^the proxy {proxy} does not answer: Connection refused$"):
        haproxy.prepare(spec_of(proxy), new_run(time=LongPauses()))


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ("web-0", "sessions are still open: web/web-0 at {proxy}"),
        ("web-9", "web/web-9 at {proxy}: there is no such server; the backend has web-0, web-1"),
    ],
)
def test_a_proxy_that_answers_again_does_not_keep_its_reason(web: Pool, first: str, reason: str) -> None:
    """When the time is over before its second server, the reason is not that the proxy did not answer before."""
    proxy = web.haproxy()
    held = OpenRequest(web.front(), web.services["web-0"])
    with relay(proxy) as between:
        between.mode = "nothing"
        run = Run(
            step="one", phase="prepare", event=event(), share_s=20.0, time=StepTime(), poll=between.heal,
            limit_s=lambda: 0.0 if between.passed.is_set() else None,
        )  # fmt: skip
        servers = [f"web/{first}", "web/web-1"]
        spec = haproxy.parse({"proxies": [between.address], "servers": servers, "keep": 0}, "here")
        reason = reason.format(proxy=between.address)
        with pytest.raises(OutOfTime, match=f"^{reason}; it ran out of time: web/web-1 at {between.address}$"):
            haproxy.prepare(spec, run)
    held.answers()


def test_a_server_without_requests_before_needs_none_after(web: Pool) -> None:
    """With the weight 0 it is back when it is as it was."""
    proxy = web.haproxy()
    ask(proxy, "set server web/web-0 weight 0", Deadline(PATIENCE_S))
    spec, run = spec_of(proxy), new_run()
    haproxy.prepare(spec, run)
    assert web.server_state(proxy).admin == "maint"
    haproxy.recover(spec, run)
    assert web.server_state(proxy).admin == "ready"


@pytest.mark.parametrize("mode", ["hang", "trickle"])
def test_a_proxy_that_hangs_or_trickles_is_left_in_time(web: Pool, mode: str) -> None:
    """However it spreads its bytes, the step is over with its time."""
    proxy = web.haproxy()
    with relay(proxy) as between:
        between.mode = mode
        for phase in (haproxy.prepare, haproxy.verify, haproxy.recover):
            with recorded_timeouts_s() as given, pytest.raises(StepFailed) as failed:
                phase(spec_of(between.address), new_run(share_s=0.5, time=Time(), before={}))
            assert given or "it ran out of time" in str(failed.value)
            assert all(each_s <= 0.5 for each_s in given)
    assert web.server_state(proxy).usable


@pytest.mark.parametrize("scur", ["", "many"])
def test_sessions_that_cannot_be_read_are_not_none(web: Pool, scur: str) -> None:
    """A server that `show stat` lacks, or a count that is none, is not a server without sessions."""
    proxy = web.haproxy()
    with relay(proxy) as between:
        between.scur = scur
        with pytest.raises(StepFailed, match=f"^the proxy {between.address} does not answer sensibly$"):
            haproxy.prepare(spec_of(between.address), fast_run())
    assert web.server_state(proxy).admin == "ready"


class AlmostOver(StepTime):
    """Time of which the first pause takes nearly the whole step."""

    def sleep(self, seconds: float) -> None:
        self.move(seconds if self.monotonic() else 19.5)


def test_an_answer_that_the_end_of_the_step_cuts_off_hides_no_open_session(web: Pool) -> None:
    """The sessions that were open at the check before are the reason, and not the answer that did not come in time."""
    proxy = web.haproxy()
    held = OpenRequest(web.front(), web.services["web-0"])
    web.set_state(proxy, "drain")
    with relay(proxy) as between:
        between.hang_at = "show stat"
        reason = f"sessions are still open: web/web-0 at {between.address}"
        with pytest.raises(OutOfTime, match=f"^{reason}$"):
            haproxy.prepare(spec_of(between.address), new_run(time=AlmostOver(), hangs=True))
        assert between.mode == "hang"  # whether or not the next request was sent in time
    held.answers()


def test_an_answer_that_the_end_of_the_step_cuts_off_hides_no_reason(web: Pool) -> None:
    """What the proxy answered before says more than that the last answer did not come in time."""
    proxy = web.haproxy()
    with relay(proxy) as between:
        between.scur, between.hang_at = "many", "show stat"
        with pytest.raises(StepFailed, match=f"^the proxy {between.address} does not answer sensibly$"):
            haproxy.prepare(spec_of(between.address), new_run(time=AlmostOver(), hangs=True))
        assert between.mode == "hang"  # whether or not the next request was sent in time


def test_a_proxy_that_lies_is_not_believed(web: Pool) -> None:
    """The step fails when the proxy confirms a change that it did not make, in prepare and in recover."""
    proxy = web.haproxy()
    with relay(proxy) as between:
        spec, run = spec_of(between.address), new_run()
        between.mode = "lie"
        with pytest.raises(StepFailed, match=f"^web/web-0 at {between.address} did not become drain$"):
            haproxy.prepare(spec, run)
        assert haproxy.verify(spec, run) is False
        between.mode = "pass"
        haproxy.prepare(spec, run)
        between.mode = "lie"
        with pytest.raises(StepFailed, match="did not become ready"):
            haproxy.recover(spec, run)


def test_a_missing_permission_or_server_is_reported(web: Pool) -> None:
    """The reason contains HAProxy's own answer."""
    proxy = web.haproxy(level="operator")
    assert haproxy.check(spec_of(proxy)) == [
        f"the proxy {proxy} does not allow changes: its socket needs `level admin`"
    ]
    with pytest.raises(StepFailed, match="did not become drain: Permission denied"):
        haproxy.prepare(spec_of(proxy), new_run())
    no_server = haproxy.parse({"proxies": [proxy], "servers": ["web/web-9"]}, "here")
    assert haproxy.check(no_server)[1:] == [
        f"web/web-9 at {proxy}: there is no such server; the backend has web-0, web-1"
    ]
    no_backend = haproxy.parse({"proxies": [proxy], "servers": ["nowhere/web-0"]}, "here")
    assert haproxy.check(no_backend)[1:] == [f"the proxy {proxy} says of the backend nowhere: Can't find backend."]


def test_back_only_when_healthy(web: Pool, tmp_path: Path) -> None:
    """The server stays in maintenance until `[health]` passes, and the reason says so."""
    proxy = web.haproxy()
    spec, run = spec_of(proxy), new_run()
    haproxy.prepare(spec, run)
    green = tmp_path / "green"
    health = ("test", "-e", str(green))
    with pytest.raises(OutOfTime, match="the machine is not healthy, as test says"):
        haproxy.recover(spec, fast_run(health, **run.kept))
    assert web.server_state(proxy).admin == "maint"
    threading.Timer(0.7, green.touch).start()
    haproxy.recover(spec, new_run(health=health, **run.kept))
    assert green.exists()
    assert web.server_state(proxy).usable


def test_a_ready_server_must_be_up(web: Pool) -> None:
    """A server that is ready but gets no requests does not count as back."""
    proxy = web.haproxy()
    spec, run = spec_of(proxy), new_run()
    haproxy.prepare(spec, run)
    ask(proxy, "set server web/web-0 weight 0", Deadline(PATIENCE_S))
    with pytest.raises(OutOfTime, match=f"^not up again: web/web-0 at {proxy}$"):
        haproxy.recover(spec, fast_run(**run.kept))
    ask(proxy, "set server web/web-0 weight 100%", Deadline(PATIENCE_S))
    haproxy.recover(spec, run)


def test_a_server_that_the_agent_did_not_take_out_is_not_put_in(web: Pool) -> None:
    """Without a record the step fails with a reason; if the server is in, nothing is to do."""
    proxy = web.haproxy()
    haproxy.recover(spec_of(proxy), new_run())
    web.set_state(proxy, "maint")
    with pytest.raises(
        StepFailed, match="is not ready, and this agent did not change it: set it to ready if it should be"
    ):
        haproxy.recover(spec_of(proxy), new_run())
    assert web.server_state(proxy).admin == "maint"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "here.proxies: write a list of texts"),
        ({"proxies": ["/a"], "servers": ["web"]}, "here.servers: 'web': write it like backend/server"),
        ({"proxies": ["/a"], "servers": ["web/a; shutdown"]}, "write it like backend/server"),
        ({"proxies": ["nowhere"], "servers": ["a/b"]}, "here.proxies: 'nowhere' is not an address: write it like"),
        ({"proxies": ["a:99999"], "servers": ["a/b"]}, "here.proxies: 'a:99999' is not an address"),
        ({"proxies": ["/a"], "servers": ["a/b"], "keep": -1}, "here.keep: -1 is not a number from 0 to 10000"),
        ({"proxies": ["/a"], "servers": ["a/b"], "drain_for": 5}, "here.drain_for: 5 is not a duration"),
        ({"proxies": ["/a"] * 65, "servers": ["a/b"]}, "more than 64 servers at all proxies together"),
        (
            {"proxies": ["/a"], "server": ["a/b"]},
            "here.server: unknown key; did you mean servers? The keys here are proxies, servers",
        ),
    ],
)
def test_what_the_configuration_may_not_say(table: dict[str, object], message: str) -> None:
    """With where it stands and what to write instead."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        haproxy.parse(table, "here")


# -- with a real agent, which is killed

STEP = """
[[steps]]
name = "leave the pool"
required = true
timeout = "{timeout}"
haproxy = {{ proxies = {proxies}, servers = ["web/web-0"] }}
"""


def step(*proxies: str, timeout: str = "30s") -> str:
    return STEP.format(proxies=list(proxies), timeout=timeout)


@pytest.mark.parametrize("cancelled", [False, True])
def test_killed_between_preparing_and_verifying(web: Pool, tmp_path: Path, cancelled: bool) -> None:
    """The next agent verifies and approves; or finds the event gone and puts the machine back."""
    proxy = web.haproxy()
    with relay(proxy) as between:
        between.hang_at = "state maint"
        with agent_with_endpoint(tmp_path, step(between.address), lambda: web.server_state(proxy).admin == "maint") as (
            platform,
            agent,
        ):
            platform.announce()
            assert between.hung.wait(PATIENCE_S), agent.log
            agent.kill()
            assert web.server_state(proxy).admin == "maint"
            assert platform.approvals == []
            between.mode = "pass"
            if cancelled:
                platform.end()
            agent.up()
            if not cancelled:
                agent.wait_until(lambda: platform.approvals == [True])
                platform.start()
                agent.wait_until(lambda: "started" in agent.kinds)
                platform.end()
            agent.wait_until_back()
            assert platform.approvals == ([] if cancelled else [True])
        assert web.server_state(proxy).usable


def test_killed_when_one_of_two_proxies_has_it_back(web: Pool, tmp_path: Path) -> None:
    """Half undone is not undone: the next agent sees to the other proxy."""
    one, two = web.haproxy("one"), web.haproxy("two")
    with relay(two) as between:
        with agent_with_endpoint(tmp_path, step(one, between.address), lambda: True) as (platform, agent):
            platform.announce()
            agent.wait_until(lambda: bool(platform.approvals))
            between.hang_at = "show stat"  # when it is verified before it is undone
            platform.end()
            agent.wait_until(lambda: web.server_state(one).admin == "ready")
            agent.kill()
            assert web.server_state(two).admin == "maint"
            between.mode = "pass"
            agent.up()
            agent.wait_until_back()
        assert web.server_state(one).usable
        assert web.server_state(two).usable


@pytest.mark.parametrize("fault", ["down", "hang", "lie"])
def test_a_target_at_fault_means_no_approval(web: Pool, tmp_path: Path, fault: str) -> None:
    """The event is never approved unprepared; while recover fails, the log says so, until it succeeds."""
    proxy = web.haproxy()
    with relay(proxy) as between:
        if fault == "down":
            web.stop()
        else:
            between.mode = fault
        with agent_with_endpoint(tmp_path, step(between.address, timeout="1s"), lambda: False) as (platform, agent):
            platform.announce()
            agent.wait_until(lambda: agent.outcomes("prepare")[:1] == [False])
            platform.end()
            if fault != "lie":  # what lied was never out
                agent.wait_until(lambda: "THE MACHINE IS NOT BACK IN SERVICE" in agent.log)
            if fault == "down":
                Path(proxy).unlink()
                web.haproxy()
            between.mode = "pass"
            agent.kill()
            agent.up()  # at once, and not after a pause
            agent.wait_until_back()
            assert platform.approvals == []
        assert web.server_state(proxy).usable


def test_a_proxy_restarted_before_the_approval_delays_it(web: Pool, tmp_path: Path) -> None:
    """The proxy has lost its state: the machine is taken out again, then the event is approved."""
    proxy = web.haproxy()
    slow = f"while [ ! -e {tmp_path}/go ]; do touch {tmp_path}/waiting; sleep 0.1; done"
    second = f"""[[steps]]\nname = "slow"\ncommand = {{ prepare = ["/bin/sh", "-c", "{slow}"] }}\n"""
    with agent_with_endpoint(tmp_path, step(proxy) + second, lambda: web.server_state(proxy).admin == "maint") as (
        platform,
        agent,
    ):
        platform.announce()
        agent.wait_until((tmp_path / "waiting").exists)
        web.stop()
        Path(proxy).unlink()
        web.haproxy()
        assert web.server_state(proxy).usable
        (tmp_path / "go").touch()
        agent.wait_until(lambda: bool(platform.approvals))
        assert platform.approvals == [True]
        assert "lapsed" in agent.kinds
        platform.end()
        agent.wait_until_back()
    assert web.server_state(proxy).usable


def test_a_lost_journal_is_reported(web: Pool, tmp_path: Path) -> None:
    """A machine that is still out of the pool does not count as back in service."""
    proxy = web.haproxy()
    with agent_with_endpoint(tmp_path, step(proxy), lambda: True) as (platform, agent):
        platform.announce()
        agent.wait_until(lambda: bool(platform.approvals))
        agent.kill()
        shutil.rmtree(tmp_path / "state")
        (tmp_path / "boot").write_text("boot-2")
        platform.start()
        agent.up()
        agent.wait_until(lambda: "started" in agent.kinds)
        platform.end()
        agent.wait_until(lambda: "THE MACHINE IS NOT BACK IN SERVICE" in agent.log)
        assert "is not ready, and this agent did not change it" in agent.log
        assert web.server_state(proxy).admin == "maint"
        web.set_state(proxy, "ready")
        agent.wait_until_back()


def test_the_worked_example(web: Pool, tmp_path: Path) -> None:
    """The page's own agent.toml, with this machine's sockets in it, takes the machine out and brings it back."""
    page = (ROOT / "docs/guide/handlers/haproxy.md").read_text("utf-8")
    (toml,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (printed,) = parse_config(tomllib.loads(toml), {}).plan.steps
    assert set(printed.spec._fields) == set(tomllib.loads(toml)["steps"][0]["haproxy"])
    one, two = web.haproxy("one"), web.haproxy("two")
    ours = toml.replace(printed.spec.proxies[0], one).replace(printed.spec.proxies[1], two)
    ours = ours.replace(str(tomllib.loads(toml)["health"]["command"]).replace("'", '"'), '["true"]')
    with agent_with_endpoint(
        tmp_path, ours, lambda: [web.server_state(proxy).admin for proxy in (one, two)] == ["maint"] * 2
    ) as (
        platform,
        agent,
    ):
        platform.announce()
        agent.wait_until(lambda: platform.approvals == [True])
        platform.start()
        agent.wait_until(lambda: "started" in agent.kinds)
        platform.end()
        agent.wait_until_back()
    assert web.server_state(one).usable
    assert web.server_state(two).usable
