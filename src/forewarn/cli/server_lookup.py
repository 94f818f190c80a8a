"""Find the server's address and a token for it: options first, then variables, then the files of a service on this machine.

A service writes its address and an operator token into its state directory. While it is stopped, its address is the one in its
configuration. The command line sends that token only to that address. For any other server the user names a token as well.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from forewarn.core.errors import Invalid, InvalidSettings
from forewarn.core.lazy_dataclass import dataclass
from forewarn.service.default_state_dir import default_state_dir

DEFAULT_URL = "http://127.0.0.1:8170"
# The state directory of the packaged systemd unit; used if the user runs no service of their own.
SYSTEM_STATE_DIR = Path("/var/lib/forewarn")
URL_FILE, TOKEN_FILE = "operator.url", "operator.token"
MAX_FILE_BYTES = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server and the token for it ("" is none). `url_from` and `token_from` say where each was found, for errors.

    `unused_token` is a sentence about the token of the service on this machine if the server called is another one.
    """

    url: str
    token: str = field(default="", repr=False)
    url_from: str = ""
    token_from: str = ""
    unused_token: str = ""
    ca_file: Path | None = None


def find_server(
    environment: Mapping[str, str],
    *,
    server: str | None = None,
    token_file: Path | None = None,
    system_state_dir: Path = SYSTEM_STATE_DIR,
) -> Server:
    """Return the server to call; InvalidSettings names the option or variable that is wrong."""
    folder = _state_dir(environment, system_state_dir)
    local_url, local_from = _first_line(folder / URL_FILE), str(folder / URL_FILE)
    if not local_url:
        local_url, local_from = _configured_url(environment)
    named = server or environment.get("FOREWARN_SERVER") or ""
    url_from = "--server" if server else "FOREWARN_SERVER" if named else local_from
    url = _check_url(named or local_url or DEFAULT_URL, url_from)
    token, token_from = _named_token(environment, token_file)
    local_url = local_url.rstrip("/") or DEFAULT_URL
    if not token and url == local_url:
        token, token_from = _local_token(folder / TOKEN_FILE)
    elsewhere = url != local_url and os.path.exists(folder / TOKEN_FILE)  # noqa: PTH110 - without an error
    ca_file = environment.get("FOREWARN_CA_FILE")
    return Server(
        url=url,
        token=_check_token(token, token_from),
        url_from=url_from,
        token_from=token_from,
        unused_token=f"the token in {folder / TOKEN_FILE} is sent only to {local_url}" if elsewhere else "",
        ca_file=Path(ca_file).expanduser() if ca_file else None,
    )


def _check_url(text: str, source: str) -> str:
    """Return the address without a slash at its end. Refuse credentials in it, which would appear in logs."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = None
    if (
        not valid
        or parts.username
        or parts.query
        or parts.fragment
        or not (text.isascii() and text.isprintable())
        or " " in text
    ):
        raise InvalidSettings(
            f"{source or 'server'}: this is not a server's address: write it like http://127.0.0.1:8170"
        )
    return text.rstrip("/")


def _state_dir(environment: Mapping[str, str], system_state_dir: Path) -> Path:
    if named := environment.get("FOREWARN_STATE_DIR"):
        return Path(named).expanduser()
    if isinstance(named := _configuration(environment).get("state_dir"), str) and named:
        return Path(named).expanduser()
    own = default_state_dir(environment)
    used = (own / URL_FILE).exists() or (own / TOKEN_FILE).exists()
    return own if used or not system_state_dir.exists() else system_state_dir


def _configuration(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the service's configuration file, empty if there is none or it cannot be read."""
    try:
        return tomllib.loads(Path(environment.get("FOREWARN_CONFIG", "")).expanduser().read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def _configured_url(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return where the service would listen for operators, and where that is written; "" if any port is free to it."""
    configuration, source = _configuration(environment), "FOREWARN_OPERATOR"
    address = environment.get(source)
    if not address:
        address, source = configuration.get("operator"), environment.get("FOREWARN_CONFIG", "")
    if not address:
        return "", ""
    from forewarn.service.setting_readers import read_own_address  # imports much of the service

    try:
        host, port = read_own_address(address).rsplit(":", 1)
    except Invalid:
        return "", ""
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - an address to read, not to listen on
    scheme = "https" if environment.get("FOREWARN_TLS_CERT") or configuration.get("tls_cert") else "http"
    return (f"{scheme}://{host}:{port}", source) if int(port) else ("", "")


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


def _local_token(path: Path) -> tuple[str, str]:
    try:
        exists = path.exists()
    except PermissionError:
        exists = True
    return _read_token(path, "", ", or set FOREWARN_TOKEN") if exists else ("", "")


def _read_token(path: Path, option: str, alternative: str = "") -> tuple[str, str]:
    source = f"{option}: {path}" if option else str(path)
    try:
        with path.expanduser().open(encoding="utf-8") as file:
            token = file.read(MAX_FILE_BYTES).strip()
    except OSError as error:
        raise InvalidSettings(
            f"{source}: the token cannot be read: {error.strerror}; run the command as the file's owner{alternative}"
        ) from None
    except ValueError:
        raise InvalidSettings(f"{source}: this file contains no token") from None
    if not token:
        raise InvalidSettings(f"{source}: this file is empty: it should contain a token")
    return token, str(path)


def _check_token(token: str, source: str) -> str:
    # The message must not contain the token.
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise InvalidSettings(f"{source}: this is not a token: it contains spaces or characters that no token has")
    return token
