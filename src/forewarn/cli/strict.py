"""Commands that refuse an option given twice. click and typer would keep the last value without a word."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class StrictTyper(typer.Typer):
    """A Typer all of whose commands refuse an option given twice, unless the option collects its values."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=StrictGroup, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=StrictCommand, **options)


class StrictCommand(TyperCommand):
    """A command that refuses an option given twice."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _refuse_repeats(self, ctx, args)
        return super().parse_args(ctx, args)


class StrictGroup(TyperGroup):
    """A group that refuses an option of its own given twice."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _refuse_repeats(self, ctx, args)
        return super().parse_args(ctx, args)


def _refuse_repeats(command: TyperCommand | TyperGroup, ctx: Any, args: list[str]) -> None:
    if ctx.resilient_parsing:  # the shell asks for completions, and must not get an error
        return
    _, _, given = command.make_parser(ctx).parse_args(args=list(args))
    for parameter, count in Counter(given).items():
        if count > 1 and _keeps_one_value(parameter):
            ctx.fail(f"{parameter.opts[0]}: given twice; it takes one value")


def _keeps_one_value(parameter: Any) -> bool:
    if parameter.param_type_name != "option" or parameter.multiple or parameter.count:
        return False
    # A flag without an opposite means the same twice as once.
    return bool(not parameter.is_flag or parameter.secondary_opts)
