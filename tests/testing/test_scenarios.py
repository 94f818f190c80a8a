"""Scenarios: the results are those in the files, steps run at their times on every clock, and errors have their line."""

import re
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forewarn.app.service import Service
from forewarn.cli.app import build
from forewarn.core.errors import ForewarnError, Invalid, NotFound, Refused
from forewarn.core.model import Actor
from forewarn.guest import Client
from forewarn.guest.errors import NotReady
from forewarn.service.settings import Settings
from forewarn.store import EventQuery
from forewarn.store.memory import MemoryStore
from forewarn.testing.emulator import Emulator
from forewarn.testing.scenarios import Scenario, parse_scenario, scenario, scenario_names
from forewarn.testing.scenarios.player import ScenarioRun, emulator_for, play_alone, play_on
from forewarn.testing.stories import START, play, story_ids
from forewarn.testing.story_text import parse_story
from tests.support.waiting import PATIENCE_S
from tests.testing.http_guest import send

ROOT = Path(__file__).parents[2]
SHIPPED = [
    "asleep-for-a-day",
    "cancelled-maintenance",
    "degraded-hardware",
    "hardware-failure",
    "host-update",
    "live-migration",
    "one-host-several-machines",
    "overlapping-events",
    "platform-redeploy",
    "reboot-only-a-freeze",
    "scale-in-terminate",
    "short-notice",
    "spot-preemption",
    "user-reboot",
    "user-redeploy",
]
FLEET = "fleet\nscope emulated availability-set\nmachine emulated/vm-0\n\n"


def played_lines(played: Scenario, clock: str = "manual") -> list[str]:
    lines: list[str] = []
    play_alone(played, clock=clock, say=lines.append)
    return lines


def test_all_scenarios_are_shipped() -> None:
    """The package contains exactly these scenarios."""
    assert list(scenario_names()) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_the_results_are_those_in_the_file(name: str, request: pytest.FixtureRequest) -> None:
    """`--rewrite` writes the results into the file."""
    path = ROOT / "src/forewarn/testing/scenarios" / f"{name}.txt"
    text = path.read_text("utf-8")
    played = play(text, MemoryStore(), name)
    if request.config.getoption("--rewrite"):
        path.write_text(played, "utf-8")
    assert played == text


