"""`nginx` against a real nginx: its include file, its generations of workers, its answers, and when it misbehaves."""

import errno
import logging
import os
import re
import signal
import stat
import subprocess
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forewarn.guest.clock import Time
from forewarn.guest.config import parse as parse_config
from forewarn.guest.errors import ConfigError, OutOfTime, StepFailed
from forewarn.guest.handlers import nginx
from forewarn.guest.handlers.nginx import LEAVING, WORKER, Spec
from forewarn.guest.handlers.nginx_include import MAX_BYTES, Upstream, write
from forewarn.guest.processes import command_line
from forewarn.guest.steps import Run
from tests.integration.handlers.agent_process import fast_run, new_run
from tests.integration.handlers.agent_with_endpoint import agent_with_endpoint
from tests.integration.handlers.proxied_pool import OpenRequest, Pool, get, pool
from tests.support.fake_endpoint import StepTime, event
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def web() -> Iterator[Pool]:
    with pool() as made:
        made.nginx()
        yield made


def table_of(web: Pool, **more: object) -> dict[str, object]:
    return {
        "file": str(web.include),
        "servers": [f"unix:{web.folder}/web-0"],
        "pid_file": f"{web.folder}/nginx.pid",
        "test": [*web.nginx_command, "-t", "-q"],
        "reload": [*web.nginx_command, "-s", "reload"],
        **more,
    }


def spec_of(web: Pool, **more: object) -> Spec:
    return nginx.parse(table_of(web, **more), "here")


class DrainTime(StepTime):
    """Time that passes fast while old workers finish their connections, and before that as slowly as nginx reloads."""

    def __init__(self, web: Pool) -> None:
        super().__init__()
        self._web, self._old = web, set(web.nginx_pids()[1:])

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self._reloaded():
            self.move(40 * seconds)

    def _reloaded(self) -> bool:
        """Whether there is a new worker, and no old one accepts connections."""
        workers = {pid: command_line(pid) for pid in self._web.nginx_pids()[1:]}
        leaving = all(LEAVING in title for pid, title in workers.items() if pid in self._old)
        return leaving and any(pid not in self._old and WORKER in title for pid, title in workers.items())


def draining_run(web: Pool) -> Run:
    """Return a Run of a minute, for connections that do not end."""
    return new_run(PATIENCE_S, time=DrainTime(web))


def answering_servers(web: Pool) -> set[str]:
    return {get(web.folder / "nginx.front") for _ in range(6)}


def test_down_in_force_drained_and_back_byte_for_byte(web: Pool) -> None:
    """A request under way ends well, new ones go elsewhere; prepared when the last old worker is gone."""
    web.include.chmod(0o640)
    before, was = web.include.read_bytes(), web.include.stat()
    spec, run = spec_of(web), new_run()
    assert nginx.check(spec) == []
    assert nginx.verify(spec, run) is False
    held = OpenRequest(web.folder / "nginx.front", web.services["web-0"])
    preparing = threading.Thread(target=nginx.prepare, args=(spec, run))
    preparing.start()
    until(lambda: answering_servers(web) == {"web-1"})
    assert nginx.verify(spec, run) is False
    assert preparing.is_alive()
    assert set(held.answers()) <= {"web-0", "web-1"}
    preparing.join(PATIENCE_S)
    assert nginx.verify(spec, run) is True
    assert f"server unix:{web.folder}/web-0 max_fails=0 down;\n" in web.include.read_text()
    nginx.recover(spec, run)
    assert web.include.read_bytes() == before
    assert stat.S_IMODE(web.include.stat().st_mode) == 0o640
    assert (web.include.stat().st_uid, web.include.stat().st_gid) == (was.st_uid, was.st_gid)
    assert answering_servers(web) == {"web-0", "web-1"}
    assert nginx.verify(spec, run) is False
    assert sorted(path.name for path in web.folder.glob(".*")) == []


