"""What an executor learns about hosts: how to reach them, and where the machines of an order may go."""

import pytest

from forewarn.core.fleet import Fleet
from forewarn.core.model import EventType, Host, Machine, MaintenanceRequest, Targets
from forewarn.executors import Work
from forewarn.service import placement
from forewarn.store.memory import MemoryStore
from tests.support.services import OPERATOR, ScriptedExecutor, make_service, ticker_with


class Recorder(ScriptedExecutor):
    """Keeps the work that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.works: list[Work] = []

    def take(self, work: Work) -> None:
        self.works.append(work)


def taken(type_: EventType, *hosts: Host) -> Work:
    """Return the work of an event of this type, on a fleet with these hosts, of which b is cordoned."""
    service = make_service(MemoryStore(), scopes=2, enabled=False)
    rows = {host.name: host for host in hosts}
    machine = Machine(scope="s-1", name="m", host="d", instance_id="uuid-1")
    service.control.apply_fleet(Fleet({}, {machine.key: machine}, rows), OPERATOR)
    if "b" in rows:
        service.control.cordon_host("b", OPERATOR)
    request = MaintenanceRequest(type=type_, targets=Targets(machines=(("s-0", "m"),)))
    service.control.submit(request, OPERATOR)
    executor = Recorder()
    ticker_with(service, executor).cycle_until_idle()
    (work,) = executor.works
    return work


LISTED = [Host(name=name, connection=f"test://{name}/", listed=True) for name in "hbcde"]


@pytest.mark.parametrize("page", [1, 2, 1_000])
def test_machines_that_leave_have_targets(monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    """The emptiest host first, without the host to leave and without the cordoned one; every connection is known."""
    monkeypatch.setattr(placement, "MAX_PAGE", page)
    work = taken(EventType.REDEPLOY, *LISTED)
    assert work.hosts == {"m": "h"}
    assert work.targets == {"m": ("c", "e", "d")}
    assert work.connections == {name: f"test://{name}/" for name in "hbcde"}
    assert not work.live


def test_machines_that_stay_have_no_targets() -> None:
    """A reboot chooses no host; without a list of hosts, an executor chooses by itself."""
    assert taken(EventType.REBOOT, *LISTED).targets == {}
    work = taken(EventType.REDEPLOY)
    assert (work.targets, work.connections) == ({}, {})
