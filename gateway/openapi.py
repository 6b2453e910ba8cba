"""The OpenAPI document: what FastAPI finds in the routes, and what holds for all of them at once.

Every operation has the problem responses that any request may get, the headers of every answer, and, but for the
health routes, the bearer scheme. Bodies that are read strictly by hand are described by their models.
"""

from collections.abc import Iterable
from typing import Any, cast

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from facade.documented import ProblemAnswer, refusals

Json = dict[str, Any]

DESCRIPTION = "Agent jobs that outlive an HTTP request. Accepted means kept; one key, one job, for ever."
PUBLIC = frozenset({"/livez", "/readyz", "/v1/callbacks/{token}", "/v1/artifacts/{artifact_id}/content"})
_HEADERS: Json = {
    "X-Request-Id": {"description": "Names this request in logs and problems.", "schema": {"type": "string"}},
    "traceparent": {"description": "W3C trace context.", "schema": {"type": "string"}},
}
_RETRY_AFTER: Json = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
_CHALLENGE: Json = {"WWW-Authenticate": {"schema": {"type": "string"}}}
_ALLOWED_HEADERS: dict[str, Json] = {
    "401": _CHALLENGE,
    "409": _RETRY_AFTER,
    "429": _RETRY_AFTER,
    "503": _RETRY_AFTER,
}
_SENT: Iterable[Json] = (
    {"name": "X-Request-Id", "in": "header", "schema": {"type": "string", "pattern": "^[A-Za-z0-9-]{1,64}$"}},
    {"name": "traceparent", "in": "header", "schema": {"type": "string"}},
)


def describe(app: FastAPI, bodies: Iterable[type[BaseModel]]) -> Json:
    """The whole document; the same for the same routes."""
    document: Json = get_openapi(
        title="Jobgate", version=app.version, description=DESCRIPTION, routes=app.routes, openapi_version="3.1.0"
    )
    for path, operations in cast(dict[str, dict[str, Json]], document["paths"]).items():
        for operation in operations.values():
            _complete(operation, public=path in PUBLIC)
    components: Json = document.setdefault("components", {})
    schemas: Json = components.setdefault("schemas", {})
    for left in ("HTTPValidationError", "ValidationError"):
        schemas.pop(left, None)
    _, added = models_json_schema(
        [(model, "validation") for model in (ProblemAnswer, *bodies)], ref_template="#/components/schemas/{model}"
    )
    found = cast(Json, added.get("$defs", {}))
    found["Problem"] = found.pop("ProblemAnswer", None) or found["Problem"]
    components["schemas"] = dict(sorted({**found, **schemas}.items()))
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
    return document


def _complete(operation: Json, *, public: bool) -> None:
    if not public:
        operation["security"] = [{"bearer": []}]
    operation["parameters"] = [*operation.get("parameters", []), *_SENT]
    own: Json = operation["responses"]
    if "HTTPValidationError" in str(own.get("422")):
        del own["422"]
    common = {str(status): response for status, response in refusals(public=public).items()}
    operation["responses"] = {status: {**response} for status, response in sorted({**common, **own}.items())}
    for status, response in operation["responses"].items():
        response["headers"] = {**_HEADERS, **_ALLOWED_HEADERS.get(status, {}), **response.get("headers", {})}
