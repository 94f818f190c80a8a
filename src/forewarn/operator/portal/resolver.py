"""What people write for things: the first letters of an id, and a machine's name with its scope or alone."""

from collections.abc import Iterable

from forewarn.core.errors import Invalid, Refused
from forewarn.core.model import OPEN, Status
from forewarn.operator.api.client import ApiClient
from forewarn.store import EventQuery, MaintenanceQuery

ID_CHARS = 36
SHORT_CHARS = 8
LOOK_BACK = 500  # so many are looked through for a shortened id


def event_id(desk: ApiClient, text: str) -> str:
    """The whole id; what is not found stays as it was written, for the API to refuse."""
    if not SHORT_CHARS <= len(text) < ID_CHARS:
        return _whole(text)
    for statuses in (tuple(OPEN), tuple(Status)):
        query = EventQuery(statuses=statuses, within=desk.caller.within, limit=LOOK_BACK)
        if found := _one_of(text, (event.id for event in desk.api.store.events(query).events)):
            return found
    return text


def maintenance_id(desk: ApiClient, text: str) -> str:
    if not SHORT_CHARS <= len(text) < ID_CHARS:
        return _whole(text)
    query = MaintenanceQuery(within=desk.caller.within, limit=LOOK_BACK)
    return _one_of(text, (each.id for each in desk.api.store.maintenances(query))) or text


def _whole(text: str) -> str:
    return text.upper() if len(text) == ID_CHARS else text


def _one_of(head: str, ids: Iterable[str]) -> str:
    found = [each for each in ids if each.startswith(head.upper())]
    if len(found) > 1:
        raise Refused(f"{head!r} begins {len(found)} ids: write more of it")
    return found[0] if found else ""


def machine_keys(desk: ApiClient, scope: str, name: str) -> list[tuple[str, str]]:
    """Which machines may be meant: one that need not be there, or the first few of that name in any scope of theirs."""
    its_scope, slash, its_name = name.partition("/")
    if slash and scope in ("", its_scope):
        return [(its_scope, its_name)]
    if scope:
        return [(scope, name)]
    return [machine.key for machine in desk.api.store.machines_named(name) if desk.caller.sees(machine.scope)]


def machine_key(desk: ApiClient, scope: str, name: str) -> tuple[str, str]:
    found = machine_keys(desk, scope, name)
    if not found:
        raise Invalid(f"machine: no machine is called {name[:64]}: if it was removed, write it as scope/name")
    if len(found) > 1:
        those = " or ".join("/".join(key) for key in found[:3])
        raise Invalid(f"machine: several are called {name[:64]}: say which, {those}")
    return found[0]
