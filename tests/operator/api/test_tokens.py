"""Tokens: their end, their last use, their names, and what happens with wrong ones."""

import logging
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import forewarn
from forewarn.core.errors import StoreUnavailable, TooManyAttempts
from forewarn.operator.api.access import Access
from forewarn.operator.api.access_recorder import AccessRecorder, describe
from forewarn.operator.api.failed_attempts import (
    FAILURES_WITHIN_S,
    MAX_FAILURES,
    MAX_PEERS,
    OTHER_ADDRESSES,
    FailedAttempts,
)
from forewarn.operator.api.token_names import is_reserved
from forewarn.store.memory import MemoryStore
from tests.support.portal_client import PortalClient, page_text, post_without_login
from tests.support.running_service import START, RunningService, running_service

DAY_S = 86_400


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


# -- their end


def test_a_token_may_have_an_end(service: RunningService) -> None:
    """Until then it works; from then on it gets 401 with the reason, in the API and in the portal."""
    made = service.post("/v1/tokens", {"name": "ci", "role": "operator", "valid_for_s": DAY_S}, 201)
    assert made["expires"] == "2030-01-02T00:00:00Z"
    operator = PortalClient(service, made["token"])
    service.clock.move_to(START + timedelta(hours=11))
    late = PortalClient(service, made["token"])
    service.clock.move_to(START + timedelta(seconds=DAY_S - 1))
    assert service.request("GET", "/v1/scopes", token=made["token"]).status == 200
    service.clock.move_to(START + timedelta(seconds=DAY_S))
    reply = service.request("GET", "/v1/scopes", token=made["token"])
    assert (reply.status, "has expired" in reply.message) == (401, True)
    assert (operator.get("/").status, late.get("/").status, late.get("/live").status) == (401, 401, 401)
    assert post_without_login(service, "/login", {"token": made["token"]}).status == 401
    assert service.request("GET", "/v1/scopes").status == 200


def test_a_login_ends_with_its_token(service: RunningService) -> None:
    """Although the login itself would last longer."""
    made = service.post("/v1/tokens", {"name": "ci", "role": "viewer", "valid_for_s": 3_600}, 201)
    viewer = PortalClient(service, made["token"])
    service.clock.move_to(START + timedelta(seconds=3_599))
    assert viewer.get("/").status == 200
    service.clock.move_to(START + timedelta(seconds=3_600))
    assert viewer.get("/").status == 401


@pytest.mark.parametrize("valid_for_s", [0, 59, -1, 3_650 * DAY_S + 1, "1d"])
def test_an_end_that_makes_no_sense_is_refused(service: RunningService, valid_for_s: object) -> None:
    """Less than a minute, more than ten years, or no number."""
    reply = service.request("POST", "/v1/tokens", {"name": "ci", "role": "viewer", "valid_for_s": valid_for_s})
    assert reply.status == 422


def test_a_token_is_shown_with_its_end_and_its_last_use(service: RunningService) -> None:
    """In the list, alone, and on the portal's page; a token without an end says so."""
    made = service.post("/v1/tokens", {"name": "ci", "role": "viewer", "valid_for_s": 7 * DAY_S}, 201)
    service.service.store.record_token_uses({made["id"]: START})
    shown = service.get(f"/v1/tokens/{made['id']}")
    assert shown in service.get("/v1/tokens")["items"]
    assert (shown["expires"], shown["last_used"]) == ("2030-01-08T00:00:00Z", "2030-01-01T00:00:00Z")
    assert "token" not in shown
    assert service.request("GET", "/v1/tokens/none").status == 404
    text = page_text(PortalClient(service).get("/tokens"))
    assert "in 7d" in text
    assert "never" in text


def test_the_portal_creates_a_token_with_an_end(service: RunningService) -> None:
    """A duration such as 30d; a wrong one comes back with the form."""
    operator = PortalClient(service)
    form = {"name": "from the portal", "role": "viewer", "scopes": "", "valid_for": "30d", "key": "k1"}
    assert "until 2030-01-31" in page_text(operator.post("/tokens", form))
    wrong = operator.post("/tokens", {**form, "valid_for": "soon", "key": "k2"})
    assert wrong.status == 400
    assert 'value="soon"' in wrong.raw.decode()
    assert "is not a duration" in page_text(wrong)


