"""The fleet whose guests poll: machines on loopback addresses, one host under all of them, a document of known size.

Owns how such a database is made and what its guests send. One maintenance of the host gives every scope its event.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from bench.service import OPERATOR
from forewarn.app.service import Service
from forewarn.core.change import Change
from forewarn.core.document import NEWEST, VERSIONS
from forewarn.core.model import EventType, Machine, MaintenanceRequest, Scope, ScopeKind, Targets
from forewarn.service.settings import Settings

DOCUMENT_BYTES = 695
HOST = "everywhere"
FIRST_ADDRESS = int(IPv4Address("127.0.0.1"))
NOT_BEFORE_IN = timedelta(hours=6)  # long after the bench has ended: the document stays as it is
SCOPES_PER_CHANGE = 1_000
PATH = f"/metadata/scheduledevents?api-version={NEWEST}"
HEADERS = "Host: 169.254.169.254\r\nMetadata: true\r\n"
POLL = f"GET {PATH} HTTP/1.1\r\n{HEADERS}\r\n".encode()


def long_poll(etag: str, wait_s: int) -> bytes:
    return f"GET {PATH} HTTP/1.1\r\n{HEADERS}If-None-Match: {etag}\r\nPrefer: wait={wait_s}\r\n\r\n".encode()


def address(serial: int) -> str:
    """Where the machine of this number calls from: 127.0.0.1 and those after it."""
    return str(IPv4Address(FIRST_ADDRESS + serial))


def scope_name(number: int) -> str:
    return f"scope-{number:06d}"


def build(path: Path, *, scopes: int, per_scope: int, announced: bool = True) -> None:
    build_at(f"sqlite:{path}", path.parent, scopes=scopes, per_scope=per_scope, announced=announced)


def build_at(store: str, folder: Path, *, scopes: int, per_scope: int, announced: bool = True) -> None:
    """An enabled fleet; where it is `announced` every document holds one event and has DOCUMENT_BYTES."""
    service = Service(Settings(store=store, state_dir=folder))
    try:
        _fill(service, scopes, per_scope)
        if announced:
            announce(service, "x" * (DOCUMENT_BYTES - _bare_bytes(folder, per_scope)))
            length = len(_document(service))
            if length != DOCUMENT_BYTES:
                raise RuntimeError(f"the document has {length} bytes instead of {DOCUMENT_BYTES}")
    finally:
        service.close()


def announce(service: Service, description: str) -> str:
    """One maintenance that shows in every scope's document, saved in one transaction; its id."""
    request = MaintenanceRequest(
        type=EventType.REBOOT,
        targets=Targets(hosts=(HOST,)),
        not_before=datetime.now(UTC).replace(microsecond=0) + NOT_BEFORE_IN,
        description=description,
    )
    return service.control.submit(request, OPERATOR)


def _bare_bytes(folder: Path, per_scope: int) -> int:
    """How long the document is without a description."""
    service = Service(Settings(store="memory:", state_dir=folder))
    try:
        _fill(service, 1, per_scope)
        announce(service, "")
        return len(_document(service))
    finally:
        service.close()


def _document(service: Service) -> bytes:
    return service.control.document(scope_name(0), VERSIONS[NEWEST])


def _fill(service: Service, scopes: int, per_scope: int) -> None:
    now = service.clock.now()
    for first in range(0, scopes, SCOPES_PER_CHANGE):
        numbers = range(first, min(first + SCOPES_PER_CHANGE, scopes))
        service.store.apply(
            Change(
                at=now,
                scopes=tuple(_scope(number, now) for number in numbers),
                machines=tuple(machine for number in numbers for machine in _machines(number, per_scope)),
            )
        )


def _scope(number: int, now: datetime) -> Scope:
    return Scope(name=scope_name(number), kind=ScopeKind.AVAILABILITY_SET, enabled=True, epoch=1, changed=now)


def _machines(number: int, per_scope: int) -> Iterator[Machine]:
    for index in range(per_scope):
        yield Machine(
            scope=scope_name(number),
            name=f"vm-{index:04d}",
            host=HOST,
            addresses=(address(number * per_scope + index),),
        )