def test_what_was_down_before_stays_down(web: Pool) -> None:
    """Nothing is changed, on the way out or back."""
    marked = web.include.read_text().replace("web-0 ", "web-0 down ").encode()
    web.include.write_bytes(marked)
    spec, run = spec_of(web), new_run()
    nginx.prepare(spec, run)
    assert nginx.verify(spec, run) is True
    nginx.recover(spec, run)
    assert web.include.read_bytes() == marked


def test_the_last_one_does_not_leave(web: Pool) -> None:
    """Where no other server of the file is up; unless `keep` is 0."""
    text = web.include.read_text().replace("web-1 ", "web-1 down ")
    web.include.write_text(text)
    with pytest.raises(StepFailed, match=r"^fewer than 1 other servers of .* are up"):
        nginx.prepare(spec_of(web), new_run())
    assert web.include.read_text() == text
    nginx.prepare(spec_of(web, keep=0), new_run())
    assert answering_servers(web) == {"502"}


def test_connections_that_do_not_end(web: Pool, caplog: pytest.LogCaptureFixture) -> None:
    """Open connections fail the step when its time is over; with `drain_for` they are left behind, logged and recorded."""
    held = OpenRequest(web.folder / "nginx.front", web.services["web-0"])
    run = draining_run(web)
    with pytest.raises(OutOfTime, match=r"^connections of [12] old worker\(s\) of nginx are still open$"):
        nginx.prepare(spec_of(web), run)
    assert nginx.verify(spec_of(web), new_run(**run.kept)) is False
    patient = new_run(**run.kept)
    with caplog.at_level(logging.WARNING):
        nginx.prepare(spec_of(web, drain_for="1s"), patient)
    assert "are left behind after 1 s" in caplog.text
    assert nginx.verify(spec_of(web), patient) is True
    nginx.recover(spec_of(web), patient)
    assert answering_servers(web) == {"web-0", "web-1"}
    held.answers()


def test_draining_ends_before_the_time_does(web: Pool, caplog: pytest.LogCaptureFixture) -> None:
    """Where `drain_for` is longer than the time there is, connections are left behind in time to be ready."""
    held = OpenRequest(web.folder / "nginx.front", web.services["web-0"])
    run = draining_run(web)
    with caplog.at_level(logging.WARNING):
        nginx.prepare(spec_of(web, drain_for="90s"), run)
    assert "are left behind after" in caplog.text
    assert nginx.verify(spec_of(web), run) is True
    held.answers()


def test_a_reload_that_does_nothing_fails(web: Pool) -> None:
    """The command succeeded, but the workers are the old ones, so the reload is not in force."""
    run = fast_run()
    with pytest.raises(OutOfTime, match=r"^nginx did not reload after the reload command$"):
        nginx.prepare(spec_of(web, reload=["true"]), run)
    assert nginx.verify(spec_of(web), new_run(**run.kept)) is False
    nginx.recover(spec_of(web), new_run(**run.kept))
    assert b"down" not in web.include.read_bytes()


def test_what_nginx_will_not_have_is_taken_back(web: Pool) -> None:
    """A test that fails leaves the file as it was, and nothing is reloaded."""
    before, pids = web.include.read_bytes(), web.nginx_pids()
    with pytest.raises(StepFailed, match=r"^false ended with 1; .*/web.conf is as before$"):
        nginx.prepare(spec_of(web, test=["false"]), new_run())
    assert web.include.read_bytes() == before
    assert web.nginx_pids() == pids


@pytest.mark.parametrize("key", ["test", "reload"])
def test_commands_that_hang_are_ended_in_time(web: Pool, tmp_path: Path, key: str) -> None:
    """The step is over with its time, which passes only while this command hangs."""
    begun, clock = tmp_path / "begun", StepTime()
    hangs = ["/bin/sh", "-c", f"touch {begun}; exec sleep 600"]
    run = Run(
        step="one", phase="prepare", event=event(), share_s=10, time=clock,
        poll=lambda: clock.move(10) if begun.exists() else None,
    )  # fmt: skip
    with pytest.raises(StepFailed, match="sh did not end in time and was ended"):
        nginx.prepare(spec_of(web, **{key: hangs}), run)


