"""Logins: the cookie, the proof in forms, and the limit on failed attempts."""

import re
import time
from urllib.parse import urlencode

import pytest

from forewarn.core.errors import TooManyAttempts
from forewarn.operator.portal import sessions
from tests.support.portal_client import FORM, MAINTENANCE, PortalClient, page_text, post_without_login
from tests.support.running_service import RunningService, running_service

POSTS = [
    "/plan",
    "/tokens",
    "/tokens/X/revoke",
    "/events/X/approve",
    "/maintenances/X/pause",
    "/orders/X/start",
    "/logout",
]


def test_scripts_and_other_sites_cannot_use_the_cookie(service: RunningService, operator: PortalClient) -> None:
    """The cookie is HttpOnly and SameSite=Strict, has an end, and does not show the token."""
    flags = [flag.strip() for flag in operator.set_cookie.split(";")[1:]]
    assert flags == ["Path=/", f"Max-Age={sessions.LOGIN_LASTS_S}", "HttpOnly", "SameSite=Strict"]
    assert service.token not in operator.set_cookie


def test_under_tls_the_cookie_is_secure() -> None:
    """Also behind a proxy with TLS; browsers enforce the prefix of its name."""
    with running_service(behind_tls_proxy="true") as running:
        cookie = PortalClient(running).set_cookie
    assert cookie.startswith("__Host-forewarn=")
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


def test_a_login_ends(service: RunningService, operator: PortalClient) -> None:
    """The end in the cookie counts and is signed: the owner of the cookie cannot extend it."""
    name, _, value = operator.cookie.partition("=")
    expires, _, rest = value.partition(".")
    assert int(expires) > time.time()
    ended = sessions.cookie_value(int(time.time()) - 1, service.token)
    for changed in (ended, f"{int(expires) + 60}.{rest}", f"{expires}.{rest.partition('.')[2]}"):
        reply = service.request("GET", "/", token="", headers={"Cookie": f"{name}={changed}"})
        assert reply.status == 401
        assert "has ended" in page_text(reply)
    good = sessions.cookie_value(int(time.time()) + 60, service.token)
    assert service.request("GET", "/", token="", headers={"Cookie": f"{name}={good}"}).status == 200


def test_a_form_stays_valid_after_another_login(service: RunningService) -> None:
    """A second login with the same token, in another tab, does not invalidate an open form."""
    first = PortalClient(service)
    again = PortalClient(service)
    again.cookie = f"{first.cookie.partition('=')[0]}={sessions.cookie_value(int(time.time()) + 60, service.token)}"
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


def test_failed_logins_are_limited() -> None:
    """After ten failures an address must wait; other addresses are not affected, and old failures do not count."""
    at_s = 0.0
    attempts = sessions.LoginAttempts(lambda: at_s)
    for _ in range(sessions.MAX_FAILURES):
        attempts.check("10.0.0.1")
        attempts.add_failure("10.0.0.1")
    attempts.check("10.0.0.2")
    with pytest.raises(TooManyAttempts):
        attempts.check("10.0.0.1")
    at_s = sessions.FAILURES_WITHIN_S + 1
    attempts.check("10.0.0.1")
    for number in range(sessions.MAX_PEERS * 2):
        attempts.add_failure(f"peer {number}")
    assert len(attempts._failures) == sessions.MAX_PEERS


def test_too_many_failed_logins_get_429() -> None:
    """The page says how long to wait; the correct token still works."""
    with running_service() as running:
        for _ in range(sessions.MAX_FAILURES):
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
