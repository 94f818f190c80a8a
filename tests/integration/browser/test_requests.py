"""The portal without a browser: cookies, forms of others, roles, hostile words, limits and errors."""

import re
import time
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from forewarn.core.errors import StoreUnavailable, TooManyAttempts
from forewarn.core.lifecycle import Outcome
from forewarn.core.model import Actor
from forewarn.operator.portal import sessions
from forewarn.operator.portal.app import ACTS, HINTS, MAX_FORM_BYTES, local_path
from tests.integration.browser.people import FORM, MAINTENANCE, Caller, fields, stranger_posts, words
from tests.support.running_service import FLEET, RunningService, running_service

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    """For tests that leave the fleet and its events as they are: they run in any order, on any worker."""
    with running_service() as running:
        running.enable("shop")
        yield running


@pytest.fixture
def fresh() -> Iterator[RunningService]:
    """For a test that makes events. Both scopes are enabled, so nothing starts until the test moves the clock."""
    with running_service() as running:
        running.enable("shop", "blog")
        yield running


@pytest.fixture(scope="module")
def free() -> Iterator[RunningService]:
    with running_service(token_free="true") as running:
        yield running


@pytest.fixture(scope="module")
def operator(service: RunningService) -> Caller:
    return Caller(service)


# -- who is visiting


def test_the_cookie_is_out_of_reach(service: RunningService, operator: Caller) -> None:
    """No script reads it, no other site's page sends it, and it ends."""
    flags = [flag.strip() for flag in operator.set_cookie.split(";")[1:]]
    assert flags == ["Path=/", f"Max-Age={sessions.LOG_IN_LASTS_S}", "HttpOnly", "SameSite=Strict"]
    assert service.token not in operator.set_cookie


def test_under_tls_the_cookie_is_secure() -> None:
    """Behind a proxy that speaks TLS as well; its name has the browser check it."""
    with running_service(behind_tls_proxy="true") as running:
        cookie = Caller(running).set_cookie
    assert cookie.startswith("__Host-forewarn=")
    assert cookie.endswith("; HttpOnly; SameSite=Strict; Secure")


@pytest.mark.parametrize("path", ["/", "/scopes/shop", "/machines?host=rack1-a", "/tokens", "/plan", "/nowhere"])
def test_nothing_is_shown_before_the_log_in(service: RunningService, path: str) -> None:
    """A stranger gets the log-in, and after it the page they wanted."""
    reply = service.request("GET", path, token="", headers={"Accept": "text/html"})
    assert reply.status == 401
    assert "web-0" not in reply.raw.decode()
    assert f'name="to" value="{path.replace("&", "&amp;")}"' in reply.raw.decode()
    then = stranger_posts(service, "/login", {"token": service.token, "to": path})
    assert (then.status, then.headers["location"]) == (303, path)


