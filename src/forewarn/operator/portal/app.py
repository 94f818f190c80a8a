"""The portal on HTTP: routes, forms, login, error pages, and the headers that protect against pages of other sites.

Pages are made in threads; the event loop only reads, writes and waits.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from forewarn import __version__
from forewarn.core import formatting
from forewarn.core.errors import Forbidden, ForewarnError, Invalid, NotFound, Unauthorized
from forewarn.operator.api.app import read_bytes
from forewarn.operator.api.bodies import MaintenanceOut, MaintenanceRow, TargetsOut
from forewarn.operator.api.client import ApiClient
from forewarn.operator.api.context import HEADERS, Api
from forewarn.operator.api.doubtful_requests import DoubtfulRequests
from forewarn.operator.api.request_shares import RequestShares
from forewarn.operator.api.stream import Streams
from forewarn.operator.portal import (
    actions,
    bulk,
    drill_pages,
    hook_pages,
    inventory_pages,
    order_pages,
    owner_page,
    pages,
    plan_form,
    search,
    week,
    window_pages,
)
from forewarn.operator.portal.markup import event_link, event_state, link_events, name_list, scope_link, time_tag
from forewarn.operator.portal.page_request import PageRequest, Redirect, RenderedPage, SiteInfo
from forewarn.operator.portal.sessions import Login, Sessions, check_origin, check_proof
from forewarn.operator.request_path import path_of

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_FORM_BYTES = 256 * 1024
MAX_KEPT_CHARS = 64 * 1024
MAX_FIELDS = 100
MAX_PATH_CHARS = 2_048
PATH_MARKS = "/:@!$&'()*+,;="
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " frame-ancestors 'none'; base-uri 'none'"
)
# With no-referrer browsers would send `Origin: null` with our own forms.
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
FORMATTING = (
    "span",
    "distance",
    "full_time",
    "short_time",
    "iso",
    "names",
    "cut",
    "count",
    "until_phrase",
    "maintenance_state",
)
# What the page of an error suggests, by HTTP status.
HINTS = {
    400: "Go back, correct what the message names, and submit again.",
    401: "Log in again.",
    403: "Log in with a token that has this permission, or contact an operator.",
    404: "It may have been removed from the history, or it is outside your scopes. Search for it in the history.",
    409: "The state has changed, or does not allow this. Go back and check the current state.",
    413: "Submit less at once.",
    422: "Go back, correct what the message names, and submit again.",
    429: "Wait a minute, then try again.",
    503: "Nothing was changed. Try again in a few seconds.",
}
# What the next page says after an action.
DONE = {
    "planned": "Planned. Guests see each wave when it is published.",
    "made": "The event is created. Below are its status and what it waits for.",
    "approve": "Approved. It starts as soon as nothing blocks it.",
    "cancel": "Cancelled. What had not started will not start.",
    "reschedule": "Rescheduled. Guests see it when its notice begins, and it does not start before the new time.",
    "retry": "Its order can be taken again.",
    "finish": "Finished. The event is completed.",
    "abandon": "Abandoned. Its work stays undone.",
    "pause": "Paused. Events that have not started wait.",
    "resume": "Resumed.",
    "continue": "Continued. The next wave is published.",
    "retry-failed": "All its failed orders can be taken again. Orders in doubt stay as they are.",
    "order-start": "You have taken the order. Do the work, then report the result.",
    "order-finish": "The work is reported as done.",
    "order-fail": "The work is reported as failed. Now retry, finish or abandon the event.",
    "host-start": "You have taken the order. Do the work on the host, then report the result.",
    "host-finish": "The work on the host is done.",
    "host-fail": "The work on the host is reported as failed. Now retry, finish or abandon it.",
    "host-retry": "The order of the host can be taken again.",
    "host-abandon": "Abandoned. The work on the host stays undone, and the host stays cordoned.",
    "skip": "Skipped. What had not started is cancelled, and the host stays cordoned if its turn had begun.",
    "revoked": "Revoked. The token no longer works.",
    "hook-enable": "Enabled. What has waited is sent now.",
    "hook-replay": "The hook goes on with that entry.",
    "hook-delete": "Deleted. The hook gets no more messages.",
    "cordon": "Cordoned. No machine is sent to this host until it is uncordoned.",
    "uncordon": "Uncordoned. Machines may be sent to this host again, unless it is in maintenance.",
    "budget": "Set. Maintenance that waited for room goes on if there is room now.",
    "window-set": "Saved. Scopes and maintenances can use the window by its name.",
    "window-extend": "Extended. The window closes at the new time.",
    "window-remove": "The window is removed.",
    "no-go-set": "Saved. What was announced for this time is cancelled and announced again for a later one.",
    "no-go-remove": "The no-go time is removed. What waited for its end may start.",
    "store-hold": "Held. Nothing starts and no order is handed out until an operator resumes the store.",
    "store-resume": "Resumed. What is due starts now.",
}

log = logging.getLogger("forewarn.portal")

PageFunction = Callable[[PageRequest], RenderedPage | Redirect]
PAGES: tuple[tuple[str, PageFunction], ...] = (
    ("/", owner_page.front_page),
    ("/scopes", pages.scopes),
    ("/scopes/{scope}", pages.scope),
    ("/machines", pages.machines),
    ("/machines/{scope}/{name}", inventory_pages.machine),
    ("/hosts", pages.hosts),
    ("/hosts/{host}", inventory_pages.host),
    ("/search", search.search),
    ("/maintenances", pages.maintenances),
    ("/maintenances/{id}", pages.maintenance),
    ("/drills", drill_pages.drills),
    ("/drills/{id}", drill_pages.drill),
    ("/events/{id}", order_pages.event_or_order),
    ("/orders", pages.orders),
    ("/orders/{id}", order_pages.order),
    ("/history", pages.history),
    ("/audit", pages.audit),
    ("/tokens", pages.tokens),
    ("/hooks", hook_pages.hooks),
    ("/hooks/{id}", hook_pages.hook),
    ("/store", pages.store),
    ("/budget", pages.budget),
    ("/week", week.week),
    ("/windows", window_pages.windows),
    ("/plan", plan_form.form),
)
ACTIONS: tuple[tuple[str, PageFunction], ...] = (
    ("/plan", plan_form.submit),
    ("/bulk", bulk.act),
    ("/events/{id}/{verb}", actions.change_event),
    ("/maintenances/{id}/{verb}", actions.change_maintenance),
    ("/drills/{id}/{verb}", actions.change_drill),
    ("/orders/{id}/{verb}", actions.change_order),
    ("/hosts/{host}/{verb}", actions.change_host),
    ("/tokens", actions.create_token),
    ("/tokens/{id}/revoke", actions.revoke_token),
    ("/hooks", hook_pages.create_hook),
    ("/hooks/{id}/{verb}", hook_pages.change_hook),
    ("/budget", actions.set_budget),
    ("/windows", window_pages.put_window),
    ("/windows/{name}/extend", window_pages.extend_window),
    ("/windows/{name}/remove", window_pages.remove_window),
    ("/no-go-times", window_pages.put_no_go_time),
    ("/no-go-times/{name}/remove", window_pages.remove_no_go_time),
    ("/store/hold", actions.hold_store),
    ("/store/resume", actions.resume_store),
)
# GET of an action's path: the page that confirms it, or the page that has its button.
CONFIRMATIONS: tuple[tuple[str, PageFunction], ...] = (
    ("/bulk", bulk.confirm),
    ("/events/{id}/{verb}", actions.confirm_event),
    ("/maintenances/{id}/{verb}", actions.confirm_maintenance),
    ("/drills/{id}/{verb}", actions.confirm_drill),
    ("/orders/{id}/{verb}", actions.confirm_order),
    ("/hosts/{host}/{verb}", actions.confirm_host),
    ("/tokens/{id}/revoke", actions.confirm_token),
    ("/hooks/{id}/{verb}", hook_pages.confirm_hook),
    ("/windows/{name}/extend", lambda _: Redirect("/windows")),
    ("/windows/{name}/remove", window_pages.confirm_window),
    ("/no-go-times", lambda _: Redirect("/windows")),
    ("/no-go-times/{name}/remove", window_pages.confirm_no_go_time),
    ("/store/hold", lambda _: Redirect("/store")),
    ("/store/resume", lambda _: Redirect("/store")),
    ("/logout", lambda _: Redirect("/")),
)


class KeptForm(msgspec.Struct):
    """A form that was submitted after the login had ended; it is shown again after the next login."""

    path: str
    fields: dict[str, str]


def page_of_form(path: str) -> str:
    """Return the page that shows what a form with this path changes."""
    kind, _, rest = path[1:].partition("/")
    if kind in ("plan", "tokens", "store", "budget", "windows"):
        return f"/{kind}"
    if kind == "no-go-times":
        return "/windows"
    kind, thing = "events" if kind == "orders" else kind, rest.partition("/")[0]
    if kind in ("events", "maintenances", "drills", "hooks", "hosts") and thing:
        return f"/{kind}/{quote(thing, safe='')}"
    return "/hooks" if kind == "hooks" else "/"


def page_address(path: str, query: str) -> str:
    """Return the address of a page of this site: never one of another site, as `//other.example` would be."""
    address = local_path(quote(path, safe=PATH_MARKS))
    return f"{address}?{query}" if query else address


def has_typed_fields(path: str) -> bool:
    """Return whether people type into the form with this path; any other form is only a button."""
    if path.endswith("/reschedule"):
        return path.startswith(("/orders/", "/events/"))
    if path.endswith("/extend"):
        return path.startswith("/windows/")
    return path in ("/plan", "/tokens", "/hooks", "/windows", "/no-go-times") or (
        path.startswith("/orders/") and path.endswith("/fail")
    )


def refilled_form(
    request: PageRequest, path: str, fields: dict[str, str], error_message: str = "", status: int = 200
) -> RenderedPage | Redirect:
    """Return the page of a form with the fields that were typed."""
    if path == "/plan":
        return plan_form.form(request, fields=fields, error_message=error_message, status=status)
    if path == "/tokens":
        fields = {**fields, "key": request.api.new_key()}
        return pages.tokens(request, fields=fields, error_message=error_message, status=status)
    if path == "/hooks":
        fields = {**fields, "key": request.api.new_key()}
        return hook_pages.hooks(request, fields=fields, error_message=error_message, status=status)
    if path.startswith(("/windows", "/no-go-times")):
        return window_pages.windows(request, form=path, fields=fields, error_message=error_message, status=status)
    page = order_pages.event_or_order(replace(request, path_names={"id": path.split("/")[2]}))
    if isinstance(page, Redirect):
        return page
    typed = {name: fields.get(name, "") for name in ("reason", "not_before")} | {"error_message": error_message}
    return RenderedPage(page.template, {**page.variables, **typed}, status)


def _target_names(targets: TargetsOut, most: int) -> str:
    return formatting.target_names(**msgspec.structs.asdict(targets), most=most)


def _progress_text(maintenance: MaintenanceRow | MaintenanceOut) -> str:
    """Return how far the events are, and the hosts if the maintenance works on hosts."""
    parts = (("", maintenance.progress), ("hosts: ", maintenance.host_progress))
    return "; ".join(
        kind + formatting.progress(**msgspec.structs.asdict(counted)) for kind, counted in parts if counted is not None
    )


class Portal:
    def __init__(
        self,
        api: Api,
        sessions: Sessions,
        streams: Streams,
        site: SiteInfo,
        *,
        doubtful_requests: DoubtfulRequests,
        shares: RequestShares,
    ) -> None:
        self._api = api
        self._doubtful_requests = doubtful_requests
        self._shares = shares
        self._sessions = sessions
        self._streams = streams
        self._site = site
        self._files = {name: (files("forewarn.operator.portal") / "static" / name).read_bytes() for name in FILES}

    @cached_property
    def _templates(self) -> "Environment":
        """The templates, from the first page on: a service or an emulator that shows no page starts without them."""
        from jinja2 import Environment, PackageLoader, StrictUndefined

        from forewarn.operator.portal.template_code import template_code

        templates = Environment(
            loader=PackageLoader("forewarn.operator.portal"),
            autoescape=True,
            undefined=StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
            bytecode_cache=template_code(),
        )
        functions = {name: getattr(formatting, name) for name in FORMATTING}
        versions = {name: hashlib.sha256(content).hexdigest()[:12] for name, content in self._files.items()}
        templates.globals.update(
            functions,
            event_link=event_link,
            event_state=event_state,
            link_events=link_events,
            name_list=name_list,
            scope_link=scope_link,
            time_tag=time_tag,
            target_names=_target_names,
            progress_text=_progress_text,
            strategy_text=lambda strategy: formatting.strategy(**msgspec.structs.asdict(strategy)),
            site=self._site,
            version=__version__,
            files=versions,
        )
        return templates

    def routes(self) -> list[Route]:
        return [
            *(Route(path, self._endpoint(make), methods=["GET"]) for path, make in (*PAGES, *CONFIRMATIONS)),
            *(Route(path, self._endpoint(make), methods=["POST"]) for path, make in ACTIONS),
            Route("/login", self._log_in, methods=["GET", "POST"]),
            Route("/logout", self._endpoint(self._log_out), methods=["POST"]),
            Route("/live", self._live, methods=["GET"]),
            *(Route(f"/{name}", self._file, methods=["GET"]) for name in FILES),
        ]

    # -- endpoints

    def _endpoint(self, make: PageFunction) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            return await self._respond(request, lambda form: self._page_response(request, make, form))

        return endpoint

    async def _respond(self, request: Request, make: Callable[[dict[str, str]], Response]) -> Response:
        try:
            form = await _read_form(request) if request.method == "POST" else {}
            if path_of(request) == "/login":
                token = {"authorization": f"Bearer {form.get('token', '')}"}
                if not await self._doubtful_requests.wait(request.scope, token):
                    raise ClientDisconnect
            return await run_in_threadpool(make, form)
        except ForewarnError as error:
            return self._error(None, error.status, str(error))
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            log.exception("a page failed: %s %s", request.method, path_of(request))
            return self._error(None, 500, "the service failed: its log says why")

    async def not_found(self, request: Request) -> Response:
        def refuse(_: PageRequest) -> RenderedPage:
            raise NotFound(f"there is no page {path_of(request)[:200]}")

        return await self._respond(request, lambda form: self._page_response(request, refuse, form))

    async def _log_in(self, request: Request) -> Response:
        return await self._respond(request, lambda form: self._login_response(request, form))

    def _log_out(self, request: PageRequest) -> Redirect:
        self._sessions.log_out(request.login)
        return Redirect("/login")

    async def _live(self, request: Request) -> Response:
        try:
            login = await run_in_threadpool(self._authenticate, request)
            return await self._streams.respond(request, login.caller, lambda: self._sessions.is_valid(login))
        except ForewarnError as error:
            return Response(str(error), error.status, media_type="text/plain; charset=utf-8", headers=PAGE_HEADERS)

    async def _file(self, request: Request) -> Response:
        name = path_of(request)[1:]
        headers = {**PAGE_HEADERS, "cache-control": "public, max-age=31536000, immutable"}
        return Response(self._files[name], media_type=FILES[name], headers=headers)

    # -- one page

    def _authenticate(self, request: Request) -> Login:
        return self._sessions.authenticate(request.headers, _cookies(request), _peer(request))

    def _page_response(self, request: Request, make: PageFunction, form: dict[str, str]) -> Response:
        submitted = request.method == "POST"
        if submitted:
            check_origin(request.headers)
        try:
            login = self._authenticate(request)
        except Unauthorized as error:
            return self._login_first(request, form, str(error) if request.cookies or submitted else "")
        with self._shares.take(login.caller):
            return self._page_for(login, request, make, form)

    def _page_for(self, login: Login, request: Request, make: PageFunction, form: dict[str, str]) -> Response:
        submitted, path = request.method == "POST", path_of(request)
        page_request = self._page_request(login, request, form)
        try:
            refusal = self._refuse_unproven(page_request, path) if submitted else None
            page = make(page_request) if refusal is None else refusal
        except ForewarnError as error:
            return self._error(page_request, error.status, str(error))
        if submitted and refusal is None:
            log.info("%s, by %s from %s", path, login.caller.name, login.caller.origin)
        response = self._render(page_request, page)
        if submitted and path == "/logout":
            response.headers["set-cookie"] = self._sessions.expired_cookie(request.headers)
        return response

    def _refuse_unproven(self, request: PageRequest, path: str) -> RenderedPage | Redirect | None:
        """Return None for a form of ours, otherwise the same form with everything that was typed."""
        try:
            check_proof(request.login, request.form.get("proof", ""))
            return None
        except Forbidden as error:
            if not has_typed_fields(path):
                raise
            return refilled_form(request, path, dict(request.form), str(error), error.status)

    def _page_request(self, login: Login, request: Request, form: Mapping[str, str]) -> PageRequest:
        api = ApiClient(self._api, login.caller)
        query, path = dict(request.query_params), path_of(request)
        search = urlencode({key: value for key, value in query.items() if key != "done"})
        return PageRequest(
            login=login,
            api=api,
            site=self._site,
            url=page_of_form(path) if request.method == "POST" else page_address(path, search),
            now=api.get("/v1/clock").now,
            origin=request.headers.get("origin", ""),
            store_hold=api.get("/v1/store").held,
            path_names=request.path_params,
            query=query,
            form=form,
        )

    def _render(self, request: PageRequest, page: RenderedPage | Redirect) -> Response:
        if isinstance(page, Redirect):
            return _redirect(page.to)
        variables = {
            "request": request,
            "caller": request.api.caller,
            "now": request.now,
            "done": DONE.get(request.query.get("done", ""), ""),
            "store_held": request.store_hold is not None,
            "may_plan": bool(plan_form.kinds_for(request.api)),
            "may_hooks": request.api.may("GET", "/v1/hooks"),
            "may_tokens": request.api.may("GET", "/v1/tokens") and not self._site.free,
            **page.variables,
        }
        return self._html(page.template, variables, page.status)

    def _html(self, template: str, variables: Mapping[str, Any], status: int) -> Response:
        text = self._templates.get_template(template).render(variables)
        return Response(text, status, media_type="text/html; charset=utf-8", headers=PAGE_HEADERS)

    def _error(self, request: PageRequest | None, status: int, message: str) -> Response:
        variables = {"status": status, "message": message, "hint": HINTS.get(status, "")}
        if request is not None:
            return self._render(request, RenderedPage("error.html", variables, status))
        return self._html("outside_error.html", variables, status)

    # -- login

    def _login_first(self, request: Request, form: Mapping[str, str], error_message: str) -> Response:
        """Return the login page. After the login the browser gets the page it requested, or the form it submitted."""
        path = path_of(request)
        if request.method != "POST":
            to = page_address(path, request.scope["query_string"].decode("latin-1"))
            return self._login_page(401, error_message=error_message, to=to)
        fields = {name: value for name, value in form.items() if name not in ("proof", "key", "step")}
        kept = msgspec.json.encode(KeptForm(path, fields)).decode() if has_typed_fields(path) else ""
        lost = len(kept) > MAX_KEPT_CHARS
        return self._login_page(
            401, error_message=error_message, to=page_of_form(path), kept="" if lost else kept, lost=lost
        )

    def _login_page(
        self, status: int, *, error_message: str = "", to: str = "/", kept: str = "", lost: bool = False
    ) -> Response:
        return self._html("login.html", {"error_message": error_message, "to": to, "kept": kept, "lost": lost}, status)

    def _login_response(self, request: Request, form: dict[str, str]) -> Response:
        peer = _peer(request)
        if self._sessions.free:
            self._authenticate(request)
            return _redirect("/")
        if request.method != "POST":
            return self._login_page(200)
        check_origin(request.headers)
        to, kept = local_path(form.get("to", "/")), form.get("carried", "")
        try:
            login, cookie = self._sessions.log_in(form.get("token", ""), request.headers, _cookies(request), peer)
        except Unauthorized as error:
            return self._login_page(401, error_message=str(error), to=to, kept=kept)
        log.info("logged in: %s (%s) from %s", login.caller.name, login.caller.role, login.caller.origin)
        response = self._kept_form_response(login, request, kept) or _redirect(to)
        response.headers["set-cookie"] = cookie
        return response

    def _kept_form_response(self, login: Login, request: Request, kept: str) -> Response | None:
        try:
            form = msgspec.json.decode(kept[:MAX_KEPT_CHARS], type=KeptForm) if kept else None
        except msgspec.MsgspecError:
            raise Invalid("carried: this is not a form of ours: fill it in again") from None
        if form is None or not has_typed_fields(form.path):
            return None
        page_request = replace(self._page_request(login, request, {}), url=page_of_form(form.path))
        try:
            return self._render(page_request, refilled_form(page_request, form.path, form.fields))
        except ForewarnError as error:
            return self._error(page_request, error.status, str(error))


def _peer(request: Request) -> str:
    return request.client.host if request.client else ""


def _cookies(request: Request) -> dict[str, str]:
    """Return the cookies that come once. If one comes twice, another program on this host may have set one of the two."""
    pairs = ";".join(request.headers.getlist("cookie")).split(";")
    names = Counter(pair.partition("=")[0].strip() for pair in pairs)
    return {name: value for name, value in request.cookies.items() if names[name] == 1}


def _redirect(to: str) -> Response:
    return Response(status_code=303, headers={**PAGE_HEADERS, "location": to})


async def _read_form(request: Request) -> dict[str, str]:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/x-www-form-urlencoded":
        raise Invalid("this takes a form as browsers submit it: application/x-www-form-urlencoded")
    body = await read_bytes(request, MAX_FORM_BYTES)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS))
    except ValueError:
        raise Invalid(f"the form is not UTF-8 text of at most {MAX_FIELDS} fields") from None


def local_path(to: str) -> str:
    """Return the path if it is one of this site, otherwise `/`: a login redirects to no other site."""
    plain = to.isprintable() and to.isascii() and len(to) <= MAX_PATH_CHARS
    return to if plain and to.startswith("/") and not to.startswith(("//", "/\\")) else "/"
