"""Logins: the cookie, the proof in forms, and the limit on failed attempts."""

import base64
import re
from datetime import timedelta
from urllib.parse import urlencode

import pytest

from forewarn.operator.api.failed_attempts import MAX_FAILURES
from forewarn.operator.portal import sessions
from forewarn.store.memory import MemoryStore
from tests.support.portal_client import FORM, MAINTENANCE, PortalClient, page_text, post_without_login
from tests.support.running_service import START, RunningService, running_service

POSTS = [
    "/plan",
    "/tokens",
    "/tokens/X/revoke",
    "/hooks",
    "/hooks/X/enable",
    "/events/X/approve",
    "/maintenances/X/pause",
    "/orders/X/start",
    "/logout",
]


def test_scripts_and_other_sites_cannot_use_the_cookie(service: RunningService, operator: PortalClient) -> None:
    """The cookie is HttpOnly and SameSite=Strict and has an end."""
    flags = [flag.strip() for flag in operator.set_cookie.split(";")[1:]]
    assert flags == ["Path=/", f"Max-Age={sessions.LOGIN_LASTS_S}", "HttpOnly", "SameSite=Strict"]


def test_the_cookie_does_not_hold_the_token(service: RunningService, operator: PortalClient) -> None:
    """Neither as it is nor encoded, and the API does not accept the cookie's value as a token."""
    value = operator.cookie.partition("=")[2]
    pieces = [value, *re.split(r"[.%_]", value)]
    decoded = [base64.urlsafe_b64decode(piece + "=" * (-len(piece) % 4)) for piece in pieces if len(piece) % 4 != 1]
    assert not any(service.token.encode() in each for each in (value.encode(), *decoded))
    assert service.request("GET", "/v1/scopes", token=value).status == 401


def test_the_store_does_not_hold_the_session_id(service: RunningService, operator: PortalClient) -> None:
    """A reader of the database or of a backup cannot use a login."""
    value = operator.cookie.partition("=")[2]
    for file in service.state_dir.glob("forewarn.db*"):
        assert value.encode() not in file.read_bytes()


def test_under_tls_the_cookie_is_secure() -> None:
    """Also behind a proxy with TLS; browsers enforce the prefix of its name."""
    with running_service(behind_tls_proxy="true") as running:
        cookie = PortalClient(running).set_cookie
    assert re.match(r"__Host-forewarn-\d+=", cookie)
    assert cookie.endswith("; HttpOnly; SameSite=Strict; Secure")


@pytest.mark.parametrize("path", ["/", "/scopes/shop", "/machines?host=rack1-a", "/tokens", "/plan", "/nowhere"])
def test_nothing_is_shown_before_the_login(service: RunningService, path: str) -> None:
    """Without a login every path shows the login page; after the login the requested page follows."""
    reply = service.request("GET", path, token="", headers={"Accept": "text/html"})
    assert reply.status == 401
    assert "web-0" not in reply.raw.decode()
    assert f'name="to" value="{path.replace("&", "&amp;")}"' in reply.raw.decode()
    then = post_without_login(service, "/login", {"token": service.token, "to": path})
    assert (then.status, then.headers["location"]) == (303, path)


@pytest.mark.parametrize(
    "value", ["", "x", "9999999999", "9999999999.", "9999999999.!!!", "9999999999.AAAA", "-1.QUJD", "9" * 400]
)
def test_a_malformed_cookie_is_no_login(operator: PortalClient, value: str) -> None:
    """Whatever it contains, the response is 401."""
    name = operator.cookie.partition("=")[0]
    reply = operator.service.request("GET", "/", token="", headers={"Cookie": f"{name}={value}"})
    assert reply.status == 401


@pytest.mark.parametrize("others", ["{name}=x; {cookie}", "{cookie}; {name}=x", "{cookie}; {cookie}"])
def test_a_cookie_that_comes_twice_is_no_login(operator: PortalClient, others: str) -> None:
    """Another program on this host may have set one of them, and nobody can tell which."""
    name = operator.cookie.partition("=")[0]
    cookies = others.format(name=name, cookie=operator.cookie)
    assert operator.service.request("GET", "/", token="", headers={"Cookie": cookies}).status == 401
    assert operator.get("/", Cookie=f"other=1; {operator.cookie}; other=2").status == 200


def test_a_login_ends(fresh_service: RunningService) -> None:
    """The service knows its end: a browser that keeps the cookie cannot extend it."""
    operator = PortalClient(fresh_service)
    fresh_service.clock.move_to(START + timedelta(seconds=sessions.LOGIN_LASTS_S - 1))
    assert operator.get("/").status == 200
    fresh_service.clock.move_to(START + timedelta(seconds=sessions.LOGIN_LASTS_S))
    reply = operator.get("/")
    assert reply.status == 401
    assert "has ended" in page_text(reply)


def test_a_login_ends_at_the_log_out(service: RunningService) -> None:
    """A copy of the cookie is worthless from then on; another login with the same token goes on."""
    operator, other = PortalClient(service), PortalClient(service)
    assert operator.post("/logout", {}).status == 303
    for path in ("/", "/live", "/v1/scopes"):
        assert operator.get(path).status == 401, path
    assert operator.post("/plan", MAINTENANCE).status == 401
    assert other.get("/").status == 200


def test_a_new_login_ends_the_old_one_of_the_same_browser(service: RunningService) -> None:
    """The session id of the cookie that comes with the login stops working."""
    operator = PortalClient(service)
    again = post_without_login(service, "/login", {"token": service.token}, Cookie=operator.cookie)
    assert again.headers["set-cookie"].partition(";")[0] != operator.cookie
    assert operator.get("/").status == 401