def test_a_log_in_leads_nowhere_else() -> None:
    """Only to a path of ours."""
    for to in ("//evil.example/", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/\r\nX: y", ""):
        assert local_path(to) == "/"
    assert local_path("/events/E?x=1") == "/events/E?x=1"


@pytest.mark.parametrize(
    "value", ["", "x", "9999999999", "9999999999.", "9999999999.!!!", "9999999999.AAAA", "-1.QUJD", "9" * 400]
)
def test_a_cookie_that_is_not_ours_is_no_log_in(operator: Caller, value: str) -> None:
    """Whatever it holds."""
    name = operator.cookie.partition("=")[0]
    reply = operator.house.request("GET", "/", token="", headers={"Cookie": f"{name}={value}"})
    assert reply.status == 401


def test_a_log_in_ends(service: RunningService, operator: Caller) -> None:
    """The time in the cookie counts, not the browser's manners; and whoever has the cookie cannot put it off."""
    name, _, value = operator.cookie.partition("=")
    expires, _, rest = value.partition(".")
    assert int(expires) > time.time()
    ended = sessions.cookie_value(int(time.time()) - 1, service.token)
    for changed in (ended, f"{int(expires) + 60}.{rest}", f"{expires}.{rest.partition('.')[2]}"):
        reply = service.request("GET", "/", token="", headers={"Cookie": f"{name}={changed}"})
        assert reply.status == 401
        assert "has ended" in words(reply)
    good = sessions.cookie_value(int(time.time()) + 60, service.token)
    assert service.request("GET", "/", token="", headers={"Cookie": f"{name}={good}"}).status == 200


def test_a_form_outlives_another_log_in(service: RunningService) -> None:
    """Whoever logs in again in another tab can still send what is open in the first."""
    first = Caller(service)
    again = Caller(service)
    again.cookie = f"{first.cookie.partition('=')[0]}={sessions.cookie_value(int(time.time()) + 60, service.token)}"
    assert again.post("/plan", MAINTENANCE, proof=first.proof).status == 200


def test_two_services_on_one_machine_do_not_log_each_other_out(service: RunningService, operator: Caller) -> None:
    """Cookies know no ports, so their names do."""
    port = service.url.rpartition(":")[2]
    assert operator.cookie.startswith(f"forewarn-{port}=")


def test_a_revoked_token_is_out_at_once(service: RunningService) -> None:
    """Its next request is the log-in page."""
    caller = Caller(service, service.token_of("viewer", name="passing by"))
    assert caller.get("/").status == 200
    (mine,) = [t["id"] for t in service.get("/v1/tokens")["items"] if t["name"] == "passing by"]
    service.request("DELETE", f"/v1/tokens/{mine}")
    assert caller.get("/").status == 401
    assert caller.get("/live").status == 401


def test_logging_out_forgets_the_cookie(service: RunningService) -> None:
    """By a form of ours alone."""
    caller = Caller(service)
    assert caller.post("/logout", {}, proof="0" * 64).status == 403
    reply = caller.post("/logout", {})
    assert (reply.status, reply.headers["location"]) == (303, "/login")
    assert "Max-Age=0" in reply.headers["set-cookie"]
    assert "set-cookie" not in caller.get("/logout").headers


def test_log_ins_that_fail_are_limited() -> None:
    """After ten a wrong token has to wait; others' addresses are not concerned, and time heals."""
    at_s = 0.0
    attempts = sessions.Attempts(lambda: at_s)
    for _ in range(sessions.MAX_FAILURES):
        attempts.check("10.0.0.1")
        attempts.failed("10.0.0.1")
    attempts.check("10.0.0.2")
    with pytest.raises(TooManyAttempts):
        attempts.check("10.0.0.1")
    at_s = sessions.FAILURES_WITHIN_S + 1
    attempts.check("10.0.0.1")
    for number in range(sessions.MAX_PEERS * 2):
        attempts.failed(f"peer {number}")
    assert len(attempts._failures) == sessions.MAX_PEERS


def test_who_fails_to_log_in_too_often_is_told_to_wait() -> None:
    """429, and a page; whoever has the right token gets in all the same."""
    with running_service() as running:
        for _ in range(sessions.MAX_FAILURES):
            assert stranger_posts(running, "/login", {"token": "wrong"}).status == 401
        reply = stranger_posts(running, "/login", {"token": "wrong"})
        assert reply.status == 429
        assert "wait 60 s" in words(reply)
        assert stranger_posts(running, "/login", {"token": running.token}).status == 303


# -- forms of others


def test_every_form_has_its_proof(fresh: RunningService) -> None:
    """No form that is posted goes without, except the log-in itself."""
    operator = Caller(fresh)
    made = fresh.schedule("shop/web-0")
    event = made["waves"][0]["events"][0]["id"]
    found = 0
    for path in ("/", "/plan", "/tokens", f"/events/{event}", f"/maintenances/{made['id']}", f"/events/{event}/cancel"):
        for form in re.findall(r'<form[^>]* method="post".*?</form>', operator.get(path).raw.decode(), re.DOTALL):
            assert f'name="proof" value="{operator.proof}"' in form
            found += 1
    assert found >= 10


POSTS = [
    "/plan",
    "/tokens",
    "/tokens/X/revoke",
    "/events/X/approve",
    "/maintenances/X/pause",
    "/orders/X/start",
    "/logout",
]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("proof", ["", "0" * 64, "ü"])
def test_a_form_without_our_proof_is_refused(operator: Caller, path: str, proof: str) -> None:
    """The cookie alone does nothing."""
    reply = operator.post(path, MAINTENANCE, proof=proof)
    assert reply.status == 403
    assert "belongs to another log-in" in words(reply)


@pytest.mark.parametrize("path, name", [("/plan", "description"), ("/tokens", "name")])
def test_a_form_that_is_not_proven_comes_back_filled(operator: Caller, path: str, name: str) -> None:
    """Nothing is done and nothing typed is lost: sent again from there it is ours."""
    reply = operator.post(path, {**MAINTENANCE, name: "as typed"}, proof="0" * 64)
    assert reply.status == 403
    assert 'value="as typed"' in reply.raw.decode()
    assert fields(reply)["proof"] == operator.proof


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
def test_a_form_of_another_sites_page_is_refused(operator: Caller, path: str, header: dict[str, str]) -> None:
    """Even with the right cookie and proof."""
    reply = operator.post(path, {**MAINTENANCE, "token": operator.house.token}, **header)
    assert reply.status == 403
    assert "set-cookie" not in reply.headers


def test_one_log_ins_proof_is_not_anothers(service: RunningService, operator: Caller) -> None:
    """The viewer's form is nothing in the operator's hands, nor the other way round."""
    viewer = Caller(service, service.token_of("viewer"))
    assert viewer.proof != operator.proof
    assert operator.post("/plan", MAINTENANCE, proof=viewer.proof).status == 403


def test_without_tokens_loopback_alone_is_answered(free: RunningService) -> None:
    """No log-in, but a foreign Host or Origin is refused, and a form needs its proof."""
    page = free.request("GET", "/", headers={"Accept": "text/html"})
    assert page.status == 200
    assert "Log out" not in page.raw.decode()
    assert free.request("GET", "/", headers={"Host": "evil.example"}).status == 403
    assert free.request("GET", "/live", headers={"Origin": "http://evil.example"}).status == 403
    sent = {"Content-Type": FORM}
    assert free.request("POST", "/plan", urlencode(MAINTENANCE), headers=sent).status == 403
    proof = re.search(r'name="proof" value="(\w+)"', free.request("GET", "/plan").raw.decode())
    assert proof is not None
    assert free.request("POST", "/plan", urlencode({**MAINTENANCE, "proof": proof[1]}), headers=sent).status == 200
    assert free.request("GET", "/login").headers["location"] == "/"


# -- what may be done by whom


def test_roles_are_the_apis(fresh: RunningService) -> None:
    """A viewer's or owner's form for more is refused, by the API's own sentence, and nothing happens."""
    made = fresh.schedule("shop/web-1")
    event = made["waves"][0]["events"][0]["id"]
    viewer = Caller(fresh, fresh.token_of("viewer"))
    owner = Caller(fresh, fresh.token_of("owner", "blog"))
    before = fresh.get("/v1/audit")["items"][0]["id"]
    for path in (
        f"/events/{event}/approve",
        f"/events/{event}/cancel",
        f"/maintenances/{made['id']}/pause",
        "/tokens/X/revoke",
    ):
        reply = viewer.post(path, {})
        assert reply.status == 403, path
        assert "viewer" in words(reply)
    assert viewer.post("/plan", {**MAINTENANCE, "step": "do", "key": "k"}).status == 403
    assert owner.post("/plan", {**MAINTENANCE, "step": "do", "key": "k"}).status == 403
    assert owner.post("/plan", {"kind": "restart", "machine": "shop/web-0", "step": "do", "key": "k"}).status == 403
    assert owner.post(f"/events/{event}/approve", {}).status == 404
    assert fresh.get("/v1/audit")["items"][0]["id"] == before


def test_an_owner_sees_and_does_what_is_theirs(fresh: RunningService) -> None:
    """Of other scopes nothing, not even their names; in its own a restart, planned and asked for once."""
    fresh.schedule("shop/web-0")
    owner = Caller(fresh, fresh.token_of("owner", "blog"))
    for path in ("/", "/scopes", "/machines", "/history", "/audit", "/maintenances", "/orders", "/plan"):
        reply = owner.get(path)
        assert reply.status == 200, path
        assert "shop" not in reply.raw.decode(), path
    assert owner.get("/scopes/shop").status == 403
    assert owner.get("/tokens").status == 403
    form = {"kind": "restart", "machine": "blog/db"}
    looked = owner.post("/plan", form)
    assert looked.status == 200
    assert "1 machine in 1 event" in words(looked)
    first = owner.confirm(form, key="once")
    again = owner.post("/plan", {**form, "step": "do", "key": "once"})
    assert first.status == 303
    assert first.headers["location"] == again.headers["location"]
    assert "Done: the event is made" in words(owner.get(first.headers["location"]))
    assert len(fresh.get("/v1/events?scope=blog&status=Scheduled&status=Started")["items"]) == 1


def test_only_verbs_the_status_allows_are_offered() -> None:
    """Approve and cancel before the start, the order's after it, settling once it failed, nothing at the end."""
    with running_service() as service:
        operator = Caller(service)
        service.enable("blog")
        made = service.schedule("blog/db", source="Platform", type_="Freeze")
        event = made["waves"][0]["events"][0]["id"]

        def offered(path: str = "") -> list[str]:
            page = operator.get(path or f"/events/{event}").raw.decode()
            return re.findall(r'<form method="(?:get|post)" action="/\w+/[^/"]+/(\w+)"', page)

        assert offered() == ["approve", "cancel"]
        assert offered(f"/maintenances/{made['id']}") == ["pause", "cancel"]
        assert operator.post(f"/events/{event}/retry", {}).status == 409
        operator.post(f"/maintenances/{made['id']}/pause", {})
        assert offered(f"/maintenances/{made['id']}") == ["resume", "cancel"]
        operator.post(f"/maintenances/{made['id']}/resume", {})
        assert operator.post(f"/events/{event}/approve", {}).status == 303
        service.service.ticker.advance(1)
        started = offered()
        assert started == ["start", "finish", "fail"]
        assert operator.post(f"/orders/{event}/start", {}).status == 303
        assert offered() == ["finish", "fail"]
        assert operator.post(f"/orders/{event}/fail", {"reason": ""}).status == 422
        assert operator.post(f"/orders/{event}/fail", {"reason": EVIL}).status == 303
        assert offered() == ["retry", "finish", "abandon"]
        assert "<script>alert" not in operator.get(f"/events/{event}").raw.decode()
        assert operator.post(f"/events/{event}/finish", {}).status == 303
        assert offered() == []
        service.service.ticker.advance(1)
        assert offered(f"/maintenances/{made['id']}") == []


def test_a_verbs_address_leads_to_where_it_can_be_done(fresh: RunningService) -> None:
    """Looked at, a grave verb asks and does nothing; any other is on the page of what it is done to."""
    operator = Caller(fresh)
    made = fresh.schedule("shop/web-0")
    event = made["waves"][0]["events"][0]["id"]
    viewer = Caller(fresh, fresh.token_of("viewer", name="to be revoked"))
    (token,) = [t["id"] for t in fresh.get("/v1/tokens?limit=500")["items"] if t["name"] == "to be revoked"]
    for path, page in (
        (f"/events/{event}/approve", f"/events/{event}"),
        (f"/events/{event}/abandon", f"/events/{event}"),
        (f"/orders/{event}/fail", f"/events/{event}"),
        (f"/maintenances/{made['id']}/pause", f"/maintenances/{made['id']}"),
        ("/logout", "/"),
    ):
        reply = operator.get(path)
        assert (reply.status, reply.headers.get("location")) == (303, page), path
    for path in (f"/events/{event}/cancel", f"/maintenances/{made['id']}/cancel", f"/tokens/{token}/revoke"):
        asked = operator.get(path)
        assert asked.status == 200, path
        assert f'<form method="post" action="{path}" class="confirm"' in asked.raw.decode()
        assert "cannot be taken back" in words(asked)
    assert operator.get("/tokens/NOWHERE/revoke").status == 404
    assert viewer.get(f"/tokens/{token}/revoke").status == 403
    assert viewer.get(f"/events/{event}/cancel").status == 303
    assert fresh.get(f"/v1/events/{event}")["status"] == "Scheduled"


def test_an_owner_is_not_offered_what_is_not_theirs(fresh: RunningService) -> None:
    """The platform's events are not theirs to cancel."""
    made = fresh.schedule("blog/db")
    owner = Caller(fresh, fresh.token_of("owner", "blog"))
    event = made["waves"][0]["events"][0]["id"]
    page = owner.get(f"/events/{event}").raw.decode()
    assert f'action="/events/{event}/approve"' in page
    assert f'action="/events/{event}/cancel"' not in page


# -- the plan


def test_the_dry_run_says_what_is_in_the_way(fresh: RunningService) -> None:
    """A machine that is in a started event is named, with the way to that event; nothing is saved by looking."""
    operator = Caller(fresh)
    made = fresh.schedule("shop/web-0", emergency=True)
    event = made["waves"][0]["events"][0]["id"]
    fresh.service.ticker.advance(1)
    before = len(fresh.get("/v1/maintenances?limit=500")["items"])
    page = operator.post("/plan", MAINTENANCE)
    assert "web-0 in shop is in event" in words(page)
    assert f'<a href="/events/{event}">{event[:8]}</a>' in page.raw.decode()
    assert "Wave 2" in words(page)
    assert len(fresh.get("/v1/maintenances?limit=500")["items"]) == before


def test_before_it_is_confirmed_everything_asked_for_is_shown(operator: Caller) -> None:
    """With the times: what was typed, when each wave is due, and an earliest start among what is in the way."""
    asked = {
        "not_before": "2030-01-03T10:00",
        "earliest": "2030-01-04T11:00",
        "duration_s": "90",
        "description": "New kernel & friends",
        "source": "User",
        "on_failure": "continue",
    }
    page = words(operator.post("/plan", {**MAINTENANCE, **asked}))
    for said in (
        "Targets scope shop , every update domain",
        "NotBefore 2030-01-03 10:00:00 UTC",
        "Not earlier than 2030-01-04 11:00:00 UTC",
        "it has a hard earliest start, 2030-01-04 11:00:00 UTC",
        "New kernel &amp; friends",
        "If an order fails go on",
        "Interruption 90 s",
        "Source User",
    ):
        assert said in page
    platforms = words(operator.post("/plan", {**MAINTENANCE, **asked, "source": "Platform"}))
    assert len(re.findall(r"Wave \d: 1 machine, [^:]*, not before 2030-01-03 ", platforms)) == 2
    shortly = words(operator.post("/plan", MAINTENANCE))
    assert re.search(r"Wave 1: 1 machine, 15 min notice, not before [^<]* in 1[45] min", shortly)
    assert "Wave 2: 1 machine, 15 min notice from when it is published" in shortly
    assert "hard earliest start" not in shortly


def test_one_target_that_is_filled_in_is_taken(operator: Caller) -> None:
    """Whichever is chosen: machines that were named are not ignored for the scope that was not."""
    page = words(operator.post("/plan", {**MAINTENANCE, "scope": "", "machines": "shop/web-0"}))
    assert "1 machine in 1 event" in page


def test_the_dry_run_names_what_is_announced_already() -> None:
    """For the same machines, by machine and by scope; what concerns others alone is not named."""
    many = FLEET + "".join(f'[[machines]]\nscope = "blog"\nname = "many-{n}"\n' for n in range(25))
    with running_service(many) as service:
        service.enable("shop", "blog")
        operator = Caller(service)
        events = {name: service.schedule(name)["waves"][0]["events"][0]["id"] for name in ("shop/web-0", "blog/many-3")}
        shop = words(operator.post("/plan", MAINTENANCE))
        assert "web-0 in shop: event" in shop
        assert "is scheduled already" in shop
        assert f'<a href="/events/{events["shop/web-0"]}">' in operator.post("/plan", MAINTENANCE).raw.decode()
        assert "many-3 in blog: event" in words(operator.post("/plan", {**MAINTENANCE, "scope": "blog"}))
        other = words(operator.post("/plan", {"kind": "restart", "machine": "shop/web-1"}))
        assert "Nothing, as things stand" in other


@pytest.mark.parametrize("more", [{}, {"not_before": "2030-01-02T10:00"}], ids=["at once", "at a time"])
def test_only_what_was_shown_is_confirmed(more: dict[str, str]) -> None:
    """A plan that has changed since it was looked at is shown again; one that has not is done, however late."""
    with running_service() as service:
        service.enable("shop")
        operator = Caller(service)
        form = {**MAINTENANCE, **more}
        looked = operator.post("/plan", form)
        service.service.ticker.advance(7)
        fleet = service.get("/v1/fleet")
        (moved,) = [m for m in fleet["machines"] if m["name"] == "web-1"]
        moved["update_domain"] = 0
        service.post("/v1/fleet", fleet)
        sure = {**form, "step": "do", **{name: fields(looked)[name] for name in ("seal", "key")}}
        refused = operator.post("/plan", sure)
        assert refused.status == 409
        assert "This has changed since you looked" in words(refused)
        assert "2 machines in 1 event" in words(refused)
        assert operator.post("/plan", {**sure, "seal": ""}).status == 409
        assert service.get("/v1/maintenances")["items"] == []
        service.service.ticker.advance(7)
        again = {**sure, **{name: fields(refused)[name] for name in ("seal", "key")}}
        assert operator.post("/plan", again).status == 303
        assert len(service.get("/v1/maintenances")["items"]) == 1


def test_line_ends_are_no_change(fresh: RunningService) -> None:
    """A field of several lines comes back with other line ends than it was sent with."""
    operator = Caller(fresh)
    form = {**MAINTENANCE, "scope": "", "target": "machines", "machines": "shop/web-0\r\nshop/web-1", "type": "Freeze"}
    hidden = fields(operator.post("/plan", form))
    sure = {"step": "do", "seal": hidden["seal"], "key": hidden["key"], "machines": "shop/web-0\nshop/web-1"}
    done = operator.post("/plan", {**form, **sure})
    assert done.status == 303


def test_notice_that_is_gone_is_shown_before_it_is_confirmed() -> None:
    """Looked at with a quarter of an hour's notice, its guests silent for a day since: nothing starts by that click."""
    with running_service() as running:
        running.enable("shop")
        operator = Caller(running)
        looked = operator.post("/plan", MAINTENANCE)
        assert "15 min notice" in words(looked)
        running.service.ticker.advance(25 * 3_600)
        assert not running.get("/v1/scopes/shop")["enabled"]
        refused = operator.post("/plan", {**MAINTENANCE, "step": "do", **fields(looked)})
        assert refused.status == 409
        assert "no notice" in words(refused)
        assert running.get("/v1/events")["items"] == []


@pytest.mark.parametrize(
    "typed, said",
    [
        ({"scope": ""}, "choose a scope, hosts or machines"),
        ({"scope": "nowhere"}, "there is no scope"),
        ({"update_domain": "x"}, "is not a whole number"),
        ({"update_domain": "1_0"}, "is not a whole number"),
        ({"duration_s": "100000000000099"}, "is not a whole number of at most"),
        ({"machines": "shop/web-0"}, "scope and machines are filled in"),
        ({"scope": "", "machines": "shop/web-0", "update_domain": "1"}, "it goes with a scope"),
        ({"update_domain": "1234567"}, "update_domain"),
        ({"not_before": "tomorrow"}, "not_before"),
        ({"type": "Explode"}, "type"),
        ({"target": "machines", "scope": "", "machines": "web-9"}, "there is no machine web-9"),
        ({"target": "nothing"}, "choose a scope"),
        ({"emergency": "yes", "not_before": "2031-01-01T00:00"}, "an emergency starts at once"),
        ({"description": "x" * 2_000}, "description"),
        ({"duration_s": "-5"}, "duration_s"),
        ({"kind": "restart", "machine": "web-0"}, "write it as scope/name"),
        ({"kind": "restart", "machine": "shop/web-0/x"}, "there is no"),
        ({"kind": "restart", "machine": EVIL}, "there is no"),
    ],
    ids=str,
)
def test_a_wrong_form_comes_back_filled_with_what_is_wrong(operator: Caller, typed: dict[str, str], said: str) -> None:
    """The API's sentence above the form, and every field as it was typed."""
    reply = operator.post("/plan", {**MAINTENANCE, "description": "as typed", **typed})
    assert 400 <= reply.status < 500
    assert said in words(reply)
    if "description" not in typed:
        assert 'value="as typed"' in reply.raw.decode()
    assert "<script>alert" not in reply.raw.decode()


def test_a_form_that_came_late_is_carried_in_the_page(service: RunningService) -> None:
    """Bounded, never in an address, and refused when it is not one of ours."""
    late = stranger_posts(service, "/plan", {**MAINTENANCE, "description": EVIL})
    assert late.status == 401
    assert "What you typed is kept" in words(late)
    assert "<script>alert" not in late.raw.decode()
    huge = stranger_posts(service, "/plan", {**MAINTENANCE, "description": "x" * 70_000})
    assert "What you typed is kept" not in words(huge)
    assert "too much to be kept" in words(huge)
    for carried in ("{", "[]", '{"path": 1}'):
        assert stranger_posts(service, "/login", {"token": service.token, "carried": carried}).status == 400
    foreign = '{"path": "/events/X/approve", "fields": {}}'
    assert stranger_posts(service, "/login", {"token": service.token, "carried": foreign}).status == 303


def test_every_form_that_came_late_leads_to_a_page_of_ours() -> None:
    """After the log-in every verb can be pressed again, and a reason stands where it was typed."""
    with running_service() as service:
        service.enable("shop")
        made = service.schedule("shop/web-0", emergency=True)
        service.service.ticker.advance(1)
        event = made["waves"][0]["events"][0]["id"]
        told = {"/plan": "/plan", "/tokens": "/tokens", "/tokens/{id}/revoke": "/tokens"} | {
            "/events/{id}/{verb}": f"/events/{event}",
            "/orders/{id}/{verb}": f"/events/{event}",
            "/maintenances/{id}/{verb}": f"/maintenances/{made['id']}",
        }
        operator = Caller(service)
        for path, _ in ACTS:
            thing = made["id"] if "maintenances" in path else event
            late = stranger_posts(service, path.format(id=thing, verb="finish"), {})
            assert late.status == 401
            to = fields(late)["to"]
            assert to == told[path]
            assert operator.get(to).status == 200
        typed = fields(stranger_posts(service, f"/orders/{event}/fail", {"reason": "the disk is gone"}))
        back = stranger_posts(service, "/login", {"token": service.token, **typed})
        assert back.status == 200
        assert 'name="reason" value="the disk is gone"' in back.raw.decode()


def test_an_error_of_a_sent_form_reloads_the_page_it_was_about(fresh: RunningService) -> None:
    """And not the verb's own address."""
    operator = Caller(fresh)
    made = fresh.schedule("shop/web-0")
    event = made["waves"][0]["events"][0]["id"]
    reply = operator.post(f"/events/{event}/retry", {})
    assert reply.status == 409
    assert f'<a href="/events/{event}">Reload</a>' in reply.raw.decode()
    wrong = operator.house.request("PUT", "/plan")
    assert wrong.status == 405
    assert "PUT is not for this page" in wrong.message
    assert "its forms with POST" in wrong.message


# -- hostile words, limits, errors


def test_words_of_others_are_only_words(fresh: RunningService) -> None:
    """In descriptions, names of tokens, reasons and output: on no page do they become markup."""
    operator = Caller(fresh)
    fresh.post("/v1/tokens", {"name": EVIL[:60], "role": "viewer"}, 201)
    made = fresh.schedule("shop/web-1", description=EVIL, emergency=True)
    event = made["waves"][0]["events"][0]["id"]
    fresh.service.ticker.advance(1)
    fresh.control.report_order(event, Outcome(False, reason=EVIL, output=EVIL + "\x1b[31m\x00"), Actor(EVIL, EVIL))
    for path in (
        "/",
        f"/events/{event}",
        f"/maintenances/{made['id']}",
        "/tokens",
        "/audit",
        "/orders",
        "/maintenances",
        "/scopes/shop",
    ):
        page = operator.get(path).raw.decode()
        assert "<script>alert" not in page, path
        assert "<img src=x" not in page, path
    assert "&lt;script&gt;alert(1)" in operator.get(f"/events/{event}").raw.decode()


def test_every_page_keeps_strangers_pages_out(operator: Caller) -> None:
    """A strict policy, no framing, no sniffing, no copies, and not one inline script, style or handler."""
    for path in ("/", "/plan", "/login", "/nowhere", "/portal.css", "/portal.js"):
        headers = operator.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        assert "frame-ancestors 'none'" in policy
        assert "form-action 'self'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
    page = operator.get("/").raw.decode()
    assert operator.get("/").headers["cache-control"] == "no-store"
    assert not re.search(r"<style|style=|\son\w+=|<script(?! src=)|javascript:", page)


@pytest.mark.parametrize(
    "path, status",
    [
        ("/nowhere", 404),
        ("/events/NOWHERE", 404),
        ("/maintenances/NOWHERE", 404),
        ("/scopes/nowhere", 404),
        ("/?cursor=garbage", 400),
        ("/scopes/shop?api-version=latest", 400),
        ("/machines?cursor=AAAA", 400),
        ("/tokens?cursor=%00", 400),
    ],
)
def test_errors_are_pages_that_say_what_to_do(operator: Caller, path: str, status: int) -> None:
    """With the way on from there."""
    reply = operator.get(path)
    assert reply.status == status
    assert HINTS[status] in words(reply)
    assert 'href="/history"' in reply.raw.decode()


def test_a_page_for_programs_stays_theirs(service: RunningService) -> None:
    """Whoever does not ask for a page of text gets the API's error."""
    reply = service.request("GET", "/nowhere")
    assert (reply.status, reply.code) == (404, "not_found")


def test_a_form_has_limits(operator: Caller) -> None:
    """Too large, too many fields, another kind, not UTF-8: refused, with a page."""
    assert operator.post("/plan", {"machines": "x" * MAX_FORM_BYTES}).status == 413
    assert operator.post("/plan", {f"field{n}": "" for n in range(200)}).status == 400
    sent = {"Cookie": operator.cookie}
    assert operator.house.request("POST", "/plan", "{}", token="", headers=sent).status == 400
    assert (
        operator.house.request(
            "POST", "/plan", b"proof=%ff%fe", token="", headers={**sent, "Content-Type": FORM}
        ).status
        == 400
    )


def test_a_document_is_shown_in_any_version(fresh: RunningService) -> None:
    """Fields of newer versions are not in older ones."""
    operator = Caller(fresh)
    fresh.schedule("shop/web-0")
    assert "DurationInSeconds" in words(operator.get("/scopes/shop"))
    oldest = words(operator.get("/scopes/shop?api-version=2017-03-01"))
    assert "DurationInSeconds" not in oldest
    assert "_web-0" in oldest


def test_a_token_made_twice_is_one(service: RunningService, operator: Caller) -> None:
    """The same form sent again shows the same secret."""
    form = {"name": "once", "role": "viewer", "scopes": "", "key": "made-once"}
    secrets = [re.search(r"<code>(fw_[\w-]+)</code>", operator.post("/tokens", form).raw.decode()) for _ in range(2)]
    assert secrets[0] is not None
    assert secrets[1] is not None
    assert secrets[0][1] == secrets[1][1]
    assert len([t for t in service.get("/v1/tokens")["items"] if t["name"] == "once"]) == 1
    wrong = operator.post("/tokens", {**form, "name": "nobody's", "role": "owner", "key": "another"})
    assert wrong.status == 400
    assert 'value="nobody&#39;s"' in wrong.raw.decode()


def test_a_store_that_is_away_is_a_page_too(
    monkeypatch: pytest.MonkeyPatch, service: RunningService, operator: Caller
) -> None:
    """503, and what to do."""

    def away(*_: object) -> None:
        raise StoreUnavailable("the store does not answer")

    monkeypatch.setattr(service.service.store, "counts", away)
    reply = operator.get("/")
    assert reply.status == 503
    assert HINTS[503] in words(reply)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"executor": "simulated"}, ["Simulated work:", "Manual clock:"]),
        ({"executor": "external"}, ["Manual clock:"]),
    ],
    ids=str,
)
def test_a_banner_says_that_this_is_not_the_real_world(settings: dict[str, str], said: list[str]) -> None:
    """Simulated work and a clock of its own; the guide only in the demo."""
    with running_service(FLEET, None, **settings) as running:
        page = words(Caller(running).get("/"))
    assert [each for each in ("Simulated work:", "Manual clock:", "What you are looking at") if each in page] == said


def test_the_demo_explains_itself() -> None:
    """On the first page, where nothing was filtered."""
    with running_service(demo="true", token_free="true") as running:
        assert "What you are looking at" in words(running.request("GET", "/"))
        assert "What you are looking at" not in words(running.request("GET", "/?status=Started"))