@pytest.mark.parametrize("name", SHIPPED)
def test_a_scenario_begins_with_its_description(name: str) -> None:
    """The comments say what happens, when it happens in real life, and what a machine should do."""
    shipped = scenario(name)
    when, should = shipped.description
    assert len(shipped.title) > 40
    assert when.startswith("In real life: ")
    assert should.startswith("A machine should: ")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_scenario_plays_without_waiting_on_a_manual_clock(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing sleeps, and the printed results are those of the file in every run."""

    def refuse_sleep(_: float) -> None:
        raise AssertionError("a real sleep")

    monkeypatch.setattr(time, "sleep", refuse_sleep)
    shipped = scenario(name)
    lines = played_lines(shipped)
    expected = [line for step in shipped.steps for line in step.expected.splitlines() if line != "ok"]
    results = [line.strip() for line in lines if line.startswith(" ") and not re.search(r"E\d+ is [0-9A-F]{8}-", line)]
    assert results == expected
    assert played_lines(shipped) == lines


def test_a_scenario_plays_on_a_scaled_clock() -> None:
    """Fifteen minutes of notice at 6000x are 150 ms, and the steps are the same."""
    shipped = scenario("reboot-only-a-freeze")
    begun_s = time.monotonic()
    lines = played_lines(shipped, "6000x")
    assert time.monotonic() - begun_s >= 0.15
    assert [line.split()[1] for line in lines if line.startswith("+")] == [
        step.command.split()[0] for step in shipped.steps
    ]


def start_on_service(played: Scenario, lines: list[str]) -> tuple[Service, ScenarioRun]:
    """Start a scenario on a service with a manual clock; its output goes to `lines`."""
    service = Service(Settings(store="memory:", clock="manual"), store=MemoryStore(), new_id=story_ids())
    service.control.apply_fleet(played.fleet, Actor("test"))
    return service, play_on(service, played, say=lines.append)


def test_steps_happen_at_their_times_in_one_long_advance() -> None:
    """The event starts and ends at its own times while the clock is moved once."""
    lines: list[str] = []
    service, playing = start_on_service(scenario("user-reboot"), lines)
    service.ticker.advance(60)
    assert lines[-1].strip() == "waiting for a machine of emulated to poll"
    assert not playing.ended.is_set()
    service.control.enable("emulated", Actor("a guest"))
    service.ticker.advance(3_600)
    assert playing.ended.is_set()
    # Times count from the first poll.
    assert lines[-1].strip() == "E1 Completed emulated#0 vm-0, started +15m, ended +16m30s"


def test_an_approval_ends_the_wait_for_the_start() -> None:
    """`until E1 Started` ends when a guest approves the event."""
    lines: list[str] = []
    service, playing = start_on_service(scenario("user-reboot"), lines)
    service.control.enable("emulated", Actor("a guest"))
    service.ticker.advance(10)
    (event,) = service.store.events(EventQuery()).events
    service.control.approve("emulated", "vm-0", [event.id], Actor("emulated/vm-0"))
    service.ticker.advance(90)
    assert playing.ended.is_set()
    assert lines[-1].strip() == "E1 Completed emulated#0 vm-0, started +10s, ended +1m40s"


def test_the_first_poll_begins_a_scenario_on_an_emulator() -> None:
    """The emulator has the scenario's settings, and one long advance plays its steps."""
    lines: list[str] = []
    shipped = scenario("asleep-for-a-day").with_machines(2)
    with emulator_for(shipped, seed=1) as emulator, closing(Client(emulator.endpoint)) as client:
        assert emulator.service.settings.disable_after_s == 86_400
        assert emulator.service.settings.executor == "external"
        playing = play_on(emulator.service, shipped, say=lines.append)
        emulator.advance(hours=1)
        assert not any("restart" in line for line in lines)
        client.poll()
        emulator.advance(hours=1)
        assert client.poll().incarnation == "4"
        emulator.advance(hours=25)
        assert "waiting for a machine of emulated to poll" in lines[-1]
        # The scenario continues at once, so this is the first or already the second document of the new epoch.
        assert client.poll().etag in ('"1-2"', '"2-2"')
        emulator.advance(hours=1)
        assert playing.ended.wait(PATIENCE_S)
    assert sum("started" in line for line in lines) == 2


def play_with_guest(played: Scenario, *, approves: bool) -> tuple[list[str], list[float]]:
    """Play a scenario for a guest that approves at once or never; return the printed lines and the notice the guest had."""
    lines: list[str] = []
    notices_s: list[float] = []
    with emulator_for(played, seed=1) as emulator, closing(Client(emulator.endpoint)) as client:
        playing = play_on(emulator.service, played, say=lines.append)
        for _ in range(100):
            tag = None
            while tag != (latest := poll(emulator, client, approves=approves, notices_s=notices_s)):
                tag = latest  # poll until nothing changes, before the clock is moved
            if playing.ended.is_set():
                return lines, notices_s
            due, now = emulator.service.ticker.next_wakeup(), emulator.clock.now()
            emulator.advance(max(1.0, (due - now).total_seconds()) if due is not None else 1.0)
    raise AssertionError("the scenario does not end:\n" + "\n".join(lines))


def poll(emulator: Emulator, client: Client, *, approves: bool, notices_s: list[float]) -> str:
    """Poll, perhaps approve, and let the ticker do what is due; return the document's tag."""
    try:
        document = client.poll()
    except NotReady:
        return ""  # the machine was terminated and is unknown now
    for event in document.events:
        if not event.started:
            notices_s.append(document.time_left_s(event, document.received_s) or 0.0)
            if approves:
                client.approve(event)
    emulator.service.ticker.cycle_until_idle()
    return document.etag


@pytest.mark.parametrize("approves", [True, False], ids=["approves at once", "never approves"])
@pytest.mark.parametrize("name", SHIPPED)
def test_a_scenario_ends_whether_or_not_a_guest_approves(name: str, approves: bool) -> None:
    """No step is refused, and the guest has the notice that the scenario describes."""
    lines, notices_s = play_with_guest(scenario(name), approves=approves)
    assert not any(line.strip().startswith("error ") for line in lines), "\n".join(lines)
    assert bool(notices_s) is (name != "hardware-failure")
    # A step may wait for the ticker's thread, and then the clock is moved by a second.
    notice_s = {"short-notice": 240, "spot-preemption": 30, "degraded-hardware": 7 * 86_400}.get(name)
    assert notice_s is None or notice_s - 10 <= max(notices_s) <= notice_s


def test_the_command_emulate_plays_a_scenario(tmp_path: Path) -> None:
    """It prints `ready` and then each step."""
    # The usual hour for an order lasts 0.6 s here.
    text = scenario("user-reboot").text.replace("executor=external", "executor=external order_timeout=30d")
    (tmp_path / "user-reboot.txt").write_text(text)
    command = [
        sys.executable,
        "-m",
        "forewarn",
        "emulate",
        "--port",
        "0",
        "--clock",
        "6000x",
        "--scenario",
        str(tmp_path / "user-reboot.txt"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            endpoint = program.stdout.readline().split()[1].removeprefix("guest=")
            with closing(Client(endpoint)) as client:
                client.poll()
            assert any("E1 Completed emulated#0 vm-0" in line for line in program.stdout)
            program.terminate()
            assert program.wait(PATIENCE_S) == 0
        finally:
            program.kill()


def test_a_scenario_may_have_more_machines() -> None:
    """They are in the same scope, and the scenario does not affect them."""
    larger = scenario("user-reboot").with_machines(3)
    assert [name for _, name in larger.fleet.machines] == ["vm-0", "vm-1", "vm-2"]
    assert played_lines(larger) == played_lines(scenario("user-reboot"))
    assert [machine.addresses for machine in larger.fleet_with_addresses().machines.values()] == [
        ("127.0.0.1",),
        ("127.0.0.2",),
        ("127.0.0.3",),
    ]
    with pytest.raises(Invalid, match="from 1 to 250"):
        larger.with_machines(0)


WRONG = {
    "": "it has no steps",
    "enable emulated\n": "line 1: it has no machine",
    FLEET + "explode\n": "line 5: there is no command 'explode'",
    FLEET + "ticker stopped\n": "line 5: there is no command 'ticker'",
    FLEET + "service executor=simulated\n": "line 5: `service` must be at the beginning",
    "service executor=command\n\n" + FLEET: "line 1: a scenario cannot set 'executor=command'",
    "service command=/bin/sh\n\n" + FLEET: "line 1: a scenario cannot set 'command=/bin/sh'",
    "service store=sqlite:/tmp/x\n\n" + FLEET: "line 1: a scenario cannot set 'store=",
    "service nonsense=1\n\n" + FLEET: "line 1: 'nonsense' is not a setting",
    "service disable_after=soon\n\n" + FLEET: "line 1: 'soon' is not a duration",
    "fleet\nscope emulated\n": "line 1: 'scope emulated' is neither",
    "fleet\nscope emulated nowhere\n": "line 1: 'nowhere' is not a valid ScopeKind",
    "fleet\nscope emulated availability-set\nmachine emulated/vm-0 colour=red\n": "line 1: 'colour=red' is not one of",
    "fleet\nscope emulated availability-set\nmachine emulated/vm-0 ud=x\n": "line 1: invalid literal",
    FLEET + "advance later\n": "line 5: 'later' is not a duration",
    FLEET + "advance\n": "line 5: '' is not a duration",
    FLEET + "until E1\n": "line 5: 'until E1': write it like",
    FLEET + "until E1 Exploded\n": "line 5: 'until E1 Exploded': write it like",
    FLEET + "----\nok\n": "line 5: there is no command above",
    FLEET + "enable emulated\n----\nok\n----\n": "line 8: a second `----`",
    FLEET + "advance 1s\n\n" * 1_001: "more than 1000 steps",
    FLEET[:-1]
    + "".join(f"machine emulated/m{n}\n" for n in range(250)): "line 1: 251 machines: a scenario has at most 250",
    "#" * 1_048_577: "longer than 1048576",
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_a_wrong_scenario_is_refused_with_its_line(text: str) -> None:
    """The error comes before a step is played."""
    with pytest.raises(Invalid, match=re.escape(WRONG[text])):
        parse_scenario(text, "mine.txt")


WRONG_WHEN_PLAYED: dict[str, tuple[type[ForewarnError], str]] = {
    "until E9 Started\n": (NotFound, "line 5: "),
    "schedule Rebot emulated/vm-0\n": (Invalid, "line 5: 'schedule Rebot emulated/vm-0': 'Rebot' is not a valid"),
    "schedule Reboot emulated/vm-0 not_befor=+1h\n": (Invalid, "line 5: .*'not_befor' is neither a machine nor one of"),
    "schedule Reboot vm-0\n": (Invalid, "line 5: .*'vm-0' is neither"),
    "schedule Reboot emulated/vm-0 duration=long\n": (Invalid, "line 5: .*invalid literal"),
    "schedule 'Reboot\n": (Invalid, "line 5: .*No closing quotation"),
    "cancel\n": (Invalid, "line 5: 'cancel': cancel: missing a required argument"),
    "cancel M1 self=1\n": (Invalid, "line 5: .*'self' is not an option"),
    "cancel M1\nenable emulated\n": (Invalid, "line 5: .*put an empty line between steps"),
    "scope nowhere\n": (Invalid, "line 5: 'scope nowhere': 'nowhere'"),
    "schedule Reboot emulated/vm-0 emergency\n\nuntil E1 gone\n": (Refused, "E1 to be gone, but nothing is due"),
}


@pytest.mark.parametrize("text", WRONG_WHEN_PLAYED, ids=range(len(WRONG_WHEN_PLAYED)))
def test_a_wrong_step_ends_the_scenario(text: str) -> None:
    """The error has the line of the step."""
    kind, message = WRONG_WHEN_PLAYED[text]
    with pytest.raises(kind, match=message):
        played_lines(parse_scenario(FLEET + text, "mine.txt"))


def test_a_scenario_does_not_wait_for_ever_on_a_scaled_clock() -> None:
    """If nothing is due that could end the wait, the scenario ends with an error."""
    text = FLEET + "schedule Reboot emulated/vm-0 emergency\n\nuntil E1 gone\n"
    with pytest.raises(Refused, match="E1 to be gone, but nothing is due"):
        played_lines(parse_scenario(text, "mine.txt"), "6000x")


def test_a_scenario_continues_after_a_refusal_of_the_service() -> None:
    """The result is the error that an operator would get."""
    lines = played_lines(parse_scenario(FLEET + "schedule Terminate emulated/vm-0\n\nevents\n", "mine.txt"))
    assert [line.strip() for line in lines[1::2]] == [
        "error refused: Terminate needs a scope of kind placement-group: machine emulated/vm-0 is in a scope of kind"
        " availability-set",
        "no events",
    ]


def test_steps_have_their_lines_and_comments() -> None:
    """The line of a step is the line of its command."""
    steps, rest = parse_story("# one\n\nenable a\n\n# two\nenable b\n----\nok\n\n# end\n")
    assert [(step.line, step.lead, step.command, step.expected) for step in steps] == [
        (3, "# one\n\n", "enable a", ""),
        (6, "# two\n", "enable b", "ok\n"),
    ]
    assert rest == "# end\n"


def test_the_command_line_lists_shows_and_plays(tmp_path: Path) -> None:
    """`list`, `show` and `run` work for shipped scenarios and for files."""
    runner = CliRunner()
    listed = runner.invoke(build(), ["scenario", "list"])
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == SHIPPED
    shown = runner.invoke(build(), ["scenario", "show", "user-reboot"]).stdout
    assert shown == scenario("user-reboot").text
    (tmp_path / "mine.txt").write_text(shown, "utf-8")
    ran = runner.invoke(build(), ["scenario", "run", str(tmp_path / "mine.txt"), "--machines", "2"])
    assert ran.exit_code == 0
    assert ran.stdout == "\n".join([scenario("user-reboot").title, *played_lines(scenario("user-reboot"))]) + "\n"
    assert runner.invoke(build(), ["scenario", "run", "user-reboot", "--clock", "system"]).exit_code != 0
    seeded = [
        runner.invoke(build(), ["scenario", "run", "user-reboot", "--seed", seed]).stdout for seed in ("1", "1", "2")
    ]
    assert seeded[0] == seeded[1] != seeded[2]


CHECKED = {
    "schedule Terminate emulated/vm-0\n": ("mine.txt: line 5: schedule Terminate", "+ error refused: "),
    "schedule Terminate emulated/vm-0\n----\nerror refused: no\n": (
        "- error refused: no",
        "+ error refused: Terminate needs",
    ),
    "events\n----\nE1 Started\n": ("mine.txt: line 5: events\n- E1 Started\n+ no events\n",),
    "events\n----\nno events\n\nevents\n": (),
}


@pytest.mark.parametrize("text", CHECKED, ids=range(len(CHECKED)))
def test_check_prints_differences(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A different result, or an error without an expected result, is printed with its line, and the exit code is 1."""
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text(FLEET + text, "utf-8")
    done = CliRunner().invoke(build(), ["scenario", "run", "mine.txt", "--check"])
    assert done.exit_code == (1 if CHECKED[text] else 0), done.stdout
    assert bool(done.stdout) == bool(CHECKED[text])
    assert all(part in done.stdout for part in CHECKED[text]), done.stdout


def test_check_plays_the_file_unchanged() -> None:
    """A shipped scenario passes, and options that change the scenario are refused."""
    runner = CliRunner()
    assert runner.invoke(build(), ["scenario", "run", "user-reboot", "--check"]).exit_code == 0
    refused = runner.invoke(build(), ["scenario", "run", "user-reboot", "--check", "--machines", "2"])
    assert "this plays the file unchanged" in str(refused.exception)


def test_a_scenario_plays_to_its_end_if_printing_fails() -> None:
    """A step happens before it is printed."""

    def say(line: str) -> None:
        raise BrokenPipeError(line)

    shipped = scenario("user-reboot")
    with emulator_for(shipped, seed=1) as emulator:
        playing = play_on(emulator.service, shipped, say=say)
        send(emulator.endpoint)
        for _ in range(100):
            with suppress(BrokenPipeError):
                emulator.advance(minutes=1)
        assert playing.ended.is_set()
        (event,) = emulator.service.store.events(EventQuery()).events
        assert event.status == "Completed"


def test_a_file_may_have_no_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is not a shipped scenario may be a file in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text(FLEET, "utf-8")
    assert scenario("mine").name == "mine"


def test_unknown_and_unreadable_scenarios_are_refused(tmp_path: Path) -> None:
    """The message says whether the name, the file or its encoding is wrong."""
    with pytest.raises(NotFound, match="there is no scenario 'nope': asleep-for-a-day"):
        scenario("nope")
    with pytest.raises(NotFound, match="No such file"):
        scenario(str(tmp_path / "nope.txt"))
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match="not UTF-8"):
        scenario(str(tmp_path / "bytes.txt"))


def test_times_count_from_the_start_of_the_clock() -> None:
    """The first step of a scenario without guests is at +0s, in 2030."""
    assert played_lines(scenario("user-reboot"))[0] == "+0s      enable emulated"
    assert START.year == 2030
