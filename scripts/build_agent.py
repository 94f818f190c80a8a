"""Builds dist/forewarn-agent.pyz: the guest side as one file that any Python from 3.9 on runs. `make agent` calls it.

The file holds the guest side and, for Python below 3.11, the source of the TOML reader that the development environment pins
with hashes. The same sources give the same bytes.
"""

import stat
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
TARGET = ROOT / "dist" / "forewarn-agent.pyz"
SHEBANG = b"#!/usr/bin/env python3\n"
# The earliest moment a zip file can name: nothing of the day it was built on is in it.
NO_DATE = (1980, 1, 1, 0, 0, 0)
MAIN = """\
import sys

if sys.version_info < (3, 9):
    sys.exit("forewarn-agent needs Python 3.9 or later; this is " + sys.version.split()[0])

from forewarn.guest.main import main

main()
"""


def contents() -> dict[str, bytes]:
    """Path in the archive and bytes."""
    files = {"__main__.py": MAIN.encode(), "forewarn/__init__.py": (SOURCE / "forewarn/__init__.py").read_bytes()}
    for path in sorted((SOURCE / "forewarn" / "guest").rglob("*.py")):
        files[path.relative_to(SOURCE).as_posix()] = path.read_bytes()
    for listed in sorted(distribution("tomli").files or [], key=str):
        if listed.parts[0] == "tomli" and listed.suffix == ".py":
            files[str(listed)] = Path(str(listed.locate())).read_bytes()
        if listed.name == "LICENSE":
            files["tomli/LICENSE"] = Path(str(listed.locate())).read_bytes()
    return files


def build(target: Path = TARGET) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        out.write(SHEBANG)
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in contents().items():
                archive.writestr(zipfile.ZipInfo(name, NO_DATE), data, zipfile.ZIP_DEFLATED)
    target.chmod(target.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return target


if __name__ == "__main__":
    built = build(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
    print(f"{built} ({built.stat().st_size:,} bytes)")
