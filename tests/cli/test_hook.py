"""`forewarn hook`, run inside this process against a service that runs here, too."""

import io
import json
import re
import sys
from collections.abc import Callable, Iterator

import pytest

from forewarn.cli.app import run
from tests.support.running_service import RunningService, running_service
from tests.support.waiting import until
from tests.support.webhook_receiver import receiving

DONE, FAILED, USAGE = 0, 1, 2
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with running_service(executor="simulated", hook_targets="127.0.0.0/8") as running:
        yield running


@pytest.fixture
def cli(service: RunningService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command; return its exit code, standard output and standard error."""
    monkeypatch.setenv("FOREWARN_SERVER", service.url)
    monkeypatch.setenv("FOREWARN_TOKEN", service.token)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["forewarn", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        with pytest.raises(SystemExit) as ended:
            run()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call


def test_a_hook_from_its_creation_to_its_end(service: RunningService, cli: Cli) -> None:
    """Each command says what it did; the secret is printed once and is all of standard output."""
    with receiving() as receiver:
        code, secret, about = cli(
            "hook", "create", "--url", receiver.url, "--scope", "shop", "--on", "published, started"
        )
        assert (code, secret[:6], secret.count("\n")) == (DONE, "whsec_", 1)
        hook_id = re.search(r"hook ([0-9A-F-]{36});", about)[1]  # type: ignore[index]
        receiver.secrets.append(secret.strip())
        assert re.match(r"delivered: the receiver answered 204 after \d+ ms\n", cli("hook", "test", hook_id[:8])[1])
        service.schedule("shop/web-0")
        service.post("/v1/clock/advance", {"seconds": 3_600})
        until(lambda: len(receiver.received) == 3)
        until(lambda: len(json.loads(cli("hook", "deliveries", hook_id, "--json")[1])["items"]) == 2)
        listed = cli("hook", "deliveries", hook_id)[1].splitlines()
        assert [line.split()[1] for line in listed[1:]] == ["forewarn.event.started", "forewarn.event.published"]
        entry = listed[2].split()[0]
        assert f"goes on with entry {entry}" in cli("hook", "replay", hook_id, "--from", entry)[1]
        until(lambda: len(receiver.received) == 5)
        shown = cli("hook", "show", hook_id[:8])[1]
        assert re.search(r"^state +active$", shown, re.MULTILINE)
        assert re.search(r"^on +published started$", shown, re.MULTILINE)
        assert secret.strip() not in shown
        code, new, _ = cli("hook", "rotate", hook_id, "--keep", "1h")
        assert new != secret
        receiver.secrets.append(new.strip())
        assert cli("hook", "test", hook_id)[0] == DONE
        assert "signs too until" in cli("hook", "show", hook_id)[1]
        service.post("/v1/clock/advance", {"seconds": 3_601})
        assert "signs too until" not in cli("hook", "show", hook_id)[1]
        receiver.status = 500
        code, _, error = cli("hook", "test", hook_id)
        assert (code, "the receiver answered 500" in error) == (FAILED, True)
        assert cli("hook", "test", hook_id, "--json")[0] == FAILED
        line = cli("hook", "list")[1].splitlines()[1]
        assert line.split()[:5] == [hook_id, "active", "shop", receiver.url, "published,started"]
        assert cli("hook", "list", "--match", "nowhere")[1] == "no hooks\n"
        code, _, error = cli("hook", "delete", hook_id)
        assert (code, "nothing is deleted" in error) == (FAILED, True)
        assert cli("hook", "delete", hook_id, "--yes")[1] == f"hook {hook_id} is deleted\n"
        assert cli("hook", "list")[1] == "no hooks\n"


def test_a_hook_that_failed_is_shown_and_enabled(cli: Cli) -> None:
    """`show` says since when and why, and what to do."""
    with receiving() as receiver:
        receiver.status = 500
        made = json.loads(cli("hook", "create", "--url", receiver.url, "--on", "other", "--json")[1])
        until(lambda: re.search(r"^next attempt +2\d{3}-", cli("hook", "show", made["id"])[1], re.MULTILINE))
        receiver.status = 410
        until(lambda: json.loads(cli("hook", "show", made["id"], "--json")[1])["state"] == "disabled")
        shown = cli("hook", "show", made["id"])[1]
        assert "failing since" in shown
        assert re.search(r"^error +the receiver answered 410$", shown, re.MULTILINE)
        assert "`forewarn hook enable` sends what has waited" in shown
        receiver.status = 200
        receiver.secrets.append(made["secret"])
        assert cli("hook", "enable", made["id"])[1] == f"hook {made['id']} is enabled\n"
        until(lambda: receiver.received)
        cli("hook", "delete", made["id"], "--yes")


def test_a_wrong_hook_is_refused(cli: Cli) -> None:
    """With exit code 1 and the service's reason; an unknown id is not found."""
    code, _, error = cli("hook", "create", "--url", "https://10.0.0.1/")
    assert (code, "not in the setting hook_targets" in error) == (FAILED, True)
    assert "is not a kind of entry" in cli("hook", "create", "--url", "https://127.0.0.1/", "--on", "start")[2]
    assert "matches no hook" in cli("hook", "show", "00000000")[2]
    assert cli("hook", "rotate", "00000000", "--keep", "soon")[0] == USAGE
