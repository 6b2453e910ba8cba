"""Callbacks: results that a vendor sends later, each behind a token that is good once.

A token is kept as its hash. A call has one answer, whichever of its attempts' tokens brings it; the answer and what it
says of a write are one transaction that holds the job's row. `closed_at` means that nobody waits for this token any
more: the job took the answer, or gave the call up. So what was answered and is not closed is still to be told to the
job, and tokens of a call that an operator's reset sends again start afresh.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection, and_, bindparam, select, update

from gateway.ledger import effects
from gateway.ledger.authorities import find_authority
from gateway.ledger.receipts import lock_job
from gateway.ledger.stops import find_stop
from gateway.ledger.tables import callbacks, columns_of, insert_if_absent
from workflows.contract.ids import BlobRef, EffectId, JobId, ToolName, Workspace

CallOutcome = Literal["ok", "error"]
Late = Literal["answered", "over"]


@dataclass(frozen=True)
class OfCall:
    """Which call of which job: call `call` of model step `step`."""

    workspace: Workspace
    job_id: JobId
    step: int
    call: int


@dataclass(frozen=True)
class NewCallback(OfCall):
    """`effect_id` and `epoch` name the write whose outcome the answer is; None for a read."""

    token_hash: str
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


_COLUMNS = columns_of(CallbackRow, callbacks)
_INSERT = insert_if_absent(callbacks)
_FIND = select(*_COLUMNS).where(callbacks.c.token_hash == bindparam("of_token"))
_OF_CALL = and_(
    callbacks.c.workspace == bindparam("of_workspace"),
    callbacks.c.job_id == bindparam("of_job"),
    callbacks.c.step == bindparam("of_step"),
    callbacks.c.call == bindparam("of_call"),
)
_CALL = select(*_COLUMNS).where(_OF_CALL).order_by(callbacks.c.opened_at, callbacks.c.token_hash)
_ANSWER = (
    update(callbacks)
    .where(
        callbacks.c.token_hash == bindparam("of_token"),
        callbacks.c.answered_at.is_(None),
        callbacks.c.closed_at.is_(None),
    )
    .values(answered_at=bindparam("at"), outcome=bindparam("said"), result_ref=bindparam("ref"))
    .returning(callbacks.c.token_hash)
)
_CLOSE = update(callbacks).where(_OF_CALL, callbacks.c.closed_at.is_(None)).values(closed_at=bindparam("at"))
_UNTOLD = (
    select(*_COLUMNS)
    .where(callbacks.c.answered_at < bindparam("before"), callbacks.c.closed_at.is_(None))
    .order_by(callbacks.c.answered_at, callbacks.c.token_hash)
    .limit(bindparam("at_most"))
)


def open_callback(conn: Connection, new: NewCallback) -> None:
    conn.execute(_INSERT, vars(new))


def find_callback(conn: Connection, token_hash: str) -> CallbackRow | None:
    row = conn.execute(_FIND, {"of_token": token_hash}).first()
    return None if row is None else CallbackRow(*row)


def callbacks_of(conn: Connection, of: OfCall) -> list[CallbackRow]:
    """Every token of one call, oldest first."""
    return [CallbackRow(*row) for row in conn.execute(_CALL, _named(of))]


def standing_callback(conn: Connection, of: OfCall) -> CallbackRow | None:
    """The youngest token of the call that may still be answered, or was and is not taken."""
    return next((row for row in reversed(callbacks_of(conn, of)) if row.closed_at is None), None)


def lateness(conn: Connection, row: CallbackRow, at: datetime) -> Late | None:
    """Why an answer behind this token would be refused now, whatever `row` knew; None where it would count."""
    tokens = callbacks_of(conn, row)
    closed_at = next((token.closed_at for token in tokens if token.token_hash == row.token_hash), at)
    if _answered([token for token in tokens if token.closed_at == closed_at]) is not None:
        return "answered"
    if closed_at is not None or at >= row.expires_at or find_stop(conn, row.workspace, row.job_id) is not None:
        return "over"
    authority = find_authority(conn, row.workspace, row.job_id)
    if authority is not None and authority.revoked_at is not None:
        return "over"
    if row.effect_id is not None:
        effect = effects.find_effect(conn, row.effect_id)
        if effect is None or effect.state not in ("sent", "unknown"):
            return "over"
    return None


def answer_callback(
    conn: Connection, row: CallbackRow, *, outcome: CallOutcome, result_ref: BlobRef, at: datetime
) -> Late | None:
    """Records the answer, and as what a write ended; else why it is refused, and then nothing is changed.

    Attempts of an `idempotent_write` are one effect, so a token of an earlier one tells what became of it all the same.
    """
    lock_job(conn, row.workspace, row.job_id)
    late = lateness(conn, row, at)
    if late is not None:
        return late
    said = {"of_token": row.token_hash, "at": at, "said": outcome, "ref": result_ref}
    if conn.execute(_ANSWER, said).first() is None:
        return "over"
    if row.effect_id is not None:
        _settle(conn, row.effect_id, "confirmed" if outcome == "ok" else "failed", result_ref, at)
    return None


def take_answer(conn: Connection, of: OfCall, at: datetime) -> CallbackRow | None:
    """The call's answer, for the job that waits for it; the same one however often it is asked for. None: not yet."""
    lock_job(conn, of.workspace, of.job_id)
    tokens = callbacks_of(conn, of)
    waiting = [token for token in tokens if token.closed_at is None]
    if not waiting:
        last = max((token.closed_at for token in tokens if token.closed_at is not None), default=None)
        return _answered([token for token in tokens if token.closed_at == last])
    answer = _answered(waiting)
    if answer is not None:
        conn.execute(_CLOSE, {**_named(of), "at": at})
    return answer


def close_call(conn: Connection, of: OfCall, at: datetime) -> CallbackRow | None:
    """Nobody waits any more. The answer that was first stands and is returned; a write without one is unknown."""
    answer = take_answer(conn, of, at)
    if answer is None:
        conn.execute(_CLOSE, {**_named(of), "at": at})
        for effect_id in {token.effect_id for token in callbacks_of(conn, of) if token.effect_id is not None}:
            _settle(conn, effect_id, "unknown", None, at)
    return answer


def untold_answers(conn: Connection, *, before: datetime, limit: int) -> Sequence[CallbackRow]:
    """Answers that came before `before` and that their jobs have not taken: a hint was lost, or the job has ended."""
    return [CallbackRow(*row) for row in conn.execute(_UNTOLD, {"before": before, "at_most": limit})]


def _answered(tokens: Sequence[CallbackRow]) -> CallbackRow | None:
    return next((token for token in tokens if token.answered_at is not None), None)


def _settle(conn: Connection, effect_id: EffectId, state: effects.Outcome, ref: BlobRef | None, at: datetime) -> None:
    effect = effects.find_effect(conn, effect_id)
    if effect is not None:
        effects.record_outcome(conn, effect_id, effect.epoch, state, ref, at=at)


def _named(of: OfCall) -> dict[str, object]:
    return {"of_workspace": of.workspace, "of_job": of.job_id, "of_step": of.step, "of_call": of.call}
