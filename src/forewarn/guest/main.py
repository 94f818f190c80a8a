"""The `forewarn-agent` command line. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not reachable."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ContextManager, Dict, List, NoReturn, Optional

from forewarn import __version__
from forewarn.guest import config as configuration
from forewarn.guest import journal as journals
from forewarn.guest.client import Client
from forewarn.guest.clock import Time, boot_id, format_time
from forewarn.guest.config_values import did_you_mean, seconds
from forewarn.guest.errors import (
    ConfigError,
    CutShort,
    EndpointError,
    GuestError,
    JournalError,
    JournalInUse,
    NoAnswer,
    Refused,
    Unreachable,
)
from forewarn.guest.plan import Plan
from forewarn.guest.printable import MAX_LINE_CHARS, printable, word
from forewarn.guest.system import system
from forewarn.guest.transport import Transport

if TYPE_CHECKING:
    from forewarn.guest.agent import Agent
    from forewarn.guest.serving.clients import Clients

HELP_COLUMNS = 80
# The log of a service: this much in one file, and so many older files.
MAX_LOG_BYTES, OLD_LOGS = 10 * 1024 * 1024, 3
# Fields of records that are too long for a line, or that `history` shows in another way.
NOT_IN_HISTORY = (
    "at", "kind", "event", "tell", "child", "kept", "events", "steps", "messages", "tally", "client_approvals",
)  # fmt: skip
# What argparse writes about a command or type that does not exist.
_WRONG_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
_NAME = re.compile(r"[\w-]+")


def main(arguments: Optional[List[str]] = None) -> NoReturn:
    options = _parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a service of Windows has none
        sys.stdout.reconfigure(errors="backslashreplace")  # names may have characters that the output cannot encode
    try:
        code = options.call(options)
    except ConfigError as error:
        print(printable(f"forewarn-agent: {error}"), file=sys.stderr)
        code = 2
    except (GuestError, OSError) as error:  # without a journal the agent must not act; its supervisor starts it again
        print(printable(f"forewarn-agent: {error}"), file=sys.stderr)
        code = 1
    raise SystemExit(code)


class _StoreOnce(argparse.Action):
    """Stores the value of an option; refuses a second value, where argparse would keep the last one."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, _: Any = None
    ) -> None:
        if self.option_strings and getattr(namespace, self.dest, self.default) is not self.default:
            parser.error(f"{self.option_strings[0]}: given twice; it takes one value")
        setattr(namespace, self.dest, values)


def _help_formatter(prog: str) -> argparse.HelpFormatter:
    """Return a formatter of a fixed width: argparse asks `shutil` for the width of the terminal, also when it prints no help."""
    return argparse.HelpFormatter(prog, width=HELP_COLUMNS)


class _StrictParser(argparse.ArgumentParser):
    """A parser, like those of its commands, that refuses an option given twice, and suggests the nearest name for a wrong one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_help_formatter, **options)
        self.register("action", None, _StoreOnce)
        self.register("action", "store", _StoreOnce)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, unknown = super().parse_known_args(args, namespace)
        for argument in unknown:
            suggestion = did_you_mean(argument.partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized argument: {argument}{suggestion and f'; {suggestion}'}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """Add the nearest command or type to argparse's list of them."""
        if choice := _WRONG_CHOICE.search(message):
            suggestion = did_you_mean(choice[1], _NAME.findall(choice[2]))
            message = f"{message}{suggestion and f'; {suggestion}'}"
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser = _StrictParser(prog="forewarn-agent", description="Prepare this machine for scheduled events.")
    parser.add_argument("--version", action="version", version=f"forewarn-agent {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    config = _StrictParser(add_help=False)
    default = os.environ.get("FOREWARN_AGENT_CONFIG", system.DEFAULT_CONFIG)
    config.add_argument(
        "--config", type=Path, default=Path(default), help=f"the agent.toml to use [default: {default}]"
    )

    def add(name: str, call: Any, text: str, with_config: bool = True) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, parents=[config] if with_config else [])
        added.set_defaults(call=call)
        return added

    init = add("init", _init, "Write a commented agent.toml.", with_config=False)
    init.add_argument(
        "path", nargs="?", type=Path, default=Path("agent.toml"), help="the file to write [default: agent.toml]"
    )
    add("check", _check, "Check the configuration and the endpoint; change nothing.")
    run = add("run", _run, "Run until SIGTERM.")
    run.add_argument(
        "--service", action="store_true", help="run as a service of Windows, and log to a file in state_dir"
    )
    run.add_argument("--dry-run", action="store_true", help="log what the agent would do, but do and approve nothing")
    simulate = add("simulate", _simulate, "Prepare the steps for an invented event, and undo them.")
    simulate.add_argument("type", choices=("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"))
    simulate.add_argument("--in", dest="in_", metavar="5m", help="the notice [default: the least notice of that type]")
    status = add(
        "status", _status, "Show what the agent is doing, what is left of the budget, and why it has not approved."
    )
    status.add_argument("--json", action="store_true", help="print the status file as it is")
    history = add("history", _history, "Show what the agent has done, from its journal.")
    history.add_argument("--json", action="store_true", help="print the lines of the journal as they are")
    return parser


