"""What an inventory, which keeps the fleet as another system shows it, reports about itself."""

from collections.abc import Mapping
from dataclasses import field

from forewarn.core.lazy_dataclass import dataclass

MAX_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryHealth:
    """Hosts by whether they can be reached, machines that are on several hosts, and whatever else an operator should know."""

    hosts: Mapping[str, int] = field(default_factory=lambda: {"reachable": 0, "unreachable": 0})
    doubled: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def warning(self) -> str:
        """Return the first of what is wrong as one text, or ""."""
        texts = (*self.doubled, *self.problems)
        more = f"; and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
        return "; ".join(texts[:MAX_NAMED]) + more
