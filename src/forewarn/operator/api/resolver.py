"""Find what people mean by what they type: `web-0`, `shop/web-0`, a whole id or its first characters.

The one resolver for the API, and through it for the command line and the portal. Every search is a seek in an index, named at
its function. Tokens and hooks are the exceptions: they are few, and all of them are read.
"""

import re
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import NamedTuple

from forewarn.operator.api.access import Identity
from forewarn.store import Focus, IdKind, Store

MAX_MATCHES = 20
MIN_PREFIX_CHARS = 8  # as many as the command line and the portal print of an id
MAX_TEXT_CHARS = 200
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Kind(StrEnum):
    """The kinds of things people name."""

    MACHINE = "machine"
    EVENT = "event"
    MAINTENANCE = "maintenance"
    ORDER = "order"
    TOKEN = "token"  # noqa: S105 - a word, no secret
    SCOPE = "scope"
    HOOK = "hook"


class Match(NamedTuple):
    """One thing that was found; a machine's id is `scope/name`. `exact` where its whole id or name was typed."""

    kind: Kind
    id: str
    exact: bool


def find_matches(
    store: Store, caller: Identity, text: str, kinds: Collection[Kind] = tuple(Kind)
) -> tuple[list[Match], bool]:
    """Return at most MAX_MATCHES things the caller may see, exact matches first, and whether there are more."""
    text = text.strip()
    matches = [match for kind in Kind if kind in kinds for match in FINDERS[kind](store, caller, text)]
    matches.sort(key=lambda match: not match.exact)
    return matches[:MAX_MATCHES], len(matches) > MAX_MATCHES


def _machines(store: Store, caller: Identity, text: str) -> list[Match]:
    """By the index on machine names, or by the primary key where the scopes are known."""
    scope, slash, name = text.rpartition("/")
    if not NAME.fullmatch(name) or (slash and not NAME.fullmatch(scope)):
        return []
    if not slash and caller.within is None:
        keys = [machine.key for machine in store.machines_named(name, MAX_MATCHES + 1)]
    else:
        wanted = tuple((each, name) for each in ([scope] if slash else caller.within or ()) if caller.sees(each))
        keys = sorted(
            store.snapshot(
                Focus(machines=wanted, whole_maintenances=False, open_events=False, document_only=True)
            ).machines
        )
    return [Match(Kind.MACHINE, "/".join(key), exact=True) for key in keys]


def _scopes(store: Store, caller: Identity, text: str) -> list[Match]:
    """By the primary key."""
    if not NAME.fullmatch(text) or not caller.sees(text):
        return []
    found = store.snapshot(
        Focus(scopes=(text,), whole_maintenances=False, open_events=False, document_only=True)
    ).scopes
    return [Match(Kind.SCOPE, name, exact=True) for name in found]


def _ids(kind: IdKind) -> Callable[[Store, Identity, str], list[Match]]:
    """By the index on ids."""

    def find(store: Store, caller: Identity, text: str) -> list[Match]:
        prefix = text.upper()
        if len(prefix) < MIN_PREFIX_CHARS or not NAME.fullmatch(prefix):
            return []
        found = store.ids_starting(kind, prefix, caller.within, MAX_MATCHES + 1)
        return [Match(Kind(kind), each, each == prefix) for each in found]

    return find


def _tokens(store: Store, caller: Identity, text: str) -> list[Match]:
    """Reads every token: they are few, and each request reads them all to identify its caller."""
    prefix = text.upper() if len(text) >= MIN_PREFIX_CHARS else None
    return [
        Match(Kind.TOKEN, token.id, text in (token.id, token.name) or prefix == token.id)
        for token in store.tokens()
        if caller.manages(token)
        and (text in (token.id, token.name) or (prefix is not None and token.id.startswith(prefix)))
    ]


def _hooks(store: Store, caller: Identity, text: str) -> list[Match]:
    """Reads every hook: they are few."""
    prefix = text.upper()
    if len(prefix) < MIN_PREFIX_CHARS or not caller.sees_hooks:
        return []
    return [
        Match(Kind.HOOK, hook.id, hook.id == prefix)
        for hook in store.hooks()
        if hook.id.startswith(prefix) and caller.sees(hook.scope)
    ]


FINDERS: dict[Kind, Callable[[Store, Identity, str], list[Match]]] = {
    Kind.MACHINE: _machines,
    Kind.EVENT: _ids("event"),
    Kind.MAINTENANCE: _ids("maintenance"),
    Kind.ORDER: _ids("order"),
    Kind.TOKEN: _tokens,
    Kind.SCOPE: _scopes,
    Kind.HOOK: _hooks,
}
