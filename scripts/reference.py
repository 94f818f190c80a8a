"""Writes docs/reference/settings.md from the Settings themselves; a test compares the file with what this would write."""

from dataclasses import MISSING, fields
from pathlib import Path

from forewarn.core.durations import duration_text
from forewarn.settings import Settings

TARGET = Path(__file__).parent.parent / "docs" / "reference" / "settings.md"

HEAD = """# Settings

Flags win over `FOREWARN_*` variables, these over the file given with `--config`, that over the defaults. An unknown
setting is an error. Durations are a number and a unit in quotes: `"90s"`, `"15m"`, `"24h"`, `"30d"`. This page is made
from the code by `scripts/reference.py`.
"""


def reference() -> str:
    parts = [HEAD]
    for each in fields(Settings):
        name = each.name.removesuffix("_s")
        default: object = each.default if each.default_factory is MISSING else each.default_factory()
        shown = duration_text(default) if isinstance(default, int) and each.name.endswith("_s") else str(default)
        if isinstance(default, tuple):
            shown = " ".join(default)
        if isinstance(default, bool):
            shown = str(default).lower()
        if each.name == "state_dir":
            shown = "$XDG_STATE_HOME/forewarn, else ~/.local/state/forewarn"
        told = f"default `{shown}`" if default not in ("", (), {}, None) else "not set by default"
        variable = f"FOREWARN_{name.upper()}"
        text = each.metadata["help"]
        parts.append(f"\n## {name}\n\n{text[0].upper()}{text[1:]}. In the environment `{variable}`; {told}.\n")
    return "".join(parts)


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(reference(), "utf-8")
