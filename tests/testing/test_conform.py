"""`forewarn conform`: it passes what is right, and fails exactly the right rows of agents that are wrong in a known way."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from forewarn.cli.app import app
from forewarn.cli.app import run as main
from forewarn.core.errors import Invalid
from forewarn.testing import conform as kit
from forewarn.testing.conform import REAL_TIME, SHORTENED, conform
from forewarn.testing.conform.behaviours import BEHAVIOURS
from forewarn.testing.conform.report import FAILED, NOT_REACHED, PASSED, SKIPPED, BehaviourRow, Report
from forewarn.testing.conform.trial import CLAIMS, Delays
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
AGENTS = Path(__file__).parent / "agents"
BUDGET = int(os.environ.get("TEST_BUDGET", "1"))
AGENTS_AT_ONCE = 3
ROWS_AT_ONCE = 8
# What a wrong agent lacks is told after so long and several of its turns, however long those take.
CHANCE_S = 2.0
pytestmark = pytest.mark.timeout(600)  # all the small agents are tried before the first test of them
SCRIPT = ["sh", str(AGENTS / "shell.sh"), "{endpoint}", "{machine}"]
NAMES = [each.name for each in BEHAVIOURS]
WATCHER = ("approval", "prepare", "recover", "restart")
# Longer than the six seconds that the restless agent has patience for.
LONGER = Delays(first_answer_s=9, outage_s=9.0)

# Each wrong agent is tried for everything; these are all the rows that it fails, those with the longest waits first.
WRONG: dict[str, set[str]] = {
    "sluggish": {"polls-often", "ends-when-told"},
    "mute": set(NAMES)
    - {"metadata-header", "api-version", "polls-often", "does-not-hammer", "ignores-proxies", "ends-when-told"}
    - {"own-events-only", "whole-names", "prepares-once", "failed-preparation"}
    - {"undoes-a-cancelled-event", "killed-before-undoing"},
    "premature": {
        "undoes-after-the-event",
        "undoes-a-cancelled-event",
        "lost-approval",
        "killed-before-approving",
        "killed-before-undoing",
    },
    # POSIX sh and curl.
    "shell": {
        "ignores-proxies",
        "whole-names",
        "failed-preparation",
        "too-many-429",
        "bad-json",
        "slow-first-answer",
        "killed-before-undoing",
    },
    "forgetful": {"killed-before-undoing"},
    "narrow": {"among-others", "several-events", "preempt", "unknown-things"},
    # With its approval lost, the document that shows the event again is no newer.
    "ordered": {"incarnation-reset", "lost-approval"},
    "hammering": {"does-not-hammer", "too-many-429"},
    # It prepares for the neighbour's events as well.
    "greedy": {"own-events-only", "whole-names", "prepares-once"},
    "nervous": {"approves-once"},
    "hasty": {"prepares-first", "failed-preparation"},
    "eager": {"prepares-once", "no-notice", "killed-after-approving"},
    "fragile": {
        "failed-preparation",
        "gone-410",
        "not-found-404",
        "too-many-429",
        "server-errors",
        "cut-body",
        "bad-json",
        "connection-reset",
        "lost-approval",
    },
    "brittle": {"among-others", "preempt", "incarnation-reset", "unknown-things"},
    "restless": {"gone-410", "not-found-404", "slow-first-answer"},
    "headless": {"metadata-header"},
    "latest": {"api-version"},
}
# Those that never get a document, and the rows that do not need one.
REFUSED = ("headless", "latest")
ASKING = {"metadata-header", "api-version", "ignores-proxies"}


@pytest.fixture(scope="module", autouse=True)
def _agents_are_found() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'src'}")
        yield


def toy(name: str) -> list[str]:
    return [sys.executable, "-S", "-m", f"tests.testing.agents.{name}"]


def told(report: Report) -> str:
    return "\n".join(f"{row.behaviour.name}: {row.outcome} {row.reason}\n{row.output}" for row in report.rows)


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """Of all the small agents, for everything, several at once: most of the time is waiting."""

    def tried(name: str) -> Report:
        command = SCRIPT if name == "shell" else toy(name)
        without = WATCHER if name == "brittle" else ()
        delays = LONGER if name == "restless" else SHORTENED
        patience_s = PATIENCE_S if name == "toy" else CHANCE_S
        return conform(
            command,
            without=without,
            parallel=ROWS_AT_ONCE,
            patience_s=patience_s,
            silence_s=PATIENCE_S,
            delays=delays,
        )

    names = [*WRONG, "toy"]
    with ThreadPoolExecutor(AGENTS_AT_ONCE) as pool:
        return dict(zip(names, pool.map(tried, names), strict=True))


def test_our_agent_passes_everything(tmp_path: Path) -> None:
    """As the example has it; when there is time, in real time."""
    config = Path(shutil.copy(ROOT / "examples/conform-agent.toml", tmp_path))
    config.chmod(0o600)
    soak = BUDGET >= 10
    command = [sys.executable, "-m", "forewarn.guest", "run", "--config", str(config)]
    report = conform(command, parallel=ROWS_AT_ONCE, patience_s=PATIENCE_S, delays=REAL_TIME if soak else SHORTENED)
    assert report.names(PASSED) == NAMES, told(report)


def test_a_small_agent_that_is_right_passes_everything(reports: dict[str, Report]) -> None:
    """It shares no code with ours: what is asked for is the protocol, not our way of speaking it."""
    assert reports["toy"].names(PASSED) == NAMES, told(reports["toy"])


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_agent_fails_exactly_the_right_rows(name: str, reports: dict[str, Report]) -> None:
    """Of all that there are: those that its fault is about, and no other."""
    report = reports[name]
    assert set(report.names(FAILED)) == WRONG[name], told(report)
    assert set(report.names(NOT_REACHED)) == (set(NAMES) - ASKING if name in REFUSED else set())
    claimless = {each.name for each in BEHAVIOURS if set(each.claims) & set(WATCHER)}
    assert set(report.names(SKIPPED)) == (claimless if name == "brittle" else set())


def test_one_fault_that_hides_the_rest_is_told_once(reports: dict[str, Report]) -> None:
    """Whoever is refused everything is told where to look, soon; it has not passed."""
    report = reports["headless"]
    for row in report.rows:
        if row.outcome == NOT_REACHED:
            assert row.reason.startswith(
                "it never got a document (see metadata-header, api-version, ignores-proxies): "
            )
            assert row.reason.endswith("polls were refused, the last with 400")
            assert row.seconds < PATIENCE_S
    assert not report.ok


def test_a_watcher_must_survive_what_it_sees(reports: dict[str, Report]) -> None:
    """That the document was sent to it is not enough."""
    reasons = {row.reason for row in reports["brittle"].rows if row.outcome == FAILED}
    assert reasons == {"the agent ended, with exit code 1"}


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


ASKS = """
url=$1/metadata/scheduledevents
while :; do
    curl -s $2 "$url$3"; sleep 0.2
    curl -s -H Metadata:true "$url$4"; sleep 0.2
