"""The only place where objects are wired: settings in, a running service out, and an orderly end.

Ids and the wall clock enter the system here and in `clock`, nowhere else.
"""

import gc
import logging
import os
import random
import re
import secrets
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import uvicorn

from forewarn.app.health import Health, guest_counts
from forewarn.app.node import REAL, GuestParts, Node, Times, follow, try_to_write
from forewarn.core.errors import ForewarnError, Invalid, InvalidFleet, InvalidSettings, Refused
from forewarn.core.fleet import MAX_FILE_BYTES, parse_fleet
from forewarn.core.fleet_difference import Difference
from forewarn.core.model import Actor, Role, Token
from forewarn.endpoint.connection import Connection, NewConnection
from forewarn.endpoint.endpoint import Limits
from forewarn.endpoint.identity import Trust
from forewarn.endpoint.listener import Address, GuestListener, reachable
from forewarn.endpoint.loop import Loop
from forewarn.executors import Executor, registry
from forewarn.operator.api.access import ENVIRONMENT_TOKEN, Access, digest, secret_text
from forewarn.operator.api.app import api_routes
from forewarn.operator.api.calls import CALLS, Call
from forewarn.operator.api.context import Api
from forewarn.operator.api.stream import Streams
from forewarn.operator.http_limits import MAX_REQUESTS, GateProtocol, GateServer, GateSocket
from forewarn.operator.monitoring import operator_app
from forewarn.operator.portal.app import Portal
from forewarn.operator.portal.sessions import Sessions
from forewarn.operator.portal.visit import SiteInfo
from forewarn.service.clock import Clock, clock_for
from forewarn.service.follower import Follower
from forewarn.service.private_files import check_tls, make_folder, read_private, write_private
from forewarn.service.settings import Settings, is_postgres, on_loopback, store_path
from forewarn.service.state_dir import StateDir
from forewarn.store import SharedStore, Store
from forewarn.store.memory import MemoryStore
from forewarn.store.sqlite.store import SqliteStore

# SIGTERM to exit within 5 s: three parts stop one after the other, each within this.
STOP_WITHIN_S = 1.3
LAST_WRITES_S = 0.5
SEEN_EVERY_S = 30.0
SIGHTINGS_EVERY_S = 1.0
MIN_SECRET_BYTES = 16
MIN_TOKEN_CHARS = 16
SECRET_BYTES = 32
START_WITHIN_S = 10.0
LOOK_EVERY_S = 0.001
# After a conflict, doubled with every further one.
PAUSE_S = 0.005
MAX_PAUSE_S = 0.25
# How long a thread that computes may keep the others waiting; Python says 5 ms.
SWITCH_S = 0.0005

log = logging.getLogger("forewarn.app.server")


def new_id() -> str:
    """An upper-case GUID."""
    return str(uuid.uuid4()).upper()


def open_store(settings: Settings) -> Store:
    if is_postgres(settings.store):
        # Beside an embedded store nobody needs its driver.
        try:
            from forewarn.store.postgres.store import PostgresStore
        except ImportError:
            raise InvalidSettings(
                "store: PostgreSQL needs its driver: pip install 'forewarn[server,postgres]'"
            ) from None

        store = PostgresStore(settings.store, direct=settings.store_direct, size=settings.store_connections)
        if store.dsn.unverified:
            log.warning("store: %s", store.dsn.unverified)
        return store
    path = store_path(settings)
    if path is None:
        return MemoryStore()
    if not settings.store:
        make_folder(path.parent)
    return SqliteStore(path)


def executor_for(settings: Settings) -> Executor:
    """Make the executor in use. A node for guests takes no orders: other nodes do."""
    if settings.role == "guest":
        return registry.find(registry.DEFAULT)()
    try:
        return registry.find(settings.executor).from_settings(settings.of_executor(), settings.state_dir)
    except OSError as error:
        raise InvalidSettings(
            f"state_dir: the {settings.executor} executor cannot use it: {error}; name another with --state-dir"
        ) from None


