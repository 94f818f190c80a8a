"""The portal on HTTP: its routes, forms, log-in and error pages, and the headers that keep other sites' pages out.

The pages themselves are made in threads; the event loop only reads, writes and waits.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from forewarn import __version__
from forewarn.core.errors import Forbidden, ForewarnError, Invalid, NotFound, Unauthorized
from forewarn.operator.api.app import read_bytes
from forewarn.operator.api.client import ApiClient
from forewarn.operator.api.context import HEADERS, Api
from forewarn.operator.api.stream import Streams
from forewarn.operator.portal import actions, formatting, pages, plan_form
from forewarn.operator.portal.sessions import Attempts, Sessions, Visitor, check_form, check_origin
from forewarn.operator.portal.visit import PageRequest, Redirect, RenderedPage, SiteInfo

MAX_FORM_BYTES = 256 * 1024
MAX_CARRIED_CHARS = 64 * 1024
MAX_FIELDS = 100
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " frame-ancestors 'none'; base-uri 'none'"
)
# A form must say where it comes from: with no-referrer browsers send `Origin: null`.
PAGE_HEADERS = {
    **HEADERS,
    "content-security-policy": POLICY,
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
FILES = {
    "portal.css": "text/css; charset=utf-8",
    "portal.js": "text/javascript; charset=utf-8",
    "portal.svg": "image/svg+xml",
}
HINTS = {
    400: "Go back, mend what is named above, and send it again.",
    401: "Log in again.",
    403: "Log in with a token that may do this, or ask an operator.",
    404: "It may have ended long ago and been forgotten, or it lies outside your scopes. Look for it in the history.",
    409: "The state has changed, or forbids this. Go back and look at it as it is now.",
    413: "Send less at once.",
    422: "Go back, mend what is named above, and send it again.",
    429: "Wait a minute.",
    503: "Nothing was changed. Try again in a few seconds.",
}
DONE = {
    "planned": "Planned. It appears to guests as its waves are published.",
    "made": "Done: the event is made. Below is how it stands, and what it waits for.",
    "approve": "Approved. It starts as soon as nothing else is in its way.",
    "cancel": "Cancelled: what had not started ends.",
    "retry": "Its order is handed out again.",
    "finish": "Finished: it ends as completed.",
    "abandon": "Given up.",
    "pause": "Paused: what has not started waits.",
    "resume": "It goes on.",
    "order-start": "You have the order: the work begins.",
    "order-finish": "Reported done.",
    "order-fail": "Reported as failed: settle the event now.",
    "revoked": "Revoked: whoever used it is out.",
}

log = logging.getLogger("forewarn.portal")

Make = Callable[[PageRequest], RenderedPage | Redirect]
LOOKS: tuple[tuple[str, Make], ...] = (
    ("/", pages.now),
    ("/scopes", pages.scopes),
    ("/scopes/{scope}", pages.scope),
    ("/machines", pages.machines),
    ("/maintenances", pages.maintenances),
    ("/maintenances/{id}", pages.maintenance),
    ("/events/{id}", pages.event),
    ("/orders", pages.orders),
    ("/history", pages.history),
    ("/audit", pages.audit),
    ("/tokens", pages.tokens),
    ("/plan", plan_form.form),
)
ACTS: tuple[tuple[str, Make], ...] = (
    ("/plan", plan_form.sent),
    ("/events/{id}/{verb}", actions.event_verb),
    ("/maintenances/{id}/{verb}", actions.maintenance_verb),
    ("/orders/{id}/{verb}", actions.order_verb),
    ("/tokens", actions.make_token),
    ("/tokens/{id}/revoke", actions.revoke_token),
)
# What a verb's address shows: the question before it, or the page it stands on.
SURE: tuple[tuple[str, Make], ...] = (
    ("/events/{id}/{verb}", actions.sure_event),
    ("/maintenances/{id}/{verb}", actions.sure_maintenance),
    ("/orders/{id}/{verb}", actions.to_event),
    ("/tokens/{id}/revoke", actions.sure_token),
    ("/logout", lambda _: Redirect("/")),
)


class Carried(msgspec.Struct):
    """A form that came when the log-in had ended: it comes back filled."""

    path: str
    fields: dict[str, str]


def own_page(path: str) -> str:
    """Where that which a form was sent about can be looked at."""
    kind, _, rest = path[1:].partition("/")
    if kind in ("plan", "tokens"):
        return f"/{kind}"
    kind, thing = "events" if kind == "orders" else kind, rest.partition("/")[0]
    return f"/{kind}/{quote(thing, safe='')}" if kind in ("events", "maintenances") and thing else "/"


def is_typed(path: str) -> bool:
    """Whether something is typed into the form; any other's verb is pressed again on its own page."""
    return path in ("/plan", "/tokens") or (path.startswith("/orders/") and path.endswith("/fail"))


