"""Who may do what: every call with every role, owners and their scopes, tokens, and the mode without tokens."""

import gc
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from forewarn.app.operator_token import keep_operator_token
from forewarn.core.errors import InvalidSettings, StoreUnavailable, Unauthorized
from forewarn.core.operator_model import Role, Token
from forewarn.operator.api.access import Access, digest
from forewarn.operator.api.calls import CALLS, Call
from forewarn.operator.api.failed_attempts import FailedAttempts
from forewarn.operator.open_connections import LimitedSocket
from forewarn.service.settings import load
from tests.support.guest_service import START
from tests.support.running_service import FLEET, RunningService, running_service
from tests.support.waiting import PATIENCE_S

NOWHERE = {"scope": "shop", "name": "none", "id": "none", "host": "none", "window": "none", "no_go_time": "none"}


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    """A service that does not limit wrong tokens: these tests send hundreds."""
    with running_service() as running:
        running.allow_wrong_tokens()
        yield running


def path_of(call: Call, **names: str) -> str:
    return call.path.format(**{**NOWHERE, **names})


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.method} {call.path}")
@pytest.mark.parametrize("token", ["", "fw_wrong", "x" * 5_000])
def test_without_a_known_token_every_call_gets_401(service: RunningService, call: Call, token: str) -> None:
    """Before the method, the parameters or the body are read."""
    reply = service.request(call.method, path_of(call) + "?nonsense=1", b"{" * 100, token=token)
    assert (reply.status, reply.code) == (401, "unauthorized")
    assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/v1/none", "/v1/", "/v1/events/x/y/z", "/v1/stream"])
def test_without_a_token_every_path_under_v1_gets_401(service: RunningService, path: str) -> None:
    """Also a path that does not exist."""
    assert service.request("GET", path, token="").status == 401


@pytest.fixture(scope="module")
def tokens(service: RunningService) -> dict[Role, str]:
    return {role: service.token_of(role, *(["shop"] if role is Role.OWNER else []), name=f"a {role}") for role in Role}


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.method} {call.path}")
def test_a_call_needs_a_role_that_the_table_names(
    service: RunningService, call: Call, role: Role, tokens: dict[Role, str]
) -> None:
    """403 before anything else is read; for the other roles the request is read."""
    reply = service.request(call.method, path_of(call) + "?nonsense=1", b"{" * 100, token=tokens[role])
    if role in call.roles:
        assert reply.status in (400, 404, 422), reply.raw
    else:
        assert (reply.status, reply.code) == (403, "forbidden")


def test_errors_of_pages_have_the_same_shape(service: RunningService) -> None:
    """A wrong method, a slash too many, an unknown path."""
    for method, path, status in (
        ("POST", "/healthz", 405),
        ("DELETE", "/v1/openapi.json", 405),
        ("GET", "/v1/docs/", 404),
        ("GET", "/nothing", 404),
    ):
        reply = service.request(method, path)
        assert (reply.status, bool(reply.message)) == (status, True), path
    page = service.request("GET", "/v1/docs", token="")
    assert (page.status, b"<title>forewarn: the API</title>" in page.raw) == (200, True)
    assert service.request("HEAD", "/v1/scopes").status == 200


def test_no_other_page_shows_the_docs_in_a_frame(service: RunningService) -> None:
    """A page that frames the docs could lead a reader's clicks."""
    for path in ("/v1/docs", "/v1/docs.js", "/v1/docs.css"):
        policy = service.request("GET", path, token="").headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy, path


def test_every_call_has_a_unique_name() -> None:
    """Client generators need unique operation ids."""
    names = [call.name for call in CALLS]
    assert len(set(names)) == len(names)


def test_an_owner_does_not_approve_where_only_operators_may() -> None:
    """Where the scope has approval = operator."""
    with running_service(
        FLEET.replace('kind = "availability-set"', 'kind = "availability-set"\napproval = "operator"')
    ) as service:
        service.enable("blog")
        event = service.schedule("blog/db")["waves"][0]["events"][0]["id"]
        refused = service.request("POST", f"/v1/events/{event}/approve", token=service.token_of("owner", "blog"))
        assert (refused.status, "operators alone" in refused.message) == (403, True)


