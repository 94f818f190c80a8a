"""Bodies about the budgets of the fleet."""

from typing import Annotated

import msgspec

from forewarn.core.fleet_rules import MAX_LIMIT
from forewarn.operator.api.bodies.common import RequestBody, ResponseBody

Limit = Annotated[int, msgspec.Meta(ge=0, le=MAX_LIMIT)]


class BudgetIn(RequestBody):
    """How many hosts and machines of the fleet may be down at once; 0 for any number. What is left out stays."""

    max_hosts_down: Limit | None = None
    max_machines_down: Limit | None = None


class BudgetOut(ResponseBody):
    """How many hosts and machines of the fleet may be down at once, how many are, and some of the events they are in."""

    max_hosts_down: int
    max_machines_down: int
    hosts_down: int
    machines_down: int
    hosts: list[str]
    events: list[str]
