"""Audit what we publish. `make audit` calls it, in an environment with the tools of requirements/audit.txt.

1. Known vulnerabilities of the pinned packages (pip-audit). A package that could not be looked up is named.
2. A list of the packages that the service needs, beside the wheel (CycloneDX).
3. Secrets in the files of the repository (detect-secrets), except those that `scripts/known_secrets.json` lists as harmless.
4. Reproducible builds: wheel, source archive and agent are built twice, in two folders, and compared.

The exit code is 0 only if all four succeeded for every package and file.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
REQUIREMENTS = ("server", "dev", "audit")
KNOWN_SECRETS = Path(__file__).with_name("known_secrets.json")
# Hashes of packages and drawn pictures look like secrets and are none.
NOT_SCANNED = r"^(requirements/|scripts/known_secrets\.json|.*\.svg$)"
# Where a secret was found: file, kind, hash of the secret.
Secret = tuple[str, str, str]


def main() -> int:
    steps: dict[str, Callable[[], list[str]]] = {
        "known vulnerabilities": vulnerability_problems,
        "bill of materials": write_bill_of_materials,
        "secrets": secret_problems,
        "reproducible builds": build_problems,
    }
    failed = False
    for name, step in steps.items():
        problems = step()
        failed = failed or bool(problems)
        print(f"{name}: {'FAILED' if problems else 'ok'}", *problems, sep="\n  ", flush=True)
    print("audit: FAILED" if failed else "audit: ok")
    return 1 if failed else 0


def vulnerability_problems() -> list[str]:
    """Ask the registry for known vulnerabilities of every pinned package."""
    problems: dict[str, None] = {}
    for name in REQUIREMENTS:
        file = ROOT / "requirements" / f"{name}.txt"
        done = _run("pip-audit", "--requirement", file, "--require-hashes", "--disable-pip", "--format", "json")
        try:
            problems |= dict.fromkeys(problems_in_report(json.loads(done.stdout)))
        except ValueError:
            last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            problems[f"no package of requirements/{name}.txt could be looked up: {last}"] = None
    return list(problems)


def problems_in_report(report: Mapping[str, Any]) -> list[str]:
    """Return a line for each vulnerability, and one that names the packages without an answer."""
    lines, unknown = [], []
    for package in report["dependencies"]:
        if "skip_reason" in package:
            unknown.append(package["name"])
        for found in package.get("vulns", ()):
            fixed = ", ".join(found["fix_versions"]) or "no version yet"
            lines.append(f"{package['name']} {package['version']}: {found['id']}, fixed in {fixed}")
    if unknown:
        lines.append(f"{len(unknown)} packages could not be looked up: {', '.join(sorted(unknown))}")
    return lines


def write_bill_of_materials() -> list[str]:
    """Write the packages of the service, with their hashes, in CycloneDX format beside the wheel."""
    DIST.mkdir(exist_ok=True)
    target = DIST / "forewarn.cdx.json"
    done = _run(
        "cyclonedx-py", "requirements", ROOT / "requirements" / "server.txt", "--pyproject", ROOT / "pyproject.toml",
        "--short-PURLs", "--output-reproducible", "--of", "JSON", "--output-file", target,
    )  # fmt: skip
    return [] if done.returncode == 0 else done.stderr.strip().splitlines()[-5:]


def secret_problems() -> list[str]:
    """Scan every file that git tracks."""
    done = _run("detect-secrets", "scan", "--exclude-files", NOT_SCANNED)
    if done.returncode:
        return done.stderr.strip().splitlines()[-5:]
    return new_secrets(json.loads(done.stdout)["results"], json.loads(KNOWN_SECRETS.read_text("utf-8")))


def new_secrets(found: Mapping[str, Iterable[Mapping[str, Any]]], known: Iterable[Iterable[str]]) -> list[str]:
    """Return a line for each secret that is not known as harmless; `known` lists file, kind and hash."""
    harmless: set[Secret] = {(file, kind, digest) for file, kind, digest in known}
    return [
        f"{file}:{each['line_number']}: {each['type']} ({each['hashed_secret']})"
        for file, secrets in found.items()
        for each in secrets
        if (file, each["type"], each["hashed_secret"]) not in harmless
    ]


def build_problems() -> list[str]:
    """Build everything we publish twice, from copies in two folders, and compare the bytes."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = (_build_copy(Path(folder) / name) for name in ("first", "in-another-folder"))
        return [
            f"{name} differs between two builds"
            for name in sorted(first | second)
            if first.get(name) != second.get(name)
        ]


def _build_copy(folder: Path) -> dict[str, str]:
    """Build from a copy of the tracked files; return the hash of each built file."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target, follow_symlinks=False)
    environment = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    python = ROOT / ".venv" / "bin" / "python"
    for command in (["scripts/build_dist.py", "dist"], ["scripts/build_agent.py"]):
        subprocess.run([python, *command], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    built = (path for path in (folder / "dist").iterdir() if path.name.startswith("forewarn"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in built}


def _run(program: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [str(Path(sys.executable).with_name(program)), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
