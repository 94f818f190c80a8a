"""The agent on a manual clock, with real programs as steps: every case that the documentation defines."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from email.utils import format_datetime
from itertools import pairwise
from pathlib import Path

import pytest

from forewarn.guest.actions import Prepare
from forewarn.guest.agent import Agent
from forewarn.guest.decide import why_not_approved
from forewarn.guest.errors import NotReady
from forewarn.guest.handlers import command
from forewarn.guest.status import describe
from forewarn.guest.steps import Run
from tests.guest.in_process_agent import AgentHarness, step
from tests.support.fake_endpoint import E1, E2, FakeEndpoint, ManualTime, Reply


def why(harness: AgentHarness, event_id: str = E1) -> str:
    assert harness.agent.me is not None
    return why_not_approved(harness.agent.plan, harness.agent.me, harness.agent.state, harness.known(event_id))


def two_steps(folder: Path, *, top: str = "") -> str:
    return top + step(folder, "one", more="required = true") + step(folder, "two")


def test_a_whole_cycle(tmp_path: Path) -> None:
    """Notice, steps in order, approval, start, end, steps undone in reverse, health and return to service each happen once."""
    toml = two_steps(tmp_path) + f'[health]\ncommand = ["/bin/sh", "-c", "echo health >> {tmp_path}/did"]\n'
    harness = AgentHarness(tmp_path, toml)
    harness.run()
    assert harness.kinds == ["start"], "an idle agent remembers nothing new"
    harness.endpoint.announce()
    harness.run(for_s=30)
    assert harness.actions == ["prepare one", "prepare two"]
    assert harness.endpoint.approved == [E1]
    assert not harness.in_service()
    harness.endpoint.start()
    harness.run(for_s=30)
    assert harness.actions == ["prepare one", "prepare two"]
    harness.endpoint.end()
    harness.run(for_s=30)
    assert harness.actions[2:] == ["recover two", "recover one", "health"]
    assert harness.in_service()
    harness.run(for_s=600)
    assert harness.endpoint.approved == [E1]
    assert harness.kinds[-1] == "in-service"
    assert harness.agent.state.quiet


def test_a_cancelled_event_is_undone(tmp_path: Path) -> None:
    """An event that is gone without start or approval is cancelled, and prepared steps are undone."""
    harness = AgentHarness(tmp_path, two_steps(tmp_path, top='approve = "never"\n'))
    harness.endpoint.announce()
    harness.run(lambda: len(harness.actions) == 2, for_s=30)
    assert why(harness) == 'approve = "never"'
    harness.endpoint.end()
    harness.run(for_s=5)
    assert harness.actions[2:] == ["recover two", "recover one"]
    assert harness.endpoint.approved == []
    assert '"how":"cancelled"' in harness.journal.path.read_text()


def drain_for(seconds: float, did: list[str]) -> Callable[[command.Spec, Run], None]:
    """Return a `prepare` that drains for so long and then takes the machine out."""

    def prepare(spec: command.Spec, run: Run) -> None:
        did.append("drain")
        end_s = run.left_s() - seconds
        while run.left_s() > end_s:
            run.pause(0.2)
        did.append("take out")

    return prepare


@pytest.mark.parametrize("finish", [False, True])
def test_a_cancel_interrupts_the_running_step(tmp_path: Path, finish: bool) -> None:
    """It ends within about a second and is undone like a prepared one; `finish = true` lets it end by itself."""
    did: list[str] = []
    shown: list[tuple[str, str, str]] = []

    def show(agent: Agent) -> None:
        shown.extend((agent.activity, event["status"], event["over"]) for event in describe(agent)["events"])

    toml = step(tmp_path, "first") + step(tmp_path, "slow", more=f"required = true\nfinish = {str(finish).lower()}")

    def prepare(spec: command.Spec, run: Run) -> None:
        (drain_for(40, did) if run.step == "slow" else command.prepare)(spec, run)

    harness = AgentHarness(tmp_path, toml, on_change=show, prepare=prepare)
    harness.endpoint.announce()
    harness.endpoint.at(10, harness.endpoint.end)
    began_s = harness.clock.now_s
    harness.run(lambda: bool(harness.agent.state.steps) and harness.in_service(), for_s=60)
    took_s = harness.clock.now_s - began_s
    assert did == (["drain", "take out"] if finish else ["drain"])
    assert (40 if finish else 10) <= took_s <= (45 if finish else 13)
    assert harness.actions == ["prepare first", "recover slow", "recover first"]
    assert harness.endpoint.approved == []
    assert ("prepare 'slow'", "over", "cancelled") in shown, "the status was right while the step still ran"
    assert harness.agent.state.tally.step_failures == 0
    assert harness.agent.state.quiet
    ends = [record for record in harness.journal.records if record["kind"] == "end" and record["step"] == "slow"]
    assert [(each["phase"], each["ok"], each.get("interrupted", False)) for each in ends] == [
        ("prepare", finish, not finish),
        ("recover", True, False),
    ]


def test_a_step_that_another_event_needs_is_not_interrupted(tmp_path: Path) -> None:
    """Only a step that no open event needs any more is."""
    did: list[str] = []
    harness = AgentHarness(tmp_path, step(tmp_path, "one", more="required = true"), prepare=drain_for(20, did))
    harness.endpoint.announce()
    harness.endpoint.announce(E2, in_s=950)
    harness.endpoint.at(5, harness.endpoint.end)
    harness.run(for_s=30)
    assert did == ["drain", "take out"]
    assert harness.endpoint.approved == [E2]


def test_a_step_goes_on_when_its_event_starts(tmp_path: Path) -> None:
    """It may end within its time, also if the start comes under another id."""
    did: list[str] = []
    harness = AgentHarness(tmp_path, step(tmp_path, "one", more="required = true"), prepare=drain_for(20, did))

    def start_as_another() -> None:
        harness.endpoint.end()
        harness.endpoint.announce(E2)
        harness.endpoint.start(E2)

    harness.endpoint.announce()
    harness.endpoint.at(5, harness.endpoint.start)
    harness.endpoint.at(10, start_as_another)
    harness.run(for_s=30)
    assert did == ["drain", "take out"]
    assert harness.actions == []


def test_a_cancel_while_the_steps_are_verified(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The event is not approved, and nothing is logged as a failure."""

    def verify(spec: command.Spec, run: Run) -> bool:
        if run.phase == "approve":
            harness.endpoint.end()
            run.pause(2.0)
        return True

    harness = AgentHarness(tmp_path, flagged(tmp_path), verify=verify)
    harness.endpoint.announce()
    harness.run(lambda: "over" in harness.kinds and harness.in_service(), for_s=10)
    assert harness.endpoint.approved == []
    assert "refused" not in harness.kinds
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_an_event_first_seen_started(tmp_path: Path) -> None:
    """Without notice no step begins; the event counts as missed, and health is checked when it is over."""
    toml = two_steps(tmp_path) + f'[health]\ncommand = ["/bin/sh", "-c", "echo health >> {tmp_path}/did"]\n'
    harness = AgentHarness(tmp_path, toml)
    an_event_before(harness)
    harness.endpoint.announce()
    harness.endpoint.start()
    harness.run(for_s=5)
    assert harness.actions == []
    assert harness.known().missed
    assert harness.agent.state.tally.missed_notices == 1
    assert harness.agent.state.step("one").outcomes[E1] == (False, "the event started without notice")
    assert not harness.in_service()
    harness.endpoint.end()
    harness.run(for_s=5)
    assert harness.actions == ["health"]
    assert harness.in_service()


