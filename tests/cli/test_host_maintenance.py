"""Maintenance of hosts in the command line alone: the plan, the hosts in turn, a failure, and one host left out.

The service and the commands run in this process, on a clock that the test moves.
"""

import re
from collections.abc import Iterator

import pytest

from tests.cli.command_line import DONE, FAILED, USAGE, Command
from tests.support.running_service import FLEET, RunningService, running_service

HOSTS = "".join(f'\n[[hosts]]\nname = "{name}"\n' for name in ("rack1-a", "rack1-b", "rack1-c"))
SCHEDULE = ["maintenance", "schedule"]
CONFIRMED = ["--yes", "--no-notice-ok"]


@pytest.fixture
def service() -> Iterator[RunningService]:
    """web-0 and db are on rack1-a, web-1 is on rack1-b, and rack1-c is empty."""
    with running_service(FLEET + HOSTS) as running:
        yield running


def move(forewarn: Command, service: RunningService, host: str) -> None:
    """Finish the open orders of events: their machines are on this host now."""
    for order in service.get("/v1/orders?state=open")["items"]:
        moved = [option for machine in order["machines"] for option in ("--new-host", f"{machine}={host}")]
        if moved:
            assert forewarn("order", "finish", order["id"], *moved)[0] == DONE
    assert forewarn("clock", "advance", "1s")[0] == DONE


