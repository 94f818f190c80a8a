"""Commands that change events, orders, machines, scopes and the fleet."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from forewarn.cli import fleet as fleet_commands
from forewarn.cli.fleet import check
from forewarn.cli.session import Session
from tests.cli.command_line import (
    DONE,
    FAILED,
    USAGE,
    CommandLine,
    first_event,
)
from tests.support.waiting import PATIENCE_S


@pytest.mark.parametrize(
    "arguments",
    [
        "maintenance schedule --type Reboot --scope nowhere --yes",
        "machine show shop/nobody",
        "scope show nowhere",
        "event why AAAAAAAA-0000-0000-0000-000000000000",
        "maintenance show 00000000",
        "order start AAAAAAAA-0000-0000-0000-000000000000",
        "token revoke nobody",
    ],
)
def test_a_refusal_of_the_service_ends_with_1(cli: CommandLine, arguments: str) -> None:
    """The error is one line that begins with the name of the program."""
    result = cli.run(*arguments.split())
    assert result.returncode == FAILED, result.stdout
    assert result.stderr.startswith("forewarn: ")
    assert len(result.stderr.splitlines()) == 1


def test_pause_resume_and_cancel(cli: CommandLine, planned: dict[str, Any]) -> None:
    """Each command prints the new status; `status` and `why` show a pause."""
    assert cli.output("maintenance", "pause", planned["id"][:8]).endswith("is Paused\n")
    assert "the maintenance is paused" in cli.output("event", "why", first_event(planned)["id"])
    assert f"forewarn maintenance resume {planned['id'][:8]}" in cli.output("status")
    assert cli.output("maintenance", "resume", planned["id"]).endswith("is Planned\n")
    assert cli.output("maintenance", "cancel", planned["id"]).endswith("is Cancelled\n")
    again = cli.run("event", "cancel", first_event(planned)["id"])
    assert again.returncode == FAILED
    assert "Cancelled" in again.stderr


def test_an_event_is_rescheduled(cli: CommandLine, planned: dict[str, Any]) -> None:
    """The command names both events; a time is needed."""
    event = first_event(planned)["id"]
    assert cli.run("event", "reschedule", event).returncode == USAGE
    shown = cli.output("event", "reschedule", event[:8], "--not-before", "+3h")
    assert re.search(f"replaces event {event}, and starts at .* \\(in 3h\\) or later", shown)
    assert "rescheduled" in cli.output("event", "why", event)
    moved = cli.json("event", "show", event)["replaced_by"]
    assert re.search(f"^replaced by +{moved}$", cli.output("event", "show", event), re.MULTILINE)
    found = cli.output("event", "show", moved)
    assert re.search(f"^replaces +{event}$", found, re.MULTILINE)
    assert re.search(r"^rescheduled to +.* \(in 3h\)$", found, re.MULTILINE)
    cli.output("maintenance", "cancel", planned["id"])


def test_a_maintenance_that_pauses_after_a_wave_is_continued(cli: CommandLine) -> None:
    """The plan shows the strategy; `status` and `show` name the command, and it continues."""
    options = ["--type", "Reboot", "--scope", "quiet", "--group-by", "scope", "--pause-after", "1", "--bake", "5m"]
    failing = ["--on-failure", "continue", "--max-failures", "50%", "--canary", "1", "--max-parallel", "2"]
    plan = cli.output("maintenance", "schedule", *options, *failing, "--dry-run")
    text = "by scope, 2 at once, canary 1, bake time 5m, holds at 50% failures, pauses after wave 1"
    assert f"strategy: {text}" in plan
    assert "CALENDAR" in plan.upper()
    assert "if nothing is approved and the work of each event takes 5m" in plan
    made = cli.json("maintenance", "schedule", *options, *failing, "--yes", "--no-notice-ok")
    command = f"forewarn maintenance continue {made['id']}"
    assert text in cli.output("maintenance", "show", made["id"])
    assert cli.run("maintenance", "continue", made["id"]).returncode == FAILED
    cli.output("order", "finish", first_event(made)["id"])
    cli.output("clock", "advance", "1s")
    assert command in cli.output("maintenance", "show", made["id"])
    assert f"forewarn maintenance continue {made['id'][:8]}" in cli.output("status")
    assert cli.output("maintenance", "continue", made["id"]).endswith("is Running\n")
    cli.output("maintenance", "cancel", made["id"])


def test_a_cancelled_maintenance_with_a_started_event_says_what_goes_on(cli: CommandLine) -> None:
    """It is still Running: without the reason it would look as if nothing had happened."""
    options = ["--type", "Reboot", "--machine", "quiet/web-1", "--yes", "--no-notice-ok", "--wait", "started"]
    maintenance = cli.json("maintenance", "schedule", *options)
    text = cli.output("maintenance", "cancel", maintenance["id"])
    assert text.endswith("is Running: what had not started is cancelled, the rest runs to its end\n")
    cli.output("order", "finish", first_event(maintenance)["id"])


@pytest.mark.parametrize(("verb", "becomes"), [("finish", "Completed"), ("abandon", "Failed")])
def test_an_operator_resolves_a_failed_order(cli: CommandLine, verb: str, becomes: str) -> None:
    """`finish` completes the event and `abandon` gives it up; `maintenance wait` then ends with 0 or 1."""
    options = ["--type", "Reboot", "--machine", "quiet/web-1", "--yes", "--no-notice-ok", "--wait", "started"]
    maintenance = cli.json("maintenance", "schedule", *options)
    event_id = first_event(maintenance)["id"]
    assert cli.open_order()["id"] == event_id
    cli.output("order", "fail", event_id, "--reason", "no power")
    assert "no power" in cli.output("order", "list", "--state", "failed")
    assert "no power" in cli.output("status")
    cli.output("event", verb, event_id)
    result = cli.run("maintenance", "wait", maintenance["id"])
    assert result.returncode == (DONE if becomes == "Completed" else FAILED)
    assert becomes in result.stdout + result.stderr


def test_an_operators_approval_starts_an_event(cli: CommandLine) -> None:
    """`event approve` counts for all machines, and `event watch` ends with the event."""
    maintenance = cli.json("maintenance", "schedule", "--type", "Reboot", "--machine", "db/db-1", "--yes")
    event_id = first_event(maintenance)["id"]
    assert "not approved by db-1" in cli.output("event", "why", event_id)
    watcher = cli.start("event", "watch", event_id)
    assert f"event {event_id} is approved\n" in cli.output("event", "approve", event_id)
    cli.output("order", "start", cli.open_order()["id"])
    cli.output("order", "finish", event_id, "--new-host", "db-1=rack9")
    output, errors = watcher.communicate(timeout=PATIENCE_S)
    assert watcher.returncode == DONE, errors
    assert "was completed at" in output.splitlines()[-1]
    assert cli.json("machine", "show", "db/db-1")["host"] == "rack9"
    assert "Started" in cli.output("machine", "restart", "quiet/web-0", "--no-notice-ok")
    cli.output("order", "finish", cli.open_order()["id"])


def test_users_restart_and_redeploy_their_machines(cli: CommandLine) -> None:
    """Each command creates an event of the source User."""
    for verb, kind in (("restart", "Reboot"), ("redeploy", "Redeploy")):
        event = cli.json("machine", verb, "shop/web-0")
        assert (event["type"], event["source"]) == (kind, "User")
        assert cli.json("event", "cancel", event["id"])["status"] == "Cancelled"


@pytest.mark.parametrize("verb", ["restart", "redeploy"])
def test_a_restart_without_notice_needs_its_own_option(cli: CommandLine, verb: str) -> None:
    """As for `maintenance schedule`, --yes is not enough; nothing is created."""
    before = cli.json("event", "list", "--scope", "quiet")["items"]
    refused = cli.run("machine", verb, "quiet/web-1", "--yes")
    assert refused.returncode == USAGE
    assert "gives no notice to quiet: no machine there has polled" in refused.stderr
    assert "--no-notice-ok" in refused.stderr
    assert cli.json("event", "list", "--scope", "quiet")["items"] == before


def test_a_restart_of_a_machine_in_an_open_event_asks(cli: CommandLine, planned: dict[str, Any]) -> None:
    """The question names the other event; --yes answers it."""
    event_id = first_event(planned)["id"]
    refused = cli.run("machine", "restart", "shop/web-1", typed="n\n")
    assert refused.returncode == FAILED
    assert f"shop/web-1: event {event_id} (Reboot) is already scheduled" in refused.stderr
    assert "Restart shop/web-1? [y/N]" in refused.stderr
    event = cli.json("machine", "restart", "shop/web-1", "--yes")
    assert [warning["code"] for warning in event["warnings"]] == ["already-open"]
    cli.output("event", "cancel", event["id"])


def test_scopes_are_created_and_changed(cli: CommandLine) -> None:
    """A command changes only the settings that it names; a new scope needs its kind."""
    assert cli.run("scope", "set", "lab").returncode == USAGE
    assert "scope lab created" in cli.output(
        "scope", "set", "lab", "--kind", "placement-group", "--approval", "operator"
    )
    output = cli.output(
        "scope",
        "set",
        "lab",
        "--terminate-notice",
        "10m",
        "--minimum-notice",
        "reboot=30m",
        "--max-user-operations",
        "3",
    )
    assert "scope lab changed" in output
    lab = cli.json("scope", "show", "lab")
    assert (lab["approval"], lab["terminate_notice_s"], lab["minimum_notice_s"]) == ("operator", 600, {"Reboot": 1800})
    assert cli.json("scope", "set", "lab", "--minimum-notice", "Reboot=")["minimum_notice_s"] == {}
    assert cli.run("scope", "set", "lab", "--minimum-notice", "soon").returncode == USAGE
    wrong = cli.run("scope", "set", "lab", "--terminate-notice", "1h")
    assert wrong.returncode == FAILED


def test_an_exported_fleet_applies_without_difference(cli: CommandLine, tmp_path: Path) -> None:
    """From a file and from standard input."""
    text = cli.output("fleet", "export")
    file = tmp_path / "out.toml"
    file.write_text(text)
    assert cli.output("fleet", "diff", str(file), "--prune") == "fleet: no difference\n"
    assert cli.run("fleet", "apply", "-", typed=text).stdout == "fleet: no difference\n"
    assert {scope["name"] for scope in cli.json("fleet", "export")["scopes"]} >= {"shop", "db"}


def test_a_wrong_fleet_file_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    """`check`, which needs no server, `apply` and `diff` print a line for each error with the file, the entry and the key."""
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('[[machines]]\nname = "x"\nscope = "shop"\nupdatedomain = 1\nhost = 5\n')
    nowhere = {"FOREWARN_SERVER": "http://127.0.0.1:1"}
    results = [cli.run("fleet", "check", str(wrong), **nowhere)]
    results += [cli.run("fleet", verb, str(wrong)) for verb in ("apply", "diff")]
    for result in results:
        assert result.returncode == USAGE
        first, second = result.stderr.splitlines()
        assert first.startswith(
            f'forewarn: {wrong}: machines[0] "x": updatedomain: unknown key; did you mean update_domain? The keys here are'
        )
        assert second == f'forewarn: {wrong}: machines[0] "x": host: 5 is not a string'
    reported = json.loads(cli.run("fleet", "check", str(wrong), "--json").stdout)
    assert (reported["ok"], len(reported["errors"])) == (False, 2)
    assert cli.run("fleet", "apply", str(tmp_path / "none.toml")).returncode == USAGE


def test_a_fleet_file_is_checked_without_a_server(cli: CommandLine, tmp_path: Path) -> None:
    """A right file is counted; a file that is not TOML is refused with its line."""
    right = cli.run("fleet", "check", str(cli.folder / "fleet.toml"), FOREWARN_SERVER="http://127.0.0.1:1")
    assert right.stdout == f"{cli.folder / 'fleet.toml'}: no errors; it has 3 scopes and 7 machines\n"
    broken = tmp_path / "broken.toml"
    broken.write_text('[[scopes]]\nname = "shop"\nkind\n')
    refused = cli.run("fleet", "check", str(broken))
    assert refused.returncode == USAGE
    assert f"{broken}: this is not TOML: " in refused.stderr
    assert "(at line 3, column 5)" in refused.stderr


def test_a_large_fleet_file_shows_progress(tmp_path: Path) -> None:
    """The command says what it read before it waits for the server."""
    file, shown = tmp_path / "fleet.toml", list[str]()
    file.write_text('[[scopes]]\nname = "s"\nkind = "standalone"\n[[machines]]\nname = "m"\nscope = "s"\n')
    session = cast(Session, SimpleNamespace(out=SimpleNamespace(aside=shown.append)))
    assert fleet_commands._read_checked(session, str(file)) == file.read_text()
    fleet_commands._read_checked(session, str(file), many_machines=1)
    assert shown == [f"{file}: 1 scope and 1 machine read; sending them to the server"]


def test_a_checked_fleet_file_warns_like_apply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A host with several update domains of a scope is allowed, but its maintenance takes several waves."""
    file = tmp_path / "fleet.toml"
    machines = (f'[[machines]]\nname = "m{n}"\nscope = "shop"\nupdate_domain = {n}\nhost = "h1"\n' for n in range(2))
    file.write_text('[[scopes]]\nname = "shop"\nkind = "availability-set"\n' + "".join(machines))
    warning = "host h1 carries update domains 0, 1 of scope shop: maintenance of the host takes 2 waves"
    check(str(file))
    printed = capsys.readouterr()
    assert printed.out == f"{file}: no errors; it has 1 scope and 2 machines\n"
    assert printed.err == f"! {warning}\n"
    check(str(file), as_json=True)
    printed = capsys.readouterr()
    assert (json.loads(printed.out)["warnings"], printed.err) == ([warning], "")


