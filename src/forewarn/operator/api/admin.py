"""Find things by what people type; the audit log, the tokens and the clock."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Literal

import msgspec

from forewarn.core.errors import Forbidden, NotFound, Refused
from forewarn.core.model import AuditEntry
from forewarn.core.operator_model import Role, Token
from forewarn.operator.api import bodies, resolver, views
from forewarn.operator.api.access import digest, sealed, secret_text
from forewarn.operator.api.bodies import RequestBody
from forewarn.operator.api.context import (
    Api,
    CallContext,
    Moment,
    Number,
    Result,
    Searched,
    cursor_of,
    page_of,
    read_cursor,
    searched,
    split_page,
)
from forewarn.operator.api.receipts import SavedToken, SaveToken
from forewarn.operator.api.token_names import check_token_name
from forewarn.store import AuditQuery, Focus, folded
from forewarn.store.audit_chain import BEFORE_ALL_IDS


class ResolveQuery(RequestBody):
    """The text, and which kinds of things it may mean: all kinds unless some are named."""

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=resolver.MAX_TEXT_CHARS)]
    kind: tuple[resolver.Kind, ...] = ()


class AuditsQuery(Searched):
    """Which entries."""

    scope: str = ""
    maintenance: str = ""
    event: str = ""


# An id of the audit as the database may hold it: forewarn's own are above 0, a forged one may be any.
AuditId = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


def resolve(api: Api, context: CallContext) -> Result:
    query = context.query
    matches, more = resolver.find_matches(api.store, context.caller, query.text, query.kind or tuple(resolver.Kind))
    items = [bodies.MatchOut(kind=match.kind, id=match.id) for match in matches]
    return Result(200, bodies.MatchesOut(matches=items, more=more))


def list_audit(api: Api, context: CallContext) -> Result:
    query = context.query
    before = read_cursor(query.cursor, tuple[Number])
    wanted = AuditQuery(
        scope=query.scope, maintenance_id=query.maintenance, event_id=query.event, within=context.caller.within
    )

    def read(before: int | None, limit: int) -> list[tuple[int, AuditEntry]]:
        return [(entry.id, entry) for entry in api.store.audit(replace(wanted, before=before, limit=limit))]

    start = before[0] if before else None
    page, last = searched(read, _entry_text, text=query.text, start=start, limit=query.limit)
    items = [views.audit_out(entry, context.caller.within) for entry in page]
    return page_of(items, cursor_of(last) if last is not None else None)


def _entry_text(entry: AuditEntry) -> str:
    """Return what a search finds an audit entry by: not where the request came from, which owners do not see."""
    return "\n".join((entry.who, entry.action, entry.scope, entry.maintenance_id, entry.event_id, entry.detail))


def export_audit(api: Api, context: CallContext) -> Result:
    """Return the whole audit in the order of the chain, page by page, also forged entries whose ids are below 1."""
    query = context.query
    after = read_cursor(query.cursor, tuple[AuditId])
    rows = api.store.audit(AuditQuery(after=after[0] if after else BEFORE_ALL_IDS, limit=query.limit + 1))
    page, last = split_page(rows, query.limit)
    return page_of(map(views.audit_out, page), cursor_of(last.id) if last else None)


def get_audit_chain(api: Api, _: CallContext) -> Result:
    chain = api.store.audit_chain()
    start, head = (bodies.ChainMarkOut(id=mark.id, hash=mark.hash) for mark in (chain.start, chain.head))
    return Result(200, bodies.AuditChainOut(start=start, head=head))


# -- tokens


def list_tokens(api: Api, context: CallContext) -> Result:
    query = context.query
    after = read_cursor(query.cursor, tuple[Moment, str])
    rows = [
        token
        for token in filter(context.caller.manages, api.store.tokens())
        if (after is None or (token.created, token.id) < after) and query.text in _token_text(token)
    ]
    page, last = split_page(rows[: query.limit + 1], query.limit)
    uses = api.store.token_uses()
    items = [views.token_out(token, uses.get(token.id)) for token in page]
    return page_of(items, cursor_of(last.created, last.id) if last else None)


def _token_text(token: Token) -> str:
    return folded("\n".join((token.id, token.name, token.role, token.created_by, *token.scopes)))


def get_token(api: Api, context: CallContext) -> Result:
    token = _managed_token(api, context)
    return Result(200, views.token_out(token, api.store.token_uses().get(token.id)))


def _managed_token(api: Api, context: CallContext) -> Token:
    token_id = context.path["id"]
    for token in api.store.tokens():
        if token.id == token_id and context.caller.manages(token):
            return token
    raise NotFound(f"there is no token {token_id}")


def post_token(api: Api, context: CallContext) -> Result:
    """Create a token. With an Idempotency-Key its secret is saved for a day, sealed with the caller's own token."""
    body: bodies.TokenIn = context.body
    check_token_name(body.name)
    scopes = tuple(sorted(set(body.scopes)))
    secret, now = api.random(), api.clock.now()
    token = Token(
        id=api.new_id(),
        name=body.name,
        role=body.role,
        scopes=scopes,
        digest=digest(secret_text(secret)),
        created=now,
        created_by=context.caller.name,
        expires=_end(api, context, None if body.valid_for_s is None else now + timedelta(seconds=body.valid_for_s)),
    )
    if not context.caller.manages(token):
        if token.role is not Role.CALENDAR:
            raise Forbidden("an owner creates only tokens for the calendar: use the role calendar")
        for scope in scopes:
            context.caller.require_scope(scope)
        yours = ", ".join(context.caller.within or ())
        raise Forbidden(f"name the scopes of the calendar, on the command line with --scope; yours are {yours}")
    for missing in (
        set(scopes)
        - api.store.snapshot(
            Focus(scopes=scopes, whole_maintenances=False, open_events=False, document_only=True)
        ).scopes.keys()
    ):
        raise NotFound(f"there is no scope {missing!r}: the scopes of a token must exist", scope=missing)
    once = context.once(SaveToken(sealed(context.caller, token.id, secret)))
    api.control.add_token(token, context.caller.actor, once=once)
    return _new_token(views.body_of(bodies.TokenOut, token), secret)


