"""Health, readiness and metrics."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping

from starlette.applications import Starlette

from forewarn.app.health import guest_counts
from forewarn.core.errors import StoreUnavailable
from forewarn.operator.monitoring import TICKER_SILENT_S, Guard, Readiness, operator_app
from tests.support.guest_service import STRANGER, URL, WEB_0, Serving, get, serving, status
from tests.support.waiting import until


def request(app: Starlette, path: str) -> tuple[int, dict[str, str], bytes]:
    """Make one request without a network and return status, headers and body."""
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [], "app": app}
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    start, body = sent[0], b"".join(bytes(each.get("body", b"")) for each in sent[1:])  # type: ignore[call-overload]
    headers = {key.decode(): value.decode() for key, value in start["headers"]}  # type: ignore[attr-defined]
    return int(str(start["status"])), headers, body


def app_of(
    served: Serving,
    *,
    ticked_at_s: Callable[[], float | None] = time.monotonic,
    store_problem: Callable[[], str] = lambda: "",
    executor_problem: Callable[[], str] = lambda: "",
    guests_accepted: Callable[[], bool] = lambda: True,
    guard: Guard | None = None,
) -> Starlette:
    readiness = Readiness(
        ticked_at_s=ticked_at_s,
        store_problem=store_problem,
        executor_problem=executor_problem,
        guests_accepted=guests_accepted,
    )
    return operator_app(readiness, guest_counts=lambda: guest_counts(served.endpoint), guard=guard)


def metrics(served: Serving) -> dict[str, float]:
    code, headers, body = request(app_of(served), "/metrics")
    assert code == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = re.findall(r"^forewarn_guest_(\S+) (\S+)$", body.decode(), re.MULTILINE)
    return {name: float(value) for name, value in lines}


def test_healthz_says_that_the_process_lives() -> None:
    """200 and the version, whatever else fails."""
    with serving() as served:
        code, _, body = request(app_of(served, store_problem=lambda: "away"), "/healthz")
        assert code == 200
        assert json.loads(body)["status"] == "ok"


def test_healthz_needs_no_token() -> None:
    """A process is not restarted because the database with the tokens is away; readiness and metrics are guarded."""

    def refuse(headers: Mapping[str, str], peer: str) -> None:
        raise StoreUnavailable("the database is away")

    with serving() as served:
        app = app_of(served, guard=refuse)
        assert [request(app, path)[0] for path in ("/healthz", "/readyz", "/metrics")] == [200, 503, 503]


def test_readyz_says_which_part_does_not_work() -> None:
    """200 only if the store works, the ticker ticks, the executor can work and the guest listener accepts."""
    with serving() as served:
        assert request(app_of(served), "/readyz")[0] == 200
        late_s = time.monotonic() - TICKER_SILENT_S - 1
        wrong = {
            "store": app_of(served, store_problem=lambda: "the disk is full"),
            "ticker": app_of(served, ticked_at_s=lambda: late_s),
            "executor": app_of(served, executor_problem=lambda: "its program is gone"),
            "guest": app_of(served, guests_accepted=lambda: False),
        }
        for part, app in wrong.items():
            code, _, body = request(app, "/readyz")
            reply = json.loads(body)
            assert (code, reply["ready"]) == (503, False)
            assert [name for name, result in reply["checks"].items() if result != "ok"] == [part]
        assert request(app_of(served, ticked_at_s=lambda: None), "/readyz")[0] == 503


def test_readyz_follows_the_real_listener() -> None:
    """It accepts after its start, and no longer after its stop."""
    with serving() as served:
        app = app_of(
            served, store_problem=served.service.health.store_problem, guests_accepted=served.server.listener.accepting
        )
        assert request(app, "/readyz")[0] == 200
        served.store.away = True
        served.server.listener.stop(0.5)
        assert request(app, "/readyz")[0] == 503


def test_metrics_count_the_requests_of_guests() -> None:
    """Requests by status and lane, connections, long polls, unknown callers and forged identities."""
    with serving(guest_connections=2) as served:
        client = served.client()
        for _ in range(4):
            assert status(client.ask(get())) == 200
        for _ in range(4):
            assert status(client.ask(get(URL, 'If-None-Match: "1"'))) == 304
        assert status(client.ask(get("/nowhere"))) == 404
        assert status(client.ask(get(URL, "X-Instance-ID: i-web-1"))) == 400
        assert status(served.client(STRANGER).ask(get())) == 404
        second = served.client().send(get(URL, "Prefer: wait=30", 'If-None-Match: "1"'))
        until(lambda: metrics(served)["waiting"] == 1)
        assert served.client(WEB_0).closed()
        seen = metrics(served)
        assert seen['requests_total{status="200"}'] == 4
        assert seen['requests_total{status="304"}'] == 4
        assert seen['requests_total{status="404"}'] == 2
        assert seen['requests_total{status="400"}'] == 1
        assert seen['lane_total{lane="remembered"}'] == 4
        assert seen['lane_total{lane="parsed"}'] == 8
        assert seen["connections"] == 3
        assert seen["waiting"] == 1
        assert seen["connections_accepted_total"] == 4
        assert seen['connections_refused_total{limit="machine"}'] == 1
        assert seen['connections_refused_total{limit="unknown"}'] == 0
        assert seen["connections_paused_total"] == 0
        assert seen["unknown_callers_total"] == 1
        assert seen["forged_identities_total"] == 1
        assert seen["timed_out_total"] == 0
        rendered = seen["documents_rendered_total"]
        served.reboot("shop", "web-0")
        assert status(second.answer()) == 200
        until(lambda: metrics(served)["waiting"] == 0)
        assert metrics(served)["documents_rendered_total"] == rendered + 1