def _clock_of(settings: Settings, floor: datetime | None) -> Clock:
    try:
        return clock_for(settings.clock, floor=floor)
    except Invalid as error:
        raise InvalidSettings(f"clock: {error}") from None


def _new_state_dir_name() -> str:
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:60] or "host"
    return f"{host}-{secrets.token_hex(4)}"


def _node_name(state_dir: StateDir | None) -> str:
    """Never given twice: containers may share a host's name and have the same process id each."""
    here = state_dir.name if state_dir is not None else socket.gethostname()
    return f"{here}:{os.getpid()}-{secrets.token_hex(4)}"


def _pause(tried: int) -> None:
    """Two that were in each other's way meet again unless each waits for as long as chance will have it."""
    time.sleep(random.uniform(0.0, min(PAUSE_S * 2**tried, MAX_PAUSE_S)))  # noqa: S311 - no secret


class Service(Node):
    """A node as its settings want it; the listeners come with `serve`."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        store: Store | None = None,
        new_id: Callable[[], str] = new_id,
        node: str = "",
        times: Times = REAL,
    ) -> None:
        self.settings = settings
        executor = executor_for(settings)
        store = store or open_store(settings)
        shared = store if isinstance(store, SharedStore) and clock is None else None
        self.state_dir: StateDir | None = None
        follower: Follower | None = None
        try:
            store.hold()
            if shared is not None:
                follower, clock = follow(shared, times)
            elif clock is None:
                lived = [s.changed for s in store.scopes().values() if s.changed is not None]
                clock = _clock_of(settings, floor=max(lived, default=None))
            if shared is not None and settings.role != "guest":
                self.state_dir = StateDir(settings.state_dir, _new_state_dir_name)
        except BaseException:
            if follower is not None:
                follower.close()
            store.close()
            raise
        super().__init__(
            store,
            clock,
            executor,
            name=node or _node_name(self.state_dir),
            new_id=new_id,
            order_timeout_s=settings.order_timeout_s,
            retain_history_s=settings.retain_history_s,
            shared=shared,
            follower=follower,
            may_tick=settings.role != "guest",
            alone=self.state_dir.alone if self.state_dir is not None else lambda: nullcontext(False),
            pause=_pause,
            times=times,
        )
        self.health = Health(settings, self.store, self.control, self.clock, self.ticker, self.follower)

    def apply_fleet_file(self, path: Path) -> Difference:
        fleet = parse_fleet(_read_fleet(path), str(path))
        try:
            return self.control.apply_fleet(fleet, Actor("fleet file", str(path)), prune=self.settings.prune)
        except (InvalidFleet, Refused) as error:
            raise InvalidFleet(
                f"{path}: it does not fit the fleet there is: {error}; what is not in the file stays unless you say --prune"
            ) from None

    def close(self) -> None:
        self.executor.close()
        self.store.close()
        if self.state_dir is not None:
            self.state_dir.close()


class GuestSide(GuestParts):
    """The parts of the guest side with a writer's thread and a listener, as the service's settings want them."""

    def __init__(self, service: Service, connection: NewConnection = Connection) -> None:
        settings = service.settings
        self._stopped = False
        # A node for operators has no guest listener.
        listens = settings.role != "operator"
        super().__init__(
            service,
            ThreadPoolExecutor(1, thread_name_prefix="writer"),
            Loop(service.times.monotonic),
            limits=limits_of(settings),
            trust=trust_of(settings),
            max_stale_s=settings.max_stale_s,
            disable_after_s=settings.disable_after_s,
            first_call_delay_s=settings.first_call_delay_s,
            listens=listens,
        )
        self.listener = GuestListener(
            self.guests,
            [Address.parse(text) for text in settings.guest if listens],
            hop_limit=settings.guest_hop_limit,
            connection=connection,
            # On the demo's fast clock half a minute would look like half an hour.
            repeated=(
                (1.0 if settings.demo else SEEN_EVERY_S, self._write_seen),
                (SIGHTINGS_EVERY_S, self._write_sightings),
            ),
        )

    def stop(self) -> None:
        """Once; a second call finds nothing left to do."""
        if self._stopped:
            return
        self._stopped = True
        self.listener.stop(STOP_WITHIN_S)
        self._write_seen()
        while sightings := self.guests.take_sightings():
            self._writer.submit(try_to_write, partial(self._attendance.write_sightings, sightings))
        # What is in line is written, as far as the time allows; what hangs is safely left: nobody was told of it.
        wait([self._writer.submit(lambda: None)], timeout=LAST_WRITES_S)
        self._writer.shutdown(wait=False, cancel_futures=True)


def limits_of(settings: Settings) -> Limits:
    return Limits(
        requests_per_s=settings.rate_limit,
        connections=settings.guest_connections,
        waiting=settings.guest_waiting,
        all_connections=settings.guest_all_connections,
        head_bytes=settings.guest_header_bytes,
        headers=settings.guest_headers,
        body_bytes=settings.guest_body_bytes,
        request_s=settings.guest_request_timeout_s,
        idle_s=settings.guest_idle_timeout_s,
    )


def trust_of(settings: Settings) -> Trust:
    secret = b""
    if settings.proxy_secret_file is not None:
        try:
            secret = settings.proxy_secret_file.read_bytes().strip()
        except OSError as error:
            raise InvalidSettings(f"proxy_secret_file: {settings.proxy_secret_file}: {error.strerror}") from None
        if len(secret) < MIN_SECRET_BYTES:
            raise InvalidSettings(
                f"proxy_secret_file: the secret is shorter than {MIN_SECRET_BYTES} bytes: use a longer one"
            )
    scope, _, name = settings.every_caller.partition("/")
    return Trust(
        proxies=frozenset(settings.trusted_proxies),
        proxy_secret=secret,
        every_caller=(scope, name) if settings.every_caller else None,
        allowed_hosts=frozenset(settings.allowed_hosts),
    )


def environment_token() -> str:
    token = os.environ.get(ENVIRONMENT_TOKEN, "")
    if 0 < len(token) < MIN_TOKEN_CHARS:
        raise InvalidSettings(
            f"{ENVIRONMENT_TOKEN}: the token is shorter than {MIN_TOKEN_CHARS} characters and could be guessed: use a longer one"
        )
    return token


def _read_fleet(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidFleet(f"{path}: larger than {MAX_FILE_BYTES} bytes: split the fleet over several services")
        return path.read_text("utf-8")
    except OSError as error:
        raise InvalidFleet(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidFleet(f"{path}: this is not UTF-8 text: {error}") from None


def calm() -> None:
    """For a process that answers guests: no thread of it may make another wait for long."""
    # What was loaded stays: the garbage collector need not walk a million machines to find that out.
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)


class Stopping:
    """Whether one of these signals came. Python itself puts a byte in the pipe, whatever thread got the signal and whenever: one
    that came just before we slept would else be heard of when we wake up, which is never."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._came = False
        self._heard, told = os.pipe()
        os.set_blocking(told, False)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, self._take)

    def _take(self, *_: object) -> None:
        self._came = True

    def wait(self) -> None:
        os.read(self._heard, 1)

    def is_set(self) -> bool:
        return self._came


