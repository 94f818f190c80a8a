"""`forewarn conform`: a correct agent passes, and each wrong agent fails exactly the rows of its mistake."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from forewarn.cli.app import build
from forewarn.core.errors import Invalid
from forewarn.testing import conform as kit
from forewarn.testing.conform import REAL_TIME, SHORTENED, conform
from forewarn.testing.conform.behaviours import BEHAVIOURS
from forewarn.testing.conform.outcomes import FAILED, NOT_REACHED, NOT_SHOWN, OUTCOMES, PASSED, SKIPPED
from forewarn.testing.conform.report import BehaviourRow, Report
from forewarn.testing.conform.trial import CLAIMS, PATIENCE_POLLS, AgentSetup, Delays, Trial
from tests.support.agent_command import agent_command
from tests.support.budget import BUDGET
from tests.support.commands import run_here
from tests.support.processes import is_gone
from tests.support.waiting import PATIENCE_S, until
from tests.testing.http_guest import send

ROOT = Path(__file__).parents[2]
AGENTS = Path(__file__).parent / "agents"
AGENTS_AT_ONCE = 3
ROWS_AT_ONCE = 8
# A wrong agent fails after this time and several of its polls.
WRONG_AGENT_PATIENCE_S = 2.0
SCRIPT = ["sh", str(AGENTS / "shell.sh"), "{endpoint}", "{machine}"]
NAMES = [each.name for each in BEHAVIOURS]
# The claims of an agent that does more than watch.
ACTIVE_CLAIMS = ("approval", "prepare", "recover", "restart")
# Far longer than the six seconds after which the restless agent and the script hang up, and longer than four failures of the
# former take.
LONG_DELAYS = Delays(first_answer_s=60, outage_s=9.0)

# All rows that each wrong agent fails, with the slowest agents first.
WRONG: dict[str, set[str]] = {
    "sluggish": {"polls-often", "ends-when-told"},
    "premature": {
        "undoes-after-the-event",
        "undoes-a-cancelled-event",
        "lost-approval",
        "killed-before-approving",
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
    # After a lost approval the next document has the same incarnation, so the agent ignores it.
    "ordered": {"incarnation-reset", "lost-approval"},
    "hammering": {"does-not-hammer", "too-many-429"},
    # It also prepares for events of other machines.
    "greedy": {"own-events-only", "whole-names", "prepares-once"},
    "nervous": {"approves-once"},
    "shouting": {"ids-as-received"},
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
# Most agents are correct about kinds of events, so a few kinds are enough to test them. These must find them all.
FEW_KINDS = ("type=Reboot", "type=Freeze", "type=Preempt")
ALL_KINDS = ("toy", "narrow", "brittle", "greedy")
# The rows that do not need a document.
DOCUMENTLESS = {"metadata-header", "api-version", "ignores-proxies"}
# The rows that each wrong agent does not reach: two never get a document, one undoes nothing.
NOT_REACHED_ROWS = {
    "headless": set(NAMES) - DOCUMENTLESS,
    "latest": set(NAMES) - DOCUMENTLESS,
    "premature": {"killed-before-undoing"},
}
# A wrong agent is tested for one in so many of the rows that it must pass, because each run of a row costs two processes. In
# a soak test it is tested for all rows. Different agents are tested for different rows.
PASSING_ROWS_APART = 4
# The rows that need an approval or a preparation, of an agent that claims neither.
WATCHING = {"own-events-only", "whole-names", "no-notice", "cut-body", "bad-json"}
# Written down before the code: the options and the rows of five agents, by their names.
EXPECTED: dict[str, dict[str, Any]] = tomllib.loads((AGENTS / "expected.toml").read_text("utf-8"))


@pytest.fixture(scope="module", autouse=True)
def agents_on_the_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'src'}")
        yield


def small_agent_command(name: str) -> list[str]:
    return [sys.executable, "-S", "-m", f"tests.testing.agents.{name}"]


def report_text(report: Report) -> str:
    return "\n".join(f"{row.behaviour.name}: {row.outcome} {row.reason}\n{row.output}" for row in report.rows)


def rows_to_test(name: str) -> list[str]:
    """Return the rows for which to test a small agent: those that it must not pass, and all or some of the others."""
    if name not in WRONG or name == "brittle" or BUDGET >= 10:
        return NAMES
    missing = WRONG[name] | NOT_REACHED_ROWS.get(name, set())
    some = NAMES[list(WRONG).index(name) % PASSING_ROWS_APART :: PASSING_ROWS_APART]
    return [each for each in NAMES if each in missing or each in some]


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """Test all the small agents, several at once because they mostly wait."""

    def test_agent(name: str) -> Report:
        command = SCRIPT if name == "shell" else small_agent_command(name)
        without = ACTIVE_CLAIMS if name == "brittle" else ()
        delays = LONG_DELAYS if name in ("restless", "shell") else SHORTENED
        patience_s = PATIENCE_S if name == "toy" else WRONG_AGENT_PATIENCE_S
        return conform(
            command,
            without=without,
            only=rows_to_test(name),
            events=EXPECTED[name].get("events", ()) if name in EXPECTED else () if name in ALL_KINDS else FEW_KINDS,
            parallel=ROWS_AT_ONCE,
            patience_s=patience_s,
            silence_s=PATIENCE_S,
            delays=delays,
        )

    names = [*WRONG, *EXPECTED, "toy"]
    with ThreadPoolExecutor(AGENTS_AT_ONCE) as pool:
        return dict(zip(names, pool.map(test_agent, names), strict=True))


def test_our_agent_passes_everything(tmp_path: Path) -> None:
    """It uses the example configuration. In a soak test the delays are as long as in reality."""
    config = Path(shutil.copy(ROOT / "examples/conform-agent.toml", tmp_path))
    config.chmod(0o600)
    soak = BUDGET >= 10
    command = agent_command("run", "--config", str(config))
    report = conform(command, parallel=ROWS_AT_ONCE, patience_s=PATIENCE_S, delays=REAL_TIME if soak else SHORTENED)
    assert report.names(PASSED) == NAMES, report_text(report)


def test_a_correct_small_agent_passes_everything(reports: dict[str, Report]) -> None:
    """It shares no code with our agent, so the test needs only the protocol."""
    assert reports["toy"].names(PASSED) == NAMES, report_text(reports["toy"])


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_agent_fails_only_the_rows_of_its_mistake(name: str, reports: dict[str, Report]) -> None:
    """All other rows that are tested pass, are skipped, are not shown, or are not reached."""
    report = reports[name]
    assert [row.behaviour.name for row in report.rows] == rows_to_test(name)
    assert set(report.names(FAILED)) == WRONG[name], report_text(report)
    assert set(report.names(NOT_REACHED)) == NOT_REACHED_ROWS.get(name, set())
    assert set(report.names(NOT_SHOWN)) == (WATCHING if name == "brittle" else set())
    skipped = {each.name for each in BEHAVIOURS if set(each.claims) & set(ACTIVE_CLAIMS)}
    assert set(report.names(SKIPPED)) == (skipped if name == "brittle" else set())


@pytest.mark.parametrize("name", EXPECTED)
def test_a_report_is_what_was_written_down_before(name: str, reports: dict[str, Report]) -> None:
    """Five agents: approves everything, handles only Terminate, does nothing, only drains, approves for others."""
    report, expected = reports[name], EXPECTED[name]
    for outcome in (FAILED, NOT_REACHED, NOT_SHOWN, SKIPPED):
        assert report.names(outcome) == expected.get(outcome.replace(" ", "_"), []), report_text(report)
    for row in report.rows:
        if row.outcome == FAILED and "reason" in expected:
            assert row.reason.endswith(f": {expected['reason']}")


def test_the_expected_rows_are_five_agents_and_known_rows() -> None:
    """A misspelt row would never be found missing."""
    assert len(EXPECTED) == 5
    known = {*(each.replace(" ", "_") for each in OUTCOMES), "events", "reason"}
    for expected in EXPECTED.values():
        assert set(expected) <= known
        for outcome in OUTCOMES:
            assert set(expected.get(outcome.replace(" ", "_"), [])) <= set(NAMES)


def test_an_agent_without_a_document_does_not_reach_other_rows(reports: dict[str, Report]) -> None:
    """The reason names the rows to look at, refused polls end the rows, and the report is not a success."""
    report = reports["headless"]
    for row in report.rows:
        if row.outcome == NOT_REACHED:
            assert row.reason.startswith(
                "it never got a document (see metadata-header, api-version, ignores-proxies): "
            )
            assert row.reason.endswith("polls were refused, the last with 400")
    assert report.exit_code == 1


def test_an_agent_that_only_watches_must_keep_running(reports: dict[str, Report]) -> None:
    """It is not enough that the document reached the agent."""
    reasons = {row.reason for row in reports["brittle"].rows if row.outcome == FAILED}
    assert reasons == {"the agent ended, with exit code 1"}


def test_every_behaviour_can_fail(reports: dict[str, Report]) -> None:
    """For each row there is an agent that fails it."""
    assert set(NAMES) == {name for report in reports.values() for name in report.names(FAILED)}


def test_every_behaviour_is_passed_by_several_wrong_agents(reports: dict[str, Report]) -> None:
    """A row that fails agents for other mistakes than its own would be noticed."""
    passed = Counter(name for wrong in WRONG for name in reports[wrong].names(PASSED))
    assert min(passed[name] for name in NAMES) >= 2, passed


def test_every_behaviour_has_its_texts() -> None:
    """Names are unique, claims are known, and there are at least twenty behaviours with two sentences each."""
    assert len(NAMES) == len(set(NAMES)) >= 20
    for each in BEHAVIOURS:
        assert set(each.claims) <= set(CLAIMS)
        assert len(each.checks) > 20
        assert len(each.why) > 20


def test_the_row_of_a_crashed_agent_has_its_output(reports: dict[str, Report]) -> None:
    """The row has the exit code and the last lines of the output."""
    (row,) = [row for row in reports["fragile"].rows if row.behaviour.name == "gone-410"]
    assert row.reason == "the agent ended, with exit code 1"
    assert row.output.splitlines()[-1] == "ValueError: 410"


POLLING_SCRIPT = """
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
def test_every_poll_up_to_the_first_document_is_checked(header: str, first: str, then: str, reasons: list[str]) -> None:
    """Headers and versions are parsed as the service does. An agent may try a later version and fall back."""
    report = conform(
        ["sh", "-c", POLLING_SCRIPT, "agent", "{endpoint}", header, first, then],
        only=["metadata-header", "api-version"],
        patience_s=PATIENCE_S,
    )
    for row, reason in zip(report.rows, reasons, strict=True):
        assert row.reason.endswith(reason)
        assert row.outcome == (FAILED if reason else PASSED), row.reason


