"""What came of a write whose job ended before anybody knew: said afterwards by a person, once, by the effect's own id.

While a job is open its own request asks for it (`gateway.deciding`); afterwards nobody waits for the answer but whoever
retries the job. Who may say so is who may decide on the tool. The word and the effect's state are one transaction.
"""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from facade.window import Window
from gateway.deciding import admitted_to_decide, check_decider
from gateway.doors import Doors, permit
from gateway.erasing import has_ended
from gateway.ledger.decisions import DecisionRow, find_decision, settle_afterwards
from gateway.ledger.effects import NOT_KNOWN, EffectRow, EffectState, find_effect, reconcile_effect
from gateway.ledger.journal import record
from gateway.ledger.receipts import ReceiptRow, find_receipt, lock_job
from gateway.scopes import Action, Caller
from gateway.snapshots import SnapshotMismatch
from gateway.verdicts import REASON_CHARS
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.events import Timestamp
from workflows.contract.ids import EffectId, JobId, PrincipalId, RequestId, ToolName
from workflows.contract.job import ToolRow
from workflows.contract.text import clean_text

EFFECT_ID = re.compile(r"eff_[0-9a-f]{32}")
STILL_UNDERWAY = timedelta(seconds=10)
"""So long after its own timeout a write that was sent may still arrive."""
Settled = Literal["happened", "did_not_happen"]


class SettlementIn(BaseModel):
    """What a person found out in the other system, by the effect's id: the `Idempotency-Key` that it was sent with."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"answer": "did_not_happen", "reason": "Not in the shop's list."}]},
    )

    answer: Settled
    reason: Annotated[str, Field(max_length=REASON_CHARS)] | None = None


class SettlementAnswer(BaseModel):
    """What stands for the effect now; the same for whoever repeats their word. `answer` null: no such word was given,
    and `state` is what the job itself found out."""

    job_id: JobId
    effect_id: EffectId
    tool: ToolName
    state: EffectState
    answer: Settled | None
    decided_by: tuple[PrincipalId, ...]
    decided_at: Timestamp | None


async def settle_effect(
    doors: Doors, window: Window, caller: Caller, job_id: str, effect_id: str, body: SettlementIn, until: float
) -> SettlementAnswer:
    """Raises Refused: what a decision raises, JOB_NOT_ENDED, EFFECT_UNRECONCILED while the write may still arrive, and
    ALREADY_DECIDED with the record where something else stands. `until`: event loop time."""
    try:
        async with asyncio.timeout_at(until):
            ledger = await admitted_to_decide(window, caller, JobId(job_id))
            job, effect = await doors.ledger.read(lambda conn: _look(conn, caller, job_id, effect_id))
            tool = await _tool_of(doors, job, effect)
            check_decider(caller, ledger, tool.approval.groups)
            if not await has_ended(doors.engine, job):
                detail = "The job has not ended: it finds out by itself, or asks; see its requests."
                raise Refused(ProblemCode.JOB_NOT_ENDED, detail, retry_after_s=1)
            _arrived(effect, tool, datetime.now(UTC))
            return await doors.ledger.write(lambda conn: settle(conn, caller, job, effect, body))
    except TimeoutError:
        raise Refused(
            ProblemCode.HTTP_DEADLINE_EXCEEDED, "The request clock ran out; send the same word again to learn more."
        ) from None


def _look(conn: Connection, caller: Caller, job_id: str, effect_id: str) -> tuple[ReceiptRow, EffectRow]:
    job = find_receipt(conn, caller.workspace, JobId(job_id))
    effect = find_effect(conn, EffectId(effect_id)) if EFFECT_ID.fullmatch(effect_id) else None
    if job is None or effect is None or (effect.workspace, effect.job_id) != (job.workspace, job.job_id):
        raise Refused(ProblemCode.NOT_FOUND, "This job has no such effect.")
    return job, effect


async def _tool_of(doors: Doors, job: ReceiptRow, effect: EffectRow) -> ToolRow:
    """As the job was bound to it: who may decide on it, and how long a call of it may take."""
    try:
        return (await doors.snapshots.load(job.workspace, job.snapshot)).table[effect.tool]
    except SnapshotMismatch as broken:
        raise Refused(ProblemCode.BLOCKED, broken.detail, blocker="snapshot_mismatch", executed="unknown") from None


def _arrived(effect: EffectRow, tool: ToolRow, now: datetime) -> None:
    if effect.state != "sent" or effect.sent_at is None:
        return
    left = effect.sent_at + timedelta(seconds=tool.timeout_s) + STILL_UNDERWAY - now
    if left > timedelta():
        raise Refused(
            ProblemCode.EFFECT_UNRECONCILED,
            "The write may still be on its way; its answer is awaited first.",
            retry_after_s=int(left.total_seconds()) + 1,
        )


def settle(
    conn: Connection, caller: Caller, job: ReceiptRow, effect: EffectRow, body: SettlementIn
) -> SettlementAnswer:
    """Inside the ledger's transaction: of racing words one stands, and everybody is told which."""
    lock_job(conn, job.workspace, job.job_id)
    now = datetime.now(UTC)
    permit(caller, conn, Action.JOBS_DECIDE, job.plugin, now=now)
    of = (job.workspace, job.job_id, RequestId(effect.effect_id))
    standing = find_decision(conn, *of)
    if standing is None and reconcile_effect(
        conn,
        job.workspace,
        job.job_id,
        effect.effect_id,
        happened=body.answer == "happened",
        outcome_ref=None,
        at=now,
    ):
        reason = None if body.reason is None else clean_text(body.reason, REASON_CHARS)
        settled = DecisionRow(
            *of, "settle", effect.action_digest, body.answer, reason, (caller.principal,), now, taken_at=now
        )
        settle_afterwards(conn, settled)
        subject = f"{job.job_id}/{effect.effect_id}"
        record(
            conn,
            job.workspace,
            at=now,
            actor=caller.principal,
            action="effect.settled",
            subject=subject,
            tool=effect.tool,
            answer=body.answer,
        )
        return _answer(conn, effect, settled)
    answer = _answer(conn, effect, standing)
    if answer.decided_by != (caller.principal,) or answer.answer != body.answer:
        stands = answer.model_dump(mode="json")
        raise Refused(ProblemCode.ALREADY_DECIDED, "It is known what came of this write.", record=stands)
    return answer


def _answer(conn: Connection, effect: EffectRow, settled: DecisionRow | None) -> SettlementAnswer:
    now = find_effect(conn, effect.effect_id)
    assert now is not None, "rows are never deleted"
    assert now.state not in NOT_KNOWN, "what is known stays"
    return SettlementAnswer(
        job_id=effect.job_id,
        effect_id=effect.effect_id,
        tool=effect.tool,
        state=now.state,
        answer=None if settled is None else settled.answer,
        decided_by=() if settled is None else settled.decided_by,
        decided_at=None if settled is None else settled.decided_at,
    )
