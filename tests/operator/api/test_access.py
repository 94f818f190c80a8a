"""Who may do what: every route with every role, owners and their scopes, tokens, and the mode without them."""

import gc
import logging
import os
import socket
import stat
from collections.abc import Iterator

import pytest

from forewarn.app.operator_token import keep_operator_token
from forewarn.core.errors import InvalidSettings, StoreUnavailable, Unauthorized
from forewarn.core.model import Role, Token
from forewarn.operator.api.access import Access, digest
from forewarn.operator.api.calls import CALLS, Call
from forewarn.operator.http_limits import GateSocket
from forewarn.service.settings import load
from tests.operator.api.house import FLEET, House, folder_of, house
from tests.support.guest_service import START

NOWHERE = {"scope": "shop", "name": "none", "id": "none"}


@pytest.fixture(scope="module")
def home() -> Iterator[House]:
    with house() as running:
        yield running


def place(call: Call, **names: str) -> str:
    return call.path.format(**{**NOWHERE, **names})


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.method} {call.path}")
@pytest.mark.parametrize("token", ["", "fw_wrong", "x" * 5_000])
def test_without_a_known_token_there_is_nothing_but_401(home: House, call: Call, token: str) -> None:
    """Before the path, the method, the parameters or the body are looked at."""
    reply = home.ask(call.method, place(call) + "?nonsense=1", b"{" * 100, token=token)
    assert (reply.status, reply.code) == (401, "unauthorized")
    assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/v1/none", "/v1/", "/v1/events/x/y/z", "/v1/stream"])
def test_nor_anywhere_else_under_v1(home: House, path: str) -> None:
    """What does not exist is no more told to strangers than what does."""
    assert home.ask("GET", path, token="").status == 401


@pytest.fixture(scope="module")
def tokens(home: House) -> dict[Role, str]:
    return {role: home.token_of(role, *(["shop"] if role is Role.OWNER else []), name=role) for role in Role}


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.method} {call.path}")
def test_every_route_and_role(home: House, call: Call, role: Role, tokens: dict[Role, str]) -> None:
    """403 for whom the table does not name, before anything else; whoever it names is asked what they want."""
    reply = home.ask(call.method, place(call) + "?nonsense=1", b"{" * 100, token=tokens[role])
    if role in call.roles:
        assert reply.status in (400, 404, 422), reply.raw
    else:
        assert (reply.status, reply.code) == (403, "forbidden")


def test_pages_answer_in_the_same_shape(home: House) -> None:
    """Another method on a page, a slash too many, a path of nobody's."""
    for method, path, status in (
        ("POST", "/healthz", 405),
        ("DELETE", "/v1/openapi.json", 405),
        ("GET", "/v1/docs/", 404),
        ("GET", "/nothing", 404),
    ):
        reply = home.ask(method, path)
        assert (reply.status, bool(reply.message)) == (status, True), path
    page = home.ask("GET", "/v1/docs", token="")
    assert (page.status, b"<title>forewarn: the API</title>" in page.raw) == (200, True)
    assert home.ask("HEAD", "/v1/scopes").status == 200


def test_every_call_has_a_name_of_its_own() -> None:
    """The description's operation ids are unique: client generators need that."""
    names = [call.name for call in CALLS]
    assert len(set(names)) == len(names)


def test_an_owner_does_not_approve_what_operators_alone_may() -> None:
    """Where the scope says approval = operator, bringing it forward is not the tenant's."""
    with house(FLEET.replace('kind = "availability-set"', 'kind = "availability-set"\napproval = "operator"')) as home:
        home.enable("blog")
        event = home.schedule("blog/db")["waves"][0]["events"][0]["id"]
        refused = home.ask("POST", f"/v1/events/{event}/approve", token=home.token_of("owner", "blog"))
        assert (refused.status, "operators alone" in refused.message) == (403, True)


def test_the_table_gives_no_role_too_much() -> None:
    """Viewers change nothing; owners change what DESIGN names and nothing else."""
    for call in CALLS:
        if call.method != "GET":
            assert Role.VIEWER not in call.roles, call.path
    owners = {(c.method, c.path.rpartition("/")[2]) for c in CALLS if Role.OWNER in c.roles and c.method != "GET"}
    assert owners == {("POST", "restart"), ("POST", "redeploy"), ("POST", "approve"), ("POST", "cancel")}
    assert all(Role.OPERATOR in call.roles for call in CALLS)


