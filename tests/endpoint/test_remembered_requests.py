"""A remembered request takes the fast path: the answer is the same, byte for byte, as that of the parser's path."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.core.document import VERSIONS
from forewarn.core.errors import ForewarnError
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import Actor, Status
from forewarn.core.order_verbs import Outcome
from forewarn.endpoint.endpoint import MAX_REMEMBERED_BYTES
from tests.endpoint.in_memory import ManualMonotonic, MemoryService, MemoryTransport, manual_monotonic, turn_until_idle
from tests.support.budget import BUDGET
from tests.support.guest_service import FLEET, OPERATOR, STRANGER, VM, WEB_0, WEB_1

EXAMPLES = 250
ADDRESSES = (WEB_0, WEB_1, VM, STRANGER)
RATE_LIMIT = 5
HOLD_S = 2.0
WITHOUT_WEB_0 = FLEET.replace('[[machines]]\nscope = "shop"\nname = "web-0"', "", 1).replace(
    'addresses = ["127.0.0.10"]\ninstance_id = "i-web-0"', "", 1
)
POLL = b"GET /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\n\r\n"

# -- requests: polls in many spellings, valid or almost valid

USUAL_EXTRAS = (
    *("User-Agent: curl/7.88.1", "Accept: */*", "Accept-Encoding: gzip, deflate", "X-Empty:", "Content-Length: 0"),
    *("Connection: close", "Connection: keep-alive", "Connection: Close", "Prefer: wait=0", "Metadata: true"),
    *("Connection: Upgrade", "Upgrade: h2c", "Expect: 100-continue"),
)
ODD_EXTRAS = (
    *("Connection: close, keep-alive", "Prefer: wait=30", "Prefer: respond-async, wait=2", "X-Forwarded-For: 10.0.0.1"),
    *("Forwarded: for=10.0.0.1", "Via: 1.1 proxy", "X-Real-IP: 10.0.0.1"),
    *("Origin: http://a", "X-Long: " + "a" * 900, "X : y", " folded", "Transfer-Encoding: chunked"),
)
USUAL_TAGS = ('"1"', '"2"', '"3"', 'W/"2"', "2", '"1-2"', '"2-2"', "0", "null")
ODD_TAGS = ("*", '"', "", '"2', '"2", "3"', ' "2" ', '\t"3"', 'w/"2"', '""2""')
USUAL_QUERIES = (
    *(f"api-version={version}" for version in VERSIONS),
    *("format=json&api-version=2019-08-01", "API-Version=2020-07-01", "api%2Dversion=2019-08-01"),
    *("api-version=2020%2d07-01", "&&api-version=2017-08-01&", "api-version=2017-08-01&x=%zz"),
)
ODD_QUERIES = (
    *("", "api-version=", "api-version=2099-01-01", "api-version=latest", "api-version=2017-08-01#x"),
    "api-version=2017-08-01&api-version=2017-08-01",
)
# The parts of a request: their usual spellings, and odd ones.
PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "method": (("GET",), ("HEAD", "POST", "PUT")),
    "path": (
        ("/metadata/scheduledevents", "/Metadata/ScheduledEvents"),
        ("/metadata/scheduledevents/", "/metadata/versions", "/metadata/instance", "/", "*"),
    ),
    "query": (USUAL_QUERIES, ODD_QUERIES),
    "protocol": (("HTTP/1.1", "HTTP/1.1", "HTTP/1.0"), ("HTTP/0.9", "HTTP/2.0", "RTSP/1.0")),
    "host": (("127.0.0.1", "169.254.169.254:80", "localhost", "[::1]:8169"), ("evil.example", "", "::1")),
    "metadata": (("true", "True", "TRUE", "\ttrue "), ("false", "", "true, true", "true\xa0")),
    "extra": (USUAL_EXTRAS, ODD_EXTRAS),
    "tag": (USUAL_TAGS, ODD_TAGS),
    "end": (("",), ("\r\n", "x")),
}


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Make a request: most are valid polls; in the others one part is odd."""
    odd = draw(st.sampled_from([None, None, *PARTS])) if draw(st.booleans()) else None

    def part(name: str) -> str:
        return draw(st.sampled_from(PARTS[name][name == odd]))

    headers = [f"Host: {part('host')}", f"Metadata: {part('metadata')}"]
    headers += [f"If-None-Match: {part('tag')}" for _ in range(draw(st.sampled_from([0, 1, 1, 2])))]
    headers += [part("extra") for _ in range(draw(st.integers(0, 2)))]
    headers = draw(st.permutations(headers))
    if draw(st.integers(0, 9)) == 9:
        headers = headers[1:]
    names = {"lower": str.lower, "upper": str.upper}.get(draw(st.sampled_from(["as they are", "lower", "upper"])), str)
    query = part("query")
    lines = [f"{part('method')} {part('path')}{'?' if query else ''}{query} {part('protocol')}"]
    lines += [f"{names(name)}{colon}{value}" for name, colon, value in (h.partition(":") for h in headers)]
    return ("\r\n".join([*lines, "\r\n"]) + part("end")).encode("latin-1")


