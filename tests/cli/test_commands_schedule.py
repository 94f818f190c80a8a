"""`maintenance schedule`: the plan, the confirmation, the options."""

import re
from typing import Any

import pytest

from tests.cli.command_line import (
    DONE,
    FAILED,
    ID,
    USAGE,
    CommandLine,
    first_event,
)


def test_a_dry_run_shows_the_plan_and_schedules_nothing(cli: CommandLine) -> None:
    """The plan has targets, the estimated end, waves, machines, hosts and notice; as JSON it has no ids."""
    before = len(cli.json("maintenance", "list")["items"])
    arguments = ["maintenance", "schedule", "--type", "reboot", "--scope", "shop", "--dry-run"]
    lines = cli.output(*arguments).splitlines()
    assert lines[0] == "Reboot of 3 machines in 1 scope, 3 waves, one after the other"
    assert lines[1:3] == ["targets: scope shop", "estimated end: unknown"]
    assert lines[3].split() == ["WAVE", "SCOPE", "UPDATE", "DOMAIN", "MACHINES", "HOSTS", "NOTICE"]
    assert lines[4].split() == ["1", "shop", "0", "web-0", "rack0", "15m"]
    assert cli.json(*arguments)["id"] is None
    assert len(cli.json("maintenance", "list")["items"]) == before


def test_labels_and_patterns_choose_machines(cli: CommandLine) -> None:
    """Alone, together and with scopes; `machine list` shows what a selector chooses; `--all` asks its own question."""

    def planned(*options: str) -> tuple[dict[str, Any], set[str]]:
        plan = cli.json("maintenance", "schedule", "--type", "Reboot", *options, "--dry-run")
        events = [event for wave in plan["waves"] for event in wave["events"]]
        return plan["targets"], {f"{event['scope']}/{name}" for event in events for name in event["resources"]}

    fleet = {f"{m['scope']}/{m['name']}" for m in cli.json("machine", "list")["items"]}
    web = {name for name in fleet if "/web-" in name}
    assert planned("--name", "web-*") == ({"count": 0, "names": ["web-*"]}, web)
    assert planned("--name", "shop/web-0", "--label", "!rack", "--label", "!gpu") == (
        {"count": 0, "labels": "!rack,!gpu", "names": ["shop/web-0"]}, {"shop/web-0"}
    )  # fmt: skip
    assert planned("--scope", "shop", "--label", "!gpu")[0] == {"count": 1, "scopes": ["shop"], "labels": "!gpu"}
    assert planned("--host", "rack*", "--host-label", "!gpu")[0] == {
        "count": 1, "hosts": ["rack*"], "host_labels": "!gpu",
    }  # fmt: skip
    assert planned("--all") == ({"count": 0, "everything": True}, fleet)
    refused = cli.run("maintenance", "schedule", "--type", "Reboot", "--all", "--no-notice-ok", typed="n\n")
    assert "Schedule this for EVERY machine of the fleet?" in refused.stderr
    assert "targets: every machine" in refused.stdout
    assert cli.json("machine", "list", "--label", "!gpu")["items"] == cli.json("machine", "list")["items"]
    missing = cli.run("maintenance", "schedule", "--type", "Reboot", "--label", "rack=z9", "--dry-run")
    assert (missing.returncode, missing.stderr) == (FAILED, "forewarn: no machine has labels like rack=z9\n")


@pytest.mark.parametrize("typed", ["n\n", ""])
def test_without_confirmation_nothing_is_scheduled(cli: CommandLine, typed: str) -> None:
    """The answer `n`, and a closed standard input, end with exit code 1."""
    before = len(cli.json("maintenance", "list")["items"])
    result = cli.run("maintenance", "schedule", "--type", "Reboot", "--machine", "shop/web-2", typed=typed)
    assert result.returncode == FAILED
    assert "Schedule this? [y/N]" in result.stderr
    assert re.search(r"^calendar\n", result.stdout, re.MULTILINE | re.IGNORECASE)
    assert "nothing was scheduled" in result.stderr
    assert len(cli.json("maintenance", "list")["items"]) == before


