"""The emulator in this process: the real service with a movable clock."""

import asyncio
import inspect
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from forewarn.app import server
from forewarn.app.server import running
from forewarn.app.service import Service
from forewarn.core.errors import Invalid, InvalidFleet, InvalidSettings, NotFound, Refused
from forewarn.core.model import UNFINISHED, EventType, HostMode, MaintenanceRequest, Targets
from forewarn.service.clock import ManualClock
from forewarn.service.settings import load
from forewarn.service.ticker import Ticker
from forewarn.store import MaintenanceQuery
from forewarn.testing.default_machines import default_fleet
from forewarn.testing.durations import Duration
from forewarn.testing.emulator import OPERATOR, Emulator
from forewarn.testing.emulator_settings import ARGUMENTS, START
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


def test_a_cycle_is_complete_before_its_ticker_loop_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the loop may not have run yet when the emulator says that it is ready; `/readyz` asks for a cycle."""
    monkeypatch.setattr(Ticker, "run", lambda ticker: ticker._stopping.wait())
    with Emulator() as emulator:
        assert emulator.service.ticker.cycled_at_s is not None


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
        # In one piece, so that no second passes between the two.
        request = f"GET {DOCUMENT} HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\n"
        answers = send_raw(emulator.endpoint, f"{request}\r\n{request}Connection: close\r\n\r\n".encode())
        assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"429"]


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
        ({"machines": "3"}, "'3' is not from 1 to 250"),
        ({"port": "80"}, "port: '80' is not from 1 to"),
        ({"port": 65_535}, "port: 65535"),
        ({"clock": "sundial"}, "clock: .*sundial"),
        ({"store": "sqlite:x"}, "store: an emulator has its own"),
        ({"token_free": False}, "token_free: an emulator has its own"),
        ({"machine": 1}, "machine: an emulator has no such argument: use machines, fleet, clock, .*, rate_limit"),
        ({"disable_after": -1}, "disable_after: -1 is not a duration"),
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


def test_the_listener_for_operators_may_begin_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine its thread may begin so late; then it ends at once, without an error."""
    ended = threading.Event()
    readable = server._readable

    def late(*sockets: Any) -> set[int]:
        assert ended.wait(PATIENCE_S)
        return readable(*sockets)

    monkeypatch.setattr(server, "_readable", late)
    before = set(threading.enumerate())
    with Emulator():
        threads = set(threading.enumerate()) - before
    ended.set()
    assert_ended(threads)  # pytest reports an error of a thread


def assert_ended(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), thread


def send_until_closed(endpoint: str, headers: dict[str, str]) -> None:
    """Send a request and ignore how it ends."""
    with suppress(OSError):
        send(endpoint, headers={**METADATA, **headers}, timeout_s=60)


def test_types_and_sources_may_be_in_any_case(emulator: Emulator) -> None:
    """Unknown ones are refused, and the message lists the known ones."""
    emulator.cancel(emulator.schedule("reDEPLOY", "vm-0", source="user", on_failure="HOLD"))
    event = emulator.schedule("reboot", "vm-0")
    shown = send(emulator.endpoint).json["Events"][0]
    assert (shown["EventId"], shown["EventType"], shown["EventSource"]) == (event.id, "Reboot", "Platform")
    emulator.wait_seen(event, status="scheduled", within_s=0)
    with pytest.raises(Invalid, match="status: 'seen' is not one of Planned, Scheduled"):
        emulator.wait_seen(event, status="seen", within_s=0)
    with pytest.raises(Invalid, match="type: 'Explode' is not one of Freeze, Reboot"):
        emulator.schedule("Explode", "vm-0")
    with pytest.raises(Invalid, match="source: 'Martian'"):
        emulator.schedule("Reboot", "vm-0", source="Martian")


@pytest.mark.parametrize("two_hours", ["2h", 7_200, 7_200.0, timedelta(hours=2)])
def test_durations_may_have_any_form(two_hours: Duration) -> None:
    """Text, a number of seconds and a timedelta mean the same in every call, setting and fault."""
    with Emulator(seed=1, disable_after=two_hours, faults=[{"fault": "cut", "after": two_hours}]) as emulator:
        assert emulator.service.settings.disable_after_s == 7_200
        assert emulator.faults[0].after_s == 7_200
        event = emulator.schedule("Reboot", "vm-0", not_before=two_hours, earliest=two_hours, duration_s=two_hours)
        shown = send(emulator.endpoint).json["Events"][0]
        assert (shown["NotBefore"], shown["DurationInSeconds"]) == ("Tue, 01 Jan 2030 02:00:00 GMT", 7_200)
        emulator.wait_seen(event, within_s=two_hours)
        emulator.expect_poll(since=0, within_s=two_hours)
        approve(emulator.endpoint, event.id)
        emulator.expect_approval(event, within_s=two_hours)
        assert emulator.advance(two_hours) == START + timedelta(hours=2)
        assert emulator.status(event) == "Started"


