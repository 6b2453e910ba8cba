"""What an answer of the API may hold: the allow-list, which is the OpenAPI document with every object closed, and the
deny-list, which is internal words and the live values of the running stack (api.md: "Never in any answer to an app").

Pure: it judges one answer and says route, place and rule, never what stood there. Who hears answers is `overheard.py`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast
from urllib.parse import unquote

import jsonschema_rs

from workflows.contract.events import EVENT_DATA

Json = dict[str, Any]
EVENT_STREAM = "text/event-stream"

_PROTOCOL_HEADERS = frozenset({"date", "content-length", "content-type", "connection", "transfer-encoding"})
_STREAM_HEADERS = frozenset({"cache-control", "x-accel-buffering"})
_HEADERS_OF_ALL = ("X-Request-Id", "traceparent", "Allow", "WWW-Authenticate", "Retry-After")
"""Of an answer that no operation declares: an unknown address or method."""

_OPERATORS = re.compile(
    r"/v1/operator/.*|/v1/runtime/.*|/readyz|/metrics|/v1/audit|/v1/openapi\.json|/v1/smokes.*"
    r"|.*/(?:readiness|simulations|promotions|demotions)"
)
"""Views for operators: there workers, lanes and ids of the engine are the point. Secrets are denied there too."""

_THEIRS = frozenset({"args", "content", "labels", "result"})
"""Members that hold what users, models and tools said, in their own words."""
_NAMES = frozenset(
    {"agent", "by", "decided_by", "id", "job_id", "jobs", "name", "open_job", "plugin", "principal", "retry_of"}
) | frozenset({"session", "tool", "workspace"})
"""Members that hold names which people chose."""

_CONTRACTS = frozenset({"worker_executed"})
"""Names that api.md itself gives to members."""
_SAID_TO_OPERATORS = frozenset({("deployPlugin", "host")})
"""(operation, rule): a deployment's own base_url has a host."""
_ALL_THEIRS = "getResult"

