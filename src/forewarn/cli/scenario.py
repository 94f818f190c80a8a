"""`forewarn scenario`: list, show and play typical maintenances. It needs no server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli.options import usage
from forewarn.cli.output import Output
from forewarn.cli.session import AsJson, group
from forewarn.core.errors import Invalid, NotFound

if TYPE_CHECKING:
    from forewarn.testing.scenarios import Scenario

app = group("scenario", "List, show and play typical maintenances.")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of a scenario, or the path of a file.", show_default=False)
]


@app.command("list")
def list_scenarios(as_json: AsJson = False) -> None:
    """List the scenarios that come with forewarn."""
    from forewarn.testing.scenarios import scenario, scenario_names

    listed = [scenario(name) for name in scenario_names()]
    out = Output(as_json=as_json)
    if as_json:
        out.json([{"name": each.name, "title": each.title, "told": list(each.description)} for each in listed])
    else:
        out.table(("name", "what happens"), [(each.name, each.title) for each in listed])


@app.command()
def show(name: Name) -> None:
    """Print the text of a scenario; you can begin your own with it."""
    print(read_scenario(name).text, end="")


@app.command()
def run(
    name: Name,
    clock: Annotated[
        str, typer.Option(help="`manual` plays it at once; a speed like `60x` plays it in time.")
    ] = "manual",
    machines: Annotated[
        int | None,
        typer.Option(
            help="At least this many machines; the scenario does not concern the added ones.", show_default=False
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Fix the ids of events.", show_default=False)] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Print only the differences from the file; end with 1 if there are any.")
    ] = False,
) -> None:
    """Play a scenario without guests and print each step; `emulate --scenario` plays it for your own agent."""
    from forewarn.testing.emulator_settings import seeded_ids
    from forewarn.testing.scenarios.player import differences, play_alone

    out = Output()
    played = read_scenario(name, machines)
    if check:
        if (clock, machines, seed) != ("manual", None, None):
            raise usage("--check: this plays the file unchanged: leave out --clock, --machines and --seed")
        with _wrong_usage():
            different = differences(played)
        for line in different:
            out.say(line)
        raise typer.Exit(1 if different else 0)
    out.say(played.title)
    with _wrong_usage():
        play_alone(played, clock=clock, new_id=seeded_ids(seed) if seed is not None else None, say=out.say)


def read_scenario(name: str, machines: int | None = None) -> "Scenario":
    """Return a scenario with at least this many machines; exit code 2 if there is no such scenario."""
    from forewarn.testing.scenarios import scenario

    with _wrong_usage():
        as_written = scenario(name)
        return as_written if machines is None else as_written.with_machines(machines)


@contextmanager
def _wrong_usage() -> Iterator[None]:
    """Report errors in a scenario or its name as wrong usage."""
    try:
        yield
    except (Invalid, NotFound) as error:
        raise usage(str(error)) from None
