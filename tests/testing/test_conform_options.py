"""The options of `forewarn conform` that describe an agent: its events, its machine, its restarts, its address."""

import json
import os
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from forewarn.cli.app import build
from forewarn.core.errors import Invalid
from forewarn.core.event_types import EVENT_TYPES
from forewarn.testing.conform import conform
from forewarn.testing.conform.behaviours import BEHAVIOURS
from forewarn.testing.conform.event_kinds import CATALOGUE, EventKind, parse_event
from forewarn.testing.conform.outcomes import FAILED, NOT_REACHED, NOT_SHOWN, PASSED, SKIPPED
from forewarn.testing.conform.report import BehaviourRow, Report
from tests.support.own_network import path
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
# A wrong agent fails after this time and several of its polls.
WRONG_AGENT_PATIENCE_S = 2.0


@pytest.fixture(scope="module", autouse=True)
def agents_on_the_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'src'}")
        yield


def agent_command(name: str) -> list[str]:
    return [sys.executable, "-S", "-m", f"tests.testing.agents.{name}"]


def outcomes(report: Report) -> dict[str, str]:
    return {row.behaviour.name: row.outcome for row in report.rows}


def reasons(report: Report) -> dict[str, str]:
    return {row.behaviour.name: row.reason for row in report.rows}


# -- kinds of events


def test_the_catalogue_has_every_type_and_source() -> None:
    """A new type in the table of event types needs a line in the catalogue. Each kind has its own text."""
    published = {(type_, source) for type_, rules in EVENT_TYPES.items() for source in rules.sources}
    assert published <= {(kind.type, kind.source) for kind in CATALOGUE}
    assert len({str(kind) for kind in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.parametrize(
    "text, shown",
    [
        ("type=Terminate,source=User", "Terminate by User"),
        ("type=freeze, duration=9s", "Freeze of 9s"),
        ("source=PLATFORM,type=REBOOT", "Reboot"),
    ],
)
def test_a_kind_of_event_is_parsed(text: str, shown: str) -> None:
    """Names are accepted in any letter case, and keys in any order."""
    assert str(parse_event(text)) == shown


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "'' is not a kind of event"),
        ("Reboot", "'Reboot' is not a kind of event"),
        ("type=Reboot,type=Freeze", "is not a kind of event"),
        ("source=User", "'source=User' has no type"),
        ("type=Nap", "type: 'Nap' is not one of Freeze, Reboot, Redeploy, Preempt, Terminate"),
        ("type=Reboot,source=Me", "source: 'Me' is not one of Platform, User"),
        ("type=Reboot,duration=long", "'long' is not a duration"),
    ],
)
def test_a_wrong_kind_of_event_is_refused(text: str, message: str) -> None:
    """The message says what to write."""
    with pytest.raises(Invalid, match=re.escape(message)):
        parse_event(text)


def test_what_was_found_but_not_declared_is_not_shown() -> None:
    """An agent for Terminate alone, without `--event`: what Terminate cannot show is not a success."""
    only = ["approves", "among-others", "preempt", "approves-once"]
    report = conform(agent_command("terminator"), only=only, patience_s=WRONG_AGENT_PATIENCE_S, silence_s=PATIENCE_S)
    assert outcomes(report) == {
        "among-others": NOT_SHOWN,
        "approves": PASSED,
        "approves-once": PASSED,
        "preempt": FAILED,
    }
    handles_only = "the agent handles only Terminate, Terminate by User"
    assert reasons(report)["among-others"] == f"it needs an event that can name several machines, and {handles_only}"
    assert reasons(report)["preempt"].startswith(
        "it neither approved nor prepared for it: the agent approves the event"
    )
    assert [str(each.kind) for each in report.events if each.approved] == ["Terminate", "Terminate by User"]
    assert report.json()["events"][-1] == {
        "type": "Terminate",
        "source": "User",
        "duration_s": -1,
        "seen": True,
        "approved": True,
        "prepared": True,
        "reason": "",
    }


def test_a_declared_kind_must_be_approved() -> None:
    """The row says which kinds are missing; the other rows are tested with a kind that the agent handles."""
    events = ["type=Freeze", "type=Terminate"]
    only = ["approves", "several-events"]
    report = conform(
        agent_command("terminator"), events=events, only=only, patience_s=WRONG_AGENT_PATIENCE_S, silence_s=PATIENCE_S
    )
    assert outcomes(report) == {"approves": FAILED, "several-events": PASSED}
    assert reasons(report)["approves"].startswith("it did not approve Freeze: the agent approves the event: not within")


def test_a_failed_row_says_that_requests_exceeded_the_rate_limit() -> None:
    """They may be the cause, so the reason names the row that is about them."""
    report = conform(agent_command("hammering"), only=["too-many-429"], events=["type=Reboot"], patience_s=PATIENCE_S)
    (reason,) = reasons(report).values()
    assert re.search(r"after a 429 .* \(the rate limit refused \d+ of its requests: see does-not-hammer\)$", reason)


