"""How refusals look in the OpenAPI document: one schema, and for each route the codes that are its own."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue

from facade.views import Rung
from workflows.contract.errors import PROBLEMS, ProblemCode
from workflows.contract.gates import Blocker, Eligibility, Phase
from workflows.contract.job import Executed

PROBLEM_JSON = "application/problem+json"
AT_THE_DOOR = (ProblemCode.TOO_MANY_REQUESTS, ProblemCode.STOPPING, ProblemCode.HTTP_DEADLINE_EXCEEDED)
"""Before anything was done: what every route but the health ones may answer."""
EVERYWHERE = (
    ProblemCode.UNAUTHENTICATED,
    ProblemCode.INPUT_INVALID,
    ProblemCode.INTERNAL,
    ProblemCode.ENGINE_UNAVAILABLE,
    ProblemCode.LEDGER_UNAVAILABLE,
    ProblemCode.BLOBS_UNAVAILABLE,
    *AT_THE_DOOR,
)
JOB = (ProblemCode.NOT_PERMITTED, ProblemCode.NOT_FOUND, ProblemCode.JOB_EXPIRED, ProblemCode.ADMISSION_UNKNOWN)
"""What every read of one job may answer."""

Responses = dict[int | str, dict[str, Any]]


class ProblemAnswer(BaseModel):
    """RFC 9457. `code` is from a closed list; `instance` is the request id. `receipt` is that of an expired job,
    `record` what stands for a decided request, `current` the release that stands, `file` and `line` where a bundle's
    fault is, `ready` and `rungs` are of /readyz."""

    model_config = ConfigDict(title="Problem", extra="allow")

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: ProblemCode
    retryable: bool
    retry_after_s: int | None = None
    eligibility: Eligibility | None = None
    blocker: Blocker | None = None
    executed: Executed | None = None
    next_gate: Phase | None = None
    not_yet: str | None = None
    missing: list[str] | None = None
    groups: list[str] | None = None
    receipt: dict[str, JsonValue] | None = None
    record: dict[str, JsonValue] | None = None
    limit: str | None = None
    current: str | None = None
    file: str | None = None
    line: int | None = None
    ready: bool | None = None
    rungs: list[Rung] | None = None


def refusals(*codes: ProblemCode, public: bool = False) -> Responses:
    """The problem responses of a route: its own `codes`, and those that every route may give."""
    own = {*codes, *EVERYWHERE} if not public else {*codes, ProblemCode.INPUT_INVALID, ProblemCode.INTERNAL}
    ordered = sorted(own, key=lambda code: (PROBLEMS[code].status, code))
    grouped = groupby(ordered, key=lambda code: PROBLEMS[code].status)
    return {status: _response(list(of_status)) for status, of_status in grouped}


def _response(codes: Iterable[ProblemCode]) -> dict[str, Any]:
    examples = {
        code.value: {
            "value": {
                "type": f"urn:jobgate:problem:{code}",
                "title": PROBLEMS[code].title,
                "status": PROBLEMS[code].status,
                "detail": PROBLEMS[code].title + ".",
                "instance": "4c1f9d2e8b7a4f60a1d3c5e7f9b0d2c4",
                "code": code.value,
                "retryable": PROBLEMS[code].retryable,
            }
        }
        for code in codes
    }
    named = ", ".join(f"`{code}`" for code in codes)
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": named, "content": {PROBLEM_JSON: {"schema": schema, "examples": examples}}}
