"""Bad requests, limits, Idempotency-Keys, many requests at once, and the stream of changes."""

import asyncio
import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import pytest

from forewarn.core.errors import TooManyStreams
from forewarn.core.model import Scope
from forewarn.core.operator_model import Role
from forewarn.operator.api.access import Identity
from forewarn.operator.api.stream import MAX_STREAMS_PER_TOKEN, Streams
from forewarn.store import ScopeQuery
from forewarn.store.memory import MemoryStore
from tests.support.running_service import RunningService, running_service
from tests.support.waiting import PATIENCE_S

REBOOT = {"type": "Reboot", "targets": {"machines": ["shop/web-0"]}}


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/v1/maintenances", b"{", 400, "this is not JSON"),
        ("POST", "/v1/maintenances", b"\xff", 400, "this is not JSON"),
        (
            "POST",
            "/v1/maintenances",
            b'{"targets":' + b"[" * 100_000,
            422,
            "targets: write an object with machines, scope",
        ),
        ("POST", "/v1/maintenances", b"", 400, "body: it is missing"),
        ("POST", "/v1/fleet?prune=true", b"", 400, "body: it is missing"),
        ("POST", "/v1/maintenances", {}, 422, "type: missing; add it"),
        ("POST", "/v1/maintenances", {**REBOOT, "tpye": 1}, 422, "tpye: unknown field; did you mean type?"),
        ("POST", "/v1/maintenances", {**REBOOT, "duration_s": "1h"}, 422, "duration_s: write whole seconds from -1"),
        ("POST", "/v1/maintenances", {**REBOOT, "description": "x" * 1_025}, 422, "description"),
        ("POST", "/v1/maintenances", {**REBOOT, "not_before": "tomorrow"}, 422, "not_before"),
        ("POST", "/v1/maintenances", {**REBOOT, "not_before": "2030-01-01T00:00:00"}, 400, "has no zone"),
        ("POST", "/v1/maintenances", {**REBOOT, "targets": {}}, 400, "exactly one"),
        ("POST", "/v1/maintenances", {**REBOOT, "targets": {"scope": "shop", "hosts": ["a"]}}, 400, "exactly one"),
        ("POST", "/v1/maintenances", {**REBOOT, "emergency": True, "source": "User"}, 400, "emergency"),
        ("POST", "/v1/maintenances?dry_run=perhaps", REBOOT, 422, "dry_run"),
        ("GET", "/v1/events?limit=0", None, 422, "limit: write a whole number from 1 to 500"),
        ("GET", "/v1/events?limit=501", None, 422, "limit: write a whole number from 1 to 500"),
        ("GET", "/v1/events?limit=x", None, 422, "limit"),
        ("GET", "/v1/events?cursor=x", None, 400, "is not one of ours"),
        ("GET", "/v1/events?cursor=WyJ4Il0", None, 400, "is not one of ours"),
        ("GET", "/v1/events?colour=red", None, 422, "colour: unknown parameter; the parameters here are"),
        ("GET", "/v1/events?scope=a&scope=b", None, 400, "given twice"),
        ("GET", "/v1/events?machine=web-0", None, 400, "machine goes with a scope"),
        ("GET", "/v1/events?status=Running", None, 422, "status"),
        ("POST", "/v1/events/none/approve", {"a": 1}, 400, "takes no body"),
        ("POST", "/v1/events/none/approve", None, 404, "there is no event none"),
        ("PUT", "/v1/scopes/shop", {"kind": "heap"}, 422, "kind"),
        ("PUT", "/v1/scopes/-shop", {"kind": "standalone"}, 400, "is not a name"),
        ("PUT", "/v1/scopes/x", {"kind": "standalone", "minimum_notice_s": {"Reboot": 1}}, 400, "only be raised"),
        ("PUT", "/v1/scopes/x", {"kind": "standalone", "max_unavailable": "10.5%"}, 400, "or a share from 1% to 100%"),
        ("PUT", "/v1/scopes/shop/machines/web-0", {"addresses": ["x"]}, 400, "is not an IP address"),
        ("POST", "/v1/tokens", {"name": "a\nb", "role": "viewer"}, 400, "control characters"),
        ("POST", "/v1/orders/none/fail", {"reason": ""}, 422, "reason"),
        ("PATCH", "/v1/scopes/shop", None, 405, "takes DELETE, GET, PUT, not PATCH"),
        ("PATCH", "/v1/scopes/%20takes%20%E2%82%AC", None, 405, "takes DELETE, GET, PUT, not PATCH"),
        ("DELETE", "/v1/stream", None, 405, "read with GET"),
        ("GET", "/v1/stream?from=1", None, 400, "takes no parameters"),
        ("GET", "/v1/events?cursor=WzE4NDQ2NzQ0MDczNzA5NTUxNjE1XQ", None, 400, "is not one of ours"),
        ("GET", "/v1/tokens?cursor=WyIyMDMwLTAxLTAxVDAwOjAwOjAwIiwieCJd", None, 400, "is not one of ours"),
        ("POST", "/v1/maintenances", {**REBOOT, "type": "Rebot"}, 422, "use one of Freeze, Reboot, Redeploy"),
        ("GET", "/v1/events?status=Rnning", None, 422, "use one of Planned, Scheduled"),
        ("POST", "/v1/fleet", b"[[scopes]]", 422, "Content-Type: application/toml"),
        ("GET", "/v1/none", None, 404, "/v1/docs"),
    ],
)
def test_a_bad_request_is_refused_with_what_to_change(
    service: RunningService, method: str, path: str, body: object, status: int, message: str
) -> None:
    """With its status and a sentence that names the field; nothing changes."""
    before = service.get("/v1/audit")
    reply = service.request(method, path, body)
    assert (reply.status, message.lower() in reply.message.lower()) == (status, True), reply.raw
    assert service.get("/v1/audit") == before


