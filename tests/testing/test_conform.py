"""`forewarn conform`: it passes what is right, and fails exactly the right rows of agents that are wrong in a known way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from forewarn.cli.app import app
from forewarn.cli.app import run as main
from forewarn.core.errors import Invalid
from forewarn.testing.conform import conform
from forewarn.testing.conform.behaviours import BEHAVIOURS
from forewarn.testing.conform.report import FAILED, PASSED, SKIPPED, Report, Row
from forewarn.testing.conform.stage import CLAIMS

ROOT = Path(__file__).parents[2]
AGENTS = Path(__file__).parent / "agents"
# For agents that ask four times a second: what they have not done by then they do not do.
PATIENCE_S = 5.0
AGENTS_AT_ONCE = 5
SCRIPT = ["sh", str(AGENTS / "shell.sh"), "{endpoint}", "{machine}"]
NAMES = [each.name for each in BEHAVIOURS]

# Each wrong agent: the rows it must fail, and others that it must pass all the same.
WRONG: dict[str, tuple[set[str], set[str]]] = {
    "headless": ({"metadata-header"}, {"api-version", "ignores-proxies"}),
    "latest": ({"api-version"}, {"metadata-header", "ignores-proxies"}),
    "sluggish": ({"polls-often", "ends-when-told"}, {"metadata-header", "approves"}),
    "hammering": ({"does-not-hammer", "too-many-429"}, {"approves", "server-errors"}),
    "greedy": ({"own-events-only", "whole-names"}, {"among-others", "approves", "prepares-first", "unknown-things"}),
    "narrow": ({"among-others", "several-events", "preempt", "unknown-things"}, {"approves", "no-notice"}),
    "nervous": ({"approves-once"}, {"prepares-once", "several-events", "lost-approval"}),
    "hasty": ({"prepares-first", "failed-preparation"}, {"approves", "approves-once", "prepares-once"}),
    "eager": (
        {"prepares-once", "no-notice", "killed-after-approving"},
        {"approves", "approves-once", "prepares-first"},
    ),
    "ordered": ({"incarnation-reset"}, {"approves-once", "several-events", "undoes-a-cancelled-event"}),
    "forgetful": (
        {"killed-before-undoing"},
        {"killed-before-approving", "killed-after-approving", "undoes-after-the-event"},
    ),
    "premature": (
        {"undoes-after-the-event", "undoes-a-cancelled-event", "lost-approval", "killed-before-approving"},
        {"approves-once", "prepares-first"},
    ),
    "mute": ({"approves"}, {"polls-often", "prepares-once", "undoes-a-cancelled-event"}),
    "fragile": (
        {"gone-410", "not-found-404", "server-errors", "cut-body", "bad-json", "connection-reset"},
        {"approves", "slow-first-answer"},
    ),
}
# The one that is no Python is tried for everything.
SHELL = {
    "ignores-proxies",
    "whole-names",
    "failed-preparation",
    "too-many-429",
    "bad-json",
    "slow-first-answer",
    "killed-before-undoing",
}


@pytest.fixture(scope="module", autouse=True)
def _agents_are_found() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'src'}")
        yield


def toy(name: str) -> list[str]:
    return [sys.executable, "-m", f"tests.testing.agents.{name}"]


def told(report: Report) -> str:
    return "\n".join(f"{row.behaviour.name}: {row.outcome} {row.reason}\n{row.output}" for row in report.rows)


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """Of all the small agents, several at once: most of the time is waiting."""

    def tried(name: str) -> Report:
        only = set().union(*WRONG[name]) if name in WRONG else ()
        command = SCRIPT if name == "shell" else toy(name)
        return conform(command, only=only, parallel=6, patience_s=PATIENCE_S)

    names = ["shell", "toy", *WRONG]
    with ThreadPoolExecutor(AGENTS_AT_ONCE) as pool:
        return dict(zip(names, pool.map(tried, names), strict=True))


def test_our_agent_passes_everything(tmp_path: Path) -> None:
    """As the example has it, in well under a minute."""
    config = Path(shutil.copy(ROOT / "examples/conform-agent.toml", tmp_path))
    config.chmod(0o600)
    report = conform([sys.executable, "-m", "forewarn.guest", "run", "--config", str(config)], parallel=12)
    assert report.names(PASSED) == NAMES, told(report)
    assert report.seconds < 60


def test_a_small_agent_that_is_right_passes_everything(reports: dict[str, Report]) -> None:
    """It shares no code with ours: what is asked for is the protocol, not our way of speaking it."""
    assert reports["toy"].names(PASSED) == NAMES, told(reports["toy"])


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_agent_fails_exactly_the_right_rows(name: str, reports: dict[str, Report]) -> None:
    """Those that its fault is about, and no other."""
    must_fail, must_pass = WRONG[name]
    assert set(reports[name].names(FAILED)) == must_fail, told(reports[name])
    assert set(reports[name].names(PASSED)) == must_pass


def test_the_shell_script_fails_exactly_the_right_rows(reports: dict[str, Report]) -> None:
    """POSIX sh and curl, over every behaviour there is."""
    assert set(reports["shell"].names(FAILED)) == SHELL, told(reports["shell"])
    assert set(reports["shell"].names(PASSED)) == set(NAMES) - SHELL


def test_every_behaviour_can_fail(reports: dict[str, Report]) -> None:
    """A row that passes whatever the agent does says nothing."""
    assert set(NAMES) == {name for report in reports.values() for name in report.names(FAILED)}


def test_there_are_enough_and_each_says_why() -> None:
    """Twenty at least, all with different names, known claims and two sentences."""
    assert len(NAMES) == len(set(NAMES)) >= 20
    for each in BEHAVIOURS:
        assert set(each.claims) <= set(CLAIMS)
        assert len(each.checks) > 20
        assert len(each.why) > 20


def test_an_agent_that_crashes_fails_with_its_last_words(reports: dict[str, Report]) -> None:
    """The exit code, and the lines that say what happened."""
    (row,) = [row for row in reports["fragile"].rows if row.behaviour.name == "gone-410"]
    assert row.reason == "the agent ended, with exit code 1"
    assert row.output.splitlines()[-1] == "ValueError: 410"


def test_what_is_not_claimed_is_not_tried() -> None:
    """It is skipped, and said so."""
    report = conform(toy("mute"), without=["approval", "recover"], only=["approves", "prepares-once", "lost-approval"])
    assert [(row.behaviour.name, row.outcome, row.reason) for row in report.rows] == [
        ("approves", SKIPPED, "the agent does not claim approval"),
        ("prepares-once", PASSED, ""),
        ("lost-approval", SKIPPED, "the agent does not claim approval"),
    ]
    assert report.ok


def test_placeholders_and_environment_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our names in braces, nothing else; and the same as variables. A proxy of ours is not the agent's trouble."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("OURS", "kept")
    script = f'echo "$@" > {tmp_path}/words; env > {tmp_path}/env; exit 3'
    words = ["{endpoint}", "--me={machine}", '{"json": 1}', "{prepared}", "{recovered}", "{folder}", "{other}"]
    conform(["sh", "-c", script, "agent", *words], only=["ends-when-told"])
    endpoint, me, brace, one, prepared, recovered, folder, other = (tmp_path / "words").read_text().split()
    assert endpoint.startswith("http://127.0.0.1:")
    assert (me, brace, one, other) == ("--me=vm-0", '{"json":', "1}", "{other}")
    assert (Path(prepared).name, Path(recovered).name) == ("prepared", "recovered")
    variables = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert variables["FOREWARN_ENDPOINT"] == variables["CONFORM_ENDPOINT"] == endpoint
    assert variables["CONFORM_PREPARED"] == prepared
    assert variables["CONFORM_FOLDER"] == folder
    assert variables["OURS"] == "kept"
    assert "HTTP_PROXY" not in variables
    assert not Path(folder).exists()


def gone(pid: int) -> bool:
    """Also as a zombie that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def until(true: object, what: str) -> None:
    deadline_s = time.monotonic() + 20
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def test_nothing_of_the_agent_is_left_running(tmp_path: Path) -> None:
    """Its children neither, also when it ended before them."""
    script = f"sleep 1000 & echo $$ $! > {tmp_path}/pids; exit 3"
    report = conform(["sh", "-c", script], only=["metadata-header"])
    assert report.names(FAILED) == ["metadata-header"]
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    until(lambda: all(gone(pid) for pid in pids), "they are gone")