def an_event_before(harness: AgentHarness) -> None:
    """Run through one event, so that the journal records that nothing is prepared."""
    harness.endpoint.announce(E2)
    harness.run(for_s=5)
    harness.endpoint.end(E2)
    harness.run(harness.in_service, for_s=5)
    (harness.folder / "did").unlink()


def test_a_lost_journal(tmp_path: Path) -> None:
    """With a lost journal, as after a Redeploy onto a new disk, every step is undone, because any may have been prepared."""
    harness = AgentHarness(tmp_path, two_steps(tmp_path))
    harness.endpoint.announce()
    harness.run(for_s=5)
    harness.endpoint.start()
    harness.journal.close()
    shutil.rmtree(tmp_path / "state")
    harness.start("boot-2")
    harness.run(for_s=5)
    harness.restart("boot-2")
    harness.run(for_s=5)
    assert harness.actions == ["prepare one", "prepare two"], "it may not be over yet"
    harness.endpoint.end()
    harness.run(for_s=5)
    assert harness.actions[2:] == ["recover two", "recover one"]
    assert harness.in_service()


def test_a_reboot_that_was_only_a_freeze(tmp_path: Path) -> None:
    """If the machine never went down, the end of the event brings it back."""
    harness = AgentHarness(tmp_path, two_steps(tmp_path))
    harness.endpoint.announce()
    harness.run(for_s=5)
    harness.endpoint.start()
    harness.run(for_s=60)
    harness.endpoint.end()
    harness.run(for_s=5)
    assert harness.actions == ["prepare one", "prepare two", "recover two", "recover one"]
    assert harness.in_service()


def test_the_agent_started_in_the_middle_of_the_notice(tmp_path: Path) -> None:
    """Required steps share what is left of the notice; an optional step that does not fit is skipped."""
    toml = step(tmp_path, "long", more='timeout = "5m"') + step(
        tmp_path, "must", more='required = true\ntimeout = "2m"'
    )
    harness = AgentHarness(tmp_path, toml)
    harness.endpoint.announce(in_s=200)
    harness.run(for_s=5)
    assert harness.actions == ["prepare must"]
    ok, reason = harness.agent.state.step("long").outcomes[E1]
    assert not ok
    assert reason.startswith("it may take 300 s, and ")
    assert harness.endpoint.approved == [E1], "an optional step does not stand in the way"


def test_the_agent_started_while_the_event_is_started(tmp_path: Path) -> None:
    """An unknown event that is Started counts as one without notice."""
    harness = AgentHarness(tmp_path, two_steps(tmp_path))
    an_event_before(harness)
    harness.endpoint.announce(EventType="Freeze")
    harness.endpoint.start()
    harness.run(for_s=5)
    harness.restart()
    harness.run(for_s=5)
    harness.endpoint.end()
    harness.run(for_s=5)
    assert harness.actions == []
    assert harness.in_service()
    assert harness.agent.state.tally.missed_notices == 1


