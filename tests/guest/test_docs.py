"""The pages about agent and SDK describe every command, key, metric and handler."""

import contextlib
import re
import tomllib
from pathlib import Path

from forewarn.guest.client import Client
from forewarn.guest.clock import Time
from forewarn.guest.config import TOP_LEVEL_KEYS, parse
from forewarn.guest.handlers import HANDLERS
from forewarn.guest.state import State
from forewarn.guest.status import metrics
from forewarn.guest.steps import Run
from tests.support.fake_endpoint import FakeEndpoint, ManualTime

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guide"
CONFIGURATION = (GUIDE / "agent-configuration.md").read_text("utf-8")
AGENT = "".join(page.read_text("utf-8") for page in [*GUIDE.glob("agent*.md"), GUIDE / "handlers/README.md"])
SDK = (GUIDE / "sdk.md").read_text("utf-8")


def test_the_whole_agent_toml_is_read() -> None:
    """Every key of the page is known, every known key is on the page, and every handler has its example."""
    (block,) = re.findall(r"```toml\n(.*?)```", CONFIGURATION, re.DOTALL)
    table = tomllib.loads(block)
    config = parse(table, {})
    assert set(table) == set(TOP_LEVEL_KEYS)
    assert {step.handler for step in config.plan.steps} == set(HANDLERS)
    (process,) = [step for step in config.plan.steps if step.handler == "process"]
    (printed,) = [step["process"] for step in table["steps"] if "process" in step]
    assert set(process.spec._fields) == set(printed)


def test_every_command_variable_metric_and_handler_is_described() -> None:
    """The page contains each by its name."""
    from forewarn.guest.main import _parser

    run = Run(step="", phase="", event={}, share_s=1, time=Time())
    names = re.findall(r"^# TYPE (\S+)", metrics(State(), 0), re.MULTILINE)
    commands = re.findall(r"\{(.*?)\}|^ {4}(\w+) ", _parser().format_help(), re.MULTILINE)
    words = [*run.variables(), *names, *HANDLERS, *(word for pair in commands for word in pair if word)]
    assert "simulate" in words
    for word in words:
        assert f"`{word}" in AGENT, word


def test_the_sdks_example_runs() -> None:
    """The example runs as printed, with a client for a fake endpoint."""
    (example,) = re.findall(r"```python\n(.*?)```", SDK, re.DOTALL)
    clock = ManualTime()
    endpoint = FakeEndpoint(clock)
    endpoint.announce()

    class Enough(Exception):
        pass

    def approved(_: str) -> None:
        raise Enough

    endpoint.on_approve = approved
    code = example.replace("from forewarn.guest import Client\n", "")
    made = Client("10.0.0.1", transport=endpoint.transport, time=clock)
    with contextlib.suppress(Enough):
        exec(compile(code, "docs/guide/sdk.md", "exec"), {"Client": lambda: made})
    assert len(endpoint.approved) == 1


def test_both_pages_are_linked() -> None:
    """The README or the index of the documentation links to them."""
    first = (ROOT / "README.md").read_text("utf-8") + (ROOT / "docs/index.md").read_text("utf-8")
    for page in ("agent", "sdk"):
        assert re.search(rf"\]\((docs/)?guide/{page}\.md\)", first), page
