"""`forewarn emulate` as a process: its printed commands, its options, its end, and its error messages."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.commands import run_here
from tests.support.waiting import PATIENCE_S, until
from tests.testing.http_guest import send

JSON = {"Content-Type": "application/json"}
FLEET = """
[[scopes]]
name = "shop"
kind = "availability-set"
[[machines]]
scope = "shop"
name = "web-0"
addresses = ["127.0.0.9"]
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "forewarn", *arguments]


@contextmanager
def emulating(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run an emulator; yield the process and its printed lines, up to the command that schedules."""
    process = subprocess.Popen(command("emulate", "--port", "0", *arguments), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith("forewarn "):
                break
        yield process, lines
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def urls(lines: list[str]) -> tuple[str, str]:
    ready = re.fullmatch(r"ready guest=(http://127\.0\.0\.1:\d+) operator=(http://127\.0\.0\.1:\d+)", lines[0])
    assert ready, lines
    return ready[1], ready[2]


def test_the_printed_commands_work(tmp_path: Path) -> None:
    """In a shell they poll as a guest and schedule as an operator. SIGTERM ends the emulator with 0."""
    with emulating() as (process, lines):
        endpoint, operator = urls(lines)
        assert lines[1:3] == [f"export FOREWARN_ENDPOINT={endpoint}", f"export FOREWARN_SERVER={operator}"]
        function = f'forewarn() {{ {shlex.quote(sys.executable)} -m forewarn "$@"; }}'
        script = "\n".join(["set -e", function, *lines[1:], lines[3]])
        environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        assert '{"DocumentIncarnation":1,"Events":[]}' in done.stdout
        assert '"EventType":"Reboot","ResourceType":"VirtualMachine","Resources":["vm-0"]' in done.stdout
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_options_reach_the_emulator(tmp_path: Path) -> None:
    """A manual clock with a seed starts in 2030, faults apply, and each of several machines has its address."""
    faults = tmp_path / "faults.toml"
    faults.write_text('[[faults]]\nfault = "status"\nstatus = 410\nrequests = 1\nmachine = "vm-1"\n')
    options = ("--clock", "manual", "--seed", "7", "--faults", str(faults), "--machines", "2")
    with emulating(*options) as (_, lines):
        endpoint, operator = urls(lines)
        assert send(endpoint, source="127.0.0.2").status == 410
        assert send(endpoint, source="127.0.0.1").headers["date"] == "Tue, 01 Jan 2030 00:00:00 GMT"
        clock = send(operator, path="/v1/clock").json
        assert (clock["now"], clock["kind"]) == ("2030-01-01T00:00:00Z", "manual")
        assert send(endpoint, source="127.0.0.3").status == 404


def test_by_default_time_runs_sixty_times_as_fast() -> None:
    """The default clock is scaled."""
    with emulating() as (_, lines):
        _, operator = urls(lines)
        assert send(operator, path="/v1/clock").json["kind"] == "scaled"
        assert send(operator, path="/readyz").status == 200


def test_a_fleet_file(tmp_path: Path) -> None:
    """The callers are its machines, and the printed command names one of them."""
    (tmp_path / "fleet.toml").write_text(FLEET)
    with emulating("--fleet", str(tmp_path / "fleet.toml")) as (_, lines):
        endpoint, _ = urls(lines)
        assert lines[-1] == "forewarn maintenance schedule --type Reboot --machine shop/web-0 --yes"
        assert [send(endpoint, source=s).status for s in ("127.0.0.9", "127.0.0.1")] == [200, 404]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--machines", "2", "--fleet", "x.toml"), "--machines: the machines are those of the fleet file"),
        (("--fleet", "no-such.toml"), "no-such.toml: cannot be read"),
        (("--faults", "no-such.toml"), "no-such.toml: cannot be read"),
        (("--scenario", "no-such"), "there is no scenario 'no-such'"),
        (("--clock", "sundial"), "clock: "),
        (("--machines", "0"), "machines: 0"),
        (("--port", "70000"), "port: 70000"),
        (("--log-level", "loud"), "log-level: "),
    ],
)
def test_wrong_usage_ends_with_2(arguments: tuple[str, ...], message: str) -> None:
    """The message is one line."""
    port = () if "--port" in arguments else ("--port", "0")
    done = run_here("emulate", *port, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_an_occupied_port_is_refused() -> None:
    """A second emulator on the same port ends with 2 and names the port."""
    with emulating() as (_, lines):
        port = urls(lines)[0].rpartition(":")[2]
        second = command("emulate", "--port", port)
        done = subprocess.run(second, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 2
        assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_the_emulator_imports_no_unneeded_libraries() -> None:
    """Those of the command line, of pytest and of a faster loop; those of the API and its pages only for an operator."""
    program = "import sys, forewarn.testing.emulator; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert "forewarn.app.server" in done.stdout.split()
    unneeded = {"uvloop", "rich", "typer", "pytest", "jinja2", "uvicorn", "starlette", "prometheus_client", "asyncio"}
    assert not unneeded & set(done.stdout.split())


TOKEN = "a-token-for-tests-only"


def test_off_loopback_operators_need_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a token the emulator does not start. With one, operators must send it and guests need none."""
    any_interface = ("--guest", "0.0.0.0:0", "--operator", "0.0.0.0:0")
    monkeypatch.delenv("FOREWARN_TOKEN", raising=False)
    done = run_here("emulate", *any_interface)
    assert done.returncode == 2
    assert "operator: 0.0.0.0:0 is not on loopback" in done.stderr
    monkeypatch.setenv("FOREWARN_TOKEN", TOKEN)
    with emulating(*any_interface) as (_, lines):
        endpoint, operator = urls(lines)
        assert send(endpoint).status == 200
        refused = send(operator, path="/v1/machines")
        assert (refused.status, "FOREWARN_TOKEN" in refused.json["error"]["message"]) == (401, True)
        allowed = send(operator, path="/v1/machines", headers={"Authorization": f"Bearer {TOKEN}"})
        assert (allowed.status, [m["name"] for m in allowed.json["items"]]) == (200, ["vm-0"])


def test_the_emulator_can_use_the_address_of_the_cloud() -> None:
    """The tutorial's commands for 169.254.169.254 work, here in a network namespace."""
    page = (Path(__file__).parent.parent.parent / "docs" / "guide" / "testing-your-app.md").read_text("utf-8")
    (block,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    add, start, poll = [line.removeprefix("# ") for line in block.splitlines()]
    start = start.replace("forewarn", f"{shlex.quote(sys.executable)} -m forewarn", 1)
    script = f"set -e; ip link set lo up; {add}; {start} --port 0 | while read -r line; do case $line in forewarn*)"
    script += f" {poll}; kill 0;; esac; done"
    done = subprocess.run(
        ["unshare", "--net", "setsid", "--wait", "bash", "-c", script],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert '{"DocumentIncarnation":1,"Events":[]}' in done.stdout, done.stderr


def test_off_loopback_guests_may_use_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """On loopback a foreign Host is refused, and web pages are refused everywhere."""
    named = {"Metadata": "true", "Host": "emulator:8169"}
    monkeypatch.setenv("FOREWARN_TOKEN", TOKEN)
    with emulating("--guest", "0.0.0.0:0") as (_, lines):
        endpoint = lines[0].split()[1].removeprefix("guest=")
        assert send(endpoint, headers=named).status == 200
        assert send(endpoint, headers={**named, "Origin": "http://emulator:8169"}).status == 400
        assert send(endpoint, headers={**named, "Host": "a:b:c"}).status == 400
    with emulating() as (_, lines):
        assert send(urls(lines)[0], headers=named).status == 400


def test_a_scenario_continues_when_its_output_is_closed() -> None:
    """As after `| head -1`, guests are answered, the steps happen, and SIGTERM ends the emulator with 0."""
    options = ("--clock", "manual", "--scenario", "user-reboot")
    with emulating(*options) as (process, lines):
        endpoint, operator = urls(lines)
        assert process.stdout is not None
        process.stdout.close()
        send(endpoint)
        for _ in range(4):
            advance = send(operator, "POST", "/v1/clock/advance", {"seconds": 3_600}, headers=JSON)
            assert advance.status == 200, advance.raw
        completed = send(operator, path="/v1/events?status=Completed").json["items"]
        assert [event["type"] for event in completed] == ["Reboot"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


# -- `forewarn emulate -- COMMAND`

POLL_AND_FAIL = """
echo "$FOREWARN_TOKEN"
curl -sf "$FOREWARN_SERVER/readyz" >/dev/null || exit 9
curl -s -H Metadata:true "$FOREWARN_ENDPOINT/metadata/scheduledevents?api-version=2020-07-01"
exit 3
"""
COUNT_INTERRUPTS = """
import signal, sys
numbers = signal.SIGINT, signal.SIGTERM
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("waiting", flush=True)
interrupts = 0
while signal.sigwait(numbers) == signal.SIGINT:
    interrupts += 1
    print("interrupted", flush=True)
sys.exit(10 + interrupts)
"""


def test_a_command_finds_the_emulator_and_its_exit_code_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator is ready when the command starts, the output is the command's alone, and a failure shows the timeline."""
    monkeypatch.setenv("FOREWARN_TOKEN", "the token of another server")
    failing = command("emulate", "--", "sh", "-c", POLL_AND_FAIL)
    done = subprocess.run(failing, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (3, '\n{"DocumentIncarnation":1,"Events":[]}')
    assert done.stderr.startswith("forewarn: sh ended with 3; timeline")
    assert "#1 vm-0 GET /metadata/scheduledevents" in done.stderr
    clock = 'curl -s "$FOREWARN_SERVER/v1/clock"'
    passing = command(
        "emulate", "--machines", "2", "sh", "-c", clock, "--port"
    )  # options after the command are its own
    done = subprocess.run(passing, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"kind":"manual"' in done.stdout


def test_a_command_that_cannot_be_started() -> None:
    """The exit code is 2, and the message names the command."""
    done = subprocess.run(
        command("emulate", "--", "./no-such"), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stderr) == (2, "forewarn: ./no-such: cannot be started: No such file or directory\n")


def test_signals_are_passed_on_to_the_command() -> None:
    """A command that a signal ends gives 128 + its number; a command that handles the signal gives its own exit code."""
    for program, number, code in (
        (["sh", "-c", "echo waiting; exec sleep 600"], signal.SIGTERM, 128 + signal.SIGTERM),
        (["sh", "-c", "echo waiting; exec sleep 600"], signal.SIGHUP, 128 + signal.SIGHUP),
        ([sys.executable, "-c", COUNT_INTERRUPTS], signal.SIGTERM, 10),
    ):
        with subprocess.Popen(
            command("emulate", "--", *program), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == code


def test_a_terminal_interrupts_the_command_once() -> None:
    """Ctrl-C reaches the command from the terminal, so the emulator does not send it again; `kill -INT` it passes on."""
    terminal, side = os.openpty()
    program = command("emulate", "--", sys.executable, "-c", COUNT_INTERRUPTS)
    with subprocess.Popen(["setsid", "--ctty", *program], stdin=side, stdout=side, stderr=side) as process:
        os.close(side)
        read_until(terminal, b"waiting")
        os.write(terminal, b"\x03")
        read_until(terminal, b"interrupted")
        until(lambda: not is_pending(process.pid, signal.SIGINT))  # else the kernel makes one signal of two
        process.send_signal(signal.SIGINT)
        read_until(terminal, b"interrupted")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 12
    os.close(terminal)


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Return whether the process has not yet taken a signal that was sent to it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (pending,) = [line.split()[1] for line in lines if line.startswith("ShdPnd:")]
    return bool(int(pending, 16) >> (number - 1) & 1)


def read_until(terminal: int, text: bytes) -> None:
    shown = b""
    while text not in shown:
        shown += os.read(terminal, 1_000)
