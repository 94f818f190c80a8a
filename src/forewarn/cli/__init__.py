"""The `forewarn` command. Without the `server` extra it prints what to install and ends with exit code 2."""

import gc
import sys

from forewarn import __version__


def main() -> None:
    if sys.argv[1:2] == ["agent"]:  # the agent is part of the base install
        from forewarn.guest.main import main as agent

        agent(sys.argv[2:])
    if sys.argv[1:] == ["--version"]:
        print(f"forewarn {__version__}")
        return
    gc.disable()  # what the imports below make stays: collecting it takes a tenth of the time to start
    try:
        import typer
    except ModuleNotFoundError:
        print("forewarn: this command needs the server extra: pip install 'forewarn[server]'", file=sys.stderr)
        raise SystemExit(2) from None
    del typer
    from forewarn.cli.app import run

    run()