# -- acts between requests


@dataclass(frozen=True)
class Send:
    """Send the same bytes several times: from the third time they are remembered."""

    data: bytes
    address: str
    times: int = 1
    cut_at: int = 0
    after_s: float = 0.0


@dataclass(frozen=True)
class Act:
    """An act between requests, of an operator, a guest or a clock."""

    kind: str

    KINDS: ClassVar[tuple[str, ...]] = (
        "publish", "start", "end", "cancel", "disable", "remove", "move", "restore", "restore", "hold", "use up", "wait 0.1 s",
        "wait 3 s", "tick 1 s", "hang up",
    )  # fmt: skip


WAITING = POLL[:-2] + b'If-None-Match: "1"\r\nPrefer: wait=30\r\n\r\n'
plain_endings = st.sampled_from(["", 'If-None-Match: "1"\r\n', 'If-None-Match: W/"2"\r\n', "If-None-Match: 3\r\n"])
plain_polls = st.builds(
    lambda tag, close: POLL[:-2] + tag.encode() + close + b"\r\n",
    plain_endings,
    st.sampled_from([b"", b"Connection: close\r\n"]),
)
sends = st.builds(
    Send,
    st.one_of(requests(), plain_polls, plain_polls, st.sampled_from([POLL[:40], POLL[:-1], WAITING])),
    st.sampled_from([WEB_0] * 8 + list(ADDRESSES)),
    st.sampled_from([1, 3, 4]),
    st.sampled_from([0, 0, 0, 0, 0, 0, 1, 40, 95]),
    st.sampled_from([0.0, 1.0, 1.0, 1.0]),
)
steps = st.one_of(sends, sends, st.builds(Act, st.sampled_from(Act.KINDS)))