@pytest.mark.parametrize("wrong", ["soon", -1, True, None, timedelta(seconds=-1), "5"])
def test_wrong_durations_are_refused(emulator: Emulator, wrong: Any) -> None:
    """The message has the argument and the forms that a duration may have."""
    event = emulator.schedule("Reboot", "vm-0")
    for name, call in (
        ("advance", emulator.advance),
        ("within_s", partial(emulator.expect_approval, event)),
    ):
        with pytest.raises(Invalid, match=rf'{name}: .* is not a duration: write it like "15m"'):
            call(wrong)


@pytest.mark.parametrize("clock", ["system", "60x"])
def test_not_before_may_be_the_notice_while_the_clock_moves(clock: str) -> None:
    """The duration is counted from the same moment as the notice."""
    with Emulator(clock=clock) as emulator:
        event, _ = emulator.service.control.event(emulator.schedule("Reboot", "vm-0", not_before="15m").id)
        assert event.not_before is not None
        assert event.published is not None
        assert event.not_before - event.published >= timedelta(minutes=15)


def test_not_before_cannot_shorten_the_notice(emulator: Emulator) -> None:
    """The message says how much notice there is, and how to get less. Nothing is scheduled."""
    for not_before in ("5m", START + timedelta(minutes=5)):
        with pytest.raises(Invalid, match=r'5m from now, but .* get 15m of notice before a Reboot.* write notice="5m"'):
            emulator.schedule("Reboot", "vm-0", not_before=not_before)
    assert send(emulator.endpoint).events == {}
    emulator.schedule("Reboot", "vm-0", not_before="15m")
    with Emulator(enabled=False) as unpolled:  # the minimum notice is promised only to machines that poll
        unpolled.schedule("Reboot", "vm-0", not_before="5m")


def test_notice_may_be_short(emulator: Emulator) -> None:
    """`notice` is the time until NotBefore, for this maintenance alone."""
    event = emulator.schedule("Reboot", "vm-0", notice="90s")
    shown = send(emulator.endpoint)
    assert shown.json["Events"][0]["NotBefore"] == "Tue, 01 Jan 2030 00:01:30 GMT"
    assert shown.json["DocumentIncarnation"] == 2
    emulator.advance("89s")
    assert emulator.status(event) == "Scheduled"
    emulator.advance("1s")
    assert emulator.status(event) == "Started"
    emulator.finish(event)
    emulator.schedule("Reboot", "vm-0")
    assert send(emulator.endpoint).json["Events"][0]["NotBefore"] == "Tue, 01 Jan 2030 00:16:30 GMT"


def test_an_emulator_is_used_while_it_runs() -> None:
    """Before and after that a call says so. The log can still be read."""
    emulator = Emulator()
    with pytest.raises(Refused, match="has not started: use it inside `with Emulator"):
        emulator.schedule("Reboot", "vm-0")
    with emulator:
        event = emulator.schedule("Reboot", "vm-0")
        send(emulator.endpoint)
    uses: list[Callable[[], object]] = [
        lambda: emulator.endpoint,
        lambda: emulator.environment,
        lambda: emulator.advance("1m"),
        lambda: emulator.status(event),
        lambda: emulator.expect_poll(since=0),
        lambda: emulator.set_faults([]),
        emulator.reset,
    ]
    for use in uses:
        with pytest.raises(Refused, match="the emulator has ended"):
            use()
    assert len(emulator.requests()) == 1
    assert "event published" in emulator.timeline()


def test_waiting_in_an_event_loop_is_refused(emulator: Emulator) -> None:
    """The message shows how to wait in a thread. Without a wait an expectation is checked at once."""
    event = emulator.schedule("Reboot", "vm-0")

    async def check() -> None:
        for name in ("wait_seen", "expect_approval", "expect_poll"):
            with pytest.raises(Refused, match=rf"`await asyncio\.to_thread\(scheduled_events\.{name}, …\)`"):
                getattr(emulator, name)(event) if name != "expect_poll" else emulator.expect_poll()
        with pytest.raises(Refused, match="expect_no_approval waits"):
            emulator.expect_no_approval(event, "1s")
        emulator.expect_no_approval(event)
        guest = asyncio.create_task(asyncio.to_thread(send, emulator.endpoint))
        await asyncio.to_thread(emulator.wait_seen, event, by="vm-0", within_s=PATIENCE_S)
        await guest

    asyncio.run(check())


# -- a URL for each machine


def test_each_machine_has_a_url_of_its_own() -> None:
    """A caller at that URL is that machine, from whatever address it comes. A removed machine is unknown there."""
    with Emulator(3, seed=1) as emulator:
        path = "/metadata/instance/compute/name?api-version=2020-07-01&format=text"
        for name in ("vm-0", "vm-1", "emulated/vm-2"):
            assert send(emulator.endpoint_of(name), path=path).raw.decode() == name.rpartition("/")[2]
        assert send(emulator.endpoint_of("vm-1"), path=path, source="127.0.0.77").raw == b"vm-1"
        assert emulator.endpoint_of("vm-0") == emulator.endpoint
        event = emulator.schedule("Terminate", "vm-2")
        assert approve(emulator.endpoint_of("vm-2"), event.id).status == 200
        emulator.expect_approval(event, by="vm-2", within_s=0)
        emulator.finish(event)
        assert send(f"http://127.0.0.3:{urlsplit(emulator.endpoints['emulated/vm-2']).port}").status == 404
        with pytest.raises(NotFound, match="there is no machine 'vm-9': there are emulated/vm-0"):
            emulator.endpoint_of("vm-9")
        with pytest.raises(NotFound, match="there is no machine 'vm-9': there are emulated/vm-0"):
            emulator.schedule("Reboot", "vm-9")
    with Emulator() as alone:
        assert alone.endpoint_of("vm-0") == alone.endpoint