def test_the_table_lets_viewers_and_owners_change_no_more_than_stated() -> None:
    """Viewers change nothing; owners restart, redeploy, approve, cancel, reschedule, and manage hooks and calendar tokens;
    operators do everything; tokens for the calendar make no call at all."""
    for call in CALLS:
        if call.method != "GET":
            assert Role.VIEWER not in call.roles, call.path
    changes = [call for call in CALLS if Role.OWNER in call.roles and call.method != "GET"]
    owners = {(c.method, c.path.rpartition("/")[2]) for c in changes if not c.path.startswith("/v1/hooks")}
    tokens = {("POST", "tokens"), ("DELETE", "{id}")}
    assert (
        owners
        == {
            ("POST", "restart"),
            ("POST", "redeploy"),
            ("POST", "approve"),
            ("POST", "cancel"),
            ("POST", "reschedule"),
            ("POST", "drills"),
        }
        | tokens
    )
    assert not any(Role.CALENDAR in call.roles for call in CALLS)
    assert all(Role.OPERATOR in call.roles for call in CALLS)


def test_an_owner_sees_and_changes_its_own_scopes_only() -> None:
    """Lists leave other scopes out, their events and maintenances get 404, the scopes themselves 403."""
    with running_service() as service:
        service.enable("shop", "blog")
        owner = service.token_of("owner", "blog")
        everything = service.post("/v1/maintenances", {"type": "Reboot", "targets": {"hosts": ["rack1-a"]}}, 201)
        events = {e["scope"]: e["id"] for e in everything["waves"][0]["events"]}
        service.post("/v1/clock/advance", {"seconds": 1000})
        foreign = service.schedule("shop/web-1")
        for path, key in (("/v1/scopes", "name"), ("/v1/machines", "scope"), ("/v1/events", "scope")):
            assert {item[key] for item in service.get(path, token=owner)["items"]} == {"blog"}, path
        assert {order["scope"] for order in service.get("/v1/orders", token=owner)["items"]} == {"blog"}
        audit = service.get("/v1/audit", token=owner)["items"]
        assert {(entry["scope"], entry["origin"]) for entry in audit} == {("blog", "")}
        assert [m["id"] for m in service.get("/v1/maintenances", token=owner)["items"]] == [everything["id"]]
        shown = service.get(f"/v1/maintenances/{everything['id']}", token=owner)
        assert [e["scope"] for wave in shown["waves"] for e in wave["events"]] == ["blog"]
        assert {m["scope"] for m in service.get("/v1/fleet", token=owner)["machines"]} == {"blog"}
        assert service.request("GET", f"/v1/maintenances/{foreign['id']}", token=owner).status == 404
        assert service.request("GET", f"/v1/events/{events['shop']}", token=owner).status == 404
        assert service.request("POST", f"/v1/events/{events['shop']}/approve", token=owner).status == 404
        assert service.request("GET", "/v1/scopes/shop", token=owner).status == 403
        assert service.request("POST", "/v1/scopes/shop/machines/web-0/restart", token=owner).status == 403
        assert service.request("GET", "/v1/scopes/none", token=owner).status == 403
        assert "shop" not in service.request("GET", "/v1/events", token=owner).raw.decode()


