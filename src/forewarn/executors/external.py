"""Other programs do the work: they take orders through the API and report their ends there. Nothing happens on this node."""

from forewarn.executors.base import Executor


class ExternalExecutor(Executor):
    name = "external"
    takes_orders = False
    needs_token = False

    def free_slots(self) -> int:
        return 0
