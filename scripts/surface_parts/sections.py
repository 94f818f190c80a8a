"""Every section of a dump by name, in the order in which they are made."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.surface_parts import files, programs, service, wire
from scripts.surface_parts.checkout import Checkout


def _settings(checkout: Checkout) -> Any:
    with checkout.program("forewarn") as forewarn:
        return programs.settings(checkout, forewarn)


def _agent_keys(checkout: Checkout) -> Any:
    with checkout.program("forewarn-agent") as agent:
        return programs.agent_keys(checkout, agent)


SECTIONS: dict[str, Callable[[Checkout], Any]] = {
    "commands": programs.commands,
    "settings": _settings,
    "agent configuration": _agent_keys,
    "python": programs.python_names,
    "source": programs.source_words,
    "service": service.described,
    "guest wire": wire.described,
    "state folder": files.state_folder,
    "shared store": files.shared_store,
    "agent": files.agent,
}


def described(root: Path, folder: Path, only: list[str]) -> dict[str, Any]:
    """The sections of a checkout; each works in a home folder of its own."""
    found = {}
    for number, (name, make) in enumerate(SECTIONS.items()):
        if not only or name in only:
            home = folder / str(number)
            home.mkdir(mode=0o755)
            begun_s = time.monotonic()
            found[name] = make(Checkout(root, home))
            print(f"{name}: {time.monotonic() - begun_s:.0f} s", file=sys.stderr, flush=True)
    return found