def test_an_owner_reschedules_events_of_its_own_scopes() -> None:
    """Also the platform's. Both events name each other; the audit names the owner; another scope's event is unknown."""
    with running_service() as service:
        service.enable("shop", "blog")
        owner = service.token_of("owner", "blog")
        made = service.post("/v1/maintenances", {"type": "Reboot", "targets": {"machines": ["blog/db"]}}, 201)
        first, later = made["waves"][0]["events"][0]["id"], {"not_before": "2040-01-01T02:00:00+02:00"}
        moved = service.post(f"/v1/events/{first}/reschedule", later, token=owner)
        assert (moved["replaces"], moved["reschedules"], moved["status"]) == (first, 1, "Planned")
        assert moved["requested_not_before"] == "2040-01-01T00:00:00Z"
        assert service.get(f"/v1/events/{first}", token=owner)["replaced_by"] == moved["id"]
        assert [entry["what"] for entry in moved["timeline"]] == ["rescheduled"]
        assert service.get(f"/v1/maintenances/{made['id']}")["progress"]["undone"] == 0
        again = service.request("POST", f"/v1/events/{first}/reschedule", later, token=owner)
        assert (again.status, again.json["error"]["code"]) == (409, "illegal_transition")
        naive = service.request("POST", f"/v1/events/{moved['id']}/reschedule", {"not_before": "2040-01-01T00:00:00"})
        assert naive.status == 400
        foreign = service.schedule("shop/web-1")["waves"][0]["events"][0]["id"]
        assert service.request("POST", f"/v1/events/{foreign}/reschedule", later, token=owner).status == 404
        viewer = service.token_of("viewer")
        assert service.request("POST", f"/v1/events/{foreign}/reschedule", later, token=viewer).status == 403


def test_an_owner_cancels_user_events_but_not_the_platforms() -> None:
    """It may approve both."""
    with running_service() as service:
        service.enable("blog")
        owner = service.token_of("owner", "blog")
        mine = service.post("/v1/scopes/blog/machines/db/restart", status=202, token=owner)
        theirs = service.schedule("blog/db")["waves"][0]["events"][0]
        assert service.post(f"/v1/events/{mine['id']}/cancel", token=owner)["status"] == "Cancelled"
        refused = service.request("POST", f"/v1/events/{theirs['id']}/cancel", token=owner)
        assert (refused.status, refused.code) == (403, "forbidden")
        assert service.post(f"/v1/events/{theirs['id']}/approve", token=owner)["approved_by"][0]["who"] == "tester"


def test_an_owner_is_not_shown_what_waits_outside_its_scopes() -> None:
    """Only that there is a reason, and its code."""
    with running_service() as service:
        service.enable("shop", "blog")
        owner = service.token_of("owner", "blog")
        made = service.post("/v1/maintenances", {"type": "Reboot", "targets": {"hosts": ["rack1-a"]}}, 201)
        blog = next(e["id"] for e in made["waves"][0]["events"] if e["scope"] == "blog")
        service.post(f"/v1/events/{blog}/approve")
        reasons = {r["code"]: r for r in service.get(f"/v1/events/{blog}", token=owner)["waiting_for"]}
        assert reasons["wave"] == {"code": "wave", "message": "it waits for something outside your scopes"}


def test_the_operators_token_is_readable_by_its_user_alone(service: RunningService) -> None:
    """Mode 0600, and no secret is in the database."""
    path = service.state_dir / "operator.token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = service.token_of("viewer")
    for file in service.state_dir.glob("forewarn.db*"):
        assert secret.encode() not in file.read_bytes()
        assert service.token.encode() not in file.read_bytes()


def test_a_revoked_operator_token_is_replaced_at_the_next_start() -> None:
    """The file gets a new token; the revoked one stays refused."""
    with running_service() as service:
        other = service.token_of("operator", name="second")
        first = next(t for t in service.get("/v1/tokens", token=other)["items"] if t["name"] == "operator")
        assert service.request("DELETE", f"/v1/tokens/{first['id']}", token=other).status == 204
        keep_operator_token(service.service, service.state_dir / "operator.token")
        fresh = (service.state_dir / "operator.token").read_text().strip()
        assert fresh != service.token
        assert service.request("GET", "/v1/scopes", token=fresh).status == 200
        assert service.request("GET", "/v1/scopes").status == 401


