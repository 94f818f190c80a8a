"""Show whether the store is held, hold it, and resume it after showing what would happen."""

from forewarn.operator.api import bodies, views
from forewarn.operator.api.context import Api, CallContext, Result

# How many events and orders are listed of what would happen.
MAX_LISTED = 500


def get_store(api: Api, _: CallContext) -> Result:
    return Result(200, bodies.StoreOut(held=views.store_hold_out(api.control.store_hold())))


def hold_store(api: Api, context: CallContext) -> Result:
    api.control.hold_store(context.body.reason, context.caller.actor)
    return get_store(api, context)


def get_effects(api: Api, _: CallContext) -> Result:
    effects = api.control.effects_of_resuming(MAX_LISTED)
    return Result(200, views.resume_effects_out(effects))


def resume_store(api: Api, context: CallContext) -> Result:
    api.control.resume_store(context.body.held, context.caller.actor)
    return get_store(api, context)
