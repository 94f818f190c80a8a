"""Where the server is and which token opens it: options, then variables, then what a service on this machine left.

A service writes its address and an operator token into its state directory. That token goes to that address and to no
other: with a server named otherwise, a token must be named as well.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from forewarn.core.errors import InvalidSettings
from forewarn.service.settings import default_state_dir

DEFAULT_URL = "http://127.0.0.1:8170"
# Where the packaged unit keeps its state: the service of this machine, if the user runs none of their own.
SYSTEM_STATE_DIR = Path("/var/lib/forewarn")
URL_FILE, TOKEN_FILE = "operator.url", "operator.token"
MAX_FILE_BYTES = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server, the token for it ("" is none), and where each was found, to be named in errors."""

    url: str
    token: str = field(default="", repr=False)
    url_from: str = ""
    token_from: str = ""
    ca_file: Path | None = None


def find(environment: Mapping[str, str], *, server: str | None = None, token_file: Path | None = None) -> Server:
    """The place to talk to; InvalidSettings says which option or variable is wrong."""
    folder = _state_dir(environment)
    left_url = _first_line(folder / URL_FILE)
    named = server or environment.get("FOREWARN_SERVER") or ""
    url_from = "--server" if server else "FOREWARN_SERVER" if named else str(folder / URL_FILE) if left_url else ""
    url = check_url(named or left_url or DEFAULT_URL, url_from)
    token, token_from = _named_token(environment, token_file)
    if not token and url == (left_url.rstrip("/") or DEFAULT_URL):
        token, token_from = _left_token(folder / TOKEN_FILE)
    ca_file = environment.get("FOREWARN_CA_FILE")
    return Server(
        url=url,
        token=_check_token(token, token_from),
        url_from=url_from,
        token_from=token_from,
        ca_file=Path(ca_file).expanduser() if ca_file else None,
    )


def check_url(text: str, place: str) -> str:
    """Without a slash at its end; credentials in an address would end up in logs."""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = None
    if (
        not good
        or parts.username
        or parts.query
        or parts.fragment
        or not (text.isascii() and text.isprintable())
        or " " in text
    ):
        raise InvalidSettings(
            f"{place or 'server'}: this is not a server's address: write it like http://127.0.0.1:8170"
        )
    return text.rstrip("/")


def _state_dir(environment: Mapping[str, str]) -> Path:
    if named := environment.get("FOREWARN_STATE_DIR"):
        return Path(named).expanduser()
    if (config := environment.get("FOREWARN_CONFIG")) and (named := _configured_state_dir(Path(config))):
        return Path(named).expanduser()
    own = default_state_dir(environment)
    used = (own / URL_FILE).exists() or (own / TOKEN_FILE).exists()
    return own if used or not SYSTEM_STATE_DIR.exists() else SYSTEM_STATE_DIR


def _configured_state_dir(path: Path) -> str:
    """What the service's own configuration says; a file that is not ours to read says nothing."""
    try:
        said = tomllib.loads(path.expanduser().read_text("utf-8")).get("state_dir")
    except (OSError, ValueError):
        return ""
    return said if isinstance(said, str) else ""


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_FILE_BYTES).strip().partition("\n")[0].strip()
    except (OSError, ValueError):
        return ""


def _named_token(environment: Mapping[str, str], token_file: Path | None) -> tuple[str, str]:
    if token_file is not None:
        return _read_token(token_file, "--token-file")
    token = environment.get("FOREWARN_TOKEN", "").strip()
    return token, "FOREWARN_TOKEN" if token else ""


def _left_token(path: Path) -> tuple[str, str]:
    try:
        there = path.exists()
    except PermissionError:
        there = True
    return _read_token(path, "", "; or set FOREWARN_TOKEN") if there else ("", "")


def _read_token(path: Path, option: str, otherwise: str = "") -> tuple[str, str]:
    place = f"{option}: {path}" if option else str(path)
    try:
        with path.expanduser().open(encoding="utf-8") as file:
            token = file.read(MAX_FILE_BYTES).strip()
    except OSError as error:
        raise InvalidSettings(
            f"{place}: the token cannot be read: {error.strerror}; run as its owner{otherwise}"
        ) from None
    except ValueError:
        raise InvalidSettings(f"{place}: this file holds no token") from None
    if not token:
        raise InvalidSettings(f"{place}: this file is empty: it should hold a token")
    return token, str(path)


def _check_token(token: str, place: str) -> str:
    # The token itself is never shown.
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise InvalidSettings(f"{place}: this is not a token: it holds spaces or characters no token has")
    return token
