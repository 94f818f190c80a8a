"""Files in folders that other users own: no link is followed, nothing blocks, nothing is left behind."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from forewarn.guest import status
from forewarn.guest.clock import Time, boot_id
from forewarn.guest.config import load
from forewarn.guest.config_values import read_secret
from forewarn.guest.errors import ConfigError, StepFailed
from forewarn.guest.handlers import log, nginx_include
from forewarn.guest.safe_files import open_regular, read_regular, replace_file
from forewarn.guest.steps import Run
from tests.guest.in_process_agent import AgentHarness

STRANGER = 1234
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def obstacles(folder: Path, victim: Path) -> dict[str, Callable[[Path], None]]:
    """Return what the owner of a folder can put in the agent's way."""
    del folder
    return {
        "link": lambda path: path.symlink_to(victim),
        "dangling link": lambda path: path.symlink_to(victim.with_name("missing")),
        "pipe": lambda path: os.mkfifo(path),
    }


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe"])
@pytest.mark.parametrize("name", ["agent.prom", ".agent.prom.{pid}"])
def test_writing_metrics_follows_and_awaits_nothing(tmp_path: Path, kind: str, name: str) -> None:
    """The owner of the folder of `metrics_file` cannot make the agent write elsewhere or wait."""
    victim, folder = tmp_path / "shadow", tmp_path / "exporter"
    victim.write_text("root:secret\n")
    folder.mkdir()
    obstacles(folder, victim)[kind](folder / name.format(pid=os.getpid()))
    harness = AgentHarness(tmp_path, "")
    status.write(harness.agent, tmp_path / "state", folder / "agent.prom")
    assert victim.read_text() == "root:secret\n"
    assert not (tmp_path / "missing").exists()
    written = folder / "agent.prom"
    assert stat.S_ISREG(written.lstat().st_mode)
    assert stat.S_IMODE(written.stat().st_mode) == 0o644
    assert "forewarn_agent_in_service 1" in written.read_text()


