"""The `forewarn-agent` command as a process: what it prints, what it writes, how it ends."""

import contextlib
import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from forewarn.guest.journal import read
from forewarn.guest.main import _parser, log_formatter
from forewarn.guest.processes import alive, start_ticks
from tests.addresses import own_loopback_address
from tests.support.agent_command import agent_command
from tests.support.fake_endpoint import E1, document, event, http_server, respond
from tests.support.guest_service import WEB_0, serving
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
HOST = socket.gethostname().partition(".")[0]
STEPS = """
[[steps]]
name = "touch"
required = true
command = { prepare = ["touch", "flag"], verify = ["test", "-e", "flag"], recover = ["rm", "flag"] }
"""


def environment(**more: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    return {**clean, "PYTHONPATH": str(ROOT / "src"), **more}


def run(folder: Path, *arguments: str, module: str = "", **more: str) -> "subprocess.CompletedProcess[str]":
    """Run the agent's command line, or a module."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments] if module else agent_command(*arguments),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(**more),
        check=False,
        timeout=PATIENCE_S,
    )


def configure(folder: Path, text: str) -> None:
    path = folder / "agent.toml"
    path.write_text(f'state_dir = "state"\n{text}')
    path.chmod(0o600)


AT = ("--config", "agent.toml")
LISTS_ITS_MODULES = """
import atexit, sys
atexit.register(lambda: print(*sys.modules))
from forewarn.guest.main import main
main()
"""


def test_init_writes_a_configuration_once(tmp_path: Path) -> None:
    """The file is commented, readable by its owner alone, and never overwritten."""
    assert "wrote agent.toml" in run(tmp_path, "init").stdout
    path = tmp_path / "agent.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_text()
    again = run(tmp_path, "init")
    assert again.returncode == 1
    assert "was not changed" in again.stderr
    assert path.read_text() == before
    assert run(tmp_path, "init", "/proc/nowhere/agent.toml").returncode == 1


def test_no_option_keeps_only_its_last_value(capsys: pytest.CaptureFixture[str]) -> None:
    """Every option with a value, of every command, is refused when it is given twice."""
    (commands,) = [each.choices for each in _parser()._actions if isinstance(each.choices, dict)]
    checked = []
    for verb, parser in commands.items():
        positional = ["Reboot"] if verb == "simulate" else []
        for action in parser._actions:
            if action.option_strings and action.nargs != 0:
                option = action.option_strings[0]
                with pytest.raises(SystemExit) as ended:
                    _parser().parse_args([verb, *positional, option, "first", option, "second"])
                assert ended.value.code == 2
                assert f"{option}: given twice; it takes one value" in capsys.readouterr().err
                checked.append(f"{verb} {option}")
    assert {"run --config", "simulate --in"} <= set(checked)


@pytest.mark.parametrize(
    "arguments, end",
    [
        ("run --dryrun", "unrecognized argument: --dryrun; did you mean --dry-run?"),
        ("check --confg=x", "unrecognized argument: --confg=x; did you mean --config?"),
        ("run more", "unrecognized argument: more"),
        ("chek", "; did you mean check?"),
        ("simulate Rebot", "; did you mean Reboot?"),
        ("xyz", ")"),
    ],
)
def test_a_wrong_name_suggests_the_nearest(capsys: pytest.CaptureFixture[str], arguments: str, end: str) -> None:
    """Options, commands and types are suggested if one is near."""
    with pytest.raises(SystemExit) as ended:
        _parser().parse_args(arguments.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"{end}\n")


def test_three_commands_start_the_same_program(tmp_path: Path) -> None:
    """`python -m forewarn.guest`, `forewarn agent` and the script; the second needs no server extra."""
    assert run(tmp_path, "--version", module="forewarn.guest").stdout.startswith("forewarn-agent ")
    assert run(tmp_path, "agent", "--version", module="forewarn").stdout.startswith("forewarn-agent ")
    assert "agent" in run(tmp_path, "--help", module="forewarn").stdout
    program = "import sys; sys.modules['typer'] = None; from forewarn.cli import main; main()"
    bare = subprocess.run(
        [sys.executable, "-c", program, "agent", "--version"],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    assert bare.stdout.startswith("forewarn-agent ")


@pytest.mark.parametrize("verb", ["check", "run", "status", "history"])
def test_a_wrong_configuration_ends_with_2_and_a_sentence(tmp_path: Path, verb: str) -> None:
    """There is no traceback."""
    configure(tmp_path, "aprove = 1")
    ended = run(tmp_path, verb, *AT)
    assert ended.returncode == 2
    assert "aprove: unknown key" in ended.stderr
    assert "Traceback" not in ended.stderr
    (tmp_path / "agent.toml").chmod(0o666)
    assert "other users may write" in run(tmp_path, verb, *AT).stderr


def test_names_that_the_output_cannot_encode_are_escaped(tmp_path: Path) -> None:
    """A console of Windows has a code page. The command goes on, here to the endpoint that does not answer."""
    configure(tmp_path, 'endpoint = "http://127.0.0.1:9"\n' + STEPS.replace('"touch"\n', '"größer"\n'))
    ended = run(tmp_path, "check", *AT, PYTHONIOENCODING="ascii")
    assert ended.returncode == 3, ended.stderr
    assert "step 'gr\\xf6\\xdfer'" in ended.stdout


def test_check_changes_nothing(tmp_path: Path) -> None:
    """`check` examines programs, files, the endpoint and the name; no step runs, and no scope is enabled."""
    with serving() as service:
        at = f'endpoint = "http://127.0.0.1:{service.port}"\nsource_address = "{WEB_0}"\n'
        configure(tmp_path, at + STEPS)
        good = run(tmp_path, "check", *AT)
        assert good.returncode == 0, good.stdout
        assert "answers: this machine is web-0" in good.stdout
        assert "NOTE" not in good.stdout
        assert not service.store.snapshot_of("shop").enabled
        assert not (tmp_path / "state").exists()
        assert not (tmp_path / "flag").exists()
        configure(
            tmp_path,
            at + 'metrics_file = "/proc/nowhere/x.prom"\n' + STEPS.replace('["touch",', '["/proc/nowhere/touch",'),
        )
        bad = run(tmp_path, "check", *AT)
    assert bad.returncode == 1
    assert "WRONG step 'touch': /proc/nowhere/touch is not a program on this machine" in bad.stdout
    assert "WRONG metrics_file: /proc/nowhere/x.prom cannot be written to" in bad.stdout


def test_check_without_an_endpoint_ends_with_3(tmp_path: Path) -> None:
    """The configuration is correct, but the endpoint does not answer."""
    for name in ("", 'name = "here"\n'):
        configure(tmp_path, f'endpoint = "http://127.0.0.1:9"\n{name}' + STEPS)
        ended = run(tmp_path, "check", *AT)
        assert ended.returncode == 3
        assert "WRONG http://127.0.0.1:9 does not answer: no connection" in ended.stdout


def test_check_of_an_endpoint_that_does_not_know_the_machine_ends_with_3(tmp_path: Path) -> None:
    """The service answers 404 to every request from such an address."""
    with serving() as service:
        configure(
            tmp_path, f'endpoint = "http://127.0.0.1:{service.port}"\nsource_address = "{own_loopback_address()}"\n'
        )
        ended = run(tmp_path, "check", *AT)
    assert ended.returncode == 3
    assert "has no events for this machine: 404: Not found" in ended.stdout


@pytest.mark.parametrize(
    "name, instance, sentence",
    [
        ("", b'{"name":"web-0"}', "answers: this machine is web-0"),
        ("here", b'{"name":"here"}', "answers: this machine is here, as configured"),
        ("here", b'{"name":"web-0"}', "answers: this machine is here, as configured; the endpoint calls it web-0"),
        ("here", b"", "answers: this machine is here, as configured"),
        ("", b"", f"answers, and does not say which machine this is: by its host name it is {HOST};"),
    ],
)
def test_check_says_which_machine_this_is(tmp_path: Path, name: str, instance: bytes, sentence: str) -> None:
    """`run` works without an instance document, so `check` succeeds; it names no version and so enables nothing."""

    def reply(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        if handler.path.startswith("/metadata/instance"):
            respond(handler, 200 if instance else 404, instance)
        else:
            respond(handler, 400 if handler.path == "/metadata/scheduledevents" else 200)

    with http_server(reply) as url:
        configure(tmp_path, f'endpoint = "{url}"\n' + (f'name = "{name}"\n' if name else ""))
        checked = run(tmp_path, "check", *AT)
    assert checked.returncode == 0, checked.stdout
    assert f"ok    {url} {sentence}\n" in checked.stdout
    assert "NOTE  there are no steps: the agent approves events and prepares nothing" in checked.stdout


def test_output_on_a_terminal() -> None:
    """Each line of it is marked, and a control character in it is shown as an escape."""
    record = logging.makeLogRecord({"msg": "output of sh", "output": "one\n\x1b[31mtwo"})
    assert log_formatter(terminal=True).format(record).split("\n")[1:] == ["  | one", "  | \\x1b[31mtwo"]


def test_simulate_prepares_and_undoes(tmp_path: Path) -> None:
    """A required step that fails ends it with 1; steps are undone either way."""
    configure(tmp_path, STEPS)
    good = run(tmp_path, "simulate", "Preempt", *AT)
    assert good.returncode == 0, good.stderr
    assert [line.partition(" in ")[0] for line in good.stdout.splitlines()][1:] == [
        "step 'touch': prepared",
        "it would be approved",
        "undone: the machine is as before",
    ]
    assert not (tmp_path / "flag").exists()
    configure(tmp_path, STEPS.replace('["touch", "flag"]', '["false"]').replace('["rm", "flag"]', '["true"]'))
    bad = run(tmp_path, "simulate", "Reboot", "--in", "5m", *AT)
    assert bad.returncode == 1
    assert "it would not be approved: required step 'touch' is not prepared: false ended with 1" in bad.stdout
    assert "undone" in bad.stdout
    assert run(tmp_path, "simulate", "Reboot", "--in", "soon", *AT).returncode == 2


def test_a_killed_simulation_is_undone_by_the_next(tmp_path: Path) -> None:
    """The simulation has its own journal."""
    waiting = '\n[[steps]]\nname = "wait"\ncommand = { prepare = ["sleep", "30"], recover = ["true"] }\n'
    configure(tmp_path, STEPS + waiting)
    killed = subprocess.Popen(agent_command("simulate", "Reboot", *AT), cwd=tmp_path, env=environment())
    simulated = tmp_path / "state" / "rehearsal" / "journal.jsonl"

    def waits() -> list[dict[str, object]]:
        return [record for record in read(simulated)[0] if record["kind"] == "child" and record["step"] == "wait"]

    until(waits)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    configure(tmp_path, STEPS + waiting.replace('"30"', '"0"'))
    (child,) = waits()
    pid = int(str(child["pid"]))
    if start_ticks(pid) == child["ticks"]:  # and not another process with its pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    again = run(tmp_path, "simulate", "Reboot", *AT)
    assert again.returncode == 0, again.stdout + again.stderr
    assert not (tmp_path / "flag").exists()


def test_run_status_and_history(tmp_path: Path) -> None:
    """`status` shows activity, budget and why the event is not approved, and that the agent has ended after SIGTERM."""
    not_before = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 600))

    def reply(handler: object, body: bytes) -> None:
        served = document(event(NotBefore=not_before, Resources=["other", "here"]))
        respond(handler, 200, served)  # type: ignore[arg-type]

    assert run(tmp_path, "status").returncode == 2
    with http_server(reply) as url:
        configure(tmp_path, f'endpoint = "{url}"\nname = "here"\napprove = "first-in-resources"\n' + STEPS)
        assert run(tmp_path, "status", *AT).returncode == 3
        agent = subprocess.Popen(
            agent_command("run", *AT), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
        )
        until(lambda: (tmp_path / "flag").exists())
        second = run(tmp_path, "run", *AT)
        assert second.returncode == 1
        assert "another agent uses state" in second.stderr
        until(lambda: "prepared" in run(tmp_path, "status", *AT).stdout)
        shown = run(tmp_path, "status", *AT)
        assert shown.returncode == 0
        for line in (
            f"running, pid {agent.pid}",
            "machine    here, asking http://127.0.0.1",
            "OUT OF SERVICE",
            f"event      Reboot {E1} Scheduled: prepare; starts in 5",
            "s of the budget remain",
            "not approved: other is first in Resources",
            "step       touch: prepared",
        ):
            assert line in shown.stdout, shown.stdout
        assert json.loads(run(tmp_path, "status", "--json", *AT).stdout)["machine"] == "here"
        assert run(tmp_path, "simulate", "Reboot", *AT).returncode == 1, "an event is under way"
        agent.send_signal(signal.SIGTERM)
        _, output = agent.communicate(timeout=PATIENCE_S)
        assert agent.returncode == 0
        messages = [json.loads(line)["message"] for line in output.splitlines()]
        assert "this machine is here, as configured" in messages
        assert any(f"Reboot {E1} of other, here is Scheduled" in message for message in messages)
        assert messages[-1] == "a signal ends the agent"
    gone = run(tmp_path, "status", *AT)
    assert gone.returncode == 3
    assert "NOT RUNNING" in gone.stdout
    history = run(tmp_path, "history", *AT).stdout
    assert f"seen Reboot {E1} Scheduled" in history
    assert 'end phase="prepare" step="touch"' in history
    lines = run(tmp_path, "history", "--json", *AT).stdout.splitlines()
    assert [json.loads(line)["kind"] for line in lines][:3] == ["start", "seen", "begin"]


def test_a_cancel_ends_the_running_program(tmp_path: Path) -> None:
    """The program is ended, its step is undone, and the machine is back in service long before the program would have ended."""
    not_before = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 600))
    documents = [document(event(NotBefore=not_before, Resources=["here"]))]
    slow = "echo $$ > new; mv new pid; exec sleep 600"
    step = f"command = {{ prepare = ['/bin/sh', '-c', '{slow}'], recover = ['touch', 'undone'] }}"
    with http_server(lambda handler, _: respond(handler, 200, documents[-1])) as url:
        configure(tmp_path, f'endpoint = "{url}"\nname = "here"\n[[steps]]\nname = "slow"\ntimeout = "5m"\n{step}\n')
        agent = subprocess.Popen(
            agent_command("run", *AT), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
        )
        try:
            until((tmp_path / "pid").exists)
            documents.append(document(incarnation=2))
            until((tmp_path / "undone").exists)
            assert not alive(int((tmp_path / "pid").read_text()))
            until(lambda: json.loads((tmp_path / "state" / "status.json").read_text())["in_service"])
        finally:
            agent.terminate()
            _, output = agent.communicate(timeout=PATIENCE_S)
    assert "prepare 'slow' was interrupted" in output


def test_a_signal_to_the_agent_leaves_the_running_program(tmp_path: Path) -> None:
    """The last line of the log names the step that is under way, and the output of its program is no warning."""
    not_before = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 600))
    served = document(event(NotBefore=not_before, Resources=["here"]))
    slow = "echo draining; echo $$ > new; mv new pid; exec sleep 600"
    step = f"command = {{ prepare = ['/bin/sh', '-c', '{slow}'], recover = ['true'] }}"
    with http_server(lambda handler, _: respond(handler, 200, served)) as url:
        configure(tmp_path, f'endpoint = "{url}"\nname = "here"\n[[steps]]\nname = "slow"\ntimeout = "5m"\n{step}\n')
        agent = subprocess.Popen(
            agent_command("run", *AT), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
        )
        until((tmp_path / "pid").exists)
        agent.terminate()
        _, output = agent.communicate(timeout=PATIENCE_S)
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)
    *_, printed, last = [json.loads(line) for line in output.splitlines()]
    assert (printed["level"], printed["output"]) == ("info", "draining")
    assert last["message"] == ("a signal ends the agent; prepare 'slow' is under way, and the next agent continues it")


def test_the_log_stays_json_whatever_programs_print(tmp_path: Path) -> None:
    """The output of steps and of the health check is a field of a line, and nothing else goes to stdout or stderr."""
    not_before = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 600))
    documents = [document(event(NotBefore=not_before, Resources=["here"]))]
    noisy = "\n".join(
        [
            "[[steps]]",
            'name = "noisy"',
            """command = { prepare = ["/bin/sh", "-c", "echo one; echo two >&2"], recover = ["echo", "back"] }""",
            "[health]",
            """command = ["echo", "healthy"]""",
        ]
    )
    with http_server(lambda handler, _: respond(handler, 200, documents[-1])) as url:
        configure(tmp_path, f'endpoint = "{url}"\nname = "here"\napprove = "never"\n{noisy}\n')
        agent = subprocess.Popen(
            agent_command("run", *AT),
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        journal = tmp_path / "state" / "journal.jsonl"
        try:
            until(lambda: journal.exists() and b'"kind":"end"' in journal.read_bytes())
            documents.append(document(incarnation=2))
            until(lambda: b'"kind":"in-service"' in journal.read_bytes())
        finally:
            agent.terminate()
            printed, output = agent.communicate(timeout=PATIENCE_S)
    assert printed == ""
    lines = [json.loads(line) for line in output.splitlines()]
    assert [(line["message"], line["output"]) for line in lines if "output" in line] == [
        ("output of sh (prepare 'noisy')", "one\ntwo"),
        ("output of echo (recover 'noisy')", "back"),
        ("output of echo (health 'health')", "healthy"),
    ]


def test_a_journal_that_cannot_be_written_is_logged_as_json(tmp_path: Path) -> None:
    """The agent ends with 1."""
    configure(tmp_path, STEPS)
    limited = ["/bin/sh", "-c", 'ulimit -f 0; trap "" XFSZ; exec "$@"', "sh", *agent_command("run", *AT)]
    ended = subprocess.run(
        limited, capture_output=True, text=True, cwd=tmp_path, env=environment(), check=False, timeout=PATIENCE_S
    )
    assert ended.returncode == 1
    assert [json.loads(line)["message"] for line in ended.stderr.splitlines()] == [
        "state/journal.jsonl cannot be written: File too large"
    ]


def test_simulate_shows_the_output_of_programs(tmp_path: Path) -> None:
    """It is in the log on stderr."""
    configure(tmp_path, STEPS.replace('["rm", "flag"]', '["rm", "-v", "flag"]'))
    done = run(tmp_path, "simulate", "Preempt", *AT)
    assert [json.loads(line)["output"] for line in done.stderr.splitlines()] == ["removed 'flag'"]


def test_an_idle_agent_holds_only_the_modules_it_needs(tmp_path: Path) -> None:
    """It imports the handlers of its plan, and none of the large modules that only errors or other systems need."""
    with http_server(lambda handler, _: respond(handler, 200, document())) as url:
        configure(tmp_path, f'endpoint = "{url}"\nname = "here"\n' + STEPS)
        program = [sys.executable, "-c", LISTS_ITS_MODULES, "run", *AT]
        agent = subprocess.Popen(program, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True)
        until((tmp_path / "state" / "status.json").exists)
        agent.terminate()
        output, _ = agent.communicate(timeout=PATIENCE_S)
    modules = set(output.split())
    handlers = {name for name in modules if name.startswith("forewarn.guest.handlers.")}
    assert handlers == {"forewarn.guest.handlers.command"}
    assert "forewarn.guest.agent" in modules
    assert not {"difflib", "tempfile", "shutil", "lzma", "unicodedata", "asyncio", "ctypes"} & modules


def test_an_unwritable_metrics_file_is_logged_once(tmp_path: Path) -> None:
    """The agent goes on with its work."""
    not_before = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 600))
    documents = [document()]
    with http_server(lambda handler, _: respond(handler, 200, documents[-1])) as url:
        at = f'endpoint = "{url}"\nname = "here"\napprove = "never"\nmetrics_file = "/proc/nowhere/x.prom"\n'
        configure(tmp_path, at + STEPS)
        agent = subprocess.Popen(
            agent_command("run", *AT), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
        )
        status = tmp_path / "state" / "status.json"
        until(status.exists)
        assert json.loads(status.read_text())["in_service"] is True
        # Something to do: status is written anew, and metrics fail anew.
        documents.append(document(event(NotBefore=not_before, Resources=["here"]), incarnation=2))
        until(lambda: json.loads(status.read_text())["in_service"] is False)
        until((tmp_path / "flag").exists)
        assert agent.poll() is None
        agent.terminate()
        _, output = agent.communicate(timeout=PATIENCE_S)
    assert output.count("status or metrics cannot be written") == 1


def test_a_dry_run_logs_what_it_would_do(tmp_path: Path) -> None:
    """It runs no step, sends no approval and stores nothing."""
    posts: list[bytes] = []

    def reply(handler: object, body: bytes) -> None:
        posts.extend([body] if body else [])
        later = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 600))
        respond(handler, 200, document(event(NotBefore=later, Resources=["here"])))  # type: ignore[arg-type]

    with http_server(reply) as url:
        configure(tmp_path, f'endpoint = "{url}"\nname = "here"\n' + STEPS)
        agent = subprocess.Popen(
            agent_command("run", "--dry-run", *AT), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
        )
        assert agent.stderr is not None
        output = ""
        while "not sent" not in output:
            output += agent.stderr.readline()
        agent.terminate()
        agent.communicate(timeout=PATIENCE_S)
    assert "a dry run" in output
    assert "dry run: not sent" in output
    assert posts == []
    assert not (tmp_path / "flag").exists()
    assert not (tmp_path / "state").exists()
