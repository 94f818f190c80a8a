"""Show and set the budgets of the fleet."""

from forewarn.operator.api import bodies
from forewarn.operator.api.context import Api, CallContext, Result

# How many of the hosts that are down are named.
MAX_HOSTS = 100


def get_budget(api: Api, _: CallContext) -> Result:
    rules, use = api.store.fleet_rules(), api.store.fleet_use()
    hosts = sorted({host for _, host in use.hosts})
    body = bodies.BudgetOut(
        max_hosts_down=rules.max_hosts_down,
        max_machines_down=rules.max_machines_down,
        hosts_down=len(hosts),
        machines_down=use.machines,
        hosts=hosts[:MAX_HOSTS],
        events=list(use.events),
    )
    return Result(200, body)


def post_budget(api: Api, context: CallContext) -> Result:
    stated = context.body
    api.control.set_budget(
        context.caller.actor, max_hosts_down=stated.max_hosts_down, max_machines_down=stated.max_machines_down
    )
    return get_budget(api, context)
