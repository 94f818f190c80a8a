"""Describe the outward surface of a checkout, or compare two descriptions.

    python scripts/surface.py dump CHECKOUT > surface.json
    python scripts/surface.py compare OLD NEW

The surface is what others depend on: API, error and waiting codes, commands, metrics, settings, schemas and rows, the bytes
guests see, files, Python names. A dump is made from outside: programs are run, services are called, files are read. Human text
is left out except where guests see it or a store keeps it. `compare` ends with 1 when something was removed or changed;
what was added is listed and allowed.

The checkout needs a `.venv` into which it is installed, and PostgreSQL's programs on this machine.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MAX_SHOWN = 200


class Difference(NamedTuple):
    """`how` is removed, changed or added; `where` is the path through the dump."""

    how: str
    where: str
    what: str


def compare(old: Any, new: Any, where: tuple[str, ...] = ()) -> Iterator[Difference]:
    """Every difference, the smallest part that differs each. The order of a list means nothing."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            if key in new:
                yield from compare(old[key], new[key], (*where, key))
            else:
                yield Difference("removed", " / ".join((*where, key)), _shown(old[key]))
        for key in new.keys() - old.keys():
            yield Difference("added", " / ".join((*where, key)), _shown(new[key]))
    elif isinstance(old, list) and isinstance(new, list) and _by_id(old) and _by_id(new):
        yield from compare(_by_id(old), _by_id(new), where)
    elif isinstance(old, list) and isinstance(new, list):
        before, after = ({json.dumps(each, sort_keys=True) for each in side} for side in (old, new))
        for how, some in (("removed", before - after), ("added", after - before)):
            yield from (Difference(how, " / ".join(where), _shown(json.loads(each))) for each in some)
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield Difference("changed", " / ".join(where), _change(old, new))


def _by_id(things: list[Any]) -> dict[str, Any]:
    """Things by their ids; nothing unless each has one of its own."""
    found = {str(each["id"]): each for each in things if isinstance(each, dict) and "id" in each}
    return found if len(found) == len(things) else {}


def _change(old: Any, new: Any) -> str:
    """Of long texts only the first line that differs."""
    if isinstance(old, str) and isinstance(new, str) and "\n" in old + new:
        lines, others = old.split("\n"), new.split("\n")
        for number, line in enumerate(lines):
            if number >= len(others) or line != others[number]:
                other = others[number] if number < len(others) else ""
                return f"line {number + 1}: {_shown(line)} -> {_shown(other)}"
        return f"line {len(lines) + 1}: nothing -> {_shown(others[len(lines)])}"
    return f"{_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def report(old: Any, new: Any) -> int:
    """Print the differences; the exit code."""
    found = sorted(compare(old, new))
    counts = {how: sum(each.how == how for each in found) for how in ("removed", "changed", "added")}
    for how in counts:
        for each in found:
            if each.how == how:
                print(f"{how}: {each.where}: {each.what}")
    print(", ".join(f"{count} {how}" for how, count in counts.items()))
    return 1 if counts["removed"] or counts["changed"] else 0


def dump(root: Path, sections: list[str]) -> dict[str, Any]:
    from scripts.surface_parts import sections as parts

    with tempfile.TemporaryDirectory(prefix="surface-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs as another user
        return parts.described(root, Path(folder), sections)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    dumped = commands.add_parser("dump", help="describe a checkout as JSON")
    dumped.add_argument("checkout", type=Path)
    dumped.add_argument(
        "--only", action="append", default=[], metavar="SECTION", help="only this section; may be repeated"
    )
    compared = commands.add_parser("compare", help="print what differs; 1 if anything was removed or changed")
    compared.add_argument("old", type=Path)
    compared.add_argument("new", type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        return report(*(json.loads(path.read_text("utf-8")) for path in (given.old, given.new)))
    json.dump(dump(given.checkout, given.only), sys.stdout, indent=1, sort_keys=True, ensure_ascii=False)
    print()
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main())
