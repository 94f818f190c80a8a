"""The emulator's own calls: the log of requests, expectations and faults, for tests in any language.

They stand in the API's table beside the others, so they are in the emulator's OpenAPI document; a service has none of them.
"""

import threading
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from forewarn.core.errors import Refused
from forewarn.core.model import Role
from forewarn.operator.api import bodies
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
from forewarn.testing.expectations import ExpectationFailed
from forewarn.testing.request_log import Asked

if TYPE_CHECKING:
    from forewarn.testing.emulator import Emulator

MAX_WITHIN_S = 300
# Each waits in a thread of the API's, which has forty: the others are for whoever moves the clock.
MAX_WAITING = 16
EVERYBODY = frozenset(Role)


class RequestsQuery(Paged):
    """Which requests: of a machine, with a method, after request number `since`."""

    machine: str = ""
    method: str = ""
    since: Number = 0


class ExpectIn(RequestBody):
    """What is expected: an event is seen, approved or not approved, a machine polls. `machine` left out is anybody.

    `no-more`: every event is still approved as many times as was last expected. `within_s` left out is 10, for no-approval 0.
    `times` is for approval and poll, `status` for seen. A poll counts after request number `since`, or from now.
    """

    what: Literal["seen", "approval", "no-approval", "no-more", "poll"]
    event: Annotated[str, msgspec.Meta(max_length=64)] = ""
    machine: Annotated[str, msgspec.Meta(max_length=129)] = ""
    within_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_WITHIN_S)] | None = None
    times: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    status: Literal["", "Scheduled", "Started"] = ""
    since: Number | None = None


class FaultsIn(RequestBody):
    """Faults as in a playbook file; none ends them all."""

    faults: Annotated[list[dict[str, str | int | float]], msgspec.Meta(max_length=100)]


class ShownEvent(ResponseBody):
    """An event in the document that the guest got."""

    id: str
    status: str


class RequestOut(ResponseBody):
    """One request of a guest; `status` is null while it waits, and for ever where the answer never came."""

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
    """One page of the log; `gone` counts the requests that are no longer kept, oldest first, approvals last."""

    gone: int = 0


class Verdict(ResponseBody):
    """Whether it came as expected, in a sentence, and what happened so far."""

    passed: bool
    message: str
    timeline: list[str]


class FaultsOut(ResponseBody):
    """How many faults are in force."""

    faults: int


def emulator_calls(emulator: "Emulator") -> tuple[Call, ...]:
    waiting = threading.BoundedSemaphore(MAX_WAITING)

    def requests(api: Api, context: CallContext) -> Result:
        del api
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

    def expect(api: Api, context: CallContext) -> Result:
        del api
        if not waiting.acquire(blocking=False):
            raise Refused(
                f"{MAX_WAITING} expectations are waited for already: wait for their answers, or ask one by one"
            )
        try:
            _expect(emulator, context.body)
            emulator.service.ticker.cycle_until_idle()  # what was approved has started: the next call finds it so
            verdict = Verdict(passed=True, message="as expected", timeline=emulator.log.timeline())
        except ExpectationFailed as failed:
            verdict = Verdict(passed=False, message=failed.message, timeline=failed.timeline)
        finally:
            waiting.release()
        return Result(200, verdict)

    def faults(api: Api, context: CallContext) -> Result:
        del api
        emulator.set_faults(context.body.faults)
        return Result(200, FaultsOut(faults=len(context.body.faults)))

    return (
        Call(
            method="GET", path="/v1/emulator/requests", perform=requests, roles=EVERYBODY, query=RequestsQuery,
            returns=RequestsOut, summary="What guests asked and were answered, oldest first.",
        ),
        Call(
            method="POST", path="/v1/emulator/expect", perform=expect, roles=EVERYBODY, takes=ExpectIn, returns=Verdict,
            summary="Wait for what guests should do; tells whether they did.",
        ),
        Call(
            method="PUT", path="/v1/emulator/faults", perform=faults, roles=EVERYBODY, takes=FaultsIn, returns=FaultsOut,
            summary="From now on these requests go wrong.",
        ),
    )  # fmt: skip


def _expect(emulator: "Emulator", said: ExpectIn) -> None:
    event, by = said.event, said.machine or None
    within = {} if said.within_s is None else {"within_s": said.within_s}
    if said.what == "poll":
        emulator.expect_poll(by=by, times=said.times, since=said.since, **within)
    elif said.what == "seen":
        emulator.wait_seen(event, by=by, status=said.status, **within)
    elif said.what == "approval":
        emulator.expect_approval(event, by=by, times=said.times, **within)
    elif said.what == "no-approval":
        emulator.expect_no_approval(event, by=by, **within)
    else:
        emulator.expect_no_more()


def _request_out(asked: Asked) -> RequestOut:
    return RequestOut(
        number=asked.number,
        at=asked.at,
        at_s=round(asked.at_s, 6),
        scope=asked.scope,
        machine=asked.machine,
        method=asked.method,
        target=asked.target,
        headers=list(asked.headers),
        body=asked.body.decode("utf-8", errors="replace"),
        approves=list(asked.approves),
        status=asked.status,
        fault=asked.fault,
        incarnation=asked.incarnation,
        events=[ShownEvent(id=event_id, status=status) for event_id, status in asked.events],
        answered_s=None if asked.answered_s is None else round(asked.answered_s, 6),
        left=asked.left,
    )