def test_the_token_of_the_environment_is_an_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """`FOREWARN_TOKEN` of the process that serves."""
    monkeypatch.setitem(os.environ, "FOREWARN_TOKEN", "a secret of my own")
    with running_service() as service:
        assert service.request("GET", "/v1/tokens", token="a secret of my own").status == 200


def test_no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is requested, and however it fails."""
    with caplog.at_level(logging.DEBUG), running_service() as service:
        secret = service.token_of("viewer")
        for token in (secret, service.token, "fw_wrong-but-secret"):
            for path in ("/v1/scopes", f"/v1/none?token={token}", "/v1/events?status=x"):
                service.request("GET", path, token=token)
            service.request("POST", "/v1/tokens", {"name": token, "role": "viewer"}, token=token)
        logged = caplog.text
    for token in (secret, service.token, "fw_wrong-but-secret"):
        assert token not in logged


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8170"}, 200),
        ({"Host": "[::1]:8170"}, 200),
        ({"Host": "localhost:8170", "Origin": "http://localhost:8170"}, 200),
        ({"Host": "localhost:8170", "Origin": "http://LOCALHOST:8170", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Host": "localhost:8170", "Origin": "http://localhost:3000"}, 403),
        ({"Host": "localhost:8170", "Origin": "http://localhost"}, 403),
        ({"Host": "localhost:8170", "Origin": "http://127.0.0.1:8170"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "10.0.0.1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "["}, 403),
        ({"Origin": "http://["}, 403),
    ],
)
def test_without_tokens_only_loopback_is_served(headers: dict[str, str], status: int) -> None:
    """A foreign web page must not be able to use an emulator on its reader's machine, whatever name it resolves."""
    with running_service(token_free="true") as service:
        assert not (service.state_dir / "operator.token").exists()
        for path in ("/v1/scopes", "/readyz", "/metrics"):
            assert service.request("GET", path, headers=headers).status == status
        assert service.request("GET", "/healthz", headers=headers).status == 200  # says nothing of the fleet


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 201),
        ("Application/JSON; charset=utf-8", 201),
        ("text/plain", 400),
        ("text/plain;charset=UTF-8", 400),
        ("application/x-www-form-urlencoded", 400),
        ("multipart/form-data; boundary=x", 400),
        ("", 400),
    ],
)
def test_without_tokens_a_change_names_its_content_type(content_type: str, status: int) -> None:
    """A page of another site can send these other types without asking first; it cannot send JSON."""
    headers = {"Content-Type": content_type} if content_type else {}
    body = {"type": "Reboot", "targets": {"machines": ["shop/web-0"]}}
    with running_service(token_free="true") as service:
        reply = service.request("POST", "/v1/maintenances", body, headers=headers)
        assert reply.status == status, reply.raw
        assert len(service.get("/v1/maintenances")["items"]) == (status == 201)
    with running_service() as service:
        assert service.request("POST", "/v1/maintenances", body, headers=headers).status == 201


