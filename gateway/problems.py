"""Every error of every route as `application/problem+json` (RFC 9457), and the handlers that make it so.

A problem names a code, a fixed title and a composed sentence. It never repeats input, and of an exception it says
nothing: a crash is logged and answered as `internal`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from facade.documented import PROBLEM_JSON
from gateway.telemetry import log
from workflows.contract.errors import JobgateError, ProblemCode, Refused

REQUEST_ID = "jobgate.request_id"
"""The key in an ASGI scope under which this request's id is."""

_BY_STATUS: Mapping[int, ProblemCode] = {
    400: ProblemCode.INPUT_INVALID,
    401: ProblemCode.UNAUTHENTICATED,
    403: ProblemCode.NOT_PERMITTED,
    404: ProblemCode.NOT_FOUND,
    405: ProblemCode.METHOD_NOT_ALLOWED,
    413: ProblemCode.PAYLOAD_TOO_LARGE,
    415: ProblemCode.UNSUPPORTED_MEDIA_TYPE,
    422: ProblemCode.INPUT_INVALID,
    429: ProblemCode.TOO_MANY_REQUESTS,
}
_DETAIL: Mapping[ProblemCode, str] = {
    ProblemCode.NOT_FOUND: "There is nothing at this address.",
    ProblemCode.METHOD_NOT_ALLOWED: "This address does not take this method; see the Allow header.",
}


def problem_response(refused: Refused, request_id: str, headers: Mapping[str, str] | None = None) -> Response:
    """The document and its headers: WWW-Authenticate with 401, Retry-After where the refusal names a time, and the end
    of the connection where the process ends."""
    document: dict[str, Any] = {
        "type": f"urn:jobgate:problem:{refused.code}",
        "title": refused.problem.title,
        "status": refused.problem.status,
        "detail": refused.detail,
        "instance": request_id,
        "code": refused.code,
        "retryable": refused.problem.retryable,
        **({"retry_after_s": refused.retry_after_s} if refused.retry_after_s is not None else {}),
        **refused.extras,
    }
    sent = dict(headers or {})
    if refused.problem.status == 401:
        sent["WWW-Authenticate"] = 'Bearer realm="jobgate"'
    if refused.code == ProblemCode.STOPPING:
        sent["Connection"] = "close"  # whoever asks again connects anew, and that elsewhere
    if refused.retry_after_s is not None:
        sent["Retry-After"] = str(refused.retry_after_s)
    return Response(to_json(document), refused.problem.status, sent, PROBLEM_JSON)


def internal() -> Refused:
    return Refused(ProblemCode.INTERNAL, "Something failed inside Jobgate. Tell the operator this request's id.")


def clock_ran_out() -> Refused:
    return Refused(ProblemCode.HTTP_DEADLINE_EXCEEDED, "The request clock ran out before there was an answer.")


def install_problems(app: FastAPI) -> None:
    """The handlers of refusals, validation faults, unknown routes and methods; crashes are the envelope's."""
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(JobgateError, _fault)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)


def invalid_parameters(faults: Sequence[Mapping[str, Any]]) -> Refused:
    """Names the parameter and the rule, never the value."""
    fault = faults[0]
    where = [str(part) for part in fault["loc"]]
    if where[:1] in (["query"], ["header"], ["path"]) and len(where) > 1:
        rule = "is missing" if fault["type"] == "missing" else "is not a value that this parameter takes"
        return Refused(ProblemCode.INPUT_INVALID, f"The {where[0]} parameter {where[1]} {rule}.")
    return Refused(ProblemCode.INPUT_INVALID, "The body is not what this address takes.")


def request_id_of(scope: Scope) -> str:
    return cast(str, scope.get(REQUEST_ID, ""))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    if error.code == ProblemCode.INTERNAL:
        log.error("a request failed", exc_info=error)
    return problem_response(error, request_id_of(request.scope))


async def _fault(request: Request, error: Exception) -> Response:
    """An error of ours that no route turned into a refusal, such as a blob that is not what its name says."""
    log.error("a request failed", exc_info=error)
    return problem_response(internal(), request_id_of(request.scope))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem_response(invalid_parameters(error.errors()), request_id_of(request.scope))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _BY_STATUS.get(error.status_code, ProblemCode.INTERNAL)
    refused = Refused(code, _DETAIL.get(code, "The request can not be read."))
    headers = {"Allow": ", ".join(_allowed(request))} if code is ProblemCode.METHOD_NOT_ALLOWED else None
    return problem_response(refused, request_id_of(request.scope), headers)


def _allowed(request: Request) -> list[str]:
    """The methods of all routes at this address; Starlette would name those of the first one only."""
    found: set[str] = set()
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            found.add(method)
    return sorted(found)
