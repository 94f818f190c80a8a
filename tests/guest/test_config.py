"""agent.toml: what is read, and what is refused with its key and what to write instead."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from forewarn.guest.config import TOP_LEVEL_KEYS, load, parse
from forewarn.guest.config_values import secret_file_problem
from forewarn.guest.errors import ConfigError
from forewarn.guest.handlers import HANDLERS
from forewarn.guest.journal import Journal
from forewarn.guest.plan import When
from forewarn.guest.system import system
from forewarn.guest.template import TEMPLATE

STEP = '[[steps]]\nname = "x"\n'


def test_every_key_is_read() -> None:
    """Every key of agent.toml is read into the configuration."""
    config = parse(
        tomllib.loads("""
approve = "first-in-resources"
reserve = "20s"
endpoint = "10.0.0.1:8169"
api_version = "2017-08-01"
name = "web-0"
source_address = "10.0.0.4"
poll = "2s"
state_dir = "/var/lib/x"
metrics_file = "/var/lib/x.prom"
boot_id_file = "/run/boot"
log_level = "debug"
[[rules]]
when = { type = ["Freeze"], max_duration = "9s", source = "Platform" }
do = "approve"
[[steps]]
name = "stop the worker"
when = { type = "Reboot" }
timeout = "2m"
required = true
repeatable = false
command = { prepare = ["a"], verify = ["b"], recover = ["c"] }
[health]
command = ["curl"]
"""),
        {},
    )
    assert config.plan.approve == "first-in-resources"
    assert config.plan.rules[0].when == When(("Freeze",), ("Platform",), 9.0)
    (step,) = config.plan.steps
    assert (step.timeout_s, step.required, step.repeatable, step.spec.recover) == (120, True, False, ("c",))
    assert config.plan.health is not None
    assert config.plan.health.timeout_s == 60
    assert (config.endpoint, config.poll_every_s) == ("http://10.0.0.1:8169", 2)


@pytest.mark.parametrize(
    ("text", "reserve_s"), [("90s", 90), ("1h30m", 5_400), ("1d2h3m4s", 93_784), ("7d", 604_800), ("0", 0)]
)
def test_durations(text: str, reserve_s: int) -> None:
    """A duration is one or more numbers with units, the largest unit first."""
    assert parse({"reserve": text}, {}).plan.reserve_s == reserve_s
    assert parse({"prepare_within": text}, {}).plan.prepare_within_s == reserve_s
    assert parse({}, {}).plan.prepare_within_s is None


@pytest.mark.parametrize("text", ["", "90", "30m1h", "1h 30m", "1.5h", "1h30"])
def test_texts_that_are_no_durations(text: str) -> None:
    """Anything else is refused, with an example."""
    with pytest.raises(ConfigError, match=r"is not a duration: .* like .90s. or .1h30m."):
        parse({"reserve": text}, {})


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("aprove = 1", "agent.toml.aprove: unknown key; did you mean approve? The keys here are approve,"),
        ('approve = "sometimes"', "approve: 'sometimes' is unknown: use one of when-ready,"),
        ("reserve = 30", "reserve: 30 is not a duration: write numbers with units, largest first"),
        ('reserve = "9d"', "reserve: '9d' is longer than a week"),
        ('reserve = "7d1s"', "reserve: '7d1s' is longer than a week"),
        ('endpoint = "https://x"', "'https://x' is not an endpoint"),
        ('api_version = "latest"', "api_version: 'latest' is not a version"),
        ("rules = 1", "rules: write each as a table of its own, under [[rules]]"),
        ("[[rules]]\nwhen = {}", "rules[0]: do is missing"),
        ('[[rules]]\ndo = "approve"\nwhen = { kind = "x" }', "rules[0].when.kind: unknown key"),
        ("[[steps]]\nlog = {}", "steps[0].name: write a text"),
        (STEP, f'steps[0] "x": write exactly one of {", ".join(HANDLERS)}'),
        (STEP + 'log = { file = "a" }\nsystemd = { unit = "a.service" }', "write exactly one of"),
        (STEP + "command = {}", "it does nothing: write `prepare`, `recover`, or both"),
        (STEP + 'command = { prepare = "a b" }', "command.prepare: write a list of texts"),
        (STEP + "command = 3", 'steps[0] "x".command: write a table'),
        (STEP + 'command = { undo = ["x"] }', "command.undo: unknown key; the keys here are prepare, verify, recover"),
        (STEP + 'timeout = "0"\ncommand = { prepare = ["a"] }', "timeout: too short"),
        (STEP + "process = {}", "process: pid_file is missing"),
        (STEP + 'process = { pid_file = "p", signal = "BYE" }', "'BYE' is not a signal"),
        (STEP + 'systemd = { unit = "worker" }', "'worker' is not a unit: write it like worker.service"),
        (STEP + 'systemd = { unit = "--now.service" }', "is not a unit"),
        (STEP + "log = {}", "write either `file"),
        (STEP + 'notify = { url = "http://x" }', "notify.url: unknown key"),
        (STEP + "notify = {}", "url_file is missing: the address is a secret"),
        (STEP + 'notify = { url_file = "x", shape = "teams" }', "'teams' is unknown: use one of slack, event"),
        (STEP + 'required = true\nlog = { file = "a" }', "cannot be required"),
        ((STEP + 'log = { file = "a" }\n') * 2, "two are named 'x'"),
        ("[health]\ntimeout = '1m'", "health.command: write a list of texts"),
    ],
)
def test_what_is_refused(toml: str, message: str) -> None:
    """The message names the key and what to write."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(tomllib.loads(toml), {})