def test_ended_early_it_leaves_nothing_behind(tmp_path: Path) -> None:
    """SIGTERM to the command ends the agents too."""
    script = f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; sleep 1000"
    command = [sys.executable, "-m", "forewarn", "conform", "--only", "metadata-header", "--", "sh", "-c", script]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as program:
        until((tmp_path / "pid").exists, "the agent runs")
        program.send_signal(signal.SIGTERM)
        assert program.wait(10) != 0
    pid = int((tmp_path / "pid").read_text())
    until(lambda: gone(pid), "it is gone")


# -- the command


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["conform", *words])


def test_the_command_tells_writes_and_ends_with_a_code(tmp_path: Path) -> None:
    """A table for people, JSON and JUnit XML for programs; 0 when all that is claimed is there."""
    files = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml")]
    only = ["--only", "approves", "--only", "api-version", "--only", "killed-before-undoing", "--without", "restart"]
    result = run(*files, *only, "--", *toy("toy"))
    assert result.exit_code == 0, result.output
    assert "approves               passed" in result.stdout
    assert "killed-before-undoing  skipped  0.0      the agent does not claim restart" in result.stdout
    found = json.loads((tmp_path / "r.json").read_text())
    assert (found["passed"], found["failed"], found["skipped"]) == (2, 0, 1)
    assert [each["outcome"] for each in found["behaviours"]] == ["passed", "passed", "skipped"]
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "0", "1")
    assert [case.get("name") for case in suite] == ["api-version", "approves", "killed-before-undoing"]