def test_a_body_has_a_limit(service: RunningService) -> None:
    """413, with or without a Content-Length."""
    assert service.request("POST", "/v1/maintenances", b" " * 1_100_000).status == 413
    address = urlsplit(service.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=PATIENCE_S)
    headers = {"Authorization": f"Bearer {service.token}", "Transfer-Encoding": "chunked"}
    pieces = (b" " * 100_000 for _ in range(11))
    try:
        connection.request("POST", "/v1/maintenances", pieces, headers, encode_chunked=True)
    except OSError:
        pass  # the service may close the connection first
    else:
        assert connection.getresponse().status == 413
    connection.close()
    assert service.get("/v1/maintenances")["items"] == []


class BrokenStore(MemoryStore):
    def scopes_page(self, query: ScopeQuery) -> list[Scope]:
        raise ZeroDivisionError("division by zero")


def test_an_unexpected_error_reveals_nothing() -> None:
    """500 and where to look; the cause is in the log alone."""
    with running_service(in_store=BrokenStore()) as service:
        broken = service.request("GET", "/v1/scopes")
    assert (broken.status, broken.code) == (500, "internal")
    assert "division" not in broken.message


# -- Idempotency-Keys


def test_a_request_with_the_same_key_is_performed_once(service: RunningService) -> None:
    """The repetition gets the same status and bytes, for every call that creates."""
    service.enable("shop", "blog")
    for path, body, status in (
        ("/v1/maintenances", REBOOT, 201),
        ("/v1/scopes/blog/machines/db/restart", None, 202),
        ("/v1/fleet", {"scopes": [{"name": "new", "kind": "availability-set"}], "machines": []}, 200),
        ("/v1/tokens", {"name": "ci", "role": "viewer"}, 201),
    ):
        headers = {"Idempotency-Key": f"key-of-{path}"}
        first = service.request("POST", path, body, headers=headers)
        audit = service.get("/v1/audit")
        second = service.request("POST", path, body, headers=headers)
        assert first.status == status, first.raw
        assert (second.status, second.raw) == (first.status, first.raw), path
        assert service.get("/v1/audit") == audit


def test_the_secret_of_a_repeated_token_is_saved_sealed(service: RunningService) -> None:
    """It is not readable in the database, and is forgotten after a day; a revoked token stays revoked."""
    headers = {"Idempotency-Key": "k"}
    body = {"name": "ci", "role": "viewer"}
    made = service.request("POST", "/v1/tokens", body, headers=headers).json
    assert service.request("GET", "/v1/scopes", token=made["token"]).status == 200
    service.request("DELETE", f"/v1/tokens/{made['id']}")
    service.post("/v1/clock/advance", {"seconds": 26 * 3600})
    other = service.request("POST", "/v1/tokens", body, headers=headers)
    assert other.status == 201
    assert other.json["token"] != made["token"]
    assert service.request("GET", "/v1/scopes", token=made["token"]).status == 401
    for file in service.service.settings.state_dir.glob("forewarn.db*"):
        assert made["token"].encode() not in file.read_bytes()


def test_the_same_key_with_another_request_is_refused(service: RunningService) -> None:
    """409; keys of different tokens are different keys."""
    headers = {"Idempotency-Key": "k"}
    service.request("POST", "/v1/maintenances", REBOOT, headers=headers)
    refused = service.request("POST", "/v1/maintenances", {**REBOOT, "description": "x"}, headers=headers)
    assert (refused.status, refused.code) == (409, "idempotency_key_reused")
    other = service.token_of("operator")
    assert service.request("POST", "/v1/maintenances", REBOOT, headers=headers, token=other).status == 201


