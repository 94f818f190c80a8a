"""Hosts with machines, and one maintenance that works on the hosts."""

from typing import Any

from forewarn.core.change import Change
from forewarn.core.host_orders import hosts_to_read
from forewarn.core.host_waiting import waiting_for_hosts
from forewarn.core.model import (
    Event,
    EventType,
    Host,
    HostMode,
    Maintenance,
    Order,
    OrderState,
    Targets,
)
from forewarn.store import Focus
from tests.support.builders import World, machine, request, scope


class Farm(World):
    """Hosts with machines of the scopes `shop` and `blog`, and one maintenance of hosts."""

    def __init__(self, *machines: str, **settings: Any) -> None:
        """A machine is written `scope/name update-domain host`."""
        placed = [text.split() for text in machines]
        super().__init__(
            scope("shop", **settings),
            scope("blog", **settings),
            machines=[machine(name, int(domain), host=host) for name, domain, host in placed],
        )
        self.hosts = tuple(sorted({*self.hosts, "a", "b", "c", "spare"}))
        self.maintenance_id = ""

    def work_on(self, *hosts: str, **options: Any) -> None:
        """Submit the maintenance: evacuation by Freeze, unless `options` say otherwise."""
        options = {"type": EventType.FREEZE, "host_mode": HostMode.EVACUATE, **options}
        submitted = request(targets=Targets(hosts=hosts), **options)
        _, change = self.submit_request(submitted)
        self.maintenance_id = change.maintenances[0].id

    def known(self) -> Maintenance:
        return self.snapshot().maintenances[self.maintenance_id]

    def events_on(self, host: str, *, back: bool = False) -> list[Event]:
        found = self.snapshot().events.values()
        return sorted((e for e in found if e.host == host and e.returns == back), key=lambda e: e.position)

    def work(self, host: str) -> Order:
        orders = self.snapshot().orders.values()
        return next(o for o in orders if (o.host, o.maintenance_id) == (host, self.maintenance_id))

    def state(self, host: str) -> OrderState:
        return self.work(host).state

    def row(self, host: str) -> Host | None:
        return self.snapshot().hosts.get(host)

    def why(self, host: str) -> list[str]:
        return [r.code for r in waiting_for_hosts(self.snapshot(), self.maintenance_id, self.now)[host]]

    def to_read(self) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        unread = self._store.snapshot(Focus(maintenances=(self.maintenance_id,)))
        return hosts_to_read(unread, [self.maintenance_id])

    def empty(self, host: str, to: str = "spare") -> None:
        """Start the events of a host, wave by wave, and move their machines away."""
        while unended := [e for e in self.events_on(host) if e.ended is None]:
            wave = [e for e in unended if e.wave == unended[0].wave]
            self.start(*(e.id for e in wave))
            for event in wave:
                self.move(event.id, to)
            self.tick()

    def shut_down(self, host: str) -> None:
        """Start the events of a host and report their machines as shut down."""
        events = self.events_on(host)
        self.start(*(e.id for e in events))
        for event in events:
            self.finish(event.id)
        self.tick()

    def put_on(self, host: str, name: str = "shop/late", domain: int = 0) -> None:
        """A machine arrives on a host: inventory is a fact."""
        known = self.snapshot().scopes[name.partition("/")[0]]
        self.save(
            Change(
                at=self.now,
                expect=((known.name, known.version),),
                scopes=(known,),
                machines=(machine(name, domain, host=host),),
            )
        )


def two_hosts(**options: Any) -> Farm:
    farm = Farm("shop/web-0 0 a", "shop/web-1 1 a", "blog/db-0 0 a", "shop/web-2 0 b")
    farm.work_on("a", "b", **options)
    return farm