def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT: apply the fleet, start the ticker and the listeners, say that all is ready."""
    stopping = Stopping(signal.SIGTERM, signal.SIGINT)
    service = Service(settings)
    try:
        if settings.fleet is not None:
            _say_difference(service.apply_fleet_file(settings.fleet), say)
        with running(service) as (guests, operator_url):
            calm()
            say(f"ready guest={','.join(guests.listener.urls) or 'none'} operator={operator_url}")
            stopping.wait()
            log.info("stopping")
    finally:
        service.close()


def _say_difference(diff: Difference, say: Callable[[str], None], most: int = 50) -> None:
    for line in diff.lines[:most]:
        say(line)
    if len(diff.lines) > most:
        say(f"  and {len(diff.lines) - most} more")
    for warning in diff.warnings[:most]:
        say(f"! {warning}")
    say(f"fleet: {len(diff.lines)} difference(s) applied" if diff.lines else "fleet: no difference")


@contextmanager
def running(
    service: Service, *, connection: NewConnection = Connection, calls: Sequence[Call] = CALLS, findable: bool = True
) -> Iterator[tuple[GuestSide, str]]:
    """Guests are answered, time brings what is due, operators are listened to: the guest side and the operators' address.

    `connection` talks to guests, and `calls` are the API's: an emulator has more of both. Unless `findable`, the command line is
    told where it is by its user.
    """
    check_tls(service.settings)
    token = "" if service.settings.token_free else environment_token()
    with (
        _answering(service, connection) as guests,
        _following(service),
        _ticking(service),
        _listening(service, guests, token, calls) as operator_url,
        _findable(service, operator_url) if findable and service.settings.role != "guest" else nullcontext(),
    ):
        yield guests, operator_url


@contextmanager
def _following(service: Service) -> Iterator[None]:
    """After the guest side has been made, which listens to it, and has loaded what is followed from here on."""
    follower = service.follower
    if follower is None:
        yield
        return
    thread = threading.Thread(target=follower.run, name="follower", daemon=True)
    thread.start()
    try:
        yield
    finally:
        follower.stop()
        thread.join(timeout=STOP_WITHIN_S)


@contextmanager
def _answering(service: Service, connection: NewConnection) -> Iterator[GuestSide]:
    guests = GuestSide(service, connection)
    guests.listener.start()
    try:
        yield guests
    finally:
        guests.stop()


@contextmanager
def _ticking(service: Service) -> Iterator[None]:
    def tick() -> None:
        service.ticker.run()
        service.ticker.leave()

    thread = threading.Thread(target=tick, name="ticker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        service.ticker.stop()
        # What it is doing now is one transaction: it ends soon, or is safely left unsaved. Its lease ends by itself.
        thread.join(timeout=STOP_WITHIN_S)


@contextmanager
def _findable(service: Service, url: str) -> Iterator[None]:
    """The command line on this machine finds the service and the operator's token by themselves."""
    folder = service.settings.state_dir
    make_folder(folder)
    if not service.settings.token_free:
        _keep_operator_token(service, folder / "operator.token")
    address = folder / "operator.url"
    write_private(address, url)
    try:
        yield
    finally:
        # Another service may have been started with the same folder meanwhile: its address stays.
        with suppress(OSError, ValueError):
            if address.read_text("ascii").strip() == url:
                address.unlink()