def test_every_node_knows_the_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login at one node is valid at the other nodes, and so is its end."""
    monkeypatch.setenv("FOREWARN_TOKEN", "the same at both nodes")
    store = MemoryStore()
    with running_service(in_store=store) as one, running_service(fleet="", in_store=store) as other:
        for token in (one.token, "the same at both nodes"):
            operator = PortalClient(one, token)
            value = operator.cookie.partition("=")[2]
            cookie = {"Cookie": f"forewarn-{other.url.rpartition(':')[2]}={value}"}
            assert other.request("GET", "/", token="", headers=cookie).status == 200
            assert operator.post("/logout", {}).status == 303
            assert other.request("GET", "/", token="", headers=cookie).status == 401


def test_a_form_stays_valid_after_another_login(service: RunningService) -> None:
    """A second login with the same token, in another tab, does not invalidate an open form."""
    first = PortalClient(service)
    again = PortalClient(service)
    assert again.cookie != first.cookie
    assert again.post("/plan", MAINTENANCE, proof=first.proof).status == 200


def test_two_services_on_one_machine_do_not_log_each_other_out(service: RunningService, operator: PortalClient) -> None:
    """Cookies are shared by all ports of a host, so the cookie's name has the port."""
    port = service.url.rpartition(":")[2]
    assert operator.cookie.startswith(f"forewarn-{port}=")


def test_a_revoked_token_stops_working_at_once(service: RunningService) -> None:
    """The next request of its login gets 401."""
    operator = PortalClient(service, service.token_of("viewer", name="passing by"))
    assert operator.get("/").status == 200
    (mine,) = [t["id"] for t in service.get("/v1/tokens")["items"] if t["name"] == "passing by"]
    service.request("DELETE", f"/v1/tokens/{mine}")
    assert operator.get("/").status == 401
    assert operator.get("/live").status == 401


def test_logging_out_deletes_the_cookie(service: RunningService) -> None:
    """Only a form of the portal logs out."""
    operator = PortalClient(service)
    assert operator.post("/logout", {}, proof="0" * 64).status == 403
    reply = operator.post("/logout", {})
    assert (reply.status, reply.headers["location"]) == (303, "/login")
    assert "Max-Age=0" in reply.headers["set-cookie"]
    assert "set-cookie" not in operator.get("/logout").headers


def test_too_many_failed_logins_get_429() -> None:
    """The page says how long to wait; the correct token still works."""
    with running_service() as running:
        for _ in range(MAX_FAILURES):
            assert post_without_login(running, "/login", {"token": "wrong"}).status == 401
        reply = post_without_login(running, "/login", {"token": "wrong"})
        assert reply.status == 429
        assert "wait 60 s" in page_text(reply)
        assert post_without_login(running, "/login", {"token": running.token}).status == 303


def test_every_form_carries_the_proof(fresh_service: RunningService) -> None:
    """Every form with POST has it, except the login."""
    operator = PortalClient(fresh_service)
    made = fresh_service.schedule("shop/web-0")
    event = made["waves"][0]["events"][0]["id"]
    found = 0
    for path in ("/", "/plan", "/tokens", f"/events/{event}", f"/maintenances/{made['id']}", f"/events/{event}/cancel"):
        for form in re.findall(r'<form[^>]* method="post".*?</form>', operator.get(path).raw.decode(), re.DOTALL):
            assert f'name="proof" value="{operator.proof}"' in form
            found += 1
    assert found >= 10


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("proof", ["", "0" * 64, "ü"])
def test_a_form_without_the_proof_is_refused(operator: PortalClient, path: str, proof: str) -> None:
    """The cookie alone changes nothing."""
    reply = operator.post(path, MAINTENANCE, proof=proof)
    assert reply.status == 403
    assert "belongs to another login" in page_text(reply)


@pytest.mark.parametrize("path", [*POSTS, "/login"])
@pytest.mark.parametrize(
    "header",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_a_form_of_another_site_is_refused(operator: PortalClient, path: str, header: dict[str, str]) -> None:
    """Also with the right cookie and proof."""
    reply = operator.post(path, {**MAINTENANCE, "token": operator.service.token}, **header)
    assert reply.status == 403
    assert "set-cookie" not in reply.headers


def test_a_proof_belongs_to_one_token(service: RunningService, operator: PortalClient) -> None:
    """The proof of a viewer's form is refused in an operator's form."""
    viewer = PortalClient(service, service.token_of("viewer"))
    assert viewer.proof != operator.proof
    assert operator.post("/plan", MAINTENANCE, proof=viewer.proof).status == 403


def test_a_portal_without_tokens_serves_only_loopback(token_free_service: RunningService) -> None:
    """It needs no login, but refuses a foreign Host or Origin, and forms need the proof."""
    page = token_free_service.request("GET", "/", headers={"Accept": "text/html"})
    assert page.status == 200
    assert "Log out" not in page.raw.decode()
    assert token_free_service.request("GET", "/", headers={"Host": "evil.example"}).status == 403
    assert token_free_service.request("GET", "/live", headers={"Origin": "http://evil.example"}).status == 403
    sent = {"Content-Type": FORM}
    assert token_free_service.request("POST", "/plan", urlencode(MAINTENANCE), headers=sent).status == 403
    proof = re.search(r'name="proof" value="(\w+)"', token_free_service.request("GET", "/plan").raw.decode())
    assert proof is not None
    assert (
        token_free_service.request("POST", "/plan", urlencode({**MAINTENANCE, "proof": proof[1]}), headers=sent).status
        == 200
    )
    assert token_free_service.request("GET", "/login").headers["location"] == "/"