def test_an_owner_sees_and_touches_its_own_scopes_only() -> None:
    """Lists leave others out, single things of others do not exist, their scopes are refused."""
    with house() as home:
        home.enable("shop", "blog")
        owner = home.token_of("owner", "blog")
        everything = home.post("/v1/maintenances", {"type": "Reboot", "targets": {"hosts": ["rack1-a"]}}, 201)
        events = {e["scope"]: e["id"] for e in everything["waves"][0]["events"]}
        home.post("/v1/clock/advance", {"seconds": 1000})
        foreign = home.schedule("shop/web-1")
        for path, key in (("/v1/scopes", "name"), ("/v1/machines", "scope"), ("/v1/events", "scope")):
            assert {item[key] for item in home.get(path, token=owner)["items"]} == {"blog"}, path
        assert {order["scope"] for order in home.get("/v1/orders", token=owner)["items"]} == {"blog"}
        audit = home.get("/v1/audit", token=owner)["items"]
        assert {(entry["scope"], entry["origin"]) for entry in audit} == {("blog", "")}
        assert [m["id"] for m in home.get("/v1/maintenances", token=owner)["items"]] == [everything["id"]]
        told = home.get(f"/v1/maintenances/{everything['id']}", token=owner)
        assert [e["scope"] for wave in told["waves"] for e in wave["events"]] == ["blog"]
        assert {m["scope"] for m in home.get("/v1/fleet", token=owner)["machines"]} == {"blog"}
        assert home.ask("GET", f"/v1/maintenances/{foreign['id']}", token=owner).status == 404
        assert home.ask("GET", f"/v1/events/{events['shop']}", token=owner).status == 404
        assert home.ask("POST", f"/v1/events/{events['shop']}/approve", token=owner).status == 404
        assert home.ask("GET", "/v1/scopes/shop", token=owner).status == 403
        assert home.ask("POST", "/v1/scopes/shop/machines/web-0/restart", token=owner).status == 403
        assert home.ask("GET", "/v1/scopes/none", token=owner).status == 403
        assert "shop" not in home.ask("GET", "/v1/events", token=owner).raw.decode()


def test_an_owner_cancels_user_events_but_not_the_platforms() -> None:
    """Its own restart, yes; a platform maintenance of its scope, no."""
    with house() as home:
        home.enable("blog")
        owner = home.token_of("owner", "blog")
        mine = home.post("/v1/scopes/blog/machines/db/restart", status=202, token=owner)
        theirs = home.schedule("blog/db")["waves"][0]["events"][0]
        assert home.post(f"/v1/events/{mine['id']}/cancel", token=owner)["status"] == "Cancelled"
        refused = home.ask("POST", f"/v1/events/{theirs['id']}/cancel", token=owner)
        assert (refused.status, refused.code) == (403, "forbidden")
        assert home.post(f"/v1/events/{theirs['id']}/approve", token=owner)["approved_by"][0]["who"] == "somebody"


def test_what_an_owner_waits_for_elsewhere_is_not_told() -> None:
    """That something is in the way, and of which kind; not what."""
    with house() as home:
        home.enable("shop", "blog")
        owner = home.token_of("owner", "blog")
        made = home.post("/v1/maintenances", {"type": "Reboot", "targets": {"hosts": ["rack1-a"]}}, 201)
        blog = next(e["id"] for e in made["waves"][0]["events"] if e["scope"] == "blog")
        home.post(f"/v1/events/{blog}/approve")
        reasons = {r["code"]: r for r in home.get(f"/v1/events/{blog}", token=owner)["waiting_for"]}
        assert reasons["wave"] == {"code": "wave", "message": "it waits for something outside your scopes"}


def test_the_operators_token_is_the_users_alone(home: House) -> None:
    """Mode 0600, and neither it nor any other secret is in the database."""
    path = folder_of(home) / "operator.token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = home.token_of("viewer")
    for file in folder_of(home).glob("forewarn.db*"):
        assert secret.encode() not in file.read_bytes()
        assert home.token.encode() not in file.read_bytes()


def test_a_revoked_operator_token_is_replaced_at_the_next_start() -> None:
    """What was revoked does not come back; the file has a new one."""
    with house() as home:
        other = home.token_of("operator", name="second")
        first = next(t for t in home.get("/v1/tokens", token=other)["items"] if t["name"] == "operator")
        assert home.ask("DELETE", f"/v1/tokens/{first['id']}", token=other).status == 204
        keep_operator_token(home.service, folder_of(home) / "operator.token")
        fresh = (folder_of(home) / "operator.token").read_text().strip()
        assert fresh != home.token
        assert home.ask("GET", "/v1/scopes", token=fresh).status == 200
        assert home.ask("GET", "/v1/scopes").status == 401


def test_the_environments_token_is_an_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """`FOREWARN_TOKEN` where the service was started."""
    monkeypatch.setitem(os.environ, "FOREWARN_TOKEN", "a secret of my own")
    with house() as home:
        assert home.ask("GET", "/v1/tokens", token="a secret of my own").status == 200


