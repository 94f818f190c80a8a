"""`notify`: sends each event and change to a webhook, once, also across restarts; in Slack's format by default.

The address is a secret in a file of its own (`url_file`). It appears in no message, log, journal or status. A message that was
under way when the agent was killed is sent again with the same Idempotency-Key.
"""

from __future__ import annotations

import json
from typing import Any, List, Mapping, NamedTuple
from urllib.parse import urlsplit

from forewarn.guest.config_values import check_keys, read_secret_file, text
from forewarn.guest.errors import ConfigError, EndpointError, StepFailed
from forewarn.guest.handlers.log import do_nothing
from forewarn.guest.printable import printable
from forewarn.guest.steps import Run
from forewarn.guest.transport import request_once

TIMEOUT_S = 5.0
SHAPES = ("slack", "event")


class Spec(NamedTuple):
    url_file: str
    shape: str = "slack"


def parse(table: Mapping[str, Any], where: str) -> Spec:
    check_keys(table, Spec._fields, where, url_file="the address is a secret and belongs in a file of its own")
    spec = Spec(**{key: text(value, f"{where}.{key}") for key, value in table.items()})
    if spec.shape not in SHAPES:
        raise ConfigError(f"{where}.shape: {spec.shape!r} is unknown: use one of {', '.join(SHAPES)}")
    return spec


def check(spec: Spec) -> List[str]:
    try:
        _url(spec)
    except StepFailed as error:
        return [str(error)]
    return []


def notify(spec: Spec, run: Run) -> None:
    url = _url(spec)
    # A header takes only printable ASCII.
    key = ascii(printable(f"{run.event.get('EventId', '')}/{run.change}/{run.step}"))[1:-1]
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    body = json.dumps(_message(spec, run)).encode()
    try:
        status = request_once("POST", url, headers=headers, body=body, timeout_s=run.timeout_s(TIMEOUT_S)).status
    except (EndpointError, ValueError) as error:  # only the class: the text holds the address
        raise StepFailed(f"the webhook cannot be reached: {type(error).__name__}") from None
    if status >= 300:
        raise StepFailed(f"the webhook answered {status}")


def _message(spec: Spec, run: Run) -> Mapping[str, Any]:
    event = run.event
    if spec.shape == "event":
        return {"change": run.change, "event": event}
    start = f", not before {event['NotBefore']}" if event.get("NotBefore") else ""
    why = f": {event['Description']}" if event.get("Description") else ""
    machines = ", ".join(event.get("Resources", ()))
    text = f"{event.get('EventType')} of {machines} {run.change}{start}{why} ({event.get('EventId')})"
    return {"text": _plain(text)}


def _plain(text: str) -> str:
    """Return the text as one line without Slack's markup: the endpoint chooses parts of it."""
    return printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _url(spec: Spec) -> str:
    url = read_secret_file(spec.url_file).strip()
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        good = False
    if not good:
        raise StepFailed(f"{spec.url_file} does not hold an http:// or https:// address")
    return url


prepare = verify = recover = do_nothing
