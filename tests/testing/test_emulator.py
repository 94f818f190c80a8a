"""The emulator in this process: the service itself, a clock to move, a log of what guests did."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from forewarn.app.server import running
from forewarn.app.service import Service
from forewarn.core.errors import Invalid, InvalidFleet, InvalidSettings, Refused
from forewarn.service.clock import ManualClock
from forewarn.service.settings import load
from forewarn.testing.default_machines import default_fleet
from forewarn.testing.emulator import OPERATOR, Emulator
from forewarn.testing.emulator_settings import START
from forewarn.testing.request_log import MAX_BODY_BYTES, MAX_REQUESTS, MAX_TIMELINE, RequestLog
from tests.support.waiting import PATIENCE_S, until
from tests.testing.http_guest import DOCUMENT, METADATA, approve, send, send_raw

FLEET = """
[[scopes]]
name = "shop"
kind = "cloud-service"
[[scopes]]
name = "blog"
kind = "standalone"
[[machines]]
scope = "shop"
name = "web"
addresses = ["127.0.0.1"]
[[machines]]
scope = "blog"
name = "web"
addresses = ["127.0.0.2"]
"""


@contextmanager
def plain_service(folder: Path) -> Iterator[str]:
    """The service as `serve` wires it, with the emulator's fleet and clock: where its guests ask."""
    flags = {
        "store": "memory:",
        "guest": "127.0.0.1:0",
        "operator": "127.0.0.1:0",
        "state_dir": str(folder),
        "rate_limit": "0",
        "every_caller": "emulated/vm-0",
    }
    service = Service(load(flags, {}), clock=ManualClock(START))
    service.control.apply_fleet(default_fleet(1), OPERATOR)
    service.control.enable("emulated", OPERATOR)
    try:
        with running(service) as (guests, _):
            yield guests.listener.urls[0]
    finally:
        service.close()


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(seed=1) as made:
        yield made


def test_a_reboot_from_notice_to_end(emulator: Emulator) -> None:
    """An event is seen with its full notice, approved, started, finished and gone, without a second of waiting."""
    event = emulator.schedule("Reboot", "vm-0", description="host update", duration_s=9)
    reply = send(emulator.endpoint)
    told = reply.json["Events"][0]
    assert (told["EventId"], told["EventStatus"], told["Resources"]) == (event.id, "Scheduled", ["vm-0"])
    assert told["NotBefore"] == "Tue, 01 Jan 2030 00:15:00 GMT"
    assert (told["Description"], told["DurationInSeconds"]) == ("host update", 9)
    assert reply.headers["date"] == "Tue, 01 Jan 2030 00:00:00 GMT"
    emulator.wait_seen(event, by="vm-0")
    emulator.advance(minutes=2)
    assert approve(emulator.endpoint, event.id).status == 200
    emulator.expect_approval(event, within_s=5, times=1)
    assert emulator.status(event) == "Started"
    emulator.finish(event)
    assert send(emulator.endpoint).json["Events"] == []
    assert emulator.status(event) == "Completed"


def test_notice_runs_out_on_the_clock(emulator: Emulator) -> None:
    """Nothing starts before its time, and what is due on the way happens when the clock is moved."""
    event = emulator.schedule("Freeze", "vm-0")
    emulator.advance(minutes=14, seconds=59)
    assert send(emulator.endpoint).events == {event.id: "Scheduled"}
    assert emulator.advance(1) == START + timedelta(minutes=15)
    assert send(emulator.endpoint).events == {event.id: "Started"}
    emulator.advance(minutes=5)  # what a simulated freeze takes
    assert send(emulator.endpoint).events == {}


def test_cancel_fail_and_approve(emulator: Emulator) -> None:
    """The operator's other words: approve for everybody, fail, finish after all, cancel."""
    event = emulator.schedule("Redeploy", "vm-0", source="User")
    emulator.approve(event)
    assert emulator.status(event) == "Started"
    emulator.fail(event, "the new host burns")
    assert emulator.status(event) == "Started"
    emulator.advance(hours=1)
    assert emulator.status(event) == "Started"
    emulator.finish(event)
    assert emulator.status(event) == "Completed"
    other = emulator.schedule("Preempt", "vm-0")
    emulator.cancel(other.id)
    assert emulator.status(other) == "Cancelled"
    with pytest.raises(Refused, match="is Cancelled, not Started"):
        emulator.finish(other)


