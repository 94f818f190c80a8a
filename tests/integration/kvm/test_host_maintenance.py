"""Host maintenance through a real service: evacuation by live migration, and work in place, with the real agent in each guest."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from scripts.kvm_bed.bed import Bed

from tests.integration.kvm.site import GuestSpec, Site, running_site

FULL_NOTICE_S = 15 * 60
GUESTS = {
    "web-0": GuestSpec("shop", 0, "kvm-a", "when-ready"),
    "web-1": GuestSpec("shop", 1, "kvm-b", "when-ready"),
    "db-0": GuestSpec("db", 0, "kvm-a", "never"),
}
# The ports of migrations to one host answer with a refusal.
REFUSE = """\
nft -f - <<'END'
table inet refuse {{
  chain out {{
    type filter hook output priority 0;
    ip daddr {address} tcp dport {first}-{last} reject with tcp reset
  }}
}}
END
"""


@pytest.fixture(scope="module")
def site(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(bed, tmp_path_factory.mktemp("site"), GUESTS) as site:
        yield site


@contextmanager
def refused_migrations(bed: Bed, host: str) -> Iterator[None]:
    """Let every live migration to a host fail."""
    conf = (bed.folder / host / "etc/qemu.conf").read_text()
    found = {key: value.strip('"') for key, value in (line.split(" = ") for line in conf.splitlines())}
    first, last = found["migration_port_min"], found["migration_port_max"]
    bed.run_on_host(host, REFUSE.format(address=found["migration_address"], first=first, last=last))
    try:
        yield
    finally:
        bed.run_on_host(host, "nft delete table inet refuse")


def test_machines_are_off_while_the_command_works_on_their_host(site: Site) -> None:
    """In place: guests shut down, the command runs once although forewarn is killed meanwhile, guests start again."""
    made = site.post("/v1/maintenances", {"type": "Reboot", "targets": {"hosts": ["kvm-a"]}, "host_mode": "in-place"})[
        "id"
    ]
    site.until(lambda: site.approved(made, "web-0") and site.prepared("db-0", 1))
    # The events of one host start together.
    assert (site.status(made, "web-0"), site.status(made, "db-0")) == ("Scheduled", "Scheduled")
    assert not site.approved(made, "db-0")
    site.post("/v1/clock/advance", {"seconds": FULL_NOTICE_S})
    site.until(lambda: site.runs() == ["kvm-a in-place began while [] ran"])
    assert site.where() == {"kvm-a": [], "kvm-b": ["web-1"]}
    assert (site.status(made, "web-0"), site.status(made, "db-0")) == ("Started", "Started")
    assert site.host_state("kvm-a") == "in-maintenance"

    site.kill()
    site.start()
    site.until(lambda: site.host_work(made, "kvm-a")["state"] == "running")
    site.let_host_command_end()
    site.until(lambda: site.get(f"/v1/maintenances/{made}")["status"] == "Completed")
    assert site.where() == {"kvm-a": ["db-0", "web-0"], "kvm-b": ["web-1"]}
    assert site.host_state("kvm-a") == "up"
    site.boots |= {"web-0": 2, "db-0": 2}
    site.until_recovered({"web-0": 1, "db-0": 1})
    assert site.runs() == ["kvm-a in-place began while [] ran", "kvm-a in-place ended while [] ran"]
    site.forget_runs()


def test_two_hosts_are_evacuated_in_turn(site: Site) -> None:
    """With migrations that fail, a domain that forewarn does not know, and kill -9 at the worst moments, nothing runs twice."""
    site.bed.add_guest("stray", "kvm-a", start=False)
    site.bed.virsh("kvm-a", "start", "--paused", "stray")
    logs = {name: guest.read("log").count("recovered\n") for name, guest in site.guests.items()}

    with refused_migrations(site.bed, "kvm-b"):
        request = {"type": "Freeze", "targets": {"hosts": ["kvm-a", "kvm-b"]}, "host_mode": "evacuate"}
        made = site.post("/v1/maintenances", request)["id"]
        assert site.host_state("kvm-a") == "cordoned"
        assert site.host_state("kvm-b") == "up"
        site.until(lambda: site.approved(made, "web-0") and site.prepared("db-0", logs["db-0"] + 1))
        assert not site.approved(made, "db-0")
        site.post("/v1/clock/advance", {"seconds": FULL_NOTICE_S})
        first = {name: site.events(made)[name, 0]["id"] for name in ("web-0", "db-0")}
        site.until(lambda: all(site.order_state(event) == "failed" for event in first.values()))
    assert site.where() == {"kvm-a": ["db-0", "stray", "web-0"], "kvm-b": ["web-1"]}
    for name, event in first.items():
        reason = site.get(f"/v1/orders/{event}")["reason"]
        assert f"the live migration of {name} to kvm-b failed, and it still runs on kvm-a" in reason
        site.post(f"/v1/events/{event}/retry")
    site.until(lambda: site.status(made, "web-0") == site.status(made, "db-0") == "Completed")

    # Between the last migration and the work on the host.
    site.until(lambda: "host kvm-a still runs stray" in site.waits(made, "kvm-a").get("host-not-empty", ""))
    site.kill()
    site.start()
    assert site.host_work(made, "kvm-a")["state"] == "open"
    assert site.runs() == []
    site.bed.virsh("kvm-a", "destroy", "stray")
    site.until(lambda: site.runs() == ["kvm-a evacuate began while [] ran"])
    assert site.waits(made, "kvm-b").keys() == {"earlier-host"}

    # While the command runs.
    site.kill()
    site.start()
    site.let_host_command_end()
    site.until(lambda: site.host_work(made, "kvm-a")["state"] == "done")
    assert site.host_state("kvm-a") == "up"

    # Those that came from the first host leave the second one too.
    site.until(lambda: site.approved(made, "web-0", 1) and site.prepared("db-0", logs["db-0"] + 2))
    assert site.host_state("kvm-b") == "cordoned"
    # A domain that forewarn does not know keeps the work on the host from beginning: a kill then would leave it in doubt.
    site.bed.add_guest("stray-b", "kvm-b", start=False)
    site.bed.virsh("kvm-b", "start", "--paused", "stray-b")
    site.post("/v1/clock/advance", {"seconds": FULL_NOTICE_S})
    site.until(lambda: site.where()["kvm-b"] == ["stray-b"])
    site.kill()
    site.start()
    site.bed.virsh("kvm-b", "destroy", "stray-b")
    site.until(lambda: site.get(f"/v1/maintenances/{made}")["status"] == "Completed")
    assert site.where() == {"kvm-a": ["db-0", "web-0", "web-1"], "kvm-b": []}
    assert site.host_state("kvm-b") == "up"
    site.until_recovered({"web-0": logs["web-0"] + 2, "db-0": logs["db-0"] + 2, "web-1": logs["web-1"] + 1})
    assert site.runs() == [
        f"{host} evacuate {what} while [] ran" for host in ("kvm-a", "kvm-b") for what in ("began", "ended")
    ]
    site.forget_runs()

    # Now one host has two update domains of a scope.
    request = {"type": "Reboot", "targets": {"hosts": ["kvm-a"]}, "host_mode": "in-place"}
    status, refusal = site.call("POST", "/v1/maintenances", request)
    assert status == 409
    assert "several update domains of shop" in json.dumps(refusal)
    assert "shop/web-" in json.dumps(refusal)
    assert site.get("/v1/maintenances")["items"][0]["id"] == made, "a refused maintenance was saved"
