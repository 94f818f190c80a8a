"""The environment variables that a command receives from the service: a short list, and what an operator adds to it.

The environment of the service may hold secrets, such as PGPASSWORD and FOREWARN_TOKEN: a command receives none by default.
"""

import re
from collections.abc import Collection, Mapping

from forewarn.core.errors import Invalid
from forewarn.executors.command_user import CommandUser

ALLOWED = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER", "LOGNAME"})
ALLOWED_PREFIX = "LC_"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_names(value: object) -> tuple[str, ...]:
    """Read the names of variables; a text may hold several, separated by spaces."""
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list) or not all(isinstance(each, str) and _NAME.fullmatch(each) for each in value):
        raise Invalid('write a list of names of variables, like ["HTTPS_PROXY"]')
    for name in value:
        if name.startswith("FOREWARN_"):
            raise Invalid(f"{name}: commands receive no FOREWARN_* variable of the service: leave it out")
    return tuple(value)


def command_environment(
    environment: Mapping[str, str], also: Collection[str], user: CommandUser | None
) -> dict[str, str]:
    """Return the variables that every command receives, besides those that describe its order."""
    passed = {
        name: value
        for name, value in environment.items()
        if name in ALLOWED or name.startswith(ALLOWED_PREFIX) or name in also
    }
    return passed if user is None else {**passed, "HOME": user.home, "USER": user.name, "LOGNAME": user.name}
