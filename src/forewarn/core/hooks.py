"""Hooks: which audit entries a hook gets, the message about an entry, its signature, when to try again, where it may go."""

import base64
import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from datetime import datetime
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from forewarn.core.errors import Refused
from forewarn.core.fast_init import replace
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import AuditEntry, Event, require
from forewarn.core.operator_model import MAX_HOOKS, MAX_HOOKS_OF_OWNERS, MAX_HOOKS_PER_SCOPE, Hook, HookShape, Token

# An entry of a whole maintenance, which belongs to no scope.
ENDED = "ended"
# The kinds that `--on` takes, each with the actions of the audit that it stands for.
KINDS: dict[str, frozenset[str]] = {
    "submitted": frozenset({"maintenance submitted"}),
    "published": frozenset({"event published"}),
    "approved": frozenset({"event approved"}),
    "started": frozenset({"event started"}),
    "taken": frozenset({"order taken", "order taken over"}),
    "failed": frozenset({"order failed"}),
    "in-doubt": frozenset({"order in doubt"}),
    "retried": frozenset({"event retry by operator", "host retry by operator"}),
    "finished": frozenset({"order finished", "event finish by operator", "host finish by operator"}),
    "abandoned": frozenset({"event abandon by operator", "host abandon by operator", "host abandoned"}),
    "completed": frozenset({"event completed"}),
    "cancelled": frozenset({"event cancelled", "maintenance cancelled", "host cancelled", "deadline passed"}),
    "rescheduled": frozenset({"event rescheduled", "host rescheduled"}),
    "paused": frozenset({"maintenance paused"}),
    "resumed": frozenset({"maintenance resumed", "maintenance continued"}),
    ENDED: frozenset({"maintenance ended"}),
    "enabled": frozenset({"scope enabled"}),
    "disabled": frozenset({"scope disabled"}),
    "fleet": frozenset({"fleet changed"}),
    "cordoned": frozenset({"host cordoned"}),
    "uncordoned": frozenset({"host uncordoned"}),
    "host-work": frozenset({"host begun", "host waiting", "host ready", "machines stopped", "machines to be started"}),
}
# Every entry of another action: tokens, hooks, the clock, the store.
OTHER = "other"
ALL_KINDS = (*KINDS, OTHER)
USUAL_KINDS = (
    "published",
    "started",
    "completed",
    "cancelled",
    "rescheduled",
    "failed",
    "in-doubt",
    "abandoned",
    ENDED,
)
# Entries of these kinds belong to no scope.
FLEET_KINDS = ("submitted", "paused", "resumed", ENDED, "fleet", "cordoned", "uncordoned")
_KIND_OF_ACTION = {action: kind for kind, actions in KINDS.items() for action in actions}

SECRET_PREFIX = "whsec_"  # noqa: S105 - how a secret begins, not one
# How long to wait after the first failure, the second, and so on; the last value is for all further ones.
RETRY_S = (1.0, 5.0, 15.0, 60.0, 300.0)
MAX_RETRY_S = 3_600.0
MAX_MACHINES_IN_TEXT = 5

# All IPv6 addresses that are public are in the first range. The second one leads to IPv4 addresses.
_GLOBAL_IPV6 = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Addresses for documentation, and relays of 6to4. Some releases of Python take them for public addresses.
_NOT_PUBLIC = (ipaddress.ip_network("3fff::/20"), ipaddress.ip_network("192.88.99.0/24"))
_LABEL = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")
# What resolvers take as a part of an IPv4 address, also in forms like 127.1 or 0x7f000001.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


# -- what a hook gets


def kind_of(action: str) -> str:
    return _KIND_OF_ACTION.get(action, OTHER)


def check_kinds(kinds: Iterable[str], scope: str) -> tuple[str, ...]:
    """Return the kinds without repetitions. If none is named, return the usual ones that a hook of this scope can get."""
    wanted = tuple(dict.fromkeys(kinds))
    for kind in wanted:
        require(kind in ALL_KINDS, f"on: {kind!r} is not a kind of entry: use {', '.join(ALL_KINDS)}")
    return wanted or tuple(kind for kind in USUAL_KINDS if kind != ENDED or not scope)


def refuse_fleet_kinds(kinds: Collection[str]) -> None:
    """Refuse kinds that a hook of a scope would never get."""
    never = ", ".join(kind for kind in FLEET_KINDS if kind in kinds)
    require(
        not never,
        f"on: entries of the kind {never} belong to no scope: leave it out, or create a hook for the whole fleet",
    )


# -- what operators do with hooks


def check_url(url: str) -> None:
    """Refuse a URL whose host or port no receiver can have."""
    try:
        fits = _is_reachable(urlsplit(url))
    except ValueError:  # not an address, or a port that is too large
        fits = False
    require(fits, "url needs the name or the address of a host, and a port from 1 to 65535 if it names one")


