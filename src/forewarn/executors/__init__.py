"""Who does the work of a started event: a base class, a registry, and three executors (external, command, simulated).

Imports `core` only. To write an executor of your own, see docs/guide/executors.md.
"""

from forewarn.core.order_verbs import OrderReport, Outcome, Unknown
from forewarn.executors.base import Executor, HostWork, Progress, Work

__all__ = ["Executor", "HostWork", "OrderReport", "Outcome", "Progress", "Unknown", "Work"]
