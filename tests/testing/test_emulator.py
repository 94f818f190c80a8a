"""The emulator in this process: the real service with a movable clock."""

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
    """Run a service as `serve` does, with the emulator's fleet and clock; yield the URL of its endpoint."""
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
        with running(service) as (guest_server, _):
            yield guest_server.listener.urls[0]
    finally:
        service.close()


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(seed=1) as running_emulator:
        yield running_emulator


def test_a_reboot_from_notice_to_end(emulator: Emulator) -> None:
    """A guest sees an event with its full notice and approves it; it starts, is finished and disappears, without waiting."""
    event = emulator.schedule("Reboot", "vm-0", description="host update", duration_s=9)
    reply = send(emulator.endpoint)
    shown = reply.json["Events"][0]
    assert (shown["EventId"], shown["EventStatus"], shown["Resources"]) == (event.id, "Scheduled", ["vm-0"])
    assert shown["NotBefore"] == "Tue, 01 Jan 2030 00:15:00 GMT"
    assert (shown["Description"], shown["DurationInSeconds"]) == ("host update", 9)
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
    """An event does not start before its time, and everything due happens when the clock is moved."""
    event = emulator.schedule("Freeze", "vm-0")
    emulator.advance(minutes=14, seconds=59)
    assert send(emulator.endpoint).events == {event.id: "Scheduled"}
    assert emulator.advance(1) == START + timedelta(minutes=15)
    assert send(emulator.endpoint).events == {event.id: "Started"}
    emulator.advance(minutes=5)  # the duration of a simulated freeze
    assert send(emulator.endpoint).events == {}


def test_an_operator_approves_fails_finishes_and_cancels(emulator: Emulator) -> None:
    """A failed event stays Started until it is finished, and a cancelled one cannot be finished."""
    event = emulator.schedule("Redeploy", "vm-0", source="User")
    emulator.approve(event)
    assert emulator.status(event) == "Started"
    emulator.fail(event, "the new host failed")
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


def test_an_emergency_starts_at_once(emulator: Emulator) -> None:
    """The event has started when `schedule` returns."""
    event = emulator.schedule("Reboot", "vm-0", emergency=True)
    assert send(emulator.endpoint).events == {event.id: "Started"}


def test_every_type_is_possible() -> None:
    """The emulated scope accepts every event type. A Terminate removes the machine."""
    with Emulator(2, seed=1) as emulator:
        for type_ in ("Freeze", "Reboot", "Redeploy", "Preempt"):
            event = emulator.schedule(type_, "vm-1")
            emulator.approve(event)
            emulator.finish(event)
        event = emulator.schedule("Terminate", "vm-1")
        emulator.approve(event)
        emulator.finish(event)
        assert emulator.machine_names() == ["emulated/vm-0"]


def test_a_time_may_be_a_timedelta_or_a_datetime(emulator: Emulator) -> None:
    """A timedelta counts from now."""
    soon = emulator.schedule("Reboot", "vm-0", not_before=timedelta(hours=2))
    assert send(emulator.endpoint).json["Events"][0]["NotBefore"] == "Tue, 01 Jan 2030 02:00:00 GMT"
    emulator.cancel(soon)
    emulator.schedule("Reboot", "vm-0", not_before=START + timedelta(hours=3))
    assert send(emulator.endpoint).json["Events"][0]["NotBefore"] == "Tue, 01 Jan 2030 03:00:00 GMT"


def test_one_machine_is_every_caller(emulator: Emulator) -> None:
    """A guest at any address is vm-0."""
    for source in ("127.0.0.1", "127.0.0.77"):
        assert send(emulator.endpoint, source=source).status == 200
    assert [r.machine for r in emulator.requests()] == ["vm-0", "vm-0"]


def test_several_machines_have_addresses() -> None:
    """vm-i is 127.0.0.(i+1), in one of five update domains; other addresses are unknown."""
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


def test_a_fleet_file_defines_the_machines(tmp_path: Path) -> None:
    """It replaces the emulated scope. A name that several scopes have needs its scope."""
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


def test_a_fleet_may_be_a_path_as_text(tmp_path: Path) -> None:
    """A fleet and a number of machines cannot be combined."""
    file = tmp_path / "fleet.toml"
    file.write_text('[[scopes]]\nname = "s"\nkind = "availability-set"\n[[machines]]\nscope = "s"\nname = "web"\n')
    with Emulator(fleet=str(file)) as emulator:
        assert emulator.machine_names() == ["s/web"]
    with pytest.raises(InvalidSettings, match="machines: the fleet defines the machines"):
        Emulator(3, fleet=file)


