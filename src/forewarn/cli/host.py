"""`forewarn host`: show the hosts that carry machines."""

from forewarn.cli.session import Cursor, Limit, Match, Session, command, group

app = group("host", "Show the hosts that carry machines.")

COLUMNS = ("host", "machines")


@command(app, "list")
def list_hosts(session: Session, match: Match = None, limit: Limit = 50, cursor: Cursor = None) -> None:
    """List hosts by name, and how many machines each carries. `machine list --host` lists the machines."""
    page = session.api.page("/v1/hosts", {"q": match}, limit=limit, cursor=cursor)
    session.show_page(
        page, COLUMNS, lambda hosts: [(host["name"], host["machines"]) for host in hosts], empty="no hosts"
    )
