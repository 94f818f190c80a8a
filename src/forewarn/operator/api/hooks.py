"""The calls about hooks. An owner manages the hooks of its own scopes and sees no others."""

import msgspec

from forewarn.core.errors import Forbidden, Invalid, NotFound, Refused
from forewarn.core.hooks import check_kinds, check_url, refuse_fleet_kinds, secret_text
from forewarn.core.operator_model import Hook, Role
from forewarn.operator.api import bodies, views
from forewarn.operator.api.access import digest, sealed
from forewarn.operator.api.context import (
    Api,
    CallContext,
    Moment,
    Number,
    Result,
    cursor_of,
    page_of,
    read_cursor,
    split_page,
)
from forewarn.operator.api.receipts import SavedHook, SaveHook
from forewarn.store import folded


def list_hooks(api: Api, context: CallContext) -> Result:
    query, text = context.query, context.query.text
    before = read_cursor(query.cursor, tuple[Moment, str])
    rows = [
        hook
        for hook in reversed(api.store.hooks())
        if context.caller.sees(hook.scope)
        and (before is None or (hook.created, hook.id) < before)
        and text in folded("\n".join((hook.id, hook.url, hook.scope, hook.shape, hook.created_by)))
    ]
    page, last = split_page(rows[: query.limit + 1], query.limit)
    return page_of([_with_next_attempt(api, hook) for hook in page], cursor_of(last.created, last.id) if last else None)


def get_hook(api: Api, context: CallContext) -> Result:
    return Result(200, _with_next_attempt(api, _hook(api, context)))


def post_hook(api: Api, context: CallContext) -> Result:
    """Create a hook. With an Idempotency-Key its secret is saved for a day, sealed with the caller's own token."""
    body: bodies.HookIn = context.body
    if not body.scope and context.caller.within is not None:
        raise Forbidden("an owner's hook needs a scope: name one of yours")
    if body.scope:
        context.caller.require_scope(body.scope)
        refuse_fleet_kinds(body.on)
    secret = api.random()
    hook = Hook(
        id=api.new_id(),
        url=body.url,
        scope=body.scope,
        kinds=check_kinds(body.on, body.scope),
        shape=body.shape,
        secrets=(secret_text(secret),),
        created=api.clock.now(),
        created_by=context.caller.name,
        owner_token=_owner_token(context),
    )
    check_url(hook.url)
    if why_not := api.hook_sender.why_not(hook.url):
        raise Invalid(f"url: {why_not}")
    once = context.once(SaveHook(sealed(context.caller, hook.id, secret)))
    made = api.control.add_hook(hook, context.caller.actor, once=once)
    return _with_secret(201, views.hook_out(made), secret_text(secret))


def repeat_hook(context: CallContext, saved: str) -> Result:
    """Return the saved response with its secret opened again. A login of the portal opens only what it sealed itself."""
    response = msgspec.json.decode(saved, type=SavedHook)
    secret = secret_text(sealed(context.caller, response.hook.id, response.sealed))
    if digest(secret) != response.digest:
        raise Refused(
            f"hook {response.hook.id} was created by this request before, in another login, and its secret cannot be shown"
            " again: rotate its secret"
        )
    return _with_secret(201, response.hook, secret)


def delete_hook(api: Api, context: CallContext) -> Result:
    api.control.remove_hook(_hook(api, context).id, context.caller.actor)
    return Result(204)


def try_hook(api: Api, context: CallContext) -> Result:
    attempt = api.hook_sender.test(_hook(api, context), api.new_id())
    return Result(200, views.body_of(bodies.HookTestOut, attempt))


def list_deliveries(api: Api, context: CallContext) -> Result:
    query, hook = context.query, _hook(api, context)
    before = read_cursor(query.cursor, tuple[Number])
    rows = api.store.hook_deliveries(hook.id, query.limit + 1, before[0] if before else None)
    page, last = split_page(rows, query.limit)
    return page_of(map(views.delivery_out, page), cursor_of(last.audit_id) if last else None)


def replay_hook(api: Api, context: CallContext) -> Result:
    hook = _hook(api, context)
    return Result(200, views.hook_out(api.control.replay_hook(hook.id, context.body.from_entry, context.caller.actor)))


def rotate_hook(api: Api, context: CallContext) -> Result:
    hook, secret = _hook(api, context), secret_text(api.random())
    rotated = api.control.rotate_hook(hook.id, secret, context.caller.actor, keep_s=context.body.keep_s)
    return _with_secret(200, views.hook_out(rotated), secret)


def enable_hook(api: Api, context: CallContext) -> Result:
    hook_id, owner_token = _hook(api, context).id, _owner_token(context)
    return Result(200, views.hook_out(api.control.enable_hook(hook_id, context.caller.actor, owner_token=owner_token)))


def _owner_token(context: CallContext) -> str:
    return context.caller.token_id if context.caller.role is Role.OWNER else ""


def _hook(api: Api, context: CallContext) -> Hook:
    """Return the hook that the path names, if the caller may see it."""
    hook = api.control.hook(context.path["id"])
    if not context.caller.sees(hook.scope):
        raise NotFound(f"there is no hook {hook.id}")
    return hook


def _with_next_attempt(api: Api, hook: Hook) -> bodies.HookOut:
    body = views.hook_out(hook)
    body.next_attempt = api.hook_sender.next_attempt(hook)
    return body


def _with_secret(status: int, hook: bodies.HookOut, secret: str) -> Result:
    return Result(status, bodies.NewHook(**msgspec.structs.asdict(hook), secret=secret))
