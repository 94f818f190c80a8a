"""The `forewarn` command. Without the `server` extra it prints what to install and ends with exit code 2."""

import sys


def main() -> None:
    if sys.argv[1:2] == ["agent"]:  # the agent is part of the base install
        from forewarn.guest.main import main as agent

        agent(sys.argv[2:])
    try:
        import rich
        import typer
    except ModuleNotFoundError:
        print("forewarn: this command needs the server extra: pip install 'forewarn[server]'", file=sys.stderr)
        raise SystemExit(2) from None
    del rich, typer
    from forewarn.cli.app import run

    run()