def test_after_confirmation_the_plan_is_scheduled(cli: CommandLine) -> None:
    """The answer `y`; the command prints the id."""
    result = cli.run("maintenance", "schedule", "--type", "Reboot", "--machine", "shop/web-2", typed="y\n")
    assert result.returncode == DONE
    printed_id = ID.search(result.stdout)
    assert printed_id is not None
    assert cli.json("maintenance", "show", printed_id[0])["waves"][0]["events"][0]["resources"] == ["web-2"]
    assert cli.json("maintenance", "cancel", printed_id[0])["status"] == "Cancelled"


@pytest.mark.parametrize("extra", [["--scope", "quiet"], ["--scope", "shop", "--emergency"]])
def test_a_plan_without_notice_needs_its_own_option(cli: CommandLine, extra: list[str]) -> None:
    """--yes is not enough; the error names the scopes without notice."""
    before = len(cli.json("maintenance", "list")["items"])
    result = cli.run("maintenance", "schedule", "--type", "Reboot", *extra, "--yes")
    assert result.returncode == USAGE
    assert f"gives no notice to {extra[1]}" in result.stderr
    assert "--no-notice-ok" in result.stderr
    assert len(cli.json("maintenance", "list")["items"]) == before


def test_the_plan_shows_its_warnings_before_the_question(cli: CommandLine, planned: dict[str, Any]) -> None:
    """A second maintenance of the same machines, and a time that has passed."""
    options = ["--type", "Freeze", "--machine", "shop/web-1", "--not-before", "-2h"]
    refused = cli.run("maintenance", "schedule", *options, typed="n\n")
    assert refused.returncode == FAILED
    assert "! not_before has passed (" in refused.stdout
    assert f"! shop/web-1: event {first_event(planned)['id']} (Reboot) is already scheduled" in refused.stdout
    assert [w["code"] for w in cli.json("maintenance", "schedule", *options, "--dry-run")["warnings"]] == [
        "past-not-before",
        "already-open",
    ]


def test_times_are_on_the_services_clock(cli: CommandLine) -> None:
    """`+2h` is two hours after the time that `clock show` prints."""
    cli.output("clock", "advance", "5h")
    options = ["--type", "Freeze", "--machine", "db/db-0", "--earliest", "+3h", "--not-before", "+2h", "--yes"]
    options += ["--not-after", "+4h"]
    maintenance = cli.json("maintenance", "schedule", *options)
    now = cli.json("clock", "show")["now"]
    assert maintenance["not_before"][:13] != now[:13]
    why = cli.output("event", "why", first_event(maintenance)["id"])
    assert "(in 2h)" in why
    assert "(in 3h)" in why
    assert "(in 4h)" in cli.output("maintenance", "show", maintenance["id"])
    plan = cli.run("maintenance", "schedule", *options, "--dry-run").stdout
    assert "never before" in plan
    assert "what has not started by" in plan
    cli.output("maintenance", "cancel", maintenance["id"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--type Reboot", "exactly one way: --machine M"),
        ("--type Reboot --scope shop --host rack0", "exactly one way: --machine M"),
        ("--type Reboot --all --label gpu", "exactly one way: --machine M"),
        ("--type Reboot --host-label gpu --name web-*", "exactly one way: --machine M"),
        ("--type Reboot --label gpu --update-domain 1", "--update-domain: it needs exactly one --scope"),
        ("--type Reboot --host rack0,rack1", "--host: 'rack0,rack1' is a list: write one name per --host, and repeat"),
        ("--type Reboot --host rack0 --update-domain 1", "--update-domain: it needs exactly one --scope"),
        ("--type Reboot --scope shop --not-before soon", "--not-before: 'soon' is not a time"),
        (
            "--type Reboot --scope shop --earliest 2030-01-01T00:00:00",
            "--earliest: '2030-01-01T00:00:00' has no time zone",
        ),
        ("--type Reboot --scope shop --duration 5", "--duration: '5' is not a duration"),
        ("--type Reboot --scope shop --wait never", "'never' is not one of 'started', 'done'"),
        ("--type Explode --scope shop", "'Explode' is not one of"),
        ("--scope shop", "--type: say what happens to the machines"),
    ],
)
def test_wrong_options_end_with_2(cli: CommandLine, options: str, message: str) -> None:
    """The error names the option and says what to write."""
    result = cli.run("maintenance", "schedule", *options.split(), "--yes")
    assert result.returncode == USAGE
    assert message in " ".join(result.stderr.split())
