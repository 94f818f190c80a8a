"""Faults: the content of a file, the choice of requests, and each kind of fault on the wire."""

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from forewarn.core.errors import InvalidSettings
from forewarn.testing.emulator import Emulator
from forewarn.testing.emulator_settings import START
from forewarn.testing.faults import MAX_FAULTS, MAX_FILE_BYTES, Fault, FaultPlan, parse_faults, read_faults
from tests.support.waiting import PATIENCE_S
from tests.testing.http_guest import DOCUMENT, METADATA, approve, send, send_raw

EXAMPLE = """
[[faults]]
fault = "status"
status = 410
after = "10m"
for = "70s"

[[faults]]
fault = "slow"
delay = "200ms"
requests = "2-4"
machine = "vm-0"
method = "POST"

[[faults]]
fault = "skew"
by = "-90s"
probability = 0.25
"""


@contextmanager
def emulated(*faults: dict[str, object], machines: int = 1) -> Iterator[Emulator]:
    with Emulator(machines, seed=1, faults=faults) as emulator:
        yield emulator


# -- files


def test_a_file_of_faults_is_parsed(tmp_path: Path) -> None:
    """Every key is parsed."""
    path = tmp_path / "faults.toml"
    path.write_text(EXAMPLE)
    assert read_faults(path) == (
        Fault(kind="status", status=410, after_s=600, for_s=70),
        Fault(kind="slow", delay_s=0.2, first=2, last=4, machine="vm-0", method="POST"),
        Fault(kind="skew", skew_s=-90, probability=0.25),
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("x", "a fault must be a table"),
        ({}, "fault: None is not one of status, slow"),
        ({"fault": "flood"}, "fault: 'flood' is not one of"),
        ({"fault": "stall", "delay": "1s"}, "delay: a fault of kind stall has no such key: use fault, path, requests"),
        ({"fault": "status"}, "status: missing"),
        ({"fault": "status", "status": 199}, "status: 199 is not a number from 200 to 599"),
        ({"fault": "status", "status": "503"}, "status: '503' is not a number"),
        (
            {"fault": "cut", "path": "/metadata"},
            "path: '/metadata' is not one of /metadata/scheduledevents, /metadata/instance",
        ),
        ({"fault": "newer", "path": "/metadata/instance"}, "path: a fault of kind newer only changes the document"),
        ({"fault": "cut", "jitter": "1s"}, "jitter: a fault of kind cut has no such key"),
        (
            {"fault": "refuse", "machine": "vm-0"},
            "machine: a fault of kind refuse has no such key: use fault, after, for",
        ),
        ({"fault": "slow", "delay": -3}, 'delay: -3 is not a duration: write it like "15m", "1h30m" or "200ms"'),
        ({"fault": "slow", "delay": "soon"}, "delay: 'soon'"),
        ({"fault": "skew", "by": "five"}, "by: 'five' is not a duration"),
        ({"fault": "cut", "requests": 0}, "requests: 0 is not a range of requests"),
        ({"fault": "cut", "requests": True}, "requests: True"),
        ({"fault": "cut", "requests": "4-2"}, "requests: '4-2'"),
        ({"fault": "cut", "requests": 1.5}, "requests: 1.5"),
        ({"fault": "cut", "machine": 3}, "machine: 3 is not a name"),
        ({"fault": "cut", "method": "PUT"}, "method: 'PUT' is not one of GET, HEAD, POST"),
        ({"fault": "cut", "after": True}, "after: True is not a duration"),
        ({"fault": "skew", "by": True}, "by: True is not a duration"),
        ({"fault": "cut", "for": "5"}, "for: '5' is not a duration"),
        ({"fault": "cut", "probability": 2}, "probability: 2 is not a number from 0 to 1"),
        ({"fault": "cut", "probability": True}, "probability: True"),
    ],
)
def test_wrong_faults_are_refused(table: object, message: str) -> None:
    """The message has the number of the fault, the key, and what to write."""
    with pytest.raises(InvalidSettings) as error:
        parse_faults([{"fault": "cut"}, table], "faults.toml")
    assert str(error.value).startswith("faults.toml: fault 2: " + message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("faults = [", "this is not TOML"),
        ("fault = 3", "fault: write each fault as a table [[faults]]"),
        ("faults = 3", "faults: write each fault as a table [[faults]]"),
        ("[[faults]]\nfault = 'cut'\n" * (MAX_FAULTS + 1), f"{MAX_FAULTS + 1} faults: at most {MAX_FAULTS}"),
        ("#" * (MAX_FILE_BYTES + 1), "larger than"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """The message names the file."""
    path = tmp_path / "faults.toml"
    path.write_text(text)
    with pytest.raises(InvalidSettings) as error:
        read_faults(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The error comes before the emulator starts."""
    with pytest.raises(InvalidSettings, match=r"none\.toml: cannot be read"):
        Emulator(faults=tmp_path / "none.toml")


# -- the choice of requests


def plan_of(*tables: Mapping[str, object], seed: int = 0) -> FaultPlan:
    return FaultPlan(parse_faults(tables), began=START, seed=seed)


def failing_requests(plan: FaultPlan, count: int, machine: str = "s/vm-0", method: str = "GET") -> list[int]:
    """Return the numbers of the requests that fail, of `count` requests."""
    chosen = [plan.choose(machine=machine, method=method, now=START) for _ in range(count)]
    return [number for number, fault in enumerate(chosen, 1) if fault is not None]


@pytest.mark.parametrize(
    ("requests", "numbers"), [(2, [2]), ("3", [3]), ("2-4", [2, 3, 4]), ("5-", [5, 6]), ("1-", [1, 2, 3, 4, 5, 6])]
)
def test_requests_are_chosen_by_number(requests: object, numbers: list[int]) -> None:
    """Numbers count from one."""
    assert failing_requests(plan_of({"fault": "cut", "requests": requests}), 6) == numbers


def test_numbers_count_only_matching_requests() -> None:
    """If several faults apply, the first is chosen, and the others count the request too."""
    plan = plan_of(
        {"fault": "reset", "requests": 1, "machine": "vm-1", "method": "POST"},
        {"fault": "cut", "requests": "1-2", "method": "POST"},
    )
    assert failing_requests(plan, 2, "s/vm-0", "GET") == []
    first = plan.choose(machine="s/vm-1", method="POST", now=START)
    second = plan.choose(machine="s/vm-1", method="POST", now=START)
    third = plan.choose(machine="s/vm-1", method="POST", now=START)
    assert [str(first), str(second), third] == ["reset", "cut", None]


def test_requests_are_chosen_by_time() -> None:
    """A fault begins at `after` on the service clock and lasts as long as `for`."""
    plan = plan_of({"fault": "cut", "after": "10m", "for": "70s"})
    times = [START + timedelta(seconds=since_s) for since_s in (0, 599, 600, 669, 670)]
    chosen = [plan.choose(machine="s/vm-0", method="GET", now=now) is not None for now in times]
    assert chosen == [False, False, True, True, False]


def test_requests_are_chosen_by_probability() -> None:
    """The same seed chooses the same requests of a machine, whatever other machines send in between."""
    half = {"fault": "cut", "probability": 0.5}
    alone = failing_requests(plan_of(half, seed=3), 100)
    mixed = plan_of(half, seed=3)
    interleaved = []
    for number in range(1, 101):
        for _ in range(number % 3):
            mixed.choose(machine="s/vm-1", method="GET", now=START)
        if mixed.choose(machine="s/vm-0", method="GET", now=START) is not None:
            interleaved.append(number)
    assert alone == interleaved
    assert 25 < len(alone) < 75
    assert alone != failing_requests(plan_of(half, seed=4), 100)
    assert failing_requests(plan_of({"fault": "cut", "probability": 0}), 20) == []


def test_jitter_varies_the_delay() -> None:
    """Each request has its own delay, from `delay` to `delay` plus `jitter`, and the same seed gives the same delays."""

    def delays(seed: int) -> list[float]:
        plan = plan_of({"fault": "slow", "delay": "1s", "jitter": "500ms"}, seed=seed)
        chosen = [plan.choose(machine="s/vm-0", method="GET", now=START) for _ in range(50)]
        return [fault.delay_s for fault in chosen if fault is not None]

    assert len(set(delays(3))) == 50
    assert all(1.0 <= delay_s <= 1.5 for delay_s in delays(3))
    assert delays(3) == delays(3) != delays(4)


def test_requests_are_chosen_by_machine() -> None:
    """A fault names a machine by its name, in all scopes, or by scope and name."""
    by_name, in_full = ({"fault": "cut", "machine": machine} for machine in ("vm-0", "s/vm-0"))
    for plan, machines in ((plan_of(by_name), ["s/vm-0", "t/vm-0"]), (plan_of(in_full), ["s/vm-0"])):
        assert [m for m in ("s/vm-0", "t/vm-0", "s/vm-1") if failing_requests(plan, 1, m)] == machines
    with emulated({"fault": "status", "status": 410, "machine": "emulated/vm-1"}, machines=2) as emulator:
        assert [send(emulator.endpoint, source=f"127.0.0.{n}").status for n in (1, 2)] == [200, 410]


def test_unknown_machines_are_refused() -> None:
    """Such a fault would never apply. The previous faults stay in force."""
    unknown: dict[str, object] = {"fault": "cut", "machine": "vm-O"}
    message = r"faults: fault 2: machine: there is no 'vm-O': there are emulated/vm-0"
    with pytest.raises(InvalidSettings, match=message), emulated({"fault": "cut"}, unknown):
        pass
    with emulated({"fault": "status", "status": 410}) as emulator:
        with pytest.raises(InvalidSettings, match=message):
            emulator.set_faults([{"fault": "cut"}, unknown])
        assert send(emulator.endpoint).status == 410


# -- on the wire


@pytest.mark.parametrize(
    ("status", "message"),
    [(404, "Not found"), (410, "Gone"), (429, "Too many requests"), (500, "Internal server error"), (503, "Service unavailable")],
)  # fmt: skip
def test_a_status_replaces_the_answer(status: int, message: str) -> None:
    """429 and 503 have a Retry-After."""
    with emulated({"fault": "status", "status": status, "requests": 1}) as emulator:
        reply = send(emulator.endpoint)
        assert (reply.status, reply.json) == (status, {"error": message})
        assert reply.headers.get("retry-after") == ("1" if status in (429, 503) else None)
        assert send(emulator.endpoint).status == 200
        assert [(r.status, r.fault) for r in emulator.requests()] == [(status, str(status)), (200, "")]


@pytest.mark.parametrize("status", [200, 204, 302, 304, 418, 425, 599])
def test_any_status_is_possible(status: int) -> None:
    """Statuses without a body have none, and the connection can still be used."""
    with emulated({"fault": "status", "status": status, "requests": 1}) as emulator:
        head = f"{DOCUMENT} HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\n"
        received = send_raw(emulator.endpoint, f"GET {head}\r\nGET {head}Connection: close\r\n\r\n".encode())
        assert re.findall(rb"HTTP/1\.1 ([0-9]+)", received) == [str(status).encode(), b"200"]
        assert (b'{"error":"' in received) == (status not in (204, 304))


def test_a_request_with_a_status_fault_has_no_effect() -> None:
    """An approval that is answered with an error approves nothing."""
    with emulated({"fault": "status", "status": 500, "method": "POST"}) as emulator:
        event = emulator.schedule("Reboot", "vm-0")
        assert approve(emulator.endpoint, event.id).status == 500
        assert emulator.status(event) == "Scheduled"


def test_only_requests_for_the_document_fail() -> None:
    """Other requests are answered and not counted."""
    with emulated({"fault": "status", "status": 500, "requests": 1}) as emulator:
        assert send(emulator.endpoint, path="/metadata/versions").status == 200
        assert send(emulator.endpoint, path=DOCUMENT.replace("scheduled", "Scheduled")).status == 500


def test_requests_for_the_instance_may_fail() -> None:
    """They have faults and numbers of their own: those of the document do not count."""
    instance = {"path": "/metadata/instance"}
    faults: list[dict[str, object]] = [
        {"fault": "status", "status": 503, "requests": 1, **instance},
        {"fault": "bad-json", "requests": 2, **instance},
    ]
    with emulated(*faults) as emulator:
        assert send(emulator.endpoint).status == 200
        path = "/metadata/instance/compute?api-version=2020-07-01"
        assert send(emulator.endpoint, path="/Metadata/Instance?api-version=2020-07-01").status == 503
        assert send(emulator.endpoint, path=path).raw.endswith(b",")
        assert send(emulator.endpoint, path=path).json["name"] == "vm-0"
        assert send(emulator.endpoint, path="/metadata/instances").status == 404
        assert [r.fault for r in emulator.requests()] == ["", "503", "bad-json", "", ""]


def test_connections_are_refused_for_a_while() -> None:
    """Open connections are closed, new ones are refused, and the same addresses accept again, as the clock moves."""
    with emulated({"fault": "refuse", "after": "1m", "for": "70s"}, machines=2) as emulator:
        urls = list(emulator.endpoints.values())
        event = emulator.schedule("Reboot", "vm-0")
        tag = send(urls[0]).headers["etag"]
        waiting = {**METADATA, "If-None-Match": tag, "Prefer": "wait=60"}
        guest = threading.Thread(target=send_until_closed, args=(urls[0], waiting))
        guest.start()
        assert emulator.log.wait(lambda requests: len(requests) >= 2 or None, PATIENCE_S)
        emulator.advance("1m")
        guest.join(PATIENCE_S)
        for url in urls:
            with pytest.raises(ConnectionRefusedError):
                send(url)
        assert [(r.fault, r.left) for r in emulator.requests()] == [("", False), ("refuse", False)]
        assert send(emulator.operator_url, path="/readyz", headers={}).status == 200
        emulator.advance("70s")
        assert [send(url).events for url in urls] == [{event.id: "Scheduled"}] * 2
        emulator.set_faults([{"fault": "refuse"}])
        with pytest.raises(ConnectionRefusedError):
            send(urls[0])
        emulator.set_faults([])
        assert send(urls[0]).status == 200
    with emulated({"fault": "refuse"}) as emulator, pytest.raises(ConnectionRefusedError):
        send(emulator.endpoint)


def send_until_closed(url: str, headers: dict[str, str]) -> None:
    with suppress(OSError, http.client.HTTPException):
        send(url, headers=headers)


def test_cut_sends_half_an_answer() -> None:
    """The document does not count as seen, but the request has its effect."""
    with emulated({"fault": "cut", "requests": "1-2"}) as emulator:
        event = emulator.schedule("Reboot", "vm-0")
        with pytest.raises(http.client.IncompleteRead) as cut:
            send(emulator.endpoint)
        assert cut.value.partial.startswith(b'{"DocumentIncarnation":')
        with pytest.raises(http.client.BadStatusLine):  # without a body the status line is cut
            approve(emulator.endpoint, event.id)
        with pytest.raises(AssertionError):
            emulator.wait_seen(event, within_s=0)
        assert emulator.status(event) == "Started"


def test_bad_json_has_the_right_length() -> None:
    """The document does not count as seen, but the request has its effect."""
    with emulated({"fault": "bad-json", "requests": "1-2"}) as emulator:
        event = emulator.schedule("Reboot", "vm-0")
        reply = send(emulator.endpoint)
        assert (reply.status, len(reply.raw)) == (200, int(reply.headers["content-length"]))
        with pytest.raises(json.JSONDecodeError):
            reply.json  # noqa: B018
        with pytest.raises(AssertionError):
            emulator.wait_seen(event, within_s=0)
        assert (approve(emulator.endpoint, event.id).raw, emulator.status(event)) == (b"", "Started")


def test_bad_json_does_not_change_an_empty_answer() -> None:
    """The answer is not lost, so a repeated approval counts as a second one."""
    with emulated({"fault": "bad-json", "method": "POST"}) as emulator:
        event = emulator.schedule("Reboot", "vm-0")
        for times in (1, 2):
            assert (approve(emulator.endpoint, event.id).status, emulator.requests()[-1].lost) == (200, False)
            emulator.expect_approval(event, within_s=0, times=times)


def test_lower_ids_changes_only_the_ids() -> None:
    """The ids are in lower case, and an approval in that case counts for the event."""
    with emulated({"fault": "lower-ids"}) as emulator:
        event = emulator.schedule("Reboot", "vm-0", description="ABC")
        (shown,) = send(emulator.endpoint).json["Events"]
        assert (shown["EventId"], shown["Description"]) == (event.id.lower(), "ABC")
        assert approve(emulator.endpoint, shown["EventId"]).status == 200
        emulator.expect_approval(event)


def test_newer_adds_unknown_content() -> None:
    """The document is valid JSON and still has everything that it had."""
    with emulated({"fault": "newer", "requests": 1}) as emulator:
        event = emulator.schedule("Reboot", "vm-0")
        newer, known = send(emulator.endpoint), send(emulator.endpoint)
        assert len(newer.raw) == int(newer.headers["content-length"])
        assert newer.events.keys() > known.events.keys() == {event.id}
        assert newer.json.keys() > known.json.keys()
        assert send(emulator.endpoint, path="/metadata/versions").status == 200
        emulator.wait_seen(event, within_s=0)


def test_reset_resets_the_connection() -> None:
    """The connection is reset and not closed."""
    with emulated({"fault": "reset", "requests": 1}) as emulator:
        with pytest.raises(ConnectionResetError):  # a closed connection would read as empty
            send_raw(
                emulator.endpoint, b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\n\r\n" % DOCUMENT.encode()
            )
        assert send(emulator.endpoint).status == 200


def test_skew_changes_only_the_date() -> None:
    """Everything else in the answer stays."""
    with emulated({"fault": "skew", "by": "-90s", "requests": 1}) as emulator:
        skewed, correct = send(emulator.endpoint), send(emulator.endpoint)
        assert skewed.headers.pop("date") == "Mon, 31 Dec 2029 23:58:30 GMT"
        assert correct.headers.pop("date") == "Tue, 01 Jan 2030 00:00:00 GMT"
        assert skewed == correct


def test_slow_delays_the_answer() -> None:
    """The next request on the connection waits, and other connections do not."""
    with emulated({"fault": "slow", "delay": "300ms", "requests": 1}) as emulator:
        request = b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\n" % DOCUMENT.encode()
        host, _, port = emulator.endpoint.rpartition("/")[2].partition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as guest:
            began_s = time.monotonic()
            guest.sendall(request + b"\r\n")
            assert emulator.log.wait(lambda requests: requests or None, PATIENCE_S)
            guest.sendall(request + b"Connection: close\r\n\r\n")
            assert send(emulator.endpoint).status == 200
            received = b""
            while piece := guest.recv(65_536):
                received += piece
        assert time.monotonic() - began_s >= 0.3
        assert received.count(b"HTTP/1.1 200 OK") == 2
        first = emulator.requests()[0]
        assert (first.fault, first.status) == ("slow", 200)
        assert (first.answered_s or 0) - first.at_s >= 0.3


def test_the_log_shows_that_a_guest_hung_up() -> None:
    """A guest that does not wait for a slow answer has `left`."""
    with emulated({"fault": "slow", "delay": "60s"}) as emulator:
        with pytest.raises(TimeoutError):
            send(emulator.endpoint, timeout_s=0.05)
        left = emulator.log.wait(lambda requests: next((r for r in requests if r.left), None), PATIENCE_S)
        assert left is not None
        assert (left.status, left.answered_s, left.fault) == (None, None, "slow")


def test_stall_never_answers() -> None:
    """The request has its effect, and the log shows that the guest hung up."""
    with emulated({"fault": "stall", "requests": 1, "method": "POST"}) as emulator:
        event = emulator.schedule("Reboot", "vm-0")
        host, _, port = emulator.endpoint.rpartition("/")[2].partition(":")
        body = json.dumps({"StartRequests": [{"EventId": event.id}]})
        head = f"POST {DOCUMENT} HTTP/1.1\r\nHost: {host}\r\nMetadata: true\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as guest:
            guest.sendall((head + body).encode())
            assert emulator.log.wait(lambda requests: next((r for r in requests if r.fault), None), PATIENCE_S)
            assert emulator.status(event) == "Started"
            guest.settimeout(0.05)
            with pytest.raises(TimeoutError):
                guest.recv(1)
        left = emulator.log.wait(lambda requests: next((r for r in requests if r.left), None), PATIENCE_S)
        assert left is not None
        assert (left.status, left.fault) == (None, "stall")
        assert "-> no answer [stall]" in str(left)
        emulator.expect_approval(event, within_s=0, times=1)


def test_a_fault_with_a_time_limit_follows_the_service_clock() -> None:
    """410 begins and ends as the clock is moved."""
    with emulated({"fault": "status", "status": 410, "after": "1m", "for": "70s"}) as emulator:
        statuses = []
        for _ in range(5):
            statuses.append(send(emulator.endpoint).status)
            emulator.advance(30)
        assert statuses == [200, 200, 410, 410, 410]
        emulator.advance(0)
        assert send(emulator.endpoint).status == 200


def test_faults_may_be_replaced(tmp_path: Path) -> None:
    """New faults count requests and time from zero, and an empty list ends all faults."""
    with emulated({"fault": "status", "status": 500}) as emulator:
        assert send(emulator.endpoint).status == 500
        emulator.set_faults([])
        assert send(emulator.endpoint).status == 200
        emulator.advance(hours=1)
        path = tmp_path / "faults.toml"
        path.write_text('[[faults]]\nfault = "status"\nstatus = 503\nrequests = 1\nfor = "1s"\n')
        emulator.set_faults(path)
        assert [send(emulator.endpoint).status for _ in range(2)] == [503, 200]


def test_concurrent_machines_get_the_same_faults_in_each_run() -> None:
    """Each machine has its own random choices, so the order of requests makes no difference."""

    def run() -> dict[str, list[str]]:
        faults = {"fault": "status", "status": 503, "probability": 0.4}
        with emulated(faults, machines=3) as emulator:
            sources = [f"127.0.0.{number}" for number in (1, 2, 3)]
            guests = [
                threading.Thread(target=lambda s=source: [send(emulator.endpoint, source=s) for _ in range(15)])
                for source in sources
            ]
            for guest in guests:
                guest.start()
            for guest in guests:
                guest.join(PATIENCE_S)
            machines = sorted({r.machine for r in emulator.requests()})
            return {name: [str(r.status) for r in emulator.requests(machine=name)] for name in machines}

    first = run()
    assert first == run()
    assert len({tuple(statuses) for statuses in first.values()}) > 1
