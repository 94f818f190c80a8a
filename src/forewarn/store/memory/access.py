"""Tokens, logins, and receipts of answered requests in the memory store."""

import heapq
from collections.abc import Mapping
from datetime import datetime

from forewarn.core.errors import Conflict
from forewarn.core.operator_model import MAX_SESSIONS_PER_TOKEN, LoginSession, Receipt, Token
from forewarn.store.memory.tables import MemoryTables, locked


class MemoryAccess(MemoryTables):
    @locked
    def tokens(self) -> list[Token]:
        return sorted(self._tokens.values(), key=lambda t: (t.created, t.id), reverse=True)

    @locked
    def record_token_uses(self, uses: Mapping[str, datetime]) -> None:
        for token_id, at in uses.items():
            if token_id in self._tokens:
                self._token_uses[token_id] = max(at, self._token_uses.get(token_id, at))

    @locked
    def token_uses(self) -> dict[str, datetime]:
        return dict(self._token_uses)

    @locked
    def add_session(self, session: LoginSession) -> None:
        if session.digest in self._sessions:
            raise Conflict("a login with this session id exists already")
        self._sessions[session.digest] = session
        same = [s for s in self._sessions.values() if s.token_id == session.token_id]
        for last in sorted(same, key=lambda s: s.expires, reverse=True)[MAX_SESSIONS_PER_TOKEN:]:
            del self._sessions[last.digest]

    @locked
    def session(self, digest: str) -> LoginSession | None:
        return self._sessions.get(digest)

    @locked
    def end_session(self, digest: str) -> None:
        self._sessions.pop(digest, None)

    @locked
    def forget_sessions(self, before: datetime, limit: int) -> int:
        ended = [digest for digest, session in self._sessions.items() if session.expires < before][:limit]
        for digest in ended:
            del self._sessions[digest]
        return len(ended)

    @locked
    def receipt(self, token_id: str, key: str) -> Receipt | None:
        return self._receipts.get((token_id, key))

    @locked
    def forget_receipts(self, before: datetime, limit: int) -> int:
        old = heapq.nsmallest(limit, ((r.at, key) for key, r in self._receipts.items() if r.at < before))
        for _, key in old:
            del self._receipts[key]
        return len(old)
