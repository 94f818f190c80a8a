"""The `forewarn-agent` command: parse, call, print. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not reachable."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any, Dict, List, NoReturn, Optional

from forewarn import __version__
from forewarn.guest import config as configuration
from forewarn.guest import journal as journals
from forewarn.guest.client import Client
from forewarn.guest.clock import Time, boot_id, shown
from forewarn.guest.config_values import seconds
from forewarn.guest.errors import ConfigError, EndpointError, GuestError, JournalInUse, Refused

DEFAULT_CONFIG = "/etc/forewarn/agent.toml"


def main(arguments: Optional[List[str]] = None) -> NoReturn:
    given = _parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    try:
        code = given.call(given)
    except ConfigError as error:
        print(f"forewarn-agent: {error}", file=sys.stderr)
        code = 2
    except (GuestError, OSError) as error:  # without a journal it must not act: whoever supervises it tries again
        print(f"forewarn-agent: {error}", file=sys.stderr)
        code = 1
    raise SystemExit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="forewarn-agent", description="Prepares this machine for what is coming.")
    parser.add_argument("--version", action="version", version=f"forewarn-agent {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    config = argparse.ArgumentParser(add_help=False)
    default = os.environ.get("FOREWARN_AGENT_CONFIG", DEFAULT_CONFIG)
    config.add_argument("--config", type=Path, default=Path(default), help=f"agent.toml [default: {default}]")

    def add(name: str, call: Any, text: str, with_config: bool = True) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, parents=[config] if with_config else [])
        added.set_defaults(call=call)
        return added

    init = add("init", _init, "Write a commented agent.toml.", with_config=False)
    init.add_argument("path", nargs="?", type=Path, default=Path("agent.toml"), help="where [default: agent.toml]")
    add("check", _check, "Test the configuration, without effect.")
    run = add("run", _run, "Run until SIGTERM.")
    run.add_argument("--dry-run", action="store_true", help="decide and say, but do nothing and approve nothing")
    simulate = add("simulate", _simulate, "Rehearse the steps against a made-up event, and undo them.")
    simulate.add_argument("type", choices=("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"))
    simulate.add_argument("--in", dest="in_", metavar="5m", help="the notice [default: the least that type has]")
    status = add("status", _status, "What it is doing, what remains of the budget, why it has not approved.")
    status.add_argument("--json", action="store_true", help="as the status file has it")
    history = add("history", _history, "What it has done, from its journal.")
    history.add_argument("--json", action="store_true", help="the journal's own lines")
    return parser


def _load(given: argparse.Namespace) -> configuration.Config:
    return configuration.load(given.config, os.environ)


# -- init


def _init(given: argparse.Namespace) -> int:
    from forewarn.guest.template import TEMPLATE

    try:
        file = os.open(given.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        print(f"forewarn-agent: {given.path} is there already and stays as it is", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"forewarn-agent: {given.path} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    with os.fdopen(file, "w", encoding="utf-8") as out:
        out.write(TEMPLATE)
    print(f"wrote {given.path}; edit it, then: forewarn-agent check --config {given.path}")
    return 0


# -- check


def _check(given: argparse.Namespace) -> int:
    from forewarn.guest.handlers import HANDLERS
    from forewarn.guest.handlers.command import missing_program

    config = _load(given)
    print(f"ok    {given.config}: {len(config.plan.rules)} rule(s), {len(config.plan.steps)} step(s)")
    complaints = 0
    for step in config.plan.steps:
        wrong = HANDLERS[step.handler].check(step.spec)
        complaints += len(wrong)
        for each in wrong:
            print(f"WRONG step {step.name!r}: {each}")
        if not wrong:
            print(f"ok    step {step.name!r}")
    wrong = missing_program(config.plan.health.command) if config.plan.health is not None else []
    wrong += [
        f"{what}: {path} cannot be written to"
        for what, path in (("state_dir", config.state_dir), ("metrics_file", config.metrics_file))
        if path is not None and not (_writable(path) if what == "state_dir" else os.access(path.parent, os.W_OK))
    ]
    for each in wrong:
        print(f"WRONG {each}")
    reached = _reached(config)
    return 1 if complaints or wrong else 0 if reached else 3


def _writable(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)


def _reached(config: configuration.Config) -> bool:
    """Asks who we are, which enables nothing."""
    client = _client(config)
    me = client.me()
    if me.origin == "instance" or (config.name and _answers(client)):
        print(f"ok    {client.endpoint} answers: this machine is {me.name}")
        return True
    print(f"WRONG {client.endpoint} does not say who this machine is; by its host name it is {me.name}")
    return False


def _answers(client: Client) -> bool:
    try:
        client.versions()
    except (EndpointError, Refused):
        return False
    return True


def _client(config: configuration.Config) -> Client:
    return Client(
        config.endpoint,
        api_version=config.api_version,
        name=config.name,
        source_address=config.source_address,
        poll_every_s=config.poll_every_s,
    )


# -- run


def _run(given: argparse.Namespace) -> int:
    return run(_load(given), dry=given.dry_run)


def run(config: configuration.Config, *, dry: bool = False) -> int:
    """The agent in the foreground, until SIGTERM."""
    from forewarn.guest import status
    from forewarn.guest.agent import Agent

    _set_up_log(config.log_level)
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    journal = journals.Memory() if dry else journals.Journal(config.state_dir)

    troubled: List[bool] = []

    def show(agent: Agent) -> None:
        try:
            if not dry:
                status.write(agent, config.state_dir, config.metrics_file)
        except OSError as error:  # to be seen is good, to do the work is better
            if not troubled:
                logging.getLogger("forewarn.guest").error("status or metrics cannot be written: %s", error)
                troubled.append(True)

    agent = Agent(config.plan, _client(config), journal, boot=boot_id(config.boot_id_file), dry=dry, shown=show)
    logging.getLogger("forewarn.guest").info(
        "watching %s%s", agent.client.endpoint, "; a dry run: nothing is done, nothing is approved" if dry else ""
    )
    agent.run()
    return 0


def _end(number: int, frame: Any) -> NoReturn:
    """Whatever it was doing is in the journal."""
    del number, frame
    raise SystemExit(0)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"at": shown(record.created), "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _set_up_log(level: str) -> None:
    """One line per action on stderr: plain on a terminal, else JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S") if sys.stderr.isatty() else _JsonLines()
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])


