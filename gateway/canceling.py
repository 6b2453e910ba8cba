"""Cancel goes all the way down: a stop in the ledger first, then the workflow, then the word of what is in flight.

The stop is written once and its time is `cancel_requested_at` for ever. No permit is given past it, so after the answer
no write starts but those that the answer names. Dying between the stop and the workflow's cancel loses nothing: the
next permit of the job finds the stop and requests the cancel itself.
"""

import asyncio
import contextlib
import json
from datetime import UTC, datetime
from functools import partial

from pydantic import BaseModel
from sqlalchemy import Connection

from facade.project import Look, state_of
from gateway.doors import Doors, need_scope, permit
from gateway.ledger.effects import OpenEffect, list_effects, open_effects
from gateway.ledger.receipts import ReceiptRow, find_receipt, lock_job
from gateway.ledger.stops import find_stop, stop_job
from gateway.scopes import Action, Caller
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.events import Timestamp
from workflows.contract.ids import KEY, EffectId, JobId, ToolName
from workflows.contract.job import Status

SETTLE_S = 1.0
"""How long the answer waits for open permits to be used up."""


class InFlight(BaseModel):
    """A write that had left, or held its permit, when the stop was set; its outcome is awaited."""

    effect_id: EffectId
    tool: ToolName
    sent_at: Timestamp


class CancelAnswer(BaseModel):
    job_id: JobId
    status: Status
    cancel_requested_at: Timestamp | None
    finished_at: Timestamp | None
    in_flight: tuple[InFlight, ...]


async def cancel_job(doors: Doors, caller: Caller, job_id: str, until: float) -> tuple[bool, CancelAnswer]:
    """Whether the job was open, and the answer. A second cancel changes nothing and has the first one's time."""
    need_scope(caller, Action.JOBS_CANCEL)
    if not KEY.fullmatch(job_id):
        raise not_found()
    try:
        async with asyncio.timeout_at(until):
            return await _cancel(doors, caller, JobId(job_id))
    except TimeoutError:
        raise Refused(
            ProblemCode.HTTP_DEADLINE_EXCEEDED, "The request clock ran out; cancel again to learn what happened."
        ) from None


async def _cancel(doors: Doors, caller: Caller, job_id: JobId) -> tuple[bool, CancelAnswer]:
    def look(conn: Connection) -> ReceiptRow:
        row = find_receipt(conn, caller.workspace, job_id)
        if row is None or (row.refused_at is not None and not row.accepted):
            raise not_found()
        permit(caller, conn, Action.JOBS_CANCEL, row.plugin)
        return row

    row = await doors.ledger.read(look)
    execution = await doors.engine.describe(caller.workspace, job_id)
    if execution is None:
        if row.accepted:
            raise _forgotten(row)
        raise Refused(ProblemCode.ADMISSION_UNKNOWN, "It is not yet known whether the job started.", retry_after_s=1)
    if execution.ending is not None:
        return False, await _answer(doors, caller, row)
    await doors.ledger.write(partial(_stop, caller=caller, job_id=job_id))
    await doors.engine.cancel(caller.workspace, job_id)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            while await _in_flight(doors, caller, job_id):
                await asyncio.sleep(0.05)
    answer = await _answer(doors, caller, row)
    return answer.status in (Status.CANCELING, Status.CANCELED), answer  # else it ended before the cancel reached it


def _stop(conn: Connection, *, caller: Caller, job_id: JobId) -> None:
    """With the job's row held, a stop is later than every permit that was given before it, whatever our clock says."""
    lock_job(conn, caller.workspace, job_id)
    sent = [effect.sent_at for effect in list_effects(conn, caller.workspace, job_id) if effect.sent_at is not None]
    stop_job(conn, caller.workspace, job_id, by=caller.principal, at=max([datetime.now(UTC), *sent]))


async def _in_flight(doors: Doors, caller: Caller, job_id: JobId) -> list[OpenEffect]:
    return await doors.ledger.read(lambda conn: open_effects(conn, caller.workspace, job_id))


async def _answer(doors: Doors, caller: Caller, row: ReceiptRow) -> CancelAnswer:
    job_id = row.job_id

    def look(conn: Connection) -> tuple[datetime | None, list[OpenEffect]]:
        stop = find_stop(conn, caller.workspace, job_id)
        return None if stop is None else stop.requested_at, open_effects(conn, caller.workspace, job_id)

    execution = await doors.engine.describe(caller.workspace, job_id)
    if execution is None:
        raise _forgotten(row)
    stopped_at, in_flight = await doors.ledger.read(look)
    view = state_of(Look(execution))
    ended = execution.ending is not None
    return CancelAnswer(
        job_id=job_id,
        status=view.status if ended else Status.CANCELING,
        cancel_requested_at=stopped_at or view.cancel_requested_at,
        finished_at=view.finished_at if ended else None,
        in_flight=() if ended else tuple(InFlight(**vars(effect)) for effect in in_flight),
    )


def _forgotten(row: ReceiptRow) -> Refused:
    detail = "The job's record has passed its retention; nothing runs."
    return Refused(ProblemCode.JOB_EXPIRED, detail, receipt=json.loads(row.receipt))


def not_found() -> Refused:
    return Refused(ProblemCode.NOT_FOUND, "There is no such job in this workspace.")