def test_no_secret_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is asked, in whatever way it fails."""
    with caplog.at_level(logging.DEBUG), house() as home:
        secret = home.token_of("viewer")
        for token in (secret, home.token, "fw_wrong-but-somebodys"):
            for path in ("/v1/scopes", f"/v1/none?token={token}", "/v1/events?status=x"):
                home.ask("GET", path, token=token)
            home.ask("POST", "/v1/tokens", {"name": token, "role": "viewer"}, token=token)
        logged = caplog.text
    for token in (secret, home.token, "fw_wrong-but-somebodys"):
        assert token not in logged


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8170"}, 200),
        ({"Host": "[::1]:8170"}, 200),
        ({"Origin": "http://127.0.0.1:8170"}, 200),
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
def test_without_tokens_only_loopback_may_ask(headers: dict[str, str], status: int) -> None:
    """A page somewhere else must not be able to use the visitor's own emulator, whatever name it resolves."""
    with house(token_free="true") as home:
        assert not (folder_of(home) / "operator.token").exists()
        for path in ("/v1/scopes", "/readyz", "/metrics"):
            assert home.ask("GET", path, headers=headers).status == status
        assert home.ask("GET", "/healthz", headers=headers).status == 200  # says nothing of the fleet


def test_the_environments_token_is_known_without_asking_the_store() -> None:
    """Whoever brings it may look, and is told why nothing else works, while the store is away."""

    def away() -> list[Token]:
        raise StoreUnavailable("away")

    access = Access(away, environment_token="of the environment")
    for identify in (access.identify, access.watcher):
        assert identify(bearing("of the environment"), "127.0.0.1").role is Role.OPERATOR
    with pytest.raises(StoreUnavailable):
        access.identify(bearing("another"), "127.0.0.1")
    with pytest.raises(Unauthorized):
        access.watcher(bearing("another"), "127.0.0.1")


def test_a_watcher_does_not_wait_for_a_store_that_does_not_answer() -> None:
    """Where it is known to be silent it is not asked: whoever it knew at the start may look."""
    kept = Token(id="kept", name="kept", role=Role.VIEWER, digest=digest("kept"), created=START)
    asked: list[int] = []

    def tokens() -> list[Token]:
        asked.append(1)
        return [kept]

    answers = True
    access = Access(tokens, reachable=lambda: answers)
    access.learn()
    answers = False
    assert access.watcher(bearing("kept"), "127.0.0.1").name == "kept"
    assert len(asked) == 1


def test_whoever_watches_is_known_while_the_store_is_away() -> None:
    """Health and metrics can be looked at by whom the store last knew; a token revoked before is not among them."""
    kept, gone = (Token(id=i, name=i, role=Role.VIEWER, digest=digest(i), created=START) for i in ("kept", "gone"))
    answers: list[list[Token] | None] = [[kept, gone], [kept], None, None, None]

    def tokens() -> list[Token]:
        answer = answers.pop(0)
        if answer is None:
            raise StoreUnavailable("away")
        return answer

    access = Access(tokens)
    assert access.watcher(bearing("gone"), "127.0.0.1").name == "gone"
    assert access.watcher(bearing("kept"), "127.0.0.1").name == "kept"
    assert access.watcher(bearing("kept"), "127.0.0.1").name == "kept"
    with pytest.raises(Unauthorized):
        access.watcher(bearing("gone"), "127.0.0.1")
    with pytest.raises(StoreUnavailable):
        access.identify(bearing("kept"), "127.0.0.1")


def bearing(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_without_tokens_is_refused_where_it_is_dangerous() -> None:
    """Off loopback, and with commands."""
    for flags in (
        {"token_free": "true", "executor": "command", "command": "/bin/true"},
        {"token_free": "true", "operator": "10.0.0.1:8170", "behind_tls_proxy": "true"},
    ):
        with pytest.raises(InvalidSettings, match="token_free"):
            load(flags, {})


def test_off_loopback_needs_tls() -> None:
    """Or a proxy that has it; a certificate goes with its key."""
    with pytest.raises(InvalidSettings, match="unencrypted"):
        load({"operator": "10.0.0.1:8170"}, {})
    with pytest.raises(InvalidSettings, match="tls_key"):
        load({"operator": "10.0.0.1:8170", "tls_cert": "cert.pem"}, {})
    assert load({"operator": "10.0.0.1:8170", "behind_tls_proxy": "true"}, {}).behind_tls_proxy


def test_answers_leave_at_once(home: House) -> None:
    """On a connection that stays, no answer waits for an acknowledgement: what is accepted has TCP_NODELAY."""
    opened = [each for each in gc.get_objects() if isinstance(each, GateSocket) and each.fileno() >= 0]
    assert opened
    assert all(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in opened)
