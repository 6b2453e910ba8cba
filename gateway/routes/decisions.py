"""POST a decision on a request; who may, and what comes of it, is gateway/deciding.py's."""

from fastapi import APIRouter, Request, Response

from facade.documented import JOB, refusals
from gateway.deciding import decide_request
from gateway.doors import At, By, body_of, read_body, request_clock
from gateway.verdicts import DecisionAnswer, DecisionIn
from workflows.contract.errors import ProblemCode

__all__ = ["DecisionIn", "router"]

router = APIRouter(tags=["requests"])

_REFUSED = refusals(
    *JOB,
    ProblemCode.NOT_AN_APPROVER,
    ProblemCode.SELF_APPROVAL,
    ProblemCode.ALREADY_DECIDED,
    ProblemCode.REQUEST_VOIDED,
    ProblemCode.JOB_ENDED,
    ProblemCode.REQUEST_EXPIRED,
    ProblemCode.ACTION_DIGEST_MISMATCH,
    ProblemCode.PAYLOAD_TOO_LARGE,
    ProblemCode.UNSUPPORTED_MEDIA_TYPE,
)


@router.post(
    "/v1/jobs/{job_id}/requests/{request_id}/decision",
    operation_id="decide",
    response_model=DecisionAnswer,
    responses={
        202: {
            "model": DecisionAnswer,
            "description": "It stands; the job has not recorded it yet.",
            "headers": {"Location": {"description": "The request.", "schema": {"type": "string"}}},
        },
        **_REFUSED,
    },
    openapi_extra=body_of(DecisionIn),
)
async def decide(job_id: str, request_id: str, request: Request, doors: At, caller: By) -> Response:
    """Approve, reject, answer or settle exactly what the request shows; the same person repeating it gets the same."""
    until, body = request_clock(request, doors.settings), await read_body(request, DecisionIn)
    window = request.app.state.serving.window
    recorded, answer = await decide_request(doors, window, caller, job_id, request_id, body, until)
    where = {} if recorded else {"Location": f"/v1/jobs/{answer.job_id}/requests/{answer.request_id}"}
    return Response(answer.model_dump_json(), 200 if recorded else 202, where, "application/json")