def test_urls_of_machines_use_the_given_port() -> None:
    """With a port, vm-1 is at its own address and that port; without loopback addresses or with `guest` there are no URLs."""
    for _ in range(20):  # a port may be in use
        with Emulator() as other:
            port = int(other.endpoint.rpartition(":")[2])
        try:
            with Emulator(2, port=port) as emulator:
                assert emulator.endpoint_of("vm-1") == f"http://127.0.0.2:{port}"
                break
        except InvalidSettings:
            continue
    else:
        pytest.fail("no two consecutive free ports in twenty tries")
    with (
        Emulator(2, guest="127.0.0.1:0") as emulator,
        pytest.raises(Refused, match="emulated/vm-1 has no URL of its own"),
    ):
        emulator.endpoint_of("vm-1")


# -- reset


def test_a_reset_ends_everything_and_keeps_guests_connected() -> None:
    """Events end, machines, faults and rules are those of the start, and the log is empty. A long poll stays in the log."""
    with Emulator(2, seed=1, faults=[{"fault": "status", "status": 410, "requests": 1, "machine": "vm-1"}]) as emulator:
        assert send(emulator.endpoint_of("vm-1")).status == 410
        events = [emulator.schedule(type_, "vm-0") for type_ in ("Reboot", "Freeze")]
        emulator.approve(events[0])
        emulator.fail(events[0])
        removed = emulator.schedule("Terminate", "vm-1")
        emulator.approve(removed)
        emulator.finish(removed)
        control = emulator.service.control
        control.cordon_host("host-0", OPERATOR)
        control.set_budget(OPERATOR, max_machines_down=1)
        emulator.set_faults([])
        emulator.on_approval(lambda _: 503)
        emulator.advance("1h")
        tag = send(emulator.endpoint).headers["etag"]

        emulator.reset()
        assert [emulator.status(event) for event in events] == ["Completed", "Cancelled"]
        assert emulator.machine_names() == ["emulated/vm-0", "emulated/vm-1"]
        assert emulator.requests() == []
        assert emulator.clock.now() == START + timedelta(hours=1)
        assert not emulator.service.store.fleet_rules().max_machines_down
        assert all(host.cordoned is None for host in emulator.service.store.hosts().values())
        assert send(emulator.endpoint_of("vm-1")).status == 410, "the faults of the start begin again"
        reply = send(emulator.endpoint)
        assert reply.events == {}
        assert reply.headers["etag"] != tag

        headers = {**METADATA, "If-None-Match": reply.headers["etag"], "Prefer": "wait=60"}
        guest = threading.Thread(target=send, args=[emulator.endpoint], kwargs={"headers": headers})
        guest.start()
        until(lambda: any(r.status is None for r in emulator.requests()))
        emulator.reset()
        event = emulator.schedule("Reboot", "vm-0")
        emulator.wait_seen(event, by="vm-0", within_s=PATIENCE_S)
        guest.join(PATIENCE_S)
        assert approve(emulator.endpoint, event.id).status == 200, "the callback is gone"


def test_a_reset_ends_work_on_hosts() -> None:
    """Planned and running work on hosts ends too, in every mode."""
    with Emulator(4, seed=1) as emulator:
        control = emulator.service.control
        for mode, hosts in ((HostMode.EVACUATE, ("host-0", "host-1")), (HostMode.IN_PLACE, ("host-2", "host-3"))):
            type_ = EventType.FREEZE if mode is HostMode.EVACUATE else EventType.REBOOT
            request = MaintenanceRequest(type=type_, targets=Targets(hosts=hosts), host_mode=mode)
            control.submit(request, OPERATOR)
        emulator.advance("20m")
        emulator.reset()
        assert emulator.service.store.maintenances(MaintenanceQuery(statuses=UNFINISHED, limit=9)) == []
        assert emulator.machine_names() == [f"emulated/vm-{number}" for number in range(4)]


def test_a_reset_raises_the_failure_of_a_callback(emulator: Emulator) -> None:
    """It is not lost, and the emulator is reset all the same."""
    event = emulator.schedule("Reboot", "vm-0")
    emulator.on_approval(lambda _: pytest.fail("not drained"))
    assert approve(emulator.endpoint, event.id).status == 500
    with pytest.raises(pytest.fail.Exception, match="not drained"):
        emulator.reset()
    assert emulator.requests() == []


def test_the_arguments_are_listed() -> None:
    """The message about an unknown argument names each argument of an emulator."""
    names = inspect.signature(Emulator).parameters
    assert [name for name in names if name != "settings"] == list(ARGUMENTS)