def test_the_same_answers_as_the_service(tmp_path: Path) -> None:
    """For valid and invalid requests the emulator sends the same bytes as the service."""
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


def test_the_same_seed_gives_the_same_run() -> None:
    """The same seed gives the same ids and start and, with the same guests, the same trace, byte for byte."""

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
    """Only a seed fixes the start of the clock."""
    with Emulator() as emulator:
        assert abs(emulator.clock.now() - datetime.now(UTC)) < timedelta(minutes=5)


def test_a_scaled_clock_runs_and_can_be_moved() -> None:
    """The system clock cannot be moved."""
    with Emulator(clock="6000x") as fast:
        event = fast.schedule("Freeze", "vm-0")
        send(fast.endpoint)
        fast.advance(minutes=14)
        until(lambda: send(fast.endpoint, headers=METADATA).status == 200 and fast.status(event) != "Scheduled")
    with Emulator(clock="system") as real, pytest.raises(Refused, match="cannot be moved"):
        real.advance(1)


def test_settings_are_those_of_the_service() -> None:
    """`disable_after` is off by default, and settings are parsed as in a file."""
    with Emulator(seed=1) as emulator:
        emulator.advance(days=3)
        assert emulator.service.store.scopes()["emulated"].enabled
    with Emulator(seed=1, disable_after="24h") as emulator:
        assert send(emulator.endpoint).headers["etag"] == '"1"'
        emulator.advance(hours=25)
        assert not emulator.service.store.scopes()["emulated"].enabled
        assert send(emulator.endpoint).headers["etag"] == '"1-2"'


def test_the_rate_limit_is_off_by_default() -> None:
    """On a moved clock a guest sees many changes within a second, so only a test turns the limit on."""
    with Emulator() as emulator:
        assert {send(emulator.endpoint).status for _ in range(30)} == {200}
    with Emulator(rate_limit=1) as emulator:
        assert [send(emulator.endpoint).status for _ in range(2)] == [200, 429]


def test_scopes_may_be_disabled_at_the_start() -> None:
    """With `enabled=False` an event starts at once if no guest has polled, as in the service."""
    with Emulator(seed=1, enabled=False) as emulator:
        event = emulator.schedule("Reboot", "vm-0")
        assert emulator.status(event) == "Started"


def test_environment_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of a service on the same machine do not change a test."""
    monkeypatch.setenv("FOREWARN_RATE_LIMIT", "nonsense")
    monkeypatch.setenv("FOREWARN_STORE", "sqlite:/nowhere/forewarn.db")
    with Emulator() as emulator:
        assert send(emulator.endpoint).status == 200


def test_the_operators_port_is_the_next_one() -> None:
    """An occupied port is refused."""
    for _ in range(20):  # the next port may be in use
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
    pytest.fail("no two consecutive free ports in twenty tries")


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
    """The message names the argument."""
    with pytest.raises(InvalidSettings, match=message), Emulator(**arguments):  # type: ignore[arg-type]
        pass


def test_a_failed_start_leaves_no_thread(tmp_path: Path) -> None:
    """A wrong fleet file is refused, and no thread of the emulator remains."""
    before = set(threading.enumerate())
    (tmp_path / "fleet.toml").write_text("machines = 3")
    with pytest.raises(InvalidFleet), Emulator(fleet=tmp_path / "fleet.toml"):
        pass
    assert_ended(set(threading.enumerate()) - before)


def test_waiting_guests_do_not_delay_the_end() -> None:
    """The emulator ends while a long poll and a stalled answer are open."""
    before = set(threading.enumerate())
    with Emulator(seed=1, faults=[{"fault": "stall", "requests": 2}]) as emulator:
        guests = [
            threading.Thread(target=send_until_closed, args=(emulator.endpoint, headers))
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


def send_until_closed(endpoint: str, headers: dict[str, str]) -> None:
    """Send a request and ignore how it ends."""
    with suppress(OSError):
        send(endpoint, headers={**METADATA, **headers}, timeout_s=60)


def test_unknown_types_and_sources_are_refused(emulator: Emulator) -> None:
    """The message lists the known ones."""
    with pytest.raises(Invalid, match="type: 'Explode' is not one of Freeze, Reboot"):
        emulator.schedule("Explode", "vm-0")
    with pytest.raises(Invalid, match="source: 'Martian'"):
        emulator.schedule("Reboot", "vm-0", source="Martian")
