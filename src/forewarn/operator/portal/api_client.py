"""The API's own table, asked from inside as whoever visits: the same roles, limits, sentences and repetitions."""

from typing import Any

from forewarn.operator.api.access import Identity
from forewarn.operator.api.client import ApiClient
from forewarn.operator.api.context import Api


class Desk(ApiClient):
    def __init__(self, api: Api, who: Identity) -> None:
        super().__init__(api, who)
        self.who = who

    def ask(self, method: str, path: str, said: object = None, *, key: str | None = None, **query: Any) -> Any:
        """What the call tells, in its own shape; what is empty in the query is left out."""
        return self.call(method, path, said, key=key, query=query)