@pytest.mark.parametrize("path", ["/readyz", "/metrics"])
def test_on_loopback_monitoring_answers_loopback_names_only(service: RunningService, path: str) -> None:
    """A page whose name resolves to this machine cannot read them; a program that sends no Host can."""
    for host in ("localhost", "localhost:8170", "127.0.0.1:1", "[::1]:8170"):
        assert service.request("GET", path, token="", headers={"Host": host}).status == 200, host
    for host in ("evil.example", "localhost.evil.example:8170", "10.0.0.1", "["):
        reply = service.request("GET", path, token="", headers={"Host": host})
        assert (reply.status, reply.code) == (403, "forbidden"), host
    address = urlsplit(service.url)
    with socket.create_connection((str(address.hostname), address.port), timeout=PATIENCE_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        assert connection.recv(1_024).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/readyz", "/metrics"])
def test_behind_a_proxy_monitoring_needs_a_token(path: str) -> None:
    """Also on loopback: the proxy passes on requests of the whole network, with the public name as Host."""
    with running_service(behind_tls_proxy="true") as service:
        for host in ("ops.example", "localhost"):
            assert service.request("GET", path, token="", headers={"Host": host}).status == 401
            assert service.request("GET", path, headers={"Host": host}).status == 200
        assert service.request("GET", "/healthz", token="", headers={"Host": "ops.example"}).status == 200


def test_the_token_of_the_environment_works_while_the_store_is_away() -> None:
    """Its caller is identified without reading the store."""

    def away() -> list[Token]:
        raise StoreUnavailable("away")

    access = access_with(away, environment_token="of the environment")
    for identify in (access.identify, access.identify_for_monitoring):
        assert identify(bearer("of the environment"), "127.0.0.1").role is Role.OPERATOR
    with pytest.raises(StoreUnavailable):
        access.identify(bearer("another"), "127.0.0.1")
    with pytest.raises(Unauthorized):
        access.identify_for_monitoring(bearer("another"), "127.0.0.1")


def test_monitoring_does_not_wait_for_a_store_that_is_known_to_be_away() -> None:
    """The cached tokens count."""
    kept = Token(id="kept", name="kept", role=Role.VIEWER, digest=digest("kept"), created=START)
    reads: list[int] = []

    def tokens() -> list[Token]:
        reads.append(1)
        return [kept]

    reachable = True
    access = access_with(tokens, reachable=lambda: reachable)
    access.cache_tokens()
    reachable = False
    assert access.identify_for_monitoring(bearer("kept"), "127.0.0.1").name == "kept"
    assert len(reads) == 1


def test_monitoring_knows_its_callers_while_the_store_is_away() -> None:
    """By the tokens read last; a token revoked before that is refused."""
    kept, gone = (Token(id=i, name=i, role=Role.VIEWER, digest=digest(i), created=START) for i in ("kept", "gone"))
    answers: list[list[Token] | None] = [[kept, gone], [kept], None, None, None]

    def tokens() -> list[Token]:
        answer = answers.pop(0)
        if answer is None:
            raise StoreUnavailable("away")
        return answer

    access = access_with(tokens)
    assert access.identify_for_monitoring(bearer("gone"), "127.0.0.1").name == "gone"
    assert access.identify_for_monitoring(bearer("kept"), "127.0.0.1").name == "kept"
    assert access.identify_for_monitoring(bearer("kept"), "127.0.0.1").name == "kept"
    with pytest.raises(Unauthorized):
        access.identify_for_monitoring(bearer("gone"), "127.0.0.1")
    with pytest.raises(StoreUnavailable):
        access.identify(bearer("kept"), "127.0.0.1")


def access_with(tokens: Callable[[], list[Token]], **more: Any) -> Access:
    return Access(tokens, now=lambda: START, failures=FailedAttempts(lambda: 0.0), **more)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_running_without_tokens_is_refused_where_it_is_dangerous() -> None:
    """Off loopback, and with the command executor."""
    for flags in (
        {"token_free": "true", "executor": "command", "command": "/bin/true"},
        {"token_free": "true", "operator": "10.0.0.1:8170", "behind_tls_proxy": "true"},
    ):
        with pytest.raises(InvalidSettings, match="token_free"):
            load(flags, {})


def test_off_loopback_needs_tls() -> None:
    """Or a proxy that has TLS; a certificate needs its key."""
    with pytest.raises(InvalidSettings, match="unencrypted"):
        load({"operator": "10.0.0.1:8170"}, {})
    with pytest.raises(InvalidSettings, match="tls_key"):
        load({"operator": "10.0.0.1:8170", "tls_cert": "cert.pem"}, {})
    assert load({"operator": "10.0.0.1:8170", "behind_tls_proxy": "true"}, {}).behind_tls_proxy


def test_responses_are_sent_at_once(service: RunningService) -> None:
    """No response waits for an acknowledgement: connections have TCP_NODELAY."""
    opened = [each for each in gc.get_objects() if isinstance(each, LimitedSocket) and each.fileno() >= 0]
    assert opened
    assert all(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in opened)
