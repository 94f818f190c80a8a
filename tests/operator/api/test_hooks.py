"""Hooks through the API, on a real service with a real receiver."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.core.hooks import ALL_KINDS, USUAL_KINDS
from tests.support.ports import reserved_port
from tests.support.running_service import RunningService, running_service
from tests.support.waiting import until
from tests.support.webhook_receiver import receiving

TARGETS = "127.0.0.0/8 receiver.invalid"


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(executor="simulated", hook_targets=TARGETS) as running:
        yield running


def test_a_hook_hears_of_a_maintenance_from_its_start_to_its_end(service: RunningService) -> None:
    """The receiver verifies each message; the hook shows how far it is, and each delivery."""
    with receiving() as receiver:
        made = service.post("/v1/hooks", {"url": receiver.url}, 201)
        assert made["secret"].startswith("whsec_")
        receiver.secrets.append(made["secret"])
        assert service.post(f"/v1/hooks/{made['id']}/test")["delivered"] is True
        service.schedule("shop/web-0")
        service.post("/v1/clock/advance", {"seconds": 7_200})
        until(lambda: [m["type"] for m in receiver.received][-1] == "forewarn.maintenance.ended")
        types = [message["type"] for message in receiver.received]
        assert types == [
            "forewarn.hook.test",
            "forewarn.event.published",
            "forewarn.event.started",
            "forewarn.event.completed",
            "forewarn.maintenance.ended",
        ]
        assert receiver.received[-1]["data"]["detail"] == "Completed"
        assert receiver.received[1]["data"]["event"]["machines"] == ["shop/web-0"]
        hook = f"/v1/hooks/{made['id']}"
        until(lambda: service.get(hook)["delivered"] is not None)
        shown = service.get(hook)
        assert "secret" not in shown
        assert (shown["state"], shown["failures"], shown["gap"]) == ("active", 0, None)
        until(lambda: len(service.get(f"{hook}/deliveries")["items"]) == 4)
        page = service.get(f"{hook}/deliveries?limit=3")
        rest = service.get(f"{hook}/deliveries?limit=3&cursor={page['next_cursor']}")
        assert [d["type"] for d in [*page["items"], *rest["items"]]] == types[:0:-1]

        entry = rest["items"][0]["entry"]
        service.post(f"{hook}/replay", {"from_entry": entry})
        until(lambda: len(receiver.received) == 9)
        assert [m["type"] for m in receiver.received[5:]] == types[1:]

        new = service.post(f"{hook}/rotate", {"keep_s": 3_600})
        assert new["secret"] != made["secret"]
        assert new["old_secrets_until"] is not None
        receiver.secrets.append(new["secret"])  # from here on a message must carry both signatures
        assert service.post(f"{hook}/test")["delivered"] is True
        assert service.request("DELETE", hook).status == 204
        assert service.request("GET", hook).status == 404
    actions = [e["action"] for e in service.get("/v1/audit?limit=500")["items"]]
    assert {"hook created", "hook replayed", "hook secret rotated", "hook deleted"} <= set(actions)
    everything = service.request("GET", "/v1/audit?limit=500").raw.decode()
    assert "whsec_" not in everything
    assert "/in" not in everything, "the path of a URL may be a secret"


def test_the_receiver_of_the_guide_accepts_what_it_gets(service: RunningService) -> None:
    """The code of the page runs as it stands; a message with another secret is refused."""
    page = (Path(__file__).parents[3] / "docs/guide/hooks.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with reserved_port() as reserved:
        port = reserved.getsockname()[1]
        made = service.post("/v1/hooks", {"url": f"http://127.0.0.1:{port}/", "scope": "shop"}, 201)
        environment = {**os.environ, "HOOK_SECRET": made["secret"], "PORT": str(port)}
        command = [sys.executable, "-c", code]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                test = f"/v1/hooks/{made['id']}/test"
                until(lambda: service.post(test)["delivered"])
                service.schedule("shop/web-0")
                assert process.stdout is not None
                assert process.stdout.readline() == "forewarn.hook.test \n"
                assert process.stdout.readline().startswith("forewarn.event.published ")
                service.post(f"/v1/hooks/{made['id']}/rotate", {"keep_s": 0})
                refused = service.post(test)
                assert (refused["status"], refused["error"]) == (
                    401, "the receiver answered 401: the signature is wrong, or the message is too old",
                )  # fmt: skip
            finally:
                process.kill()


def test_every_kind_is_on_the_page() -> None:
    """The table of the guide names what `--on` takes, and in bold what it takes by default."""
    page = (Path(__file__).parents[3] / "docs/guide/hooks.md").read_text("utf-8")
    rows = "\n".join(line.split("|")[1] for line in page.splitlines() if line.startswith("|"))
    assert set(re.findall(r"`([a-z-]+)`", rows)) == set(ALL_KINDS)
    assert set(re.findall(r"\*\*`([a-z-]+)`\*\*", rows)) == set(USUAL_KINDS)


def test_a_hook_that_fails_says_why_and_can_be_enabled(service: RunningService) -> None:
    """A receiver that is gone disables it; nothing is lost."""
    with receiving() as receiver:
        receiver.status = 410  # before there is a hook: its first message is sent at once
        made = service.post("/v1/hooks", {"url": receiver.url, "on": ["other"], "scope": "shop"}, 201)
        receiver.secrets.append(made["secret"])
        hook = f"/v1/hooks/{made['id']}"
        until(lambda: service.get(hook)["state"] == "disabled")
        shown = service.get(hook)
        assert (shown["error"], shown["failures"]) == ("the receiver answered 410", 1)
        assert service.post(f"{hook}/test") | {"took_ms": 0} == {
            "delivered": False, "status": 410, "error": "the receiver answered 410", "took_ms": 0,
        }  # fmt: skip
        receiver.status = 200
        assert service.post(f"{hook}/enable")["state"] == "active"
        until(lambda: len(receiver.received) == 3)
        details = [message["data"]["action"] for message in receiver.received]
        assert details == ["hook created", "hook disabled", "hook enabled"]


def test_a_repeated_request_makes_one_hook_and_shows_its_secret(service: RunningService) -> None:
    """With the same Idempotency-Key and the same token."""
    key = {"Idempotency-Key": "once"}
    body = {"url": "https://receiver.invalid/in"}
    first = service.request("POST", "/v1/hooks", body, headers=key)
    second = service.request("POST", "/v1/hooks", body, headers=key)
    assert (first.status, second.status, first.json) == (201, 201, second.json)
    assert len(service.get("/v1/hooks")["items"]) == 1


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"url": "nonsense"}, 400, "url is not like https://"),
        ({"url": "https://user@receiver.invalid/"}, 400, "url is not like https://"),
        ({"url": "https://10.0.0.1/"}, 400, "not in the setting hook_targets"),
        ({"url": "https://receiver.invalid/", "on": ["nothing"]}, 400, "'nothing' is not a kind"),
        (
            {"url": "https://receiver.invalid/", "scope": "shop", "on": ["ended", "failed"]},
            400,
            "kind ended belong to no",
        ),
        ({"url": "https://receiver.invalid:0/"}, 400, "a port from 1 to 65535"),
        ({"url": "https://[::::]/"}, 400, "the address of a host"),
        ({"url": "https://receiver.invalid/", "scope": "none"}, 404, "no scope"),
        ({"url": "https://receiver.invalid/" + "x" * 1_024}, 422, "url"),
        ({"url": "https://receiver.invalid/", "shape": "fax"}, 422, "use one of cloudevents, slack, teams"),
    ],
)
def test_a_wrong_hook_is_refused(service: RunningService, body: object, status: int, message: str) -> None:
    """With what is wrong and what to do."""
    reply = service.request("POST", "/v1/hooks", body)
    assert (reply.status, message in reply.message) == (status, True), reply.raw


def test_without_a_list_of_targets_loopback_is_refused() -> None:
    """At creation where the URL names the address, after resolution otherwise."""
    with running_service() as service, receiving() as receiver:
        port = receiver.server_address[1]
        refused = service.request("POST", "/v1/hooks", {"url": f"https://127.0.0.1:{port}/"})
        assert "not a public address" in refused.message
        assert "only https" in service.request("POST", "/v1/hooks", {"url": receiver.url}).message
        made = service.post("/v1/hooks", {"url": f"https://localhost:{port}/"}, 201)
        assert "not a public address" in service.post(f"/v1/hooks/{made['id']}/test")["error"]


def test_an_owner_manages_the_hooks_of_its_own_scopes_only(service: RunningService) -> None:
    """It sees no others, makes none for the fleet, and a viewer sees none at all."""
    owner, viewer = service.token_of("owner", "shop"), service.token_of("viewer")
    body = {"url": "https://receiver.invalid/in"}
    fleet = service.post("/v1/hooks", body, 201)
    blog = service.post("/v1/hooks", {**body, "scope": "blog"}, 201)
    mine = service.post("/v1/hooks", {**body, "scope": "shop"}, 201, token=owner)
    assert [h["id"] for h in service.get("/v1/hooks", token=owner)["items"]] == [mine["id"]]
    assert [h["id"] for h in service.get("/v1/hooks")["items"]].count(mine["id"]) == 1
    first = service.get("/v1/hooks?limit=2")
    rest = service.get(f"/v1/hooks?limit=2&cursor={first['next_cursor']}")
    assert {h["id"] for h in [*first["items"], *rest["items"]]} == {fleet["id"], blog["id"], mine["id"]}
    assert [h["id"] for h in service.get("/v1/hooks?q=BLOG")["items"]] == [blog["id"]]
    for other in ({**body, "scope": "blog"}, body):
        assert service.request("POST", "/v1/hooks", other, token=owner).status == 403
    for hook in (fleet, blog):
        path = f"/v1/hooks/{hook['id']}"
        calls = [("GET", path), ("GET", f"{path}/deliveries"), ("DELETE", path)]
        calls += [("POST", f"{path}/{verb}") for verb in ("test", "rotate", "enable")]
        assert {service.request(*call, token=owner).status for call in calls} == {404}
        assert service.request("POST", f"{path}/replay", {"from_entry": 1}, token=owner).status == 404
    assert service.post(f"/v1/hooks/{mine['id']}/rotate", token=owner)["secret"]
    (owner_token,) = [t["id"] for t in service.get("/v1/tokens")["items"] if t["role"] == "owner"]
    second = service.token_of("owner", "shop")
    assert service.request("DELETE", f"/v1/tokens/{owner_token}").status == 204
    until(lambda: service.get(f"/v1/hooks/{mine['id']}")["error"] == "the token of its owner has ended")
    assert service.post(f"/v1/hooks/{mine['id']}/enable", token=second)["state"] == "active"
    owner = second
    assert service.request("DELETE", f"/v1/hooks/{mine['id']}", token=owner).status == 204
    assert service.request("GET", "/v1/hooks", token=viewer).status == 403
