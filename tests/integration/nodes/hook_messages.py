"""What receivers of hooks must have got: shared by the tests that kill nodes, receivers and databases."""

from collections.abc import Iterable, Mapping
from typing import Any

from tests.integration.nodes.nodes import Node

EVENTS = ["published", "cancelled"]
ALL = ["submitted", *EVENTS, "ended"]
ACTIONS = {
    "event published": "published",
    "event cancelled": "cancelled",
    "maintenance cancelled": "cancelled",
    "maintenance submitted": "submitted",
    "maintenance ended": "ended",
}
SCOPES = ("", "shop", "blog")


def create_hooks(node: Node, url: str) -> dict[str, dict[str, Any]]:
    """Create a hook for the fleet and one for each scope; return them by scope."""
    hooks = {}
    for scope in SCOPES:
        status, hook = node.answered("POST", "/v1/hooks", {"url": url, "scope": scope, "on": EVENTS if scope else ALL})
        assert status == 201, hook
        hooks[scope] = hook
    return hooks


def secrets_of(hooks: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {hook["id"][:8]: hook["secret"] for hook in hooks.values()}


def wanted_of(node: Node, scope: str) -> list[int]:
    """The ids of the entries that the hook of a scope asked for, oldest first."""
    status, found = node.answered("GET", "/v1/audit?limit=500")
    assert status == 200, found
    items: list[dict[str, Any]] = found["items"]  # type: ignore[assignment]
    kinds = EVENTS if scope else ALL
    return [e["id"] for e in reversed(items) if ACTIONS.get(e["action"]) in kinds and scope in ("", e["scope"])]


class Messages:
    """The messages of one hook: which entries came, in the order of their first time, and the ids each came under."""

    def __init__(self, hook: Mapping[str, Any], received: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """`received` has each message with its webhook-id, in the order they came."""
        self.ids: dict[int, set[str]] = {}
        for webhook_id, message in received:
            if webhook_id.startswith(f"msg_{hook['id'][:8]}_"):
                self.ids.setdefault(message["data"]["entry"], set()).add(webhook_id)

    @property
    def entries(self) -> list[int]:
        return list(self.ids)

    @property
    def under_several_ids(self) -> list[int]:
        return [entry for entry, ids in self.ids.items() if len(ids) > 1]