def test_nginx_is_down(web: Pool) -> None:
    """It cannot be seen in force, so it has failed; back again, what was written is undone."""
    before = web.include.read_bytes()
    spec, run = spec_of(web), new_run()
    for pid in web.nginx_pids():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not web.nginx_pids())
    (web.folder / "nginx.front").unlink()
    with pytest.raises(StepFailed, match=r"^nginx is not running: .*/nginx.pid names no process with workers$"):
        nginx.prepare(spec, run)
    assert any("nginx is not running" in each for each in nginx.check(spec))
    with pytest.raises(StepFailed, match="nginx is not running"):
        nginx.recover(spec, run)
    assert web.include.read_bytes() == before
    web.nginx()
    nginx.recover(spec, run)
    assert answering_servers(web) == {"web-0", "web-1"}


def test_a_file_changed_by_somebody_else_is_not_overwritten(web: Pool) -> None:
    """While the server is still down the step fails with a reason; without `down` it goes on."""
    spec, run = spec_of(web), new_run()
    nginx.prepare(spec, run)
    web.include.write_text(web.include.read_text() + "# theirs\n")
    with pytest.raises(StepFailed, match="was changed since by another person or program: remove `down` from it"):
        nginx.recover(spec, run)
    theirs = web.include.read_text().replace(" down;", ";")
    web.include.write_text(theirs)
    nginx.recover(spec, run)
    assert web.include.read_text() == theirs
    assert answering_servers(web) == {"web-0", "web-1"}


def test_a_server_that_the_agent_did_not_mark_stays_down(web: Pool) -> None:
    """Without a record the step fails with a reason."""
    nginx.recover(spec_of(web), new_run())
    web.include.write_text(web.include.read_text().replace("web-0 ", "web-0 down "))
    with pytest.raises(StepFailed, match="and this agent did not do it: check whether it should be"):
        nginx.recover(spec_of(web), new_run())


def test_back_only_when_healthy(web: Pool) -> None:
    """Until `[health]` is green it stays down."""
    spec, run = spec_of(web), new_run()
    nginx.prepare(spec, run)
    with pytest.raises(OutOfTime, match="the machine is not healthy"):
        nginx.recover(spec, fast_run(("false",), **run.kept))
    assert answering_servers(web) == {"web-1"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("server a;\nserver b;", "server a down;\nserver b;"),
        ("  server a weight=2 ; # first\nserver b;", "  server a weight=2 down; # first\nserver b;"),
        ("server a down;\nserver a backup;\n", "server a down;\nserver a backup down;\n"),
        ("#server a;\n\tserver\ta;\r\nserver ab;\udcff", "#server a;\n\tserver\ta down;\r\nserver ab;\udcff"),
    ],
)
def test_which_lines_are_marked(before: str, after: str) -> None:
    """Those of the server, once each, and nothing else in the file."""
    assert Upstream(before).with_down(("a",)).text == after
    assert not Upstream(before).is_down(("a",))
    assert Upstream(after).is_down(("a",))
    assert Upstream(after).with_down(("a",)).text == after


def test_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk: it is as it was, and nothing lies about beside it."""
    file = tmp_path / "web.conf"
    file.write_text("server a;\n")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StepFailed, match=r"web.conf cannot be written: No space left on device$"):
        write(str(file), Upstream("server a down;\n"))
    assert file.read_text() == "server a;\n"
    assert [path.name for path in tmp_path.iterdir()] == ["web.conf"]


def test_an_unusable_include_file(web: Pool) -> None:
    """`check` reports a missing or too large file and a missing line, and nothing is changed."""
    other = spec_of(web, servers=["10.0.0.9:80"])
    assert nginx.check(other) == ["the include file has no line `server 10.0.0.9:80 …;`"]
    gone = spec_of(web, file="/nowhere/web.conf")
    assert nginx.check(gone) == ["/nowhere/web.conf cannot be read: No such file or directory"]
    web.include.write_bytes(b"#" * (MAX_BYTES + 1))
    assert "is larger than" in nginx.check(spec_of(web))[0]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "here: file is missing: write the include file"),
        ({"file": "/a"}, "here: servers is missing"),
        ({"file": "/a", "servers": ["b"], "keep": True}, "here.keep: True is not a number"),
        ({"file": "/a", "servers": ["b"], "reload": "nginx"}, "here.reload: write a list of texts"),
        ({"file": "/a", "servers": ["b"], "pid": "/c"}, "here.pid: unknown key"),
    ],
)
def test_what_the_configuration_may_not_say(table: dict[str, object], message: str) -> None:
    """With where it stands and what to write instead."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        nginx.parse(table, "here")


