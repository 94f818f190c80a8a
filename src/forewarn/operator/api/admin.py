"""The audit, the tokens and the clock."""

from typing import Annotated

import msgspec

from forewarn.core.errors import NotFound, Refused
from forewarn.core.model import (
    Token,
)
from forewarn.operator.api import bodies, resolver, views
from forewarn.operator.api.access import digest, sealed, secret_text
from forewarn.operator.api.bodies import RequestBody
from forewarn.operator.api.context import (
    Api,
    CallContext,
    Moment,
    Number,
    Paged,
    Result,
    cursor_of,
    ok,
    page_of,
    read_cursor,
    split_page,
)
from forewarn.store import (
    AuditQuery,
    Focus,
)

# -- finding things


class ResolveQuery(RequestBody):
    """The text, and which kinds of things it may mean: all kinds unless some are named."""

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=resolver.MAX_TEXT_CHARS)]
    kind: tuple[resolver.Kind, ...] = ()


def resolve(api: Api, context: CallContext) -> Result:
    query = context.query
    matches, more = resolver.resolve(api.store, context.caller, query.text, query.kind or tuple(resolver.Kind))
    return ok(bodies.MatchesOut(matches=[bodies.MatchOut(kind=m.kind, id=m.id) for m in matches], more=more))


# -- audit, tokens, clock


class AuditsQuery(Paged):
    """Which entries."""

    scope: str = ""
    maintenance: str = ""
    event: str = ""


def list_audit(api: Api, context: CallContext) -> Result:
    query, limit = context.query, context.query.limit
    before = read_cursor(query.cursor, tuple[Number])
    found = api.store.audit(
        AuditQuery(
            scope=query.scope,
            maintenance_id=query.maintenance,
            event_id=query.event,
            within=context.caller.within,
            limit=limit + 1,
            before=before[0] if before else None,
        )
    )
    page, last = split_page(found, limit)
    told = [views.audit_out(entry, context.caller.within) for entry in page]
    return page_of(told, cursor_of(last.id) if last else None)


def list_tokens(api: Api, context: CallContext) -> Result:
    limit = context.query.limit
    after = read_cursor(context.query.cursor, tuple[Moment, str])
    found = [t for t in api.store.tokens() if after is None or (t.created, t.id) < after]
    page, last = split_page(found[: limit + 1], limit)
    return page_of(map(views.token_out, page), cursor_of(last.created, last.id) if last else None)


def post_token(api: Api, context: CallContext) -> Result:
    """Under a key the secret is kept for a day, sealed with the caller's own token, to be told again."""
    said: bodies.TokenIn = context.body
    scopes = tuple(sorted(set(said.scopes)))
    for missing in set(scopes) - api.store.snapshot(Focus(scopes=scopes, whole=False, shown=True)).scopes.keys():
        raise NotFound(f"there is no scope {missing!r}: an owner's scopes must exist")
    secret = api.random()
    token = Token(
        id=api.new_id(),
        name=said.name,
        role=said.role,
        scopes=scopes,
        digest=digest(secret_text(secret)),
        created=api.clock.now(),
        created_by=context.caller.name,
    )
    told = views.token_out(token)
    kept = SealedToken(told=told, sealed=sealed(context.caller, token.id, secret))
    api.control.add_token(
        token, context.caller.actor, once=context.once, answer=(201, msgspec.json.encode(kept).decode())
    )
    return _new_token(told, secret)


class SealedToken(msgspec.Struct):
    """What is kept of the answer to a request for a token."""

    told: bodies.TokenOut
    sealed: bytes


def _new_token(told: bodies.TokenOut, secret: bytes) -> Result:
    return ok(bodies.NewToken(**msgspec.structs.asdict(told), token=secret_text(secret)), 201)


def repeat_token(context: CallContext, body: str) -> Result:
    kept = msgspec.json.decode(body, type=SealedToken)
    return _new_token(kept.told, sealed(context.caller, kept.told.id, kept.sealed))


def delete_token(api: Api, context: CallContext) -> Result:
    if context.path["id"] == context.caller.token_id:
        raise Refused("this is the token you are using: revoke it with another one")
    api.control.revoke_token(context.path["id"], context.caller.actor)
    return Result(204, b"")


def get_clock(api: Api, context: CallContext) -> Result:
    del context
    kind = api.clock.name if api.clock.name in ("system", "manual") else "scaled"
    hold = api.control.clock_hold()
    held = None if hold is None else bodies.HeldOut(trusted=hold.trusted, noticed=hold.noticed, jumped_s=hold.jumped_s)
    return ok(bodies.ClockOut(now=api.clock.now(), kind=kind, held=held))  # type: ignore[arg-type]


def confirm_clock(api: Api, context: CallContext) -> Result:
    api.control.confirm_clock(context.caller.actor)
    return get_clock(api, context)


def advance_clock(api: Api, context: CallContext) -> Result:
    api.advance(context.body.seconds)
    return get_clock(api, context)