def test_a_file_is_replaced_whole_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure the old content is there, and no other file."""
    path = tmp_path / "file"
    path.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new", 0o644)
    assert (names(tmp_path), path.read_text()) == (["file"], "old")
    monkeypatch.undo()
    replace_file(path, b"new", 0o640, sync=True)
    assert (names(tmp_path), path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (["file"], "new", 0o640)


def test_what_a_killed_agent_left_is_removed(tmp_path: Path) -> None:
    """Only this user's regular files with the agent's own pattern of names are removed."""
    left, link, other = tmp_path / ".file.0a.new", tmp_path / ".file.0b.new", tmp_path / ".file.conf"
    left.write_text("half")
    link.symlink_to(tmp_path / "elsewhere")
    other.write_text("")
    replace_file(tmp_path / "file", b"new", 0o600)
    assert names(tmp_path) == [".file.0b.new", ".file.conf", "file"]


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder", "missing"])
def test_only_a_regular_file_is_opened(tmp_path: Path, kind: str) -> None:
    """Anything else raises OSError at once."""
    path, victim = tmp_path / "file", tmp_path / "victim"
    victim.write_text("x")
    makers = obstacles(tmp_path, victim)
    makers.update(folder=lambda path: path.mkdir(), missing=lambda _: None)
    makers[kind](path)
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_APPEND):
        with pytest.raises(OSError):
            open_regular(path, flags)
    assert read_regular(victim, 10) == b"x"


@needs_root
def test_a_link_must_belong_to_root_or_to_the_owner_of_its_target(tmp_path: Path) -> None:
    """A user cannot direct the agent to a file or folder of another user."""
    roots, strangers = tmp_path / "root", tmp_path / "stranger"
    for folder, owner in ((roots, 0), (strangers, STRANGER)):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
        os.chown(folder / "file", owner, -1)
        os.chown(folder, owner, -1)
    by_root, by_stranger, to_stranger = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    by_root.symlink_to("stranger")
    by_stranger.symlink_to(roots)
    to_stranger.symlink_to("stranger")
    for link in (by_stranger, to_stranger):
        os.lchown(link, STRANGER, -1)
    assert read_regular(by_root / "file", 10) == read_regular(to_stranger / "file", 10) == b"stranger"
    with pytest.raises(OSError, match="a link of another user leads to it"):
        read_regular(by_stranger / "file", 10)
    with pytest.raises(OSError, match="a link of another user leads to it"):
        replace_file(by_stranger / "file", b"new", 0o600)
    replace_file(to_stranger / "file", b"new", 0o600)
    assert ((roots / "file").read_text(), (strangers / "file").read_text()) == ("root", "new")
    last = strangers / "last"
    last.symlink_to(roots / "file")
    assert read_regular(last, 10, follow=True) == b"root"
    with pytest.raises(OSError, match="symbolic link"):
        read_regular(last, 10)
    os.lchown(last, STRANGER, -1)
    with pytest.raises(OSError, match="a link of another user leads to it"):
        read_regular(last, 10, follow=True)


def test_an_automount_point_on_the_way_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each folder is opened as a folder; otherwise the system would not mount what belongs there."""
    path = tmp_path / "data" / "file"
    path.parent.mkdir()
    path.write_text("x")
    opened: dict[object, int] = {}
    really = os.open

    def record(name: str, flags: int, *more: int, **options: int) -> int:
        file = really(name, flags, *more, **options)
        opened[name] = flags
        return file

    monkeypatch.setattr(os, "open", record)
    assert read_regular(path, 10) == b"x"
    assert all(opened[part] & os.O_DIRECTORY for part in path.parts[:-1])
    assert not opened["file"] & os.O_DIRECTORY


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    """The search for a file ends."""
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        read_regular(tmp_path / "round" / "file", 10)


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "second name"])
def test_the_log_handler_writes_to_a_file_of_its_own_only(tmp_path: Path, kind: str) -> None:
    """The owner of the folder cannot make the agent append to another file, or wait."""
    victim, path = tmp_path / "victim", tmp_path / "events.jsonl"
    victim.write_text("root:secret\n")
    makers = obstacles(tmp_path, victim)
    makers["second name"] = lambda path: path.hardlink_to(victim)
    makers[kind](path)
    run = Run(step="log", phase="notify", event={}, share_s=1, time=Time())
    with pytest.raises(StepFailed, match=r"events\.jsonl cannot be written: it "):
        log.notify(log.Spec(file=str(path)), run)
    assert victim.read_text() == "root:secret\n"
    assert not (tmp_path / "missing").exists()


@needs_root
def test_a_secret_is_read_from_the_file_that_was_checked(tmp_path: Path) -> None:
    """A link of another user cannot make the agent send a file of root as a password; nor can a pipe block it."""
    secret, folder = tmp_path / "key", tmp_path / "strangers"
    secret.write_text("hunter2\n")
    secret.chmod(0o600)
    folder.mkdir()
    link = folder / "password"
    link.symlink_to(secret)
    assert read_secret(str(link)) == "hunter2"
    os.lchown(link, STRANGER, -1)
    with pytest.raises(StepFailed, match="a link of another user leads to it"):
        read_secret(str(link))
    link.unlink()
    os.mkfifo(link, 0o600)
    with pytest.raises(StepFailed, match="it is not a regular file"):
        read_secret(str(link))


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_the_nginx_handler_writes_beside_its_file_only(tmp_path: Path, kind: str) -> None:
    """What lies in the way of the new file is neither followed nor opened."""
    victim, path = tmp_path / "victim", tmp_path / "web.conf"
    victim.write_text("root:secret\n")
    path.write_text("server a;\n")
    obstacles(tmp_path, victim)[kind](tmp_path / ".web.conf.forewarn")
    nginx_include.write(str(path), nginx_include.Upstream("server a down;\n"))
    assert (victim.read_text(), path.read_text()) == ("root:secret\n", "server a down;\n")


@needs_root
def test_a_pipe_of_another_user_does_not_block_the_start(tmp_path: Path) -> None:
    """Neither as the configuration file nor as the file with the id of the boot."""
    path = tmp_path / "agent.toml"
    os.mkfifo(path, 0o600)
    assert boot_id(str(path)) == ""
    os.chown(path, STRANGER, -1)
    with pytest.raises(ConfigError, match=r"is refused: .*agent\.toml belongs to another user"):
        load(path, {})