done
"""
HEADER, VERSION = "-HMetadata:true", "?api-version=2020-07-01"


@pytest.mark.parametrize(
    "header, first, then, reasons",
    [
        (HEADER, VERSION, VERSION, ["", ""]),
        ("-HMetadata:True", "?API-Version=2020-07-01&x=1", VERSION, ["", ""]),
        ("-HMetadata:yes", VERSION, VERSION, ["its request 1 had Metadata: yes", ""]),
        ("-HAccept:text/plain", VERSION, VERSION, ["its request 1 had no Metadata header", ""]),
        (HEADER, VERSION.replace("?", "?x"), VERSION, ["", "xapi-version=2020-07-01"]),
        (HEADER, f"{VERSION}junk", f"{VERSION}junk", ["", "?api-version=2020-07-01junk"]),
        (HEADER, "?api-version=2031-01-01", VERSION, ["", ""]),
        (HEADER, "?api-version=2031-01-01", "?api-version=2031-01-01", ["", "?api-version=2031-01-01"]),
    ],
)
def test_every_request_up_to_the_first_document_is_looked_at(
    header: str, first: str, then: str, reasons: list[str]
) -> None:
    """As the service reads them; a later version is no mistake in one that falls back."""
    report = conform(
        ["sh", "-c", ASKS, "agent", "{endpoint}", header, first, then],
        only=["metadata-header", "api-version"],
        patience_s=PATIENCE_S,
    )
    for row, reason in zip(report.rows, reasons, strict=True):
        assert row.reason.endswith(reason)
        assert row.outcome == (FAILED if reason else PASSED), row.reason


def test_however_much_it_says_the_end_is_kept(tmp_path: Path) -> None:
    """And nothing of it fills a disk."""
    script = f'yes | tr -d "\\n" | head -c 1000000; du -sk "$CONFORM_FOLDER" > {tmp_path}/size; echo " its last words"; exit 3'
    (row,) = conform(["sh", "-c", script], only=["metadata-header"], patience_s=PATIENCE_S).rows
    assert row.reason == "the agent ended, with exit code 3"
    assert row.output.endswith("yyy its last words")
    assert len(row.output) < 4_096
    assert int((tmp_path / "size").read_text().split()[0]) < 100


def test_what_is_not_claimed_is_not_tried() -> None:
    """It is skipped, and said so."""
    only = ["approves", "prepares-once", "lost-approval"]
    report = conform(toy("mute"), without=["approval", "recover"], only=only, patience_s=PATIENCE_S)
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


def test_nothing_of_the_agent_is_left_running(tmp_path: Path) -> None:
    """Its children neither, also when it ended before them."""
    script = f"sleep 1000 & echo $$ $! > {tmp_path}/pids; exit 3"
    report = conform(["sh", "-c", script], only=["metadata-header"])
    assert report.names(FAILED) == ["metadata-header"]
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    until(lambda: all(gone(pid) for pid in pids))


@pytest.mark.parametrize("told_by", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_ended_early_it_leaves_nothing_behind(told_by: signal.Signals, tmp_path: Path) -> None:
    """Told to end, hung up on or killed, in the background of a script too, it takes the agents along."""
    script = f"echo $$ $CONFORM_FOLDER > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 1000"
    options = ["--only", "metadata-header", "--patience", "60s"]
    command = [sys.executable, "-m", "forewarn", "conform", *options, "--", "sh", "-c", script]
    # As a shell starts what it does not wait for.
    background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def heard() -> None:
        """Also where these tests run under nohup: what is ignored is inherited."""
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    with subprocess.Popen(background, stderr=subprocess.DEVNULL, env=environment, preexec_fn=heard) as program:
        until((tmp_path / "pid").exists)
        program.send_signal(told_by)
        assert program.wait(PATIENCE_S) != 0
    pid, folder = (tmp_path / "pid").read_text().split()
    until(lambda: gone(int(pid)))
    assert Path(folder).exists() == (told_by == signal.SIGKILL)


# -- the command


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["conform", *words])


def test_the_command_tells_writes_and_ends_with_a_code(tmp_path: Path) -> None:
    """A table for people, JSON and JUnit XML for programs; 0 when all that is claimed is there."""
    files = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml")]
    only = ["--only", "approves", "--only", "api-version", "--only", "killed-before-undoing", "--without", "restart"]
    result = run("--patience", "60s", *files, *only, "--", *toy("toy"))
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


def test_what_was_not_reached_is_told_as_such(tmp_path: Path) -> None:
    """To people with the agent's last words, to CI as an error; and it is no success."""
    files = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml")]
    only = ["--only", "approves", "--only", "no-notice"]
    result = run(*files, *only, "--", "sh", "-c", "echo bad configuration; exit 3")
    assert result.exit_code == 1
    assert "0 passed, 0 failed, 2 not reached, 0 skipped" in result.stdout
    assert result.stdout.count("  | bad configuration") == 1
    found = json.loads((tmp_path / "r.json").read_text())
    assert (found["failed"], found["not_reached"]) == (0, 2)
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "2", "0")
    for case in suite:
        error = case.find("error")
        assert error is not None
        assert (error.get("message") or "").endswith("the agent ended, with exit code 3")


