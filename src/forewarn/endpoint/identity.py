"""Who is calling: by source address, by interface, by an instance id that a trusted proxy signed, or one named machine.

By address is safe only where guests cannot use each other's (anti-spoofing on the bridge); by interface where each guest
has its own. Every way ends in a Caller or in nobody: a caller that is no known machine learns nothing.
"""

import hashlib
import hmac
from dataclasses import dataclass

from forewarn.endpoint.documents import Caller, Documents
from forewarn.endpoint.protocol import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Who may say who is calling: proxies with a shared secret, or one named machine for every caller."""

    proxies: frozenset[str] = frozenset()
    proxy_secret: bytes = b""
    every_caller: tuple[str, str] | None = None
    allowed_hosts: frozenset[str] = frozenset()

    def signed(self, instance_id: str, signature: str) -> bool:
        """`X-Instance-ID-Signature` is HMAC-SHA256, hex, of the instance id."""
        expected = hmac.new(self.proxy_secret, instance_id.encode("latin-1"), hashlib.sha256).hexdigest()
        return bool(self.proxy_secret) and hmac.compare_digest(expected.encode(), signature.lower().encode("latin-1"))

    def is_proxy(self, address: str) -> bool:
        return self.every_caller is None and address in self.proxies

    def connected(self, documents: Documents, interface: str, address: str) -> Caller | None:
        """Who a connection belongs to; nobody yet where a proxy will say it with each request."""
        if self.every_caller is not None:
            return documents.named(*self.every_caller)
        return None if address in self.proxies else documents.caller(interface, address)

    def vouched(self, documents: Documents, request: Request) -> Caller | None:
        """Who a proxy says it is: one instance id, one valid signature, at most one X-Forwarded-For."""
        ids, signatures = request.values("x-instance-id"), request.values("x-instance-id-signature")
        forwarded = ",".join(request.values("x-forwarded-for"))
        if len(ids) != 1 or len(signatures) != 1 or "," in forwarded:
            return None
        return documents.by_instance_id.get(ids[0]) if self.signed(ids[0], signatures[0]) else None

    def way(self, interface: str, proxied: bool) -> str:
        """For the audit."""
        if self.every_caller is not None:
            return "named"
        return "proxy" if proxied else "interface" if interface else "address"
