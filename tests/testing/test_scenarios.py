"""The shipped scenarios are true, are played at their own times on every clock, and hostile ones are refused with their line."""

import re
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forewarn.app.service import Service
from forewarn.cli.app import app
from forewarn.core.errors import ForewarnError, Invalid, NotFound, Refused
from forewarn.core.model import Actor
from forewarn.guest import Client
from forewarn.guest.errors import NotReady
from forewarn.service.settings import Settings
from forewarn.store import EventQuery
from forewarn.store.memory import MemoryStore
from forewarn.testing.emulator import Emulator
from forewarn.testing.scenarios import Scenario, parse_scenario, scenario, scenario_names
from forewarn.testing.scenarios.player import Play, emulator_for, play_alone, play_on, story_ids
from forewarn.testing.stories import START, play
from forewarn.testing.story_text import parse_story
from tests.support.waiting import PATIENCE_S
from tests.testing.guests import ask

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


def told(found: Scenario, clock: str = "manual") -> list[str]:
    lines: list[str] = []
    play_alone(found, clock=clock, say=lines.append)
    return lines


def test_the_fifteen_are_there() -> None:
    """A scenario that is not packed is one nobody can play."""
    assert list(scenario_names()) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_what_the_file_says_is_what_happens(name: str, request: pytest.FixtureRequest) -> None:
    """A scenario is a story: `--rewrite` writes what is seen into it."""
    path = ROOT / "src/forewarn/testing/scenarios" / f"{name}.txt"
    text = path.read_text("utf-8")
    seen = play(text, MemoryStore(), name)
    if request.config.getoption("--rewrite"):
        path.write_text(seen, "utf-8")
    assert seen == text


@pytest.mark.parametrize("name", SHIPPED)
def test_it_opens_with_what_it_is_and_what_to_do(name: str) -> None:
    """What it is, when it happens in real life, what a machine should do."""
    found = scenario(name)
    when, should = found.told
    assert len(found.title) > 40
    assert when.startswith("In real life: ")
    assert should.startswith("A machine should: ")


