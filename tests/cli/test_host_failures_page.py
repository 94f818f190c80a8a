"""The commands of the page about failed work on hosts, as printed, and what the page says that follows."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import DONE, Command
from tests.support.running_service import RunningService, running_service

PAGE = (Path(__file__).parents[2] / "docs/guide/host-failures.md").read_text("utf-8")
FLEET = """
[[hosts]]
name = "kvm-01"
[[hosts]]
name = "kvm-02"
[[scopes]]
name = "shop"
kind = "availability-set"
[[scopes]]
name = "db"
kind = "availability-set"
[[machines]]
scope = "shop"
name = "web-0"
host = "kvm-01"
[[machines]]
scope = "db"
name = "db-0"
host = "kvm-01"
"""
PRINTED = {
    "forewarn status",
    "forewarn order show ID",
    "forewarn order retry ID",
    "forewarn order finish ID",
    "forewarn order abandon ID",
    "forewarn maintenance cancel ID",
    "forewarn host uncordon HOST",
}


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(FLEET) as running:
        yield running


@pytest.fixture
def failed(service: RunningService) -> dict[str, Any]:
    """The failed order of kvm-01, whose machines went to kvm-02. The work on kvm-02 comes after it."""
    request = {"type": "Freeze", "targets": {"hosts": ["kvm-01", "kvm-02"]}, "host_mode": "evacuate"}
    service.post("/v1/maintenances", request, 201)
    move(service, "kvm-02")
    (order,) = service.get("/v1/orders?state=open")["items"]
    service.post(f"/v1/orders/{order['id']}/start")
    failed: dict[str, Any] = service.post(f"/v1/orders/{order['id']}/fail", {"reason": "no power"})
    service.post("/v1/clock/advance", {"seconds": 1})
    return failed


def move(service: RunningService, host: str) -> None:
    """Report that the machines of all open orders are on a host."""
    service.post("/v1/clock/advance", {"seconds": 1})
    for order in service.get("/v1/orders?state=open")["items"]:
        service.post(f"/v1/orders/{order['id']}/finish", {"new_hosts": dict.fromkeys(order["machines"], host)})
    service.post("/v1/clock/advance", {"seconds": 1})


def run(forewarn: Command, printed: str, name: str = "") -> str:
    """Run a command of the page, with a name in place of ID or HOST."""
    assert printed in PRINTED
    code, output, errors = forewarn(*re.sub("ID|HOST", name, printed).split()[1:])
    assert code == DONE, errors
    return output


def states(service: RunningService, order: dict[str, Any]) -> tuple[str, str, list[str]]:
    """Return the state of kvm-01, the status of the maintenance, and the states of the work on its hosts."""
    service.post("/v1/clock/advance", {"seconds": 1})
    shown = service.get(f"/v1/maintenances/{order['maintenance_id']}")
    return service.get("/v1/hosts/kvm-01")["state"], shown["status"], [host["state"] for host in shown["hosts"]]


def test_the_page_prints_no_other_command() -> None:
    """A new command on the page needs a test here."""
    assert set(re.findall("`(forewarn [^`]+)`", PAGE)) == PRINTED


def test_the_failed_order_is_found_and_retried(
    service: RunningService, failed: dict[str, Any], forewarn: Command
) -> None:
    """`hold` lets the next host wait; the work begins anew."""
    assert failed["id"][:8] in run(forewarn, "forewarn status")
    assert "no power" in run(forewarn, "forewarn order show ID", failed["id"])
    assert states(service, failed) == ("in-maintenance", "Paused", ["failed", "planned"])
    run(forewarn, "forewarn order retry ID", failed["id"])
    assert states(service, failed)[2] == ["open", "planned"]


def test_work_that_is_done_after_all(service: RunningService, failed: dict[str, Any], forewarn: Command) -> None:
    """The host is uncordoned, and the next host begins."""
    run(forewarn, "forewarn order finish ID", failed["id"])
    assert states(service, failed) == ("up", "Running", ["done", "planned"])
    move(service, "kvm-01")
    assert states(service, failed)[2] == ["done", "open"]


def test_a_host_that_is_given_up(service: RunningService, failed: dict[str, Any], forewarn: Command) -> None:
    """The host stays cordoned until it is in order again; the next host begins, and the maintenance ends as Failed."""
    run(forewarn, "forewarn order abandon ID", failed["id"])
    assert states(service, failed)[:1] == ("cordoned",)
    run(forewarn, "forewarn host uncordon HOST", "kvm-01")
    assert states(service, failed) == ("up", "Running", ["abandoned", "planned"])
    move(service, "kvm-01")
    (order,) = service.get("/v1/orders?state=open")["items"]
    service.post(f"/v1/orders/{order['id']}/start")
    service.post(f"/v1/orders/{order['id']}/finish")
    assert states(service, failed)[1:] == ("Failed", ["abandoned", "done"])


def test_the_whole_maintenance_is_ended(service: RunningService, failed: dict[str, Any], forewarn: Command) -> None:
    """Cancelled first, so that the next host does not begin when the order is abandoned."""
    run(forewarn, "forewarn maintenance cancel ID", failed["maintenance_id"])
    run(forewarn, "forewarn order abandon ID", failed["id"])
    assert states(service, failed) == ("cordoned", "Failed", ["abandoned", "cancelled"])


def test_machines_are_brought_back(service: RunningService, failed: dict[str, Any], forewarn: Command) -> None:
    """Both lines of the page, after the maintenance: the plan restarts the machines where they may go."""
    service.post(f"/v1/maintenances/{failed['maintenance_id']}/cancel")
    service.post(f"/v1/orders/{failed['id']}/abandon")
    service.post("/v1/clock/advance", {"seconds": 1})
    (lines,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    outputs = []
    for line in lines.splitlines():
        code, output, errors = forewarn(*shlex.split(line)[1:])
        assert code == DONE, errors
        outputs.append(output)
    assert service.get("/v1/hosts/kvm-01")["state"] == "up"
    assert ("web-0" in outputs[1], "db-0" in outputs[1]) == (True, True)
