"""The audit, the tokens and the clock."""

import msgspec

from forewarn.core.errors import NotFound, Refused
from forewarn.core.model import (
    Token,
)
from forewarn.operator.api import bodies, views
from forewarn.operator.api.access import digest, sealed, secret_text
from forewarn.operator.api.context import (
    Answer,
    Api,
    Ask,
    Moment,
    Number,
    Paged,
    cursor_of,
    said_cursor,
    split_page,
    told_ok,
    told_page,
)
from forewarn.store import (
    AuditQuery,
    Focus,
)

# -- audit, tokens, clock


class AuditsQuery(Paged):
    """Which entries."""

    scope: str = ""
    maintenance: str = ""
    event: str = ""


def list_audit(api: Api, ask: Ask) -> Answer:
    query, limit = ask.query, ask.query.limit
    before = said_cursor(query.cursor, tuple[Number])
    found = api.store.audit(
        AuditQuery(
            scope=query.scope,
            maintenance_id=query.maintenance,
            event_id=query.event,
            within=ask.who.within,
            limit=limit + 1,
            before=before[0] if before else None,
        )
    )
    page, last = split_page(found, limit)
    told = [views.audit_out(entry, ask.who.within) for entry in page]
    return told_page(told, cursor_of(last.id) if last else None)


def list_tokens(api: Api, ask: Ask) -> Answer:
    limit = ask.query.limit
    after = said_cursor(ask.query.cursor, tuple[Moment, str])
    found = [t for t in api.store.tokens() if after is None or (t.created, t.id) < after]
    page, last = split_page(found[: limit + 1], limit)
    return told_page(map(views.token_out, page), cursor_of(last.created, last.id) if last else None)


def post_token(api: Api, ask: Ask) -> Answer:
    """Under a key the secret is kept for a day, sealed with the caller's own token, to be told again."""
    said: bodies.TokenIn = ask.body
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
        created_by=ask.who.name,
    )
    told = views.token_out(token)
    kept = SealedToken(told=told, sealed=sealed(ask.who, token.id, secret))
    api.control.add_token(token, ask.who.actor, once=ask.once, answer=(201, msgspec.json.encode(kept).decode()))
    return _new_token(told, secret)


class SealedToken(msgspec.Struct):
    """What is kept of the answer to a request for a token."""

    told: bodies.TokenOut
    sealed: bytes


def _new_token(told: bodies.TokenOut, secret: bytes) -> Answer:
    return told_ok(bodies.NewToken(**msgspec.structs.asdict(told), token=secret_text(secret)), 201)


def repeat_token(ask: Ask, body: str) -> Answer:
    kept = msgspec.json.decode(body, type=SealedToken)
    return _new_token(kept.told, sealed(ask.who, kept.told.id, kept.sealed))


def delete_token(api: Api, ask: Ask) -> Answer:
    if ask.path["id"] == ask.who.token_id:
        raise Refused("this is the token you are using: revoke it with another one")
    api.control.revoke_token(ask.path["id"], ask.who.actor)
    return Answer(204, b"")


def get_clock(api: Api, ask: Ask) -> Answer:
    del ask
    kind = api.clock.name if api.clock.name in ("system", "manual") else "scaled"
    hold = api.control.clock_hold()
    held = None if hold is None else bodies.HeldOut(trusted=hold.trusted, noticed=hold.noticed, jumped_s=hold.jumped_s)
    return told_ok(bodies.ClockOut(now=api.clock.now(), kind=kind, held=held))  # type: ignore[arg-type]


def confirm_clock(api: Api, ask: Ask) -> Answer:
    api.control.confirm_clock(ask.who.actor)
    return get_clock(api, ask)


def advance_clock(api: Api, ask: Ask) -> Answer:
    api.advance(ask.body.seconds)
    return get_clock(api, ask)