class Path:
    """One service and its connections; with `parsing` it never remembers a request."""

    def __init__(self, clock: ManualMonotonic, *, parsing: bool) -> None:
        self.service = MemoryService(clock.loop, rate_limit=RATE_LIMIT)
        self.clock = clock
        self.parsing = parsing
        self.transports: dict[str, MemoryTransport] = {}

    def send(self, data: bytes, address: str, cut_at: int = 0) -> tuple[object, ...]:
        """Send bytes; return everything that the guest and the service can observe of it."""
        if self.parsing:
            self.service.forget_requests()
        transport = self.transports.get(address)
        if transport is None or transport.is_finished():
            transport = self.transports[address] = MemoryTransport(self.service.endpoint, address)
        before = len(transport.received)
        for piece in (data[:cut_at], data[cut_at:]) if cut_at else (data,):
            transport.send(piece)
        turn_until_idle(self.clock.loop, transport)
        caller = self.service.documents.callers.at("", address)
        record = (caller.spent_until_s, caller.waiting, caller.seen and caller.seen.at) if caller is not None else ()
        return transport.received[before:], transport.is_finished(), transport.connection.busy, record

    def received(self) -> dict[str, tuple[bytes, bool]]:
        """Return everything received so far, also by long polls and held requests."""
        return {
            address: (transport.received, transport.is_finished()) for address, transport in self.transports.items()
        }

    def act(self, kind: str) -> None:
        """Carry out an act; one that the service refuses is refused on both paths."""
        acts: dict[str, Callable[[], object]] = {
            "publish": lambda: self.service.reboot("shop", "web-0"),
            "start": self._start,
            "end": self._end,
            "cancel": self._cancel,
            "disable": lambda: self.service.control.disable("shop", OPERATOR),
            "remove": lambda: self._apply(WITHOUT_WEB_0),
            "move": lambda: self._apply(FLEET.replace(WEB_0, "127.0.0.98").replace(WEB_1, WEB_0)),
            "restore": lambda: self._apply(FLEET),
            "hold": self._hold,
            "use up": self._use_up,
            "tick 1 s": lambda: self.service.clock.move_to(self.service.clock.now() + timedelta(seconds=1)),
            "hang up": self._hang_up,
        }
        if kind in acts:
            with suppress(ForewarnError):
                acts[kind]()

    def _hang_up(self) -> None:
        for transport in self.transports.values():
            transport.hang_up()

    def _events(self, *statuses: Status) -> list[str]:
        return [e.id for v in self.service.documents.views.values() for e in v.state.events if e.status in statuses]

    def _start(self) -> None:
        for event_id in self._events(Status.SCHEDULED)[:1]:
            self.service.control.approve_event(event_id, OPERATOR)

    def _end(self) -> None:
        for event_id in self._events(Status.STARTED)[:1]:
            self.service.control.take_order(event_id, Actor("executor"), node="here")
            self.service.control.report_order(event_id, Outcome(True), Actor("executor"))

    def _cancel(self) -> None:
        for event_id in self._events(Status.SCHEDULED)[:1]:
            self.service.control.cancel_event(event_id, OPERATOR)

    def _apply(self, fleet: str) -> None:
        self.service.control.apply_fleet(parse_fleet(fleet, "the test"), OPERATOR, prune=True)

    def _hold(self) -> None:
        for view in self.service.documents.views.values():
            view.held_until_s = self.clock.now_s + HOLD_S

    def _use_up(self) -> None:
        for address in ADDRESSES:
            caller = self.service.documents.callers.at("", address)
            if caller is not None:
                caller.spent_until_s = max(caller.spent_until_s, self.clock.now_s + 1 - 1.5 / RATE_LIMIT)


def _compare(story: list[Send | Act], clock: ManualMonotonic) -> None:
    usual, parsing = Path(clock, parsing=False), Path(clock, parsing=True)
    for number, step in enumerate(story):
        if isinstance(step, Act):
            if step.kind.startswith("wait"):
                clock.now_s += float(step.kind.split()[1])
            for path in (usual, parsing):
                path.act(step.kind)
                turn_until_idle(clock.loop, *path.transports.values())
            assert usual.received() == parsing.received(), f"step {number}: {step.kind}"
            continue
        clock.now_s += step.after_s
        turn_until_idle(clock.loop, *usual.transports.values(), *parsing.transports.values())
        for time in range(step.times):
            first = usual.send(step.data, step.address, step.cut_at)
            second = parsing.send(step.data, step.address, step.cut_at)
            assert first == second, f"step {number}, time {time + 1}: {step.data!r}"
    for transport in [*usual.transports.values(), *parsing.transports.values()]:
        transport.hang_up()