# -- a made-up nginx, whose processes get their titles when the test says so

MASTER = "nginx: master process nginx -c nginx.conf"


class MadeUp:
    """A master, which is this process, and its children. A child bears the master's title until it is given its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._children = folder, list[subprocess.Popen[bytes]]()
        (folder / "pid").write_text(f"{os.getpid()}\n")
        (folder / "web.conf").write_text("server a;\nserver b;\n")

    @property
    def spec(self) -> Spec:
        ours = {"file": str(self._folder / "web.conf"), "servers": ["a"], "pid_file": str(self._folder / "pid")}
        return nginx.parse({**ours, "test": ["true"], "reload": ["true"]}, "here")

    def fork(self, then: str = 'read -r title && exec -a "$title" sleep 600') -> "subprocess.Popen[bytes]":
        child = subprocess.Popen(
            [MASTER, "-c", then], executable="/bin/bash", stdin=subprocess.PIPE, start_new_session=True
        )
        self._children.append(child)
        until(lambda: command_line(child.pid).startswith(MASTER))
        return child

    def worker(self) -> "subprocess.Popen[bytes]":
        """One that has its title."""
        child = self.fork()
        self.entitle(child)
        return child

    @staticmethod
    def entitle(child: "subprocess.Popen[bytes]", title: str = "nginx: worker process") -> None:
        assert child.stdin is not None
        with child.stdin as stdin:
            stdin.write(f"{title}\n".encode())
        until(lambda: command_line(child.pid).startswith(title))

    @staticmethod
    def end(child: "subprocess.Popen[bytes]") -> None:
        child.kill()
        child.wait()

    def close(self) -> None:
        for child in self._children:
            if child.poll() is None:  # else its pid may be another process's by now
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


@pytest.fixture
def made_up(tmp_path: Path) -> Iterator[MadeUp]:
    made = MadeUp(tmp_path)
    yield made
    made.close()


class ScriptedTransport(Time):
    """With every pause of a step the next thing happens; a pause takes no time but on this clock."""

    def __init__(self, *happens: Callable[[], object]) -> None:
        self._passed_s, self._happens = 0.0, list(happens)

    def monotonic(self) -> float:
        return self._passed_s

    def sleep(self, seconds: float) -> None:
        self._passed_s += seconds
        if self._happens:
            self._happens.pop(0)()


def scripted(*happens: Callable[[], object]) -> Run:
    return Run(step="one", phase="prepare", event=event(NotBefore="soon"), share_s=2, time=ScriptedTransport(*happens))


def test_a_new_worker_that_has_no_title_yet(made_up: MadeUp) -> None:
    """All the old workers are gone and the new one is not named yet: that is a reload under way, not an nginx that is down."""
    old, new = made_up.worker(), list[subprocess.Popen[bytes]]()
    seen: list[bool] = []

    def reloaded() -> None:
        new.append(made_up.fork())
        made_up.end(old)

    def still_not_in_force() -> None:
        seen.append(nginx.verify(made_up.spec, run))
        made_up.entitle(new[0])

    run = scripted(reloaded, still_not_in_force)
    nginx.prepare(made_up.spec, run)
    assert seen == [False]
    assert nginx.verify(made_up.spec, run) is True
    assert nginx.check(made_up.spec) == []


def test_a_moment_without_any_worker_to_be_seen(made_up: MadeUp) -> None:
    """The old workers are gone, the new ones not there yet: while the master lives that is no nginx that is down."""
    old, seen = made_up.worker(), list[bool]()

    def still_not_in_force() -> None:
        seen.append(nginx.verify(made_up.spec, run))
        made_up.worker()

    run = scripted(lambda: made_up.end(old), still_not_in_force)
    nginx.prepare(made_up.spec, run)
    assert seen == [False]
    assert nginx.verify(made_up.spec, run) is True


def test_workers_that_come_up_late(made_up: MadeUp) -> None:
    """The agent does not reload before there is a worker to replace."""
    old = list[subprocess.Popen[bytes]]()
    run = scripted(lambda: old.append(made_up.worker()), made_up.worker, lambda: made_up.end(old[0]))
    nginx.prepare(made_up.spec, run)
    assert [pid for pid, _ in run.kept["workers"]] == [old[0].pid]


def test_an_old_worker_that_has_no_title_yet(made_up: MadeUp) -> None:
    """It belongs to the old generation: while it works, the reload is not in force."""
    first, second = made_up.worker(), made_up.fork()

    def named_late() -> None:
        made_up.entitle(second)
        made_up.end(first)

    with pytest.raises(OutOfTime, match=r"^nginx did not reload after the reload command$"):
        nginx.prepare(made_up.spec, scripted(named_late))


def test_processes_that_are_not_workers(made_up: MadeUp) -> None:
    """The new master of an upgrade and the cache processes are not workers."""
    made_up.fork("sleep 600 & read -r title")
    made_up.entitle(made_up.fork(), "nginx: cache manager process")
    upgraded = r"^nginx is not running: .*/pid names no process with workers$"
    until(lambda: bool(nginx.check(made_up.spec)))
    with pytest.raises(StepFailed, match=upgraded):
        nginx.prepare(made_up.spec, scripted())
    made_up.fork()
    assert nginx.check(made_up.spec) == []


# -- with a real agent, which is killed


def step(web: Pool, **more: object) -> str:
    lines = [f"{key} = {value!r}" for key, value in table_of(web, **more).items()]
    return '[[steps]]\nname = "leave the pool"\nrequired = true\ntimeout = "10s"\n[steps.nginx]\n' + "\n".join(lines)


@pytest.mark.parametrize("cancelled", [False, True])
def test_killed_between_preparing_and_verifying(web: Pool, tmp_path: Path, cancelled: bool) -> None:
    """The next agent waits for the reload's end and verifies; or finds the event gone and puts the machine back."""
    before = web.include.read_bytes()
    script = tmp_path / "reload"
    reload = f"{' '.join(web.nginx_command)} -s reload; touch {tmp_path}/reloaded"
    script.write_text(f"#!/bin/sh\n{reload}; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done\n")
    script.chmod(0o700)
    ready = lambda: answering_servers(web) == {"web-1"}  # noqa: E731
    with agent_with_endpoint(tmp_path, step(web, reload=[str(script)]), ready) as (platform, agent):
        platform.announce()
        agent.wait_until((tmp_path / "reloaded").exists)
        agent.kill()
        assert platform.approvals == []
        if cancelled:
            platform.end()
        agent.up()
        agent.wait_until(lambda: agent.kinds.count("start") == 2)
        (tmp_path / "go").touch()
        if not cancelled:
            agent.wait_until(lambda: platform.approvals == [True])
            platform.start()
            agent.wait_until(lambda: "started" in agent.kinds)
            platform.end()
        agent.wait_until_back()
        assert platform.approvals == ([] if cancelled else [True])
    assert web.include.read_bytes() == before
    assert answering_servers(web) == {"web-0", "web-1"}


