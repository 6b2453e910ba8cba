"""What an answer of the API may hold: the allow-list, which is the OpenAPI document with every object closed, and after
it the deny-list of `leak_words.py`.

Pure: it judges one answer and says route, place and rule, never what stood there. Who hears answers is `overheard.py`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast
from urllib.parse import unquote

import jsonschema_rs

from tests.rig.answers import EVENT_STREAM, Answer
from tests.rig.leak_words import Live, denied, shown_name
from workflows.contract.events import EVENT_DATA

Json = dict[str, Any]
_PROTOCOL_HEADERS = frozenset({"date", "content-length", "content-type", "connection", "transfer-encoding"})
_STREAM_HEADERS = frozenset({"cache-control", "x-accel-buffering"})
_HEADERS_OF_ALL = ("X-Request-Id", "traceparent", "Allow", "WWW-Authenticate", "Retry-After")
"""Of an answer that no operation declares: an unknown address or method."""


@dataclass(frozen=True, slots=True)
class Operation:
    id: str
    template: str
    responses: Mapping[str, Json]


class Rules:
    """The rules of one OpenAPI document."""

    def __init__(self, document: Json) -> None:
        self._components = cast(Json, _closed(document["components"]))
        event = self._components["schemas"]["EventAnswer"]
        event["allOf"] = [
            {
                "if": {"properties": {"type": {"const": type}}},
                "then": {"properties": {"data": {"propertyNames": {"enum": sorted(keys)}}}},
            }
            for type, keys in EVENT_DATA.items()
        ]
        self._operations = [
            (method.upper(), _matching(template), Operation(operation["operationId"], template, operation["responses"]))
            for template, methods in sorted(document["paths"].items(), key=lambda item: item[0].count("{"))
            for method, operation in methods.items()
        ]
        # The document leaves these two open, as they are answers of other operations.
        problem = self._components["schemas"]["Problem"]["properties"]
        problem["receipt"] = {"$ref": "#/components/schemas/Receipt"}
        stands = ("DecisionAnswer", "SettlementAnswer")
        problem["record"] = {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in stands]}
        self._validator = cache(self._compiled)

    def broken(self, answer: Answer, live: Live) -> list[str]:
        """`METHOD template status place: rule` for everything that the answer should not hold."""
        operation = self._operation(answer)
        where = f"{answer.method} {operation.template if operation else '(no such operation)'} {answer.status}"
        found = [*self._not_allowed(answer, operation), *denied(answer, operation.id if operation else "", live)]
        return [f"{where} {place}: {rule}" for place, rule in dict.fromkeys(found)]

    def _operation(self, answer: Answer) -> Operation | None:
        found = (
            operation
            for asked in (answer.path, unquote(answer.path))
            for method, path, operation in self._operations
            if method == answer.method and path.fullmatch(asked)
        )
        return next(found, None)

    def _not_allowed(self, answer: Answer, operation: Operation | None) -> Iterator[tuple[str, str]]:
        documented = operation.responses.get(str(answer.status)) if operation else None
        if operation is not None and documented is None:
            yield "/", "undocumented status"
        yield from _odd_headers(answer, documented)
        if answer.method == "HEAD" or (answer.path == "/v1/openapi.json" and answer.status == 200):
            return
        if answer.media_type == EVENT_STREAM and documented and EVENT_STREAM in documented.get("content", {}):
            for data in answer.documents():
                yield from self._faults("#/components/schemas/EventAnswer", data)
            return
        content = documented.get("content", {}) if documented else _ONLY_PROBLEMS
        if answer.media_type in content:
            schema = content[answer.media_type].get("schema", {})
            if "json" in answer.media_type:
                yield from self._faults(json.dumps(_closed(schema)), answer.body)
        elif answer.body or (documented and content):
            yield "/", "undocumented content"

    def _faults(self, schema: str, body: bytes) -> Iterator[tuple[str, str]]:
        try:
            value = json.loads(body)
        except ValueError:
            yield "/", "not JSON"
            return
        for error in self._validator(schema).iter_errors(value):
            yield from _told(error)

    def _compiled(self, schema: str) -> jsonschema_rs.Draft202012Validator:
        asked = {"$ref": schema} if schema.startswith("#") else json.loads(schema)
        return jsonschema_rs.Draft202012Validator({**asked, "components": self._components})


_ONLY_PROBLEMS: Mapping[str, Json] = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


def _odd_headers(answer: Answer, documented: Json | None) -> Iterator[tuple[str, str]]:
    declared = cast(Json, documented.get("headers", {})) if documented else _HEADERS_OF_ALL
    allowed = {*_PROTOCOL_HEADERS, *map(str.lower, declared)}
    if answer.media_type == EVENT_STREAM:
        allowed |= _STREAM_HEADERS
    for name, _ in answer.headers:
        if name.lower() not in allowed:
            yield f"header {name.lower()}", "undocumented header"


def _told(error: jsonschema_rs.ValidationError) -> Iterator[tuple[str, str]]:
    """Where and which keyword; of alternatives, what is wrong with the one that fits best: the deepest fault."""
    kind = error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.AnyOf | jsonschema_rs.ValidationErrorKind.OneOfNotValid):
        within = [one for branch in kind.context for one in branch]
        deepest = max(within, key=_rank, default=None)
        if deepest is not None and _rank(deepest) > (len(error.instance_path), 0):
            yield from _told(deepest)
            return
    parts = ("[]" if isinstance(part, int) else shown_name(part) for part in error.instance_path)
    place = "".join(f"/{part}" for part in parts) or "/"
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.AdditionalProperties):
        yield from ((f"{place.rstrip('/')}/{shown_name(name)}", "not in the schema") for name in kind.unexpected)
    else:
        yield place, f"schema keyword {kind.name}"


def _rank(error: jsonschema_rs.ValidationError) -> tuple[int, int]:
    return len(error.instance_path), 0 if error.kind.name == "type" else 1


SLASHES = frozenset({"/v1/principals/{name}"})
"""Templates whose last part may hold slashes; OpenAPI can not say so."""


def _matching(template: str) -> re.Pattern[str]:
    if template in SLASHES:
        return re.compile(re.escape(template.partition("{")[0]) + ".+")
    parts: Iterable[str] = re.split(r"({[^}]*})", template)
    return re.compile("".join("[^/]+" if part.startswith("{") else re.escape(part) for part in parts))


def _closed(schema: Any) -> Any:
    """The schema with no room for what it does not name, at every depth."""
    if isinstance(schema, list):
        return [_closed(one) for one in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    known = {name: _closed(one) for name, one in cast(Json, schema).items()}
    if isinstance(known.get("properties"), dict) and known.get("type") == "object":
        known["additionalProperties"] = False
    return known
