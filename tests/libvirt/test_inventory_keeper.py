"""The service follows the domains of a host of libvirt's driver for tests, which lives in this process."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.app.service import Service
from forewarn.core.errors import InvalidFleet
from forewarn.core.fleet import Fleet
from forewarn.core.fleet_difference import Difference
from forewarn.core.model import Actor, EventType, Host, MaintenanceRequest, Targets
from forewarn.libvirt.connections import HostConnections
from forewarn.libvirt.inventory import GONE_AFTER
from forewarn.libvirt.inventory_keeper import InventoryKeeper
from forewarn.service.inventory import InventoryHealth
from forewarn.service.settings import load
from forewarn.store import AuditQuery
from tests.libvirt.test_reading import DOMAIN, NODE, element
from tests.support.waiting import until

METADATA = element("scope='shop'")


@pytest.fixture
def host(tmp_path: Path) -> str:
    """The URI of a host with one domain."""
    file = tmp_path / "host.xml"
    file.write_text(NODE.format(DOMAIN.format(name="web-0", number=0, metadata=METADATA)))
    return f"test://{file}"


@pytest.fixture
def service(host: str, tmp_path: Path) -> Iterator[Service]:
    service = Service(
        load({"store": "memory:", "inventory": "libvirt", "clock": "manual", "state_dir": str(tmp_path / "state")}, {})
    )
    hosts = {"kvm-a": Host(name="kvm-a", connection=host, listed=True)}
    service.control.apply_fleet(Fleet({}, {}, hosts), Actor("test"))
    yield service
    service.close()


def keeper_of(service: Service) -> tuple[InventoryKeeper, HostConnections]:
    keeper = service.inventory
    assert keeper is not None
    return keeper, keeper._connections


def names(service: Service) -> list[str]:
    return sorted(name for _, name in service.store.inventory().machines)


def test_a_rename_waits_for_the_open_event_of_the_machine(service: Service, host: str) -> None:
    """The machine keeps its name while its event is open, /readyz says so, and the audit has every change."""
    keeper, connections = keeper_of(service)
    assert keeper.update().lines == ("+ scope shop (availability-set)", "+ machine shop/web-0")
    assert keeper.update().lines == ()
    service.control.enable("shop", Actor("test"))
    request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope="shop"))
    maintenance_id = service.control.submit(request, Actor("test"))
    domain = connections.get(host).lookupByName("web-0")
    domain.destroy()
    domain.rename("web-9")
    keeper.update()
    assert names(service) == ["web-0"]
    assert "it becomes shop/web-9 after the event" in service.health.warnings()["inventory"]
    service.control.cancel_maintenance(maintenance_id, Actor("test"))
    keeper.update()
    assert names(service) == ["web-9"]
    assert "inventory" not in service.health.warnings()
    changes = [entry for entry in service.store.audit(AuditQuery(limit=100)) if entry.action == "fleet changed"]
    assert {(entry.who, entry.origin) for entry in changes} == {("inventory", "libvirt"), ("test", "")}
    assert sorted(entry.detail for entry in changes) == [
        "+ host kvm-a",
        "+ machine shop/web-0",
        "+ machine shop/web-9",
        "+ scope shop (availability-set)",
        "- machine shop/web-0",
    ]


def test_a_change_is_seen_when_libvirt_reports_it(service: Service, host: str) -> None:
    """The thread updates the fleet after an event, and ends when `stop` is called, whatever an update raised."""
    keeper, connections = keeper_of(service)
    thread = threading.Thread(target=keeper.run)
    thread.start()
    try:
        until(lambda: names(service) == ["web-0"])
        connections.get(host).defineXML(DOMAIN.format(name="web-1", number=1, metadata=METADATA))
        until(lambda: names(service) == ["web-0", "web-1"])
        broken, keeper.update = keeper.update, failing  # type: ignore[method-assign]
        connections.get(host).defineXML(DOMAIN.format(name="web-2", number=2, metadata=METADATA))
        until(lambda: "could not be compared" in service.health.warnings().get("inventory", ""))
        keeper.update = broken  # type: ignore[method-assign]
        connections.get(host).defineXML(DOMAIN.format(name="web-3", number=3, metadata=METADATA))
        until(lambda: names(service) == ["web-0", "web-1", "web-2", "web-3"])
    finally:
        keeper.stop()
        thread.join()


def test_a_node_that_does_not_tick_forgets_what_was_gone(service: Service, host: str) -> None:
    """The domain may have come back and gone again meanwhile: the hour begins anew when the node ticks again."""
    keeper, connections = keeper_of(service)
    keeper.update()
    domain = connections.get(host).lookupByName("web-0")
    domain.destroy()
    domain.undefine()
    keeper.update()
    may_change, keeper._may_change = keeper._may_change, lambda: False
    keeper.health = InventoryHealth(problems=("none of this node's business",))
    thread = threading.Thread(target=keeper.run)
    thread.start()
    try:
        until(lambda: keeper.health == InventoryHealth())
    finally:
        keeper.stop()
        thread.join()
    keeper._may_change = may_change
    for left in (["web-0"], []):
        service.ticker.advance(GONE_AFTER.total_seconds())
        keeper.update()
        assert names(service) == left


def failing(*, whole: bool = True) -> Difference:
    raise OSError(f"no memory for {whole}")


def test_wrong_rules_stop_the_service_at_its_start(tmp_path: Path) -> None:
    """The error names the file and the rule."""
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rules]]\nscope = 'shop'")
    with pytest.raises(InvalidFleet, match=r"rules.toml: rules\[0\]: match: missing"):
        Service(load({"store": "memory:", "inventory": "libvirt", "inventory_rules": str(rules)}, {}))