def test_started_without_notice(emulator: Emulator) -> None:
    """An emergency has started when `schedule` returns."""
    event = emulator.schedule("Reboot", "vm-0", emergency=True)
    assert send(emulator.endpoint).events == {event.id: "Started"}


def test_every_type_is_possible() -> None:
    """The emulated scope takes each type; the end of a Terminate takes the machine with it."""
    with Emulator(2, seed=1) as emulator:
        for type_ in ("Freeze", "Reboot", "Redeploy", "Preempt"):
            event = emulator.schedule(type_, "vm-1")
            emulator.approve(event)
            emulator.finish(event)
        event = emulator.schedule("Terminate", "vm-1")
        emulator.approve(event)
        emulator.finish(event)
        assert emulator.machine_names() == ["emulated/vm-0"]


def test_moments_may_count_from_now(emulator: Emulator) -> None:
    """A timedelta is as long from now; a moment is taken as it is."""
    soon = emulator.schedule("Reboot", "vm-0", not_before=timedelta(hours=2))
    assert send(emulator.endpoint).json["Events"][0]["NotBefore"] == "Tue, 01 Jan 2030 02:00:00 GMT"
    emulator.cancel(soon)
    emulator.schedule("Reboot", "vm-0", not_before=START + timedelta(hours=3))
    assert send(emulator.endpoint).json["Events"][0]["NotBefore"] == "Tue, 01 Jan 2030 03:00:00 GMT"


def test_one_machine_is_every_caller(emulator: Emulator) -> None:
    """Whatever address a guest has, it is vm-0."""
    for source in ("127.0.0.1", "127.0.0.77"):
        assert send(emulator.endpoint, source=source).status == 200
    assert [r.machine for r in emulator.requests()] == ["vm-0", "vm-0"]


def test_several_machines_have_addresses() -> None:
    """vm-i is 127.0.0.(i+1), each in an update domain of its own up to five; others are nobody."""
    with Emulator(6, seed=1) as emulator:
        for source, name in (("127.0.0.1", "vm-0"), ("127.0.0.6", "vm-5")):
            path = "/metadata/instance/compute/name?api-version=2020-07-01&format=text"
            assert send(emulator.endpoint, path=path, source=source).raw.decode() == name
        assert send(emulator.endpoint, source="127.0.0.7").status == 404
        scheduled = emulator.schedule("Reboot", "vm-0", "vm-1", "vm-5")
        assert len(scheduled.event_ids) == 2  # vm-0 and vm-5 share update domain 0
        send(emulator.endpoint, source="127.0.0.2")
        emulator.wait_seen(scheduled, by="vm-1", within_s=0)
        with pytest.raises(AssertionError, match="vm-5 has not seen"):
            emulator.wait_seen(scheduled, by="vm-5", within_s=0)


def test_a_fleet_of_ones_own(tmp_path: Path) -> None:
    """A fleet file replaces the emulated scope; where a name is not unique its scope is said too."""
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    with Emulator(fleet=path, seed=1) as emulator:
        assert emulator.machine_names() == ["blog/web", "shop/web"]
        event = emulator.schedule("Reboot", "blog/web")
        assert send(emulator.endpoint, source="127.0.0.1").events == {}
        assert send(emulator.endpoint, source="127.0.0.2").events == {event.id: "Scheduled"}
        emulator.wait_seen(event, by="blog/web", within_s=0)
        with pytest.raises(AssertionError):
            emulator.wait_seen(event, by="shop/web", within_s=0)


def test_a_fleet_file_by_its_name(tmp_path: Path) -> None:
    """A text is a path; beside a fleet no number of machines is taken."""
    file = tmp_path / "fleet.toml"
    file.write_text('[[scopes]]\nname = "s"\nkind = "availability-set"\n[[machines]]\nscope = "s"\nname = "web"\n')
    with Emulator(fleet=str(file)) as emulator:
        assert emulator.machine_names() == ["s/web"]
    with pytest.raises(InvalidSettings, match="machines: the fleet defines the machines"):
        Emulator(3, fleet=file)