@pytest.mark.timeout(1_200)
# The same stories in every run, others in every soak; a failure prints the story, and in a soak how to repeat it.
@settings(
    max_examples=EXAMPLES * BUDGET,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(steps, min_size=5, max_size=16))
def test_both_paths_answer_the_same_bytes(story: list[Send | Act]) -> None:
    """For any requests, repeated any number of times, with any acts between them, the answers are the same."""
    with manual_monotonic() as clock:
        _compare(story, clock)


CHANGES = [
    [],
    [Act("publish")],
    [Act("publish"), Act("start")],
    [Act("publish"), Act("start"), Act("end")],
    [Act("publish"), Act("cancel")],
    [Act("disable")],
    [Act("remove")],
    [Act("remove"), Act("restore")],
    [Act("move")],
    [Act("hold")],
    [Act("hold"), Act("wait 3 s")],
    [Act("hold"), Send(POLL, WEB_0), Act("publish"), Act("wait 3 s")],
    [Act("use up")],
    [Act("use up"), Act("wait 0.1 s")],
    [Act("tick 1 s")],
    [Act("hang up")],
    [Send(POLL[:40], WEB_0)],
    [Send(WAITING, WEB_0)],
    [Send(WAITING, WEB_0), Act("publish")],
]


def _name_of(changes: list[Send | Act] | bytes) -> str | None:
    if isinstance(changes, bytes):
        return None
    return ", ".join(c.kind if isinstance(c, Act) else f"{len(c.data)} bytes" for c in changes) or "nothing"


@pytest.mark.parametrize("changes", CHANGES, ids=_name_of)
@pytest.mark.parametrize(
    "ending",
    [b"", b"Connection: close\r\n", b'If-None-Match: "1"\r\n', b'If-None-Match: W/"2"\r\nConnection: close\r\n'],
)
def test_a_remembered_request_follows_every_change(changes: list[Send | Act], ending: bytes) -> None:
    """A remembered poll gets the same answer as any other after each change of document, scope, machine, hold or rate."""
    poll = POLL[:-2] + ending + b"\r\n"
    with manual_monotonic() as clock:
        story = [Send(poll, WEB_0, 4), Act("wait 3 s"), *changes, Send(poll, WEB_0, 3)]
        _compare(story, clock)


def _remembered(data: bytes) -> int:
    """Return how many of five identical requests take the fast path."""
    with manual_monotonic() as clock:
        service = MemoryService(clock.loop)
        for _ in range(5):
            transport = MemoryTransport(service.endpoint)
            transport.send(data)
            turn_until_idle(clock.loop, transport)
            transport.hang_up()
        return service.endpoint.counters.remembered


@pytest.mark.parametrize(
    "headers",
    ["", "Connection: close\r\n", 'If-None-Match: "1"\r\n', "User-Agent: Python-urllib/2.7\r\n", "Prefer: wait=0\r\n"],
)
def test_a_poll_is_remembered_from_its_third_time(headers: str) -> None:
    """A poll is parsed twice, then remembered."""
    assert _remembered(POLL[:-2] + headers.encode() + b"\r\n") == 3


@pytest.mark.parametrize(
    "data",
    [
        POLL * 2,
        POLL[:-2],
        POLL.replace(b"GET", b"HEAD"),
        POLL.replace(b"GET", b"POST"),
        POLL.replace(b"true", b"false"),
        POLL.replace(b"2020", b"2021"),
        POLL.replace(b"/metadata/scheduledevents", b"/metadata/versions"),
        POLL[:-2] + b'If-None-Match: "1"\r\nPrefer: wait=1\r\n\r\n',
        POLL.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n"),
        POLL[:-2] + b"X: " + b"a" * MAX_REMEMBERED_BYTES + b"\r\n\r\n",
    ],
)
def test_only_one_whole_plain_poll_is_remembered(data: bytes) -> None:
    """Two polls at once, half a poll, a refused, waiting or large one are not remembered."""
    assert _remembered(data) == 0
