"""The portal's pages of hooks: create, watch, test, enable, replay, rotate and delete."""

import re
from collections.abc import Iterator

import pytest

from tests.support.portal_client import HOSTILE, PortalClient, hidden_fields, page_text
from tests.support.running_service import RunningService, running_service
from tests.support.waiting import until
from tests.support.webhook_receiver import receiving

FORM = {"url": "https://receiver.invalid/in", "scope": "", "on": "started, failed", "shape": "cloudevents"}


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with running_service(hook_targets="127.0.0.0/8 receiver.invalid") as running:
        running.enable("shop", "blog")
        yield running


def secret_of(page: str) -> str:
    found = re.search(r"<code>(whsec_[^<]+)</code>", page)
    assert found is not None, page
    return found[1]


def test_a_hook_is_made_watched_and_deleted(service: RunningService) -> None:
    """The secret is shown once; each button says what came of it."""
    operator = PortalClient(service)
    with receiving() as receiver:
        form = {**FORM, "url": receiver.url, "on": "published", "key": hidden_fields(operator.get("/hooks"))["key"]}
        made = operator.post("/hooks", form)
        secret = secret_of(made.raw.decode())
        assert secret_of(operator.post("/hooks", form).raw.decode()) == secret, "submitted twice, made once"
        receiver.secrets.append(secret)
        (path,) = re.findall(r'href="(/hooks/[0-9A-F-]{36})"', made.raw.decode())
        assert "Delivered: the receiver answered 204" in page_text(operator.post(f"{path}/test", {}))
        service.schedule("shop/web-0")
        until(lambda: "event.published delivered, 204" in page_text(operator.get(path)))
        listed = page_text(operator.get("/hooks"))
        assert path[7:15] in listed
        assert "active" in listed
        assert "No hooks match" in page_text(operator.get("/hooks?q=nowhere"))
        assert path in operator.get(f"/search?q={receiver.url}").raw.decode()
        entry = re.search(r'<th scope="row">(\d+)</th>', operator.get(path).raw.decode())[1]  # type: ignore[index]
        replayed = operator.post(f"{path}/replay", {"from": entry})
        assert (replayed.status, replayed.headers["location"]) == (303, f"{path}?done=hook-replay")
        until(lambda: len(receiver.received) == 3)
        for wrong in ("x", "999999"):
            refused = operator.post(f"{path}/replay", {"from": wrong})
            assert refused.status in (400, 422)
            assert 'role="alert"' in refused.raw.decode()
        new = secret_of(operator.post(f"{path}/rotate", {"keep": "1h"}).raw.decode())
        assert new != secret
        assert "signs too until" in page_text(operator.get(path))
        assert operator.post(f"{path}/rotate", {"keep": "soon"}).status == 400
        assert secret not in operator.get(path).raw.decode()
        assert operator.get(f"{path}/test").headers["location"] == path
        question = operator.get(f"{path}/delete")
        assert "Delete?" in page_text(question)
        assert operator.post(f"{path}/delete", {}).headers["location"] == "/hooks?done=hook-delete"
        assert "Deleted." in page_text(operator.get("/hooks?done=hook-delete"))
        assert operator.get(path).status == 404


def test_a_disabled_hook_says_why_and_offers_to_enable_it(service: RunningService) -> None:
    """Its page has the error and the button; the list has the error too."""
    operator = PortalClient(service)
    with receiving() as receiver:
        receiver.status = 410
        made = service.post("/v1/hooks", {"url": receiver.url, "on": ["other"]}, 201)
        path = f"/hooks/{made['id']}"
        until(lambda: "Disabled since" in page_text(operator.get(path)))
        assert "the receiver answered 410" in page_text(operator.get("/hooks"))
        assert "Not delivered: the receiver answered 410" in page_text(operator.post(f"{path}/test", {}))
        receiver.status = 200
        receiver.secrets.append(made["secret"])
        assert operator.post(f"{path}/enable", {}).headers["location"] == f"{path}?done=hook-enable"
        until(lambda: receiver.received)
        service.request("DELETE", f"/v1{path}")


def test_a_wrong_form_keeps_what_was_typed(service: RunningService) -> None:
    """With the reason; nothing typed becomes markup."""
    operator = PortalClient(service)
    refused = operator.post("/hooks", {**FORM, "url": HOSTILE, "key": "k"})
    assert refused.status == 400
    assert "url is not like" in page_text(refused)
    assert "<script>alert" not in refused.raw.decode()
    unproven = operator.post("/hooks", {**FORM, "key": "k"}, proof="no")
    assert unproven.status == 403
    assert 'value="started, failed"' in unproven.raw.decode()


def test_an_owner_has_hooks_of_its_scopes_and_a_viewer_none(service: RunningService) -> None:
    """The page is about their own hooks; without the right there is no link."""
    owner = PortalClient(service, service.token_of("owner", "shop"))
    viewer = PortalClient(service, service.token_of("viewer"))
    other = service.post("/v1/hooks", {"url": "https://receiver.invalid/in", "scope": "blog"}, 201)
    assert other["id"][:8] not in page_text(owner.get("/hooks"))
    assert owner.get(f"/hooks/{other['id']}").status == 404
    assert "One of" in page_text(owner.get("/hooks"))
    assert owner.post("/hooks", {**FORM, "key": "1"}).status == 403
    assert secret_of(owner.post("/hooks", {**FORM, "scope": "shop", "key": "2"}).raw.decode())
    unchanged = {**FORM, "scope": "shop", "on": "", "key": "3"}
    assert secret_of(owner.post("/hooks", unchanged).raw.decode()), "the form as it is shown fits a scope, too"
    assert 'href="/hooks"' in owner.get("/").raw.decode()
    assert viewer.get("/hooks").status == 403
    assert 'href="/hooks"' not in viewer.get("/").raw.decode()
