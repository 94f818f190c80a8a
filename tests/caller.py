"""Remove settings of the caller that change the results of tests."""

import os
import re
import tempfile
from collections.abc import Mapping, MutableMapping

import pytest

# Settings of forewarn and of the programs that tests start.
_PREFIXES = ("FOREWARN_", "PYTHON", "PG", "PATRONI_", "ETCD", "REDISCLI_", "LIBVIRT_", "WINE", "XDG_", "LC_")
# They make typer, rich and pytest print other lines, in other widths or with colours.
_OUTPUT = {
    "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
}  # fmt: skip
# Those of pytest, make, shells and systemd. `cd` prints where it went if CDPATH is set.
_OTHERS = {
    "PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTEST_DEBUG", "PYTEST_TIMEOUT",
    "MAKEFLAGS", "MFLAGS", "MAKEFILES", "MAKEOVERRIDES", "MAKELEVEL", "ENV", "BASH_ENV", "CDPATH", "POSIXLY_CORRECT", "LANGUAGE",
    "STATE_DIRECTORY", "RUNTIME_DIRECTORY", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID",
    "LISTEN_FDNAMES", "JOURNAL_STREAM",
}  # fmt: skip
# Set on purpose, and without influence on results.
_KEPT = {"PYTHONHASHSEED", "PYTHONPYCACHEPREFIX"}
_PROXIES = {"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"}
# Paths of temporary folders appear in shell scripts, and those of sockets have at most 107 bytes.
_FIT_FOR_TESTS = re.compile(r"/[A-Za-z0-9_./-]{,29}")
# Every Debian has this locale, and its programs then report in English. initdb refuses a locale that the machine lacks.
_LOCALE = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
# The caller's proxies, in the stash of pytest's configuration.
PROXIES = pytest.StashKey[dict[str, str]]()
# Programs that run as other users read files of the tests.
MASK = 0o022


def neutral(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that change how tests end. Proxies stay: packages may be reached only through them."""
    return {name: value for name, value in environment.items() if not _matters(name, value)} | _LOCALE


def _matters(name: str, value: str) -> bool:
    if name == "TMPDIR":
        return not _FIT_FOR_TESTS.fullmatch(value)
    return name not in _KEPT and (name.startswith(_PREFIXES) or name in _OUTPUT | _OTHERS)


def forget_the_caller(environment: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """Make the variables of this process neutral, and set its mask of new files. Return the proxies, which it has no longer.

    curl would ask a proxy for the addresses of a test.
    """
    proxies = {name: value for name, value in environment.items() if name.lower() in _PROXIES}
    kept = {name: value for name, value in neutral(environment).items() if name not in proxies}
    for name in environment.keys() - kept.keys():
        del environment[name]
    environment.update(kept)
    tempfile.tempdir = None  # it may be found already
    os.umask(MASK)
    return proxies
