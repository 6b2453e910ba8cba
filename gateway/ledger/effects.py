"""Effects: one row for each logical write to the outside, with the epoch of the last permit and what came of it.

States: `intended` (a permit was given and nothing left), `sent` (a permit was given, no outcome yet), then `confirmed`,
`failed` or `unknown`; an unknown one that turned out to have happened is `reconciled`, else it is `failed`. Every move
is a compare-and-set on the epoch, so an attempt that was overtaken changes nothing. A `write` is sent at most once; an
`idempotent_write` may be sent again with a higher epoch until its outcome is known. What was given up before any permit
is closed as `failed` with epoch 0: no attempt that comes late gets a permit for it.
Whether a permit is due is judged elsewhere.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection, and_, bindparam, case, func, or_, select, update

from gateway.ledger.tables import columns_of, effects, insert_if_absent, stops
from workflows.contract.ids import BlobRef, Digest, EffectId, JobId, RequestId, ToolName, Workspace

WriteClass = Literal["idempotent_write", "write"]
EffectState = Literal["intended", "sent", "confirmed", "failed", "unknown", "reconciled"]
HAPPENED: frozenset[EffectState] = frozenset({"confirmed", "reconciled"})
NOT_KNOWN: frozenset[EffectState] = frozenset({"sent", "unknown"})
Outcome = Literal["confirmed", "failed", "unknown"]


@dataclass(frozen=True)
class Intent:
    """What an attempt is about to send. `request_id` names the decision that the policy asked for, else None."""

    effect_id: EffectId
    workspace: Workspace
    job_id: JobId
    step: int
    call: int
    tool: ToolName
    effect: WriteClass
    action_digest: Digest
    request_id: RequestId | None
    attempt: int


@dataclass(frozen=True)
class EffectRow(Intent):
    state: EffectState
    epoch: int
    sent_at: datetime | None
    finished_at: datetime | None
    outcome_ref: BlobRef | None


@dataclass(frozen=True)
class OpenEffect:
    """A permit is out and its outcome is not in: the write may be on its way."""

    effect_id: EffectId
    tool: ToolName
    sent_at: datetime


_COLUMNS = columns_of(EffectRow, effects)
_THIS = effects.c.effect_id == bindparam("of_effect")
_AT_EPOCH = and_(_THIS, effects.c.epoch == bindparam("of_epoch"))
_FIND = select(*_COLUMNS).where(_THIS)
_HOLD = _FIND.with_for_update()
_OF_JOB = and_(effects.c.workspace == bindparam("of_workspace"), effects.c.job_id == bindparam("of_job"))
_LIST = select(*_COLUMNS).where(_OF_JOB).order_by(effects.c.step, effects.c.call, effects.c.effect_id)
_OPEN = (
    select(effects.c.effect_id, effects.c.tool, effects.c.sent_at)
    .where(_OF_JOB, effects.c.state == "sent")
    .order_by(effects.c.sent_at, effects.c.effect_id)
)
_SPENT = select(effects.c.effect_id).where(_OF_JOB, effects.c.request_id == bindparam("of_request"))
_SENT_AFTER_STOP = (
    select(func.count())
    .select_from(
        effects.join(stops, and_(stops.c.workspace == effects.c.workspace, stops.c.job_id == effects.c.job_id))
    )
    .where(effects.c.sent_at > stops.c.requested_at)
)
_FIRST = insert_if_absent(effects).returning(effects.c.effect_id)
_AGAIN = (
    update(effects)
    .where(
        _AT_EPOCH,
        or_(
            effects.c.state == "intended",
            and_(effects.c.effect == "idempotent_write", effects.c.state.in_(NOT_KNOWN)),
        ),
    )
    .values(
        state="sent",
        epoch=effects.c.epoch + 1,
        sent_at=bindparam("at"),
        request_id=bindparam("by_request"),
        attempt=bindparam("by_attempt"),
    )
    .returning(effects.c.effect_id)
)
_LEFT_BEFORE = and_(effects.c.effect == "idempotent_write", effects.c.epoch > 1)
_UNDO = (
    update(effects)
    .where(_AT_EPOCH, effects.c.state.in_(NOT_KNOWN))
    .values(
        state=case((_LEFT_BEFORE, "unknown"), else_="intended"),
        sent_at=case((_LEFT_BEFORE, effects.c.sent_at)),
        finished_at=None,
    )
    .returning(effects.c.effect_id)
)
_RECORD = (
    update(effects)
    .where(_AT_EPOCH, effects.c.state.in_(NOT_KNOWN))
    .values(state=bindparam("to_state"), outcome_ref=bindparam("to_ref"), finished_at=bindparam("at"))
    .returning(effects.c.effect_id)
)

_CLOSE = (
    update(effects)
    .where(_THIS, _OF_JOB, effects.c.state == "intended")
    .values(state="failed", finished_at=bindparam("at"))
    .returning(effects.c.effect_id)
)
_RECONCILE = (
    update(effects)
    .where(_THIS, _OF_JOB, effects.c.state.in_(NOT_KNOWN))
    .values(state=bindparam("to_state"), outcome_ref=bindparam("to_ref"), finished_at=bindparam("at"))
    .returning(effects.c.effect_id)
)


def find_effect(conn: Connection, effect_id: EffectId) -> EffectRow | None:
    row = conn.execute(_FIND, {"of_effect": effect_id}).first()
    return None if row is None else EffectRow(*row)


def hold_effect(conn: Connection, effect_id: EffectId) -> EffectRow | None:
    """As `find_effect`, for who changes it by what it was: until this transaction ends nobody else changes it."""
    row = conn.execute(_HOLD, {"of_effect": effect_id}).first()
    return None if row is None else EffectRow(*row)


def list_effects(conn: Connection, workspace: Workspace, job_id: JobId) -> list[EffectRow]:
    """In the order in which the job proposed them."""
    return [EffectRow(*row) for row in conn.execute(_LIST, {"of_workspace": workspace, "of_job": job_id})]


def open_effects(conn: Connection, workspace: Workspace, job_id: JobId) -> list[OpenEffect]:
    """What is in flight now, oldest first: the answer to cancel names these."""
    return [OpenEffect(*row) for row in conn.execute(_OPEN, {"of_workspace": workspace, "of_job": job_id})]


def count_sent_after_stop(conn: Connection) -> int:
    """Writes whose last permit is younger than their job's stop, over all jobs: there must be none."""
    return conn.execute(_SENT_AFTER_STOP).scalar_one()