def _keep_operator_token(service: Service, path: Path) -> None:
    """The token in the file is one that is known; a revoked one is replaced, never brought back."""
    known = service.store.tokens()
    with suppress(OSError, ValueError):
        if digest(read_private(path)) in {token.digest for token in known}:
            return
    name, actor = "operator", Actor("service", "first start")
    if service.state_dir is not None:
        # Nodes come and go, and their folders with them: each would leave a token with the others for ever.
        if environment_token():
            return
        name = f"operator of {service.state_dir.name}"
        for lost in [token for token in known if token.name == name]:
            service.control.revoke_token(lost.id, actor)
    secret = secret_text(secrets.token_bytes(SECRET_BYTES))
    token = Token(id=new_id(), name=name, role=Role.OPERATOR, digest=digest(secret), created=service.clock.now())
    # In this order: a token in the file that is not known is replaced at the next start, one that nobody has would stay.
    write_private(path, secret)
    service.control.add_token(token, actor)


@contextmanager
def _listening(service: Service, guests: GuestSide, token: str, calls: Sequence[Call]) -> Iterator[str]:
    """The operator listener in a thread of its own; yields its address once it accepts."""
    settings = service.settings
    host, _, port = settings.operator.rpartition(":")
    access = Access(
        service.store.tokens,
        environment_token=token,
        free=settings.token_free,
        reachable=service.health.can_be_asked,
    )
    access.learn()
    streams = Streams(service.store)
    service.control.listen(lambda _: streams.ring())
    if service.follower is not None:
        service.follower.listen(lambda news: streams.ring() if news.changed else None)
    api = Api(
        service.control,
        service.store,
        service.clock,
        advance=service.ticker.advance,
        new_id=new_id,
        random=lambda: secrets.token_bytes(SECRET_BYTES),
        catch_up=service.follower.catch_up if service.follower is not None else lambda: None,
    )
    portal = _portal(service, api, access, streams, next(iter(guests.listener.urls), ""))
    pages, rest = api_routes(api, access, streams, calls, no_page=portal.not_found)
    # A node for guests says how it is to whoever watches over it, and nothing else.
    health_only = settings.role == "guest"
    app = operator_app(
        ticked_at_s=lambda: service.ticker.cycled_at_s,
        store_works=service.health.store_works,
        warnings=service.health.warnings,
        facts=lambda: service.health.facts(guests.documents),
        guests_accepted=guests.listener.accepting,
        guest_counts=lambda: guest_counts(guests.guests),
        pages=[] if health_only else [*pages, *portal.routes()],
        rest=None if health_only else rest,
        guard=None if on_loopback(settings.operator) and not settings.token_free else access.watcher,
    )
    config = uvicorn.Config(
        app,
        host=host.strip("[]"),
        port=int(port),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        server_header=False,
        loop="asyncio",
        http=GateProtocol,
        ws="none",
        limit_concurrency=MAX_REQUESTS,
        # Always said, or uvicorn would believe whoever is on loopback, or whom its own variable names.
        proxy_headers=settings.behind_tls_proxy,
        forwarded_allow_ips=list(settings.operator_proxies),
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    with _bound(config, service.settings.operator) as listener:
        server = GateServer(config)
        thread = threading.Thread(target=server.run, args=([listener],), name="operator", daemon=True)
        thread.start()
        _wait_until(lambda: server.started, thread)
        try:
            scheme = "https" if settings.tls_cert is not None else "http"
            url = f"{scheme}://{reachable(host.strip('[]'))}:{listener.getsockname()[1]}"
            yield url
        finally:
            server.end()
            thread.join(timeout=STOP_WITHIN_S)


def _portal(service: Service, api: Api, access: Access, streams: Streams, guest_url: str) -> Portal:
    settings = service.settings
    sessions = Sessions(
        access,
        now_s=time.time,
        secure=settings.tls_cert is not None or settings.behind_tls_proxy,
        free_key=secrets.token_bytes(SECRET_BYTES),
        free=settings.token_free,
    )
    house = SiteInfo(
        takes_orders=service.executor.takes_orders,
        touches_no_machine=service.executor.touches_no_machine,
        clock=service.clock.name,
        demo=settings.demo,
        free=settings.token_free,
        guest_url=guest_url,
    )
    return Portal(api, sessions, streams, house, clock_s=time.monotonic)


@contextmanager
def _bound(config: uvicorn.Config, address: str) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = GateSocket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # What is accepted inherits it: an answer in two pieces must not wait for the first to be acknowledged.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind((config.host, config.port))
        except OSError as error:
            raise InvalidSettings(
                f"operator: cannot listen on {address}: {error.strerror}; choose another with --operator HOST:PORT"
            ) from None
        yield listener
    finally:
        listener.close()


def _wait_until(true: Callable[[], bool], thread: threading.Thread) -> None:
    deadline_s = time.monotonic() + START_WITHIN_S
    while not true():
        if not thread.is_alive() or time.monotonic() > deadline_s:
            raise ForewarnError("the operator listener did not start: see the log above")
        time.sleep(LOOK_EVERY_S)
