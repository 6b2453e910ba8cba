"""POST a vendor's answer to a callback tool. The token in the address is the only proof, so no caller is asked for."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from facade.documented import AT_THE_DOOR, refusals
from gateway.callbacks import Said
from gateway.doors import Anybody, At, json_body, request_clock
from gateway.ledger.callbacks import CallOutcome
from gateway.strictjson import parse_json
from workflows.contract.errors import ProblemCode as P
from workflows.contract.errors import Refused

router = APIRouter(tags=["callbacks"])

OUTCOME = "Jobgate-Outcome"


class CallbackAnswer(BaseModel):
    """The answer is kept. `outcome` is as what it counts: a read whose text could not be kept is `failed`."""

    outcome: Literal["ok", "failed"]


_DOCUMENTED: dict[str, Any] = {
    "parameters": [
        {
            "name": OUTCOME,
            "in": "header",
            "required": False,
            "description": "`failed` where the call did not succeed; absent: `ok`.",
            "schema": {"type": "string", "enum": ["ok", "failed"], "default": "ok"},
        }
    ],
    "requestBody": {
        "required": True,
        "description": "The tool's result, any JSON.",
        "content": {"application/json": {"schema": {}, "examples": {"result": {"value": {"refund": "re_1"}}}}},
    },
}
_REFUSED = refusals(
    P.NOT_FOUND,
    P.CALLBACK_ANSWERED,
    P.CALLBACK_OVER,
    P.PAYLOAD_TOO_LARGE,
    P.UNSUPPORTED_MEDIA_TYPE,
    P.INPUT_INVALID,
    P.LEDGER_UNAVAILABLE,
    P.BLOBS_UNAVAILABLE,
    *AT_THE_DOOR,
    public=True,
)


@router.post(
    "/v1/callbacks/{token}",
    operation_id="answerCallback",
    response_model=CallbackAnswer,
    responses=_REFUSED,
    openapi_extra=_DOCUMENTED,
    dependencies=[Anybody],
)
async def answer(token: str, request: Request, doors: At) -> Response:
    """The result of a call that was answered with 202. Once; a refused body leaves the token good."""
    until = request_clock(request, doors.settings)
    try:
        async with asyncio.timeout_at(until):
            awaited = await doors.callbacks.awaited(token)
            outcome = outcome_of(request.headers.getlist(OUTCOME))
            said = Said(outcome, parse_json(await json_body(request, until)))
            counted = await doors.callbacks.answer(awaited, said)
    except TimeoutError:
        raise Refused(
            P.HTTP_DEADLINE_EXCEEDED, "The request clock ran out; send the answer again to learn whether it is kept."
        ) from None
    await doors.callbacks.tell(awaited.row)
    told = CallbackAnswer(outcome="ok" if counted == "ok" else "failed")
    return Response(told.model_dump_json(), media_type="application/json")


def outcome_of(given: Sequence[str]) -> CallOutcome:
    """Raises Refused(INPUT_INVALID) for anything but one of the two words."""
    match [word.strip() for word in given]:
        case [] | ["ok"]:
            return "ok"
        case ["failed"]:
            return "error"
        case _:
            raise Refused(P.INPUT_INVALID, f"{OUTCOME}: ok or failed, once.")
