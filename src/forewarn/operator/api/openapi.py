"""The OpenAPI document, made from the table of calls and the bodies, so that it always describes the API as it is."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from forewarn import __version__
from forewarn.operator.api import bodies
from forewarn.operator.api.calendar import CALENDAR
from forewarn.operator.api.calls import MAX_KEY_CHARS, Call
from forewarn.operator.api.context import JSON, TOML

REF = "#/components/schemas/{name}"
ABOUT = (
    "Maintenance of a fleet: describe the fleet, schedule maintenance, watch and approve events, do the work. A list has items"
    " and next_cursor. Every error has one shape. Scopes and machines are listed by name, everything else newest first."
)
STREAM = {
    "get": {
        "operationId": "stream",
        "summary": "Every change as it happens, as server-sent events; resumable with Last-Event-ID.",
        "tags": ["stream"],
        "parameters": [
            {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "integer", "minimum": 0}}
        ],
        "responses": {"200": {"description": "OK", "content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    }
}
CALENDAR_CALL = {
    "get": {
        "operationId": "calendar",
        "summary": "Planned and announced maintenance as iCalendar (RFC 5545).",
        "description": "Only for tokens with the role calendar. Calendar programs send no headers, so it is in the query.",
        "tags": ["calendar"],
        "security": [],
        "parameters": [{"name": "token", "in": "query", "required": True, "schema": {"type": "string"}}],
        "responses": {
            "200": {"description": "OK", "content": {"text/calendar": {"schema": {"type": "string"}}}},
            "304": {"description": "Not Modified"},
            **{
                str(code): {
                    "description": HTTPStatus(code).phrase,
                    "content": {JSON: {"schema": {"$ref": REF.format(name="Error")}}},
                }
                for code in (401, 403, 429, 503)
            },
        },
    }
}


def openapi(calls: Iterable[Call]) -> dict[str, Any]:
    calls = tuple(calls)
    types = [t for call in calls for t in (call.returns, call.takes, call.query) if t is not None] + [bodies.Error]
    described, components = msgspec.json.schema_components(types, ref_template=REF)
    schemas = dict(zip(types, described, strict=True))
    paths: dict[str, Any] = {}
    for call in calls:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call, schemas, components)
    paths |= {"/v1/stream": STREAM, CALENDAR: CALENDAR_CALL}
    for call in calls:
        components.pop(call.query.__name__, None)
    return {
        "openapi": "3.1.0",
        "info": {"title": "forewarn", "version": __version__, "description": ABOUT},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(call: Call, schemas: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    parts = [part for part in call.path.split("/")[2:] if not part.startswith("{")]
    operation: dict[str, Any] = {
        "operationId": call.name,
        "summary": call.summary,
        "description": f"Roles: {', '.join(sorted(call.roles))}.",
        "tags": [parts[0]],
        "parameters": [*_path_parameters(call), *_query_parameters(call, components), *_key_parameter(call)],
        "responses": {str(status): _response(call, status, schemas) for status in call.status},
    }
    error = {"content": {JSON: {"schema": schemas[bodies.Error]}}}
    operation["responses"] |= {
        str(code): {"description": HTTPStatus(code).phrase, **error} for code in call.errors if code not in call.status
    }
    if call.takes is not None:
        content: dict[str, Any] = {JSON: {"schema": schemas[call.takes]}}
        if call.takes is bodies.Fleet:
            content[TOML] = {"schema": {"type": "string"}}
        operation["requestBody"] = {"required": not call.body_optional, "content": content}
    return operation


def _response(call: Call, status: int, schemas: dict[Any, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if call.returns is not None:
        response["content"] = {JSON: {"schema": schemas[call.returns]}}
        if call.returns is bodies.Fleet:
            response["content"][TOML] = {"schema": {"type": "string"}}
    return response


def _path_parameters(call: Call) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in call.path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(call: Call, components: dict[str, Any]) -> list[dict[str, Any]]:
    described = components[call.query.__name__]
    required = described.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema, "style": "form", "explode": True}
        for name, schema in described["properties"].items()
    ]


def _key_parameter(call: Call) -> list[dict[str, Any]]:
    if not call.creates:
        return []
    schema = {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS, "pattern": "^[\\x21-\\x7e]+$"}
    text = "A request with the same key within 24 hours is not performed again and gets the same response."
    return [{"name": "Idempotency-Key", "in": "header", "required": False, "schema": schema, "description": text}]
