"""Settings: flags win over FOREWARN_* variables, these over the file; an error names its origin."""

import re
from pathlib import Path

import pytest

from forewarn.core.errors import InvalidSettings
from forewarn.executors.command import CommandSettings
from forewarn.service.setting_readers import allowed_targets
from forewarn.service.settings import Settings, load

ROOT = Path(__file__).parents[2]
VARIABLE = re.compile(r"FOREWARN_[A-Z_]*[A-Z]")


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    return path


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    """Each layer overrides the one below, setting by setting."""
    file = config(tmp_path, 'clock = "1x"\nexecutor = "simulated"\norder_timeout = "5m"\n')
    settings = load({"clock": "3x", "store": None}, {"FOREWARN_CLOCK": "2x", "FOREWARN_ORDER_TIMEOUT": "6m"}, file)
    assert (settings.clock, settings.order_timeout_s, settings.executor) == ("3x", 360, "simulated")
    assert settings.operator == Settings().operator


def test_the_state_directory_follows_xdg() -> None:
    """It is in $XDG_STATE_HOME if that is set, else in the home folder."""
    assert load({}, {"XDG_STATE_HOME": "/var/state"}).state_dir == Path("/var/state/forewarn")
    assert load({}, {}).state_dir == Path("~/.local/state/forewarn").expanduser()