def _is_reachable(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    if ":" in host or _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
        ipaddress.ip_address(host)
    return parts.port != 0 and (":" in host or _HOST_NAME.fullmatch(host) is not None)


def host_of(hook: Hook) -> str:
    """Return the host of the URL. The rest of a URL may be secret: it is neither logged nor written into the audit."""
    return urlsplit(hook.url).hostname or ""


def hook_state(hook: Hook) -> Literal["active", "failing", "disabled"]:
    if hook.disabled is not None:
        return "disabled"
    return "failing" if hook.failures else "active"


def refuse_more(hooks: Collection[Hook], scope: str, *, of_owner: bool = False) -> None:
    """Refuse one more hook if the fleet, the scope or all owners together have as many as they may have."""
    if len(hooks) >= MAX_HOOKS:
        raise Refused(f"there are {MAX_HOOKS} hooks already: delete one first")
    if sum(hook.scope == scope for hook in hooks) >= MAX_HOOKS_PER_SCOPE:
        whose = f"scope {scope}" if scope else "the fleet"
        raise Refused(f"{whose} has {MAX_HOOKS_PER_SCOPE} hooks already: delete one first")
    if of_owner and sum(hook.owner_token != "" for hook in hooks) >= MAX_HOOKS_OF_OWNERS:
        raise Refused(f"owners have {MAX_HOOKS_OF_OWNERS} hooks already: delete one, or ask an operator to create it")


def rotate_secret(hook: Hook, secret: str, until: datetime | None) -> Hook:
    """Return the hook with a new secret. The previous secret also signs until `until`, or no longer if that is None."""
    former = hook.secrets[:1] if until is not None else ()
    return replace(hook, secrets=(secret, *former), old_secrets_until=until)


def enable(hook: Hook, owner_token: str) -> Hook:
    """Return the hook enabled and without failures. From now on, an owner's hook ends with `owner_token`, if that is given."""
    owner_token = owner_token if hook.owner_token else ""
    return replace(hook, disabled=None, failing_since=None, failures=0, error="", owner_token=owner_token)


def lost_owner(hook: Hook, tokens: Iterable[Token], now: datetime) -> bool:
    """Return whether an owner's token created or enabled the hook, and this token has ended."""
    valid = (token.id for token in tokens if token.expires is None or now < token.expires)
    return hook.owner_token != "" and hook.owner_token not in valid


def move_cursor(hook: Hook, entry: int, *, oldest: int, newest: int) -> Hook:
    """Return the hook so that it goes on with this audit entry: an earlier one is sent again, a later one skips entries."""
    require(
        oldest <= entry <= newest + 1,
        f"from: {entry} is not an entry that the audit log holds: use {oldest} to {newest + 1}",
    )
    return replace(enable(hook, hook.owner_token), cursor=entry - 1, disabled=hook.disabled)


# -- messages


@dataclass(frozen=True, slots=True)
class HookMessage:
    """What is sent. Every attempt to send it has the same id and the same body."""

    id: str
    kind: str
    content_type: str
    body: bytes


def entry_message(hook: Hook, entry: AuditEntry, event: Event | None, source: str) -> HookMessage:
    """Return the message about an audit entry. Its event, if known, adds only what no longer changes."""
    # The hash tells entries apart that have the same id, one of them in a database that was restored.
    mark = f"{entry.id}-{entry.hash[:12]}"
    data: dict[str, object] = {
        "entry": entry.id,
        "action": entry.action,
        "who": entry.who,
        "scope": entry.scope,
        "maintenance_id": entry.maintenance_id,
        "event_id": entry.event_id,
        "detail": entry.detail,
        "event": None if event is None else _event_data(event),
    }
    kind = "forewarn." + entry.action.replace(" ", ".")
    subject = "/".join(part for part in (entry.scope, entry.event_id or entry.maintenance_id) if part)
    return _message(hook, source, mark, kind, entry.at, subject, data, _sentence(entry, event))


def gap_message(hook: Hook, at: datetime, source: str) -> HookMessage:
    """Return the message that tells the receiver which entries it will never get."""
    data: dict[str, object] = {"hook": hook.id, "after": hook.gap_after, "until": hook.gap_until}
    text = f"forewarn deleted audit entries {hook.gap_after + 1} to {hook.gap_until} before it could deliver them here"
    return _message(hook, source, f"gap-{hook.gap_until}", "forewarn.hook.gap", at, hook.scope, data, text)


def trial_message(hook: Hook, at: datetime, source: str, mark: str) -> HookMessage:
    """Return a message that only shows that the receiver can be reached and accepts the signature."""
    data: dict[str, object] = {"hook": hook.id}
    text = "This is a test message of forewarn."
    return _message(hook, source, f"test-{mark}", "forewarn.hook.test", at, hook.scope, data, text)


def _message(
    hook: Hook, source: str, mark: str, kind: str, at: datetime, subject: str, data: dict[str, object], text: str
) -> HookMessage:
    content_type = "application/json"
    body: dict[str, object]
    if hook.shape is HookShape.SLACK:
        body = {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}
    elif hook.shape is HookShape.TEAMS:
        body = _teams_card(text)
    else:
        content_type = "application/cloudevents+json; charset=utf-8"
        body = {
            "specversion": "1.0",
            "id": mark,
            "source": source,
            "type": kind,
            "time": _time_text(at),
            **({"subject": subject} if subject else {}),
            "datacontenttype": "application/json",
            "data": data,
        }
    return HookMessage(f"msg_{hook.id[:8]}_{mark}", kind, content_type, json.dumps(body).encode())


def _teams_card(text: str) -> dict[str, object]:
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.2",
        "body": [{"type": "TextBlock", "text": text, "wrap": True}],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _event_data(event: Event) -> dict[str, object]:
    return {
        "type": event.type,
        "source": event.source,
        "machines": [f"{event.scope}/{name}" for name in event.resources],
        "update_domain": event.update_domain,
        "wave": event.wave,
        "description": event.description,
        "duration_s": event.duration_s,
        "not_before": None if event.not_before is None else _time_text(event.not_before),
    }


def _sentence(entry: AuditEntry, event: Event | None) -> str:
    where = f"{entry.scope}: " if entry.scope else ""
    what = f" {entry.maintenance_id[:8]}" if entry.maintenance_id and not entry.event_id else ""
    if event is not None:
        shown = ", ".join(event.resources[:MAX_MACHINES_IN_TEXT])
        more = len(event.resources) - MAX_MACHINES_IN_TEXT
        begins = f", not before {event.not_before:%Y-%m-%d %H:%M} UTC" if event.not_before is not None else ""
        what = f": {event.type} of {shown}{f' and {more} more' if more > 0 else ''}{begins}"
    detail = f" ({entry.detail})" if entry.detail else ""
    return f"{where}{entry.action}{what}{detail}, by {entry.who}"


def _time_text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


# -- signatures, as in the Standard Webhooks specification


def secret_text(random_bytes: bytes) -> str:
    return SECRET_PREFIX + base64.b64encode(random_bytes).decode()


def valid_secrets(hook: Hook, now: datetime) -> tuple[str, ...]:
    """Return the secrets that sign now: the newest, and the one before it until its time is over."""
    if hook.old_secrets_until is not None and now < hook.old_secrets_until:
        return hook.secrets[:2]
    return hook.secrets[:1]


def signed_headers(message: HookMessage, secrets: Iterable[str], unix_s: int) -> dict[str, str]:
    """Return the headers of a message: what it is, when it was sent, and one signature for each secret."""
    signed = f"{message.id}.{unix_s}.".encode() + message.body
    keys = (base64.b64decode(secret.removeprefix(SECRET_PREFIX)) for secret in secrets)
    signatures = (base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys)
    return {
        "content-type": message.content_type,
        "webhook-id": message.id,
        "webhook-timestamp": str(unix_s),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


# -- attempts


def retry_after_s(failures: int, requested_s: float = 0.0) -> float:
    """Return how long to wait after so many failures in a row; a receiver may request a longer wait."""
    return max(RETRY_S[min(failures, len(RETRY_S)) - 1], min(requested_s, MAX_RETRY_S))


# -- where messages may go


@dataclass(frozen=True, slots=True)
class AllowedTargets:
    """The operator's list of targets. If it is empty, a target is any public address, over https only.

    `names` and `networks` are allowed with every port, those in `ports` with one port only.
    """

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()
    ports: Mapping[int, "AllowedTargets"] = field(default_factory=dict)

    @property
    def listed(self) -> bool:
        return bool(self.names or self.networks or self.ports)

    @property
    def _port_text(self) -> str:
        return " with this port" if self.ports else ""

    def at(self, port: int) -> "AllowedTargets":
        """Return the targets that are allowed with this port."""
        more = self.ports.get(port, AllowedTargets())
        return replace(self, names=self.names | more.names, networks=self.networks + more.networks)

    def why_not_host(self, scheme: str, host: str) -> str:
        """Return why no message may go to this host, or "" if it may, or if that depends on the addresses of its name."""
        if not self.listed and scheme != "https":
            return "only https is allowed: for http, list the target in the setting hook_targets"
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            known = not self.listed or host.lower() in self.names or self.networks
            return "" if known else f"{host} is not in the setting hook_targets{self._port_text}"
        return self.why_not_address(host, address)

    def why_not_address(self, host: str, address: Address) -> str:
        """Return why no message may go to this address of the host, or ""."""
        if self.listed:
            allowed = host.lower() in self.names or any(address in network for network in self.networks)
            return "" if allowed else f"{host} ({address}) is not in the setting hook_targets{self._port_text}"
        return "" if _is_public(address) else f"{host} is {address}, which is not a public address"


def _is_public(address: Address) -> bool:
    if any(address in network for network in _NOT_PUBLIC):
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return _is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address not in _GLOBAL_IPV6:
            return False
        if address.sixtofour is not None:  # `is_global` of such an address differs between releases of Python
            return _is_public(address.sixtofour)
    return address.is_global and not address.is_multicast
