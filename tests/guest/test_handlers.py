"""The handlers, each against real processes, files and sockets."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import ModuleType

import pytest

from forewarn.guest.clock import Time
from forewarn.guest.errors import OutOfTime, StepFailed
from forewarn.guest.handlers import HANDLERS, command, log, notify, pid_files, process, systemd
from forewarn.guest.handlers.pid_files import running_pid
from forewarn.guest.journal import read
from forewarn.guest.plan import NOTIFIERS
from forewarn.guest.processes import alive, command_line
from forewarn.guest.steps import Run
from tests.guest.in_process_agent import AgentHarness
from tests.support.fake_endpoint import E1, event, http_server, respond
from tests.support.waiting import PATIENCE_S, until


def run_of(share_s: float = PATIENCE_S, change: str = "scheduled") -> Run:
    run = Run(step="one", phase="prepare", event=event(NotBefore="soon"), share_s=share_s, time=Time())
    run.change = change
    return run


@pytest.mark.parametrize("name", sorted(HANDLERS))
def test_a_handler_has_these_functions(name: str) -> None:
    """Every handler has the same five functions, and `notify` where it reports changes."""
    module: ModuleType = HANDLERS[name]
    for function in ("parse", "check", "prepare", "verify", "recover"):
        assert callable(getattr(module, function)), function
    assert hasattr(module, "notify") == (name in NOTIFIERS)
    source = Path(str(module.__file__)).read_text("utf-8")
    assert len(source.splitlines()) < 200


# -- command


def test_command_checks_and_verifies() -> None:
    """`check` reports a missing program; without a verify command the state is unknown."""
    spec = command.parse({"prepare": ["/nowhere/x"], "verify": ["false"]}, "here")
    assert command.check(spec) == ["/nowhere/x is not a program on this machine"]
    assert command.verify(spec, run_of()) is False
    only = command.parse({"recover": ["true"]}, "here")
    assert command.verify(only, run_of()) is None
    command.prepare(only, run_of())
    command.recover(only, run_of())


# -- process

# In short sleeps: Python runs the handler of a signal that comes just before a sleep only when that sleep ends.
SERVER = "import signal, sys, time; {0}; print('up', flush=True); [time.sleep(0.02) for _ in range(3_000)]"


def running(tmp_path: Path, prelude: str = "pass") -> "subprocess.Popen[str]":
    child = subprocess.Popen([sys.executable, "-c", SERVER.format(prelude)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    (tmp_path / "pid").write_text(f"{child.pid}\n")
    return child


def test_a_process_is_stopped_and_confirmed_gone_then_started_and_confirmed_up(tmp_path: Path) -> None:
    """It gets its own signal; a second stop or start finds nothing to do."""
    gone = f"signal.signal(signal.SIGUSR1, lambda *_: (open({str(tmp_path / 'graceful')!r}, 'w'), sys.exit(0)))"
    table = {
        "pid_file": str(tmp_path / "pid"),
        "signal": "USR1",
        "start": ["sleep", "60"],
        "foreground": True,
        "up_for": "0",
    }
    spec = process.parse(table, "here")
    assert process.check(spec) == []
    with running(tmp_path, gone) as child:
        assert process.verify(spec, run_of()) is False
        process.prepare(spec, run_of())
        assert child.wait(PATIENCE_S) == 0
        assert child.stdout is not None
        child.stdout.close()
    assert (tmp_path / "graceful").exists()
    assert process.verify(spec, run_of()) is True
    process.prepare(spec, run_of())
    process.recover(spec, run_of())
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    process.recover(spec, run_of())
    assert int((tmp_path / "pid").read_text()) == pid
    os.kill(pid, 9)


def test_a_signalled_process_is_awaited_after_a_cancel(tmp_path: Path) -> None:
    """The signal cannot be taken back: otherwise undoing would find the process alive, and it would end afterwards."""
    spec = process.parse({"pid_file": str(tmp_path / "pid")}, "here")
    slow = "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), sys.exit(0)))"
    run = Run(step="one", phase="prepare", event=event(), share_s=PATIENCE_S, time=Time(), needed=lambda: False)
    with running(tmp_path, slow) as child:
        process.prepare(spec, run)
        assert not alive(child.pid)
        assert child.stdout is not None
        child.stdout.close()


def test_a_process_that_is_still_ending_is_awaited_before_it_is_started(tmp_path: Path) -> None:
    """The agent was killed, or its time was over, after it had sent the signal; the journal has that."""
    end = tmp_path / "end"
    wait = f"[time.sleep(0.01) for _ in iter(pathlib.Path({str(end)!r}).exists, True)]"
    slow = f"import pathlib; signal.signal(signal.SIGTERM, lambda *_: ({wait}, sys.exit(0)))"
    table = {"pid_file": str(tmp_path / "pid"), "start": ["sleep", "60"], "foreground": True, "up_for": "0"}
    spec = process.parse(table, "here")
    with running(tmp_path, slow) as child:
        stopping = run_of(share_s=0.3)
        with pytest.raises(OutOfTime):
            process.prepare(spec, stopping)
        assert alive(child.pid)
        undoing = Run(
            step="one",
            phase="recover",
            event=event(),
            share_s=PATIENCE_S,
            time=Time(),
            kept=stopping.kept,
            poll=end.touch,
        )
        process.recover(spec, undoing)
        assert child.wait(PATIENCE_S) == 0
        assert child.stdout is not None
        child.stdout.close()
    pid = int((tmp_path / "pid").read_text())
    assert pid != child.pid
    assert alive(pid)
    os.kill(pid, 9)


def test_a_program_that_makes_a_daemon_of_itself(tmp_path: Path) -> None:
    """It counts as up when its own pid file names a live process."""
    daemon = f"sleep 60 >/dev/null 2>&1 & echo $! > {tmp_path}/pid"
    table = {"pid_file": str(tmp_path / "pid"), "start": ["/bin/sh", "-c", daemon], "up_for": "0"}
    spec = process.parse(table, "here")
    process.recover(spec, run_of())
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    process.prepare(spec, run_of())
    assert not alive(pid)
    silent = process.parse({**table, "start": ["true"]}, "here")
    with pytest.raises(OutOfTime):
        process.recover(silent, run_of(share_s=0.3))


def test_a_pid_file_that_names_another_process(tmp_path: Path) -> None:
    """With `match`, a process with another command line is left alone."""
    spec = process.parse({"pid_file": str(tmp_path / "pid"), "match": "importer"}, "here")
    with running(tmp_path) as child:
        process.prepare(spec, run_of())
        assert process.verify(spec, run_of()) is True
        assert process.verify(spec._replace(match="time.sleep(0.02)"), run_of()) is False
        assert child.poll() is None
        child.kill()
        assert child.stdout is not None
        child.stdout.close()


def test_a_process_that_does_not_end(tmp_path: Path) -> None:
    """It is killed after `kill_after`; without that the step fails with a reason."""
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    patient = process.parse({"pid_file": str(tmp_path / "pid")}, "here")
    strict = process.parse({"pid_file": str(tmp_path / "pid"), "kill_after": "1s"}, "here")
    with running(tmp_path, deaf) as child:
        with pytest.raises(OutOfTime, match=f"process {child.pid} did not end in time after SIGTERM"):
            process.prepare(patient, run_of(share_s=0.3))
        process.prepare(strict, run_of())
        assert child.wait(PATIENCE_S) == -9
        assert child.stdout is not None
        child.stdout.close()


def test_a_started_process_receives_every_signal_and_leaves_no_zombie(tmp_path: Path) -> None:
    """It runs as if started by hand, and an old pid file does not matter."""

    def ignored(who: object) -> int:
        lines = Path(f"/proc/{who}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("SigIgn")).split()[1], 16) & 0b110

    (tmp_path / "pid").write_text("999999999\n")
    table = {"pid_file": str(tmp_path / "pid"), "start": ["sleep", "60"], "foreground": True, "up_for": "0"}
    process.recover(process.parse(table, "here"), run_of())
    pid = int((tmp_path / "pid").read_text())
    assert ignored(pid) == ignored("self")
    assert os.getpgid(pid) == pid
    os.kill(pid, 9)
    until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize(
    ("start", "message"), [(["false"], "false ended at once"), (["/nowhere/x"], "x cannot be run")]
)
def test_a_process_that_does_not_come_up(tmp_path: Path, start: list[str], message: str) -> None:
    """The step fails with a reason."""
    table = {"pid_file": str(tmp_path / "pid"), "start": start, "foreground": True}
    with pytest.raises(StepFailed, match=message):
        process.recover(process.parse(table, "here"), run_of())


@pytest.mark.parametrize("pid_file_checked_too_early", [True, False])
def test_a_process_that_match_never_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, pid_file_checked_too_early: bool
) -> None:
    """The step fails at the end of its time and says which text it misses, also if the program had just written its pid."""
    table = {"pid_file": str(tmp_path / "pid"), "start": ["sleep", "60"], "foreground": True}
    started, start = threading.Event(), process._start_detached
    early_checks = iter([True] if pid_file_checked_too_early else [])

    def start_and_wait(spec: process.Spec) -> int:
        pid = start(spec)
        until(lambda: running_pid(spec.pid_file, "") == pid)
        started.set()
        return pid

    def find(pid_file: str, match: str) -> int:
        return 0 if started.is_set() and next(early_checks, False) else running_pid(pid_file, match)

    class OverOnceStarted(Time):
        def monotonic(self) -> float:
            return 2 * PATIENCE_S if started.is_set() else 0.0

    monkeypatch.setattr(process, "_start_detached", start_and_wait)
    monkeypatch.setattr(process, "running_pid", find)
    run = Run(step="one", phase="recover", event=event(), share_s=PATIENCE_S, time=OverOnceStarted())
    with pytest.raises(OutOfTime, match=r"process \d+ runs, but 'nginx' is not in its command line"):
        process.recover(process.parse({**table, "match": "nginx"}, "here"), run)
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_a_process_without_a_command_line_has_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the kernel exchanges the program of a process, there is none, and `match` does not find it yet."""
    exchanging = iter(range(3))
    monkeypatch.setattr(
        pid_files, "command_line", lambda pid: "" if next(exchanging, None) is not None else command_line(pid)
    )
    table = {"pid_file": str(tmp_path / "pid"), "start": ["sleep", "60"], "foreground": True, "up_for": "0"}
    process.recover(process.parse({**table, "match": "sleep"}, "here"), run_of())
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    os.kill(pid, 9)