def test_a_preempt_has_thirty_seconds(tmp_path: Path) -> None:
    """The reserve shrinks to a quarter, required steps share the rest, and the event is approved in time."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one", more='required = true\ntimeout = "2m"'))
    harness.endpoint.announce(in_s=30, EventType="Preempt")
    harness.run(for_s=3)
    assert harness.actions == ["prepare one"]
    assert harness.endpoint.approved == [E1]
    assert 7 <= harness.known().reserve_s <= 7.5
    assert 20 < harness.agent.state.step("one").share_s <= 22


def test_nothing_is_begun_without_time(tmp_path: Path) -> None:
    """A required step that would get less than a second does not begin, and the event is not approved."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one", more="required = true"))
    harness.endpoint.announce(in_s=2)
    harness.run(for_s=1)
    assert harness.actions == []
    assert why(harness) == "required step 'one' is not prepared: no time is left: 1 s"
    assert harness.endpoint.approved == []


def test_a_failing_required_step_is_never_approved(tmp_path: Path) -> None:
    """The other steps are still prepared, and everything that began is undone afterwards."""
    toml = step(tmp_path, "bad", more="required = true", prepare="exit 3") + step(tmp_path, "good")
    harness = AgentHarness(tmp_path, toml)
    harness.endpoint.announce()
    harness.run(for_s=100)
    assert why(harness) == "required step 'bad' is not prepared: sh ended with 3"
    harness.endpoint.start()
    harness.run(for_s=5)
    harness.endpoint.end()
    harness.run(for_s=5)
    assert harness.actions == ["prepare good", "recover good", "recover bad"]
    assert harness.endpoint.approved == []


def test_a_step_that_does_not_verify_has_failed(tmp_path: Path) -> None:
    """The result of verify decides, not the exit code of prepare."""
    toml = '[[steps]]\nname = "one"\nrequired = true\ncommand = { prepare = ["true"], verify = ["false"] }\n'
    harness = AgentHarness(tmp_path, toml)
    harness.endpoint.announce()
    harness.run(for_s=5)
    assert "its verify says that it is not prepared" in why(harness)


FLAGGED = """
[[steps]]
name = "flag"
required = true
[steps.command]
prepare = ["/bin/sh", "-c", "echo prepare flag >> {0}/did; touch {0}/flag"]
verify = ["/bin/sh", "-c", "{1}"]
recover = ["rm", "-f", "{0}/flag"]
"""


def flagged(folder: Path, verify: str = "") -> str:
    return FLAGGED.format(folder, verify or f"test -e {folder}/flag")


