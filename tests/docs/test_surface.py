"""`scripts/surface.py compare` names every difference between two dumps; here on small made-up ones."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripts.surface import compare, main, report

DUMP: dict[str, Any] = {
    "service": {
        "openapi": {
            "schemas": {
                "Event": {
                    "properties": {
                        "id": {"required": True, "type": "string"},
                        "status": {"required": True, "enum": ["Scheduled", "Started"]},
                    }
                }
            }
        },
        "metrics": {"forewarn_scopes": {"type": "gauge"}},
        "commands": {"scope show none --json": {"exit": 1, "out": ""}},
        "schema": {"columns of scopes": {"name": "TEXT 1", "epoch": "INTEGER 1"}},
        "rows": {"scopes": [{"name": "shop"}, {"name": "solo"}], "events": [{"id": "(id 1)", "status": "Started"}]},
    },
    "guest wire": {"serve": {"GET": 'HTTP/1.1 200 OK\r\nETag: "1"\r\nDate: (rfc T+0s)\r\n\r\n{}'}},
    "settings": {"order_timeout": {"variable": "FOREWARN_ORDER_TIMEOUT", "default": "1h"}},
}


def drop(path: str) -> Callable[[Any], None]:
    def bend(dump: Any) -> None:
        *steps, last = path.split("/")
        for step in steps:
            dump = dump[step]
        del dump[last]

    return bend


def put(path: str, value: object) -> Callable[[Any], None]:
    def bend(dump: Any) -> None:
        *steps, last = path.split("/")
        for step in steps:
            dump = dump[step]
        dump[last] = value

    return bend


def bent(*bends: Callable[[Any], None]) -> Any:
    dump = copy.deepcopy(DUMP)
    for bend in bends:
        bend(dump)
    return dump


STATUS = "service/openapi/schemas/Event/properties/status"


@pytest.mark.parametrize(
    ("bend", "line"),
    [
        (drop(STATUS), "removed: service / openapi / schemas / Event / properties / status: "),
        (put(f"{STATUS}/required", False), "properties / status / required: true -> false"),
        (put(f"{STATUS}/enum", ["Started"]), 'Event / properties / status / enum: "Scheduled"'),
        (drop("service/metrics/forewarn_scopes"), "removed: service / metrics / forewarn_scopes: "),
        (put("service/commands/scope show none --json/exit", 3), "/ scope show none --json / exit: 1 -> 3"),
        (drop("service/schema/columns of scopes/epoch"), "removed: service / schema / columns of scopes / epoch: "),
        (put("service/rows/scopes", [{"name": "shop"}]), 'removed: service / rows / scopes: {"name": "solo"}'),
        (put("service/rows/events", [{"id": "(id 1)", "status": "Done"}]), "rows / events / (id 1) / status: "),
        (put("settings/order_timeout/default", "2h"), 'changed: settings / order_timeout / default: "1h" -> "2h"'),
        (
            put("guest wire/serve/GET", DUMP["guest wire"]["serve"]["GET"].replace("ETag", "Etag")),
            'changed: guest wire / serve / GET: line 2: "ETag: \\"1\\"\\r" -> "Etag: \\"1\\"\\r"',
        ),
    ],
)  # fmt: skip
def test_what_was_removed_or_changed_is_named_and_fails(
    bend: Callable[[Any], None], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A field, a flag, an enum's value, a metric, an exit code, a column, a row, a default, a header."""
    assert report(DUMP, bent(bend)) == 1
    assert line in capsys.readouterr().out


def test_a_renamed_metric_is_removed_and_added() -> None:
    """The old name is gone, whatever the new one is."""
    renamed = bent(
        drop("service/metrics/forewarn_scopes"), put("service/metrics/forewarn_all_scopes", {"type": "gauge"})
    )
    assert sorted(each.how for each in compare(DUMP, renamed)) == ["added", "removed"]


def test_additions_are_listed_and_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    """A new metric and a new enum value break nobody."""
    more = bent(
        put("service/metrics/forewarn_new", {"type": "gauge"}), put(f"{STATUS}/enum", ["Scheduled", "Started", "New"])
    )
    assert report(DUMP, more) == 0
    out = capsys.readouterr().out
    assert "added: service / metrics / forewarn_new" in out
    assert "0 removed, 0 changed, 2 added" in out


def test_the_same_in_another_order_is_the_same() -> None:
    """Keys and lists have no order."""
    other = json.loads(json.dumps(DUMP, sort_keys=True))
    other["service"]["rows"]["scopes"].reverse()
    assert list(compare(DUMP, other)) == []


def test_the_command_reads_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`compare OLD NEW` ends with 1 where something changed, else with 0."""
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(DUMP))
    new.write_text(json.dumps(bent(put("settings/order_timeout/default", "2h"))))
    monkeypatch.setattr("sys.argv", ["surface.py", "compare", str(old), str(new)])
    assert main() == 1
    monkeypatch.setattr("sys.argv", ["surface.py", "compare", str(old), str(old)])
    assert main() == 0
