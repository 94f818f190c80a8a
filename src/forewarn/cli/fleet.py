"""`forewarn fleet`: state what there is, see what that would change, and get it back as a file."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.client import Failed
from forewarn.cli.formatting import Json, count
from forewarn.cli.session import Session, command, group, usage
from forewarn.core.fleet import MAX_FILE_BYTES

app = group("fleet", "State the fleet: scopes and machines.")

File = Annotated[
    str, typer.Argument(metavar="FILE", help="A fleet file (TOML), or - for standard input.", show_default=False)
]
Prune = Annotated[bool, typer.Option("--prune", help="Remove what the file does not state.", show_default=False)]


@command(app, "apply")
def apply(
    desk: Session,
    file: File,
    prune: Prune = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.", show_default=False)] = False,
) -> None:
    """Make the fleet as the file says, whole or not at all; the same file again changes nothing."""
    show(desk, _post(desk, file, prune=prune, dry_run=dry_run))


@command(app, "diff")
def diff(desk: Session, file: File, prune: Prune = False) -> None:
    """Say what applying the file would change; nothing is changed."""
    show(desk, _post(desk, file, prune=prune, dry_run=True))


@command(app, "export")
def export(desk: Session) -> None:
    """Print the fleet as a file that `fleet apply` reads."""
    if desk.out.as_json:
        desk.out.json(desk.api.get("/v1/fleet"))
    else:
        print(desk.api.text("/v1/fleet", accept="application/toml"), end="")


def _post(desk: Session, file: str, *, prune: bool, dry_run: bool) -> Json:
    text = _read(file)
    try:
        answer: Json = desk.api.post_toml("/v1/fleet", text, {"prune": prune, "dry_run": dry_run})
    except Failed as error:
        if error.http_status in (400, 409, 413, 422):
            raise Failed(f"{file}: {error}", status=error.http_status, code=error.said) from None
        raise
    return answer


def _read(file: str) -> str:
    try:
        raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1) if file == "-" else Path(file).read_bytes()
        text = raw.decode("utf-8")
    except OSError as error:
        raise usage(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise usage(f"{file}: this is not UTF-8 text: {error}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise usage(f"{file}: larger than {MAX_FILE_BYTES} bytes: split the fleet over several services")
    return text


def show(desk: Session, change: Json) -> None:
    if desk.out.as_json:
        desk.out.json(change)
        return
    for line in change["lines"]:
        desk.out.say(line)
    for warning in change["warnings"]:
        desk.out.aside(f"! {warning}")
    done = "would be applied" if change["dry_run"] else "applied"
    lines = change["lines"]
    desk.out.say(f"fleet: {count(len(lines), 'difference')} {done}" if lines else "fleet: no difference")
