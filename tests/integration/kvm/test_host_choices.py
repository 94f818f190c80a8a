"""What an operator can choose and decide in a maintenance of hosts, on three real hosts: `make soak` runs it.

A target host, a restart instead of a live migration, the way back, failed work that is retried or abandoned, a host that is
skipped, and an emergency in place.
"""

from collections.abc import Iterator
from functools import partial

import pytest
from scripts.kvm_bed.bed import start_bed

from tests.integration.kvm.site import GuestSpec, Site, running_site

FULL_NOTICE_S = 15 * 60
GUESTS = {"web-0": GuestSpec("shop", 0, "kvm-a", "when-ready"), "web-1": GuestSpec("shop", 1, "kvm-c")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    bed = start_bed("kvm-a", "kvm-b", "kvm-c")
    try:
        with running_site(bed, tmp_path_factory.mktemp("site"), GUESTS) as site:
            yield site
    finally:
        bed.close()


def ended(site: Site, maintenance_id: str, status: str) -> bool:
    return bool(site.get(f"/v1/maintenances/{maintenance_id}")["status"] == status)


def until_booted(site: Site, **boots: int) -> None:
    """Wait until guests have booted so many times more, then see that none has booted more often than it should."""
    site.boots |= {name.replace("_", "-"): site.boots[name.replace("_", "-")] + more for name, more in boots.items()}
    site.until(lambda: all(guest.boots() >= site.boots[name] for name, guest in site.guests.items()))
    assert {name: guest.boots() for name, guest in site.guests.items()} == site.boots


def test_machines_restart_where_the_operator_says_and_come_back(site: Site) -> None:
    """`--type Redeploy --to kvm-c --return`: failed work on the host is retried; then the machines come back by new events."""
    request = {"type": "Redeploy", "targets": {"hosts": ["kvm-a"]}, "host_mode": "evacuate"}
    made = site.post("/v1/maintenances", {**request, "to_host": "kvm-c", "return_machines": True})["id"]
    site.until(lambda: site.runs() == ["kvm-a evacuate began while [] ran"])
    assert site.where() == {"kvm-a": [], "kvm-b": [], "kvm-c": ["web-0", "web-1"]}, (
        "kvm-b is free, and was not asked for"
    )
    until_booted(site, web_0=1)
    site.until_recovered({"web-0": 1})

    site.let_host_command_end(fail=True)
    site.until(lambda: site.host_work(made, "kvm-a")["state"] == "failed")
    order = site.host_work(made, "kvm-a")["order_id"]
    assert "no power" in site.get(f"/v1/orders/{order}")["output"]
    assert site.host_state("kvm-a") == "in-maintenance"
    assert site.where()["kvm-a"] == []
    site.hold_host_command()
    site.post(f"/v1/orders/{order}/retry")
    site.until(lambda: site.runs() == ["kvm-a evacuate began while [] ran"] * 2)
    site.let_host_command_end()

    site.until(lambda: site.approved(made, "web-0", 1))
    assert site.host_state("kvm-a") == "up"
    site.until(partial(ended, site, made, "Completed"))
    assert site.where() == {"kvm-a": ["web-0"], "kvm-b": [], "kvm-c": ["web-1"]}
    until_booted(site, web_0=1)
    site.until_recovered({"web-0": 2})
    assert site.runs() == [*["kvm-a evacuate began while [] ran"] * 2, "kvm-a evacuate ended while [] ran"]
    site.forget_runs()


def test_one_host_is_abandoned_and_one_is_skipped(site: Site) -> None:
    """Failed work holds the later hosts until an operator gives it up; a host that is skipped is left alone."""
    request = {"type": "Freeze", "targets": {"hosts": ["kvm-a", "kvm-b", "kvm-c"]}, "host_mode": "evacuate"}
    made = site.post("/v1/maintenances", request)["id"]
    site.until(lambda: site.runs() == ["kvm-a evacuate began while [] ran"])
    assert site.where() == {"kvm-a": [], "kvm-b": ["web-0"], "kvm-c": ["web-1"]}
    site.until_recovered({"web-0": 3})
    site.post(f"/v1/maintenances/{made}/hosts/kvm-b/skip")
    assert site.host_work(made, "kvm-b")["state"] == "cancelled"

    site.let_host_command_end(fail=True)
    site.until(lambda: site.host_work(made, "kvm-a")["state"] == "failed")
    assert site.waits(made, "kvm-c").keys() >= {"unresolved"}
    site.hold_host_command()
    site.post(f"/v1/orders/{site.host_work(made, 'kvm-a')['order_id']}/abandon")
    site.until(lambda: site.status(made, "web-1") == "Scheduled")
    assert (site.host_state("kvm-a"), site.host_state("kvm-b"), site.host_state("kvm-c")) == (
        "cordoned",
        "up",
        "cordoned",
    )
    site.post("/v1/clock/advance", {"seconds": FULL_NOTICE_S})
    site.until(lambda: site.runs()[1:] == ["kvm-c evacuate began while [] ran"])
    assert site.where() == {"kvm-a": [], "kvm-b": ["web-0", "web-1"], "kvm-c": []}, "kvm-a is cordoned, and not chosen"
    site.let_host_command_end()
    site.until(partial(ended, site, made, "Failed"))
    assert site.host_state("kvm-c") == "up"
    assert site.get("/v1/hosts/kvm-a")["cordon_left"]
    site.post("/v1/hosts/kvm-a/uncordon")
    until_booted(site)
    assert site.runs() == [
        "kvm-a evacuate began while [] ran",
        "kvm-c evacuate began while [] ran",
        "kvm-c evacuate ended while [] ran",
    ]
    site.forget_runs()


def test_an_emergency_shuts_several_update_domains_down(site: Site) -> None:
    """In place and without notice. The work fails: the machines run again, and it is finished by hand, not retried."""
    request = {"type": "Reboot", "targets": {"hosts": ["kvm-b"]}, "host_mode": "in-place"}
    status, refusal = site.call("POST", "/v1/maintenances", request)
    assert (status, "several update domains of shop" in str(refusal)) == (409, True)
    made = site.post("/v1/maintenances", {**request, "emergency": True})["id"]
    site.until(lambda: site.runs() == ["kvm-b in-place began while [] ran"])
    assert site.where() == {"kvm-a": [], "kvm-b": [], "kvm-c": []}
    assert (site.status(made, "web-0"), site.status(made, "web-1")) == ("Started", "Started")

    site.let_host_command_end(fail=True)
    site.until(lambda: site.where()["kvm-b"] == ["web-0", "web-1"])
    until_booted(site, web_0=1, web_1=1)
    order = site.host_work(made, "kvm-b")["order_id"]
    status, refusal = site.call("POST", f"/v1/orders/{order}/retry")
    assert (status, "cannot be retried while its machines run" in str(refusal)) == (409, True)
    site.until(lambda: site.status(made, "web-0") == site.status(made, "web-1") == "Completed")
    site.post(f"/v1/orders/{order}/finish")
    site.until(partial(ended, site, made, "Completed"))
    assert site.host_state("kvm-b") == "up"
    # Its agent had no time to prepare, so it has nothing to undo.
    console = site.guests["web-0"].console
    site.until(lambda: console.read_text().count("the machine is back in service") == 4)
    site.until_recovered({"web-0": 3})
    assert site.runs() == ["kvm-b in-place began while [] ran"]
    site.forget_runs()
