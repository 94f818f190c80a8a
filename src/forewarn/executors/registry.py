"""The executors by name: those built in and those of other packages, found by the entry-point group `forewarn.executors`.

The built-in ones are known without installed metadata, so that forewarn runs from a source tree. No package can replace them.
An executor's module is imported only when the executor or its settings are used.
"""

from importlib import import_module

from forewarn.core.errors import InvalidSettings
from forewarn.executors.base import Executor

GROUP = "forewarn.executors"
BUILT_IN = {
    "external": "forewarn.executors.external:ExternalExecutor",
    "command": "forewarn.executors.command:CommandExecutor",
    "simulated": "forewarn.executors.simulated:SimulatedExecutor",
    "libvirt": "forewarn.libvirt.executor:LibvirtExecutor",
}
# With this executor nothing happens on this node: others take the orders.
DEFAULT = "external"


def names() -> list[str]:
    """Return the names of all executors, the built-in ones first."""
    return [*BUILT_IN, *sorted(_installed())]


def find(name: str) -> type[Executor]:
    """Return the class of an executor, or raise InvalidSettings."""
    value = BUILT_IN.get(name) or _installed().get(name)
    if value is None:
        raise InvalidSettings(f"executor: {name!r} is unknown: use one of {', '.join(names())}")
    module, _, class_name = value.partition(":")
    try:
        found = getattr(import_module(module), class_name)
    except Exception as error:
        raise InvalidSettings(f"executor: {name} cannot be loaded from {value}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Executor) and found.name == name):
        raise InvalidSettings(f"executor: {value} is no subclass of Executor with the name {name!r}")
    return found


def _installed() -> dict[str, str]:
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    return {entry.name: entry.value for entry in entry_points(group=GROUP) if entry.name not in BUILT_IN}