# -- their last use


def test_the_last_use_is_saved_outside_of_requests(service: RunningService) -> None:
    """A request only remembers it; the ticker saves it, for the API and for the portal."""
    secret = service.token_of("viewer", name="ci")
    (token_id,) = [t["id"] for t in service.get("/v1/tokens")["items"] if t["name"] == "ci"]
    service.clock.move_to(START + timedelta(seconds=50))
    service.get("/v1/scopes", token=secret)
    assert service.get(f"/v1/tokens/{token_id}")["last_used"] is None
    service.access_recorder.save()
    assert service.get(f"/v1/tokens/{token_id}")["last_used"] == "2030-01-01T00:00:50Z"
    service.clock.move_to(START + timedelta(seconds=90))
    PortalClient(service, secret)
    service.access_recorder.save()
    assert service.get(f"/v1/tokens/{token_id}")["last_used"] == "2030-01-01T00:01:30Z"


class BrittleUses(MemoryStore):
    """Counts the writes of last uses, and refuses them while `away`."""

    away = False
    writes = 0

    def record_token_uses(self, uses: Mapping[str, datetime]) -> None:
        if self.away:
            raise StoreUnavailable("away")
        self.writes += 1
        super().record_token_uses(uses)


def test_the_last_use_is_saved_at_most_once_a_minute() -> None:
    """However many requests come; what cannot be saved is saved a minute later."""
    store, at_s = BrittleUses(), 0.0
    with running_service(in_store=store) as service:
        access = Access(store.tokens, now=service.clock.now, failures=FailedAttempts(lambda: at_s))
        recorder = AccessRecorder(access, store, service.control, monotonic=lambda: at_s)
        for at_s, away, writes in (
            (30.0, False, 0),
            (60.0, True, 0),
            (90.0, False, 0),
            (120.0, False, 1),
            (150.0, False, 1),
        ):
            store.away = away
            for _ in range(3 if at_s < 100.0 else 0):
                access.identify({"authorization": f"Bearer {service.token}"}, "127.0.0.1")
            recorder.do(START)
            assert (at_s, store.writes) == (at_s, writes)
        assert list(store.token_uses().values()) == [START]


# -- their names


@pytest.mark.parametrize(
    "name",
    [
        "service",
        "Ticker",
        " ticker ",
        "TICKER",
        "idle  watch",
        "idle-watch",
        "fleet_file",
        "clock",
        "system",
        "forewarn",
        "operator",
        "operator of node-1",
        "shop/web-0",
        "ѕеrvісе",  # Cyrillic letters that look like Latin ones
        "\uff53ervice",
        "ticker\u200b",
        "\u202eservice",
    ],
)
def test_a_name_of_the_services_own_actors_is_refused(service: RunningService, name: str) -> None:
    """A reader of the audit log must know who acted: a person, a machine, or the service itself."""
    reply = service.request("POST", "/v1/tokens", {"name": name, "role": "viewer"})
    assert (reply.status, reply.code) == (400, "invalid"), reply.raw
    assert "name" in reply.message


@pytest.mark.parametrize("name", ["ci", "service desk", "Zoë", "night operator", "Иван", "a/b c"])
def test_other_names_are_free(service: RunningService, name: str) -> None:
    """Also names in other scripts, and names that contain a reserved word."""
    assert service.request("POST", "/v1/tokens", {"name": name, "role": "viewer"}).status == 201


def test_every_actor_in_the_source_is_reserved() -> None:
    """A new actor of the service cannot be forgotten."""
    found = set()
    for page in Path(forewarn.__file__).parent.rglob("*.py"):
        if not {"testing", "demo", "guest"} & set(page.parts):
            found |= set(re.findall(r'(?:\bActor\(|\bwho=)"([^"]+)"', page.read_text("utf-8")))
    assert {"service", "ticker", "clock", "idle watch", "fleet file"} <= found
    assert [name for name in found if not is_reserved(name)] == []


# -- wrong ones


