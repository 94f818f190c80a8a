"""Two nodes of forewarn, each on one of the hosts that they work on, with one database: `make soak` runs it."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from scripts.kvm_bed.bed import Bed

from tests.integration.kvm.site import GuestSpec, Site, write_files
from tests.support.postgres_servers import server

GUESTS = {"web-0": GuestSpec("shop", 0, "kvm-a")}
MORE = 'guest = "127.0.0.1:0"\nnode_host = "{}"'


@pytest.fixture(scope="module")
def nodes(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    """The node on each host, by the name of the host. The one on kvm-a was started first, and ticks."""
    guests = {name: bed.add_guest(name, spec.host) for name, spec in GUESTS.items()}
    with ExitStack() as stack:
        stack.enter_context(bed.network())
        database = stack.enter_context(server())
        store = database.address(database.database())
        nodes: dict[str, Site] = {}
        for host in bed.hosts:
            nodes[host] = node = Site(bed, tmp_path_factory.mktemp(host), guests)
            write_files(node, GUESTS, store=store, more=MORE.format(host))
            stack.callback(partial(end, node))
            node.start("--fleet", f"{node.folder}/fleet.toml")
            if not guests["web-0"].boots():
                node.until(lambda: guests["web-0"].boots() == 1)
                node.until(lambda: "this node ticks" in log_of(node))  # noqa: B023 - called in this turn of the loop
        yield nodes


def end(node: Site) -> None:
    if node.service is not None:
        node.kill()


def log_of(node: Site) -> str:
    return (node.folder / "service.log").read_text()


def evacuation(host: str) -> dict[str, object]:
    return {"type": "Freeze", "targets": {"hosts": [host]}, "host_mode": "evacuate"}


def test_a_node_leaves_the_work_on_its_own_host_to_the_other(nodes: dict[str, Site]) -> None:
    """The node that ticks runs on the host: it moves the machine, then the other node runs the command of the host."""
    here, other = nodes["kvm-a"], nodes["kvm-b"]
    made = here.post("/v1/maintenances", evacuation("kvm-a"))["id"]
    here.until(lambda: other.runs() == ["kvm-a evacuate began while [] ran"])
    assert here.where() == {"kvm-a": [], "kvm-b": ["web-0"]}
    assert here.runs() == []
    other.let_host_command_end()
    here.until(lambda: here.get(f"/v1/maintenances/{made}")["status"] == "Completed")
    assert other.runs() == ["kvm-a evacuate began while [] ran", "kvm-a evacuate ended while [] ran"]
    assert here.guests["web-0"].boots() == 1
    other.forget_runs()


def test_a_migration_whose_node_died_waits_for_that_node(nodes: dict[str, Site], bed: Bed) -> None:
    """The other node cannot tell what became of it, so the order is in doubt. The node comes back and ends the doubt."""
    on_a, on_b = nodes["kvm-a"], nodes["kvm-b"]
    bed.virsh("kvm-b", "migrate-setspeed", "web-0", "1")
    made = on_a.post("/v1/maintenances", evacuation("kvm-b"))["id"]
    on_a.until(lambda: "Unbounded" in bed.virsh("kvm-b", "domjobinfo", "web-0"))
    event = on_a.events(made)["web-0", 0]["id"]
    taken_by = on_a.get(f"/v1/orders/{event}")["node"]
    dead, alive = (on_a, on_b) if journals(on_a) else (on_b, on_a)
    dead.kill()
    alive.until(lambda: alive.order_state(event) == "in-doubt")
    assert alive.where() == {"kvm-a": [], "kvm-b": ["web-0"]}
    bed.virsh("kvm-b", "migrate-setspeed", "web-0", "1000")

    dead.start()
    alive.until(lambda: alive.status(made, "web-0") == "Completed")
    assert alive.where() == {"kvm-a": ["web-0"], "kvm-b": []}
    on_a.let_host_command_end()
    on_b.let_host_command_end()
    alive.until(lambda: alive.get(f"/v1/maintenances/{made}")["status"] == "Completed")
    # The node on kvm-b leaves its own host to the other, whichever of them ticks.
    assert on_a.runs() == ["kvm-b evacuate began while [] ran", "kvm-b evacuate ended while [] ran"]
    assert on_b.runs() == []
    assert taken_by
    assert alive.guests["web-0"].boots() == 1


def test_the_last_node_refuses_the_work_on_its_own_host(nodes: dict[str, Site]) -> None:
    """Nobody could finish it: no other node is up that could."""
    on_a, on_b = nodes["kvm-a"], nodes["kvm-b"]
    on_a.kill()
    request = evacuation("kvm-b")

    def refused() -> bool:
        status, answer = on_b.call("POST", "/v1/maintenances?dry_run=true", request)
        return status == 409 and "no node that moves events is up on another host" in str(answer)

    on_b.until(refused)


def journals(node: Site) -> list[Path]:
    return list((node.folder / "service" / "libvirt").glob("*.json"))