# -- simulate


def _simulate(given: argparse.Namespace) -> int:
    from forewarn.guest.rehearsal import NOTICE_S, rehearse
    from forewarn.guest.state import folded

    config = _load(given)
    in_s = seconds(given.in_, "--in") if given.in_ else NOTICE_S[given.type]
    try:
        journal = journals.Journal(config.state_dir)  # held to the end: no agent may begin meanwhile
    except JournalInUse:
        print("forewarn-agent: an agent is running: stop the agent first", file=sys.stderr)
        return 1
    try:
        if folded(journal.records).out_of_service:
            print("forewarn-agent: an event is under way: this is no time for a rehearsal", file=sys.stderr)
            return 1
        _set_up_log("warning")
        return 0 if rehearse(config, given.type, in_s, lambda line: print(line, flush=True)) else 1
    finally:
        journal.close()


# -- status and history


def _status(given: argparse.Namespace) -> int:
    from forewarn.guest import status

    config = _load(given)
    try:
        text = (config.state_dir / status.NAME).read_text("utf-8")
    except OSError:
        print(f"forewarn-agent: no agent has run with {config.state_dir}", file=sys.stderr)
        return 3
    running = journals.in_use(config.state_dir)
    if given.json:
        print(text, end="")
    else:
        print("\n".join(status.lines(json.loads(text), Time().wall(), running)))
    return 0 if running else 3


def _history(given: argparse.Namespace) -> int:
    path = _load(given).state_dir / journals.NAME
    records = journals.read(path.with_suffix(".1.jsonl"))[0] + journals.read(path)[0]
    for record in records:
        print(json.dumps(record) if given.json else _history_line(record))
    return 0


def _history_line(record: Dict[str, Any]) -> str:
    event = record.get("event")
    about = event if isinstance(event, dict) else {}
    words: List[str] = [str(record.get("at", "")), str(record.get("kind", ""))]
    words += [str(about[key]) for key in ("EventType", "EventId", "EventStatus", "NotBefore") if about.get(key)]
    for key, value in record.items():
        if key not in ("at", "kind", "event", "tell", "child", "kept") and value not in ("", None, []):
            words.append(f"{key}={json.dumps(value)}")
    return " ".join(words)
