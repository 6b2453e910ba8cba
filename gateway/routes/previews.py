"""What would be: previews for apps, simulations for operators. Judged in gateway/previewing.py and simulating.py."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Request
from pydantic import BaseModel, ConfigDict, Field

from facade.documented import JOB, Responses, refusals
from gateway.doors import At, By, body_of, json_body, need_scope, request_clock
from gateway.jobrequest import JobRequest
from gateway.previewing import Outlook, preview_job, preview_submission
from gateway.scopes import Action
from gateway.seams import Seen
from gateway.simulating import Simulation, simulate
from workflows.contract.errors import ProblemCode as P
from workflows.contract.events import Timestamp
from workflows.contract.gates import Blocker, Eligibility, Phase
from workflows.contract.job import Status

router = APIRouter(prefix="/v1", tags=["previews"])


class SideEffects(BaseModel):
    """Measured during this very call: what was tried, and refused. All false is the rule."""

    worker_executed: bool
    state_mutated: bool
    process_started: bool
    approval_consumed: bool
    config_changed: bool
    phase_promoted: bool


class PreviewAnswer(BaseModel):
    """`projected_status`: what follows, null where no job would exist. `would_change`: a job would be made, or the job
    goes on by itself. `would_execute`: a model or tool would be called for it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "eligibility": "dry_run_eligible",
                    "blocker": "awaiting_promotion",
                    "projected_status": "queued",
                    "would_change": True,
                    "would_execute": False,
                    "next_gate": "live",
                    "not_yet": "Not yet: this version awaits promotion; until then it may only be rehearsed.",
                    "side_effects": dict.fromkeys(SideEffects.model_fields, False),
                }
            ]
        }
    )

    eligibility: Eligibility
    blocker: Blocker | None
    projected_status: Status | None
    would_change: bool
    would_execute: bool
    next_gate: Phase | None
    not_yet: Annotated[str | None, Field(description='One sentence that begins "Not yet"; null: nothing is missing.')]
    side_effects: SideEffects


class CandidateAnswer(BaseModel):
    """`missing`: the capabilities that the lane lacks. `pollers_seen_at`: when a worker last asked it for work; null:
    none is known to."""

    lane: str
    fits: bool
    missing: tuple[str, ...]
    pollers_seen_at: Timestamp | None


class SimulationAnswer(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "eligibility": "dry_run_eligible",
                    "candidates": [
                        {
                            "lane": "default",
                            "fits": True,
                            "missing": [],
                            "pollers_seen_at": "2030-01-02T03:04:05Z",
                        }
                    ],
                    "execution": "disabled",
                }
            ]
        }
    )

    eligibility: Eligibility
    candidates: tuple[CandidateAnswer, ...]
    execution: Literal["disabled"] = "disabled"


_BODY: dict[str, Any] = body_of(JobRequest)
_SUBMISSION: Responses = refusals(
    P.NOT_PERMITTED,
    P.PLUGIN_UNKNOWN,
    P.PAYLOAD_TOO_LARGE,
    P.UNSUPPORTED_MEDIA_TYPE,
    P.DEADLINE_INVALID,
    P.LIMIT_EXCEEDED,
)
Clock = Annotated[str | None, Header(alias="Jobgate-Http-Deadline", description="The request clock.")]


@router.post("/previews", operation_id="previewJob", responses=_SUBMISSION, openapi_extra=_BODY)
async def preview(request: Request, doors: At, caller: By, deadline: Clock = None) -> PreviewAnswer:
    """What submitting this body would come to now. Nothing is reserved, started or changed; no key is needed."""
    until = request_clock(request, doors.settings)
    need_scope(caller, Action.JOBS_SUBMIT)
    return _answer(*await preview_submission(doors, caller, await json_body(request, until), until))


@router.get("/jobs/{job_id}/preview", operation_id="previewExistingJob", responses=refusals(*JOB))
async def preview_existing(
    job_id: str, request: Request, doors: At, caller: By, deadline: Clock = None
) -> PreviewAnswer:
    """What becomes of this job by itself, by the facts of now."""
    until = request_clock(request, doors.settings)
    return _answer(*await preview_job(doors, request.app.state.serving.window, caller, job_id, until))


@router.post(
    "/plugins/{name}/versions/{version}/simulations",
    operation_id="simulateVersion",
    responses=_SUBMISSION,
    openapi_extra=_BODY,
)
async def simulate_version(name: str, version: str, request: Request, doors: At, caller: By) -> SimulationAnswer:
    """On which lanes this version could run. Nothing is executed; that it was simulated is recorded as evidence."""
    need_scope(caller, Action.OPERATOR_READ)
    return _simulated(await simulate(doors, caller, name, version, await json_body(request)))


def _answer(outlook: Outlook, seen: Seen) -> PreviewAnswer:
    return PreviewAnswer(
        eligibility=outlook.verdict.eligibility,
        blocker=outlook.verdict.blocker,
        projected_status=outlook.projected,
        would_change=outlook.would_change,
        would_execute=outlook.would_execute,
        next_gate=outlook.verdict.next_gate,
        not_yet=outlook.verdict.not_yet,
        side_effects=SideEffects.model_validate(seen.flags()),
    )


def _simulated(simulation: Simulation) -> SimulationAnswer:
    found = [
        CandidateAnswer(
            lane=place.candidate.lane,
            fits=place.candidate.fits,
            missing=place.candidate.missing,
            pollers_seen_at=place.pollers_seen_at,
        )
        for place in simulation.places
    ]
    return SimulationAnswer(eligibility=simulation.verdict.eligibility, candidates=tuple(found))
