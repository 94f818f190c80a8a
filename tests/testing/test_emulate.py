"""`forewarn emulate` as a process: ready soon, lines to paste that work, an orderly end, refusals that help."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forewarn.cli.app import run
from tests.support.waiting import PATIENCE_S
from tests.testing.guests import ask

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
    """The process and the lines it printed, up to the one to schedule with."""
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
    found = re.fullmatch(r"ready guest=(http://127\.0\.0\.1:\d+) operator=(http://127\.0\.0\.1:\d+)", lines[0])
    assert found, lines
    return found[1], found[2]


def test_the_lines_to_paste_work(tmp_path: Path) -> None:
    """Pasted into a shell they ask as a guest and schedule as an operator; SIGTERM ends it with 0."""
    with emulating() as (process, lines):
        endpoint, operator = urls(lines)
        assert lines[1:3] == [f"export FOREWARN_ENDPOINT={endpoint}", f"export FOREWARN_SERVER={operator}"]
        ours = f'forewarn() {{ {sys.executable} -m forewarn "$@"; }}'
        script = "\n".join(["set -e", ours, *lines[1:], lines[3]])
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
    """A seed with the manual clock begins in 2030; faults strike; several machines have their addresses."""
    faults = tmp_path / "faults.toml"
    faults.write_text('[[faults]]\nfault = "status"\nstatus = 410\nrequests = 1\nmachine = "vm-1"\n')
    options = ("--clock", "manual", "--seed", "7", "--faults", str(faults), "--machines", "2")
    with emulating(*options) as (_, lines):
        endpoint, operator = urls(lines)
        assert ask(endpoint, source="127.0.0.2").status == 410
        assert ask(endpoint, source="127.0.0.1").headers["date"] == "Tue, 01 Jan 2030 00:00:00 GMT"
        told = ask(operator, path="/v1/clock").json
        assert (told["now"], told["kind"]) == ("2030-01-01T00:00:00Z", "manual")
        assert ask(endpoint, source="127.0.0.3").status == 404


def test_by_default_time_runs_sixty_times_as_fast() -> None:
    """And without a seed it begins now."""
    with emulating() as (_, lines):
        _, operator = urls(lines)
        assert ask(operator, path="/v1/clock").json["kind"] == "scaled"
        assert ask(operator, path="/readyz").status == 200


def test_a_fleet_file(tmp_path: Path) -> None:
    """Its machines are the callers, and one of them stands in the line to paste."""
    (tmp_path / "fleet.toml").write_text(FLEET)
    with emulating("--fleet", str(tmp_path / "fleet.toml")) as (_, lines):
        endpoint, _ = urls(lines)
        assert lines[-1] == "forewarn maintenance schedule --type Reboot --machine shop/web-0 --yes"
        assert [ask(endpoint, source=s).status for s in ("127.0.0.9", "127.0.0.1")] == [200, 404]


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
def test_wrong_usage_ends_with_2(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that says what was wrong."""
    monkeypatch.setattr(sys, "argv", ["forewarn", "emulate", "--port", "0", *arguments])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_occupied_port_is_said() -> None:
    """Whoever starts a second one on the same port is told so."""
    with emulating() as (_, lines):
        port = urls(lines)[0].rpartition(":")[2]
        again = command("emulate", "--port", port)
        done = subprocess.run(again, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 2
        assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_it_starts_without_what_it_does_not_need() -> None:
    """What only the command line, the portal's tables, pytest or a faster loop need is not imported with it."""
    program = "import sys, forewarn.testing.emulator; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert "forewarn.app.server" in done.stdout.split()
    assert not {"uvloop", "rich", "typer", "pytest"} & set(done.stdout.split())


TOKEN = "a-token-for-tests-only"


def test_off_loopback_operators_need_a_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container: whoever has it gives orders, others do not, guests ask as ever; without one it does not start."""
    elsewhere = ("--guest", "0.0.0.0:0", "--operator", "0.0.0.0:0")
    monkeypatch.delenv("FOREWARN_TOKEN", raising=False)
    monkeypatch.setattr(sys, "argv", ["forewarn", "emulate", *elsewhere])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert "operator: 0.0.0.0:0 is not on loopback" in capsys.readouterr().err
    monkeypatch.setenv("FOREWARN_TOKEN", TOKEN)
    with emulating(*elsewhere) as (_, lines):
        endpoint, operator = urls(lines)
        assert ask(endpoint).status == 200
        refused = ask(operator, path="/v1/machines")
        assert (refused.status, "FOREWARN_TOKEN" in refused.json["error"]["message"]) == (401, True)
        allowed = ask(operator, path="/v1/machines", headers={"Authorization": f"Bearer {TOKEN}"})
        assert (allowed.status, [m["name"] for m in allowed.json["items"]]) == (200, ["vm-0"])


def test_the_address_that_clients_have_built_in() -> None:
    """The commands of the tutorial, in a network of their own."""
    page = (Path(__file__).parent.parent.parent / "docs" / "guide" / "testing-your-app.md").read_text("utf-8")
    (block,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    add, start, asked = [line.removeprefix("# ") for line in block.splitlines()]
    start = start.replace("forewarn", f"{sys.executable} -m forewarn", 1)
    script = f"set -e; ip link set lo up; {add}; {start} --port 0 | while read -r line; do case $line in forewarn*)"
    script += f" {asked}; kill 0;; esac; done"
    done = subprocess.run(
        ["unshare", "--net", "setsid", "--wait", "bash", "-c", script],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert '{"DocumentIncarnation":1,"Events":[]}' in done.stdout, done.stderr


def test_off_loopback_guests_may_use_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container's network it is called by a name; on loopback that is somebody else's, and pages are refused anywhere."""
    named = {"Metadata": "true", "Host": "emulator:8169"}
    monkeypatch.setenv("FOREWARN_TOKEN", TOKEN)
    with emulating("--guest", "0.0.0.0:0") as (_, lines):
        endpoint = lines[0].split()[1].removeprefix("guest=")
        assert ask(endpoint, headers=named).status == 200
        assert ask(endpoint, headers={**named, "Origin": "http://emulator:8169"}).status == 400
        assert ask(endpoint, headers={**named, "Host": "a:b:c"}).status == 400
    with emulating() as (_, lines):
        assert ask(urls(lines)[0], headers=named).status == 400


def test_a_scenario_goes_on_when_nobody_reads() -> None:
    """As after `| head -1`: guests are served, the steps happen, and SIGTERM still ends it with 0."""
    options = ("--clock", "manual", "--scenario", "user-reboot")
    with emulating(*options) as (process, lines):
        endpoint, operator = urls(lines)
        assert process.stdout is not None
        process.stdout.close()
        ask(endpoint)
        for _ in range(4):
            advance = ask(operator, "POST", "/v1/clock/advance", {"seconds": 3_600}, headers=JSON)
            assert advance.status == 200, advance.raw
        ended = ask(operator, path="/v1/events?status=Completed").json["items"]
        assert [event["type"] for event in ended] == ["Reboot"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