def test_killed_when_the_file_is_back_and_nginx_not_reloaded(web: Pool, tmp_path: Path) -> None:
    """Half undone is not undone: the next agent reloads."""
    script = tmp_path / "test"
    slow = f"while [ -e {tmp_path}/slow ]; do touch {tmp_path}/testing; sleep 0.1; done"
    script.write_text(f"#!/bin/sh\n{slow}\n{' '.join(web.nginx_command)} -t -q\n")
    script.chmod(0o700)
    with agent_with_endpoint(tmp_path, step(web, test=[str(script)]), lambda: True) as (platform, agent):
        platform.announce()
        agent.wait_until(lambda: bool(platform.approvals))
        (tmp_path / "slow").touch()
        platform.end()
        agent.wait_until((tmp_path / "testing").exists)
        agent.kill()
        assert b"down" not in web.include.read_bytes()
        assert answering_servers(web) == {"web-1"}
        (tmp_path / "slow").unlink()
        agent.up()
        agent.wait_until(
            lambda: "recover" in [record.get("phase") for record in agent.records if record["kind"] == "end"]
        )
        agent.wait_until_back()
    assert answering_servers(web) == {"web-0", "web-1"}


RELOAD = """#!/bin/sh
case "$(cat {0}/mode)" in
  lie) exit 0 ;;
  refuse) exit 1 ;;
  hang) exec sleep 60 ;;
esac
exec {1} -s reload
"""


