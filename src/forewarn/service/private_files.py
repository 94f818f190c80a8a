"""Files of the service that only its user may read, and the TLS certificate of the operator listener."""

import logging
import os
import shlex
import stat
from pathlib import Path

from forewarn.core.errors import InvalidSettings
from forewarn.executors.private_folder import make_private_folder
from forewarn.service.settings import Settings

log = logging.getLogger("forewarn.service.private_files")


def make_folder(path: Path) -> None:
    """Create a folder that only this user may enter, unless it exists. Raise InvalidSettings if it is unsafe."""
    try:
        make_private_folder(path)
    except OSError as error:
        raise InvalidSettings(
            f"state_dir: {path} cannot be made: {error.strerror}; name another with --state-dir"
        ) from None


def read_private(path: Path) -> str:
    """Return the text of a private file. If others can read the file, change its mode and log a warning."""
    with path.open(encoding="ascii") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            os.fchmod(file.fileno(), 0o600)
            log.warning(
                "others could read %s (mode %04o); its mode is 0600 now: revoke its token if others may know it",
                path,
                mode,
            )
        return file.read().strip()


def write_private(path: Path, text: str) -> None:
    """Replace a file by a new one that only this user may read; after a crash the old or the new one is there."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise InvalidSettings(
            f"state_dir: {path} cannot be written: {error.strerror}; name another folder with --state-dir"
        ) from None


def check_secret(name: str, path: Path) -> None:
    """Raise InvalidSettings if users outside the file's group can read the file, or users other than its owner can write it.

    Its group may read it: files of the system with mode 0640 are shared with services in this way.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise InvalidSettings(
            f"{name}: {path} cannot be read: {error.strerror}; name a file that this user may read"
        ) from None
    if mode & 0o027:
        can = "read" if mode & 0o004 else "write"
        raise InvalidSettings(
            f"{name}: other users can {can} {path} (mode {mode:04o}): replace the secret if they may know it, and run"
            f" `chmod 640 {shlex.quote(str(path))}`"
        )


def check_tls(settings: Settings) -> None:
    """Raise InvalidSettings with the wrong file if the certificate or its key cannot be used; called before listening."""
    if settings.tls_cert is None or settings.tls_key is None:
        return
    for name, path in (("tls_cert", settings.tls_cert), ("tls_key", settings.tls_key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise InvalidSettings(
                f"{name}: {path} cannot be read: {error.strerror}; name a PEM file that this user may read"
            ) from None
    check_secret("tls_key", settings.tls_key)
    import ssl  # takes a while, and only a listener with TLS needs it

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(settings.tls_cert)
    except OSError:
        raise InvalidSettings(f"tls_cert: {settings.tls_cert} holds no certificate: name a PEM file with one") from None
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")  # never ask at the terminal
    except OSError as error:
        raise InvalidSettings(
            f"tls_key: {settings.tls_key} is not the key of {settings.tls_cert}, or it has a password"
            f" ({getattr(error, 'reason', None) or 'it cannot be read as PEM'}): name the key of this certificate"
        ) from None
