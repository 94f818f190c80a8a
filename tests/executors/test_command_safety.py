"""What a command can reach: its program, its environment, its user, and the folder of its order."""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.app.service import Service
from forewarn.core.errors import InvalidSettings
from forewarn.core.order_verbs import Outcome
from forewarn.executors import OrderReport, command_user
from forewarn.executors.command import CommandExecutor, CommandSettings
from forewarn.service.settings import Settings, load
from forewarn.testing.stories import START
from tests.folders import folder_for_every_user
from tests.support.running_service import running_service
from tests.support.services import ORDER_ID, work
from tests.support.waiting import PATIENCE_S, until

USER = "nobody"


def made(tmp_path: Path, *command: str, user: str = "", environment: tuple[str, ...] = ()) -> CommandExecutor:
    settings = CommandSettings(command=command, user=user, environment=environment)
    return CommandExecutor.from_settings(settings, tmp_path / "state")


def outcome_of(runs: CommandExecutor) -> Outcome:
    reports: list[OrderReport] = []

    def any_ended() -> bool:
        reports.extend(runs.reports(START))
        return bool(reports)

    runs.take(work())
    until(any_ended)
    outcome = reports[0].outcome
    assert isinstance(outcome, Outcome)
    return outcome


def program(path: Path, text: str = "true", mode: int = 0o755) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return str(path)


# -- the program


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "missing cannot be run: No such file or directory"),
        ("missing/program", "missing/program cannot be run: No such file or directory"),
        ("plain", "plain cannot be run by this user"),
        ("folder", "folder is a folder: name a program"),
    ],
)
def test_a_program_that_cannot_be_run_is_refused_at_start(tmp_path: Path, name: str, message: str) -> None:
    """The service does not start, and the message names the program."""
    program(tmp_path / "plain", mode=0o644)
    (tmp_path / "folder").mkdir()
    settings = load(
        {"store": "memory:", "state_dir": str(tmp_path), "executor": "command"},
        {"FOREWARN_COMMAND": str(tmp_path / name)},
    )
    with pytest.raises(InvalidSettings, match=f"^command: {tmp_path}/{message}"):
        Service(settings)


def test_a_program_without_a_path_is_found_in_the_commands_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file there that is not executable is named; a folder with the program's name does not count."""
    (tmp_path / "a" / "maintain").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/a:{tmp_path}/b")
    with pytest.raises(InvalidSettings, match=r"^command: maintain is in no folder of PATH: write its full path"):
        made(tmp_path, "maintain")
    program(tmp_path / "b" / "maintain", mode=0o600)
    with pytest.raises(InvalidSettings, match="b/maintain cannot be run by this user"):
        made(tmp_path, "maintain")
    program(tmp_path / "b" / "maintain")
    assert made(tmp_path, "maintain").problem() == ""


def test_a_program_that_disappears_is_a_problem_until_it_returns(tmp_path: Path) -> None:
    """/readyz asks for the problem each time."""
    path = tmp_path / "maintain"
    runs = made(tmp_path, program(path))
    assert runs.problem() == ""
    path.unlink()
    assert runs.problem() == f"{path} cannot be run: No such file or directory"
    program(path)
    assert runs.problem() == ""


def test_a_service_whose_program_disappears_is_not_ready(tmp_path: Path) -> None:
    """/readyz names the program, and the metric of its check is 0; both recover when the program returns."""
    path = tmp_path / "maintain"
    with running_service(executor="command", command=program(path)) as service:
        assert service.get("/readyz")["checks"]["executor"] == "ok"
        path.unlink()
        reply = service.request("GET", "/readyz")
        assert (reply.status, reply.json["ready"]) == (503, False)
        assert reply.json["checks"]["executor"] == f"{path} cannot be run: No such file or directory"
        assert b'forewarn_ready{check="executor"} 0.0' in service.request("GET", "/metrics").raw
        program(path)
        assert service.get("/readyz")["ready"] is True


# -- the environment


def test_a_command_receives_no_secret_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only variables of the list pass, and those that an operator adds; no variable is written to the disk."""
    monkeypatch.setenv("PGPASSWORD", "sesame-1")
    monkeypatch.setenv("FOREWARN_TOKEN", "sesame-2")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:sesame-3@10.0.0.1")
    monkeypatch.setenv("LC_TIME", "C")
    runs = made(tmp_path, program(tmp_path / "maintain", "env"), environment=("HTTPS_PROXY",))
    environment = dict(line.split("=", 1) for line in outcome_of(runs).output.splitlines())
    assert environment["HTTPS_PROXY"] == "http://proxy:sesame-3@10.0.0.1"
    assert environment["LC_TIME"] == "C"
    assert environment["FOREWARN_ORDER_ID"] == ORDER_ID
    assert not {"PGPASSWORD", "FOREWARN_TOKEN"} & set(environment)
    kept = "".join(path.read_text() for path in (tmp_path / "state").rglob("*.json") if path.name != "result.json")
    assert "maintain" in kept
    assert "sesame" not in kept


def test_the_runner_has_no_secret_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command could read the environment of its parent process."""
    monkeypatch.setenv("PGPASSWORD", "sesame")
    output = outcome_of(made(tmp_path, program(tmp_path / "maintain", "tr '\\0' '\\n' < /proc/$PPID/environ"))).output
    assert "PATH=" in output
    assert "PGPASSWORD" not in output


@pytest.mark.parametrize("names", ["PATH=1", "A B-C", "FOREWARN_TOKEN"])
def test_a_wrong_name_of_a_variable_is_refused(names: str) -> None:
    """The FOREWARN_* variables of the service never pass."""
    with pytest.raises(InvalidSettings, match=r"^FOREWARN_COMMAND_ENVIRONMENT: "):
        load({}, {"FOREWARN_COMMAND_ENVIRONMENT": names})