@pytest.mark.parametrize("name", SHIPPED)
def test_it_plays_to_the_end_without_waiting(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the manual clock nothing sleeps, and what is told is what the file has, byte for byte, each time."""

    def nobody_sleeps(_: float) -> None:
        raise AssertionError("a real sleep")

    monkeypatch.setattr(time, "sleep", nobody_sleeps)
    found = scenario(name)
    lines = told(found)
    expected = [line for step in found.steps for line in step.expected.splitlines() if line != "ok"]
    seen = [line.strip() for line in lines if line.startswith(" ") and not re.search(r"E\d+ is [0-9A-F]{8}-", line)]
    assert seen == expected
    assert told(found) == lines


def test_on_a_fast_clock_it_takes_its_own_time() -> None:
    """Fifteen minutes of notice at 6000x are 150 ms, and the same story is told."""
    found = scenario("reboot-only-a-freeze")
    begun_s = time.monotonic()
    lines = told(found, "6000x")
    assert time.monotonic() - begun_s >= 0.15
    assert [line.split()[1] for line in lines if line.startswith("+")] == [
        step.command.split()[0] for step in found.steps
    ]


def on_a_service(found: Scenario, say: list[str]) -> tuple[Service, Play]:
    service = Service(Settings(store="memory:", clock="manual"), store=MemoryStore(), new_id=story_ids())

    service.control.apply_fleet(found.fleet, Actor("test"))
    return service, play_on(service, found, say=say.append)


def test_whoever_moves_the_clock_finds_every_step_done_at_its_moment() -> None:
    """One long advance: the event started and ended at its own times on the way."""

    lines: list[str] = []
    service, playing = on_a_service(scenario("user-reboot"), lines)
    service.ticker.advance(60)
    assert lines[-1].strip() == "waiting for a machine of emulated to ask"
    assert not playing.over.is_set()
    service.control.enable("emulated", Actor("a guest"))
    service.ticker.advance(3_600)
    assert playing.over.is_set()
    # Its times count from when the machine was there.
    assert lines[-1].strip() == "E1 Completed emulated#0 vm-0, started +15m, ended +16m30s"


def test_an_event_that_was_approved_starts_the_rest_early() -> None:
    """The scenario follows what the guest does: `until E1 Started` is over with the approval."""

    lines: list[str] = []
    service, playing = on_a_service(scenario("user-reboot"), lines)
    service.control.enable("emulated", Actor("a guest"))
    service.ticker.advance(10)
    (event,) = service.store.events(EventQuery()).events
    service.control.approve("emulated", "vm-0", [event.id], Actor("emulated/vm-0"))
    service.ticker.advance(90)
    assert playing.over.is_set()
    assert lines[-1].strip() == "E1 Completed emulated#0 vm-0, started +10s, ended +1m40s"


def test_a_guest_of_an_emulator_begins_the_scenario_and_its_owner_moves_the_clock() -> None:
    """`emulate --clock manual --scenario`: the first poll begins it, one long advance plays it, settings are the scenario's."""
    lines: list[str] = []
    found = scenario("asleep-for-a-day").with_machines(2)
    with emulator_for(found, seed=1) as emulator, closing(Client(emulator.endpoint)) as client:
        assert emulator.service.settings.disable_after_s == 86_400
        assert emulator.service.settings.executor == "external"
        playing = play_on(emulator.service, found, say=lines.append)
        emulator.advance(hours=1)
        assert not any("restart" in line for line in lines)
        client.poll()
        emulator.advance(hours=1)
        assert client.poll().incarnation == "4"
        emulator.advance(hours=25)
        assert "waiting for a machine of emulated to ask" in lines[-1]
        # The scenario goes on at once: the first document of the new epoch, or already the second.
        assert client.poll().etag in ('"1-2"', '"2-2"')
        emulator.advance(hours=1)
        assert playing.over.wait(PATIENCE_S)
    assert sum("started" in line for line in lines) == 2


def attended(found: Scenario, *, approves: bool) -> tuple[list[str], list[float]]:
    """Played on an emulator for a machine that approves at once, or never: what was told, and the notice it saw."""
    lines: list[str] = []
    lefts_s: list[float] = []
    with emulator_for(found, seed=1) as emulator, closing(Client(emulator.endpoint)) as client:
        playing = play_on(emulator.service, found, say=lines.append)
        for _ in range(100):
            tag = None
            while tag != (shown := looked(emulator, client, approves=approves, lefts_s=lefts_s)):
                tag = shown  # what came of it is looked at before time goes on
            if playing.over.is_set():
                return lines, lefts_s
            due, now = emulator.service.ticker.next_wakeup(), emulator.clock.now()
            emulator.advance(max(1.0, (due - now).total_seconds()) if due is not None else 1.0)
    raise AssertionError("it does not come to its end:\n" + "\n".join(lines))


def looked(emulator: Emulator, client: Client, *, approves: bool, lefts_s: list[float]) -> str:
    """The document's tag, after everything that is due now."""
    try:
        document = client.poll()
    except NotReady:
        return ""  # terminated: nobody by that name is known any more
    for event in document.events:
        if not event.started:
            lefts_s.append(document.time_left_s(event, document.received_s) or 0.0)
            if approves:
                client.approve(event)
    emulator.service.ticker.cycle_until_idle()
    return document.etag


@pytest.mark.parametrize("approves", [True, False], ids=["approves at once", "never approves"])
@pytest.mark.parametrize("name", SHIPPED)
def test_it_comes_to_its_end_whatever_the_machine_does(name: str, approves: bool) -> None:
    """Real polls and approvals: no step is refused, and the machine sees what the scenario is about."""
    lines, lefts_s = attended(scenario(name), approves=approves)
    assert not any(line.strip().startswith("error ") for line in lines), "\n".join(lines)
    assert bool(lefts_s) is (name != "hardware-failure")
    # A step may have to wait for the ticker's thread, and the clock is moved by a second then.
    notice_s = {"short-notice": 240, "spot-preemption": 30, "degraded-hardware": 7 * 86_400}.get(name)
    assert notice_s is None or notice_s - 10 <= max(lefts_s) <= notice_s


def test_emulate_plays_a_scenario_as_a_program() -> None:
    """The real command: ready, then each step as it happens."""
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
        "user-reboot",
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


def test_more_machines_than_the_scenario_names() -> None:
    """They are there, of the same scope, and not concerned."""
    found = scenario("user-reboot").with_machines(3)
    assert [name for _, name in found.fleet.machines] == ["vm-0", "vm-1", "vm-2"]
    assert told(found) == told(scenario("user-reboot"))
    assert [machine.addresses for machine in found.addressed().machines.values()] == [
        ("127.0.0.1",),
        ("127.0.0.2",),
        ("127.0.0.3",),
    ]
    with pytest.raises(Invalid, match="from 1 to 250"):
        found.with_machines(0)


WRONG = {
    "": "no step in it",
    "enable emulated\n": "line 1: it states no machine",
    FLEET + "explode\n": "line 5: a scenario has no command 'explode'",
    FLEET + "ticker stopped\n": "line 5: a scenario has no command 'ticker'",
    FLEET + "service executor=simulated\n": "line 5: `service` stands at the beginning",
    "service executor=command\n\n" + FLEET: "line 1: a scenario does not set 'executor=command'",
    "service command=/bin/sh\n\n" + FLEET: "line 1: a scenario does not set 'command=/bin/sh'",
    "service store=sqlite:/tmp/x\n\n" + FLEET: "line 1: a scenario does not set 'store=",
    "service nonsense=1\n\n" + FLEET: "line 1: 'nonsense' is no setting",
    "service disable_after=soon\n\n" + FLEET: "line 1: 'soon' is not a duration",
    "fleet\nscope emulated\n": "line 1: 'scope emulated' is neither",
    "fleet\nscope emulated nowhere\n": "line 1: 'nowhere' is not a valid ScopeKind",
    "fleet\nscope emulated availability-set\nmachine emulated/vm-0 colour=red\n": "line 1: 'colour=red' is none of",
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
    """Before anything is played."""
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
    "cancel M1 self=1\n": (Invalid, "line 5: .*'self' is no option"),
    "cancel M1\nenable emulated\n": (Invalid, "line 5: .*put an empty line between steps"),
    "scope nowhere\n": (Invalid, "line 5: 'scope nowhere': 'nowhere'"),
    "schedule Reboot emulated/vm-0 emergency\n\nuntil E1 gone\n": (Refused, "E1 to be gone, and nothing is due"),
}


@pytest.mark.parametrize("text", WRONG_WHEN_PLAYED, ids=range(len(WRONG_WHEN_PLAYED)))
def test_a_step_that_makes_no_sense_ends_the_scenario(text: str) -> None:
    """With the line, and no traceback; a service that others use goes on."""
    kind, message = WRONG_WHEN_PLAYED[text]
    with pytest.raises(kind, match=message):
        told(parse_scenario(FLEET + text, "mine.txt"))


def test_on_a_fast_clock_too_it_does_not_wait_for_what_cannot_come() -> None:
    """An event without notice that nobody finishes stays as it is."""
    text = FLEET + "schedule Reboot emulated/vm-0 emergency\n\nuntil E1 gone\n"
    with pytest.raises(Refused, match="E1 to be gone, and nothing is due"):
        told(parse_scenario(text, "mine.txt"), "6000x")


def test_a_refusal_of_the_service_is_told_and_the_scenario_goes_on() -> None:
    """What an operator would have been answered."""
    lines = told(parse_scenario(FLEET + "schedule Terminate emulated/vm-0\n\nevents\n", "mine.txt"))
    assert [line.strip() for line in lines[1::2]] == [
        "error refused: Terminate needs a scope of kind placement-group: machine emulated/vm-0 is in a scope of kind"
        " availability-set",
        "no events",
    ]


def test_steps_know_their_lines_and_keep_their_comments() -> None:
    """What is told of a step is where it stands in the file."""
    steps, rest = parse_story("# one\n\nenable a\n\n# two\nenable b\n----\nok\n\n# end\n")
    assert [(step.line, step.lead, step.command, step.expected) for step in steps] == [
        (3, "# one\n\n", "enable a", ""),
        (6, "# two\n", "enable b", "ok\n"),
    ]
    assert rest == "# end\n"


def test_the_command_line_lists_shows_and_plays(tmp_path: Path) -> None:
    """List, show and run agree with the library, for shipped scenarios and for files."""
    runner = CliRunner()
    listed = runner.invoke(app, ["scenario", "list"])
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == SHIPPED
    shown = runner.invoke(app, ["scenario", "show", "user-reboot"]).stdout
    assert shown == scenario("user-reboot").text
    (tmp_path / "mine.txt").write_text(shown, "utf-8")
    ran = runner.invoke(app, ["scenario", "run", str(tmp_path / "mine.txt"), "--machines", "2"])
    assert ran.exit_code == 0
    assert ran.stdout == "\n".join([scenario("user-reboot").title, *told(scenario("user-reboot"))]) + "\n"
    assert runner.invoke(app, ["scenario", "run", "user-reboot", "--clock", "system"]).exit_code != 0
    seeded = [runner.invoke(app, ["scenario", "run", "user-reboot", "--seed", seed]).stdout for seed in ("1", "1", "2")]
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
def test_what_the_file_says_is_checked(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference, or an error where nothing is said, is told with its line, and ends with 1."""
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text(FLEET + text, "utf-8")
    done = CliRunner().invoke(app, ["scenario", "run", "mine.txt", "--check"])
    assert done.exit_code == (1 if CHECKED[text] else 0), done.stdout
    assert bool(done.stdout) == bool(CHECKED[text])
    assert all(words in done.stdout for words in CHECKED[text]), done.stdout


def test_checking_takes_the_file_as_it_stands() -> None:
    """The shipped ones agree with theirs; what would make it another is refused."""
    runner = CliRunner()
    assert runner.invoke(app, ["scenario", "run", "user-reboot", "--check"]).exit_code == 0
    refused = runner.invoke(app, ["scenario", "run", "user-reboot", "--check", "--machines", "2"])
    assert "this plays the file unchanged" in str(refused.exception)


def test_a_step_happens_even_if_it_cannot_be_told() -> None:
    """Whoever listens may have gone: the scenario plays to its end."""

    def say(line: str) -> None:
        raise BrokenPipeError(line)

    found = scenario("user-reboot")
    with emulator_for(found, seed=1) as emulator:
        playing = play_on(emulator.service, found, say=say)
        ask(emulator.endpoint)
        for _ in range(100):
            with suppress(BrokenPipeError):
                emulator.advance(minutes=1)
        assert playing.over.is_set()
        (event,) = emulator.service.store.events(EventQuery()).events
        assert event.status == "Completed"


def test_a_file_needs_no_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is none of ours may be a file beside the caller."""
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text(FLEET, "utf-8")
    assert scenario("mine").name == "mine"


def test_a_scenario_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """A name that is none, a file that is none, bytes that are no text."""
    with pytest.raises(NotFound, match="there is no scenario 'nope': asleep-for-a-day"):
        scenario("nope")
    with pytest.raises(NotFound, match="No such file"):
        scenario(str(tmp_path / "nope.txt"))
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match="not UTF-8"):
        scenario(str(tmp_path / "bytes.txt"))


def test_times_begin_where_stories_begin() -> None:
    """The first step of a scenario that is played alone is at +0s of 2030."""
    assert told(scenario("user-reboot"))[0] == "+0s      enable emulated"
    assert START.year == 2030