def ready_at_approval(harness: AgentHarness) -> list[bool]:
    """Return for each approval whether the flag was there."""
    honest, seen = harness.endpoint.transport.reply, list[bool]()

    def reply(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        if method == "POST":
            seen.append((harness.folder / "flag").exists())
        return honest(method, path, headers, body)

    harness.endpoint.transport.reply = reply
    return seen


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_step_undone_before_the_approval_prevents_it(tmp_path: Path, repeatable: bool) -> None:
    """The agent prepares the step again before it approves, or fails it if it must not be repeated."""
    undo_once = f"if [ ! -e {tmp_path}/undone ]; then rm {tmp_path}/flag; touch {tmp_path}/undone; fi"
    first = flagged(tmp_path).replace("required = true", f"required = true\nrepeatable = {str(repeatable).lower()}")
    harness = AgentHarness(tmp_path, first + step(tmp_path, "slow", prepare=undo_once))
    ready = ready_at_approval(harness)
    harness.endpoint.announce()
    harness.run(for_s=30)
    assert harness.actions == ["prepare flag", "prepare slow", "prepare flag"][: 2 + repeatable]
    assert ready == [True] * repeatable
    assert harness.kinds.count("lapsed") == 1
    if not repeatable:
        assert why(harness).endswith(
            "is not prepared: it was interrupted, or is no longer prepared, and must not be repeated"
        )


def test_a_step_undone_while_the_agent_was_down_prevents_the_approval(tmp_path: Path) -> None:
    """The next agent verifies again before it repeats a refused approval."""
    harness = AgentHarness(tmp_path, flagged(tmp_path))
    honest = harness.endpoint.transport.reply
    harness.endpoint.transport.reply = lambda method, *more: (
        NotReady(503, "busy") if method == "POST" else honest(method, *more)
    )
    harness.endpoint.announce()
    harness.run(lambda: "refused" in harness.kinds, for_s=5)
    (tmp_path / "flag").unlink()
    harness.endpoint.transport.reply = honest
    ready = ready_at_approval(harness)
    harness.restart()
    harness.run(for_s=30)
    assert ready == [True]
    assert harness.actions == ["prepare flag"] * 2


def test_a_step_that_never_stays_prepared_is_given_up(tmp_path: Path) -> None:
    """It is prepared a few times for all events that need it, never approved, and undone as usual."""
    harness = AgentHarness(tmp_path, flagged(tmp_path, f"rm {tmp_path}/flag"))
    harness.endpoint.announce()
    harness.endpoint.announce(E2)
    harness.run(for_s=100)
    assert harness.actions == ["prepare flag"] * 5, "four times for the first event, and once more for the second"
    for event_id in (E1, E2):
        assert why(harness, event_id) == ("required step 'flag' is not prepared: it was prepared, and does not stay so")
    assert harness.endpoint.approved == []
    harness.endpoint.end()
    harness.endpoint.end(E2)
    harness.run(harness.in_service, for_s=30)
    assert harness.agent.state.step("flag").lapses == 0


def test_an_event_is_not_approved_while_a_step_cannot_be_verified(tmp_path: Path) -> None:
    """The agent reports it and verifies again after a pause; it does not prepare the step a second time."""
    program = tmp_path / "verify"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    away = f"mv {program} {tmp_path}/away"
    harness = AgentHarness(tmp_path, flagged(tmp_path, f"exec {program}") + step(tmp_path, "slow", prepare=away))
    harness.endpoint.announce()
    harness.run(for_s=12)
    assert harness.endpoint.approved == []
    assert harness.known().refused == "step 'flag' cannot be verified: sh cannot be run"
    (tmp_path / "away").rename(program)
    harness.run(for_s=30)
    assert harness.endpoint.approved == [E1]
    assert harness.actions == ["prepare flag", "prepare slow"]


def test_an_event_that_starts_while_it_is_verified_is_not_approved(tmp_path: Path) -> None:
    """An event that is no longer Scheduled is not approved, even if that was decided before."""

    def verify(spec: command.Spec, run: Run) -> bool:
        if run.phase == "approve":
            harness.endpoint.start()
            run.pause(2.0)
        return True

    harness = AgentHarness(tmp_path, flagged(tmp_path), verify=verify)
    harness.endpoint.announce()
    harness.run(for_s=10)
    assert harness.known().started
    assert harness.endpoint.approved == []


def test_a_checkpoint_is_made_for_each_event(tmp_path: Path) -> None:
    """The program saves a checkpoint once for each event, because the first is old when the second event comes."""
    script, urgent = tmp_path / "save", E2[:-1] + "9"
    script.write_text(f"cd {tmp_path}; echo >> saved; touch -d 2031-01-01 saved; echo save >> did\n")
    spec = f'file = "{tmp_path}/saved", stable_for = "0s", command = ["/bin/sh", "{script}"]'
    toml = f'[[steps]]\nname = "save"\nrequired = true\ncheckpoint = {{ {spec} }}\n'
    harness = AgentHarness(tmp_path, toml + step(tmp_path, "other"))
    for number, event_id in enumerate((E1, E2), 1):
        harness.endpoint.announce(event_id)
        harness.run(for_s=10)
        assert harness.actions.count("save") == number
    assert harness.endpoint.approved == [E1, E2]
    assert harness.actions.count("prepare other") == 1
    # Killed right after the next was begun: what there is was made for another event.
    harness.endpoint.announce(urgent, in_s=300)
    harness.journal.append({"kind": "begin", "phase": "prepare", "step": "save", "event": urgent, "share_s": 60})
    harness.restart()
    harness.run(for_s=10)
    assert harness.actions.count("save") == 3
    assert urgent in harness.endpoint.approved


@pytest.mark.parametrize(
    ("approve", "resources", "approved", "reason"),
    [
        ("when-ready", ["web-0", "web-1"], [E1], "it is approved"),
        ("when-ready", ["other", "web-0"], [E1], "it is approved"),
        ("first-in-resources", ["web-0", "web-1"], [E1], "it is approved"),
        ("first-in-resources", ["other", "web-0"], [], "other is first in Resources"),
        ("never", ["web-0"], [], 'approve = "never"'),
    ],
)
def test_the_configuration_decides_which_machine_approves(
    tmp_path: Path, approve: str, resources: list[str], approved: list[str], reason: str
) -> None:
    """Steps are prepared whether or not the machine approves."""
    harness = AgentHarness(tmp_path, f'approve = "{approve}"\n' + step(tmp_path, "one"))
    harness.endpoint.announce(Resources=resources)
    harness.run(for_s=5)
    assert harness.actions == ["prepare one"]
    assert harness.endpoint.approved == approved
    assert why(harness) == reason


RULES = """
[[rules]]
when = { type = ["Freeze"], max_duration = "9s" }
do = "approve"
[[rules]]
when = { source = ["User"] }
do = "ignore"
[[rules]]
when = { type = ["Redeploy"] }
do = "prepare-only"
"""


@pytest.mark.parametrize(
    ("fields", "did", "approved"),
    [
        ({"EventType": "Freeze", "DurationInSeconds": 5}, [], [E1]),
        ({"EventType": "Freeze", "DurationInSeconds": 0}, [], [E1]),
        ({"EventType": "Freeze", "DurationInSeconds": -1}, ["prepare one"], [E1]),
        ({"EventType": "Freeze", "DurationInSeconds": 10}, ["prepare one"], [E1]),
        ({"EventSource": "User"}, [], []),
        ({"EventType": "Redeploy"}, ["prepare one"], []),
        ({"EventType": "SomethingNew"}, ["prepare one"], [E1]),
        ({"Resources": ["web-1"]}, [], []),
    ],
)
def test_rules(tmp_path: Path, fields: dict[str, object], did: list[str], approved: list[str]) -> None:
    """The first matching rule wins; without one the event is prepared; an unknown duration is not short."""
    harness = AgentHarness(tmp_path, RULES + step(tmp_path, "one"))
    harness.endpoint.announce(E1, in_s=900, **fields)
    harness.run(for_s=5)
    assert (harness.actions, harness.endpoint.approved) == (did, approved)
    harness.endpoint.end()
    harness.run(for_s=5)
    assert harness.in_service()
    assert harness.agent.state.quiet


def test_several_events_at_once(tmp_path: Path) -> None:
    """A step is prepared once for all events that need it, and undone when none of them is left."""
    toml = step(tmp_path, "both", more="required = true")
    toml += step(tmp_path, "redeploy", more='when = { type = ["Redeploy"] }')
    harness = AgentHarness(tmp_path, toml)
    harness.endpoint.announce(E1, in_s=900)
    harness.endpoint.announce(E2, in_s=600, EventType="Redeploy")
    harness.run(for_s=5)
    assert harness.actions == ["prepare both", "prepare redeploy"]
    assert harness.endpoint.approved == [E2, E1], "the more urgent first"
    harness.endpoint.start(E1)
    harness.endpoint.end(E1)
    harness.run(for_s=30)
    assert len(harness.actions) == 2, "the other event still wants it"
    assert not harness.in_service()
    harness.endpoint.end(E2)
    harness.run(for_s=5)
    assert harness.actions[2:] == ["recover redeploy", "recover both"]
    assert harness.in_service()
    assert harness.kinds.count("in-service") == 1


@pytest.mark.parametrize("in_s", [40, 30])
def test_an_event_out_of_time_does_not_cost_another_its_steps(tmp_path: Path, in_s: float) -> None:
    """An event inside its reserve or overdue does not keep another from being prepared and approved."""
    more = 'required = true\ntimeout = "2s"\nwhen = { type = ["Redeploy"] }'
    harness = AgentHarness(tmp_path, step(tmp_path, "one", more=more) + step(tmp_path, "slow", more='timeout = "1h"'))
    harness.endpoint.announce(in_s=in_s)
    harness.run(for_s=35)
    harness.endpoint.announce(E2, in_s=900, EventType="Redeploy")
    harness.run(for_s=3)
    assert harness.actions == ["prepare one"]
    assert E2 in harness.endpoint.approved


def change(harness: AgentHarness, **fields: object) -> None:
    harness.endpoint.events[0].update(fields)
    harness.endpoint.incarnation += 1


def in_s(harness: AgentHarness, seconds: float) -> str:
    return format_datetime(harness.clock.service() + timedelta(seconds=seconds), usegmt=True)


def test_a_not_before_that_moves(tmp_path: Path) -> None:
    """Budget and reserve follow NotBefore, and a step skipped for lack of time begins after all."""
    harness = AgentHarness(tmp_path, 'approve = "never"\n' + step(tmp_path, "one", more='timeout = "5m"'))
    harness.endpoint.announce(in_s=40)
    harness.run(for_s=2)
    assert harness.actions == []
    change(harness, NotBefore=in_s(harness, 3600))
    harness.run(for_s=2)
    assert harness.actions == ["prepare one"]
    assert harness.known().reserve_s == 30
    change(harness, NotBefore=in_s(harness, 60))
    harness.run(for_s=2)
    left_s = harness.agent.view().left_s(harness.known().event)
    assert left_s is not None
    assert 55 < left_s < 60
    assert harness.kinds.count("changed") == 2
    harness.restart()
    harness.run(for_s=2)
    assert harness.kinds.count("changed") == 2


def test_a_type_that_changes(tmp_path: Path) -> None:
    """A step that the event no longer needs is undone before the event starts."""
    harness = AgentHarness(tmp_path, 'approve = "never"\n' + step(tmp_path, "one", more='when = { type = ["Reboot"] }'))
    harness.endpoint.announce()
    harness.run(for_s=2)
    change(harness, EventType="Freeze")
    harness.run(for_s=2)
    assert harness.actions == ["prepare one", "recover one"]
    assert harness.known().open


def test_an_event_that_is_no_longer_ours(tmp_path: Path) -> None:
    """The event is not approved, and its steps are undone."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one", more="required = true"))
    prepare = harness.agent._prepare

    def prepared(action: Prepare) -> None:
        prepare(action)
        change(harness, Resources=["web-1"])
        harness.clock.now_s += 2
        harness.agent.poll(0.0)

    harness.agent._prepare = prepared  # type: ignore[method-assign]
    harness.endpoint.announce()
    harness.run(for_s=5)
    assert harness.endpoint.approved == []
    assert harness.actions == ["prepare one", "recover one"]
    assert harness.agent.state.quiet


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("recover", ["true", "false"])
def test_an_event_that_goes_and_returns(tmp_path: Path, recover: str, restarted: bool) -> None:
    """An event that returns while health or undoing fails is new: it is prepared and approved again, and at once."""
    toml = step(tmp_path, "one", more="required = true", recover=recover)
    harness = AgentHarness(tmp_path, toml + '[health]\ncommand = ["false"]\n')
    harness.endpoint.announce()
    harness.run(for_s=2)
    harness.endpoint.end()
    harness.run(for_s=3)
    if restarted:
        harness.restart()
    harness.endpoint.announce()
    harness.run(for_s=3)
    assert harness.actions.count("prepare one") == 2
    assert harness.endpoint.approved == [E1, E1]
    assert harness.known().open


def test_an_incarnation_that_resets(tmp_path: Path) -> None:
    """A new epoch counts from 1 again; the events listed are valid whatever the number."""
    harness = AgentHarness(tmp_path, two_steps(tmp_path))
    harness.endpoint.incarnation = 40
    harness.endpoint.announce()
    harness.run(for_s=5)
    harness.endpoint.start()
    harness.run(for_s=5)
    harness.endpoint.incarnation, harness.endpoint.epoch = 0, 2
    harness.endpoint.end()
    harness.run(for_s=5)
    assert harness.in_service()
    harness.endpoint.incarnation, harness.endpoint.epoch = 0, 3
    harness.endpoint.announce(E2)
    harness.run(for_s=5)
    assert harness.endpoint.approved == [E1, E2]


def test_a_failed_health_check_is_logged_and_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The machine stays out of service until health passes; pauses grow, and no step is undone a second time."""
    harness = AgentHarness(tmp_path, two_steps(tmp_path) + f'[health]\ncommand = ["test", "-e", "{tmp_path}/green"]\n')
    harness.endpoint.announce()
    harness.run(for_s=5)
    harness.endpoint.end()
    harness.run(for_s=200)
    assert not harness.in_service()
    failures = harness.agent.state.tally.health_failures
    assert 4 <= failures <= 7
    assert sum("THE MACHINE IS NOT BACK IN SERVICE" in record.getMessage() for record in caplog.records) == failures
    (tmp_path / "green").touch()
    harness.run(lambda: harness.in_service(), for_s=400)
    assert harness.in_service()
    assert harness.actions == ["prepare one", "prepare two", "recover two", "recover one"]


def test_a_step_that_cannot_be_undone_is_tried_again(tmp_path: Path) -> None:
    """The steps before it wait, and the machine is out of service until all are undone."""
    toml = step(tmp_path, "one") + step(tmp_path, "two", recover=f"test -e {tmp_path}/able")
    harness = AgentHarness(tmp_path, toml)
    harness.endpoint.announce()
    harness.run(for_s=5)
    harness.endpoint.end()
    harness.run(for_s=30)
    assert harness.actions == ["prepare one", "prepare two"]
    (tmp_path / "able").touch()
    harness.run(lambda: harness.in_service(), for_s=400)
    assert harness.actions[2:] == ["recover two", "recover one"]


@pytest.mark.parametrize("killed", [False, True])
def test_a_half_undone_step_is_prepared_again(tmp_path: Path, killed: bool) -> None:
    """A second event does not count it as prepared, whether undoing failed or was interrupted."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one", more="required = true", recover="false"))
    harness.endpoint.announce()
    harness.run(for_s=2)
    harness.endpoint.end()
    harness.run(for_s=2)
    if killed:
        harness.journal.append({"kind": "begin", "phase": "recover", "step": "one", "event": E1, "share_s": 60})
        harness.restart()
    harness.endpoint.announce(E2)
    harness.run(lambda: E2 in harness.endpoint.approved, for_s=3)
    assert harness.actions == ["prepare one"] * 2
    assert harness.endpoint.approved == [E1, E2]


def test_back_after_the_reboot(tmp_path: Path) -> None:
    """An event that is Started in a later boot is over, and nothing more happens when it is gone."""
    harness = AgentHarness(tmp_path, two_steps(tmp_path))
    harness.endpoint.announce()
    harness.run(for_s=5)
    harness.endpoint.start()
    harness.restart("boot-2")
    harness.run(for_s=30)
    assert harness.actions[2:] == ["recover two", "recover one"]
    assert harness.in_service()
    harness.restart("boot-2")
    harness.run(for_s=30)
    harness.endpoint.end()
    harness.run(for_s=30)
    assert len(harness.actions) == 4
    assert harness.kinds.count("in-service") == 1
    assert harness.agent.state.quiet


def test_the_return_to_service_is_reported_once_for_each_event(tmp_path: Path) -> None:
    """It is not reported again when another event ends; a failed health check is reported for each event."""
    toml = step(tmp_path, "one") + f'[[steps]]\nname = "told"\nlog = {{ file = "{tmp_path}/told" }}\n'
    harness = AgentHarness(tmp_path, toml + f'[health]\ncommand = ["test", "-e", "{tmp_path}/green"]\n')
    harness.endpoint.announce()
    harness.run(for_s=2)
    harness.endpoint.start()
    harness.restart("boot-2")
    for event_id in (E1, E2):
        if event_id == E2:
            harness.endpoint.announce(E2)
            harness.run(for_s=5)
            harness.endpoint.end(E2)
        harness.run(for_s=2)
        (tmp_path / "green").touch()
        harness.run(harness.in_service, for_s=30)
        harness.run(for_s=2)
        (tmp_path / "green").unlink()
    lines = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    counts = Counter((line["event"]["EventId"], line["change"]) for line in lines)
    assert set(counts.values()) == {1}
    for event_id in (E1, E2):
        assert counts[event_id, "back in service"] == counts[event_id, "not healthy"] == 1


def test_a_reboot_of_another_cause(tmp_path: Path) -> None:
    """After a reboot that was not the event's own, its steps are prepared again."""
    harness = AgentHarness(tmp_path, two_steps(tmp_path, top='approve = "never"\n'))
    harness.endpoint.announce()
    harness.run(for_s=5)
    harness.restart("boot-2")
    harness.run(for_s=5)
    assert harness.actions == ["prepare one", "prepare two"] * 2
    harness.endpoint.start()
    harness.run(for_s=5)
    assert len(harness.actions) == 4, "the boot it was last Scheduled in is still this one"
    harness.restart("boot-3")
    harness.run(for_s=5)
    assert harness.actions[4:] == ["recover two", "recover one"]


def test_a_freeze_is_not_over_because_of_a_reboot(tmp_path: Path) -> None:
    """Only a Reboot or a Redeploy is over after a reboot."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one"))
    harness.endpoint.announce(EventType="Freeze")
    harness.run(for_s=5)
    harness.endpoint.start()
    harness.run(for_s=5)
    harness.restart("boot-2")
    harness.run(for_s=5)
    assert harness.actions == ["prepare one"]
    harness.endpoint.end()
    harness.run(for_s=5)
    assert harness.actions == ["prepare one", "recover one"]


def test_an_approval_that_fails_is_tried_again(tmp_path: Path) -> None:
    """Pauses between the attempts grow, and the steps stay prepared."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one"))
    honest, failures = harness.endpoint.transport.reply, iter(range(2))

    def reply(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        if method == "POST" and next(failures, None) is not None:
            return NotReady(503, "busy")
        return honest(method, path, headers, body)

    harness.endpoint.announce()
    harness.endpoint.transport.reply = reply
    harness.run(lambda: harness.endpoint.approved == [E1], for_s=60)
    assert harness.endpoint.approved == [E1]
    assert harness.actions == ["prepare one"]
    assert harness.kinds.count("refused") == 2


LOWER = "0000abcd-0000-4000-8000-00000000000f"


def test_an_endpoint_that_compares_ids_exactly(tmp_path: Path) -> None:
    """The agent sends the id as received, and starts no second event when its journal has the id in upper case."""
    harness = AgentHarness(tmp_path, two_steps(tmp_path))
    harness.endpoint.on_approve = lambda event_id: harness.endpoint.start(event_id)
    harness.endpoint.announce(LOWER)
    harness.run(for_s=5)
    assert harness.endpoint.approved == [LOWER]
    assert harness.known(LOWER.upper()).started
    harness.endpoint.end(LOWER)
    harness.run(for_s=5)
    assert harness.actions == ["prepare one", "prepare two", "recover two", "recover one"]
    assert harness.in_service()


def test_a_journal_of_an_agent_that_knew_only_upper_case(tmp_path: Path) -> None:
    """An event that an earlier version recorded in upper case is the same event: nothing is prepared twice."""
    harness = AgentHarness(tmp_path, 'approve = "never"\n' + two_steps(tmp_path))
    harness.endpoint.announce(LOWER)
    harness.run(for_s=5)
    harness.journal.close()
    path = harness.journal.path
    path.write_text(path.read_text().replace(LOWER, LOWER.upper()))
    assert LOWER not in path.read_text()
    harness.toml = harness.toml.replace("never", "when-ready")
    harness.start()
    harness.run(for_s=5)
    assert harness.actions == ["prepare one", "prepare two"]
    assert harness.kinds.count("seen") == 1
    assert harness.endpoint.approved == [LOWER]


def test_an_approved_event_that_stays_scheduled_is_approved_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After 60 s, then with pauses that double to 15 minutes, also across a restart; one repeat is logged."""
    caplog.set_level("INFO")
    harness = AgentHarness(tmp_path, flagged(tmp_path))
    moments_s: list[float] = []
    harness.endpoint.on_approve = lambda _: moments_s.append(harness.clock.now_s)
    harness.endpoint.announce(in_s=20_000)
    harness.run(lambda: len(moments_s) == 4, for_s=1_000)
    harness.restart()
    harness.run(lambda: len(moments_s) == 7, for_s=5_000)
    pauses_s = [round(after - before) for before, after in pairwise(moments_s)]
    assert pauses_s == [60, 120, 240, 480, 900, 900]
    assert sum("again, because it is still Scheduled" in record.getMessage() for record in caplog.records) == 1
    assert harness.agent.state.tally.approvals == 1
    assert harness.agent.state.tally.lead_time_s > 19_990
    harness.endpoint.start()
    harness.run(for_s=4_000)
    assert len(moments_s) == 7, "a started event is not approved"


def test_a_repeated_approval_verifies_the_steps_again(tmp_path: Path) -> None:
    """A step that a person undid meanwhile is prepared before the approval is repeated."""
    harness = AgentHarness(tmp_path, flagged(tmp_path))
    ready = ready_at_approval(harness)
    harness.endpoint.announce(in_s=900)
    harness.run(for_s=30)
    (tmp_path / "flag").unlink()
    harness.run(for_s=60)
    assert ready == [True, True]
    assert harness.actions == ["prepare flag", "prepare flag"]


def test_a_dry_run_does_nothing(tmp_path: Path) -> None:
    """A dry run decides and logs, but runs no step and approves nothing."""
    harness = AgentHarness(tmp_path, two_steps(tmp_path))
    harness.journal.close()
    harness.start(dry=True)
    harness.endpoint.announce()
    harness.run(for_s=5)
    assert (harness.actions, harness.endpoint.approved) == ([], [])
    assert harness.known().approved, "it would be"


def test_a_step_that_is_no_longer_configured_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The agent logs that it cannot undo the step, and the machine returns to service."""
    harness = AgentHarness(tmp_path, two_steps(tmp_path))
    harness.endpoint.announce()
    harness.run(for_s=5)
    harness.toml = step(tmp_path, "two")
    harness.restart()
    harness.endpoint.end()
    harness.run(for_s=5)
    assert harness.actions[2:] == ["recover two"]
    assert harness.in_service()
    assert "step 'one': it is no longer configured: it cannot be undone" in caplog.text


def test_the_machines_name_is_requested_until_the_endpoint_gives_it(tmp_path: Path) -> None:
    """The host name is used meanwhile; the agent asks again at the next change."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one"))
    harness.endpoint.name = ""
    harness.run(for_s=5)
    assert harness.agent.me is not None
    assert harness.agent.me.origin == "hostname"
    harness.endpoint.name = "web-0"
    harness.endpoint.announce()
    harness.run(for_s=5)
    assert harness.actions == ["prepare one"]


def test_the_machines_name_is_requested_also_without_a_change(tmp_path: Path) -> None:
    """An event that was listed before the name was known is not missed."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one"))
    harness.endpoint.name = ""
    harness.endpoint.announce()
    harness.run(for_s=5)
    assert harness.actions == []
    harness.endpoint.name = "web-0"
    harness.run(for_s=90)
    assert harness.actions == ["prepare one"]