# -- the user


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can enter, whatever the modes above it."""
    folder = folder_for_every_user("forewarn-command-")
    yield folder
    shutil.rmtree(folder)


def test_a_command_runs_as_its_user(tmp_path: Path, open_folder: Path) -> None:
    """It has the user's groups and home, and cannot read the state folder; the result belongs to the service."""
    state = tmp_path / "state"
    text = f"id -u; id -g; id -G; echo $HOME $USER $LOGNAME; ls {state} 2>/dev/null || echo refused; cat >/dev/null"
    runs = made(tmp_path, program(open_folder / "maintain", text), user=USER)
    outcome = outcome_of(runs)
    user = command_user.find_user(USER)
    assert user is not None
    uid, gid, groups, names, listing = outcome.output.splitlines()
    assert (outcome.ok, int(uid), int(gid)) == (True, user.uid, user.gid)
    assert {int(group) for group in groups.split()} == set(user.groups)
    assert names == f"{user.home} {USER} {USER}"
    assert listing == "refused"
    assert (state / "orders" / f"{ORDER_ID}-1" / "result.json").stat().st_uid == 0


def test_a_command_of_another_user_is_stopped_at_its_time_limit(tmp_path: Path) -> None:
    """The runner keeps the right to stop it."""
    settings = CommandSettings(command=("sleep", "3600"), user=USER, time_limit_s=1)
    outcome = outcome_of(CommandExecutor.from_settings(settings, tmp_path / "state"))
    assert outcome.reason == "stopped after its time limit of 1 s"


def test_a_program_that_the_user_cannot_run_is_refused(tmp_path: Path, open_folder: Path) -> None:
    """The modes of the file and of every folder above it count for that user, not for root."""
    hidden = open_folder / "hidden"
    hidden.mkdir(mode=0o700)
    for path in (program(open_folder / "maintain", mode=0o700), program(hidden / "maintain")):
        with pytest.raises(InvalidSettings, match=f"^command: {path} cannot be run by the user {USER}"):
            made(tmp_path, path, user=USER)


def test_an_unknown_user_is_refused(tmp_path: Path) -> None:
    """The message names the setting."""
    with pytest.raises(InvalidSettings, match=r"^command_user: this machine has no user 'nobody-here'"):
        made(tmp_path, "/bin/true", user="nobody-here")


def test_a_service_without_the_capabilities_refuses_a_user(tmp_path: Path) -> None:
    """The message says which file gives them; the user of the service itself needs none."""
    status = tmp_path / "status"
    status.write_text("Name:\tforewarn\nCapPrm:\t0000000000000440\nCapEff:\t0000000000000440\n")
    with pytest.raises(InvalidSettings) as refused:
        command_user.find_user(USER, status)
    assert "may not run commands as nobody, because it lacks CAP_KILL, CAP_SETUID: " in str(refused.value)
    assert "packaging/forewarn-command-user.conf" in str(refused.value)
    assert command_user.find_user("root", status) is None
    status.write_text("CapEff:\t00000000000000e0\n")
    assert command_user.find_user(USER, status) is not None


AS_NOBODY = """
import sys
from pathlib import Path
from tests.executors.test_command_safety import USER, made, outcome_of
command = "id -u; grep -E '^Cap(Prm|Eff|Amb)' /proc/self/status"
print(outcome_of(made(Path(sys.argv[1]), "/bin/sh", "-c", command, user=USER)).output)
"""


def test_a_command_does_not_inherit_the_capabilities(open_folder: Path) -> None:
    """A service of the user `daemon` becomes `nobody` by its capabilities; with them the command could become root."""
    os.chown(open_folder, pwd.getpwnam("daemon").pw_uid, -1)
    capabilities = "+setuid,+setgid,+kill,+dac_read_search"  # the last one to read this repository
    result = subprocess.run(
        [
            "setpriv", "--reuid=daemon", "--regid=daemon", "--clear-groups", f"--inh-caps={capabilities}",
            f"--ambient-caps={capabilities}", sys.executable, "-c", AS_NOBODY, str(open_folder),
        ],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    uid, *sets = result.stdout.split("\n")
    assert int(uid) == pwd.getpwnam(USER).pw_uid
    assert [line.split() for line in sets if line] == [[f"Cap{name}:", "0" * 16] for name in ("Prm", "Eff", "Amb")]


# -- the folder


def test_the_folders_are_made_private(tmp_path: Path) -> None:
    """Also those above them, whatever the umask is."""
    before = os.umask(0)
    try:
        CommandExecutor.from_settings(CommandSettings(command=("/bin/true",)), tmp_path / "above" / "state")
    finally:
        os.umask(before)
    for name in ("above", "above/state", "above/state/orders"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["state", "state/orders"])
def test_an_unsafe_folder_is_refused(tmp_path: Path, name: str) -> None:
    """Another user could have put a program for this user into it."""
    folder = tmp_path / name
    folder.mkdir(parents=True)
    folder.chmod(0o770)
    with pytest.raises(
        InvalidSettings, match=rf"other users can write to {folder} \(mode 0770\).*`chmod 700 {folder}`"
    ):
        made(tmp_path, "/bin/true")
    assert folder.stat().st_mode & 0o777 == 0o770
    assert list((tmp_path / "state" / "orders").glob("*")) == []


def test_a_node_for_guests_needs_no_program(tmp_path: Path) -> None:
    """It takes no orders, so the same configuration file suits every node."""
    settings = Settings(
        store="memory:", state_dir=tmp_path, role="guest", executor="command", executor_settings={"command": None}
    )
    Service(settings).close()
