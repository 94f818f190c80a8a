"""The commands of `forewarn`. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached.

A command imports its own module and not those of the others: importing all of them takes longer than most commands run.
"""

import atexit
import gc
import io
import logging
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, TextIO

import typer

from forewarn import __version__
from forewarn.cli.api import NotReachable
from forewarn.cli.db import Config, Store
from forewarn.cli.session import command
from forewarn.cli.strict import StrictTyper
from forewarn.core.errors import ForewarnError, InvalidFleet, InvalidSettings
from forewarn.core.formatting import printable

HELP_COLUMNS = 100


def _version(wanted: bool) -> None:
    if wanted:
        print(f"forewarn {__version__}")
        raise typer.Exit


def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def serve(
    config: Config = None,
    store: Store = None,
    fleet: Annotated[str | None, typer.Option(help="A fleet file (TOML) to apply at the start.")] = None,
    prune: Annotated[
        bool | None,
        typer.Option(
            "--prune", help="Remove scopes, machines and hosts that are not in the fleet file.", show_default=False
        ),
    ] = None,
    clock: Annotated[
        str | None, typer.Option(help="`system`, `manual`, or a speed like `60x` [default: system]")
    ] = None,
    executor: Annotated[
        str | None, typer.Option(help="`external`, `command`, `libvirt` or `simulated` [default: external]")
    ] = None,
    guest: Annotated[
        list[str] | None,
        typer.Option(help="Listen for guests on HOST:PORT[@INTERFACE]; may be repeated [default: 127.0.0.1:8169]"),
    ] = None,
    allow_any_interface: Annotated[
        bool | None,
        typer.Option("--allow-any-interface", help="Allow --guest with a wildcard address.", show_default=False),
    ] = None,
    operator: Annotated[
        str | None, typer.Option(help="Listen for operators on HOST:PORT [default: 127.0.0.1:8170]")
    ] = None,
    role: Annotated[str | None, typer.Option(help="`all`, `guest` or `operator` [default: all]")] = None,
    tls_cert: Annotated[str | None, typer.Option(help="The operator listener's certificate chain (PEM).")] = None,
    tls_key: Annotated[str | None, typer.Option(help="The operator listener's private key (PEM).")] = None,
    behind_tls_proxy: Annotated[
        bool | None,
        typer.Option(
            "--behind-tls-proxy", help="A proxy in front of the operator listener handles TLS.", show_default=False
        ),
    ] = None,
    state_dir: Annotated[
        str | None, typer.Option(help="The folder for the default store and for orders in progress.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="`debug`, `info`, `warning` or `error` [default: info]")] = None,
) -> None:
    """Run the service until SIGTERM. It prints a line that begins with `ready` once it accepts connections."""
    from forewarn.service import logs, settings

    flags = {
        "store": store,
        "fleet": fleet,
        "prune": prune,
        "clock": clock,
        "executor": executor,
        "guest": guest or None,
        "allow_any_interface": allow_any_interface,
        "operator": operator,
        "role": role,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "behind_tls_proxy": behind_tls_proxy,
        "state_dir": state_dir,
        "log_level": log_level,
    }
    loaded = settings.load(flags, os.environ, config)
    if loaded.token_free:
        raise InvalidSettings(
            "token_free: `serve` always requires tokens: remove it from the file, and unset FOREWARN_TOKEN_FREE"
        )
    if loaded.demo:
        raise InvalidSettings(
            "demo: this setting is only for `forewarn demo`: remove it from the file, and unset FOREWARN_DEMO"
        )
    logs.set_up(loaded.log_level)
    if store is not None and settings.holds_password(store):
        logging.getLogger("forewarn").warning(
            "--store: every user of this machine can read the password in the list of processes: put the address into"
            " FOREWARN_STORE, or the password into ~/.pgpass"
        )
    from forewarn.app import server  # after the settings, so that a wrong one is refused at once

    server.serve(loaded, print_line=lambda line: print(line, flush=True))


def demo(
    port: Annotated[
        int, typer.Option(min=0, max=65_534, help="The port for guests; operators use the next one. 0 takes any two.")
    ] = 8169,
    speed: Annotated[str, typer.Option(help="The speed of the clock, `1x` to `600x`.")] = "60x",
) -> None:
    """Run an example fleet with guests and recurring maintenance. It leaves nothing behind."""
    from forewarn.demo import run
    from forewarn.service import logs

    logs.set_up("warning")
    run.run(port=port, speed=speed, program=_program(), say=lambda text: print(text, flush=True))


def _program() -> str:
    """Return how to call this command again."""
    program = sys.argv[0]
    if Path(program).name == "__main__.py":
        return f"{sys.executable} -m forewarn"
    return "forewarn" if str(Path(program).absolute()) == shutil.which("forewarn") else program


def agent() -> None:
    """Run the agent of this machine; the same as `forewarn-agent`."""


# Each is a function above, or a module of this package: with an `app`, or with a function of the same name.
FUNCTIONS = {"serve": serve, "demo": demo, "agent": agent}
WORDS = (
    "status", "fleet", "scope", "host", "machine", "maintenance", "drill", "event", "order", "audit", "token", "hook", "budget",
    "clock", "window", "no-go", "db", "scenario", "serve", "emulate", "record", "conform", "demo", "agent",
)  # fmt: skip


def build(word: str = "") -> StrictTyper:
    """Return the command line with all its words, or with `word` alone if it is one of them."""
    app = StrictTyper(
        name="forewarn",
        help="Announce maintenance to machines, and start it once they are prepared and approve.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"max_content_width": HELP_COLUMNS},
        rich_markup_mode=None,  # "[default: …]" and "[@INTERFACE]" are text, not markup
    )
    app.callback()(top)
    for each in (word,) if word in WORDS else WORDS:
        _add(app, each)
    return app


def _add(app: StrictTyper, word: str) -> None:
    if word in FUNCTIONS:
        app.command()(FUNCTIONS[word])
        return
    module = import_module(f"forewarn.cli.{word.replace('-', '_')}")
    if hasattr(module, "app"):
        app.add_typer(module.app)
    elif word == "status":
        command(app, word)(module.status)
    else:
        # All arguments after the program that `conform` or `emulate` runs belong to that program.
        takes_program = word in ("conform", "emulate")
        app.command(context_settings={"allow_interspersed_args": not takes_program})(getattr(module, word))


def run() -> None:
    """Run the command; print a ForewarnError, a line for each thing that is wrong, and end with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # any name can be printed
    output = sys.stdout
    atexit.register(_ignore_handled_signals)
    try:
        command_line = build(*sys.argv[1:2])
        if sys.argv[1:2] not in (["serve"], ["emulate"]):  # these import more, and collect once they are ready
            gc.enable()
        command_line()
    except (InvalidFleet, InvalidSettings) as error:
        _fail(error, 2, error.problems)
    except NotReachable as error:
        _fail(error, 3)
    except ForewarnError as error:
        _fail(error, 1)
    except BrokenPipeError:
        raise SystemExit(1) from None
    finally:
        _write_the_rest(output)


def _ignore_handled_signals() -> None:
    """Ignore the signals that the command handled, when Python ends.

    Python then restores their default action, so that a second signal would kill a command that has stopped.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler, None):
            signal.signal(number, signal.SIG_IGN)


def _write_the_rest(output: TextIO | None) -> None:
    """Write what is left of the output. If that fails, end with 1, unless the command has failed already.

    `head` closes the pipe when it has read enough: that needs no message.
    """
    if output is None:  # the program was started without one
        return
    try:
        output.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())  # Python tries once more when it ends
        if not isinstance(error, BrokenPipeError):
            print(f"forewarn: the output cannot be written: {error.strerror}", file=sys.stderr)
        ending = error.__context__
        if ending is None or (isinstance(ending, SystemExit) and not ending.code):
            raise SystemExit(1) from None


def _fail(error: ForewarnError, code: int, lines: Sequence[str] = ()) -> None:
    for line in lines or (str(error),):
        print(f"forewarn: {printable(line)}", file=sys.stderr)
    raise SystemExit(code)
