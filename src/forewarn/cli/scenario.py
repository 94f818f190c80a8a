"""`forewarn scenario`: the maintenance that happens in real life, listed, shown and played. Needs no server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli.output import Output
from forewarn.cli.session import AsJson, group, usage
from forewarn.core.errors import Invalid, NotFound

if TYPE_CHECKING:
    from forewarn.testing.scenarios import Scenario

app = group("scenario", "Maintenance as it happens in real life: listed, shown, played.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A scenario's name, or a file's path.", show_default=False)]


@app.command("list")
def list_scenarios(as_json: AsJson = False) -> None:
    """The scenarios that come with forewarn."""
    from forewarn.testing.scenarios import scenario, scenario_names

    listed = [scenario(name) for name in scenario_names()]
    out = Output(as_json=as_json)
    if as_json:
        out.json([{"name": each.name, "title": each.title, "told": list(each.description)} for each in listed])
    else:
        out.table(("name", "what happens"), [(each.name, each.title) for each in listed])


@app.command()
def show(name: Name) -> None:
    """The text of a scenario, to read or to begin your own with."""
    print(found(name).text, end="")


@app.command()
def run(
    name: Name,
    clock: Annotated[str, typer.Option(help="`manual`: at once, to the end; or a rate like `60x`.")] = "manual",
    machines: Annotated[
        int | None, typer.Option(help="At least so many machines; the others are not concerned.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes the ids of events.", show_default=False)] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Tell only where what is seen is not what the file says; then end with 1.")
    ] = False,
) -> None:
    """Play a scenario with nobody attending, telling each step; `emulate --scenario` plays it for your own agent."""
    from forewarn.testing.emulator_settings import seeded_ids
    from forewarn.testing.scenarios.player import differences, play_alone

    out = Output()
    played = found(name, machines)
    if check:
        if (clock, machines, seed) != ("manual", None, None):
            raise usage("--check: the file is played as it stands: leave out --clock, --machines and --seed")
        with _usage():
            wrong = differences(played)
        for each in wrong:
            out.say(each)
        raise typer.Exit(1 if wrong else 0)
    out.say(played.title)
    with _usage():
        play_alone(played, clock=clock, new_id=seeded_ids(seed) if seed is not None else None, say=out.say)


def found(name: str, machines: int | None = None) -> "Scenario":
    """The scenario, with at least so many machines; or wrong usage."""
    from forewarn.testing.scenarios import scenario

    with _usage():
        read = scenario(name)
        return read if machines is None else read.with_machines(machines)


@contextmanager
def _usage() -> Iterator[None]:
    """What is wrong with a scenario, or its name, is wrong usage."""
    try:
        yield
    except (Invalid, NotFound) as error:
        raise usage(str(error)) from None