def test_the_limit_counts_by_address() -> None:
    """Old failures do not count, failures over the limit do not extend it, and an IPv6 network is one address."""
    at_s = 0.0
    failures = FailedAttempts(lambda: at_s)
    for _ in range(MAX_FAILURES):
        failures.add("10.0.0.1", "wrong")
        failures.add("2001:db8::1", "wrong")
    failures.add("10.0.0.2", "wrong")
    at_s = FAILURES_WITHIN_S - 1
    for peer in ("10.0.0.1", "::ffff:10.0.0.1", "2001:db8::2"):
        with pytest.raises(TooManyAttempts):
            failures.add(peer, "wrong")
    at_s = FAILURES_WITHIN_S
    failures.add("10.0.0.1", "wrong")
    failures.add("2001:db8::3", "wrong")


def test_what_is_kept_of_wrong_tokens_is_limited() -> None:
    """Failures from more addresses than that are counted together."""
    failures = FailedAttempts(lambda: 0.0)
    for number in range(MAX_PEERS * 2):
        failures.add(f"10.0.{number // 256}.{number % 256}", "wrong")
    counts = failures.take_counts()
    assert (len(counts), counts.total(), counts[OTHER_ADDRESSES]) == (MAX_PEERS + 1, MAX_PEERS * 2, MAX_PEERS)
    assert len(failures._recent) == MAX_PEERS
    assert len(describe(counts)) < 500
    assert failures.take_counts() == {}
    failures.put_back(counts)
    failures.add("192.0.2.1", "wrong")
    failures.add("not\x1b[31m an address", "wrong")
    again = failures.take_counts()
    assert (len(again), again[OTHER_ADDRESSES]) == (MAX_PEERS + 1, MAX_PEERS + 2)
    assert all(address.isprintable() for address in again)


def test_wrong_tokens_are_throttled_and_the_right_one_never(service: RunningService) -> None:
    """429 after ten wrong ones from one address within a minute; the right token is checked first."""
    for _ in range(MAX_FAILURES):
        assert service.request("GET", "/v1/scopes", token="fw_wrong").status == 401
    reply = service.request("GET", "/v1/scopes", token="fw_wrong")
    assert (reply.status, reply.code) == (429, "too_many_attempts")
    assert reply.headers["retry-after"] == "60"
    assert post_without_login(service, "/login", {"token": "fw_wrong"}).status == 429
    assert service.request("GET", "/v1/scopes").status == 200
    assert post_without_login(service, "/login", {"token": service.token}).status == 303
    assert service.request("GET", "/v1/scopes", token="").status == 401


def test_another_address_is_not_throttled() -> None:
    """Behind a proxy the address is the one that the proxy names."""
    with running_service(behind_tls_proxy="true") as service:
        for number, peer in ((MAX_FAILURES, "192.0.2.1"), (1, "192.0.2.2")):
            for _ in range(number):
                headers = {"X-Forwarded-For": peer}
                assert service.request("GET", "/v1/scopes", token="fw_wrong", headers=headers).status == 401


def test_failed_authentication_is_logged_without_the_secret(
    service: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    """With the address and the reason, and no more lines than attempts that are not throttled."""
    with caplog.at_level(logging.WARNING, logger="forewarn"):
        for _ in range(MAX_FAILURES + 2):
            service.request("GET", "/v1/scopes", token="fw_wrong-but-secret")
    lines = [record.getMessage() for record in caplog.records if "authentication failed" in record.getMessage()]
    assert len(lines) == MAX_FAILURES
    assert "127.0.0.1" in lines[0]
    assert "not logged" in lines[-1]
    assert "fw_wrong" not in caplog.text


def test_failed_authentication_is_audited_in_aggregate(service: RunningService) -> None:
    """One entry for all of a minute, by the service itself, with the addresses and their counts."""
    for _ in range(MAX_FAILURES + 1):
        service.request("GET", "/v1/scopes", token="fw_wrong-but-secret")
    service.access_recorder.save()
    service.access_recorder.save()
    (entry,) = [e for e in service.get("/v1/audit")["items"] if e["action"] == "authentication failed"]
    assert entry["who"] == "service"
    assert (
        entry["detail"]
        == f"{MAX_FAILURES + 1} request(s) with a wrong or expired token: 127.0.0.1 ({MAX_FAILURES + 1})"
    )
    assert "forewarn_operator_authentication_failures_total 11.0" in service.request("GET", "/metrics").raw.decode()
