"""Bad input, limits, keys that make a request happen once, crowds, and the stream of changes."""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from forewarn.operator.api import stream
from tests.operator.api.house import House, house
from tests.support.waiting import PATIENCE_S

REBOOT = {"type": "Reboot", "targets": {"machines": ["shop/web-0"]}}


@pytest.fixture
def home() -> Iterator[House]:
    with house() as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/v1/maintenances", b"{", 400, "this is not JSON"),
        ("POST", "/v1/maintenances", b"\xff", 400, "this is not JSON"),
        ("POST", "/v1/maintenances", b'{"targets":' + b"[" * 100_000, 422, "targets: expected `object`"),
        ("POST", "/v1/maintenances", b"", 400, "body: it is missing"),
        ("POST", "/v1/fleet?prune=true", b"", 400, "body: it is missing"),
        ("POST", "/v1/maintenances", {}, 422, "missing required field `type`"),
        ("POST", "/v1/maintenances", {**REBOOT, "tpye": 1}, 422, "unknown field `tpye`"),
        ("POST", "/v1/maintenances", {**REBOOT, "duration_s": "1h"}, 422, "duration_s: expected `int`"),
        ("POST", "/v1/maintenances", {**REBOOT, "description": "x" * 1_025}, 422, "description"),
        ("POST", "/v1/maintenances", {**REBOOT, "not_before": "tomorrow"}, 422, "not_before"),
        ("POST", "/v1/maintenances", {**REBOOT, "not_before": "2030-01-01T00:00:00"}, 400, "has no zone"),
        ("POST", "/v1/maintenances", {**REBOOT, "targets": {}}, 400, "exactly one"),
        ("POST", "/v1/maintenances", {**REBOOT, "targets": {"scope": "shop", "hosts": ["a"]}}, 400, "exactly one"),
        ("POST", "/v1/maintenances", {**REBOOT, "emergency": True, "source": "User"}, 400, "emergency"),
        ("POST", "/v1/maintenances?dry_run=perhaps", REBOOT, 422, "dry_run"),
        ("GET", "/v1/events?limit=0", None, 422, "limit: expected `int` >= 1"),
        ("GET", "/v1/events?limit=501", None, 422, "limit: expected `int` <= 500"),
        ("GET", "/v1/events?limit=x", None, 422, "limit"),
        ("GET", "/v1/events?cursor=x", None, 400, "is not one of ours"),
        ("GET", "/v1/events?cursor=WyJ4Il0", None, 400, "is not one of ours"),
        ("GET", "/v1/events?colour=red", None, 422, "unknown field `colour`"),
        ("GET", "/v1/events?scope=a&scope=b", None, 400, "given twice"),
        ("GET", "/v1/events?machine=web-0", None, 400, "machine goes with a scope"),
        ("GET", "/v1/events?status=Running", None, 422, "status"),
        ("POST", "/v1/events/none/approve", {"a": 1}, 400, "takes no body"),
        ("POST", "/v1/events/none/approve", None, 404, "there is no event none"),
        ("PUT", "/v1/scopes/shop", {"kind": "heap"}, 422, "kind"),
        ("PUT", "/v1/scopes/-shop", {"kind": "standalone"}, 400, "is not a name"),
        ("PUT", "/v1/scopes/x", {"kind": "standalone", "minimum_notice_s": {"Reboot": 1}}, 400, "only be raised"),
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
def test_bad_input_is_told_what_to_change(
    home: House, method: str, path: str, body: object, status: int, says: str
) -> None:
    """The status, the place and the sentence; and nothing was done."""
    before = home.get("/v1/audit")
    reply = home.ask(method, path, body)
    assert (reply.status, says.lower() in reply.message.lower()) == (status, True), reply.raw
    assert home.get("/v1/audit") == before


def test_a_body_has_a_limit(home: House) -> None:
    """413, whether it says its size or not."""
    assert home.ask("POST", "/v1/maintenances", b" " * 1_100_000).status == 413
    place = urlsplit(home.url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=PATIENCE_S)
    headers = {"Authorization": f"Bearer {home.token}", "Transfer-Encoding": "chunked"}
    pieces = (b" " * 100_000 for _ in range(11))
    try:
        connection.request("POST", "/v1/maintenances", pieces, headers, encode_chunked=True)
    except OSError:
        pass  # it closed on us, as it may
    else:
        assert connection.getresponse().status == 413
    connection.close()
    assert home.get("/v1/maintenances")["items"] == []


def test_an_error_of_ours_says_nothing_of_its_inside(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """500, with a word about where to look; the inside is in the log."""
    monkeypatch.setattr(home.service.store, "scopes_page", lambda _: 1 / 0)
    broken = home.ask("GET", "/v1/scopes")
    assert (broken.status, broken.code) == (500, "internal")
    assert "division" not in broken.message


# -- once


def test_the_same_key_happens_once(home: House) -> None:
    """The same status and body, for every call that creates; nothing is done a second time."""
    home.enable("shop", "blog")
    for path, body, status in (
        ("/v1/maintenances", REBOOT, 201),
        ("/v1/scopes/blog/machines/db/restart", None, 202),
        ("/v1/fleet", {"scopes": [{"name": "new", "kind": "availability-set"}], "machines": []}, 200),
        ("/v1/tokens", {"name": "ci", "role": "viewer"}, 201),
    ):
        headers = {"Idempotency-Key": f"key-of-{path}"}
        first = home.ask("POST", path, body, headers=headers)
        audit = home.get("/v1/audit")
        second = home.ask("POST", path, body, headers=headers)
        assert first.status == status, first.raw
        assert (second.status, second.raw) == (first.status, first.raw), path
        assert home.get("/v1/audit") == audit


def test_a_token_made_under_a_key_is_kept_sealed_for_a_day(home: House) -> None:
    """Its secret works and is not in the database; after a day the key makes another one, and a revoked one stays revoked."""
    headers = {"Idempotency-Key": "k"}
    asked = {"name": "ci", "role": "viewer"}
    made = home.ask("POST", "/v1/tokens", asked, headers=headers).json
    assert home.ask("GET", "/v1/scopes", token=made["token"]).status == 200
    home.ask("DELETE", f"/v1/tokens/{made['id']}")
    home.post("/v1/clock/advance", {"seconds": 26 * 3600})
    other = home.ask("POST", "/v1/tokens", asked, headers=headers)
    assert other.status == 201
    assert other.json["token"] != made["token"]
    assert home.ask("GET", "/v1/scopes", token=made["token"]).status == 401
    for file in home.service.settings.state_dir.glob("forewarn.db*"):
        assert made["token"].encode() not in file.read_bytes()


def test_the_same_key_with_something_else_is_refused(home: House) -> None:
    """409; another caller's key is another key."""
    headers = {"Idempotency-Key": "k"}
    home.ask("POST", "/v1/maintenances", REBOOT, headers=headers)
    refused = home.ask("POST", "/v1/maintenances", {**REBOOT, "description": "x"}, headers=headers)
    assert (refused.status, refused.code) == (409, "idempotency_key_reused")
    other = home.token_of("operator")
    assert home.ask("POST", "/v1/maintenances", REBOOT, headers=headers, token=other).status == 201


def test_what_was_answered_is_answered_whatever_has_changed_since(home: House) -> None:
    """A name that was clear then need not be now."""
    headers = {"Idempotency-Key": "k"}
    asked = {"type": "Reboot", "targets": {"machines": ["db"]}}
    first = home.ask("POST", "/v1/maintenances", asked, headers=headers)
    home.ask("PUT", "/v1/scopes/shop/machines/db", {})
    again = home.ask("POST", "/v1/maintenances", asked, headers=headers)
    assert (again.status, again.raw) == (201, first.raw)


def test_a_dry_run_ignores_the_key(home: House) -> None:
    """It neither uses it up nor answers from it."""
    headers = {"Idempotency-Key": "k"}
    assert home.ask("POST", "/v1/maintenances?dry_run=true", REBOOT, headers=headers).status == 200
    assert home.ask("POST", "/v1/maintenances", REBOOT, headers=headers).status == 201
    assert home.ask("POST", "/v1/maintenances?dry_run=true", REBOOT, headers=headers).json["id"] is None


@pytest.mark.parametrize("key", ["x" * 256, "a b"])
def test_a_key_is_printable_and_short(home: House, key: str) -> None:
    """400 otherwise."""
    assert home.ask("POST", "/v1/maintenances", REBOOT, headers={"Idempotency-Key": key}).status == 400


def test_a_key_that_races_itself_happens_once(home: House) -> None:
    """Twenty at once: one maintenance, twenty times the same answer."""
    headers = {"Idempotency-Key": "race"}
    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda _: home.ask("POST", "/v1/maintenances", REBOOT, headers=headers), range(20)))
    assert {(reply.status, reply.raw) for reply in replies} == {(201, replies[0].raw)}
    assert len(home.get("/v1/maintenances")["items"]) == 1


