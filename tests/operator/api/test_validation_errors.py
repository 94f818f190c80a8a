"""How the API says that a body or a parameter has the wrong shape."""

import json
import re
from typing import Any

import msgspec
import pytest

from forewarn.operator.api import bodies
from forewarn.operator.api.calls import CALLS
from forewarn.operator.api.validation_errors import sentence

NAME = "a name of 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit"
TYPES = "Freeze, Reboot, Redeploy, Preempt, Terminate"
REBOOT = {"type": "Reboot", "targets": {}}
FIELDS = (
    "type, targets, source, not_before, earliest, duration_s, description, emergency, on_failure, host_mode,"
    " return_machines, to_host, strategy, not_after"
)
# Words of msgspec, Python and regular expressions, which mean nothing to an operator.
JARGON = re.compile(r"`(?:str|int|bool|float|object|array|datetime)|regex|enum|Expected|RFC3339|\^|\$|null")


def refusal(shape: Any, data: object) -> str:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(json.dumps(data), type=shape)
    return sentence(refused.value, shape, whole="body")


@pytest.mark.parametrize(
    "shape, data, text",
    [
        (bodies.MaintenanceIn, [], f"body: write an object with {FIELDS}"),
        (bodies.MaintenanceIn, {"type": "Reboot"}, "targets: missing; add it"),
        (bodies.MaintenanceIn, {"type": "Rebot"}, f"type: 'Rebot' is unknown; use one of {TYPES}"),
        (bodies.MaintenanceIn, {"type": 5}, f"type: write one of {TYPES}"),
        (bodies.MaintenanceIn, {"tpye": 5}, f"tpye: unknown field; did you mean type? The fields here are {FIELDS}"),
        (
            bodies.MaintenanceIn,
            {**REBOOT, "duration_s": "1h"},
            "duration_s: write whole seconds from -1 to 2592000 (30d)",
        ),
        (bodies.MaintenanceIn, {**REBOOT, "emergency": "yes"}, "emergency: write true or false"),
        (
            bodies.MaintenanceIn,
            {**REBOOT, "description": "x" * 1025},
            "description: write a text of at most 1024 characters",
        ),
        (
            bodies.MaintenanceIn,
            {**REBOOT, "not_before": "tomorrow"},
            "not_before: write a time with its zone, like 2030-01-31T22:00:00Z",
        ),
        (bodies.MaintenanceIn, {"targets": {"scopes": ["a b"]}}, f"targets.scopes[0]: write {NAME}"),
        (
            bodies.MaintenanceIn,
            {"targets": {"hosts": [5]}},
            "targets.hosts[0]: write a name, or a pattern of names with `*`, `?` or `[ab]`",
        ),
        (
            bodies.MaintenanceIn,
            {"targets": {"machines": [""]}},
            "targets.machines[0]: write `scope/name`, or the name alone where only one machine has it",
        ),
        (
            bodies.MaintenanceIn,
            {"targets": {"update_domain": "x"}},
            "targets.update_domain: write a whole number from 0 to 999",
        ),
        (
            bodies.MaintenanceIn,
            {"targets": {"hots": []}},
            "targets.hots: unknown field; did you mean hosts?"
            " The fields here are machines, scope, update_domain, scopes, hosts, labels, names, everything, host_labels",
        ),
        (bodies.MachineIn, {"addresses": ["x"] * 17}, "addresses: write a list of at most 16 entries"),
        (bodies.FinishIn, {"attempt": 0}, "attempt: write a whole number, at least 1"),
        (bodies.FinishIn, {"new_hosts": 5}, "new_hosts: write an object"),
        (bodies.FinishIn, {"new_hosts": {"a": "b c"}}, f"a value of new_hosts: write {NAME}"),
        (
            bodies.FinishIn,
            {"new_hosts": {"": "b"}},
            "a key of new_hosts: write `scope/name`, or the name alone where only one machine has it",
        ),
        (bodies.AdvanceIn, {"seconds": -1}, "seconds: write a number from 0 to 31536000"),
        (bodies.Fleet, {"scopes": [{"name": "a b"}]}, f"scopes[0].name: write {NAME}"),
        (bodies.FailIn, {"reason": ""}, "reason: write a text of 1 to 1024 characters"),
    ],
    ids=str,
)
def test_a_sentence_says_where_and_what_to_write(shape: Any, data: object, text: str) -> None:
    """It names the field and says what to write there, in plain words."""
    assert refusal(shape, data) == text
    assert not JARGON.search(text)


@pytest.mark.parametrize("field", [" - at `$.nope", "x` - at `$.type", "x` - at `key` in `$.type", "x - at y"])
def test_a_field_whose_name_looks_like_a_place(field: str) -> None:
    """It is refused like any other unknown field."""
    assert refusal(bodies.MaintenanceIn, {field: 1})


def shapes() -> list[Any]:
    return [each for call in CALLS for each in (call.takes, call.query) if each is not None]


def test_every_field_of_every_call_can_be_described() -> None:
    """A value of a wrong type is refused with a sentence for each field, and without the words of a program."""
    for shape in shapes():
        for field in msgspec.structs.fields(shape):
            refused = []
            wrong_values: tuple[object, ...] = ({"x": []}, [{"x": 1}])
            for wrong in wrong_values:
                try:
                    msgspec.convert({field.encode_name: wrong}, shape, strict=False)
                except msgspec.ValidationError as error:
                    refused.append(sentence(error, shape, whole="parameter"))
            assert refused, (shape, field.name)
            assert all(field.encode_name in text.partition(":")[0] for text in refused), refused
            assert not JARGON.search(" ".join(refused)), refused
