"""Builds the wheel and the source archive into the folder given. `make dist` calls it.

Uses the pinned build backend of the development environment, so nothing is fetched. Builds the wheel from the source archive, so
that a user who builds from the archive gets the same wheel.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the source archive."""
    for old in (*folder.glob("forewarn-*.whl"), *folder.glob("forewarn-*.tar.gz")):
        old.unlink()
    command = [str(Path(sys.executable).with_name("uv")), "build", "--quiet", "--no-build-isolation"]
    subprocess.run([*command, "--python", sys.executable, "--out-dir", folder, ROOT], check=True)
    (wheel,), (archive,) = folder.glob("forewarn-*.whl"), folder.glob("forewarn-*.tar.gz")
    return wheel, archive


if __name__ == "__main__":
    for path in build(Path(sys.argv[1])):
        print(path)
