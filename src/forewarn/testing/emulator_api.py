"""The API calls that only an emulator has: the request log, expectations, faults and held approvals, for tests in any language.

They are added to the API's table of calls, so the emulator's OpenAPI document describes them too.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from forewarn.core.errors import NotFound, TooManyRequests
from forewarn.operator.api import bodies
from forewarn.operator.api.access import EVERYONE
from forewarn.operator.api.bodies import RequestBody, ResponseBody
from forewarn.operator.api.calls import Call
from forewarn.operator.api.context import (
    Api,
    CallContext,
    Number,
    Paged,
    Result,
    cursor_of,
    read_cursor,
    split_page,
)
from forewarn.testing.expectations import WITHIN_S, ExpectationFailed
from forewarn.testing.request_log import LoggedRequest

if TYPE_CHECKING:
    from forewarn.testing.emulator import Emulator

MAX_WITHIN_S = 300
# Each call that waits occupies one of the API's forty threads. The others stay free, to move the clock for example.
MAX_WAITING = 16


class RequestsQuery(Paged):
    """Filters of the log: the machine, the method, and requests after number `since`."""

    machine: str = ""
    method: str = ""
    since: Number = 0


class ExpectIn(RequestBody):
    """An expectation: an event is seen, approved or not approved, or a machine polls. Without `machine`, any machine.

    `no-more`: every event is still approved as many times as last expected. `within_s` is 10 by default, for no-approval 0.
    `times` is for approval and poll, `status` for seen. Polls count after request number `since`, by default from now.
    """

    what: Literal["seen", "approval", "no-approval", "no-more", "poll"]
    event: Annotated[str, msgspec.Meta(max_length=64)] = ""
    machine: Annotated[str, msgspec.Meta(max_length=129)] = ""
    within_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_WITHIN_S)] | None = None
    times: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    status: Literal["", "Scheduled", "Started"] = ""
    since: Number | None = None


class FaultsIn(RequestBody):
    """Faults as in a file of faults; an empty list ends all faults."""

    faults: Annotated[list[dict[str, str | int | float]], msgspec.Meta(max_length=100)]


class HoldApprovalsIn(RequestBody):
    """Whether approvals are held from now on. Without `hold`, those that are held pass."""

    hold: bool


class HeldApprovalsQuery(RequestBody):
    """How long to wait for a held approval."""

    within_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_WITHIN_S)] = WITHIN_S


class AnswerIn(RequestBody):
    """The status of an error for the guest; then nothing is recorded. Without it the approval passes."""

    status: Annotated[int, msgspec.Meta(ge=400, le=599)] | None = None


class ShownEvent(ResponseBody):
    """An event in the document that the guest got, with its status there."""

    id: str
    status: str


class RequestOut(ResponseBody):
    """A request of a guest; `status` is null until it is answered, and stays null if no answer was sent."""

    number: int
    at: datetime
    at_s: float
    scope: str
    machine: str
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: str
    approves: list[str]
    status: int | None
    fault: str
    incarnation: int | None
    events: list[ShownEvent]
    answered_s: float | None
    left: bool


class RequestsOut(bodies.Page[RequestOut]):
    """A page of the log; `gone` is the number of requests that are no longer kept."""

    gone: int = 0


class HeldApprovalsOut(ResponseBody):
    """The approvals that are held, oldest first; the guests wait for their answers."""

    items: list[RequestOut]


class HoldApprovalsOut(ResponseBody):
    """Whether approvals are held."""

    hold: bool


class EndpointOut(ResponseBody):
    """The URL at which every caller is this machine."""

    machine: str
    url: str


class EndpointsOut(ResponseBody):
    """The machines that have a URL of their own, by name."""

    items: list[EndpointOut]


class ResetOut(ResponseBody):
    """The number of the last request before the reset."""

    since: int


class Verdict(ResponseBody):
    """Whether the expectation is met, the reason, and what has happened so far."""

    passed: bool
    message: str
    timeline: list[str]


class FaultsOut(ResponseBody):
    """The number of faults in force."""

    faults: int


def emulator_calls(emulator: "Emulator") -> tuple[Call, ...]:
    waiting = threading.BoundedSemaphore(MAX_WAITING)

    @contextmanager
    def one_of_few() -> Iterator[None]:
        if not waiting.acquire(blocking=False):
            raise TooManyRequests(
                f"{MAX_WAITING} calls are waiting already: wait for their answers before you send another one"
            )
        try:
            yield
        finally:
            waiting.release()

    def requests(_: Api, context: CallContext) -> Result:
        query = context.query
        after = read_cursor(query.cursor, tuple[Number])
        found = emulator.requests(
            machine=query.machine or None, method=query.method, since=max(query.since, after[0] if after else 0)
        )
        page, last = split_page(found[: query.limit + 1], query.limit)
        cursor = cursor_of(last.number) if last else None
        return Result(
            200, RequestsOut(items=[_request_out(each) for each in page], next_cursor=cursor, gone=emulator.log.gone)
        )

    def expect(_: Api, context: CallContext) -> Result:
        with one_of_few():
            try:
                _expect(emulator, context.body)
                emulator.service.ticker.cycle_until_idle()  # approved events have started when this call returns
                return Result(200, Verdict(passed=True, message="as expected", timeline=emulator.log.timeline()))
            except ExpectationFailed as failed:
                return Result(409, Verdict(passed=False, message=failed.message, timeline=failed.timeline))

    def hold(_: Api, context: CallContext) -> Result:
        emulator.approvals.set_hold(hold=context.body.hold)
        return Result(200, HoldApprovalsOut(hold=context.body.hold))

    def held(_: Api, context: CallContext) -> Result:
        with one_of_few():
            found = emulator.approvals.wait_held(context.query.within_s)
        return Result(200, HeldApprovalsOut(items=[_request_out(each) for each in found]))

    def answer(_: Api, context: CallContext) -> Result:
        with one_of_few():
            number = _number(context.path["number"])
            request = emulator.approvals.answer(number, context.body.status)
            answered = emulator.log.wait(lambda requests: _answered(requests, number), WITHIN_S)
        emulator.service.ticker.cycle_until_idle()
        return Result(200, _request_out(answered or request))

    def faults(_: Api, context: CallContext) -> Result:
        emulator.set_faults(context.body.faults)
        return Result(200, FaultsOut(faults=len(context.body.faults)))

    def endpoints(_: Api, __: CallContext) -> Result:
        found = emulator.endpoints.items()
        return Result(200, EndpointsOut(items=[EndpointOut(machine=machine, url=url) for machine, url in found]))

    def reset(_: Api, __: CallContext) -> Result:
        emulator.reset()
        return Result(200, ResetOut(since=emulator.log.last_number))

    return (
        Call(
            method="GET", path="/v1/emulator/requests", perform=requests, roles=EVERYONE, query=RequestsQuery,
            returns=RequestsOut, summary="Return the requests of guests with their answers, oldest first.",
        ),
        Call(
            method="POST", path="/v1/emulator/expect", perform=expect, roles=EVERYONE, takes=ExpectIn, returns=Verdict,
            status=(200, 409), summary="Wait for an expectation on guests; answer 409 if it was not met.",
        ),
        Call(
            method="PUT", path="/v1/emulator/faults", perform=faults, roles=EVERYONE, takes=FaultsIn, returns=FaultsOut,
            summary="Set which requests fail from now on.",
        ),
        Call(
            method="PUT", path="/v1/emulator/approvals", perform=hold, roles=EVERYONE, takes=HoldApprovalsIn,
            returns=HoldApprovalsOut, summary="Hold approvals, before they are recorded, until they are answered.",
        ),
        Call(
            method="GET", path="/v1/emulator/approvals", perform=held, roles=EVERYONE, query=HeldApprovalsQuery,
            returns=HeldApprovalsOut, summary="Wait for held approvals; return those that are held.",
        ),
        Call(
            method="POST", path="/v1/emulator/approvals/{number}", perform=answer, roles=EVERYONE, takes=AnswerIn,
            returns=RequestOut, summary="Let a held approval pass, or answer it with an error; return the request.",
        ),
        Call(
            method="GET", path="/v1/emulator/endpoints", perform=endpoints, roles=EVERYONE, returns=EndpointsOut,
            summary="Return the URL of each machine, at which every caller is that machine.",
        ),
        Call(
            method="POST", path="/v1/emulator/reset", perform=reset, roles=EVERYONE, returns=ResetOut,
            summary="Make the emulator as it was at its start, except for its clock.",
        ),
    )  # fmt: skip


def _expect(emulator: "Emulator", expected: ExpectIn) -> None:
    event, by = expected.event, expected.machine or None
    within = {} if expected.within_s is None else {"within_s": expected.within_s}
    if expected.what == "poll":
        emulator.expect_poll(by=by, times=expected.times, since=expected.since, **within)
    elif expected.what == "seen":
        emulator.wait_seen(event, by=by, status=expected.status, **within)
    elif expected.what == "approval":
        emulator.expect_approval(event, by=by, times=expected.times, **within)
    elif expected.what == "no-approval":
        emulator.expect_no_approval(event, by=by, **within)
    else:
        emulator.expect_no_more()


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise NotFound(f"approval {text!r} is not held: write the number of its request")
    return int(text)


def _answered(requests: list[LoggedRequest], number: int) -> LoggedRequest | None:
    """Return the request once it is answered, or its guest has hung up."""
    return next((r for r in requests if r.number == number and (r.status is not None or r.left or r.lost)), None)


def _request_out(request: LoggedRequest) -> RequestOut:
    return RequestOut(
        number=request.number,
        at=request.at,
        at_s=round(request.at_s, 6),
        scope=request.scope,
        machine=request.machine,
        method=request.method,
        target=request.target,
        headers=list(request.headers),
        body=request.body.decode("utf-8", errors="replace"),
        approves=list(request.approves),
        status=request.status,
        fault=request.fault,
        incarnation=request.incarnation,
        events=[ShownEvent(id=event_id, status=status) for event_id, status in request.events],
        answered_s=None if request.answered_s is None else round(request.answered_s, 6),
        left=request.left,
    )
