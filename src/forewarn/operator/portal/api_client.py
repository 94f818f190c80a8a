"""The API's own table, asked from inside as whoever visits: the same roles, limits, sentences and repetitions."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

import msgspec

from forewarn.core.errors import Forbidden
from forewarn.operator.api.access import Asking
from forewarn.operator.api.calls import Call
from forewarn.operator.api.context import JSON, Answer, Api, Ask, request_digest
from forewarn.operator.api.dispatch import do, find, read_body, read_key, read_query


class ApiClient:
    def __init__(self, api: Api, who: Asking) -> None:
        self.api = api
        self.who = who

    def get(self, path: str, **query: Any) -> Any:
        return self.ask("GET", path, **query)

    def ask(self, method: str, path: str, said: object = None, *, key: str | None = None, **query: Any) -> Any:
        """What the call tells, in its own shape; what is empty in the query is left out."""
        call, answer = self._done(method, path, said, key, query)
        if not answer.body or call.tells is None:
            return None
        return msgspec.json.decode(answer.body, type=call.tells)

    def was_done(self, key: str) -> bool:
        """Whether the visitor's call of this key was answered before: sent again, it is told again."""
        return bool(key) and self.api.store.receipt(self.who.token_id, key) is not None

    def raw(self, path: str, **query: Any) -> bytes:
        """What the call tells, as its bytes."""
        return self._done("GET", path, None, None, query)[1].body

    def _done(
        self, method: str, path: str, said: object, key: str | None, query: dict[str, Any]
    ) -> tuple[Call, Answer]:
        call, names = find(method, path, self.who)
        items = list(_items(query))
        body = msgspec.json.encode(said) if said is not None else b""
        ask = Ask(
            who=self.who,
            path=names,
            query=read_query(call, items),
            body=read_body(call, body, JSON),
            key=read_key(call, key),
            digest=request_digest(method, f"{path}?{urlencode(items)}", body),
        )
        return call, do(self.api, call, ask)

    def may(self, method: str, path: str) -> bool:
        """Whether the visitor's role and scopes allow it; what the state allows is another question."""
        try:
            find(method, path, self.who)
        except Forbidden:
            return False
        return True


def _items(query: dict[str, Any]) -> Iterable[tuple[str, str]]:
    for name, value in query.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if each not in ("", None):
                yield name, str(each)
