"""A small history without violations, which the checker's own tests change in one way each."""

import json
from typing import Any

from tests.integration.chaos.history import Audited, Entry, Event, Maintenance, Request, Run, Scope, Worked
from tests.integration.chaos.load import WRONG_ID

WALL_S = 1_000_000.0
OPERATOR = "127.11.0.1 by token"


def request(begin_s: float, what: str, **more: Any) -> Request:
    fields = {"who": "operator 1", "node": "node-1", "life": 1, "status": 200, "end_s": begin_s + 0.1, **more}
    return Request(begin_s=begin_s, what=what, **fields)


def document(incarnation: int, *events: tuple[str, str]) -> str:
    """Return a document of scope `shop`; an event whose id ends in 1 belongs to m1, others to m0."""
    shown = [
        {
            "EventId": event_id,
            "EventStatus": status,
            "Resources": ["m1" if event_id.endswith("1") else "m0"],
            "NotBefore": "" if status == "Started" else "later",
        }
        for event_id, status in events
    ]
    return json.dumps({"DocumentIncarnation": incarnation, "Events": shown})


def poll(begin_s: float, incarnation: int, *events: tuple[str, str], held: int = 0, **more: Any) -> Request:
    same = held == incarnation
    return request(
        begin_s, "poll",
        **{
            "who": "guest shop/m0", "scope": "shop", "machine": "m0", "etag": f'"{incarnation}"',
            "if_none_match": f'"{held}"' if held else "", "status": 304 if same else 200,
            "body": "" if same else document(incarnation, *events), **more,
        },
    )  # fmt: skip


def note(number: int, at_s: float, action: str, **more: Any) -> Audited:
    return Audited(id=number, at=WALL_S + at_s, **{"who": "operator", "origin": OPERATOR, "action": action, **more})


def example_history() -> list[Entry]:
    """P is a Preempt without approval; R-1 is approved, fails once and is retried; C is paused and cancelled."""
    p, r, c = ({"event": e, "maintenance": f"of-{e}", "scope": "shop"} for e in ("P", "R-1", "C"))
    ticker = {"who": "ticker", "origin": "vm:1"}
    at = WALL_S
    return [
        Run(seed=1, wall_minus_monotonic_s=WALL_S, max_stale_s=6, disturbed_s=25),
        poll(1, 1),
        request(2, "submit", key="k-p", status=0, end_s=4.0, node="node-2"),
        request(4.2, "submit", key="k-p", status=201, answered_ids=("of-P", "P")),
        poll(4.4, 2, ("P", "Scheduled"), held=1),
        request(5, "submit", key="k-r", status=201, answered_ids=("of-R-1", "R-1")),
        poll(5.2, 3, ("P", "Scheduled"), ("R-1", "Scheduled"), held=2),
        request(6, "approve", who="guest shop/m1", scope="shop", machine="m1", ids=("R-1",), status=503),
        request(6.3, "approve", who="guest shop/m1", scope="shop", machine="m1", ids=("R-1",), node="node-2"),
        request(6.5, "approve", who="guest shop/m0", scope="shop", machine="m0", ids=("R-1", WRONG_ID), status=400),
        poll(7, 4, ("P", "Scheduled"), ("R-1", "Started"), held=3, node="node-2"),
        poll(7.2, 4, held=4, node="node-3"),
        request(8, "retry event", ids=("R-1",)),
        request(8.2, "submit", key="k-c", status=201, answered_ids=("of-C", "C")),
        request(8.5, "pause maintenance", ids=("of-C",)),
        request(8.7, "resume maintenance", ids=("of-C",), status=0),
        request(8.9, "cancel maintenance", ids=("of-C",)),
        poll(9.2, 6, ("P", "Scheduled"), ("R-1", "Started"), held=4),
        poll(10, 7, ("P", "Scheduled"), held=6),
        poll(20, 7, held=7),
        poll(20, 7, ("P", "Scheduled"), who="operator 1"),
        request(21, "approve event", ids=("P",), status=409),
        poll(36, 8, ("P", "Started"), held=7),
        poll(47, 9, held=8),
        Worked(what="began", order="R-1", attempt=1, at=at + 6.8),
        Worked(what="ended", order="R-1", attempt=1, at=at + 7.1),
        Worked(what="began", order="R-1", attempt=2, at=at + 8.3),
        Worked(what="ended", order="R-1", attempt=2, at=at + 9.4),
        Worked(what="began", order="P", attempt=1, at=at + 45.6),
        Worked(what="ended", order="P", attempt=1, at=at + 46.0),
        Scope(name="shop", approval="any"),
        *(Maintenance(id=f"of-{e}", status=s, description=f"{k} by hand", ended=True)
          for e, s, k in (("P", "Completed", "k-p"), ("C", "Cancelled", "k-c"))),
        Maintenance(id="of-R-1", status="Completed", description="k-r fails-once;", ended=True),
        Event(id="P", maintenance="of-P", scope="shop", type="Preempt", status="Completed", resources=("m0",),
              published_at=at + 4.1, not_before_at=at + 35, started_at=at + 35.1, notice_s=30),
        Event(id="R-1", maintenance="of-R-1", scope="shop", type="Reboot", status="Completed", resources=("m1",),
              published_at=at + 5, not_before_at=at + 906, started_at=at + 6.5, notice_s=901),
        Event(id="C", maintenance="of-C", scope="shop", type="Freeze", status="Cancelled", resources=("m0",),
              published_at=at + 8.2, not_before_at=at + 909, notice_s=900),
        note(1, 4.1, "event published", **p),
        note(2, 5, "event published", **r),
        note(3, 6.2, "event approved", **{**r, "who": "shop/m1"}),
        note(4, 6.5, "event started", **{**r, **ticker}),
        note(5, 6.6, "order taken", **{**r, **ticker}, detail="attempt 1 by command on vm:1"),
        note(6, 7.2, "order failed", **{**r, **ticker}),
        note(7, 8, "event retry by operator", **r),
        note(8, 8.1, "order taken", **{**r, **ticker}, detail="attempt 2 by command on vm:1"),
        note(9, 8.2, "event published", **c),
        note(10, 8.5, "maintenance paused", maintenance="of-C"),
        note(11, 8.7, "maintenance resumed", maintenance="of-C"),
        note(12, 8.9, "maintenance cancelled", maintenance="of-C"),
        note(13, 8.9, "event cancelled", **c),
        note(14, 9.5, "order finished", **{**r, **ticker}),
        note(15, 35.1, "event started", **{**p, **ticker}),
        note(16, 35.2, "order taken", **{**p, **ticker}, detail="attempt 1 by command on vm:1"),
        note(17, 45.7, "order in doubt", **{**p, **ticker}, detail="attempt 1 by command on vm:1: away"),
        note(18, 45.8, "order taken over", **{**p, **ticker}, detail="attempt 1 by command on vm:2, taken by command on vm:1"),
        note(19, 46.1, "order finished", **{**p, **ticker}),
    ]  # fmt: skip
