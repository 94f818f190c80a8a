"""An agent whose Patroni, Redis, Sentinels or program is at fault does not approve, logs it, and recovers."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.integration.handlers import fake_patroni, fake_redis
from tests.integration.handlers.agent_with_endpoint import agent_with_endpoint
from tests.integration.handlers.fake_sentinels import SENTINELS, FakeSentinels
from tests.support.waiting import until

TIMEOUT = "2s"
COUNTER = str(Path(__file__).parent / "counting_program.py")
CHECKPOINT = """
[[steps]]
name = "save"
required = true
timeout = "2s"
[steps.checkpoint]
file = "{folder}/checkpoint"
{ask}
pid_file = "{folder}/pid"
match = "counting_program.py"
restore = ["false"]
"""


class Target:
    """What a step handles: its lines of agent.toml, its fault, and how to end that."""

    def __init__(
        self, toml: str, mend: Callable[[], None], *, loud: bool, gone: Callable[[], None] | None = None
    ) -> None:
        self.toml, self.mend, self.loud = toml, mend, loud
        # What the event does to it.
        self.gone = gone or (lambda: None)


def patroni(stack: ExitStack, folder: Path, fault: str) -> Target:
    del folder
    made = stack.enter_context(fake_patroni.fake_patroni())
    over = threading.Event()
    stack.callback(over.set)

    def misbehave(_: str, handler: BaseHTTPRequestHandler) -> None:
        if not over.is_set():
            if fault == "hangs":
                over.wait(60)
            handler.close_connection = True
            raise OSError("closed")

    if fault == "lies":
        made.on_switch = lambda _: (200, "done")
    else:
        made.before_answer = misbehave
    return Target(
        fake_patroni.STEP.format(url=made.urls["pg0"]).replace("20s", TIMEOUT), over.set, loud=fault != "lies"
    )


def redis(stack: ExitStack, folder: Path, fault: str) -> Target:
    del folder
    over = threading.Event()
    other = stack.enter_context(fake_redis.fake_redis(lambda _: fake_redis.replica("b", "127.0.0.1:9")))

    def answer(words: list[str]) -> bytes:
        if fault != "lies" and not over.is_set():
            if fault == "hangs":
                over.wait(60)
            raise OSError("closed")
        return fake_redis.master("a", other.address) if words[0] == "INFO" else b"+OK\r\n"

    me = stack.enter_context(fake_redis.fake_redis(answer))
    stack.callback(over.set)
    return Target(fake_redis.STEP.format(address=me.address).replace("20s", TIMEOUT), over.set, loud=fault != "lies")


def sentinel(stack: ExitStack, folder: Path, fault: str) -> Target:
    del folder
    group = FakeSentinels(stack)
    stack.callback(group.deaf.set)
    group.obeys = fault != "lies"
    group.closes = fault == "closes"
    group.deaf_to = dict.fromkeys(range(SENTINELS) if fault == "hangs" else (), "GET-MASTER-ADDR-BY-NAME")

    def mend() -> None:
        group.closes = False
        group.deaf_to = {}
        group.deaf.set()

    return Target(group.step(TIMEOUT), mend, loud=fault != "lies")


def checkpoint(stack: ExitStack, folder: Path, fault: str) -> Target:
    """A program that does not run, never writes the checkpoint, or only claims to."""
    running: list[subprocess.Popen[bytes]] = []

    def end() -> None:
        for process in running:
            process.kill()
            process.wait()

    def start() -> None:
        (folder / "count").unlink(missing_ok=True)
        running.append(subprocess.Popen([sys.executable, COUNTER, str(folder), "--never"]))
        until(lambda: (folder / "count").exists())

    stack.callback(end)
    if fault == "closes":
        return Target(CHECKPOINT.format(folder=folder, ask='signal = "USR1"'), lambda: None, loud=False)
    start()
    ask = 'signal = "USR1"' if fault == "hangs" else 'command = ["true"]'
    return Target(CHECKPOINT.format(folder=folder, ask=ask), start, loud=True, gone=end)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


@pytest.mark.parametrize("fault", ["closes", "hangs", "lies"])
@pytest.mark.parametrize("kind", [patroni, redis, sentinel, checkpoint])
def test_a_target_at_fault_means_no_approval(
    stack: ExitStack, tmp_path: Path, kind: Callable[[ExitStack, Path, str], Target], fault: str
) -> None:
    """The event is never approved unprepared; while recover fails, the log says so, until it succeeds."""
    target = kind(stack, tmp_path, fault)
    with agent_with_endpoint(tmp_path, target.toml, lambda: False) as (platform, agent):
        platform.announce()
        agent.wait_until(lambda: agent.outcomes("prepare")[:1] == [False])
        target.gone()
        platform.end()
        if target.loud:
            agent.wait_until(lambda: "THE MACHINE IS NOT BACK IN SERVICE" in agent.log)
            assert "in-service" not in agent.kinds
            target.mend()
            agent.kill()
            agent.up()  # at once, and not after a pause
        agent.wait_until_back()
        assert platform.approvals == []
        assert "a fault in the handler" not in agent.log
