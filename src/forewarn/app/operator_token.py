"""Lets the command line on the same machine find a service: `operator.url` and `operator.token` in its state folder."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forewarn.app.service import Service, new_id
from forewarn.core.errors import InvalidSettings
from forewarn.core.model import Actor
from forewarn.core.operator_model import Role, Token
from forewarn.operator.api.access import ENVIRONMENT_TOKEN, digest, secret_text
from forewarn.service.private_files import make_folder, read_private, write_private

MIN_TOKEN_CHARS = 16
SECRET_BYTES = 32


def environment_token() -> str:
    token = os.environ.get(ENVIRONMENT_TOKEN, "")
    if 0 < len(token) < MIN_TOKEN_CHARS:
        raise InvalidSettings(
            f"{ENVIRONMENT_TOKEN}: the token is shorter than {MIN_TOKEN_CHARS} characters and could be guessed: use a longer one"
        )
    return token


@contextmanager
def findable(service: Service, url: str) -> Iterator[None]:
    """Keep the service's address and an operator token where the command line finds them."""
    folder = service.settings.state_dir
    make_folder(folder)
    if not service.settings.token_free:
        keep_operator_token(service, folder / "operator.token")
    address = folder / "operator.url"
    write_private(address, url)
    try:
        yield
    finally:
        # Another service may have been started with the same folder meanwhile: its address stays.
        with suppress(OSError, ValueError):
            if address.read_text("ascii").strip() == url:
                address.unlink()


def keep_operator_token(service: Service, path: Path) -> None:
    """Make sure that the file holds a valid token. A revoked token is replaced and never becomes valid again."""
    known = service.store.tokens()
    with suppress(OSError, ValueError):
        if digest(read_private(path)) in {token.digest for token in known}:
            return
    name, actor = "operator", Actor("service", "first start")
    if service.state_dir is not None:
        # Nodes and their folders come and go: each would leave a token in the shared store for ever.
        if environment_token():
            return
        name = f"operator of {service.state_dir.name}"
        for lost in [token for token in known if token.name == name]:
            service.control.revoke_token(lost.id, actor)
    secret = secret_text(secrets.token_bytes(SECRET_BYTES))
    token = Token(id=new_id(), name=name, role=Role.OPERATOR, digest=digest(secret), created=service.clock.now())
    # The file first: the next start replaces a token that the store does not know; a token in no file would stay valid.
    write_private(path, secret)
    service.control.add_token(token, actor)