def test_an_interrupted_undo_of_a_failed_step_is_repeated(tmp_path: Path) -> None:
    """The step did not verify before undoing began, so verifying says nothing; it is undone again."""
    toml = f"""
[[steps]]
name = "half"
command = {{ prepare = ["false"], verify = ["false"], recover = ["/bin/sh", "-c", "echo undone >> {tmp_path}/did"] }}
"""
    harness = AgentHarness(tmp_path, toml)
    harness.endpoint.announce()
    harness.run(for_s=5)
    harness.endpoint.end()
    harness.journal.append({"kind": "over", "id": E1, "how": "cancelled"})
    harness.journal.append({"kind": "begin", "phase": "recover", "step": "half", "event": E1, "share_s": 60})
    harness.restart()
    harness.run(for_s=5)
    assert harness.actions == ["undone"]
    assert harness.in_service()


@pytest.mark.parametrize("ended", [True, False])
def test_a_journal_that_lost_the_event(tmp_path: Path, ended: bool) -> None:
    """The step is undone and the machine returns; an event that is still listed is seen again instead."""
    harness = AgentHarness(tmp_path, 'approve = "never"\n' + step(tmp_path, "one"))
    harness.endpoint.announce()
    harness.run(for_s=2)
    harness.journal.close()
    lines = harness.journal.path.read_text().splitlines(keepends=True)
    harness.journal.path.write_text("".join(line for line in lines if '"seen"' not in line))
    if ended:
        harness.endpoint.end()
    harness.start()
    harness.run(for_s=5)
    assert harness.actions == (["prepare one", "recover one"] if ended else ["prepare one"])
    assert harness.in_service() is ended


