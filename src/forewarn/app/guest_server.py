"""Builds the guest side of a service from its settings: the endpoint's parts, a writer thread and the listener."""

from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

from forewarn.app.node import EndpointParts, try_to_write
from forewarn.app.service import Service
from forewarn.core.errors import InvalidSettings
from forewarn.endpoint.connection import Connection, ConnectionFactory
from forewarn.endpoint.identity import Trust
from forewarn.endpoint.limits import Limits
from forewarn.endpoint.listener import Address, GuestListener
from forewarn.endpoint.loop import Loop
from forewarn.operator.bound_socket import STOP_WITHIN_S
from forewarn.service.private_files import check_secret
from forewarn.service.settings import Settings

# How often it is saved when machines were last seen, and which events they saw for the first time.
SEEN_EVERY_S = 30.0
FIRST_SEEN_EVERY_S = 1.0
LAST_WRITES_WITHIN_S = 0.5
MIN_SECRET_BYTES = 16


class GuestServer:
    """Answers guests until it is stopped."""

    def __init__(
        self,
        service: Service,
        connection: ConnectionFactory = Connection,
        *,
        seen_every_s: float = SEEN_EVERY_S,
        first_seen_every_s: float = FIRST_SEEN_EVERY_S,
        stop_within_s: float = STOP_WITHIN_S,
        last_writes_within_s: float = LAST_WRITES_WITHIN_S,
    ) -> None:
        settings = service.settings
        self._stop_within_s = stop_within_s
        self._last_writes_within_s = last_writes_within_s
        self._stopped = False
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="writer")
        # A node for operators has no guest listener.
        listens = settings.role != "operator"
        self.parts = EndpointParts(
            service.node,
            self._writer,
            Loop(service.times.monotonic),
            limits=limits_of(settings),
            trust=trust_of(settings),
            max_stale_s=settings.max_stale_s,
            disable_after_s=settings.disable_after_s,
            first_call_delay_s=settings.first_call_delay_s,
            listens=listens,
        )
        self.documents, self.endpoint = self.parts.documents, self.parts.endpoint
        self.listener = GuestListener(
            self.endpoint,
            [Address.parse(text) for text in settings.guest if listens],
            hop_limit=settings.guest_hop_limit,
            connection=connection,
            # On the demo's fast clock half a minute is half an hour.
            repeated=(
                (1.0 if settings.demo else seen_every_s, self.parts.write_seen),
                (first_seen_every_s, self.parts.write_first_seen),
            ),
        )

    def start(self) -> None:
        """Listen, then load the fleet: guests are answered as soon as their machine is loaded."""
        self.listener.start()
        self.documents.load()

    def stop(self) -> None:
        """Close the sockets and save what waits to be saved. A second call does nothing."""
        if self._stopped:
            return
        self._stopped = True
        self.listener.stop(self._stop_within_s)
        self.parts.write_seen()
        while sightings := self.endpoint.take_first_seen():
            self._writer.submit(try_to_write, partial(self.parts.last_seen.write_first_seen, sightings))
        # Writes that are still queued after this are dropped: no guest has been answered for them.
        wait([self._writer.submit(lambda: None)], timeout=self._last_writes_within_s)
        self._writer.shutdown(wait=False, cancel_futures=True)


def limits_of(settings: Settings) -> Limits:
    return Limits(
        requests_per_s=settings.rate_limit,
        connections=settings.guest_connections,
        unknown_connections=settings.guest_unknown_connections,
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
        check_secret("proxy_secret_file", settings.proxy_secret_file)
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
