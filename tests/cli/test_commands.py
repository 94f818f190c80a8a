"""The commands one by one, as real processes against a real service whose clock stands still."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.addresses import own_loopback_address
from tests.cli.house import (
    DONE,
    FAILED,
    FOREWARN,
    NOT_REACHABLE,
    USAGE,
    House,
    environment,
    on_a_terminal,
    serving,
)
from tests.support.waiting import PATIENCE_S, until

ID = re.compile(r"[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """The shop and the db are owed notice; nobody of `quiet` ever asked."""
    with serving(tmp_path_factory.mktemp("house"), "--clock", "manual") as made:
        for address in ("127.0.1.1", "127.0.2.1"):
            made.poll(address)
        yield made


@pytest.fixture
def planned(house: House) -> Iterator[dict[str, Any]]:
    """A reboot of the shop's second update domain, scheduled for two hours from now; called off in the end."""
    words = ["--type", "Reboot", "--scope", "shop", "--update-domain", "1", "--not-before", "+2h", "--yes"]
    made = house.json("maintenance", "schedule", *words, "--description", "a new kernel", "--duration", "5m")
    yield made
    house.run("maintenance", "cancel", made["id"])


def first_event(maintenance: dict[str, Any]) -> dict[str, Any]:
    event: dict[str, Any] = maintenance["waves"][0]["events"][0]
    return event


# -- looking


def test_json_is_what_the_api_said(house: House, planned: dict[str, Any]) -> None:
    """The event of the list is the event of the maintenance."""
    event_id = first_event(planned)["id"]
    assert house.json("event", "show", event_id)["description"] == "a new kernel"
    assert house.json("event", "why", event_id)["waiting_for"]
    assert house.json("maintenance", "show", planned["id"])["id"] == planned["id"]
    listed = house.json("event", "list", "--status", "Scheduled")
    assert set(listed) == {"items", "next_cursor"}
    assert event_id in [event["id"] for event in listed["items"]]


def test_elsewhere_than_on_a_terminal_nothing_is_cropped(house: House, planned: dict[str, Any]) -> None:
    """Whole ids and whole reasons in one line each, no colours, however narrow the terminal would have been."""
    event_id = first_event(planned)["id"]
    for words in (["status"], ["event", "list"], ["maintenance", "show", planned["id"]]):
        told = house.run(*words, COLUMNS="40", FORCE_COLOR="").stdout
        (line,) = [line for line in told.splitlines() if event_id in line]
        assert "no machine of shop has approved, and its notice runs until" in line
        assert "…" not in told
        assert "\x1b" not in told


def test_status_answers_in_one_look(house: House, planned: dict[str, Any]) -> None:
    """What is scheduled, who has not approved, why it has not started."""
    del planned
    told = house.say("status")
    assert house.url in told
    assert "1 scheduled (1 not approved)" in told
    (head, row) = told[told.index("SCHEDULED") :].splitlines()[1:3]
    assert "NOT APPROVED BY" in head
    assert "shop#1  web-1" in row
    assert "(in 2h)" in row


def test_why_is_one_sentence(house: House, planned: dict[str, Any]) -> None:
    """One line, one full stop at its end; 8 characters of the id suffice."""
    told = house.say("event", "why", first_event(planned)["id"][:8].lower())
    assert told.startswith(
        "Reboot of web-1 in shop has not started: no machine of shop has approved, and its notice runs"
    )
    assert told.endswith("either is enough.\n")
    assert told.count("\n") == 1


def test_lists_are_paged(house: House) -> None:
    """`--limit` and where to go on; standard output holds the list alone."""
    result = house.run("machine", "list", "--limit", "2")
    assert len(result.stdout.splitlines()) == 3
    cursor = result.stderr.strip().rpartition(" ")[2]
    assert "there are more: --limit 4, or --cursor" in result.stderr
    rest = house.json("machine", "list", "--limit", "5", "--cursor", cursor)
    assert len(rest["items"]) == 5
    assert rest["next_cursor"] is None


def test_a_bare_machine_name_will_do_where_only_one_has_it(house: House) -> None:
    """Else the error names the scopes."""
    assert house.json("machine", "show", "db-1")["scope"] == "db"
    result = house.run("machine", "show", "web-0")
    assert result.returncode == FAILED
    assert "quiet, shop have one each" in result.stderr


# -- planning