def test_the_end_of_a_long_output_is_kept(tmp_path: Path) -> None:
    """The output is not written to disk."""
    script = f'yes | tr -d "\\n" | head -c 1000000; du -sk "$CONFORM_FOLDER" > {tmp_path}/size; echo " its last words"; exit 3'
    (row,) = conform(["sh", "-c", script], only=["metadata-header"], patience_s=PATIENCE_S).rows
    assert row.reason == "the agent ended, with exit code 3"
    assert row.output.endswith("yyy its last words")
    assert len(row.output) < 4_096
    assert int((tmp_path / "size").read_text().split()[0]) < 100


def test_behaviours_without_a_claim_are_skipped() -> None:
    """The reason names the missing claim."""
    only = ["approves", "prepares-once", "lost-approval"]
    report = conform(small_agent_command("mute"), without=["approval", "recover"], only=only, patience_s=PATIENCE_S)
    assert [(row.behaviour.name, row.outcome, row.reason) for row in report.rows] == [
        ("approves", SKIPPED, "the agent does not claim approval"),
        ("prepares-once", PASSED, ""),
        ("lost-approval", SKIPPED, "the agent does not claim approval"),
    ]
    assert report.exit_code == 0


def test_the_agent_gets_placeholders_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only known names in braces are replaced. The environment has them too, and no proxy variables."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("OURS", "kept")
    script = f'echo "$@" > {tmp_path}/arguments; env > {tmp_path}/env; exit 3'
    arguments = ["{endpoint}", "--me={machine}", '{"json": 1}', "{prepared}", "{recovered}", "{folder}", "{other}"]
    conform(["sh", "-c", script, "agent", *arguments], only=["ends-when-told"], patience_s=PATIENCE_S)
    endpoint, me, brace, one, prepared, recovered, folder, other = (tmp_path / "arguments").read_text().split()
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