def test_a_fault_in_a_handler_is_a_failed_step(tmp_path: Path) -> None:
    """The agent goes on, and the reason names the exception."""
    toml = step(tmp_path, "one", more="required = true")
    harness = AgentHarness(tmp_path, toml, prepare=lambda spec, run: 1 / 0)
    harness.endpoint.announce()
    harness.run(for_s=5)
    assert why(harness) == "required step 'one' is not prepared: a fault in the handler: ZeroDivisionError"


def test_an_event_with_an_unknown_status_is_not_approved(tmp_path: Path) -> None:
    """Only a Scheduled event is approved."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one"))
    harness.endpoint.announce(E1, in_s=900, EventStatus="Paused")
    harness.run(for_s=5)
    assert harness.actions == ["prepare one"]
    assert harness.endpoint.approved == []


def test_plain_polls_find_an_event_within_a_second(tmp_path: Path) -> None:
    """Without tags and long polls the agent polls once a second and records the longest possible delay."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one"), endpoint=FakeEndpoint(ManualTime(), long_poll=False))
    harness.run(for_s=5)
    harness.endpoint.at(2.5, harness.endpoint.announce)
    began_s = harness.clock.now_s
    harness.run(lambda: bool(harness.actions), for_s=60)
    assert harness.clock.now_s - began_s <= 3.5
    assert 0.9 <= harness.agent.state.tally.detection_delay_s <= 1.1


def test_what_a_handler_keeps_is_there_until_its_step_is_undone(tmp_path: Path) -> None:
    """Values are in the journal at once, known to the next agent, and forgotten when the step is undone."""
    seen: list[dict[str, object]] = []

    def prepare(spec: command.Spec, run: Run) -> None:
        run.keep(was="up", tries=1)
        run.keep(tries=2)
        assert '"kept":{"tries":2}' in (tmp_path / "state" / "journal.jsonl").read_text()

    def recover(spec: command.Spec, run: Run) -> None:
        seen.append(dict(run.kept))

    harness = AgentHarness(tmp_path, step(tmp_path, "one"), prepare=prepare, recover=recover)
    harness.endpoint.announce()
    harness.run(for_s=5)
    harness.restart("boot-2")
    harness.endpoint.end()
    harness.run(harness.in_service, for_s=60)
    assert seen == [{"was": "up", "tries": 2}]
    assert harness.agent.state.step("one").kept == {}