def test_a_dry_run_shows_the_plan_and_schedules_nothing(house: House) -> None:
    """Waves, machines and notice; as JSON the plan has no ids."""
    before = len(house.json("maintenance", "list")["items"])
    words = ["maintenance", "schedule", "--type", "reboot", "--scope", "shop", "--dry-run"]
    told = house.say(*words).splitlines()
    assert told[0] == "Reboot of 3 machines in 1 scope, 3 waves, one after the other"
    assert told[2].split() == ["1", "shop", "0", "web-0", "15m"]
    assert house.json(*words)["id"] is None
    assert len(house.json("maintenance", "list")["items"]) == before


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_without_a_yes_nothing_is_scheduled(house: House, answer: str) -> None:
    """`n`, or nobody there to answer: exit code 1."""
    before = len(house.json("maintenance", "list")["items"])
    result = house.run("maintenance", "schedule", "--type", "Reboot", "--machine", "shop/web-2", answer=answer)
    assert result.returncode == FAILED
    assert "Schedule this? [y/N]" in result.stderr
    assert "nothing was scheduled" in result.stderr
    assert len(house.json("maintenance", "list")["items"]) == before


def test_with_a_yes_the_plan_shown_is_scheduled(house: House) -> None:
    """The answer `y`; the id is said."""
    result = house.run("maintenance", "schedule", "--type", "Reboot", "--machine", "shop/web-2", answer="y\n")
    assert result.returncode == DONE
    found = ID.search(result.stdout)
    assert found is not None
    assert house.json("maintenance", "show", found[0])["waves"][0]["events"][0]["resources"] == ["web-2"]
    assert house.json("maintenance", "cancel", found[0])["status"] == "Cancelled"


@pytest.mark.parametrize("extra", [["--scope", "quiet"], ["--scope", "shop", "--emergency"]])
def test_a_plan_without_notice_needs_a_word_of_its_own(house: House, extra: list[str]) -> None:
    """--yes does not mean that; the scopes that are not warned are named."""
    before = len(house.json("maintenance", "list")["items"])
    result = house.run("maintenance", "schedule", "--type", "Reboot", *extra, "--yes")
    assert result.returncode == USAGE
    assert f"gives no notice to {extra[1]}" in result.stderr
    assert "--no-notice-ok" in result.stderr
    assert len(house.json("maintenance", "list")["items"]) == before


def test_times_are_on_the_services_own_clock(house: House) -> None:
    """`+2h` is two hours from what `clock show` says, however far that is from ours."""
    house.say("clock", "advance", "5h")
    words = ["--type", "Freeze", "--machine", "db/db-0", "--earliest", "+3h", "--not-before", "+2h", "--yes"]
    made = house.json("maintenance", "schedule", *words)
    now = house.json("clock", "show")["now"]
    assert made["not_before"][:13] != now[:13]
    why = house.say("event", "why", first_event(made)["id"])
    assert "(in 2h)" in why
    assert "(in 3h)" in why
    assert "never before" in house.run("maintenance", "schedule", *words, "--dry-run").stdout
    house.say("maintenance", "cancel", made["id"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--type Reboot", "one way: --machine M"),
        ("--type Reboot --scope shop --host rack0", "one way: --machine M"),
        ("--type Reboot --host rack0 --update-domain 1", "--update-domain: an update domain belongs to a scope"),
        ("--type Reboot --scope shop --not-before soon", "--not-before: 'soon' is not a time"),
        (
            "--type Reboot --scope shop --earliest 2030-01-01T00:00:00",
            "--earliest: '2030-01-01T00:00:00' names no time zone",
        ),
        ("--type Reboot --scope shop --duration 5", "--duration: '5' is not a duration"),
        ("--type Reboot --scope shop --wait never", "'never' is not one of 'started', 'done'"),
        ("--type Explode --scope shop", "'Explode' is not one of"),
        ("--scope shop", "Missing option '--type'"),
    ],
)
def test_wrong_words_end_with_2_and_say_what_to_write(house: House, words: str, told: str) -> None:
    """Which option, what is wrong with it; nothing is asked of the server."""
    result = house.run("maintenance", "schedule", *words.split(), "--yes")
    assert result.returncode == USAGE
    assert told in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "words",
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
def test_what_the_service_refuses_ends_with_1(house: House, words: str) -> None:
    """One line that begins with the program's name."""
    result = house.run(*words.split())
    assert result.returncode == FAILED, result.stdout
    assert result.stderr.startswith("forewarn: ")
    assert len(result.stderr.splitlines()) == 1