def impatient_trial(folder: Path, command: Sequence[str] = ("sleep", "600")) -> Trial:
    delays = Delays(first_answer_s=0, outage_s=0)
    setup = AgentSetup(
        command=command,
        claims=frozenset(),
        environment=os.environ,
        delays=delays,
        patience_s=0,
        silence_s=PATIENCE_S,
    )
    return Trial(setup, folder, threading.Event())


def test_polls_after_a_look_at_the_agent_do_not_count_against_it(tmp_path: Path) -> None:
    """The thread that examines the agent may stand still after it has looked, and the agent polls and acts meanwhile."""
    trial = impatient_trial(tmp_path)
    acted: list[str] = []

    def look() -> list[str]:
        found = list(acted)
        for _ in range(0 if found else PATIENCE_POLLS):
            send(trial.emulator.endpoint)
        acted.append("approved")
        return found

    with trial.run_emulator():
        assert trial.until(look, "the agent approves") == ["approved"]


@pytest.mark.parametrize(("ends", "outcome"), [((False, False, True), PASSED), ((False, False, False), FAILED)])
def test_an_agent_has_three_tries_to_end(ends: tuple[bool, ...], outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may delay the end of an agent that ends on SIGTERM. For each try the agent is started anew."""
    results, processes = iter(ends), set()

    def ends_on_sigterm(trial: Trial, _: float) -> bool:
        assert trial.agent._process is not None
        processes.add(trial.agent._process)
        return next(results)

    monkeypatch.setattr(Trial, "ends_on_sigterm", ends_on_sigterm)
    (row,) = conform(small_agent_command("toy"), only=["ends-when-told"], patience_s=PATIENCE_S).rows
    assert (row.outcome, len(processes)) == (outcome, 3)


def test_an_agent_may_end_after_it_has_acted(tmp_path: Path) -> None:
    """If it does both after the thread that examines it has looked, its act counts."""
    trial = impatient_trial(tmp_path)
    acted: list[str] = []

    def look() -> list[str]:
        found = list(acted)
        if not found:
            acted.append("approved")
            trial.agent.terminate()
            until(lambda: trial.agent.has_ended)
        return found

    with trial.run_emulator():
        trial.start()
        assert trial.until(look, "the agent approves") == ["approved"]


# It starts slowly, saves nothing, and prepares for an event in every status.
SLOW_AND_FORGETFUL = """
import time
from tests.testing.agents.forgetful import Forgetful

class SlowAndForgetful(Forgetful):
    def handle(self, events):
        super().handle([{**event, "EventStatus": "Scheduled"} for event in events])

time.sleep(2)
SlowAndForgetful().run()
"""


def test_a_poll_before_a_kill_is_none_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of what an agent remembers waits for the agent that was started again, however late the kill comes."""
    kill = Trial.kill

    def kill_late(trial: Trial) -> None:
        """Let the agent poll before the kill, as if this thread had stood still."""
        before = trial.emulator.log.last_number
        until(lambda: trial.emulator.log.last_number > before)
        kill(trial)

    monkeypatch.setattr(Trial, "kill", kill_late)
    command = [sys.executable, "-S", "-c", SLOW_AND_FORGETFUL]
    only, events = ["killed-after-approving"], ["type=Reboot"]
    (row,) = conform(command, only=only, events=events, patience_s=PATIENCE_S).rows
    assert row.reason == "it prepared 2 times for one event"


# It says in a file that it has sent a request, and reads no answer.
SENDING = r"""
import os, socket, time
from pathlib import Path
host, _, port = os.environ["FOREWARN_ENDPOINT"].removeprefix("http://").rpartition(":")
with socket.create_connection((host, int(port))) as connection:
    connection.sendall(b"GET /metadata/scheduledevents HTTP/1.1\r\nHost: x\r\n\r\n")
    Path(os.environ["CONFORM_FOLDER"], "sent").touch()
    time.sleep(600)
"""


def test_a_killed_agent_sends_no_later_request(tmp_path: Path) -> None:
    """What it had sent is in the log after the kill, even if the emulator was too busy to read it before."""
    trial = impatient_trial(tmp_path, [sys.executable, "-S", "-c", SENDING])
    held, goes_on, killed = threading.Event(), threading.Event(), threading.Event()
    logged: list[int] = []

    def hold() -> None:
        held.set()
        goes_on.wait(PATIENCE_S)

    def kill() -> None:
        trial.kill()
        logged.append(trial.emulator.log.last_number)
        killed.set()

    with trial.run_emulator():
        trial.emulator._loop.call_from_thread(hold)
        assert held.wait(PATIENCE_S)
        trial.start()
        until((tmp_path / "sent").exists)
        threading.Thread(target=kill).start()
        until(lambda: trial.agent._process is None)
        goes_on.set()
        assert killed.wait(PATIENCE_S)
    assert logged == [1]


def test_the_agents_processes_are_killed(tmp_path: Path) -> None:
    """Child processes are killed too, also if the agent ended before them."""
    script = f"sleep 1000 & echo $$ $! > {tmp_path}/pids; exit 3"
    report = conform(["sh", "-c", script], only=["metadata-header"], patience_s=PATIENCE_S)
    assert report.names(FAILED) == ["metadata-header"]
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    until(lambda: all(is_gone(pid) for pid in pids))


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_ends_the_agents_too(signal_number: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM, SIGHUP and SIGKILL end the agents, also if the command runs in the background of a script."""
    script = f"echo $$ $CONFORM_FOLDER > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 1000"
    options = ["--only", "metadata-header", "--patience", "60s"]
    command = [sys.executable, "-m", "forewarn", "conform", *options, "--", "sh", "-c", script]
    # A shell ignores SIGINT for its background commands.
    background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def reset_sighup() -> None:
        """Undo nohup, because an ignored signal is inherited."""
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    with subprocess.Popen(background, stderr=subprocess.DEVNULL, env=environment, preexec_fn=reset_sighup) as program:
        until((tmp_path / "pid").exists)
        program.send_signal(signal_number)
        assert program.wait(PATIENCE_S) != 0
    pid, folder = (tmp_path / "pid").read_text().split()
    until(lambda: is_gone(int(pid)))
    assert Path(folder).exists() == (signal_number == signal.SIGKILL)


# -- the command


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build(), ["conform", *arguments])


def test_the_command_prints_a_table_and_writes_files(tmp_path: Path) -> None:
    """It writes JSON and JUnit XML, and exits with 0 if the agent has everything it claims."""
    files = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml")]
    only = ["--only", "approves", "--only", "api-version", "--only", "killed-before-undoing", "--without", "restart"]
    result = run("--patience", "60s", *files, *only, "--", *small_agent_command("toy"))
    assert result.exit_code == 0, result.output
    assert "approves               passed" in result.stdout
    assert "killed-before-undoing  skipped  0.0      the agent does not claim restart" in result.stdout
    found = json.loads((tmp_path / "r.json").read_text())
    assert (found["passed"], found["failed"], found["skipped"]) == (2, 0, 1)
    assert [each["outcome"] for each in found["behaviours"]] == ["passed", "passed", "skipped"]
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "0", "1")
    assert [case.get("name") for case in suite] == ["api-version", "approves", "killed-before-undoing"]


def test_the_agents_output_is_escaped(tmp_path: Path) -> None:
    """Markup, control characters and invalid UTF-8 do not break the reports. A failed row gives exit code 1."""
    script = r'printf "\033[31m<&]]>\001\377 \342\202\254\n"; exit 3'
    files = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml")]
    result = run(*files, "--only", "metadata-header", "--patience", "60s", "--", "sh", "-c", script)
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


def test_rows_that_were_not_reached_are_errors(tmp_path: Path) -> None:
    """The command prints the agent's output once, JUnit has errors, and the exit code is 4."""
    files = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml")]
    only = ["--only", "approves", "--only", "no-notice"]
    result = run(*files, *only, "--patience", "60s", "--", "sh", "-c", "echo bad configuration; exit 3")
    assert result.exit_code == 4
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


def test_real_time_makes_outages_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--real-time` an outage lasts its time on the agent's clock too."""
    assert Delays(first_answer_s=120, outage_s=70.0) == REAL_TIME
    monkeypatch.setattr(kit, "REAL_TIME", Delays(first_answer_s=1, outage_s=4.0))
    file = tmp_path / "r.json"
    result = run(
        "--patience", "60s", "--real-time", "--json", str(file), "--only", "gone-410", "--", *small_agent_command("toy")
    )
    assert result.exit_code == 0, result.output
    (row,) = json.loads(file.read_text())["behaviours"]
    assert row["seconds"] > 4


@pytest.mark.parametrize(
    "arguments, message",
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
def test_wrong_usage_ends_with_2(arguments: list[str], message: str) -> None:
    """The message comes before an agent is started."""
    done = run_here("conform", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_the_list_has_all_behaviours_and_claims() -> None:
    """`--list` prints what is tested and why, and tests nothing."""
    result = run("--list")
    assert result.exit_code == 0
    for each in BEHAVIOURS:
        assert each.checks in result.stdout
        assert each.why in result.stdout
    for claim in CLAIMS.items():
        assert all(text in result.stdout for text in claim)


def test_a_missing_program_is_a_failed_row(tmp_path: Path) -> None:
    """The program's name may contain a placeholder, so it is known only when the agent starts."""
    report = conform([f"{tmp_path}/{{machine}}"], only=["metadata-header"])
    assert [row.reason for row in report.rows] == [
        f"{tmp_path}/vm-0 cannot be started: there is no such program, or it is not executable"
    ]


def test_a_report_counts_its_rows() -> None:
    """The last line of the output has the numbers."""
    one, two = BEHAVIOURS[:2]
    report = Report(("a",), (BehaviourRow(one, PASSED), BehaviourRow(two, FAILED, "no")), 1.25)
    assert str(report) == "1 passed, 1 failed, 0 skipped, in 1.2 s"
    assert report.exit_code == 1
    report = Report(("a",), (BehaviourRow(one, PASSED), BehaviourRow(two, NOT_REACHED, "no")), 1.25)
    assert str(report) == "1 passed, 0 failed, 1 not reached, 0 skipped, in 1.2 s"
    assert report.exit_code == 4
    with pytest.raises(Invalid):
        conform([])
