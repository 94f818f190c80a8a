"""Calls of the API made inside this process: the same roles, limits, messages and repetitions as over HTTP, without JSON."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from forewarn.core.errors import Forbidden
from forewarn.operator.api.access import Identity
from forewarn.operator.api.calls import CALLS
from forewarn.operator.api.context import Api, CallContext, request_digest
from forewarn.operator.api.dispatch import convert_body, find_call, perform, read_key, read_query, why_not


class ApiClient:
    """Makes calls as one caller."""

    def __init__(self, api: Api, caller: Identity) -> None:
        self._api = api
        self.caller = caller

    def get(self, path: str, **query: Any) -> Any:
        return self.call("GET", path, query=query)

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Any:
        """Return the body that the table names for the call, or bytes where the API sends bytes.

        `body` is of the type that the call takes, or a mapping of its fields. Empty parameters are left out of the query.
        """
        call, names = find_call(method, path, self.caller)
        items = list(_items(query or {}))
        content = convert_body(call, body)
        key = read_key(call, key)
        target = f"{path}?{urlencode(items)}"
        context = CallContext(
            caller=self.caller,
            path=names,
            query=read_query(call, items),
            body=content,
            key=key,
            digest=request_digest(method, target, msgspec.json.encode(content)) if key else "",
        )
        result = perform(self._api, call, context)
        if call.creates and isinstance(result.body, bytes):  # the saved response of an earlier request
            return msgspec.json.decode(result.body, type=call.returns)
        return result.body

    def may(self, method: str, path: str) -> bool:
        """Return whether the caller may make the call, whatever the state allows.

        For a path as the table has it, such as `/v1/scopes/{scope}`, only the role counts: some scope may be the caller's.
        """
        for call in CALLS:
            if (call.method, call.path) == (method, path):
                return self.caller.role in call.roles
        try:
            call, names = find_call(method, path, self.caller)
        except Forbidden:
            return False
        return not why_not(self._api, call, self.caller, names)

    def new_key(self) -> str:
        """Return a new Idempotency-Key."""
        return self._api.new_id()

    def was_answered(self, key: str) -> bool:
        """Return whether the caller's request with this Idempotency-Key was answered before."""
        return bool(key) and self._api.store.receipt(self.caller.token_id, key) is not None


def _items(query: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name, value in query.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if each not in ("", None):
                yield name, str(each)