# -- changing


def test_pause_resume_and_cancel(house: House, planned: dict[str, Any]) -> None:
    """Each says what the maintenance is now; a paused one says so in status and why."""
    assert house.say("maintenance", "pause", planned["id"][:8]).endswith("is Paused\n")
    assert "the maintenance is paused" in house.say("event", "why", first_event(planned)["id"])
    assert f"forewarn maintenance resume {planned['id'][:8]}" in house.say("status")
    assert house.say("maintenance", "resume", planned["id"]).endswith("is Planned\n")
    assert house.say("maintenance", "cancel", planned["id"]).endswith("is Cancelled\n")
    again = house.run("event", "cancel", first_event(planned)["id"])
    assert again.returncode == FAILED
    assert "Cancelled" in again.stderr


@pytest.mark.parametrize(("verb", "becomes"), [("finish", "Completed"), ("abandon", "Failed")])
def test_an_operator_settles_a_failed_order(house: House, verb: str, becomes: str) -> None:
    """`finish`: it was done after all; `abandon`: given up. Waiting for it ends with 0 or 1 accordingly."""
    words = ["--type", "Reboot", "--machine", "quiet/web-1", "--yes", "--no-notice-ok", "--wait", "started"]
    made = house.json("maintenance", "schedule", *words)
    event_id = first_event(made)["id"]
    assert house.order()["id"] == event_id
    house.say("order", "fail", event_id, "--reason", "no power")
    assert "no power" in house.say("order", "list", "--state", "failed")
    assert "no power" in house.say("status")
    house.say("event", verb, event_id)
    result = house.run("maintenance", "wait", made["id"])
    assert result.returncode == (DONE if becomes == "Completed" else FAILED)
    assert becomes in result.stdout + result.stderr


def test_an_operators_approval_starts_it(house: House) -> None:
    """`event approve` counts for all, and `watch` of the event ends with it."""
    made = house.json("maintenance", "schedule", "--type", "Reboot", "--machine", "db/db-1", "--yes")
    event_id = first_event(made)["id"]
    assert "not approved by db-1" in house.say("event", "why", event_id)
    watcher = house.begin("event", "watch", event_id)
    house.say("event", "approve", event_id)
    house.say("order", "start", house.order()["id"])
    house.say("order", "finish", event_id, "--new-host", "db-1=rack9")
    told, complaints = watcher.communicate(timeout=PATIENCE_S)
    assert watcher.returncode == DONE, complaints
    assert "was completed at" in told.splitlines()[-1]
    assert house.json("machine", "show", "db/db-1")["host"] == "rack9"
    assert "Started" in house.say("machine", "restart", "quiet/web-0")
    house.say("order", "finish", house.order()["id"])


def test_users_restart_and_redeploy_their_machines(house: House) -> None:
    """An event of source User each, shown at once."""
    for verb, kind in (("restart", "Reboot"), ("redeploy", "Redeploy")):
        event = house.json("machine", verb, "shop/web-0")
        assert (event["type"], event["source"]) == (kind, "User")
        assert house.json("event", "cancel", event["id"])["status"] == "Cancelled"


