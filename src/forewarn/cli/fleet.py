"""`forewarn fleet`: check and apply a fleet file, show what it would change, and export the fleet as a file."""

import sys
from collections import defaultdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.api import Failed, Json
from forewarn.cli.confirmation import Yes, confirm
from forewarn.cli.options import cannot_read, usage
from forewarn.cli.output import Output
from forewarn.cli.session import AsJson, Session, command, group
from forewarn.core.errors import InvalidFleet
from forewarn.core.fleet import MANY_MACHINES, MAX_FILE_BYTES, Fleet, contents_text, fleet_text, parse_fleet
from forewarn.core.fleet_difference import removal_text, spanning_hosts
from forewarn.core.formatting import count, names
from forewarn.libvirt.importing import import_fleet
from forewarn.libvirt.statements import parse_rules

MAX_NAMED_DOMAINS = 20
EMPTY = "the file has no scopes, machines or hosts: check that it is the right one"

app = group("fleet", "Check, apply, compare and export the fleet: scopes, machines and hosts.")

File = Annotated[
    str, typer.Argument(metavar="FILE", help="A fleet file (TOML), or - for standard input.", show_default=False)
]
Prune = Annotated[
    bool,
    typer.Option("--prune", help="Remove scopes, machines and hosts that are not in the file.", show_default=False),
]


@app.command("check")
def check(file: File, as_json: AsJson = False) -> None:
    """Check a fleet file without a server, and report every error with its table and key, and warnings.

    `apply` and `diff` check the file in the same way before they call the server."""
    out, text = Output(as_json=as_json), _read(file)
    try:
        fleet = parse_fleet(text, file)
    except InvalidFleet as error:
        if as_json:
            out.json({"file": file, "ok": False, "errors": list(error.problems)})
        raise
    warnings = _emptiness(fleet) or (*spanning_hosts(fleet.machines.values()), *_windows_elsewhere(fleet, file))
    counts = {"scopes": len(fleet.scopes), "machines": len(fleet.machines), "hosts": len(fleet.hosts)}
    data = {"file": file, "ok": True, "errors": [], "warnings": warnings, **counts}
    contents = contents_text(fleet)
    if fleet.hosts:
        contents = f"{contents}, and lists {count(len(fleet.hosts), 'host')}"
    out.result(data, f"{file}: no errors; it has {contents}")
    for warning in warnings if not as_json else ():
        out.aside(f"! {warning}")


@command(app, "apply")
def apply(
    session: Session,
    file: File,
    prune: Prune = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.", show_default=False)
    ] = False,
    yes: Yes = False,
) -> None:
    """Change the fleet to match the file, or change nothing. Ask before removing more than 10 scopes, machines and hosts."""
    text = _read_checked(session, file)
    if prune and not dry_run and not yes:
        planned = _post(session, file, text, prune=True, dry_run=True)
        if planned["large_removal"]:
            _show_lines(session, planned)
            removed = removal_text(planned["removed_machines"], planned["removed_scopes"], planned["removed_hosts"])
            otherwise = "nothing was changed: it was not confirmed; --yes applies the file without a question"
            confirm(f"Remove {removed}?", yes=False, otherwise=otherwise)
    _show(session, _post(session, file, text, prune=prune, dry_run=dry_run))


class ImportSource(StrEnum):
    """Where a fleet can be imported from."""

    LIBVIRT = "libvirt"


class DomainIdentity(StrEnum):
    """What of a domain identifies its machine."""

    ADDRESS = "address"
    INTERFACE = "interface"


