"""GET one job as an operator sees it. What is read, and who may, is gateway/inspecting.py's; the fields here are all
that leaves."""

from collections.abc import Mapping
from typing import Any, cast

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict

from facade.documented import JOB, refusals
from facade.routes import Serving
from facade.views import FailureAnswer, PendingRequest, UsageAnswer, VoteAnswer
from gateway.doors import At, By
from gateway.inspecting import Inspected, inspect
from gateway.inspections import AttemptOutcome
from gateway.ledger.decisions import Verdict
from gateway.ledger.effects import EffectState
from workflows.contract.events import Timestamp
from workflows.contract.ids import JobId
from workflows.contract.job import Executed, Initiator, Mode, Status

router = APIRouter(prefix="/v1/operator", tags=["operators"])


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True)


class Workload(_Shown):
    """What runs: the frozen snapshot and what it was made of. `model` null: admitted before this was recorded."""

    plugin: str
    version: str
    digest: str
    snapshot: str
    model: str | None


class Authority(_Shown):
    """On whose grants it runs, until when unless a call renews it, and whether that was taken away."""

    principal: str
    limits: Mapping[str, Any]
    minted_at: Timestamp
    expires_at: Timestamp
    revoked_at: Timestamp | None
    revoked_reason: str | None
    ended_at: Timestamp | None


class Attempt(_Shown):
    """One process's try at a step. `code`: why it failed; `run_id` differs after a roll-over."""

    run_id: str
    activity: str
    step: int | None
    call: int | None
    attempt: int | None
    tool: str | None
    task_queue: str
    worker: str | None
    scheduled_at: Timestamp
    started_at: Timestamp | None
    ended_at: Timestamp | None
    outcome: AttemptOutcome
    code: str | None


class Poller(_Shown):
    worker: str
    seen_at: Timestamp


class Lane(_Shown):
    """A task queue that the job uses, and who asked it for work lately."""

    lane: str | None
    task_queue: str
    pollers: tuple[Poller, ...]


class EffectShown(_Shown):
    effect_id: str
    tool: str
    effect: str
    state: EffectState
    step: int
    call: int
    epoch: int
    attempt: int
    sent_at: Timestamp | None
    finished_at: Timestamp | None
    request_id: str | None
    action_digest: str


class DecisionShown(_Shown):
    """`decision` null: it is open, and these are the votes so far."""

    request_id: str
    decision: Verdict | None
    action_digest: str | None
    decided_by: tuple[str, ...]
    decided_at: Timestamp | None
    votes: tuple[VoteAnswer, ...]


class Stop(_Shown):
    requested_at: Timestamp
    by: str


class EngineRun(_Shown):
    """The current run in Temporal; `status` is the engine's own word. `build`: the only one whose workers go on with
    it, and whether one of them lives; null: any worker does."""

    workflow_id: str
    run_id: str
    status: str
    started_at: Timestamp
    closed_at: Timestamp | None
    history_length: int
    build: str | None
    build_lives: bool | None


class JobInspection(_Shown):
    """`credential`: the API key's id; null for a signed token. `attempts_complete` false: older ones are left out."""

    job_id: str
    workspace: str
    status: Status
    executed: Executed
    mode: Mode
    overdue: bool
    failure: FailureAnswer | None
    principal: str
    submitted_by: str | None
    initiator: Initiator | None
    credential: str | None
    workload: Workload
    session: str | None
    retry_of: str | None
    accepted_at: Timestamp
    deadline: Timestamp
    finished_at: Timestamp | None
    usage: UsageAnswer
    authority: Authority | None
    attempts: tuple[Attempt, ...]
    attempts_complete: bool
    lanes: tuple[Lane, ...]
    effects: tuple[EffectShown, ...]
    pending: tuple[PendingRequest, ...]
    decisions: tuple[DecisionShown, ...]
    stop: Stop | None
    engine: EngineRun
    trace_id: str | None
    temporal_url: str | None
    as_of: Timestamp


@router.get("/jobs/{job_id}", operation_id="inspectJob", responses=refusals(*JOB))
async def inspect_job(job_id: JobId, request: Request, doors: At, caller: By) -> JobInspection:
    """Attempts, lanes, effects, decisions and authority of a job, and where it is in the Temporal UI. No worker
    is needed."""
    window = cast(Serving, request.app.state.serving).window
    return _shown(await inspect(doors, window, caller, job_id))


def _shown(found: Inspected) -> JobInspection:
    answer, receipt, authority, run = found.answer, found.ledger.receipt, found.ledger.authority, found.engine.run
    return JobInspection(
        job_id=receipt.job_id,
        workspace=receipt.workspace,
        status=answer.status,
        executed=answer.executed,
        mode=answer.mode,
        overdue=answer.overdue,
        failure=answer.failure,
        principal=receipt.principal,
        submitted_by=None if authority is None else authority.submitted_by,
        initiator=None if receipt.initiator is None else Initiator.model_validate(receipt.initiator),
        credential=None if authority is None else authority.credential,
        workload=Workload(
            plugin=receipt.plugin,
            version=receipt.version,
            digest=receipt.plugin_digest,
            snapshot=receipt.snapshot,
            model=None if authority is None else authority.model,
        ),
        session=receipt.session,
        retry_of=receipt.retry_of,
        accepted_at=answer.accepted_at,
        deadline=answer.deadline,
        finished_at=answer.finished_at,
        usage=answer.usage,
        authority=None if authority is None else Authority.model_validate(authority),
        attempts=tuple(Attempt.model_validate(attempt) for attempt in found.engine.attempts),
        attempts_complete=found.engine.complete,
        lanes=tuple(Lane.model_validate(lane) for lane in found.lanes),
        effects=tuple(EffectShown.model_validate(effect) for effect in found.ledger.effects),
        pending=answer.pending,
        decisions=tuple(_decisions(found)),
        stop=None if found.ledger.stop is None else Stop.model_validate(found.ledger.stop),
        engine=EngineRun(
            workflow_id=f"{receipt.workspace}.{receipt.job_id}",
            run_id=run.run_id,
            status=run.status,
            started_at=run.started_at,
            closed_at=run.closed_at,
            history_length=run.history_length,
            build=run.build,
            build_lives=found.build_lives(),
        ),
        trace_id=found.engine.trace_id,
        temporal_url=found.temporal_url,
        as_of=answer.as_of,
    )


def _decisions(found: Inspected) -> list[DecisionShown]:
    ruled = {row.request_id: row for row in found.ledger.decisions}
    shown: list[DecisionShown] = []
    for request_id, votes in found.votes.items():
        row = ruled.get(request_id)
        shown.append(
            DecisionShown(
                request_id=request_id,
                decision=None if row is None else row.decision,
                action_digest=None if row is None else row.action_digest,
                decided_by=() if row is None else row.decided_by,
                decided_at=None if row is None else row.decided_at,
                votes=tuple(VoteAnswer(principal=vote.principal, decision=vote.decision, at=vote.at) for vote in votes),
            )
        )
    return shown
