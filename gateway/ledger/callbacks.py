"""Callbacks: results that a vendor sends later, each behind a token that is good once.

A token is kept as its hash. A call has one answer, whichever of its attempts' tokens brings it: answering and closing
are one transaction that holds the job's row. Nothing is answered past its expiry, a stop or the call's close.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection, and_, bindparam, select, update

from gateway.ledger.receipts import lock_job
from gateway.ledger.stops import find_stop
from gateway.ledger.tables import callbacks, columns_of, insert_if_absent
from workflows.contract.ids import BlobRef, EffectId, JobId, ToolName, Workspace

CallOutcome = Literal["ok", "error"]


@dataclass(frozen=True)
class NewCallback:
    """`effect_id` and `epoch` name the write whose outcome the answer is; None for a read."""

    token_hash: str
    workspace: Workspace
    job_id: JobId
    step: int
    call: int
    attempt: int
    tool: ToolName
    effect_id: EffectId | None
    epoch: int | None
    opened_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class CallbackRow(NewCallback):
    answered_at: datetime | None
    closed_at: datetime | None
    outcome: CallOutcome | None
    result_ref: BlobRef | None


Late = Literal["answered", "over"]

_COLUMNS = columns_of(CallbackRow, callbacks)
_INSERT = insert_if_absent(callbacks)
_FIND = select(*_COLUMNS).where(callbacks.c.token_hash == bindparam("of_token"))
_OF_CALL = and_(
    callbacks.c.workspace == bindparam("of_workspace"),
    callbacks.c.job_id == bindparam("of_job"),
    callbacks.c.step == bindparam("of_step"),
    callbacks.c.call == bindparam("of_call"),
)
_CALL = select(*_COLUMNS).where(_OF_CALL).order_by(callbacks.c.attempt, callbacks.c.token_hash)
_ANSWER = (
    update(callbacks)
    .where(callbacks.c.token_hash == bindparam("of_token"), callbacks.c.answered_at.is_(None))
    .values(answered_at=bindparam("at"), outcome=bindparam("said"), result_ref=bindparam("ref"))
)
_CLOSE = update(callbacks).where(_OF_CALL, callbacks.c.closed_at.is_(None)).values(closed_at=bindparam("at"))


def open_callback(conn: Connection, new: NewCallback) -> None:
    conn.execute(_INSERT, vars(new))


def find_callback(conn: Connection, token_hash: str) -> CallbackRow | None:
    row = conn.execute(_FIND, {"of_token": token_hash}).first()
    return None if row is None else CallbackRow(*row)


def answer_callback(
    conn: Connection, row: CallbackRow, *, outcome: CallOutcome, result_ref: BlobRef, at: datetime
) -> Late | None:
    """Records the answer; else why it is refused: the call has one already, or nobody waits for it any more."""
    lock_job(conn, row.workspace, row.job_id)
    tokens = callbacks_of(conn, row.workspace, row.job_id, row.step, row.call)
    if any(token.answered_at is not None for token in tokens):
        return "answered"
    over = at >= row.expires_at or any(token.closed_at is not None for token in tokens)
    if over or find_stop(conn, row.workspace, row.job_id) is not None:
        return "over"
    conn.execute(_ANSWER, {"of_token": row.token_hash, "at": at, "said": outcome, "ref": result_ref})
    return None


def callbacks_of(conn: Connection, workspace: Workspace, job_id: JobId, step: int, call: int) -> list[CallbackRow]:
    """Every token of one call, by attempt."""
    of = {"of_workspace": workspace, "of_job": job_id, "of_step": step, "of_call": call}
    return [CallbackRow(*row) for row in conn.execute(_CALL, of)]


def close_call(
    conn: Connection, workspace: Workspace, job_id: JobId, step: int, call: int, at: datetime
) -> CallbackRow | None:
    """Nobody waits any more. The answer that was first stands and is returned."""
    lock_job(conn, workspace, job_id)
    answered = next(
        (row for row in callbacks_of(conn, workspace, job_id, step, call) if row.answered_at is not None), None
    )
    if answered is None:
        of = {"of_workspace": workspace, "of_job": job_id, "of_step": step, "of_call": call, "at": at}
        conn.execute(_CLOSE, of)
    return answered