def test_every_kind_of_setting_is_read_from_a_file_and_from_the_environment(tmp_path: Path) -> None:
    """A list, a table, a number and a path can be TOML or text."""
    text = 'command = ["/bin/true", "-x"]\ncommand_parallel = 4\nsimulated_failures = { "shop/web-0" = 2 }\nfleet = "f.toml"\n'
    variables = {
        "FOREWARN_COMMAND": "/bin/true -x",
        "FOREWARN_COMMAND_PARALLEL": "4",
        "FOREWARN_SIMULATED_FAILURES": "shop/web-0=2",
        "FOREWARN_FLEET": "f.toml",
    }
    assert load({}, {}, config(tmp_path, text)) == load({}, variables)
    assert load({}, variables).executor_settings["command"] == CommandSettings(command=("/bin/true", "-x"), parallel=4)
    assert load({}, variables).executor_settings["simulated"].failures == {"shop/web-0": 2}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("colour = 1", "serve.toml: colour: unknown setting; the settings are store, state_dir,"),
        ("store = 1", "serve.toml: store: write a text"),
        ("command = 1", "serve.toml: command: write a list of texts"),
        ('command = ["a", 1]', "serve.toml: command: write a list of texts"),
        ("command_parallel = true", "serve.toml: command_parallel: True is not a whole number from 1 to 1000"),
        ("command_parallel = 0", "0 is not a whole number from 1 to 1000"),
        ('allowed_hosts = ["*"]', "serve.toml: allowed_hosts: '*' names no host: write each name in full"),
        ("order_timeout = 60", "serve.toml: order_timeout: 60 is not a duration"),
        ("simulated_failures = 3", "serve.toml: simulated_failures: write a table"),
        ('guest = "127.0.0.1:99999"', "is not HOST:PORT"),
        ('executor = "Comand"', "executor: 'Comand' is unknown: did you mean command? Use one of external, command,"),
        ('role = "node"', "role: 'node' is unknown: use one of all, "),
        ("colour = ", "serve.toml: this is not TOML"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_origin(tmp_path: Path, text: str, error: str) -> None:
    """The error has the file, the key, and what to write."""
    with pytest.raises(InvalidSettings) as caught:
        load({}, {}, config(tmp_path, text))
    assert error in str(caught.value)


def test_all_wrong_settings_are_reported_at_once(tmp_path: Path) -> None:
    """From the file, the variables and the flags; then, if each is valid, every one that does not fit the others."""
    file = config(tmp_path, 'colour = 1\nrate_limit = -1\nlog_level = "info"')
    with pytest.raises(InvalidSettings) as caught:
        load({"operator": "here"}, {"FOREWARN_ROLE": "node", "FOREWARN_RATE_LIMITS": "1"}, file)
    origins = (f"{file}: colour", f"{file}: rate_limit", "FOREWARN_ROLE", "FOREWARN_RATE_LIMITS", "--operator")
    assert all(problem.startswith(f"{each}: ") for problem, each in zip(caught.value.problems, origins, strict=True))
    assert str(caught.value) == "\n".join(caught.value.problems)
    wrong = {
        "store": "mysql:x",
        "token_free": "true",
        "executor": "command",
        "operator": "192.0.2.1:1",
        "tls_cert": "c.pem",
        "guest": "0.0.0.0:1",
        "hook_timeout": "2m",
    }
    with pytest.raises(InvalidSettings) as caught:
        load(wrong, {})
    begins = ["token_free", "executor", "store", "token_free", "tls_cert", "guest", "hook_timeout"]
    assert [problem.partition(":")[0] for problem in caught.value.problems] == begins


def test_an_unknown_setting_suggests_the_nearest_known_one(tmp_path: Path) -> None:
    """As it is written there: a variable, a key of the file, or a key of an executor's table."""
    for variables, text, suggestion in (
        (
            {"FOREWARN_PROXY_SECRET": "x"},
            "",
            "FOREWARN_PROXY_SECRET: unknown setting; did you mean FOREWARN_PROXY_SECRET_FILE?",
        ),
        ({"FOREWARN_TOKENS": "x"}, "", "FOREWARN_TOKENS: unknown setting; did you mean FOREWARN_TOKEN?"),
        ({}, "rate_limits = 5", "rate_limits: unknown setting; did you mean rate_limit?"),
        ({}, '[command]\ntime_limits = "5m"', "[command] time_limits: unknown setting; did you mean time_limit?"),
        ({}, '[commands]\ntime_limit = "5m"', "commands: unknown setting; did you mean command?"),
    ):
        with pytest.raises(InvalidSettings) as caught:
            load({}, variables, config(tmp_path, text))
        assert str(caught.value).endswith(suggestion)


def test_the_documented_variables_are_known() -> None:
    """No page names a FOREWARN_ variable with which `forewarn serve` would refuse to start as an unknown setting."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "packaging").iterdir()]
    documented = {name for page in pages for name in VARIABLE.findall(page.read_text("utf-8"))}
    assert len(documented) > 50
    assert [name for name in sorted(documented) if "unknown setting" in refusal({name: "1"})] == []


def refusal(variables: dict[str, str]) -> str:
    try:
        load({}, variables)
    except InvalidSettings as error:
        return str(error)
    return ""


def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path) -> None:
    """It is too large, or not text."""
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(InvalidSettings, match="no configuration file"):
        load({}, {}, large)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidSettings, match="not TOML"):
        load({}, {}, binary)


def test_targets_of_hooks_may_have_a_port() -> None:
    """Without one they are allowed with every port; an IPv6 address or network with a port is in brackets."""
    texts = ("a.example", "b.example:8443", "10.0.0.0/8", "10.0.0.0/8:443", "[fd00::/8]:443", "fd00::1")
    targets = allowed_targets(load({}, {"FOREWARN_HOOK_TARGETS": " ".join(texts)}).hook_targets)
    assert targets.names == {"a.example"}
    assert [str(each) for each in targets.networks] == ["10.0.0.0/8", "fd00::1/128"]
    assert {port: (each.names, [str(n) for n in each.networks]) for port, each in targets.ports.items()} == {
        8443: ({"b.example"}, []),
        443: (frozenset(), ["10.0.0.0/8", "fd00::/8"]),
    }
    for wrong in ("a.example:0", "a.example:99999", "a.example:http", "[a.example", "fd00::/8:443x"):
        with pytest.raises(InvalidSettings, match="FOREWARN_HOOK_TARGETS: "):
            load({}, {"FOREWARN_HOOK_TARGETS": wrong})


def test_variables_of_other_programs_are_ignored() -> None:
    """FOREWARN_TOKEN and others are no settings and no errors."""
    assert load({}, {"FOREWARN_TOKEN": "secret", "FOREWARN_SERVER": "http://x"}).store == ""


def test_an_invalid_store_is_not_quoted() -> None:
    """A connection string in PostgreSQL's other notation may contain the password."""
    with pytest.raises(InvalidSettings, match="only as such a URL") as caught:
        load({"store": "host=db.example password=correct-horse dbname=forewarn"}, {})
    assert "correct-horse" not in str(caught.value)


def test_the_executor_of_hosts_needs_a_command_and_has_limits_of_its_own() -> None:
    """Of the settings of the command executor, only who runs commands applies to it: it is never repeated."""
    with pytest.raises(InvalidSettings, match="set `host_command` to a program"):
        load({"host_executor": "command"}, {})
    with pytest.raises(InvalidSettings, match="use one of external, command"):
        load({"host_executor": "simulated"}, {})
    with pytest.raises(InvalidSettings, match="order_timeout: it must be longer than host_command_time_limit"):
        load({"host_executor": "command", "host_command": ["/bin/patch-host"], "host_command_time_limit": "2h"}, {})
    with pytest.raises(InvalidSettings, match="token_free: not with the host executor command"):
        load({"host_executor": "command", "host_command": ["/bin/patch-host"], "token_free": True}, {})
    of_events = {
        "command": ["/bin/x"],
        "command_time_limit": "20m",
        "command_repeatable": True,
        "command_parallel": 1,
        "command_user": "maintain",
    }
    found = load({"host_executor": "command", "host_command": ["/bin/patch-host"], **of_events}, {}).of_host_executor()
    assert found == CommandSettings(command=("/bin/patch-host",), time_limit_s=1_800, user="maintain")
    assert not found.repeatable
    assert load({}, {}).host_executor == "external"
