"""The bodies that the API builds from stored objects."""

from forewarn.core.model import Targets
from forewarn.operator.api.bodies import TargetsOut
from forewarn.operator.api.views import CAUSED_BY_OTHERS, maintenance_row, targets_out
from tests.support.records import maintenance
from tests.support.waiting_codes import CODES

# Reasons that describe the progress of the maintenance itself. A plan, which is not submitted yet, hides them.
OWN_REASONS = {
    "approval",
    "bake",
    "clock",
    "continue",
    "drill",
    "earlier-host",
    "earlier-wave",
    "earliest",
    "executor",
    "failures",
    "host-not-empty",
    "host-work",
    "in-doubt",
    "no-go",
    "no-target",
    "notice",
    "order-failed",
    "paused",
    "requested-start",
    "ticker",
    "wave",
    "window",
}


def test_every_reason_to_wait_is_shown_in_a_plan_or_listed_as_hidden() -> None:
    """A reason whose cause is another maintenance is in CAUSED_BY_OTHERS, so that a plan shows it."""
    assert CODES - CAUSED_BY_OTHERS == OWN_REASONS
    assert CODES >= CAUSED_BY_OTHERS


def test_a_list_shows_the_first_targets_and_counts_all() -> None:
    """So that a page of maintenances of thousands of machines stays small."""
    machines = Targets(machines=tuple(("shop", f"web-{n}") for n in range(100)))
    assert targets_out(machines, None, 2).machines == ["shop/web-0", "shop/web-1"]
    assert targets_out(machines, None, 2).count == 100
    assert len(targets_out(machines, None).machines) == 100
    domain = targets_out(Targets(scope="shop", update_domain=0), None)
    assert (domain.scopes, domain.update_domain, domain.count) == (["shop"], 0, 1)


def test_an_owner_sees_labels_and_patterns_of_their_scopes() -> None:
    """Not those of hosts, and no pattern that names scopes of others."""
    chosen = Targets(scopes=("blog", "shop"), labels="rack=a3", names=("web-*", "sh*/db", "blog/x"))
    shown = targets_out(chosen, None, 2)
    assert (shown.labels, shown.names, shown.scopes, shown.count) == (
        "rack=a3",
        ["web-*", "sh*/db"],
        ["blog", "shop"],
        2,
    )
    owners = targets_out(chosen, ("shop",))
    assert (owners.labels, owners.names, owners.scopes) == ("rack=a3", ["web-*", "sh*/db"], ["shop"])
    hosts = Targets(hosts=("kvm-*",), host_labels="rack=a3")
    assert targets_out(hosts, None).host_labels == "rack=a3"
    assert targets_out(hosts, ("shop",)) == TargetsOut(count=0)
    assert targets_out(Targets(everything=True), ("shop",)).everything


def test_a_maintenance_without_stored_targets_has_none() -> None:
    """It was submitted before targets were kept."""
    assert maintenance_row(maintenance(), (), (), within=None, estimated_end=None, host_orders=()).targets is None