def test_the_same_answers_as_the_service(tmp_path: Path) -> None:
    """Byte for byte: for well-formed and malformed requests the emulator answers what the service answers."""
    heads = [
        b"GET %b HTTP/1.1\r\nHost: x\r\nMetadata: true\r\nConnection: close\r\n\r\n",
        b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\nConnection: close\r\n\r\n",
        b"HEAD %b HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\nConnection: close\r\n\r\n",
        b"GET %b HTTP/1.0\r\nMetadata: true\r\n\r\n",
        b'GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\nIf-None-Match: "1"\r\nConnection: close\r\n\r\n',
        b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
        b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"DELETE %b HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\nConnection: close\r\n\r\n",
        b"NONSENSE %b\r\n\r\n",
    ]
    requests = [head % DOCUMENT.encode() for head in heads]
    with Emulator(seed=1) as emulator, plain_service(tmp_path) as url:
        for request in (*requests, *requests):
            assert send_raw(emulator.endpoint, request) == send_raw(url, request), request
        assert len(emulator.requests()) == 2 * len(requests)


# -- settings


def test_seeds_make_runs_equal() -> None:
    """The same seed gives the same ids, the same start and, from the same guests, the same trace to the byte."""

    def run(seed: int | None) -> tuple[str, bytes]:
        faults = [{"fault": "status", "status": 503, "probability": 0.5}]
        with Emulator(2, seed=seed, faults=faults) as emulator:
            received = b""
            event = emulator.schedule("Reboot", "vm-0", "vm-1")
            for number in range(20):
                reply = send(emulator.endpoint, source=f"127.0.0.{1 + number % 2}")
                received += b"%d %b %b\n" % (reply.status, reply.headers["date"].encode(), reply.raw)
                emulator.advance(seconds=30)
            approve(emulator.endpoint, event.id)
            return emulator.trace(), received

    assert run(7) == run(7)
    assert run(7) != run(8)
    assert run(None)[1] != run(None)[1]
    assert {" 200" in run(7)[0], " 503" in run(7)[0]} == {True}


def test_a_manual_clock_without_a_seed_starts_now() -> None:
    """Only a seed fixes the start."""
    with Emulator() as emulator:
        assert abs(emulator.clock.now() - datetime.now(UTC)) < timedelta(minutes=5)


def test_a_clock_that_runs(emulator: Emulator) -> None:
    """A rate makes time pass by itself, and it can still be moved; the system's clock cannot."""
    with Emulator(clock="6000x") as fast:
        event = fast.schedule("Freeze", "vm-0")
        send(fast.endpoint)
        fast.advance(minutes=14)
        until(lambda: send(fast.endpoint, headers=METADATA).status == 200 and fast.status(event) != "Scheduled")
    with Emulator(clock="system") as real, pytest.raises(Refused, match="cannot be moved"):
        real.advance(1)


def test_settings_are_the_services() -> None:
    """`disable_after` is off unless it is asked for; other settings are read as in a file."""
    with Emulator(seed=1) as emulator:
        emulator.advance(days=3)
        assert emulator.service.store.scopes()["emulated"].enabled
    with Emulator(seed=1, disable_after="24h") as emulator:
        assert send(emulator.endpoint).headers["etag"] == '"1"'
        emulator.advance(hours=25)
        assert not emulator.service.store.scopes()["emulated"].enabled
        assert send(emulator.endpoint).headers["etag"] == '"1-2"'


def test_requests_are_limited_where_it_is_asked_for() -> None:
    """A guest may hear of many changes in a second of a moved clock: the service's limit is off until a test wants it."""
    with Emulator() as emulator:
        assert {send(emulator.endpoint).status for _ in range(30)} == {200}
    with Emulator(rate_limit=1) as emulator:
        assert [send(emulator.endpoint).status for _ in range(2)] == [200, 429]


