"""The bodies that the API builds from stored objects."""

import re
from pathlib import Path

from forewarn import core
from forewarn.core.model import Targets
from forewarn.operator.api.views import CAUSED_BY_OTHERS, maintenance_row, targets_out
from tests.support.records import maintenance

# Reasons that describe the progress of the maintenance itself. A plan, which is not submitted yet, hides them.
OWN_REASONS = {
    "approval",
    "clock",
    "drill",
    "earlier-host",
    "earlier-wave",
    "earliest",
    "executor",
    "host-not-empty",
    "host-work",
    "in-doubt",
    "notice",
    "order-failed",
    "paused",
    "requested-start",
    "ticker",
    "wave",
}


def test_every_reason_to_wait_is_shown_in_a_plan_or_listed_as_hidden() -> None:
    """A reason whose cause is another maintenance is in CAUSED_BY_OTHERS, so that a plan shows it."""
    source = "".join(path.read_text("utf-8") for path in Path(core.__path__[0]).glob("*.py"))
    codes = set(re.findall(r'code="([a-z-]+)"', source))
    assert codes - CAUSED_BY_OTHERS == OWN_REASONS
    assert codes >= CAUSED_BY_OTHERS


def test_a_list_shows_the_first_targets_and_counts_all() -> None:
    """So that a page of maintenances of thousands of machines stays small."""
    machines = Targets(machines=tuple(("shop", f"web-{n}") for n in range(100)))
    assert targets_out(machines, None, 2).machines == ["shop/web-0", "shop/web-1"]
    assert targets_out(machines, None, 2).count == 100
    assert len(targets_out(machines, None).machines) == 100
    domain = targets_out(Targets(scope="shop", update_domain=0), None)
    assert (domain.scopes, domain.update_domain, domain.count) == (["shop"], 0, 1)


def test_a_maintenance_without_stored_targets_has_none() -> None:
    """It was submitted before targets were kept."""
    assert maintenance_row(maintenance(), (), (), within=None, estimated_end=None, host_orders=()).targets is None