def test_two_hosts_are_evacuated(service: RunningService, forewarn: Command) -> None:
    """One command plans it; `show` and `status` say what each host waits for, and the commands that help work."""
    code, plan, _ = forewarn(*SCHEDULE, "--host", "rack1-a", "--host", "rack1-b", "--evacuate", "--dry-run")
    assert code == DONE
    assert "Evacuation of 2 hosts by Freeze, one after the other" in plan
    rows = [line.split() for line in plan.splitlines()]
    assert rows[rows.index(["TURN", "HOST", "MACHINES", "THEY", "GO", "TO"]) + 1][:8] == [
        "1",
        "rack1-a",
        "blog/db,",
        "shop/web-0",
        "blog/db:",
        "rack1-c",
        "or",
        "rack1-b,",
    ]
    calendar = [row[:3] for row in rows[rows.index(["calendar"]) + 2 :]]
    assert calendar[:2] == [["1", "rack1-a", "2"], ["2", "rack1-b", "1"]]
    assert "the work of each event and on each host takes 5m" in plan
    _, output, _ = forewarn(*SCHEDULE, "--host", "rack1-a", "--host", "rack1-b", "--evacuate", *CONFIRMED)
    maintenance_id = output.splitlines()[-1].split()[1]
    shown = forewarn("maintenance", "show", maintenance_id)[1]
    assert "host rack1-a comes first, and its turn has not ended" in shown
    assert "of host rack1-a have not ended" in shown
    assert "in-maintenance" not in forewarn("host", "list")[1]
    assert forewarn("clock", "advance", "1s")[0] == DONE
    move(forewarn, service, "rack1-c")
    (order,) = service.get("/v1/orders?state=open")["items"]
    assert "rack1-a  in-maintenance" in forewarn("host", "list")[1]
    assert f"work          order {order['id']} is open" in forewarn("host", "show", "rack1-a")[1]
    take = f"before you work on host rack1-a yourself, run `forewarn order start {order['id']}`, and afterwards"
    status = forewarn("status")[1]
    assert "WORK ON HOSTS" in status
    assert take in status
    assert "rack1-a  open     external  its order waits for an executor" in status
    assert "rack1-b  planned  external  host rack1-a comes first" in status
    shown = forewarn("maintenance", "show", maintenance_id)[1]
    assert take in shown
    assert "2 of 2 done; hosts: 0 of 2 done, 1 running, 1 left" in shown
    _, followed, errors = forewarn("maintenance", "wait", maintenance_id, "--timeout", "0s")
    assert f"host rack1-a: open: host_executor is external: {take}" in followed
    assert "it continues" in errors
    assert "work         the work on host rack1-a" in forewarn("order", "show", order["id"])[1]
    assert "is running (the work on host rack1-a, attempt 1)" in forewarn("order", "start", order["id"])[1]
    assert forewarn("order", "fail", order["id"], "--reason", "no boot")[0] == DONE
    code, _, errors = forewarn("maintenance", "wait", maintenance_id)
    assert code == FAILED
    assert "Held: 1 order failed: the work on host rack1-a failed (no boot)" in errors
    assert f"`forewarn order retry {order['id']}`" in errors
    status = forewarn("status")[1]
    assert "FAILED WORK ON HOSTS" in status
    assert f"to resolve one: forewarn order retry|finish|abandon {order['id'][:8]}" in status
    assert "now: 1 failed, 0 in progress" in status
    assert "Held: 1 order failed" in forewarn("maintenance", "list")[1]
    assert "is open (the work on host rack1-a, attempt 2)" in forewarn("order", "retry", order["id"])[1]
    code, _, errors = forewarn("order", "finish", order["id"])
    assert (code, "start the order first" in errors) == (FAILED, True)
    assert "work on host" in forewarn("order", "list")[1]
    for verb in ("why", "show"):
        code, _, errors = forewarn("event", verb, order["id"])
        assert (code, f"run `forewarn order show {order['id']}`" in errors) == (FAILED, True)
    uncordoned = forewarn("host", "uncordon", "rack1-a")[1]
    assert "not cordoned any more, but it stays in maintenance: forewarn sends no machine there" in uncordoned
    forewarn("order", "start", order["id"])
    assert "is done" in forewarn("order", "finish", order["id"])[1]
    code, _, errors = forewarn("order", "retry", order["id"])
    assert (code, "is done, and nothing is left to retry: schedule a new maintenance" in errors) == (FAILED, True)
    assert forewarn("clock", "advance", "1s")[0] == DONE
    code, _, errors = forewarn("maintenance", "skip-host", maintenance_id[:8], "rack1-b")
    assert (code, "no host was skipped" in errors) == (FAILED, True)
    _, skipped, remarks = forewarn("maintenance", "skip-host", maintenance_id[:8], "rack1-b", "--yes")
    assert "host rack1-b is cordoned: `forewarn host uncordon rack1-b`" in remarks
    assert skipped.startswith(f"host rack1-b is skipped; maintenance {maintenance_id} is ")
    move(forewarn, service, "rack1-a")
    assert "hosts: 1 of 2 done, 1 undone" in forewarn("maintenance", "list")[1]
    assert service.get(f"/v1/maintenances/{maintenance_id}")["status"] == "Failed"
    assert [host["state"] for host in service.get(f"/v1/maintenances/{maintenance_id}")["hosts"]] == [
        "done",
        "cancelled",
    ]
    status = forewarn("status")[1]
    assert "HOSTS LEFT CORDONED BY A MAINTENANCE THAT HAS ENDED\nHOST     CORDONED" in status
    assert re.search(r"\nrack1-b  20.*  skipped by operator  ", status)
    assert "HOSTS LEFT OUT" not in status, "it is listed above already"
    assert "to use one again: forewarn host uncordon HOST" in status
    assert f"by maintenance {maintenance_id}, which has ended" in forewarn("host", "show", "rack1-b")[1]
    assert "rack1-b  cordoned (maintenance ended)" in forewarn("host", "list")[1]
    assert forewarn("host", "uncordon", "rack1-b")[0] == DONE
    assert "HOSTS LEFT CORDONED" not in forewarn("status")[1]


def test_an_abandoned_host_and_a_named_target(service: RunningService, forewarn: Command) -> None:
    """`--to` names the target, `--return` the way back; an abandoned host stays cordoned."""
    options = ["--host", "rack1-b", "--evacuate", "--type", "Redeploy", "--to", "rack1-c", "--return"]
    _, output, _ = forewarn(*SCHEDULE, *options, *CONFIRMED)
    assert "shop/web-1: rack1-c" in output
    assert "then the machines come back" in output
    assert forewarn("clock", "advance", "1s")[0] == DONE
    (order,) = service.get("/v1/orders?state=open")["items"]
    assert "target       shop/web-1: rack1-c" in forewarn("order", "show", order["id"])[1]
    move(forewarn, service, "rack1-c")
    (order,) = service.get("/v1/orders?state=open")["items"]
    forewarn("order", "fail", order["id"], "--reason", "no boot")
    shown = forewarn("maintenance", "show", order["maintenance_id"])[1]
    assert "run `forewarn host uncordon rack1-b` after an `abandon`" in shown
    assert "is abandoned" in forewarn("order", "abandon", order["id"])[1]
    assert forewarn("host", "show", "rack1-b")[1].splitlines()[2] == "state         cordoned"