@pytest.mark.parametrize("fault", ["down", "hang", "lie", "refuse"])
def test_a_target_at_fault_means_no_approval(web: Pool, tmp_path: Path, fault: str) -> None:
    """The event is never approved unprepared; while recover fails, the log says so, until it succeeds."""
    before, script, mode = web.include.read_bytes(), tmp_path / "reload", tmp_path / "mode"
    script.write_text(RELOAD.format(tmp_path, " ".join(web.nginx_command)))
    script.chmod(0o700)
    mode.write_text(fault)
    if fault == "down":
        for pid in web.nginx_pids():
            os.kill(pid, signal.SIGKILL)
        until(lambda: not web.nginx_pids())
        (web.folder / "nginx.front").unlink()
    toml = step(web, reload=[str(script)]).replace('timeout = "10s"', 'timeout = "3s"')
    with agent_with_endpoint(tmp_path, toml, lambda: False) as (platform, agent):
        platform.announce()
        agent.wait_until(lambda: agent.outcomes("prepare")[:1] == [False])
        platform.end()
        agent.wait_until(lambda: "THE MACHINE IS NOT BACK IN SERVICE" in agent.log)
        mode.write_text("well")
        if fault == "down":
            web.nginx()
        agent.kill()
        agent.up()  # at once, and not after a pause
        agent.wait_until_back()
        assert platform.approvals == []
    assert web.include.read_bytes() == before
    assert answering_servers(web) == {"web-0", "web-1"}


def test_the_worked_example(web: Pool, tmp_path: Path) -> None:
    """The page's own agent.toml, with this machine's paths in it, takes the machine out and brings it back."""
    page = (ROOT / "docs/guide/handlers/nginx.md").read_text("utf-8")
    (toml,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (printed,) = parse_config(tomllib.loads(toml), {}).plan.steps
    assert set(printed.spec._fields) == set(tomllib.loads(toml)["steps"][0]["nginx"])
    ours = toml
    for old, new in (
        (printed.spec.file, str(web.include)),
        (printed.spec.pid_file, f"{web.folder}/nginx.pid"),
        (printed.spec.servers[0], f"unix:{web.folder}/web-0"),
        ('"nginx", ', str(web.nginx_command)[1:-1].replace("'", '"') + ", "),
        (str(tomllib.loads(toml)["health"]["command"]).replace("'", '"'), '["true"]'),
    ):
        assert old in ours
        ours = ours.replace(old, new)
    with agent_with_endpoint(tmp_path, ours, lambda: answering_servers(web) == {"web-1"}) as (platform, agent):
        platform.announce()
        agent.wait_until(lambda: platform.approvals == [True])
        platform.start()
        agent.wait_until(lambda: "started" in agent.kinds)
        platform.end()
        agent.wait_until_back()
    assert answering_servers(web) == {"web-0", "web-1"}