def test_a_repetition_gets_the_saved_response_whatever_has_changed_since(service: RunningService) -> None:
    """A machine name that was unique then need not be unique now."""
    headers = {"Idempotency-Key": "k"}
    body = {"type": "Reboot", "targets": {"machines": ["db"]}}
    first = service.request("POST", "/v1/maintenances", body, headers=headers)
    service.request("PUT", "/v1/scopes/shop/machines/db", {})
    again = service.request("POST", "/v1/maintenances", body, headers=headers)
    assert (again.status, again.raw) == (201, first.raw)


def test_a_dry_run_ignores_the_key(service: RunningService) -> None:
    """It neither saves a response nor returns a saved one."""
    headers = {"Idempotency-Key": "k"}
    assert service.request("POST", "/v1/maintenances?dry_run=true", REBOOT, headers=headers).status == 200
    assert service.request("POST", "/v1/maintenances", REBOOT, headers=headers).status == 201
    assert service.request("POST", "/v1/maintenances?dry_run=true", REBOOT, headers=headers).json["id"] is None


@pytest.mark.parametrize("key", ["x" * 256, "a b"])
def test_a_key_is_printable_and_short(service: RunningService, key: str) -> None:
    """Any other key gets 400."""
    assert service.request("POST", "/v1/maintenances", REBOOT, headers={"Idempotency-Key": key}).status == 400


def test_twenty_requests_with_one_key_at_once_are_performed_once(service: RunningService) -> None:
    """One maintenance, and twenty times the same response."""
    headers = {"Idempotency-Key": "race"}
    with ThreadPoolExecutor(20) as pool:
        replies = list(
            pool.map(lambda _: service.request("POST", "/v1/maintenances", REBOOT, headers=headers), range(20))
        )
    assert {(reply.status, reply.raw) for reply in replies} == {(201, replies[0].raw)}
    assert len(service.get("/v1/maintenances")["items"]) == 1


def test_a_key_is_forgotten_after_a_day(service: RunningService) -> None:
    """After 24 hours it is a new key."""
    headers = {"Idempotency-Key": "old"}
    first = service.request("POST", "/v1/maintenances", REBOOT, headers=headers).json["id"]
    service.post("/v1/clock/advance", {"seconds": 23 * 3600})
    assert service.request("POST", "/v1/maintenances", REBOOT, headers=headers).json["id"] == first
    service.post("/v1/clock/advance", {"seconds": 3 * 3600})
    assert service.request("POST", "/v1/maintenances", REBOOT, headers=headers).json["id"] != first


# -- many requests at once


