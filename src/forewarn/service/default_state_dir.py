"""Where a service keeps its state unless a setting names another folder. The command line searches it for the service."""

from collections.abc import Mapping
from pathlib import Path


def default_state_dir(environment: Mapping[str, str]) -> Path:
    """Return the user's state directory according to the XDG rules."""
    base = environment.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "forewarn"
