"""Apps change things here: submit a job, cancel one. Reading is the facade's."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel

from facade.documented import Responses, refusals
from gateway.admission import Admitted
from gateway.canceling import CancelAnswer, cancel_job
from gateway.doors import At, By, body_of, json_body, need_scope, read_body, request_clock
from gateway.jobrequest import JobRequest, RetryIn, read_key
from gateway.scopes import Action
from workflows.contract.errors import ProblemCode as P
from workflows.contract.gates import Blocker, Eligibility
from workflows.contract.job import Executed, Mode, PluginRef, Status

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


class Receipt(BaseModel):
    """Proof of admission: the same bytes for the same key, for ever."""

    job_id: str
    status: Status
    mode: Mode
    eligibility: Eligibility
    blocker: Blocker | None
    executed: Executed
    accepted_at: str
    deadline: str
    fingerprint: str
    plugin: PluginRef
    snapshot: str
    session: str | None
    retry_of: str | None


_SUBMIT: dict[str, Any] = {
    **body_of(JobRequest),
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": True,
            "description": "1 to 200 of A-Z a-z 0-9 . _ ~ - with a letter or digit. It is the job's id, for ever.",
            "schema": {"type": "string", "pattern": "^[A-Za-z0-9._~-]{1,200}$"},
        }
    ],
}


_RECEIPT_HEADERS: dict[str, Any] = {
    "Location": {"description": "The job.", "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}},
}
_REPLAY_HEADERS: dict[str, Any] = {
    "Location": _RECEIPT_HEADERS["Location"],
    "Idempotent-Replayed": {"description": "`true`", "schema": {"type": "string"}},
}
_OF_ADMISSION = (
    P.IDEMPOTENCY_KEY_MISSING,
    P.IDEMPOTENCY_KEY_INVALID,
    P.NOT_PERMITTED,
    P.PLUGIN_UNKNOWN,
    P.BLOCKED,
    P.LOCAL_ONLY,
    P.ADMISSION_EXPIRED,
    P.KEY_TAKEN_OUTSIDE,
    P.PAYLOAD_TOO_LARGE,
    P.UNSUPPORTED_MEDIA_TYPE,
    P.IDEMPOTENCY_KEY_REUSED,
    P.DEADLINE_INVALID,
    P.LIMIT_EXCEEDED,
    P.ADMISSION_UNKNOWN,
)
_SUBMIT_ANSWERS: Responses = {
    202: {"description": "Accepted: the call that created the job.", "headers": _RECEIPT_HEADERS},
    200: {"model": Receipt, "description": "The first receipt again, to the byte.", "headers": _REPLAY_HEADERS},
    **refusals(*_OF_ADMISSION, P.NOT_LIVE_APPROVED),
}
_RETRY_ANSWERS: Responses = {
    **_SUBMIT_ANSWERS,
    **refusals(*_OF_ADMISSION, P.NOT_FOUND, P.JOB_EXPIRED, P.JOB_NOT_ENDED, P.EFFECT_UNRECONCILED),
}
_CANCEL_ANSWERS: Responses = {
    202: {"description": "The job was open; what is in flight is named."},
    200: {"model": CancelAnswer, "description": "The job had ended."},
    **refusals(P.NOT_PERMITTED, P.NOT_FOUND, P.JOB_EXPIRED, P.ADMISSION_UNKNOWN),
}


@router.post(
    "",
    operation_id="submitJob",
    status_code=202,
    response_model=Receipt,
    responses=_SUBMIT_ANSWERS,
    openapi_extra=_SUBMIT,
)
async def submit(
    request: Request,
    doors: At,
    caller: By,
    deadline: Annotated[str | None, Header(alias="Jobgate-Http-Deadline", description="The request clock.")] = None,
) -> Response:
    """Accept a job. 202 with its receipt; the same key and content again: 200 and the same bytes."""
    until = request_clock(request, doors.settings)
    need_scope(caller, Action.JOBS_SUBMIT)
    key = read_key(request.headers.getlist("idempotency-key"))
    return _admitted(await doors.admission.admit(caller, key, await json_body(request, until), until))


@router.post(
    "/{job_id}/retry",
    operation_id="retryJob",
    status_code=202,
    response_model=Receipt,
    responses=_RETRY_ANSWERS,
    openapi_extra={**_SUBMIT, **body_of(RetryIn)},
)
async def retry(
    job_id: str,
    request: Request,
    doors: At,
    caller: By,
    deadline: Annotated[str | None, Header(alias="Jobgate-Http-Deadline", description="The request clock.")] = None,
) -> Response:
    """Run a job that has ended once more, as a job of its own; what took effect is not repeated without a decision."""
    until = request_clock(request, doors.settings)
    need_scope(caller, Action.JOBS_SUBMIT)
    key = read_key(request.headers.getlist("idempotency-key"))
    asked = await read_body(request, RetryIn, until)
    return _admitted(await doors.admission.retry(caller, key, job_id, asked, until))


@router.post(
    "/{job_id}/cancel",
    operation_id="cancelJob",
    status_code=202,
    response_model=CancelAnswer,
    responses=_CANCEL_ANSWERS,
)
async def cancel(job_id: str, request: Request, doors: At, caller: By) -> Response:
    """Stop a job, all the way down; idempotent. 202 while it is open, 200 when it had ended."""
    open_, answer = await cancel_job(doors, caller, job_id, request_clock(request, doors.settings))
    return Response(answer.model_dump_json(), 202 if open_ else 200, media_type="application/json")


def _admitted(admitted: Admitted) -> Response:
    headers = {"Location": f"/v1/jobs/{admitted.job_id}", "Retry-After": "1"}
    if not admitted.created:
        headers = {"Location": headers["Location"], "Idempotent-Replayed": "true"}
    return Response(admitted.receipt, 202 if admitted.created else 200, headers, "application/json")