_WORDS: Mapping[str, re.Pattern[str]] = {
    rule: re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE)
    for rule, words in {
        "worker": "workers?",
        "task queue": r"task[ _-]?queues?|sticky|pollers?",
        "run id": r"run[ _-]?ids?|workflow[ _-]?ids?",
        "build id": r"build[ _-]?ids?",
        "lane": "lanes?",
        "route": "routes?",
        "host": r"hosts?|hostnames?|localhost|127\.0\.0\.1",
        "stack": r"stack|stack ?traces?|traceback.*",
        "engine": r"temporal(?:io)?|activity|activities|heartbeats?|namespaces?|grpc|sdk",
        "library": r"sqlalchemy|sqlite3?|aiosqlite|psycopg|pydantic(?:_ai)?|httpx2?|asyncio|uvicorn|starlette|fastapi",
    }.items()
}
_SHAPES: Mapping[str, re.Pattern[str]] = {
    "exception name": re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b|\bRPCError\b"),
    "file path": re.compile(r"(?<![\w/:.-])/(?:home|work|tmp|usr|etc|var|root|opt|proc|srv|mnt)/|\bFile \"|\.py\b"),
    "worker identity": re.compile(r"\b\d+@[\w.-]+"),
    "workflow id": re.compile(r"(?<![\w.-])demo\.[A-Za-z0-9]"),
}
_WRITTEN: Mapping[str, re.Pattern[str]] = {**_WORDS, **_SHAPES}
_SECRETS: Mapping[str, re.Pattern[bytes]] = {
    "signed token": re.compile(rb"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\."),
    "API key": re.compile(rb"jgk_[0-9A-Za-z]{12}_[\w-]{8,}"),
    "callback token": re.compile(rb"(?<![\w-])(?=[\w-]*[A-Z])(?=[\w-]*[a-z])(?=[\w-]*\d)[\w-]{64}(?![\w-])"),
}
_SHOWS_A_KEY = "createApiKey"
_SIGNATURE = re.compile(rb"[\w-]{40,}")
_ID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PLAIN = re.compile(r"[a-z][a-z_]{0,30}")
"""Names of ours look like this; another may be somebody's secret and is not shown."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, whole. `path` is as sent, without query; of a stream, `body` holds what came until it was left."""

    method: str
    path: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")

    @property
    def media_type(self) -> str:
        return self.header("content-type").partition(";")[0].strip()

    def documents(self) -> Iterator[bytes]:
        """The body, or of a stream the data of every whole frame that has any."""
        if self.media_type != EVENT_STREAM:
            yield self.body
            return
        for frame in self.body.replace(b"\r\n", b"\n").split(b"\n\n")[:-1]:
            lines = [line[5:].removeprefix(b" ") for line in frame.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield b"\n".join(lines)


@dataclass(slots=True)
class Live:
    """Values of the running stacks, and what each is. `places` may be known to operators, `secrets` to nobody."""

    places: dict[str, str] = field(default_factory=dict[str, str])
    secrets: dict[str, str] = field(default_factory=dict[str, str])
    signatures: set[bytes] = field(default_factory=set[bytes])
    """The last parts of signed tokens."""


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
        problem["record"] = {"$ref": "#/components/schemas/DecisionAnswer"}
        self._validator = cache(self._compiled)

    def broken(self, answer: Answer, live: Live) -> list[str]:
        """`METHOD template status place: rule` for everything that the answer should not hold."""
        operation = self._operation(answer)
        where = f"{answer.method} {operation.template if operation else '(no such operation)'} {answer.status}"
        found = [*self._not_allowed(answer, operation), *_denied(answer, operation, live)]
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


def ids_in(answer: Answer) -> set[bytes]:
    """What looks like an id of the engine in an answer that an app may see, to be compared later with its run ids."""
    return set() if _OPERATORS.fullmatch(answer.path) else set(_ID.findall(answer.body))


def _odd_headers(answer: Answer, documented: Json | None) -> Iterator[tuple[str, str]]:
    declared = cast(Json, documented.get("headers", {})) if documented else _HEADERS_OF_ALL
    allowed = {*_PROTOCOL_HEADERS, *map(str.lower, declared)}
    if answer.media_type == EVENT_STREAM:
        allowed |= _STREAM_HEADERS
    for name, _ in answer.headers:
        if name.lower() not in allowed:
            yield f"header {name.lower()}", "undocumented header"


def _denied(answer: Answer, operation: Operation | None, live: Live) -> Iterator[tuple[str, str]]:
    whole = b"\n".join([answer.body, *(value.encode("utf-8", "replace") for _, value in answer.headers)])
    for rule, shape in _SECRETS.items():
        shown = rule == "API key" and operation is not None and operation.id == _SHOWS_A_KEY
        if not shown and shape.search(whole):
            yield "/", rule
    if not live.signatures.isdisjoint(_SIGNATURE.findall(whole)):
        yield "/", "signature of a token"
    text = whole.decode("utf-8", "replace")
    yield from (("/", what) for value, what in live.secrets.items() if value in text)
    if _OPERATORS.fullmatch(answer.path):
        return
    for value, what in live.places.items():
        if value in text and re.search(rf"(?<![\w.-]){re.escape(value)}(?![\w-])", text):
            yield "/", what
    asked = operation.id if operation else ""
    if asked == _ALL_THEIRS and answer.status == 200:
        return
    for body in answer.documents():
        for place, said in _texts(_read(body), ""):
            broken = (rule for rule, shape in _WRITTEN.items() if shape.search(said))
            yield from ((place or "/", rule) for rule in broken if (asked, rule) not in _SAID_TO_OPERATORS)


def _read(body: bytes) -> Any:
    """JSON, else the text itself."""
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Every member's name and every text that we wrote ourselves, with its place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for one in cast(list[Any], value):
            yield from _texts(one, f"{place}/[]")
    elif isinstance(value, dict):
        for name, one in cast(Json, value).items():
            there = f"{place}/{_shown(name)}"
            if name not in _CONTRACTS:
                yield there, name.replace("_", " ")
            if name not in _THEIRS and not (name in _NAMES and _is_names(one)):
                yield from _texts(one, there)


def _is_names(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(one, str) for one in cast(list[Any], value))
    )


def _told(error: jsonschema_rs.ValidationError) -> Iterator[tuple[str, str]]:
    """Where and which keyword; of alternatives, what is wrong with the one that fits best: the deepest fault."""
    kind = error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.AnyOf | jsonschema_rs.ValidationErrorKind.OneOfNotValid):
        within = [one for branch in kind.context for one in branch]
        deepest = max(within, key=_rank, default=None)
        if deepest is not None and _rank(deepest) > (len(error.instance_path), 0):
            yield from _told(deepest)
            return
    parts = ("[]" if isinstance(part, int) else _shown(part) for part in error.instance_path)
    place = "".join(f"/{part}" for part in parts) or "/"
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.AdditionalProperties):
        yield from ((f"{place.rstrip('/')}/{_shown(name)}", "not in the schema") for name in kind.unexpected)
    else:
        yield place, f"schema keyword {kind.name}"


def _rank(error: jsonschema_rs.ValidationError) -> tuple[int, int]:
    return len(error.instance_path), 0 if error.kind.name == "type" else 1


def _shown(part: str) -> str:
    return part if _PLAIN.fullmatch(part) else "*"


def _matching(template: str) -> re.Pattern[str]:
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
