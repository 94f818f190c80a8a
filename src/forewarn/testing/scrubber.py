"""Replaces the names in a recording, so that it can be shared. The same name gets the same replacement everywhere.

Values that the protocol defines, numbers and times stay. All other text is replaced, also in unknown fields. A body that is not
JSON is replaced as a whole.
"""

import json
import re
from collections import Counter
from typing import Any

from forewarn.guest.document import bare_name
from forewarn.testing.recording_file import Line, body_fields

KEPT = frozenset(
    {"DocumentIncarnation", "EventStatus", "EventType", "ResourceType", "NotBefore", "EventSource", "DurationInSeconds"}
)
UNREADABLE = b"(scrubbed)"
_PLAIN_TAG = re.compile(r'"[0-9]{1,19}(-[0-9]{1,19})?"')


class Scrubber:
    """Scrubs the lines of one recording and remembers the replacements."""

    def __init__(self) -> None:
        self._replacements: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def line(self, line: Line) -> Line:
        headers = dict(line.headers)
        if line.etag and not _PLAIN_TAG.fullmatch(line.etag):
            headers["ETag"] = f'"{self.text(line.etag, "tag")}"'
        body = body_fields(self._body(line.raw))
        return Line(at_s=line.at_s, status=line.status, failure=line.failure, headers=headers, **body)  # type: ignore[arg-type]

    def machine(self, name: str) -> str:
        """Return a replacement such as `machine-0`. A leading underscore, which preview versions add, stays."""
        bare = bare_name(name)
        return name[: len(name) - len(bare)] + self.text(bare, "machine")

    def text(self, text: str, kind: str = "text") -> str:
        """Return the replacement of the text, named after the kind of its first use. Empty text stays empty."""
        key = text.casefold()
        if text and key not in self._replacements:
            number = self._counts[kind]
            self._counts[kind] += 1
            is_event = kind == "event"
            self._replacements[key] = f"00000000-0000-4000-8000-{number:012X}" if is_event else f"{kind}-{number}"
        return self._replacements[key] if text else ""

    def _body(self, raw: bytes) -> bytes:
        if not raw:
            return raw
        try:
            content = json.loads(raw.decode("utf-8-sig"))
            return json.dumps(self._document(content), separators=(",", ":")).encode()
        except (ValueError, RecursionError):
            return UNREADABLE

    def _document(self, content: Any) -> Any:
        if not isinstance(content, dict):
            return self._unknown(content)
        events = content.get("Events")
        if not isinstance(events, list):
            return {key: self._field(key, value) for key, value in content.items()}
        scrubbed = [
            {key: self._field(key, value) for key, value in event.items()}
            if isinstance(event, dict)
            else self._unknown(event)
            for event in events
        ]
        return {key: scrubbed if key == "Events" else self._field(key, value) for key, value in content.items()}

    def _field(self, key: str, value: Any) -> Any:
        if key in KEPT and not isinstance(value, dict | list):
            return value
        if key == "EventId" and isinstance(value, str):
            return self.text(value, "event")
        if key == "Resources" and isinstance(value, list):
            return [self.machine(each) if isinstance(each, str) else self._unknown(each) for each in value]
        if key == "Description" and isinstance(value, str):
            return self.text(value, "description")
        return self._unknown(value)

    def _unknown(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self.text(key): self._unknown(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._unknown(each) for each in value]
        return self.text(value) if isinstance(value, str) else value