def approve_as(address: str, port: int, event: str) -> int:
    """Send a machine's StartRequests from its address and return the status."""
    body = json.dumps({"StartRequests": [{"EventId": event}]})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S, source_address=(address, 0))
    try:
        connection.request("POST", "/metadata/scheduledevents?api-version=2020-07-01", body, {"Metadata": "true"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_five_hundred_approvals_at_once_are_one_start() -> None:
    """In a scope with approval = all, each over HTTP: no error, one start."""
    addresses = [f"127.1.{n // 250}.{n % 250 + 1}" for n in range(500)]
    machines = "\n".join(
        f'[[machines]]\nscope = "big"\nname = "vm-{n}"\naddresses = ["{address}"]'
        for n, address in enumerate(addresses)
    )
    fleet = f'[[scopes]]\nname = "big"\nkind = "availability-set"\napproval = "all"\n{machines}\n'
    # A busy machine may need longer for all of them than a request may take to arrive, or wait for the writer.
    with running_service(fleet, guest_request_timeout=f"{PATIENCE_S:.0f}s") as service:
        service.guests.endpoint.max_queued_s = PATIENCE_S
        service.enable("big")
        made = service.post("/v1/maintenances", {"type": "Reboot", "targets": {"scope": "big"}}, 201)
        event = made["waves"][0]["events"][0]["id"]
        port = int(service.guests.listener.urls[0].rpartition(":")[2])
        with ThreadPoolExecutor(100) as pool:
            statuses = list(pool.map(lambda address: approve_as(address, port, event), addresses))
        assert statuses == [200] * 500
        service.post("/v1/clock/advance", {"seconds": 1})
        shown = service.get(f"/v1/events/{event}")
        assert (shown["status"], shown["started"]) == ("Started", "2030-01-01T00:00:00Z")
        assert len(shown["approved_by"]) == 500
        actions = [entry["action"] for entry in service.get(f"/v1/audit?event={event}&limit=500")["items"]]
        assert actions.count("event started") == 1
        assert {"published", "started"} <= {entry["what"] for entry in shown["timeline"]}


# -- the stream


class Listener:
    """A client of the stream."""

    def __init__(self, service: RunningService, last: int | None = None, token: str | None = None) -> None:
        address = urlsplit(service.url)
        self._connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {token or service.token}"}
        if last is not None:
            headers["Last-Event-ID"] = str(last)
        self._connection.request("GET", "/v1/stream", headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        assert self._answer.getheader("content-type", "").startswith("text/event-stream")
        self._answer.fp.readline()

    def read(self, count: int) -> list[tuple[int, dict[str, str]]]:
        found: list[tuple[int, dict[str, str]]] = []
        number = 0
        while len(found) < count:
            line = self._answer.fp.readline().decode().rstrip("\n")
            if line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("data: "):
                found.append((number, json.loads(line[6:])))
        return found

    def read_to_end(self) -> list[str]:
        """Return the data lines until the service ends the stream."""
        return [line.decode() for line in self._answer.fp if line.startswith(b"data: ")]

    def close(self) -> None:
        self._connection.close()


def test_the_stream_sends_every_change(service: RunningService) -> None:
    """As an audit entry, and after a reconnect from the last entry on."""
    listener = Listener(service)
    service.schedule("shop/web-0")
    seen = listener.read(2)
    listener.close()
    assert seen[0][1]["action"] == "maintenance submitted"
    service.schedule("shop/web-1")
    again = Listener(service, last=seen[0][0])
    assert again.read(1)[0] == seen[1]
    assert "maintenance submitted" in [entry["action"] for _, entry in again.read(2)]
    again.close()


def test_an_owners_stream_has_only_its_scopes(service: RunningService) -> None:
    """Changes of other scopes are left out."""
    service.enable("shop", "blog")
    listener = Listener(service, last=0, token=service.token_of("owner", "blog"))
    service.schedule("shop/web-0")
    service.schedule("blog/db")
    assert {entry["scope"] for _, entry in listener.read(2)} == {"blog"}
    listener.close()


def test_the_stream_of_a_revoked_token_ends(service: RunningService) -> None:
    """Nothing is sent after the revocation."""
    made = service.post("/v1/tokens", {"name": "ci", "role": "viewer"}, 201)
    listener = Listener(service, token=made["token"])
    service.request("DELETE", f"/v1/tokens/{made['id']}")
    assert listener.read_to_end() == []
    listener.close()


def test_the_body_of_a_large_wave_grows_with_its_events_only() -> None:
    """Each of a thousand events names ten of the events it waits for and counts the others."""
    machines = "\n".join(f'[[machines]]\nscope = "big"\nname = "vm-{n}"' for n in range(1_000))
    with running_service(f'[[scopes]]\nname = "big"\nkind = "availability-set"\n{machines}\n') as service:
        service.enable("big")
        reply = service.request("POST", "/v1/maintenances", {"type": "Preempt", "targets": {"scope": "big"}})
        assert reply.status == 201
        assert len(reply.raw) < 2_000_000
        events = reply.json["waves"][0]["events"]
        assert len(events) == 1_000
        wave = next(reason for reason in events[0]["waiting_for"] if reason["code"] == "wave")
        assert "999 other event(s)" in wave["message"]
        assert len(wave["events"]) == 10


def test_a_token_has_a_limit_of_streams(service: RunningService) -> None:
    """The next stream of the same token is refused until one is closed; another token's is not."""
    with ExitStack() as opened:
        for _ in range(MAX_STREAMS_PER_TOKEN):
            opened.enter_context(closing(Listener(service)))
        refused = service.request("GET", "/v1/stream")
        assert (refused.status, refused.code) == (503, "too_many_streams")
        opened.enter_context(closing(Listener(service, token=service.token_of("viewer"))))


def test_all_streams_together_have_a_limit() -> None:
    """Whatever tokens open them; a closed stream makes room."""

    async def open_streams() -> None:
        streams = Streams(MemoryStore(), max_streams=2)
        callers = [Identity(f"token {n}", "", Role.VIEWER, None, b"", "") for n in range(3)]
        _, close = await streams.open(callers[0], 0, lambda: True)
        await streams.open(callers[1], 0, lambda: True)
        with pytest.raises(TooManyStreams):
            await streams.open(callers[2], 0, lambda: True)
        close()
        await streams.open(callers[2], 0, lambda: True)

    asyncio.run(open_streams())


@pytest.mark.parametrize("last", ["x", "\xb2", "9" * 19])
def test_a_stream_begins_after_an_entry(service: RunningService, last: str) -> None:
    """What is not the id of an entry is refused."""
    assert service.request("GET", "/v1/stream", headers={"Last-Event-ID": last}).status == 400