@app.command("import")
def import_(
    source: Annotated[ImportSource, typer.Argument(help="Where the machines are.", show_default=False)],
    uri: Annotated[list[str], typer.Option(help="The libvirt URI of a host; repeat it for each host.")],
    rules: Annotated[
        str | None, typer.Option(metavar="FILE", help="Rules that give domains their scope by their name (TOML).")
    ] = None,
    identity: Annotated[
        DomainIdentity, typer.Option(help="Identify machines by their addresses, or by their interface on the host.")
    ] = DomainIdentity.ADDRESS,
) -> None:
    """Print a fleet file with the machines and hosts that libvirt shows. It changes nothing and needs no server.

    Domains without a scope are left out: state it with `virsh metadata`, or with --rules."""
    del source  # there is one
    parsed = parse_rules(_read(rules), rules) if rules is not None else ()
    decision = import_fleet(uri, parsed, by_interface=identity is DomainIdentity.INTERFACE)
    out = Output(as_json=False)
    for text in (*decision.doubled, *decision.problems):
        out.aside(f"! {text}")
    if decision.unassigned:
        out.aside(f"! left out, because nothing gives them a scope: {names(decision.unassigned, MAX_NAMED_DOMAINS)}")
    unaddressed = [str(m) for m in decision.wanted.machines.values() if not m.addresses and not m.interface]
    if unaddressed:
        out.aside(
            f"! no address is known of {names(unaddressed, MAX_NAMED_DOMAINS)}: add `addresses` before you apply the file"
        )
    hosts = {host.name: host for host in decision.hosts}
    print(fleet_text(Fleet(decision.wanted.scopes, decision.wanted.machines, hosts), decision.remarks()), end="")


@command(app, "diff")
def diff(session: Session, file: File, prune: Prune = False) -> None:
    """Show what applying the file would change; change nothing."""
    _show(session, _post(session, file, _read_checked(session, file), prune=prune, dry_run=True))


@command(app, "export")
def export(session: Session) -> None:
    """Print the fleet as a file that `fleet apply` can read."""
    if session.out.as_json:
        session.out.json(session.api.get("/v1/fleet"))
    else:
        print(session.api.text("/v1/fleet", accept="application/toml"), end="")


def _post(session: Session, file: str, text: str, *, prune: bool, dry_run: bool) -> Json:
    try:
        change: Json = session.api.post_toml("/v1/fleet", text, {"prune": prune, "dry_run": dry_run})
    except Failed as error:
        if error.http_status in (400, 409, 413, 422):
            raise Failed(f"{file}: {error}", status=error.http_status, code=error.api_code) from None
        raise
    return change


def _read_checked(session: Session, file: str, *, many_machines: int = MANY_MACHINES) -> str:
    text = _read(file)
    fleet = parse_fleet(text, file)
    for warning in _emptiness(fleet):
        session.out.aside(f"! {warning}")
    if len(fleet.machines) >= many_machines:
        session.out.aside(f"{file}: {contents_text(fleet)} read; sending them to the server")
    return text


def _emptiness(fleet: Fleet) -> tuple[str, ...]:
    return () if fleet.scopes or fleet.machines or fleet.hosts else (EMPTY,)


def _windows_elsewhere(fleet: Fleet, file: str) -> list[str]:
    """Return a warning per window that scopes name: no file has windows."""
    tables: dict[str, list[str]] = defaultdict(list)
    for index, scope in enumerate(fleet.scopes.values()):
        for window in scope.windows:
            tables[window].append(f'scopes[{index}] "{scope.name}"')
    return [
        f"{file}: {names(where)}: windows: {window!r} is not in this file, because windows are on the server:"
        " `forewarn fleet diff` checks whether it exists"
        for window, where in tables.items()
    ]


def _read(file: str) -> str:
    try:
        raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1) if file == "-" else Path(file).read_bytes()
        text = raw.decode("utf-8")
    except OSError as error:
        raise cannot_read(file, error) from None
    except UnicodeDecodeError as error:
        raise usage(f"{file}: this is not UTF-8 text: {error}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise usage(f"{file}: the file is larger than {MAX_FILE_BYTES} bytes: split the fleet among several services")
    return text


def _show(session: Session, change: Json) -> None:
    if session.out.as_json:
        session.out.json(change)
        return
    _show_lines(session, change)
    outcome = "would be applied" if change["dry_run"] else "applied"
    lines = change["lines"]
    session.out.say(f"fleet: {count(len(lines), 'difference')} {outcome}" if lines else "fleet: no difference")


def _show_lines(session: Session, change: Json) -> None:
    for line in change["lines"]:
        session.out.say(line)
    for warning in change["warnings"]:
        session.out.aside(f"! {warning}")
