"""Log lines as JSON."""

import json
import logging

from forewarn.service.logs import JsonLines


def test_fields_of_a_record_are_keys_of_its_line() -> None:
    """So that programs need not parse the message; a record without fields has none."""
    record = logging.makeLogRecord(
        {"name": "forewarn", "levelname": "ERROR", "msg": "it failed", "fields": {"event": "E1", "machines": ["web-0"]}}
    )
    line = json.loads(JsonLines().format(record))
    assert (line["level"], line["message"], line["event"], line["machines"]) == ("error", "it failed", "E1", ["web-0"])
    plain = json.loads(JsonLines().format(logging.makeLogRecord({"msg": "it works"})))
    assert set(plain) == {"at", "level", "from", "message"}
