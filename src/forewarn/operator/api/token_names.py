"""Names that a new token must not have: in the audit log they could be mistaken for the service itself or for a machine."""

import re
import unicodedata

from forewarn.core.errors import Invalid
from forewarn.core.model import NAME

# The actors of the service, the name of the tokens that it makes itself, and words that readers take for it.
RESERVED = frozenset(
    {
        "clock",
        "command line",
        "executor",
        "fleet file",
        "forewarn",
        "guest",
        "idle watch",
        "inventory",
        "node",
        "operator",
        "reader",
        "root",
        "service",
        "system",
        "ticker",
    }
)
RESERVED_BEGINNINGS = ("forewarn ", "operator of ")
# Cyrillic and Greek letters that look like Latin ones.
LOOKALIKES = str.maketrans("авсԁеһіјкӏмнорԛѕтуԝхѵαεικνορτυχ", "abcdehijklmhopqstywxvaeiknoptux")


def is_reserved(name: str) -> bool:
    """Return whether the name resembles one of the service's own, whatever its case, spaces and script."""
    plain = unicodedata.normalize("NFKC", name).casefold().translate(LOOKALIKES)
    letters = "".join(c for c in unicodedata.normalize("NFD", plain) if unicodedata.category(c) not in ("Mn", "Cf"))
    words = re.sub(r"[\s._-]+", " ", letters).strip()
    return words in RESERVED or words.startswith(RESERVED_BEGINNINGS)


def check_token_name(name: str) -> None:
    """Refuse a name for a new token that could be mistaken for another actor. Old tokens keep their names."""
    scope, slash, machine = name.partition("/")
    if is_reserved(name):
        raise Invalid(f"name: {name!r} is reserved for the service itself: name the token after its user")
    if slash and NAME.fullmatch(scope) and NAME.fullmatch(machine):
        raise Invalid(f"name: {name!r} is written like a machine: name the token after its user")
    # A tab or a line end is refused by the token itself.
    if any(unicodedata.category(character) == "Cf" for character in name):
        raise Invalid("name: it contains invisible characters: name the token in plain text")
