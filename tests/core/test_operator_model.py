"""What a token and a login may be."""

from typing import Any

import pytest

from forewarn.core.errors import Invalid
from forewarn.core.operator_model import LoginSession, Role, Token
from tests.support.builders import START, at

DIGEST = "0123456789abcdef" * 4


def token(**fields: Any) -> Token:
    return Token(**{"id": "T1", "name": "portal", "role": Role.VIEWER, "digest": DIGEST, "created": START, **fields})


@pytest.mark.parametrize(
    "fields_, message",
    [
        ({"name": ""}, "the token has no name"),
        ({"name": "x" * 65}, "name is 65 characters long: at most 64"),
        ({"name": "a\nb"}, "name holds control characters"),
        ({"role": Role.OWNER}, "needs 1 to 32 scopes, not 0"),
        ({"role": Role.OWNER, "scopes": tuple(f"s{n}" for n in range(33))}, "needs 1 to 32 scopes, not 33"),
        ({"role": Role.CALENDAR, "scopes": tuple(f"s{n}" for n in range(33))}, "needs 0 to 32 scopes, not 33"),
        ({"role": Role.OWNER, "scopes": ("shop", "no name")}, "scope 'no name' is not a name"),
        ({"role": Role.OPERATOR, "scopes": ("shop",)}, "leave them out for role operator"),
        ({"scopes": ("shop",)}, "only roles owner and calendar take scopes"),
        ({"digest": DIGEST.upper()}, "digest is not 64 lower-case"),
        ({"digest": DIGEST[1:]}, "digest is not 64 lower-case"),
        ({"digest": DIGEST + "\n"}, "digest is not 64 lower-case"),
    ],
)
def test_a_bad_token_is_refused(fields_: dict[str, Any], message: str) -> None:
    """Name, scopes and digest of a token are checked."""
    with pytest.raises(Invalid, match=message):
        token(**fields_)


def test_a_token_may_have_scopes_up_to_the_limit() -> None:
    """Values within the limits are accepted."""
    scopes = tuple(f"s{n}" for n in range(32))
    assert token(role=Role.OWNER, scopes=scopes, name="x" * 64).scopes == scopes
    assert token(role=Role.OPERATOR, name="Größe").role == "operator"
    assert token(role=Role.CALENDAR).scopes == ()
    assert token(role=Role.CALENDAR, scopes=scopes).scopes == scopes


def test_a_login_is_known_by_a_hash() -> None:
    """The session id itself is never stored."""
    with pytest.raises(Invalid, match="digest is not 64"):
        LoginSession(digest="the id itself", token_id="T1", created=START, expires=at(1))