def spent_on(conn: Connection, workspace: Workspace, job_id: JobId, request_id: RequestId) -> EffectId | None:
    """The effect that this decision permitted; a decision permits one, for ever."""
    of = {"of_workspace": workspace, "of_job": job_id, "of_request": request_id}
    return conn.execute(_SPENT, of).scalar_one_or_none()


def mark_sent(conn: Connection, intent: Intent, *, seen_epoch: int, at: datetime) -> int | None:
    """The epoch of this permit, one above `seen_epoch` (0: there was no row); None when the row has moved on since."""
    if seen_epoch == 0:
        new = {**vars(intent), "state": "sent", "epoch": 1, "sent_at": at}
        return None if conn.execute(_FIRST, new).first() is None else 1
    of = {
        "of_effect": intent.effect_id,
        "of_epoch": seen_epoch,
        "at": at,
        "by_request": intent.request_id,
        "by_attempt": intent.attempt,
    }
    return None if conn.execute(_AGAIN, of).first() is None else seen_epoch + 1


def mark_not_sent(conn: Connection, effect_id: EffectId, epoch: int) -> bool:
    """Takes a permit back of which surely nothing was sent; what an earlier epoch may have sent stays unknown. False:
    it was not this epoch's to take."""
    return conn.execute(_UNDO, {"of_effect": effect_id, "of_epoch": epoch}).first() is not None


def close_unsent(conn: Connection, intent: Intent, *, at: datetime) -> bool:
    """`failed`, where no permit is out: surely nothing was sent, and from now on nothing can be, by no attempt however
    late. False: one is out or was, so its outcome is another question."""
    new = {**vars(intent), "state": "failed", "epoch": 0, "finished_at": at}
    if conn.execute(_FIRST, new).first() is not None:
        return True
    of = {"of_effect": intent.effect_id, "of_workspace": intent.workspace, "of_job": intent.job_id, "at": at}
    return conn.execute(_CLOSE, of).first() is not None


def record_outcome(
    conn: Connection, effect_id: EffectId, epoch: int, state: Outcome, outcome_ref: BlobRef | None, *, at: datetime
) -> bool:
    """Commits only where the epoch is this attempt's. `unknown` may still become known; what is known stays."""
    of = {"of_effect": effect_id, "of_epoch": epoch, "to_state": state, "to_ref": outcome_ref, "at": at}
    return conn.execute(_RECORD, of).first() is not None


def reconcile_effect(
    conn: Connection,
    workspace: Workspace,
    job_id: JobId,
    effect_id: EffectId,
    *,
    happened: bool,
    outcome_ref: BlobRef | None,
    at: datetime,
) -> bool:
    """What was found out afterwards, by a tool or a person. False: its outcome is known, or it is no effect of the job.
    An outcome that was recorded first stands, and so does this one against an attempt that comes back late."""
    of = {
        "of_workspace": workspace,
        "of_job": job_id,
        "of_effect": effect_id,
        "to_state": "reconciled" if happened else "failed",
        "to_ref": outcome_ref,
        "at": at,
    }
    return conn.execute(_RECONCILE, of).first() is not None