@pytest.mark.posix
def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """The file names programs to run, so no other user may change it or its folder."""
    path = tmp_path / "agent.toml"
    path.write_text("")
    path.chmod(0o600)
    load(path, {})
    for mode in (0o620, 0o602, 0o666):
        path.chmod(mode)
        with pytest.raises(ConfigError, match=r"is refused: .* other users may write .*agent\.toml: chmod go-w it"):
            load(path, {})
    path.chmod(0o644)
    load(path, {})
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="is refused"):
        load(path, {})
    tmp_path.chmod(0o1777)
    load(path, {})


@pytest.mark.posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file away")
def test_every_folder_and_link_on_the_way_counts(tmp_path: Path) -> None:
    """Who can change one of them could replace the file, even in a sticky folder."""
    safe, loose = tmp_path / "safe", tmp_path / "loose"
    (safe / "in").mkdir(parents=True)
    loose.mkdir()
    path = safe / "in" / "agent.toml"
    path.write_text("")
    link = loose / "link"
    link.symlink_to("../safe/in")
    load(link / "agent.toml", {})
    loose.chmod(0o777)
    with pytest.raises(ConfigError, match=r"other users may write .*loose"):
        load(link / "agent.toml", {})
    loose.chmod(0o1777)
    load(link / "agent.toml", {})
    os.lchown(link, 1234, -1)
    with pytest.raises(ConfigError, match="link belongs to another user"):
        load(link / "agent.toml", {})
    load(path, {})
    safe.chmod(0o777)
    with pytest.raises(ConfigError, match=r"other users may write .*safe:"):
        load(path, {})
    safe.chmod(0o755)
    os.chown(safe, 1234, -1)
    with pytest.raises(ConfigError, match="safe belongs to another user"):
        load(path, {})
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "round", {})


@pytest.mark.posix
def test_a_state_dir_or_secret_of_another_user_is_refused(tmp_path: Path) -> None:
    """A forged journal could keep a machine out of service, and a forged secret could send messages elsewhere."""
    secret = tmp_path / "url"
    secret.write_text("http://x")
    secret.chmod(0o600)
    assert secret_file_problem(str(secret)) == ""
    if os.geteuid() == 0:
        os.chown(secret, 1234, -1)
        assert "belongs to another user" in secret_file_problem(str(secret))
    state = tmp_path / "state"
    Journal(state).close()
    state.chmod(0o770)
    with pytest.raises(ConfigError, match=r"state_dir .* is refused: .* chmod go-w it"):
        Journal(state)


def test_unreadable_files(tmp_path: Path) -> None:
    """A missing file, broken TOML and broken UTF-8 give one sentence each."""
    path = tmp_path / "agent.toml"
    with pytest.raises(ConfigError, match=r"cannot be read: [^;]+; `forewarn-agent init` writes one"):
        load(path, {})
    for data, message in ((b"= 1", "this is not TOML"), (b"\xff", "this is not UTF-8")):
        path.write_bytes(data)
        path.chmod(0o600)
        with pytest.raises(ConfigError, match=message):
            load(path, {})


@pytest.mark.posix
def test_the_template_is_complete_and_true() -> None:
    """The template is valid with and without its examples, and names every key and handler."""
    parse(tomllib.loads(TEMPLATE), {})
    on = re.sub(r"^# (?=[\w\[])", "", TEMPLATE, flags=re.MULTILINE)
    lines = [line for line in on.splitlines() if re.match(r"[\w.]+ = |\[", line)]
    config = parse(tomllib.loads("\n".join(lines)), {})
    assert {step.handler for step in config.plan.steps} == set(HANDLERS)
    for key in TOP_LEVEL_KEYS:
        assert re.search(rf"\b{key}\b", TEMPLATE), key


@pytest.mark.posix
def test_the_default_state_dir() -> None:
    """It is systemd's folder if set, else the system's or the user's."""
    assert system.default_state_dir({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}) == Path("/var/lib/a")
    assert system.default_state_dir({}).name == "forewarn-agent"
