"""POST a decision on a request, or what came of a write whose job has ended; who may, and what comes of it, is
gateway/deciding.py's and gateway/settling.py's."""

from fastapi import APIRouter, Request, Response

from facade.documented import JOB, refusals
from gateway.deciding import decide_request
from gateway.doors import At, By, body_of, read_body, request_clock
from gateway.settling import SettlementAnswer, SettlementIn, settle_effect
from gateway.verdicts import DecisionAnswer, DecisionIn
from workflows.contract.errors import ProblemCode

__all__ = ["DecisionIn", "SettlementIn", "router"]

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


@router.post(
    "/v1/jobs/{job_id}/effects/{effect_id}/settlement",
    operation_id="settleEffect",
    response_model=SettlementAnswer,
    responses=refusals(
        ProblemCode.NOT_PERMITTED,
        ProblemCode.NOT_FOUND,
        ProblemCode.ADMISSION_UNKNOWN,
        ProblemCode.NOT_AN_APPROVER,
        ProblemCode.SELF_APPROVAL,
        ProblemCode.BLOCKED,
        ProblemCode.JOB_NOT_ENDED,
        ProblemCode.EFFECT_UNRECONCILED,
        ProblemCode.ALREADY_DECIDED,
        ProblemCode.PAYLOAD_TOO_LARGE,
        ProblemCode.UNSUPPORTED_MEDIA_TYPE,
    ),
    openapi_extra=body_of(SettlementIn),
)
async def settle(job_id: str, effect_id: str, request: Request, doors: At, caller: By) -> Response:
    """Say what came of a write that its job, which has ended, left unknown; then the job can be retried."""
    until, body = request_clock(request, doors.settings), await read_body(request, SettlementIn)
    window = request.app.state.serving.window
    answer = await settle_effect(doors, window, caller, job_id, effect_id, body, until)
    return Response(answer.model_dump_json(), media_type="application/json")