def test_a_key_is_forgotten_after_a_day(home: House) -> None:
    """Kept for 24 hours; then it is a new one."""
    headers = {"Idempotency-Key": "old"}
    first = home.ask("POST", "/v1/maintenances", REBOOT, headers=headers).json["id"]
    home.post("/v1/clock/advance", {"seconds": 23 * 3600})
    assert home.ask("POST", "/v1/maintenances", REBOOT, headers=headers).json["id"] == first
    home.post("/v1/clock/advance", {"seconds": 3 * 3600})
    assert home.ask("POST", "/v1/maintenances", REBOOT, headers=headers).json["id"] != first


# -- crowds


def approve_as(address: str, port: int, event: str) -> int:
    """A machine's own StartRequests, from its own address; the status."""
    body = json.dumps({"StartRequests": [{"EventId": event}]})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S, source_address=(address, 0))
    try:
        connection.request("POST", "/metadata/scheduledevents?api-version=2020-07-01", body, {"Metadata": "true"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_five_hundred_approvals_at_once_are_one_start() -> None:
    """In one scope where each machine's own counts, every one over HTTP: no error, one start."""
    addresses = [f"127.1.{n // 250}.{n % 250 + 1}" for n in range(500)]
    machines = "\n".join(
        f'[[machines]]\nscope = "big"\nname = "vm-{n}"\naddresses = ["{address}"]'
        for n, address in enumerate(addresses)
    )
    fleet = f'[[scopes]]\nname = "big"\nkind = "availability-set"\napproval = "all"\n{machines}\n'
    with house(fleet) as home:
        # A busy machine may need longer for all of them than a request may wait for the writer.
        home.guests.endpoint.max_queued_s = PATIENCE_S
        home.enable("big")
        made = home.post("/v1/maintenances", {"type": "Reboot", "targets": {"scope": "big"}}, 201)
        event = made["waves"][0]["events"][0]["id"]
        port = int(home.guests.listener.urls[0].rpartition(":")[2])
        with ThreadPoolExecutor(100) as pool:
            statuses = list(pool.map(lambda address: approve_as(address, port, event), addresses))
        assert statuses == [200] * 500
        home.post("/v1/clock/advance", {"seconds": 1})
        told = home.get(f"/v1/events/{event}")
        assert (told["status"], told["started"]) == ("Started", "2030-01-01T00:00:00Z")
        assert len(told["approved_by"]) == 500
        actions = [entry["action"] for entry in home.get(f"/v1/audit?event={event}&limit=500")["items"]]
        assert actions.count("event started") == 1
        assert {"published", "started"} <= {entry["what"] for entry in told["timeline"]}


# -- the stream


class Listener:
    """Reads the stream in a thread; `entries` are what came, as (id, entry)."""

    def __init__(self, home: House, last: int | None = None, token: str | None = None) -> None:
        place = urlsplit(home.url)
        self._connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {token or home.token}"}
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

    def to_the_end(self) -> list[str]:
        """What is told until the service ends it."""
        return [line.decode() for line in self._answer.fp if line.startswith(b"data: ")]

    def close(self) -> None:
        self._connection.close()


def test_the_stream_tells_every_change(home: House) -> None:
    """As it happens, with the audit's entries, and from where one left off."""
    listener = Listener(home)
    home.schedule("shop/web-0")
    seen = listener.read(2)
    listener.close()
    assert seen[0][1]["action"] == "maintenance submitted"
    home.schedule("shop/web-1")
    again = Listener(home, last=seen[0][0])
    assert again.read(1)[0] == seen[1]
    assert "maintenance submitted" in [entry["action"] for _, entry in again.read(2)]
    again.close()


def test_an_owners_stream_is_of_its_scopes(home: House) -> None:
    """What happens elsewhere is not told."""
    home.enable("shop", "blog")
    listener = Listener(home, last=0, token=home.token_of("owner", "blog"))
    home.schedule("shop/web-0")
    home.schedule("blog/db")
    assert {entry["scope"] for _, entry in listener.read(2)} == {"blog"}
    listener.close()


def test_a_revoked_tokens_stream_ends(home: House) -> None:
    """Nothing that happens after its end is told."""
    made = home.post("/v1/tokens", {"name": "ci", "role": "viewer"}, 201)
    listener = Listener(home, token=made["token"])
    home.ask("DELETE", f"/v1/tokens/{made['id']}")
    assert listener.to_the_end() == []
    listener.close()


def test_a_wave_of_a_thousand_is_told_in_little() -> None:
    """What its events wait for is looked at once and named in part: it grows with the wave, not with its square."""
    machines = "\n".join(f'[[machines]]\nscope = "big"\nname = "vm-{n}"' for n in range(1_000))
    with house(f'[[scopes]]\nname = "big"\nkind = "availability-set"\n{machines}\n') as home:
        home.enable("big")
        reply = home.ask("POST", "/v1/maintenances", {"type": "Preempt", "targets": {"scope": "big"}})
        assert reply.status == 201
        assert len(reply.raw) < 2_000_000
        events = reply.json["waves"][0]["events"]
        assert len(events) == 1_000
        wave = next(reason for reason in events[0]["waiting_for"] if reason["code"] == "wave")
        assert "999 other event(s)" in wave["message"]
        assert len(wave["events"]) == 10


def test_streams_have_a_limit(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is told to come later, and a bad place to begin is refused."""
    monkeypatch.setattr(stream, "MAX_STREAMS", 1)
    listener = Listener(home)
    refused = home.ask("GET", "/v1/stream")
    assert (refused.status, refused.code) == (503, "too_many_streams")
    listener.close()
    for last in ("x", "\xb2"):
        assert home.ask("GET", "/v1/stream", headers={"Last-Event-ID": last}).status == 400
