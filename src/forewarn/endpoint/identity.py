"""Identifies callers: by source address, by interface, by an instance id that a trusted proxy signed, or as one named machine.

The source address is safe only where a guest cannot use another's address (anti-spoofing on the bridge), the interface where
each guest has its own. The result is a Caller or None: a caller that is no known machine learns nothing.
"""

import hashlib
import hmac

from forewarn.core.lazy_dataclass import dataclass
from forewarn.endpoint.callers import Caller, Callers
from forewarn.endpoint.protocol import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What identifies a caller, apart from its address: proxies with a shared secret, or one name for every caller."""

    proxies: frozenset[str] = frozenset()
    proxy_secret: bytes = b""
    every_caller: tuple[str, str] | None = None
    allowed_hosts: frozenset[str] = frozenset()

    def signed(self, instance_id: str, signature: str) -> bool:
        """Whether a signature is the HMAC-SHA256 of the instance id, in hex."""
        expected = hmac.new(self.proxy_secret, instance_id.encode("latin-1"), hashlib.sha256).hexdigest()
        return bool(self.proxy_secret) and hmac.compare_digest(expected.encode(), signature.lower().encode("latin-1"))

    def is_proxy(self, address: str) -> bool:
        return self.every_caller is None and address in self.proxies

    def caller_of_connection(self, callers: Callers, interface: str, address: str) -> Caller | None:
        """Return the machine of a connection; None for a proxy, which names a machine with each request."""
        if self.every_caller is not None:
            return callers.named(*self.every_caller)
        return None if address in self.proxies else callers.at(interface, address)

    def caller_of_proxied_request(self, callers: Callers, request: Request) -> Caller | None:
        """Return the machine a proxy names: one instance id, one valid signature, at most one X-Forwarded-For."""
        ids, signatures = request.values("x-instance-id"), request.values("x-instance-id-signature")
        forwarded = ",".join(request.values("x-forwarded-for"))
        if len(ids) != 1 or len(signatures) != 1 or "," in forwarded:
            return None
        return callers.by_instance_id.get(ids[0]) if self.signed(ids[0], signatures[0]) else None

    def means_of_identification(self, interface: str, proxied: bool) -> str:
        """Return how a caller was identified, for the audit."""
        if self.every_caller is not None:
            return "named"
        return "proxy" if proxied else "interface" if interface else "address"