def _end(api: Api, context: CallContext, requested: datetime | None) -> datetime | None:
    """Return when the new token expires: one that an owner creates not after the owner's own."""
    own = next((t.expires for t in api.store.tokens() if t.id == context.caller.token_id), None)
    if context.caller.role is Role.OPERATOR or own is None:
        return requested
    return own if requested is None else min(own, requested)


def repeat_token(context: CallContext, saved: str) -> Result:
    """Return the saved response with its secret opened again. A login of the portal opens only what it sealed itself."""
    response = msgspec.json.decode(saved, type=SavedToken)
    secret = sealed(context.caller, response.token.id, response.sealed)
    if response.digest and digest(secret_text(secret)) != response.digest:
        raise Refused(
            f"token {response.token.id} was created by this request before, in another login, and its secret cannot be shown"
            " again: revoke that token and create another"
        )
    return _new_token(response.token, secret)


def _new_token(token: bodies.TokenOut, secret: bytes) -> Result:
    return Result(201, bodies.NewToken(**msgspec.structs.asdict(token), token=secret_text(secret)))


def delete_token(api: Api, context: CallContext) -> Result:
    if context.path["id"] == context.caller.token_id:
        raise Refused("this is the token you are using: revoke it with another one")
    api.control.revoke_token(_managed_token(api, context).id, context.caller.actor)
    return Result(204)


def get_caller(_: Api, context: CallContext) -> Result:
    caller = context.caller
    scopes = None if caller.within is None else list(caller.within)
    return Result(200, bodies.CallerOut(name=caller.name, role=caller.role, scopes=scopes))


# -- the clock


def get_clock(api: Api, _: CallContext) -> Result:
    hold = api.control.clock_hold()
    held = None if hold is None else bodies.HeldOut(trusted=hold.trusted, noticed=hold.noticed, jumped_s=hold.jumped_s)
    kinds: dict[str, Literal["system", "manual"]] = {"system": "system", "manual": "manual"}
    return Result(200, bodies.ClockOut(now=api.clock.now(), kind=kinds.get(api.clock.name, "scaled"), held=held))


def confirm_clock(api: Api, context: CallContext) -> Result:
    api.control.confirm_clock(context.caller.actor)
    return get_clock(api, context)


def advance_clock(api: Api, context: CallContext) -> Result:
    api.advance(context.body.seconds)
    return get_clock(api, context)