def _load(options: argparse.Namespace) -> configuration.Config:
    return configuration.load(options.config, os.environ)


# -- init


def _init(options: argparse.Namespace) -> int:
    from forewarn.guest.template import TEMPLATE

    try:
        file = os.open(options.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        print(f"forewarn-agent: {options.path} exists already and was not changed", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"forewarn-agent: {options.path} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    with os.fdopen(file, "w", encoding="utf-8") as out:
        out.write(TEMPLATE)
    print(f"wrote {options.path}; edit it, then: forewarn-agent check --config {options.path}")
    return 0


# -- check


def _check(options: argparse.Namespace) -> int:
    from forewarn.guest.handlers import HANDLERS
    from forewarn.guest.programs import program_problems

    config = _load(options)
    print(f"ok    {options.config}: {len(config.plan.rules)} rule(s), {len(config.plan.steps)} step(s)")
    if not (config.plan.steps or config.clients or config.plan.approve == "never"):
        print("NOTE  there are no steps: the agent approves events and prepares nothing")
    problems = 0
    for step in config.plan.steps:
        messages = HANDLERS[step.handler].check(step.spec)
        problems += len(messages)
        for each in messages:
            print(f"WRONG step {step.name!r}: {each}")
        if not messages:
            print(f"ok    step {step.name!r}")
    messages = program_problems(config.plan.health.command) if config.plan.health is not None else []
    messages += _client_problems(config)
    messages += [
        f"{what}: {path} cannot be written to"
        for what, path in (("state_dir", config.state_dir), ("metrics_file", config.metrics_file))
        if path is not None and not (_writable(path) if what == "state_dir" else os.access(path.parent, os.W_OK))
    ]
    for each in messages:
        print(f"WRONG {each}")
    reached = _endpoint_answers(config)
    return 1 if problems or messages else 0 if reached else 3


def _client_problems(config: configuration.Config) -> List[str]:
    """Return what is wrong with the sockets of the clients."""
    if not config.clients:
        return []
    from forewarn.guest.serving.listener import socket_problem

    found = [(client.name, socket_problem(client)) for client in config.clients]
    return [f"client {name!r}: {problem}" for name, problem in found if problem]


def _writable(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)


def _endpoint_answers(config: configuration.Config) -> bool:
    """Print and return whether the endpoint answers as `run` needs it; the requests enable nothing."""
    client = _client(config)
    given = ""
    try:
        given = client.instance().name
    except (Unreachable, NoAnswer, CutShort) as error:
        print(f"WRONG {client.endpoint} does not answer: {error}")
        return False
    except (EndpointError, Refused):  # an endpoint without instance documents, or one that does not know this machine
        try:
            client.check_events()
        except EndpointError as error:
            print(f"WRONG {client.endpoint} has no events for this machine: {printable(str(error))}")
            return False
    if config.name:
        other = f"; the endpoint calls it {printable(given)}" if given not in ("", config.name) else ""
        print(f"ok    {client.endpoint} answers: this machine is {printable(config.name)}, as configured{other}")
    elif given:
        print(f"ok    {client.endpoint} answers: this machine is {printable(given)}")
    else:
        name = printable(client.me().name)
        print(
            f"ok    {client.endpoint} answers, and does not say which machine this is: by its host name it is {name};"
        )
        print("      set `name` if the Resources of events have another name for it")
    return True


def _client(config: configuration.Config, *, interruptible: bool = False) -> Client:
    return Client(
        config.endpoint,
        api_version=config.api_version,
        name=config.name,
        source_address=config.source_address,
        poll_every_s=config.poll_every_s,
        transport=Transport(source_address=config.source_address, interruptible=interruptible),
    )


# -- run


def _run(options: argparse.Namespace) -> int:
    if options.service:
        system.run_as_service("forewarn-agent", lambda: _run_in_service(options))
        return 0
    config = _load(options)
    _set_up_log(config.log_level)
    system.end_on_signals(_exit)
    return run(config, dry_run=options.dry_run)


def _run_in_service(options: argparse.Namespace) -> None:
    """Run the agent with its log in a file, because a service has no stderr."""
    from logging.handlers import RotatingFileHandler

    config = _load(options)
    journals.make_state_dir(config.state_dir)
    handler = RotatingFileHandler(
        config.state_dir / "agent.log", maxBytes=MAX_LOG_BYTES, backupCount=OLD_LOGS, encoding="utf-8"
    )
    _set_up_log(config.log_level, handler)
    try:
        run(config, dry_run=options.dry_run)
    except Exception:
        logging.getLogger("forewarn.guest").exception("the agent ends")
        raise


def run(config: configuration.Config, *, dry_run: bool = False) -> int:
    """Run the agent until the process ends."""
    from forewarn.guest import status
    from forewarn.guest.agent import Agent

    journal = journals.MemoryJournal() if dry_run else journals.Journal(config.state_dir)
    log_refused_programs(config.plan)

    failed: List[bool] = []

    def show(agent: Agent) -> None:
        try:
            if not dry_run:
                status.write(agent, config.state_dir, config.metrics_file)
        except OSError as error:  # the work goes on without status and metrics
            if not failed:
                logging.getLogger("forewarn.guest").error("status or metrics cannot be written: %s", error)
                failed.append(True)

    log = logging.getLogger("forewarn.guest")
    try:
        agent = Agent(
            config.plan,
            _client(config, interruptible=bool(config.clients)),
            journal,
            boot=boot_id(config.boot_id_file),
            dry_run=dry_run,
            on_change=show,
            clients=_clients(config) if not dry_run else None,
        )
        dry = "; a dry run: nothing is done, nothing is approved" if dry_run else ""
        log.info("watching %s%s", agent.client.endpoint, dry)
        try:
            with _serving_clients(agent, config):
                agent.run()
        except SystemExit:
            left = f"; {agent.activity} is under way, and the next agent continues it" if agent.activity else ""
            log.info("a signal ends the agent%s", left)
            raise
    except JournalError as error:
        log.error("%s", error)
        return 1
    return 0


def _clients(config: configuration.Config) -> Optional[Clients]:
    """Return what the agent and its clients share; the modules for it are loaded only if there are clients."""
    if not config.clients:
        return None
    from forewarn.guest.serving.clients import Clients

    return Clients(config.clients)


def _serving_clients(agent: Agent, config: configuration.Config) -> ContextManager[object]:
    """Return a block in which the clients of the agent are served, if it has any."""
    if agent.clients is None:
        return contextlib.nullcontext()
    from forewarn.guest.serving.wiring import serving

    return serving(agent, agent.clients, source_address=config.source_address, api_version=config.api_version)


def log_refused_programs(plan: Plan) -> None:
    """Log each program that would be refused, before an event needs it."""
    from forewarn.guest.handlers import HANDLERS
    from forewarn.guest.programs import refusal

    commands = [
        (f"step {step.name!r}", getattr(step.spec, name))
        for step in plan.steps
        for name in getattr(HANDLERS[step.handler], "PROGRAMS", ())
    ]
    if plan.health is not None:
        commands.append(("health", plan.health.command))
    for where, argv in commands:
        problem = refusal(argv) if argv else ""
        if problem:
            logging.getLogger("forewarn.guest").error("%s: %s", where, problem)


def _exit(*_: Any) -> NoReturn:
    """End at once: what the agent was doing is in the journal."""
    raise SystemExit(0)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()[:MAX_LINE_CHARS]
        line = {"at": format_time(record.created), "level": record.levelname.lower(), "message": message}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        if hasattr(record, "output"):
            line["output"] = record.output
        return json.dumps(line)


class _PlainLines(logging.Formatter):
    """Lines for a terminal: a message is one line, and nothing in it or in a traceback controls the terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name in `logging`)
        record.message = printable(record.message)
        output = "".join(f"\n  | {printable(line)}" for line in getattr(record, "output", "").splitlines())
        return super().formatMessage(record) + output

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(printable(line) for line in super().formatException(ei).split("\n"))


def log_formatter(*, terminal: bool) -> logging.Formatter:
    return _PlainLines("%(asctime)s %(message)s", "%H:%M:%S") if terminal else _JsonLines()


def _set_up_log(level: str, handler: Optional[logging.Handler] = None) -> None:
    """Log one line per action to stderr or to the handler: plain on a terminal, JSON elsewhere."""
    terminal = handler is None and sys.stderr.isatty()
    handler = handler or logging.StreamHandler()
    handler.setFormatter(log_formatter(terminal=terminal))
    logging.basicConfig(level=level.upper(), handlers=[handler])


# -- simulate


def _simulate(options: argparse.Namespace) -> int:
    from forewarn.guest.simulate import NOTICE_S, simulate
    from forewarn.guest.state import fold_records

    config = _load(options)
    notice_s = seconds(options.in_, "--in") if options.in_ else NOTICE_S[options.type]
    try:
        journal = journals.Journal(config.state_dir)  # held to the end, so that no agent starts meanwhile
    except JournalInUse:
        print("forewarn-agent: an agent is running: stop the agent first", file=sys.stderr)
        return 1
    try:
        if fold_records(journal.records).out_of_service:
            print("forewarn-agent: an event is under way: simulate when it is over", file=sys.stderr)
            return 1
        _set_up_log("warning")
        logging.getLogger("forewarn.guest.output").setLevel(logging.INFO)
        return 0 if simulate(config, options.type, notice_s, lambda line: print(line, flush=True)) else 1
    finally:
        journal.close()


# -- status and history


def _status(options: argparse.Namespace) -> int:
    from forewarn.guest import status

    config = _load(options)
    try:
        text = (config.state_dir / status.NAME).read_text("utf-8")
    except OSError:
        print(f"forewarn-agent: no agent has run with {config.state_dir}", file=sys.stderr)
        return 3
    running = journals.in_use(config.state_dir)
    if options.json:
        print(text, end="")
    else:
        print("\n".join(status.terminal_lines(json.loads(text), Time().wall(), running)))
    return 0 if running else 3


def _history(options: argparse.Namespace) -> int:
    path = _load(options).state_dir / journals.NAME
    records = journals.read(path.with_suffix(".1.jsonl"))[0] + journals.read(path)[0]
    for record in records:
        print(json.dumps(record) if options.json else _history_line(record))
    return 0


def _history_line(record: Dict[str, Any]) -> str:
    event = record.get("event")
    fields = event if isinstance(event, dict) else {}
    parts: List[str] = [str(record.get("at", "")), str(record.get("kind", ""))]
    parts += [word(fields[key]) for key in ("EventType", "EventId", "EventStatus", "NotBefore") if fields.get(key)]
    for key, value in record.items():
        if key not in NOT_IN_HISTORY and value not in ("", None, []):
            parts.append(f"{key}={json.dumps(value)}")
    return printable(" ".join(parts))