def shown_again(
    visit: PageRequest, path: str, typed: dict[str, str], wrong: str = "", status: int = 200
) -> RenderedPage | Redirect:
    """A form into which something was typed, as it was."""
    if path == "/plan":
        return plan_form.form(visit, typed=typed, wrong=wrong, status=status)
    if path == "/tokens":
        fresh = {**typed, "key": visit.desk.api.new_id()}
        return pages.tokens(visit, typed=fresh, wrong=wrong, status=status)
    shown = pages.event(replace(visit, names={"id": path.split("/")[2]}))
    if isinstance(shown, Redirect):
        return shown
    return RenderedPage(shown.template, {**shown.filled, "reason": typed.get("reason", ""), "wrong": wrong}, status)


class Portal:
    def __init__(
        self, api: Api, sessions: Sessions, streams: Streams, house: SiteInfo, *, clock_s: Callable[[], float]
    ) -> None:
        self._api = api
        self._sessions = sessions
        self._streams = streams
        self._house = house
        self._attempts = Attempts(clock_s)
        self._files = {name: (files("forewarn.operator.portal") / "static" / name).read_bytes() for name in FILES}
        self._templates = Environment(
            loader=PackageLoader("forewarn.operator.portal"),
            autoescape=True,
            undefined=StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        shown = {
            name: getattr(formatting, name)
            for name in ("span", "distance", "iso", "stamp", "some", "cut", "count", "linked")
        }
        versions = {name: hashlib.sha256(text).hexdigest()[:12] for name, text in self._files.items()}
        self._templates.globals.update(shown, house=house, version=__version__, files=versions)

    def routes(self) -> list[Route]:
        return [
            *(Route(path, self._endpoint(make), methods=["GET"]) for path, make in (*LOOKS, *SURE)),
            *(Route(path, self._endpoint(make), methods=["POST"]) for path, make in ACTS),
            Route("/login", self._log_in, methods=["GET", "POST"]),
            Route("/logout", self._endpoint(lambda _: Redirect("/login")), methods=["POST"]),
            Route("/live", self._live, methods=["GET"]),
            *(Route(f"/{name}", self._file, methods=["GET"]) for name in FILES),
        ]

    # -- what browsers ask for

    def _endpoint(self, make: Make) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            return await self._answered(request, lambda form: self._made(request, make, form))

        return endpoint

    async def _answered(self, request: Request, make: Callable[[dict[str, str]], Response]) -> Response:
        try:
            form = await _form_of(request) if request.method == "POST" else {}
            return await run_in_threadpool(make, form)
        except ForewarnError as error:
            return self._error(None, error.status, str(error))
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            log.exception("a page failed: %s %s", request.method, request.url.path)
            return self._error(None, 500, "something went wrong on our side: the log of the service says what")

    async def not_found(self, request: Request) -> Response:
        def nowhere(_: PageRequest) -> RenderedPage:
            raise NotFound(f"there is no page {request.url.path[:200]}")

        return await self._answered(request, lambda form: self._made(request, nowhere, form))

    async def _log_in(self, request: Request) -> Response:
        return await self._answered(request, lambda form: self._logged_in(request, form))

    async def _live(self, request: Request) -> Response:
        try:
            visitor = await run_in_threadpool(self._visitor, request)
            return await self._streams.respond(request, visitor.who, lambda: self._sessions.still_in(visitor))
        except ForewarnError as error:
            return Response(str(error), error.status, media_type="text/plain; charset=utf-8", headers=PAGE_HEADERS)

    async def _file(self, request: Request) -> Response:
        name = request.url.path[1:]
        kept = {**PAGE_HEADERS, "cache-control": "public, max-age=31536000, immutable"}
        return Response(self._files[name], media_type=FILES[name], headers=kept)

    # -- a page

    def _visitor(self, request: Request) -> Visitor:
        peer = request.client.host if request.client else ""
        return self._sessions.visitor(request.headers, request.cookies, peer)

    def _made(self, request: Request, make: Make, form: dict[str, str]) -> Response:
        sent = request.method == "POST"
        if sent:
            check_origin(request.headers)
        try:
            visitor = self._visitor(request)
        except Unauthorized as error:
            return self._outside(request, form, str(error) if request.cookies or sent else "")
        visit = self._visit(visitor, request, form)
        try:
            refused = self._not_proven(visit, request.url.path) if sent else None
            made = make(visit) if refused is None else refused
        except ForewarnError as error:
            return self._error(visit, error.status, str(error))
        if sent and refused is None:
            log.info("%s, by %s from %s", request.url.path, visitor.who.name, visitor.who.origin)
        answer = self._page(visit, made)
        if sent and request.url.path == "/logout":
            answer.headers["set-cookie"] = self._sessions.forgotten(request.headers)
        return answer

    def _not_proven(self, visit: PageRequest, path: str) -> RenderedPage | Redirect | None:
        """What is shown instead of doing what a form says that is not proven ours; nothing that was typed is lost."""
        try:
            check_form(visit.visitor, visit.form.get("proof", ""))
            return None
        except Forbidden as error:
            if not is_typed(path):
                raise
            return shown_again(visit, path, dict(visit.form), str(error), error.status)

    def _visit(self, visitor: Visitor, request: Request, form: Mapping[str, str]) -> PageRequest:
        query = dict(request.query_params)
        kept = urlencode({key: value for key, value in query.items() if key != "done"})
        return PageRequest(
            visitor=visitor,
            desk=ApiClient(self._api, visitor.who),
            house=self._house,
            url=own_page(request.url.path)
            if request.method == "POST"
            else request.url.path + (f"?{kept}" if kept else ""),
            names=request.path_params,
            query=query,
            form=form,
        )

    def _page(self, visit: PageRequest, made: RenderedPage | Redirect) -> Response:
        if isinstance(made, Redirect):
            return Response(status_code=303, headers={**PAGE_HEADERS, "location": made.to})
        filled = {
            "visit": visit,
            "who": visit.desk.caller,
            "now": visit.now,
            "done": DONE.get(visit.query.get("done", ""), ""),
            "may_plan": bool(plan_form.kinds_for(visit)),
            "may_tokens": visit.desk.may("GET", "/v1/tokens") and not self._house.free,
            **made.filled,
        }
        return self._html(made.template, filled, made.status)

    def _html(self, template: str, filled: Mapping[str, Any], status: int) -> Response:
        text = self._templates.get_template(template).render(filled)
        return Response(text, status, media_type="text/html; charset=utf-8", headers=PAGE_HEADERS)

    def _error(self, visit: PageRequest | None, status: int, message: str) -> Response:
        filled = {"status": status, "message": message, "hint": HINTS.get(status, "")}
        if visit is not None:
            return self._page(visit, RenderedPage("error.html", filled, status))
        return self._html("outside_error.html", filled, status)

    # -- logging in

    def _outside(self, request: Request, form: Mapping[str, str], wrong: str) -> Response:
        """The log-in, with where to go then, or with the form that would else be lost."""
        path = request.url.path
        carried, lost = "", False
        to = path + (f"?{request.url.query}" if request.url.query else "")
        if request.method == "POST":
            to = own_page(path)
            fields = {name: value for name, value in form.items() if name not in ("proof", "key", "step")}
            kept = msgspec.json.encode(Carried(path, fields)).decode()
            lost = is_typed(path) and len(kept) > MAX_CARRIED_CHARS
            carried = kept if is_typed(path) and not lost else ""
        return self._login_page(401, wrong=wrong, to=to, carried=carried, lost=lost)

    def _login_page(
        self, status: int, *, wrong: str = "", to: str = "/", carried: str = "", lost: bool = False
    ) -> Response:
        return self._html("login.html", {"wrong": wrong, "to": to, "carried": carried, "lost": lost}, status)

    def _logged_in(self, request: Request, form: dict[str, str]) -> Response:
        peer = request.client.host if request.client else ""
        if self._sessions.free:
            self._visitor(request)
            return Response(status_code=303, headers={**PAGE_HEADERS, "location": "/"})
        if request.method != "POST":
            return self._login_page(200)
        check_origin(request.headers)
        to, carried = local_path(form.get("to", "/")), form.get("carried", "")
        try:
            visitor, cookie = self._sessions.log_in(form.get("token", ""), request.headers, peer)
        except Unauthorized as error:
            log.warning("a log-in failed, from %s", peer)
            self._attempts.check(peer)
            self._attempts.failed(peer)
            return self._login_page(401, wrong=str(error), to=to, carried=carried)
        log.info("logged in: %s (%s) from %s", visitor.who.name, visitor.who.role, visitor.who.origin)
        answer = self._refilled(visitor, request, carried) or self._page(
            self._visit(visitor, request, form), Redirect(to)
        )
        answer.headers["set-cookie"] = cookie
        return answer

    def _refilled(self, visitor: Visitor, request: Request, carried: str) -> Response | None:
        try:
            kept = msgspec.json.decode(carried[:MAX_CARRIED_CHARS], type=Carried) if carried else None
        except msgspec.MsgspecError:
            raise Invalid("carried: this is not a form of ours: fill it in anew") from None
        if kept is None or not is_typed(kept.path):
            return None
        visit = replace(self._visit(visitor, request, {}), url=own_page(kept.path))
        try:
            return self._page(visit, shown_again(visit, kept.path, kept.fields))
        except ForewarnError as error:
            return self._error(visit, error.status, str(error))


async def _form_of(request: Request) -> dict[str, str]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Invalid("this takes a form as browsers send it: application/x-www-form-urlencoded")
    body = await read_bytes(request, MAX_FORM_BYTES)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS))
    except ValueError:
        raise Invalid(f"the form is not UTF-8 text of at most {MAX_FIELDS} fields") from None


def local_path(to: str) -> str:
    """A path of ours, whatever was asked for: a log-in leads nowhere else."""
    plain = to.isprintable() and to.isascii() and len(to) <= 2_048
    return to if plain and to.startswith("/") and not to.startswith(("//", "/\\")) else "/"
