"""Hooks and their deliveries in the memory store."""

import heapq
from collections.abc import Collection

from forewarn.core.operator_model import Hook, HookDelivery
from forewarn.store import MAX_DELIVERIES
from forewarn.store.memory.checks import MemoryChecks
from forewarn.store.memory.tables import locked


class MemoryHooks(MemoryChecks):
    @locked
    def hooks(self) -> list[Hook]:
        return sorted(self._hooks.values(), key=lambda hook: (hook.created, hook.id))

    @locked
    def save_hooks(self, hooks: Collection[Hook], deliveries: Collection[HookDelivery] = ()) -> None:
        self._check_hooks(hooks)
        self._put_hooks(hooks)
        for each in deliveries:
            kept = self._deliveries.setdefault(each.hook_id, {})
            kept[each.audit_id] = each
            for audit_id in heapq.nsmallest(
                len(kept) - MAX_DELIVERIES, kept, key=lambda entry: (kept[entry].at, entry)
            ):
                del kept[audit_id]

    @locked
    def hook_deliveries(self, hook_id: str, limit: int, before: int | None = None) -> list[HookDelivery]:
        kept = self._deliveries.get(hook_id, {})
        return [kept[i] for i in heapq.nlargest(limit, (i for i in kept if before is None or i < before))]