def test_scopes_are_made_and_changed(house: House) -> None:
    """What is named changes, the rest stays; a new one needs its kind."""
    assert house.run("scope", "set", "lab").returncode == USAGE
    assert "scope lab created" in house.say(
        "scope", "set", "lab", "--kind", "placement-group", "--approval", "operator"
    )
    told = house.say(
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
    assert "scope lab changed" in told
    lab = house.json("scope", "show", "lab")
    assert (lab["approval"], lab["terminate_notice_s"], lab["minimum_notice_s"]) == ("operator", 600, {"Reboot": 1800})
    assert house.json("scope", "set", "lab", "--minimum-notice", "Reboot=")["minimum_notice_s"] == {}
    assert house.run("scope", "set", "lab", "--minimum-notice", "soon").returncode == USAGE
    wrong = house.run("scope", "set", "lab", "--terminate-notice", "1h")
    assert wrong.returncode == FAILED


def test_the_fleet_goes_out_and_in_unchanged(house: House, tmp_path: Path) -> None:
    """What `export` prints, `apply` reads: no difference, from a file and from standard input."""
    text = house.say("fleet", "export")
    file = tmp_path / "out.toml"
    file.write_text(text)
    assert house.say("fleet", "diff", str(file), "--prune") == "fleet: no difference\n"
    assert house.run("fleet", "apply", "-", answer=text).stdout == "fleet: no difference\n"
    assert {scope["name"] for scope in house.json("fleet", "export")["scopes"]} >= {"shop", "db"}


def test_a_wrong_fleet_file_is_refused_with_its_place(house: House, tmp_path: Path) -> None:
    """The file, the place in it, and what to do; nothing is changed."""
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('[[machines]]\nname = "x"\nscope = "shop"\nupdatedomain = 1\n')
    result = house.run("fleet", "apply", str(wrong))
    assert result.returncode == FAILED
    assert f"{wrong}: " in result.stderr
    assert 'machines[0] "x": updatedomain: unknown key' in result.stderr
    assert house.run("fleet", "apply", str(tmp_path / "none.toml")).returncode == USAGE


def test_pruning_says_what_goes_before_it_goes(house: House, tmp_path: Path) -> None:
    """`--dry-run --prune` changes nothing; without `--prune` nothing would go."""
    house.say("scope", "set", "attic", "--kind", "availability-set")
    file = tmp_path / "fleet.toml"
    file.write_text(house.say("fleet", "export").replace('name = "attic"', 'name = "cellar"'))
    told = house.say("fleet", "apply", str(file), "--prune", "--dry-run")
    assert "- scope attic" in told
    assert "would be applied" in told
    assert "- scope attic" not in house.say("fleet", "diff", str(file))
    assert "- scope attic" in house.say("fleet", "apply", str(file), "--prune")
    assert house.run("scope", "show", "attic").returncode == FAILED


def test_orders_tell_wrong_words(house: House) -> None:
    """A new host without a machine, a log that is not there, a failure without a reason."""
    order = "AAAAAAAA-0000-0000-0000-000000000000"
    assert "like shop/web-0=rack2-b" in house.run("order", "finish", order, "--new-host", "rack9").stderr
    assert house.run("order", "finish", order, "--output", "/nowhere").returncode == USAGE
    assert house.run("order", "fail", order).returncode == USAGE


# -- who may


def test_a_token_is_shown_once_and_works_until_it_is_revoked(house: House) -> None:
    """Alone on standard output when it is made, never again; a viewer may look and not touch."""
    made = house.run("token", "create", "ci", "--role", "viewer")
    secret = made.stdout.strip()
    assert " " not in secret
    assert secret not in made.stderr
    found = ID.search(made.stderr)
    assert found is not None
    assert secret not in house.say("token", "list") + house.say("token", "list", "--json")
    assert house.run("status", FOREWARN_TOKEN=secret).returncode == DONE
    refused = house.run("machine", "restart", "shop/web-0", FOREWARN_TOKEN=secret)
    assert refused.returncode == FAILED
    assert "FOREWARN_TOKEN" in refused.stderr
    assert secret not in refused.stderr
    house.say("token", "revoke", found[0])
    gone = house.run("status", FOREWARN_TOKEN=secret)
    assert gone.returncode == FAILED
    assert f"{house.url} does not accept the token from FOREWARN_TOKEN" in gone.stderr
    assert secret not in gone.stdout + gone.stderr + house.log.read_text()


def test_a_wrong_token_names_the_address_and_the_variable(house: House, tmp_path: Path) -> None:
    """Wherever it came from; the token itself is not shown."""
    wrong = tmp_path / "token"
    wrong.write_text("fw_wrong-but-secret\n")
    result = house.run("event", "list", "--token-file", str(wrong))
    assert result.returncode == FAILED
    assert house.url in result.stderr
    assert str(wrong) in result.stderr
    assert "FOREWARN_TOKEN" in result.stderr
    assert "secret" not in result.stderr


def test_no_token_is_ever_logged(house: House) -> None:
    """Not the operator's, with every command so far in the log of a service that logs all it can."""
    house.say("status")
    assert house.token not in house.log.read_text()


def test_a_server_that_is_not_there_ends_with_3(house: House) -> None:
    """The address and the variable to set."""
    result = house.run("status", FOREWARN_SERVER="http://127.0.0.1:9")
    assert result.returncode == NOT_REACHABLE
    assert "nobody answers at http://127.0.0.1:9 (from FOREWARN_SERVER)" in result.stderr
    for words in (["event", "list"], ["maintenance", "schedule", "--type", "Reboot", "--scope", "shop"]):
        assert house.run(*words, "--server", "http://127.0.0.1:9").returncode == NOT_REACHABLE
    wrong = house.run("status", "--server", "127.0.0.1:9")
    assert wrong.returncode == USAGE


def test_elsewhere_the_variables_are_enough(house: House, tmp_path: Path) -> None:
    """A machine that never saw the service's state directory."""
    away = environment(tmp_path, FOREWARN_SERVER=house.url, FOREWARN_TOKEN=house.token)
    result = subprocess.run(
        [*FOREWARN, "status"], env=away, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert result.returncode == DONE, result.stderr
    del away["FOREWARN_TOKEN"]
    without = subprocess.run(
        [*FOREWARN, "status"], env=away, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert without.returncode == FAILED
    assert "wants a token, and none was found: set FOREWARN_TOKEN" in without.stderr


# -- live


def test_watch_prints_a_line_per_change(house: House, tmp_path: Path) -> None:
    """As it happens, and Ctrl-C ends it with 0; as JSON a change per line."""
    plain, lines = house.begin("event", "watch", "--scope", "shop"), house.begin("event", "watch", "--json")
    assert plain.stderr is not None
    assert plain.stderr.readline().startswith("watching http://")
    until(lambda: house.log.exists())
    heard = b""
    assert plain.stdout is not None
    assert lines.stdout is not None
    os.set_blocking(plain.stdout.fileno(), False)
    os.set_blocking(lines.stdout.fileno(), False)
    told = b""

    def both_heard() -> bool:
        nonlocal heard, told
        made = house.json("maintenance", "schedule", "--type", "Reboot", "--machine", "shop/web-0", "--yes")
        house.say("maintenance", "cancel", made["id"])
        assert plain.stdout is not None
        assert lines.stdout is not None
        heard += plain.stdout.buffer.read() or b""  # type: ignore[attr-defined]
        told += lines.stdout.buffer.read() or b""  # type: ignore[attr-defined]
        return b"event cancelled shop" in heard and b'"action":"event cancelled"' in told

    until(both_heard)
    for process in (plain, lines):
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == DONE
    assert all(isinstance(json.loads(line), dict) for line in told.splitlines())


def test_waiting_gives_up_in_time(house: House, planned: dict[str, Any]) -> None:
    """Exit code 1 and a sentence; the maintenance goes on."""
    result = house.run("maintenance", "wait", planned["id"], "--timeout", "1s")
    assert result.returncode == FAILED
    assert "has not ended in time" in result.stderr
    assert house.json("maintenance", "show", planned["id"])["status"] == "Planned"


def test_follow_as_json_is_a_line_per_change(house: House, planned: dict[str, Any]) -> None:
    """Each line is the whole maintenance; the last one is how it ended."""
    follower = house.begin("maintenance", "show", planned["id"], "--follow", "--json")
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["status"] == "Planned"
    house.say("maintenance", "pause", planned["id"])
    house.say("maintenance", "cancel", planned["id"])
    told, complaints = follower.communicate(timeout=PATIENCE_S)
    assert follower.returncode == DONE, complaints
    assert json.loads(told.splitlines()[-1])["status"] == "Cancelled"


def test_on_a_terminal_there_is_a_bar_per_wave(house: House) -> None:
    """The plan, the question, then progress; Ctrl-C leaves the maintenance to itself."""
    code, seen = on_a_terminal(
        house,
        *["maintenance", "schedule", "--type", "Reboot", "--scope", "shop", "--wait", "done"],
        typed=b"y\n",
        enough=lambda text: "wave 3" in text,
    )
    assert code == FAILED
    assert "Schedule this? [y/N]" in seen
    for wave in ("wave 1", "wave 2", "wave 3"):
        assert re.search(wave + r"\s+━+\s+0/1\s+shop#", seen)
    assert "goes on without us" in seen
    found = ID.search(seen)
    assert found is not None
    house.say("maintenance", "cancel", found[0])


def test_on_a_terminal_tables_fold_and_crop_nothing(house: House, planned: dict[str, Any]) -> None:
    """Short ids that name one alone; every word of the reason is there on a narrow terminal too."""
    code, seen = on_a_terminal(house, "status", columns=90)
    assert code == DONE
    assert first_event(planned)["id"][:8] in seen
    assert "…" not in seen
    for word in ("approved,", "notice", "enough"):
        assert word in seen


def test_watch_on_a_terminal_shows_what_is_open(house: House, planned: dict[str, Any]) -> None:
    """The open events with what they wait for, until Ctrl-C."""
    short = first_event(planned)["id"][:8]
    code, seen = on_a_terminal(house, "event", "watch", enough=lambda text: short in text)
    assert code == DONE
    assert "open event" in seen


# -- around it


@pytest.mark.parametrize(
    "words",
    [
        "status", "fleet export", "scope list", "scope show shop", "machine list", "machine show shop/web-0",
        "machine list --host rack0", "maintenance list", "event list", "event list --since -1h --status Scheduled",
        "event list --machine shop/web-1 --type reboot", "order list", "order list --state all", "audit list",
        "token list", "clock show",
    ],
)  # fmt: skip
def test_every_list_and_look_prints_json_that_parses(house: House, words: str) -> None:
    """The API's JSON alone on standard output, and without --json something for people; last, when much has happened."""
    told = house.run(*words.split(), "--json")
    assert told.returncode == DONE, told.stderr
    assert isinstance(json.loads(told.stdout), dict)
    assert house.say(*words.split()).strip()


def test_a_reader_that_has_enough_is_no_error(house: House) -> None:
    """`| head` ends quietly."""
    command = " ".join([*FOREWARN, "audit", "list", "--limit", "500", "|", "head", "-n", "1"])
    result = subprocess.run(
        command,
        shell=True,
        env=environment(house.folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.stdout.startswith("AT ")
    assert result.stderr == ""


def test_completion_is_offered_for_the_shell(house: House) -> None:
    """Typer's own: the nouns are completed."""
    told = house.run("--show-completion", "bash").stdout
    assert "COMPLETE" in told


def test_a_restarted_service_is_waited_for(tmp_path: Path) -> None:
    """Whoever waits for a maintenance does not care that the service was away for a moment."""
    address = own_loopback_address()
    with serving(tmp_path, "--clock", "manual", "--operator", f"{address}:0") as first:
        made = first.json("maintenance", "schedule", "--type", "Reboot", "--scope", "quiet", "--yes", "--no-notice-ok")
        port = first.url.rpartition(":")[2]
        follower = first.begin("maintenance", "wait", made["id"])
        assert follower.stdout is not None
        assert "2 waves" in follower.stdout.readline()
        first.stop()
    second = House(tmp_path, "--clock", "manual", "--operator", f"{address}:{port}")
    try:
        for _ in range(2):
            order = second.order()
            second.say("order", "finish", order["id"])
        told, complaints = follower.communicate(timeout=PATIENCE_S)
        assert follower.returncode == DONE, complaints
        assert "Running -> Completed" in told
    finally:
        second.kill()


def test_with_a_certificate_of_ones_own_authority(tmp_path: Path) -> None:
    """A service that speaks TLS: trusted with FOREWARN_CA_FILE, else refused with its name, and nothing is sent."""
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    making = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=forewarn"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", certificate, "-keyout", key]
    subprocess.run([*making.split(), *names], check=True, capture_output=True)
    with serving(tmp_path, "--tls-cert", certificate, "--tls-key", key) as house:
        assert house.url.startswith("https://")
        assert house.run("status", FOREWARN_CA_FILE=certificate).returncode == DONE
        refused = house.run("status")
        assert refused.returncode == NOT_REACHABLE
        assert f"the certificate of {house.url} is not trusted" in refused.stderr
        assert "FOREWARN_CA_FILE" in refused.stderr
        plain = house.run("status", "--server", house.url.replace("https", "http"))
        assert plain.returncode == NOT_REACHABLE


def test_the_database_tells_json_too(house: House, tmp_path: Path) -> None:
    """`db` opens the store itself: where it is, a backup of it, and that backup restored elsewhere."""
    told = house.json("db", "status")
    assert told["database"] == str(house.folder / "state/forewarn.db")
    copy = str(tmp_path / "copy.db")
    assert house.json("db", "backup", copy)["bytes"] > 0
    elsewhere = ["--store", f"sqlite:{tmp_path}/other.db"]
    assert house.json("db", "restore", copy, *elsewhere)["backup"] == copy
    assert house.json("db", "migrate", *elsewhere)["applied"] == []
