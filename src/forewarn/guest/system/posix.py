"""Linux and other POSIX systems: the folders of the agent, signals, and files with their owners and modes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import sys
from pathlib import Path
from typing import IO, Any, Callable, Iterator, Mapping, Optional, Tuple

from forewarn.guest.errors import GuestError

assert sys.platform != "win32"

MAX_LINKS = 40
DEFAULT_CONFIG = "/etc/forewarn/agent.toml"
# Its content changes with every boot.
BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
# How a file must be open to be synced to the disk.
SYNC_FLAGS = os.O_RDONLY
# The signals that a step may send, without their SIG.
SIGNALS = tuple(name[3:] for name in signal.Signals.__members__)


# -- the machine


def default_state_dir(environment: Mapping[str, str]) -> Path:
    """Return the folder that systemd set, else root's, else the user's."""
    if environment.get("STATE_DIRECTORY"):
        return Path(environment["STATE_DIRECTORY"].partition(":")[0])
    if os.geteuid() == 0:
        return Path("/var/lib/forewarn-agent")
    return Path(environment.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "forewarn-agent"


def boot_id() -> str:
    """Return "": the boot id is in BOOT_ID_FILE."""
    return ""


def dhcp_options() -> Iterator[bytes]:
    """Yield nothing: the DHCP clients of Linux write lease files."""
    yield from ()


def end_on_signals(end: Callable[..., Any]) -> None:
    """Call `end` on SIGTERM and SIGINT."""
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)


@contextlib.contextmanager
def no_signals_for_new_threads() -> Iterator[None]:
    """Block the signals that end the agent in threads that are started in this block.

    If such a thread got one, the main thread, which ends the agent, would not wake up.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # It also runs handlers that are due. If one raises, as Ctrl-C does, nothing stays blocked.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def syslog_facility(name: str) -> Optional[int]:
    """Return the number of the facility of the system log, or None if there is no such facility."""
    import syslog

    return getattr(syslog, f"LOG_{name.upper()}", None)


def write_syslog(facility: int, line: str) -> None:
    import syslog

    syslog.openlog("forewarn-agent", 0, facility)
    syslog.syslog(syslog.LOG_NOTICE, line)


def service_state(name: str) -> str:
    """Raise OSError: only Windows has such services."""
    raise OSError(errno.ENOSYS, "only Windows has such services")


def run_as_service(name: str, work: Callable[[], Any]) -> None:
    """Raise GuestError: a service manager of Linux runs the agent in the foreground."""
    raise GuestError("only Windows has such services: let systemd run `forewarn-agent run`")


def find_program(name: str) -> Optional[str]:
    """Return the path of the program in PATH, or None; `shutil.which` would bring three compression libraries into memory."""
    paths = [name] if os.sep in name else [f"{folder}/{name}" for folder in os.get_exec_path() if folder]
    # `Path.is_file` raises an error for a folder that this user may not search.
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)  # noqa: PTH113


# -- files


def lock(file: int) -> bool:
    """Lock the file until it is closed or the process ends; return False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def make_private_folder(folder: Path) -> None:
    """Create the folder, if it is missing, so that only this user can use it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def replace(source: str, target: str, folder: Optional[int]) -> None:
    """Give the file `source` the name `target`; both are names in `folder`, or paths if it is None."""
    os.replace(source, target, src_dir_fd=folder, dst_dir_fd=folder)


def give_away(file: int, owner: os.stat_result) -> None:
    """Give the open file the user and group of `owner`, where this user may."""
    with contextlib.suppress(PermissionError):
        os.fchown(file, owner.st_uid, owner.st_gid)


def own_user_number() -> int:
    """Return this user as `os.stat` shows it."""
    return os.geteuid()


def output_file() -> IO[bytes]:
    """Return a file in memory, or a temporary file where the system has none. All writes go to its end."""
    try:
        file = os.fdopen(os.memfd_create("output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b", buffering=0)
    except (AttributeError, OSError):
        import tempfile  # only systems without files in memory need it

        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - the caller closes it
    fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
    return file


def read_at(file: int, max_bytes: int, start: int) -> bytes:
    """Read from this place of the open file. A program that shares the file's position may move that meanwhile."""
    return os.pread(file, max_bytes, start)


def limit_output(file: IO[bytes], max_bytes: int) -> None:
    """Limit what can still be written to a file in memory; a temporary file gets no limit."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(file, fcntl.F_SETFL, 0)
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        os.ftruncate(file.fileno(), max_bytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)


def owner_of(file: int) -> int:
    """Return the user that owns the open file."""
    return os.fstat(file).st_uid


def trusted_users() -> Tuple[int, ...]:
    """Return the users who may change files that the agent trusts: root and the agent's own user."""
    return 0, os.geteuid()


def others_may_write(path: Path) -> str:
    """Return how another user than this one and root could change or replace the file or folder, or ""."""
    return next(filter(None, (_others_may_change(part.lstat(), part) for part in _path_components(path))), "")


def others_may_change(file: int, path: Path) -> str:
    """Return how another user could change the open file itself, or ""."""
    return _others_may_change(os.fstat(file), path)


def others_may_read(file: int, name: str) -> str:
    """Return what is wrong with the open file, which holds a secret, or ""."""
    file_stat = os.fstat(file)
    if file_stat.st_uid not in trusted_users():
        return f"{name}, which holds a secret, belongs to another user: chown it"
    if file_stat.st_mode & 0o077:
        return f"other users may read {name}, which holds a secret: chmod 600 it"
    return ""


def _others_may_change(file_stat: os.stat_result, path: Path) -> str:
    trusted = file_stat.st_uid in trusted_users()
    if stat.S_ISLNK(file_stat.st_mode) and trusted:
        return ""
    if not trusted:
        return f"{path} belongs to another user: chown it"
    # In a sticky folder like /tmp only the owner can replace a file, and the owner of the next part is checked in turn.
    if file_stat.st_mode & 0o022 and not (stat.S_ISDIR(file_stat.st_mode) and file_stat.st_mode & stat.S_ISVTX):
        return f"other users may write {path}: chmod go-w it"
    return ""


def _path_components(path: Path) -> Iterator[Path]:
    """Yield every folder, link and file that determines what `path` is, from the root on."""
    here, rest, links = Path("/"), list(path.absolute().parts[1:]), 0
    yield here
    while rest:
        here = here.parent if rest[0] == ".." else here / rest[0]
        del rest[0]
        yield here
        if here.is_symlink():
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = here.parent / here.readlink()
            here, rest = Path("/"), [*target.parts[1:], *rest]