def test_what_the_agent_says_cannot_break_the_report(tmp_path: Path) -> None:
    """Markup, control characters and bytes that are no text; 1 when a row failed."""
    script = r'printf "\033[31m<&]]>\001\377 \342\202\254\n"; exit 3'
    files = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml")]
    result = run(*files, "--only", "metadata-header", "--", "sh", "-c", script)
    assert result.exit_code == 1
    assert "\033" not in result.stdout
    (row,) = json.loads((tmp_path / "r.json").read_text())["behaviours"]
    assert row["reason"] == "the agent ended, with exit code 3"
    assert row["output"] == "\033[31m<&]]>\001\ufffd €"
    (case,) = ElementTree.parse(tmp_path / "r.xml").getroot()
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == row["reason"]
    assert case.findtext("system-out") == "\ufffd[31m<&]]>\ufffd\ufffd €"


@pytest.mark.parametrize(
    "words, complaint",
    [
        ([], "there is no command"),
        (["--", "no-such-agent"], "no-such-agent: there is no such program"),
        (["--without", "approval,flying", "--", "sh"], "--without: 'flying' is unknown: use approval, prepare"),
        (["--only", "nothing", "--", "sh"], "--only: 'nothing' is unknown: use metadata-header"),
        (["--parallel", "0", "--", "sh"], "--parallel: 0 behaviours at once: use 1 to 32"),
        (["--patience", "long", "--", "sh"], "'long' is not a duration"),
        (["--json", "/nowhere/r.json", "--", "sh"], "/nowhere/r.json: cannot be written"),
    ],
)
def test_wrong_usage_is_told_before_anything_runs(
    words: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the exit code 2, as everywhere."""
    monkeypatch.setattr(sys, "argv", ["forewarn", "conform", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_the_list_says_what_is_tried_and_why() -> None:
    """Without trying anything."""
    result = run("--list")
    assert result.exit_code == 0
    for each in BEHAVIOURS:
        assert each.checks in result.stdout
        assert each.why in result.stdout
    for claim in CLAIMS.items():
        assert all(word in result.stdout for word in claim)


def test_a_program_that_goes_away_is_a_failed_row(tmp_path: Path) -> None:
    """Not a traceback: the first word may be filled in only then."""
    report = conform([f"{tmp_path}/{{machine}}"], only=["metadata-header"])
    assert [row.reason for row in report.rows] == [f"{tmp_path}/vm-0 cannot be started: No such file or directory"]


def test_a_report_counts_its_rows() -> None:
    """What the last line says."""
    one, two = BEHAVIOURS[:2]
    report = Report(("a",), (Row(one, PASSED), Row(two, FAILED, "no")), 1.25)
    assert str(report) == "1 passed, 1 failed, 0 skipped, in 1.2 s"
    assert not report.ok
    with pytest.raises(Invalid):
        conform([])