def test_machines_stay_away_from_a_skipped_host(service: RunningService, forewarn: Command) -> None:
    """`skip-host` says so where the maintenance was to bring them back."""
    made = service.post(
        "/v1/maintenances",
        {"type": "Freeze", "targets": {"hosts": ["rack1-b"]}, "host_mode": "evacuate", "return_machines": True},
        201,
    )
    remarks = forewarn("maintenance", "skip-host", made["id"], "rack1-b", "--yes")[2]
    assert "`forewarn maintenance schedule --host OTHER --evacuate --to rack1-b`" in remarks


@pytest.mark.parametrize(
    "options, complaint",
    [
        ("--host rack1-a --evacuate --in-place", "--evacuate and --in-place exclude each other"),
        (
            "--host rack1-a --to rack1-b --type Reboot",
            "--to and --return need --evacuate, which moves the machines away",
        ),
        ("--host rack1-a --to rack1-a --evacuate", "--to: rack1-a is one of the hosts to evacuate"),
        ("--host rack1-a --evacuate --type Reboot", "--evacuate: use --type Freeze or Redeploy, not Reboot"),
        ("--host rack1-a --in-place --type Freeze", "--in-place: use --type Reboot, not Freeze"),
        ("--evacuate", "--evacuate: name the hosts with --host H"),
        ("--host rack1-a --in-place --return", "--to and --return need --evacuate"),
        ("--scope shop --evacuate", "--evacuate: name the hosts with --host H"),
        ("--scope shop", "--type: say what happens to the machines"),
    ],
)
def test_options_that_do_not_fit_together(forewarn: Command, options: str, complaint: str) -> None:
    """Nothing is sent, and the message says what to write."""
    code, _, errors = forewarn(*SCHEDULE, *options.split())
    assert (code, complaint in errors) == (USAGE, True)


def test_a_plan_without_a_host_to_go_to_is_refused(service: RunningService, forewarn: Command) -> None:
    """A warning names the reason, and `--yes` alone schedules nothing; a host that does not exist is no target."""
    command = (*SCHEDULE, "--host", "rack1-b", "--host", "rack1-b", "--evacuate", "--to", "rack1-c", *CONFIRMED)
    service.post("/v1/hosts/rack1-c/cordon")
    code, output, errors = forewarn(*command)
    assert code == USAGE
    assert "Evacuation of 1 host by Freeze" in output
    assert "those of the others" not in output
    assert "! shop/web-1 on host rack1-b cannot go to rack1-c: host rack1-c is cordoned" in output
    assert "add --no-host-ok to schedule it anyway" in errors
    assert forewarn(*command, "--no-host-ok")[0] == DONE
    code, _, errors = forewarn(*SCHEDULE, "--host", "rack1-b", "--evacuate", "--to", "nope", "--dry-run")
    assert (code, "there is no host 'nope'" in errors) == (FAILED, True)


def test_in_place_maintenance_is_planned(service: RunningService, forewarn: Command) -> None:
    """The plan says what happens to the machines; the refusal of a crowded host names the machines to move."""
    plan = forewarn(*SCHEDULE, "--host", "rack1-a", "--in-place", "--dry-run")[1]
    assert "In-place maintenance of 1 host by Reboot" in plan
    assert "WHAT HAPPENS TO THEM" in plan
    assert "they are shut down and started again" in plan
    service.request("PUT", "/v1/scopes/shop/machines/web-1", {"host": "rack1-a", "update_domain": 1})
    code, _, errors = forewarn(*SCHEDULE, "--host", "rack1-a", "--in-place", "--dry-run")
    assert code == FAILED
    assert "carries several update domains of shop" in errors
