"""Delay requests whose token is probably wrong, so that a flood of them does not slow down other requests.

Such a request comes from an address with too many wrong tokens, and this node has not read its token from the store. It is
identified like any other after the wait, so a right token works whatever comes from its address. A token that the node has
read waits for nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from forewarn.operator.api.access import Access
from forewarn.operator.api.calendar import CALENDAR, token_in
from forewarn.operator.open_connections import IDLE_WHILE_WAITING

# The shortest wait. It grows with the number of requests that wait, so that at most `MOST_PER_S` are answered.
WAIT_S = 1.0
MAX_WAIT_S = 10.0
MOST_PER_S = 50
GOLDEN_RATIO = 0.618034


class DoubtfulRequests:
    def __init__(self, access: Access, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._access = access
        self._sleep = sleep
        self._waiting = 0
        self._spread = 0.0

    def delay(self, app: ASGIApp) -> ASGIApp:
        """Return the application behind the wait."""

        async def delaying(scope: Scope, receive: Receive, send: Send) -> None:
            headers: Mapping[str, str] = Headers(scope=scope)
            if scope.get("path") == CALENDAR:
                headers = {"authorization": f"Bearer {token_in(scope['query_string'])}"}
            connected = await self.wait(scope, headers)
            await (app if connected else Response(status_code=499))(scope, receive, send)

        return delaying

    async def wait(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        """Wait if the token of the headers is probably wrong; return whether the caller is still connected.

        The end of the listener cancels the wait. The request then ends like one whose caller has gone.
        """
        peer = scope["client"][0] if scope.get("client") else ""
        if not self._access.is_doubtful(headers, peer):
            return True
        self._waiting += 1
        try:
            with scope.get(IDLE_WHILE_WAITING, lambda: nullcontext(lambda: True))() as connected:
                await self._sleep(self._next_spread() * min(max(WAIT_S, self._waiting / MOST_PER_S), MAX_WAIT_S))
                return bool(connected())
        except asyncio.CancelledError:
            return False
        finally:
            self._waiting -= 1

    def _next_spread(self) -> float:
        """Return a factor from 0.5 to 1.5: requests that came together must not be answered together.

        Multiples of the golden ratio lie evenly between whole numbers, however many there are.
        """
        self._spread = (self._spread + GOLDEN_RATIO) % 1.0
        return 0.5 + self._spread