def test_in_real_time_trouble_lasts_as_long_as_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what `--real-time` asks for."""
    assert Delays(first_answer_s=120, outage_s=70.0) == REAL_TIME
    monkeypatch.setattr(kit, "REAL_TIME", Delays(first_answer_s=1, outage_s=4.0))
    file = tmp_path / "r.json"
    result = run("--patience", "60s", "--real-time", "--json", str(file), "--only", "gone-410", "--", *toy("toy"))
    assert result.exit_code == 0, result.output
    (row,) = json.loads(file.read_text())["behaviours"]
    assert row["seconds"] > 4


@pytest.mark.parametrize(
    "words, complaint",
    [
        ([], "the command is missing"),
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
    assert [row.reason for row in report.rows] == [
        f"{tmp_path}/vm-0 cannot be started: there is no such program, or it is not executable"
    ]


def test_a_report_counts_its_rows() -> None:
    """What the last line says."""
    one, two = BEHAVIOURS[:2]
    report = Report(("a",), (BehaviourRow(one, PASSED), BehaviourRow(two, FAILED, "no")), 1.25)
    assert str(report) == "1 passed, 1 failed, 0 skipped, in 1.2 s"
    assert not report.ok
    report = Report(("a",), (BehaviourRow(one, PASSED), BehaviourRow(two, NOT_REACHED, "no")), 1.25)
    assert str(report) == "1 passed, 0 failed, 1 not reached, 0 skipped, in 1.2 s"
    assert not report.ok
    with pytest.raises(Invalid):
        conform([])
