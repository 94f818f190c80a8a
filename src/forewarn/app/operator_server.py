"""The operator listener of a service: access, API, portal and monitoring, wired to one node."""

import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp

from forewarn.app.guest_server import GuestServer
from forewarn.app.health import guest_counts
from forewarn.app.operator_token import SECRET_BYTES
from forewarn.app.service import Service, new_id
from forewarn.operator.api.access import Access, refuse_foreign_host
from forewarn.operator.api.access_recorder import AccessRecorder
from forewarn.operator.api.app import api_routes
from forewarn.operator.api.calls import CALLS, Call
from forewarn.operator.api.context import Api
from forewarn.operator.api.doubtful_requests import DoubtfulRequests
from forewarn.operator.api.failed_attempts import FailedAttempts
from forewarn.operator.api.request_shares import RequestShares
from forewarn.operator.api.stream import Streams
from forewarn.operator.listener import listening
from forewarn.operator.monitoring import Guard, Readiness, operator_app
from forewarn.operator.open_connections import ConnectionLimits, OpenConnections
from forewarn.operator.portal.app import Portal
from forewarn.operator.portal.page_request import SiteInfo
from forewarn.operator.portal.sessions import Sessions
from forewarn.service.settings import Settings, on_loopback

# How many addresses a warning names.
MAX_NAMED = 3


@contextmanager
def answering_operators(
    service: Service,
    guest_server: GuestServer,
    token: str,
    listener: socket.socket,
    more_calls: Sequence[Call],
    *,
    stop_within_s: float,
) -> Iterator[None]:
    """Answer operators on a bound socket, with more calls than those of the API. The block begins once they are answered."""
    settings = service.settings
    proxies = list(settings.operator_proxies) if settings.behind_tls_proxy else None
    open_connections = OpenConnections(
        ConnectionLimits(
            connections=settings.operator_all_connections,
            connections_per_address=settings.operator_connections,
            head_within_s=settings.operator_head_timeout_s,
            exempt=frozenset(proxies or ()),
        )
    )
    with listening(
        _application(service, guest_server, _access(service, token), (*CALLS, *more_calls), open_connections),
        listener,
        tls_cert=settings.tls_cert,
        tls_key=settings.tls_key,
        trusted_proxies=proxies,
        open_connections=open_connections,
        stop_within_s=stop_within_s,
    ):
        yield


def _application(
    service: Service,
    guest_server: GuestServer,
    access: Access,
    calls: Sequence[Call],
    open_connections: OpenConnections,
) -> Starlette:
    settings = service.settings
    doubtful_requests = DoubtfulRequests(access)
    pages: list[Route] = []
    rest = None
    if settings.role != "guest":  # a node for guests serves health and metrics only
        pages, rest = _api_and_portal(service, guest_server, access, calls, doubtful_requests)
    return operator_app(
        Readiness(
            ticked_at_s=lambda: service.ticker.cycled_at_s,
            store_problem=service.health.store_problem,
            executor_problem=lambda: service.executor.problem() or service.node.host_executor.problem(),
            guests_accepted=guest_server.listener.accepting,
            warnings=lambda: {**service.health.warnings(), **_guest_warning(guest_server)},
        ),
        open_connections=open_connections,
        facts=lambda: service.health.facts(guest_server.documents),
        guest_counts=lambda: guest_counts(guest_server.endpoint, len(guest_server.listener.problems())),
        pages=pages,
        rest=rest,
        guard=_monitoring_guard(settings, access),
        failed_authentications=lambda: access.failures.total,
        delay=doubtful_requests.delay,
        hsts_s=settings.hsts_s if _has_tls(settings) else 0,
    )


def _api_and_portal(
    service: Service,
    guest_server: GuestServer,
    access: Access,
    calls: Sequence[Call],
    doubtful_requests: DoubtfulRequests,
) -> tuple[list[Route], ASGIApp]:
    """Return the pages of the API and the portal, and what answers every other path."""
    streams = Streams(service.store)
    service.node.listen(streams.notify)
    api = Api(
        service.control,
        service.store,
        service.clock,
        advance=service.ticker.advance,
        new_id=new_id,
        random=lambda: secrets.token_bytes(SECRET_BYTES),
        catch_up=service.follower.catch_up if service.follower is not None else lambda: None,
        hook_sender=service.hook_sender,
        host_executor=service.node.host_executor.name,
    )
    shares = RequestShares(service.settings.operator_connections)
    portal = Portal(
        api,
        _sessions(service, access),
        streams,
        _site(service, next(iter(guest_server.listener.urls), "")),
        doubtful_requests=doubtful_requests,
        shares=shares,
    )
    pages, rest = api_routes(api, access, streams, calls, shares=shares, no_page=portal.not_found)
    return [*pages, *portal.routes()], rest


def _access(service: Service, token: str) -> Access:
    """Return who may call, with the tokens in memory, and let the ticker record their use."""
    access = Access(
        service.store.tokens,
        now=service.clock.display_time,
        failures=FailedAttempts(service.times.monotonic),
        environment_token=token,
        free=service.settings.token_free,
        reachable=service.health.store_answers,
    )
    access.cache_tokens()
    service.ticker.call_periodically(
        AccessRecorder(access, service.store, service.control, monotonic=service.times.monotonic)
    )
    return access


def _monitoring_guard(settings: Settings, access: Access) -> Guard:
    """Return what checks a caller of readiness and metrics: its token, or on loopback the name that it uses for us."""
    if settings.token_free or settings.behind_tls_proxy or not on_loopback(settings.operator):
        return access.identify_for_monitoring

    def check_name(headers: Mapping[str, str], _: str) -> None:
        if "host" in headers:  # a browser always sends one
            refuse_foreign_host(headers)

    return check_name


def _guest_warning(guest_server: GuestServer) -> dict[str, str]:
    problems = [each.removeprefix("guest: ") for each in guest_server.listener.problems()]
    more = f"; and {len(problems) - MAX_NAMED} more" if len(problems) > MAX_NAMED else ""
    return {"guest": "; ".join(problems[:MAX_NAMED]) + more} if problems else {}


def _has_tls(settings: Settings) -> bool:
    """Return whether browsers reach the listener over TLS."""
    return settings.tls_cert is not None or settings.behind_tls_proxy


def _sessions(service: Service, access: Access) -> Sessions:
    settings = service.settings
    return Sessions(
        access,
        service.store,
        now=service.clock.display_time,
        random=lambda: secrets.token_bytes(SECRET_BYTES),
        secure=_has_tls(settings),
        free=settings.token_free,
    )


def _site(service: Service, guest_url: str) -> SiteInfo:
    settings = service.settings
    return SiteInfo(
        takes_orders=service.executor.takes_orders,
        touches_no_machine=service.executor.touches_no_machine,
        clock=service.clock.name,
        demo=settings.demo,
        free=settings.token_free,
        guest_url=guest_url,
    )