def test_a_scope_may_wait_for_its_first_poll() -> None:
    """With `enabled=False` an event in a scope that nobody has asked for starts at once, as in the service."""
    with Emulator(seed=1, enabled=False) as emulator:
        event = emulator.schedule("Reboot", "vm-0")
        assert emulator.status(event) == "Started"


def test_the_environment_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set for a service on this machine does not change a test."""
    monkeypatch.setenv("FOREWARN_RATE_LIMIT", "nonsense")
    monkeypatch.setenv("FOREWARN_STORE", "sqlite:/nowhere/forewarn.db")
    with Emulator() as emulator:
        assert send(emulator.endpoint).status == 200


def test_ports_are_neighbours() -> None:
    """The operators' port is the one after the guests'; an occupied one is refused with a sentence."""
    for _ in range(20):  # two free neighbours are not found at once
        with Emulator() as other:
            port = int(other.endpoint.rpartition(":")[2])
        try:
            with Emulator(port=port) as emulator:
                assert emulator.endpoint == f"http://127.0.0.1:{port}"
                assert emulator.operator_url == f"http://127.0.0.1:{port + 1}"
                with pytest.raises(InvalidSettings, match="cannot listen"), Emulator(port=port):
                    pass
            return
        except InvalidSettings:
            continue
    pytest.fail("no two free ports in twenty tries")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"machines": 0}, "machines: 0"),
        ({"machines": 251}, "251 is not from 1 to 250"),
        ({"port": 65_535}, "port: 65535"),
        ({"clock": "sundial"}, "clock: .*sundial"),
        ({"store": "sqlite:x"}, "store: an emulator has its own"),
        ({"token_free": False}, "token_free: an emulator has its own"),
        ({"no_such": 1}, "no-such: unknown setting"),
        ({"faults": [{"fault": "flood"}]}, "fault 1: fault: 'flood' is not one of"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    """Each with a sentence that names what was wrong."""
    with pytest.raises(InvalidSettings, match=message), Emulator(**arguments):  # type: ignore[arg-type]
        pass


def test_what_failed_to_start_leaves_nothing_behind(tmp_path: Path) -> None:
    """A wrong fleet file is refused, and no thread of the emulator is left."""
    before = set(threading.enumerate())
    (tmp_path / "fleet.toml").write_text("machines = 3")
    with pytest.raises(InvalidFleet), Emulator(fleet=tmp_path / "fleet.toml"):
        pass
    assert_ended(set(threading.enumerate()) - before)


def test_an_emulator_ends_whatever_its_guests_do() -> None:
    """Open connections, long polls and stalled answers do not keep it."""
    before = set(threading.enumerate())
    with Emulator(seed=1, faults=[{"fault": "stall", "requests": 2}]) as emulator:
        guests = [
            threading.Thread(target=hopeless, args=(emulator.endpoint, headers))
            for headers in ({"If-None-Match": '"1"', "Prefer": "wait=60"}, {})
        ]
        for number, guest in enumerate(guests, 1):
            guest.start()
            assert emulator.log.wait(lambda requests, n=number: len(requests) >= n or None, PATIENCE_S)  # type: ignore[misc]
    assert_ended(set(threading.enumerate()) - before)


def assert_ended(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), thread


def hopeless(endpoint: str, headers: dict[str, str]) -> None:
    """A guest that does not mind how its request ends."""
    with suppress(OSError):
        send(endpoint, headers={**METADATA, **headers}, timeout_s=60)


# -- scheduling wrongly


def test_wrong_words_are_refused(emulator: Emulator) -> None:
    """A type that does not exist names those that do."""
    with pytest.raises(Invalid, match="type: 'Explode' is not one of Freeze, Reboot"):
        emulator.schedule("Explode", "vm-0")
    with pytest.raises(Invalid, match="source: 'Martian'"):
        emulator.schedule("Reboot", "vm-0", source="Martian")


# -- the log


def test_the_log_has_everything(emulator: Emulator) -> None:
    """Number, both clocks, machine, method, target, headers, body, status, document and approvals of each request."""
    event = emulator.schedule("Reboot", "vm-0")
    send(emulator.endpoint, headers={**METADATA, "X-Mine": "yes"})
    emulator.advance(minutes=1)
    approve(emulator.endpoint, event.id.lower())
    send(emulator.endpoint, path="/nowhere")
    first, second, third = emulator.requests()
    assert [first.number, second.number, third.number] == [1, 2, 3]
    assert [first.at, second.at] == [START, START + timedelta(minutes=1)]
    assert 0 < first.at_s <= (first.answered_s or 0) <= second.at_s
    assert (first.scope, first.machine, first.method, first.target) == ("emulated", "vm-0", "GET", DOCUMENT)
    assert (first.header("x-mine"), first.header("Metadata"), first.header("absent")) == ("yes", "true", None)
    assert (first.status, first.incarnation, first.events) == (200, 2, ((event.id, "Scheduled"),))
    assert (second.method, second.approves, second.status) == ("POST", (event.id,), 200)
    assert b"StartRequests" in second.body
    assert (third.status, third.incarnation, third.events) == (404, None, ())


def test_the_log_can_be_asked(emulator: Emulator) -> None:
    """For a method, an event, and what came after a request."""
    event = emulator.schedule("Reboot", "vm-0")
    send(emulator.endpoint)
    approve(emulator.endpoint, event.id)
    send(emulator.endpoint, path="/metadata/versions")
    assert [r.number for r in emulator.requests(method="POST")] == [2]
    assert [r.number for r in emulator.requests(event=event)] == [1, 2]
    assert [r.number for r in emulator.requests(since=1)] == [2, 3]


def test_what_a_guest_says_is_shown_as_text() -> None:
    """What a terminal would obey is written out."""
    log = RequestLog(lambda: START)
    log.add_request(scope="", machine="", method="GET", target="/\x9b2J", headers=(), body=b"")
    assert log.trace() == "+0s #1 unknown GET /\\x9b2J -> no answer yet\n"


def test_what_cannot_be_read_is_logged_too(emulator: Emulator) -> None:
    """A request that is none has no method, and its status."""
    send_raw(emulator.endpoint, b"\x00\x01\r\n\r\n")
    (asked,) = emulator.requests()
    assert (asked.method, asked.status, asked.machine) == ("", 400, "vm-0")


def test_requests_on_one_connection_are_each_logged(emulator: Emulator) -> None:
    """Pipelined and repeated: the lane of remembered requests hides nothing."""
    one = b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\n\r\n" % DOCUMENT.encode()
    last = one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert send_raw(emulator.endpoint, one + one + one + last).count(b"HTTP/1.1 200 OK") == 4
    assert [r.number for r in emulator.requests()] == [1, 2, 3, 4]


def test_a_long_poll_shows_while_it_waits(emulator: Emulator) -> None:
    """It is in the log from its beginning, without a status until it is answered."""
    replies = []
    headers = {**METADATA, "If-None-Match": '"1"', "Prefer": "wait=30"}
    guest = threading.Thread(
        target=lambda: replies.append(send(emulator.endpoint, headers=headers, timeout_s=PATIENCE_S))
    )
    guest.start()
    asked = emulator.log.wait(lambda requests: requests[0] if requests else None, PATIENCE_S)
    assert asked is not None
    assert asked.status is None
    assert "no answer yet" in str(asked)
    event = emulator.schedule("Reboot", "vm-0")
    assert emulator.wait_seen(event).number == 1
    guest.join(PATIENCE_S)
    assert replies[0].events == {event.id: "Scheduled"}


def test_the_log_is_bounded(emulator: Emulator) -> None:
    """Of bodies the beginning is kept, of requests the latest, of the timeline the end."""
    send(emulator.endpoint, "POST", body="x" * 2 * MAX_BODY_BYTES)
    assert len(emulator.requests()[0].body) == MAX_BODY_BYTES
    log = RequestLog(lambda: START)
    for _ in range(MAX_REQUESTS + 5):
        log.add_request(scope="", machine="", method="GET", target="/", headers=(), body=b"")
    assert [log.requests()[0].number, log.requests()[-1].number] == [6, MAX_REQUESTS + 5]
    assert len(log.timeline()) == MAX_TIMELINE + 1
    assert log.timeline()[0] == f"… {MAX_REQUESTS + 5 - MAX_TIMELINE} earlier entries"
