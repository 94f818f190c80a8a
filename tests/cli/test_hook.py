"""`forewarn hook`, run inside this process against a service that runs here, too."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.cli.command_line import Command
from tests.support.running_service import RunningService, running_service
from tests.support.waiting import until
from tests.support.webhook_receiver import receiving

DONE, FAILED, USAGE = 0, 1, 2


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with running_service(executor="simulated", hook_targets="127.0.0.0/8") as running:
        yield running


def test_a_hook_from_its_creation_to_its_end(service: RunningService, forewarn: Command) -> None:
    """Each command says what it did; the secret is printed once and is all of standard output."""
    with receiving() as receiver:
        code, secret, about = forewarn(
            "hook", "create", "--url", receiver.url, "--scope", "shop", "--on", "published, started"
        )
        assert (code, secret[:6], secret.count("\n")) == (DONE, "whsec_", 1)
        hook_id = re.search(r"hook ([0-9A-F-]{36});", about)[1]  # type: ignore[index]
        receiver.secrets.append(secret.strip())
        assert re.match(
            r"delivered: the receiver answered 204 after \d+ ms\n", forewarn("hook", "test", hook_id[:8])[1]
        )
        service.schedule("shop/web-0")
        service.post("/v1/clock/advance", {"seconds": 3_600})
        until(lambda: len(receiver.received) == 3)
        until(lambda: len(json.loads(forewarn("hook", "deliveries", hook_id, "--json")[1])["items"]) == 2)
        listed = forewarn("hook", "deliveries", hook_id)[1].splitlines()
        assert [line.split()[1] for line in listed[1:]] == ["forewarn.event.started", "forewarn.event.published"]
        entry = listed[2].split()[0]
        assert f"goes on with entry {entry}" in forewarn("hook", "replay", hook_id, "--from", entry)[1]
        until(lambda: len(receiver.received) == 5)
        shown = forewarn("hook", "show", hook_id[:8])[1]
        assert re.search(r"^state +active$", shown, re.MULTILINE)
        assert re.search(r"^on +published started$", shown, re.MULTILINE)
        assert secret.strip() not in shown
        code, new, _ = forewarn("hook", "rotate", hook_id, "--keep", "1h")
        assert new != secret
        receiver.secrets.append(new.strip())
        assert forewarn("hook", "test", hook_id)[0] == DONE
        assert "signs too until" in forewarn("hook", "show", hook_id)[1]
        service.post("/v1/clock/advance", {"seconds": 3_601})
        assert "signs too until" not in forewarn("hook", "show", hook_id)[1]
        receiver.status = 500
        code, _, error = forewarn("hook", "test", hook_id)
        assert (code, "the receiver answered 500" in error) == (FAILED, True)
        assert forewarn("hook", "test", hook_id, "--json")[0] == FAILED
        line = forewarn("hook", "list")[1].splitlines()[1]
        assert line.split()[:5] == [hook_id, "active", "shop", receiver.url, "published,started"]
        assert forewarn("hook", "list", "--match", "nowhere")[1] == "no hooks\n"
        code, _, error = forewarn("hook", "delete", hook_id)
        assert (code, "nothing is deleted" in error) == (FAILED, True)
        assert forewarn("hook", "delete", hook_id, "--yes")[1] == f"hook {hook_id} is deleted\n"
        assert forewarn("hook", "list")[1] == "no hooks\n"


def test_a_hook_that_failed_is_shown_and_enabled(forewarn: Command) -> None:
    """`show` says since when and why, and what to do."""
    with receiving() as receiver:
        receiver.status = 500
        made = json.loads(forewarn("hook", "create", "--url", receiver.url, "--on", "other", "--json")[1])
        until(lambda: re.search(r"^next attempt +2\d{3}-", forewarn("hook", "show", made["id"])[1], re.MULTILINE))
        receiver.status = 410
        until(lambda: json.loads(forewarn("hook", "show", made["id"], "--json")[1])["state"] == "disabled")
        shown = forewarn("hook", "show", made["id"])[1]
        assert "failing since" in shown
        assert re.search(r"^error +the receiver answered 410$", shown, re.MULTILINE)
        assert "`forewarn hook enable` sends what has waited" in shown
        receiver.status = 200
        receiver.secrets.append(made["secret"])
        assert forewarn("hook", "enable", made["id"])[1] == f"hook {made['id']} is enabled\n"
        until(lambda: receiver.received)
        forewarn("hook", "delete", made["id"], "--yes")


def test_a_wrong_hook_is_refused(forewarn: Command) -> None:
    """With exit code 1 and the service's reason; an unknown id is not found."""
    code, _, error = forewarn("hook", "create", "--url", "https://10.0.0.1/")
    assert (code, "not in the setting hook_targets" in error) == (FAILED, True)
    assert "is not a kind of entry" in forewarn("hook", "create", "--url", "https://127.0.0.1/", "--on", "start")[2]
    assert "matches no hook" in forewarn("hook", "show", "00000000")[2]
    assert forewarn("hook", "rotate", "00000000", "--keep", "soon")[0] == USAGE