# -- systemd

SYSTEMCTL = """#!/bin/sh
echo "$@" >> {0}/calls
case "$1" in
  stop) rm -f {0}/active ;;
  start) [ -e {0}/broken ] && exit 1; touch {0}/active ;;
  is-active) [ -e {0}/gone ] && exit 4; [ -e {0}/active ] || exit 3 ;;
  is-failed) [ -e {0}/broken ] ;;
esac
"""


def test_a_unit_is_stopped_and_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler calls systemctl with these arguments and interprets its exit codes."""
    program = tmp_path / "systemctl"
    program.write_text(SYSTEMCTL.format(tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    spec = systemd.parse({"units": ["a.service", "b.service"]}, "here")
    assert systemd.check(spec) == []
    (tmp_path / "active").touch()
    assert systemd.verify(spec, run_of()) is False
    systemd.prepare(spec, run_of())
    assert systemd.verify(spec, run_of()) is True
    systemd.recover(spec, run_of())
    calls = (tmp_path / "calls").read_text().splitlines()
    assert "stop a.service b.service" in calls
    assert "start b.service a.service" in calls
    (tmp_path / "gone").touch()
    assert systemd.verify(spec, run_of()) is None
    (tmp_path / "broken").touch()
    with pytest.raises(StepFailed, match="systemctl ended with 1"):
        systemd.recover(spec, run_of())


def test_the_real_systemctl_is_understood() -> None:
    """An unknown unit does not count as stopped."""
    spec = systemd.parse({"unit": "forewarn-nowhere.service"}, "here")
    assert systemd.check(spec) == []
    assert systemd.verify(spec, run_of()) in (None, True)
    with pytest.raises(StepFailed):
        systemd.recover(spec, run_of())


# -- log


def test_log_to_a_file_and_to_syslog(tmp_path: Path) -> None:
    """`log` writes one JSON line; `check` reports a missing folder."""
    spec = log.parse({"file": str(tmp_path / "events.jsonl")}, "here")
    assert log.check(spec) == []
    log.notify(spec, run_of())
    message = json.loads((tmp_path / "events.jsonl").read_text())
    assert message == {"change": "scheduled", "event": event(NotBefore="soon")}
    wrong = log.parse({"file": "/nowhere/at/all"}, "here")
    assert log.check(wrong) == ["/nowhere/at cannot be written to"]
    with pytest.raises(StepFailed, match="cannot be written"):
        log.notify(wrong, run_of())
    assert log.check(log.parse({"syslog": "daemon"}, "here")) == []
    assert log.check(log.parse({"syslog": "nowhere"}, "here"))
    log.notify(log.parse({"syslog": "daemon"}, "here"), run_of())


def test_a_lone_surrogate_in_an_event_is_replaced(tmp_path: Path) -> None:
    """Journal, status, log and variables must be valid UTF-8."""
    from forewarn.guest import status

    hook = Webhook()
    with http_server(hook) as url:
        toml = (
            f'[[steps]]\nname = "file"\nlog = {{ file = "{tmp_path}/log" }}\n'
            f'[[steps]]\nname = "team"\nnotify = {{ url_file = "{secret(tmp_path, url)}" }}\n'
            '[[steps]]\nname = "run"\nrequired = true\ncommand = { prepare = ["true"] }\n'
        )
        harness = AgentHarness(tmp_path, toml)
        odd = "\ud800\0"
        harness.endpoint.announce(Description=odd, EventSource=odd, EventType=odd, Resources=["web-0", odd])
        harness.run(for_s=5)
        status.write(harness.agent, tmp_path, None)
    assert harness.endpoint.approved == [E1]
    assert '"Description":"??"' in (tmp_path / "log").read_text("ascii")
    harness.restart()


# -- notify


class Webhook:
    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, object], str]] = []
        self.status = 200

    def __call__(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        self.got.append((handler.path, json.loads(body), handler.headers["Idempotency-Key"]))
        respond(handler, self.status)


def secret(tmp_path: Path, url: str) -> str:
    path = tmp_path / "url"
    path.write_text(f"{url}/hook/hunter2?x=1\n")
    path.chmod(0o600)
    return str(path)


def test_notify_posts_in_slacks_format_or_the_whole_event(tmp_path: Path) -> None:
    """Each message has an Idempotency-Key, so that the receiver recognises repetitions."""
    hook = Webhook()
    with http_server(hook) as url:
        spec = notify.parse({"url_file": secret(tmp_path, url)}, "here")
        assert notify.check(spec) == []
        notify.notify(spec, run_of())
        notify.notify(spec._replace(shape="event"), run_of(change="started"))
    (path, slack, key), (_, whole, _) = hook.got
    assert path == "/hook/hunter2?x=1"
    assert slack == {"text": f"Reboot of web-0 scheduled, not before soon ({E1})"}
    assert key == f"{E1}/scheduled/one"
    assert whole == {"change": "started", "event": event(NotBefore="soon")}


def test_errors_of_notify_do_not_contain_the_address(tmp_path: Path) -> None:
    """Neither for a file that others may read nor for a missing file, a bad address, no server or a refusal."""
    path = Path(secret(tmp_path, "http://127.0.0.1:9"))
    spec = notify.parse({"url_file": str(path)}, "here")
    path.chmod(0o640)
    assert notify.check(spec) == [f"other users may read {path}, which holds a secret: chmod 600 it"]
    path.chmod(0o600)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        secret(tmp_path, f"http://127.0.0.1:{nobody.getsockname()[1]}")
        with pytest.raises(StepFailed) as caught:
            notify.notify(spec, run_of())
    assert "hunter2" not in str(caught.value)
    hook = Webhook()
    hook.status = 500
    with http_server(hook) as url:
        secret(tmp_path, url)
        with pytest.raises(StepFailed, match="the webhook answered 500"):
            notify.notify(spec, run_of())
    path.write_text("not an address")
    assert notify.check(spec) == [f"{path} does not hold an http:// or https:// address"]
    path.unlink()
    assert "cannot be read" in notify.check(spec)[0]


def test_a_webhook_that_trickles_ends_in_time(tmp_path: Path) -> None:
    """A webhook that answers a byte at a time does not hold up the agent."""

    over = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        handler.close_connection = True
        with contextlib.suppress(OSError):
            while not over.wait(0.1):
                handler.wfile.write(b"H")

    with http_server(trickle) as url:
        spec = notify.parse({"url_file": secret(tmp_path, url)}, "here")
        began_s = time.monotonic()
        # On a busy machine the time may be over before there is a connection.
        with pytest.raises(StepFailed, match=r"NoAnswer|Unreachable"):
            notify.notify(spec, run_of(share_s=1.0))
        assert time.monotonic() - began_s < PATIENCE_S
        over.set()


def test_each_event_and_change_is_reported_once_across_restarts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The address appears in neither journal, status nor log."""
    from forewarn.guest import status

    hook = Webhook()
    with http_server(hook) as url:
        toml = f'[[steps]]\nname = "team"\nnotify = {{ url_file = "{secret(tmp_path, url)}", shape = "event" }}\n'
        harness = AgentHarness(tmp_path, toml)
        harness.endpoint.announce()
        harness.run(for_s=5)
        harness.restart()
        harness.run(for_s=5)
        harness.endpoint.start()
        harness.run(for_s=5)
        harness.restart()
        harness.endpoint.end()
        harness.run(for_s=5)
        harness.restart()
        harness.run(for_s=60)
        status.write(harness.agent, tmp_path, None)
    changes = [body["change"] for _, body, _ in hook.got]
    assert changes == ["scheduled", "approved", "started", "completed", "back in service"]
    for text in (harness.journal.path.read_text(), (tmp_path / "status.json").read_text(), caplog.text):
        assert "hunter2" not in text


def test_a_webhook_that_fails_delays_nothing_and_is_given_up(tmp_path: Path) -> None:
    """The agent tries three times with pauses, and the approval does not wait."""
    hook = Webhook()
    hook.status = 503
    with http_server(hook) as url:
        toml = f'[[steps]]\nname = "team"\nnotify = {{ url_file = "{secret(tmp_path, url)}" }}\n'
        harness = AgentHarness(tmp_path, toml)
        harness.endpoint.announce()
        harness.run(for_s=2)
        assert harness.endpoint.approved == [E1]
        harness.run(for_s=900)
    assert len(hook.got) == 6
    records = read(harness.journal.path)[0]
    assert [record["ok"] for record in records if record["kind"] == "told"] == [False, False]
    assert not harness.agent.state.messages