def test_a_checked_fleet_file_names_the_windows_that_only_the_server_knows(
    cli: CommandLine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for each window with the tables that name it. `diff` refuses a window that does not exist."""
    file = tmp_path / "fleet.toml"
    tables = [("attic", '["nights"]'), ("cellar", "[]"), ("roof", '["nights", "days"]')]
    file.write_text(
        "".join(f'[[scopes]]\nname = "{n}"\nkind = "availability-set"\nwindows = {windows}\n' for n, windows in tables)
    )
    rest = "is not in this file, because windows are on the server: `forewarn fleet diff` checks whether it exists"
    check(str(file))
    assert capsys.readouterr().err.splitlines() == [
        f'! {file}: scopes[0] "attic", scopes[2] "roof": windows: \'nights\' {rest}',
        f"! {file}: scopes[2] \"roof\": windows: 'days' {rest}",
    ]
    refused = cli.run("fleet", "diff", str(file))
    assert (refused.returncode, "scope attic: windows: there is no window 'nights'" in refused.stderr) == (FAILED, True)


def test_an_empty_fleet_file_is_warned_of(cli: CommandLine, tmp_path: Path) -> None:
    """`check`, `diff` and `apply` say that nothing is in it: it may be the wrong file."""
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    warning = "the file has no scopes, machines or hosts: check that it is the right one"
    for word in ("check", "diff", "apply"):
        result = cli.run("fleet", word, str(empty))
        assert (result.returncode, result.stderr) == (DONE, f"! {warning}\n")
    assert cli.json("fleet", "check", str(empty))["warnings"] == [warning]


def test_labels_of_a_machine_are_applied_and_shown(cli: CommandLine, tmp_path: Path) -> None:
    """The fleet file states them; `list`, `show` and `fleet export` show them."""
    file = tmp_path / "fleet.toml"
    table = '[[machines]]\nscope = "shop"\nname = "label-0"\n'
    before = cli.output("fleet", "export")
    file.write_text(f'{before}\n{table}labels = {{ env = "prod", gpu = "" }}\n')
    assert "+ machine shop/label-0" in cli.output("fleet", "apply", str(file))
    assert 'labels = { env = "prod", gpu = "" }' in cli.output("fleet", "export")
    shown = [line.split() for line in cli.output("machine", "show", "shop/label-0").splitlines()]
    assert ["labels", "env=prod", "gpu="] in shown
    assert "env=prod gpu=" in cli.output("machine", "list", "--match", "label-0")
    file.write_text(cli.output("fleet", "export").replace(', gpu = ""', ""))
    assert '~ machine shop/label-0: labels {env prod, gpu ""} -> {env prod}' in cli.output("fleet", "apply", str(file))
    file.write_text(before)
    assert cli.output("fleet", "apply", str(file), "--prune").startswith("- machine shop/label-0\n")


def test_a_host_is_listed_cordoned_and_uncordoned(cli: CommandLine, tmp_path: Path) -> None:
    """The fleet file says what is known of it; its page shows who cordoned it and when."""
    file = tmp_path / "fleet.toml"
    facts = 'labels = { rack = "b4", cpu = "epyc" }\nfault_domain = 2\nconnection = "qemu+ssh://kvm-07/system"'
    file.write_text(cli.output("fleet", "export") + f'\n[[hosts]]\nname = "kvm-07"\n{facts}\n')
    checked = cli.output("fleet", "check", str(file))
    assert checked.endswith(" scopes and 7 machines, and lists 1 host\n")
    assert "+ host kvm-07" in cli.output("fleet", "apply", str(file))
    assert cli.output("fleet", "apply", str(file)) == "fleet: no difference\n"
    assert cli.output("host", "cordon", "kvm-07") == "host kvm-07 is cordoned; it carries 0 machine(s)\n"
    assert cli.json("host", "cordon", "rack0")["state"] == "cordoned"
    shown = [line.split() for line in cli.output("host", "show", "kvm-07").splitlines()]
    assert shown[:-1] == [
        ["host", "kvm-07"], ["machines", "0"], ["state", "cordoned"], ["fault", "domain", "2"],
        ["labels", "cpu=epyc", "rack=b4"], ["connection", "qemu+ssh://kvm-07/system"], ["listed", "yes"],
    ]  # fmt: skip
    assert shown[-1][0] == "cordoned"
    assert shown[-1][-3:] == ["by", "an", "operator"]
    rows = [line.split() for line in cli.output("host", "list").splitlines()]
    assert rows[0] == ["HOST", "STATE", "MACHINES", "FAULT", "DOMAIN", "LABELS", "CONNECTION"]
    assert rows[1] == ["kvm-07", "cordoned", "0", "2", "cpu=epyc", "rack=b4", "qemu+ssh://kvm-07/system"]
    assert ["rack0", "cordoned", "3", "0"] in rows
    assert '[[hosts]]\nname = "kvm-07"' in cli.output("fleet", "export")
    assert 'name = "rack0"' not in cli.output("fleet", "export")
    for host in ("kvm-07", "rack0"):
        assert cli.output("host", "uncordon", host) == f"host {host} is not cordoned any more\n"
    assert cli.json("host", "show", "kvm-07")["state"] == "up"
    missing = cli.run("host", "cordon", "nosuch")
    assert (missing.returncode, missing.stderr) == (
        FAILED, "forewarn: there is no host 'nosuch': the fleet does not list it, and no machine is on it\n"
    )  # fmt: skip


def test_a_dry_run_shows_what_pruning_would_remove(cli: CommandLine, tmp_path: Path) -> None:
    """Without `--prune` nothing is removed."""
    cli.output("scope", "set", "attic", "--kind", "availability-set")
    file = tmp_path / "fleet.toml"
    file.write_text(cli.output("fleet", "export").replace('name = "attic"', 'name = "cellar"'))
    output = cli.output("fleet", "apply", str(file), "--prune", "--dry-run")
    assert "- scope attic" in output
    assert "would be applied" in output
    assert "- scope attic" not in cli.output("fleet", "diff", str(file))
    assert "- scope attic" in cli.output("fleet", "apply", str(file), "--prune")
    assert cli.run("scope", "show", "attic").returncode == FAILED


def test_wrong_options_of_orders_end_with_2(cli: CommandLine) -> None:
    """A new host without a machine, an output file that does not exist, a failure without a reason."""
    order = "AAAAAAAA-0000-0000-0000-000000000000"
    wrong_host = cli.run("order", "finish", order, "--new-host", "rack9")
    assert wrong_host.returncode == USAGE
    assert "like shop/web-0=rack2-b" in wrong_host.stderr
    assert cli.run("order", "finish", order, "--output", "/nowhere").returncode == USAGE
    assert cli.run("order", "fail", order).returncode == USAGE


def test_a_large_removal_asks_first(cli: CommandLine, tmp_path: Path) -> None:
    """An empty file with --prune would remove the whole fleet: it is applied only after a yes or with --yes."""
    (tmp_path / "empty.toml").write_text("")
    before = cli.output("fleet", "export")
    for typed in ("n\n", ""):
        refused = cli.run("fleet", "apply", str(tmp_path / "empty.toml"), "--prune", typed=typed)
        assert refused.returncode == FAILED
        assert "- machine shop/web-0" in refused.stdout
        assert "it removes 7 machines and" in refused.stderr
        assert "Remove 7 machines and" in refused.stderr
        assert "nothing was changed" in refused.stderr
    assert cli.output("fleet", "export") == before
    export = tmp_path / "before.toml"
    export.write_text(before)
    assert "- machine shop/web-0" in cli.output("fleet", "apply", str(tmp_path / "empty.toml"), "--prune", "--yes")
    assert cli.json("fleet", "export")["machines"] == []
    cli.output("fleet", "apply", str(export))
    assert cli.output("fleet", "export") == before


def test_the_budget_of_the_fleet_is_set_and_shown(cli: CommandLine) -> None:
    """Only the named limits change; 0 removes one."""
    assert cli.json("budget", "set", "--max-hosts-down", "3", "--max-machines-down", "70")["max_machines_down"] == 70
    text = cli.output("budget", "set", "--max-machines-down", "0")
    assert re.search(r"max hosts down +3\n", text)
    assert re.search(r"max machines down +no limit\n", text)
    assert cli.output("budget", "show") == text
    assert cli.run("budget", "set", "--max-hosts-down", "-1").returncode == USAGE
    cli.output("budget", "set", "--max-hosts-down", "0")


def test_the_budget_of_a_scope_is_set_and_shown(cli: CommandLine) -> None:
    """A number, a share, or nothing."""
    assert "10%" in cli.output("scope", "set", "quiet", "--max-unavailable", "10%")
    assert cli.json("scope", "show", "quiet")["max_unavailable"] == "10%"
    assert "no limit" in cli.output("scope", "set", "quiet", "--max-unavailable", "")
    refused = cli.run("scope", "set", "quiet", "--max-unavailable", "few")
    assert refused.returncode == FAILED
    assert "max_unavailable" in refused.stderr


def test_windows_of_a_scope_that_leave_a_maintenance_no_time_are_warned_of(cli: CommandLine) -> None:
    """On standard error; with --json in the result."""
    today = datetime.now(UTC)
    for name, days in (("early", 2), ("late", 4)):  # neither is open now
        cli.output("window", "add", name, "--when", f"{today + timedelta(days):%a} 00:00-01:00")
    targets = ("--type", "Reboot", "--machine", "db/db-1", "--window", "early")
    made = cli.json("maintenance", "schedule", *targets, "--yes", "--no-notice-ok")
    text = f"maintenance {made['id']} cannot start in scope db with these windows"
    changed = cli.run("scope", "set", "db", "--window", "late")
    assert (changed.returncode, f"! {text}" in changed.stderr) == (0, True)
    assert cli.run("scope", "set", "db", "--window", "early").stderr == ""
    assert text in cli.json("scope", "set", "db", "--window", "late")["warnings"][0]
    cli.output("maintenance", "cancel", made["id"])
    cli.output("scope", "set", "db", "--window", "")
    for name in ("early", "late"):
        cli.output("window", "remove", name)


def test_an_extension_that_is_over_is_not_shown(cli: CommandLine) -> None:
    now = datetime.fromisoformat(cli.json("clock", "show")["now"])
    hours = f"{now - timedelta(hours=2):%H:%M}-{now + timedelta(hours=2):%H:%M}"
    cli.output("window", "add", "days", "--when", f"daily {hours}")
    assert re.search(r"extended until +\S+ \S+ \(in 1d\)\n", cli.output("window", "extend", "days", "--until", "+1d"))
    cli.output("clock", "advance", "2d")
    assert re.search(r"extended until *\n", cli.output("window", "show", "days"))
    cli.output("window", "remove", "days")


def test_windows_and_no_go_times_are_added_shown_and_removed(cli: CommandLine) -> None:
    """A scope takes a window by its name; a window in use stays."""
    text = cli.output("window", "add", "always", "--when", "Mon-Thu 00:00-24:00", "--when", "Fri-Sun 00:00-24:00")
    assert re.search(r"when +Mon-Thu 00:00-24:00, Fri-Sun 00:00-24:00\n", text)
    assert re.search(r"state +open\n", text)
    cli.output("window", "add", "nights", "--when", "daily 22:00-05:00", "--zone", "Europe/Berlin")
    assert [each["name"] for each in cli.json("window", "list")["items"]] == ["always", "nights"]
    listed = cli.output("window", "list")
    assert "Europe/Berlin" in listed
    assert "EXTENDED UNTIL" in listed
    assert cli.json("window", "show", "nights")["zone"] == "Europe/Berlin"
    refused = cli.run("window", "extend", "always", "--until", "+1h")
    assert (refused.returncode, "extend it to a later time" in refused.stderr) == (FAILED, True)
    chosen = cli.output("scope", "set", "quiet", "--window", "always", "--window", "nights", "--approval-opens-window")
    assert re.search(r"windows +always, nights\n", chosen)
    again = cli.run("window", "add", "nights", "--when", "daily 22:00-06:00")
    assert (again.returncode, "`forewarn window set nights` changes it" in again.stderr) == (FAILED, True)
    cli.output("window", "add", "nights", "--when", "daily 22:00-05:00", "--zone", "Europe/Berlin")  # the same
    longer = cli.run("window", "set", "nights", "--when", "daily 22:00-06:00")
    assert "window nights is used by scope quiet: what was announced" in longer.stderr
    assert re.search(r"when +daily 22:00-06:00\nzone +Europe/Berlin\n", longer.stdout)
    assert cli.run("window", "set", "nights").returncode == USAGE
    assert cli.run("window", "set", "days", "--zone", "UTC").returncode == FAILED
    assert "used by scope quiet" in cli.run("window", "remove", "nights").stderr
    assert "at any time" in cli.output("scope", "set", "quiet", "--window", "", "--no-approval-opens-window")
    for name in ("always", "nights"):
        assert "is removed" in cli.output("window", "remove", name)
    once = cli.output(
        "no-go", "add", "fair", "--start", "+1h", "--end", "+2h", "--reason", "the fair", "--scope", "quiet"
    )
    assert re.search(r"binds +quiet\n", once)
    weekly = cli.output("no-go", "add", "hours", "--when", "Mon 08:00-18:00", "--reason", "busy")
    assert re.search(r"binds +the whole fleet\n", weekly)
    by_label = (
        "no-go",
        "add",
        "hours",
        "--when",
        "Mon 08:00-18:00",
        "--reason",
        "busy",
        "--label",
        "!a",
        "--label",
        "!b",
    )
    assert re.search(r"binds +machines with !a,!b\n", cli.output(*by_label))
    assert re.search(r"binds +machines with !a,!b of shop\n", cli.output(*by_label, "--scope", "shop"))
    assert [each["name"] for each in cli.json("no-go", "list")["items"]] == ["fair", "hours"]
    assert "the fair" in cli.output("no-go", "list")
    assert cli.run("no-go", "add", "x", "--start", "+1h", "--reason", "r").returncode == USAGE
    assert cli.run("no-go", "add", "x", "--reason", "r").returncode == USAGE
    for name in ("fair", "hours"):
        assert "is removed" in cli.output("no-go", "remove", name)