@pytest.mark.parametrize("name", ["shortsighted", "parting"])
def test_events_of_other_machines_are_shown_alone(name: str) -> None:
    """An agent that handles only the first event of a document is found out too, and one that ends after its approval."""
    report = conform(
        agent_command(name),
        events=["type=Reboot", "type=Terminate"],
        only=["own-events-only", "whole-names"],
        patience_s=WRONG_AGENT_PATIENCE_S,
        silence_s=PATIENCE_S,
    )
    assert reasons(report) == {
        "own-events-only": "it approved events that name only vm-1: Terminate",
        "whole-names": "it approved events that name only vm-01: Terminate",
    }


def test_a_source_that_the_service_never_publishes() -> None:
    """An agent that waits for a Terminate by a user gets one. What the platform's document cannot show is skipped."""
    report = conform(
        agent_command("user_terminator"),
        events=["type=Terminate,source=User"],
        only=["own-events-only", "approves", "several-events", "unknown-things"],
        patience_s=PATIENCE_S,
    )
    assert outcomes(report) == {
        "own-events-only": PASSED,
        "approves": PASSED,
        "several-events": PASSED,
        "unknown-things": SKIPPED,
    }


def test_two_restarts_by_a_user_cannot_overlap() -> None:
    """A user can request each type once at a time, so the row is skipped if the agent declares nothing else."""
    report = conform(
        agent_command("toy"), events=["type=Reboot,source=User"], only=["several-events"], patience_s=PATIENCE_S
    )
    assert outcomes(report) == {"several-events": SKIPPED}
    assert report.exit_code == 5


def test_an_old_version_does_not_show_a_preempt() -> None:
    """The reason of the row is the api-version and not the agent's patience."""
    script = (
        'while :; do curl -s -H Metadata:true "$1/metadata/scheduledevents?api-version=2017-08-01"; sleep 0.2; done'
    )
    (row,) = conform(
        ["sh", "-c", script, "agent", "{endpoint}"],
        only=["preempt"],
        events=["type=Preempt"],
        without=["approval", "prepare"],
        patience_s=WRONG_AGENT_PATIENCE_S,
        silence_s=PATIENCE_S,
    ).rows
    assert row.outcome == FAILED
    assert row.reason.endswith("its api-version does not show Preempt: 2017-11-01 and later do")


# -- outcomes


@pytest.mark.parametrize(
    "names, code",
    [
        ([PASSED, SKIPPED], 0),
        ([PASSED, NOT_SHOWN, NOT_REACHED, FAILED], 1),
        ([PASSED, NOT_SHOWN, NOT_REACHED], 4),
        ([PASSED, NOT_SHOWN], 5),
        ([SKIPPED], 5),
        ([], 5),
    ],
)
def test_the_exit_code_says_what_is_missing(names: list[str], code: int) -> None:
    """Only a run in which something passed, and the rest was skipped, is a success."""
    rows = [BehaviourRow(behaviour, outcome) for behaviour, outcome in zip(BEHAVIOURS, names, strict=False)]
    report = Report(("a",), rows, 1.0)
    assert report.exit_code == report.json()["exit_code"] == code
    for outcome in (PASSED, FAILED, NOT_REACHED, NOT_SHOWN, SKIPPED):
        assert report.json()[outcome.replace(" ", "_")] == names.count(outcome)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build(), ["conform", *arguments])


def test_a_failed_row_has_the_timeline(tmp_path: Path) -> None:
    """The command, JSON and JUnit show the requests of the agent and the changes of the event."""
    files = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml")]
    options = ["--only", "own-events-only", "--event", "type=Reboot", "--patience", "60s"]
    result = run(*files, *options, "--", *agent_command("greedy"))
    assert result.exit_code == 1
    (row,) = json.loads((tmp_path / "r.json").read_text())["behaviours"]
    assert any("vm-0 POST /metadata/scheduledevents" in line and "-> 200" in line for line in row["timeline"])
    assert any("event approved" in line for line in row["timeline"])
    (case,) = ElementTree.parse(tmp_path / "r.xml").getroot()
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("type") == FAILED
    assert "event approved" in (failure.text or "")
    assert "event approved" in result.stdout
    assert "Reboot            yes       yes" in result.stdout


def test_rows_that_were_not_shown_are_errors(tmp_path: Path) -> None:
    """An agent that only watches has nothing to show here: JUnit has an error, and the exit code is 5."""
    options = ["--only", "own-events-only", "--without", "approval,prepare", "--patience", "60s"]
    result = run("--junit", str(tmp_path / "r.xml"), *options, "--", *agent_command("watcher"))
    assert result.exit_code == 5
    assert "0 passed, 0 failed, 1 not shown, 0 skipped" in result.stdout
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "1", "0")
    error = suite.find("testcase/error")
    assert error is not None
    assert error.get("type") == NOT_SHOWN


