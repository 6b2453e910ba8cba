"""Operators move phases of versions and of the runtime: propose, approve, demote. Judged in gateway/promoting.py."""

from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from facade.documented import refusals
from gateway import plugins
from gateway.doors import At, By, body_of, read_body
from gateway.promoting import Climber, approve, demote, propose
from workflows.contract.errors import ProblemCode as P
from workflows.contract.gates import Phase

router = APIRouter(prefix="/v1", tags=["promotions"])

Reason = Annotated[str, Field(min_length=1, max_length=2000)]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class BreakGlass(_Body):
    reason: Reason


class PromotionIn(_Body):
    """`evidence` is a note for people, which the audit trail keeps; what counts is what the system itself recorded."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"to": "stateful_noop", "evidence": {"ticket": "OPS-12"}},
                {"to": "live", "break_glass": {"reason": "The shop is down for refunds; see INC-7."}},
            ]
        }
    )

    to: Phase
    evidence: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    release_held: bool = False
    break_glass: BreakGlass | None = None


class DemotionIn(_Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"to": "blocked_noop", "reason": "Refunds are wrong since noon."}]}
    )

    to: Phase
    reason: Reason


class Promoted(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"promotion_id": "promo_0c1f", "state": "proposed", "phase": "stateful_noop"}]}
    )

    promotion_id: str
    state: Literal["proposed", "done"]
    phase: Phase


class DemotedAnswer(BaseModel):
    """`open_jobs`: jobs that were running or held; `message` says what happens to them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "promotion_id": "promo_0c20",
                    "phase": "blocked_noop",
                    "previous": "live",
                    "open_jobs": 0,
                    "message": "No job is open.",
                }
            ]
        }
    )

    promotion_id: str
    phase: Phase
    previous: Phase
    open_jobs: int
    message: str


_BODY = (P.PAYLOAD_TOO_LARGE, P.UNSUPPORTED_MEDIA_TYPE)
_OF_VERSION = refusals(P.NOT_PERMITTED, P.PLUGIN_UNKNOWN, P.GATE_NOT_MET, *_BODY)
_OF_RUNTIME = refusals(P.NOT_PERMITTED, P.GATE_NOT_MET, *_BODY)


@router.post(
    "/plugins/{name}/versions/{version}/promotions",
    operation_id="promoteVersion",
    status_code=201,
    responses=_OF_VERSION,
    openapi_extra=body_of(PromotionIn),
)
async def promote_version(name: str, version: str, request: Request, doors: At, caller: By) -> Promoted:
    """Propose the next rung for a version; with `break_glass` any higher one, done at once."""
    climber = Climber(caller.workspace, plugins.plugin_name(name), version)
    return await _promote(request, doors, caller, climber)


@router.post(
    "/runtime/promotions",
    operation_id="promoteRuntime",
    status_code=201,
    responses=_OF_RUNTIME,
    openapi_extra=body_of(PromotionIn),
)
async def promote_runtime(request: Request, doors: At, caller: By) -> Promoted:
    """The same for the runtime, whose phase rules every version that stands higher."""
    return await _promote(request, doors, caller, Climber(caller.workspace))


@router.post(
    "/promotions/{promotion_id}/approval",
    operation_id="approvePromotion",
    responses=refusals(P.NOT_PERMITTED, P.NOT_FOUND, P.SELF_APPROVAL, P.GATE_NOT_MET),
)
async def approve_promotion(promotion_id: str, doors: At, caller: By) -> Promoted:
    """Approve a proposal of somebody else; its gate is judged once more. Repeating it changes nothing."""
    row = await approve(doors, caller, promotion_id)
    return Promoted(promotion_id=row.promotion_id, state=row.state, phase=row.phase)


@router.post(
    "/plugins/{name}/versions/{version}/demotions",
    operation_id="demoteVersion",
    responses=_OF_VERSION,
    openapi_extra=body_of(DemotionIn),
)
async def demote_version(name: str, version: str, request: Request, doors: At, caller: By) -> DemotedAnswer:
    """Down at once: from now on no call of this version gets a permit above its phase."""
    climber = Climber(caller.workspace, plugins.plugin_name(name), version)
    return await _demote(request, doors, caller, climber)


@router.post(
    "/runtime/demotions",
    operation_id="demoteRuntime",
    responses=_OF_RUNTIME,
    openapi_extra=body_of(DemotionIn),
)
async def demote_runtime(request: Request, doors: At, caller: By) -> DemotedAnswer:
    """The same for the runtime, and so for every version."""
    return await _demote(request, doors, caller, Climber(caller.workspace))


async def _promote(request: Request, doors: At, caller: By, climber: Climber) -> Promoted:
    asked = await read_body(request, PromotionIn)
    done = await propose(
        doors,
        caller,
        climber,
        asked.to,
        note=asked.evidence,
        break_glass=None if asked.break_glass is None else asked.break_glass.reason,
        release_held=asked.release_held,
    )
    return Promoted(promotion_id=done.promotion_id, state=done.state, phase=done.phase)


async def _demote(request: Request, doors: At, caller: By, climber: Climber) -> DemotedAnswer:
    asked = await read_body(request, DemotionIn)
    done = await demote(doors, caller, climber, asked.to, asked.reason)
    return DemotedAnswer(
        promotion_id=done.promotion.promotion_id,
        phase=done.promotion.phase,
        previous=done.previous,
        open_jobs=done.open_jobs,
        message=_what_becomes_of(done.open_jobs),
    )


def _what_becomes_of(open_jobs: int) -> str:
    if not open_jobs:
        return "No job is open."
    count = "1 job is open." if open_jobs == 1 else f"{open_jobs} jobs are open."
    return f"{count} What runs is refused its next call and ends; what is held goes on waiting until its deadline."
