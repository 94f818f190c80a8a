"""Files with secrets: which modes are accepted."""

from pathlib import Path

import pytest

from forewarn.app.guest_server import trust_of
from forewarn.core.errors import InvalidSettings
from forewarn.service.private_files import check_secret, check_tls
from forewarn.service.settings import Settings


def secret(folder: Path, mode: int) -> Path:
    path = folder / "secret file"
    path.write_text("0123456789abcdef")
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_a_secret_that_its_group_may_read_is_accepted(tmp_path: Path, mode: int) -> None:
    """A file of root with mode 0640 is shared with the service by its group."""
    path = secret(tmp_path, mode)
    check_secret("tls_key", path)
    assert trust_of(Settings(proxy_secret_file=path)).proxy_secret == b"0123456789abcdef"


@pytest.mark.parametrize(("mode", "can"), [(0o644, "read"), (0o604, "read"), (0o660, "write"), (0o602, "write")])
def test_a_secret_that_others_can_use_is_refused_unchanged(tmp_path: Path, mode: int, can: str) -> None:
    """The message names the setting, the mode and the command that changes it."""
    path = secret(tmp_path, mode)
    expected = rf"other users can {can} {path} \(mode {mode:04o}\): .* `chmod 640 '{path}'`"
    with pytest.raises(InvalidSettings, match=f"^proxy_secret_file: {expected}"):
        trust_of(Settings(proxy_secret_file=path))
    with pytest.raises(InvalidSettings, match=f"^tls_key: {expected}"):
        check_tls(Settings(tls_cert=path, tls_key=path))
    assert path.stat().st_mode & 0o777 == mode