# -- the machine


def test_the_machine_may_have_the_name_of_a_scale_set(tmp_path: Path) -> None:
    """The agent gets the name, its own events name it, and a longer name contains it."""
    script = 'echo "$CONFORM_MACHINE $1" > "$2"; shift 2; exec "$@"'
    shell = ["sh", "-c", script, "agent", "{machine}", str(tmp_path / "names")]
    report = conform(
        [*shell, *agent_command("toy")],
        machine="vmss_3",
        events=["type=Reboot"],
        only=["whole-names", "among-others"],
        patience_s=PATIENCE_S,
    )
    assert outcomes(report) == {"whole-names": PASSED, "among-others": PASSED}
    assert (tmp_path / "names").read_text().split() == ["vmss_3", "vmss_3"]
    (row,) = conform(
        agent_command("greedy"), machine="vmss_3", events=["type=Reboot"], only=["whole-names"], patience_s=PATIENCE_S
    ).rows
    assert row.reason == "it approved events that name only vmss_31: Reboot"


# -- restarts


def test_a_supervised_agent_may_end() -> None:
    """With `--restarts` an agent that ends after each poll passes; without them each of its rows fails."""
    only = ["approves", "own-events-only", "server-errors", "killed-before-undoing"]
    command = agent_command("one_shot")
    report = conform(command, only=only, restarts=True, events=["type=Reboot"], patience_s=PATIENCE_S)
    assert report.names(PASSED) == [each.name for each in BEHAVIOURS if each.name in only], reasons(report)
    report = conform(command, only=["server-errors"], events=["type=Reboot"], patience_s=PATIENCE_S)
    assert reasons(report) == {"server-errors": "the agent ended, with exit code 2"}


def test_an_agent_that_never_gets_far_fails_although_it_is_restarted() -> None:
    """The reason has the number of restarts."""
    # Long enough for the agent to end and be started again on a busy machine.
    (row,) = conform(["sh", "-c", "exit 3"], only=["polls-often"], restarts=True, patience_s=8.0).rows
    assert row.outcome == NOT_REACHED
    assert re.search(r"the agent has not polled for 8 s \(it ended and was started again \d+ times\)", row.reason)


# -- the address


def page_blocks() -> list[str]:
    """The commands of the guide for an agent with a built-in address: without root, and with it."""
    page = (ROOT / "docs/guide/conformance-built-in-address.md").read_text("utf-8")
    return re.findall(r"```\w+\n(.*?)```", page, re.DOTALL)


@pytest.mark.parametrize("block", page_blocks(), ids=["unshare", "ip-netns"])
def test_an_agent_with_a_built_in_address(block: str) -> None:
    """The commands of the guide run in a network namespace of their own."""
    agent = ["python", *agent_command("builtin")[1:]]
    command = f"--only approves --only own-events-only --event type=Reboot -- {shlex.join(agent)}"
    script = re.sub(r"^# ", "", block, flags=re.MULTILINE)
    script = script.replace("-- ./my-agent", command).replace("conform-lab", f"conform-{uuid.uuid4()}")
    done = subprocess.run(
        ["sh", "-c", script],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{path()}"},
    )  # fmt: skip
    assert "2 passed, 0 failed, 0 skipped" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["--listen", "192.0.2.7:80"],
            "cannot listen on 192.0.2.7:80: Cannot assign requested address: add the address",
        ),
        (["--listen", "8169"], "--listen: '8169' is not an address: write it like 169.254.169.254:80"),
        (["--listen", "127.0.0.1:99999"], "--listen: '127.0.0.1:99999' is not an address"),
        (["--machine", "a/b"], "--machine: "),
        (["--event", "type=Nap"], "--event: type: 'Nap' is not one of Freeze"),
        (["--event", "type=Reboot"] * 21, "--event: 21 kinds of events: at most 20 are allowed"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], message: str) -> None:
    """The message comes before an agent is started."""
    result = run(*arguments, "--", "sh", "-c", "exit 1")
    assert isinstance(result.exception, Invalid)
    assert message in str(result.exception)


def test_a_kind_knows_what_it_can_show() -> None:
    """A Terminate names one machine, has notice, and leaves no machine behind."""
    terminate, reboot, by_user = map(parse_event, ("type=Terminate", "type=Reboot", "type=Reboot,source=User"))
    for suits in (
        EventKind.may_name_several_machines,
        EventKind.may_start_without_notice,
        EventKind.leaves_the_machine,
    ):
        assert (suits(terminate), suits(reboot)) == (False, True)
    assert (by_user.may_be_repeated(), by_user.is_from_the_platform()) == (False, False)
