"""Lines of jobs: a first one and all its retries, theirs included, known by the first one's id.

What one job of a line did, the others must not repeat by themselves; so only the newest may write, and a retry follows
once all the others have ended and what came of their writes is known. Each question is one statement, however long the
line is. Whether a job may follow is judged elsewhere.
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, and_, bindparam, or_, select

from facade.reader import Part
from gateway.ledger.authority_tables import authorities
from gateway.ledger.effects import HAPPENED, NOT_KNOWN
from gateway.ledger.receipts import ReceiptRow, lock_job
from gateway.ledger.tables import effects, receipts
from workflows.contract.ids import Digest, EffectId, JobId, Workspace
from workflows.contract.job import Initiator

_IN_LINE = and_(
    receipts.c.workspace == bindparam("of_workspace"),
    or_(receipts.c.job_id == bindparam("of_line"), receipts.c.line == bindparam("of_line")),
)
_EXISTS = or_(receipts.c.refused_at.is_(None), receipts.c.confirmed_at.is_not(None))
_WITH_AUTHORITY = receipts.join(
    authorities, and_(authorities.c.workspace == receipts.c.workspace, authorities.c.job_id == receipts.c.job_id)
)
_WITH_EFFECTS = receipts.join(
    effects, and_(effects.c.workspace == receipts.c.workspace, effects.c.job_id == receipts.c.job_id)
)
_NEWEST = (
    select(receipts.c.job_id).where(_IN_LINE, receipts.c.job_id != bindparam("but")).order_by(receipts.c.seq.desc())
)
_NEWER = (
    select(receipts.c.job_id)
    .where(
        receipts.c.workspace == bindparam("of_workspace"),
        receipts.c.line == bindparam("of_line"),
        receipts.c.seq > bindparam("than_seq"),
        _EXISTS,
    )
    .limit(1)
)
_OPEN = (
    select(receipts.c.job_id)
    .select_from(_WITH_AUTHORITY)
    .where(_IN_LINE, _EXISTS, receipts.c.job_id != bindparam("but"), authorities.c.ended_at.is_(None))
    .order_by(receipts.c.seq)
    .limit(bindparam("at_most"))
)
_IN_DOUBT = (
    select(effects.c.effect_id)
    .select_from(_WITH_EFFECTS)
    .where(_IN_LINE, effects.c.state.in_(NOT_KNOWN))
    .order_by(receipts.c.seq, effects.c.effect_id)
    .limit(bindparam("at_most"))
)
_VERSIONS = select(receipts.c.plugin_digest).distinct().where(_IN_LINE)
_DONE = (
    select(receipts.c.job_id)
    .select_from(_WITH_EFFECTS)
    .where(
        _IN_LINE,
        receipts.c.job_id != bindparam("but"),
        effects.c.action_digest.in_(bindparam("digests", expanding=True)),
        effects.c.state.in_(HAPPENED),
    )
    .order_by(receipts.c.seq)
    .limit(1)
)
_PEOPLE = (
    select(receipts.c.principal, authorities.c.submitted_by, receipts.c.initiator)
    .select_from(_WITH_AUTHORITY)
    .where(_IN_LINE)
)


def line_of(row: ReceiptRow) -> JobId:
    return row.line or row.job_id


def hold_line(conn: Connection, workspace: Workspace, line: JobId, but: JobId) -> None:
    """Until the transaction ends no other retry of the line is admitted, and its newest job gets no permit."""
    lock_job(conn, workspace, line)
    newest = conn.execute(_NEWEST, _of(workspace, line, but=but)).scalars().first()
    if newest is not None and newest != line:
        lock_job(conn, workspace, newest)


def newer_in_line(conn: Connection, row: ReceiptRow) -> JobId | None:
    """A retry that came after this job: it goes on in its place."""
    return conn.execute(_NEWER, _of(row.workspace, line_of(row), than_seq=row.seq)).scalars().first()


def open_in_line(conn: Connection, workspace: Workspace, line: JobId, but: JobId, at_most: int) -> list[JobId]:
    """Jobs that are not known to have ended, the oldest first."""
    return list(conn.execute(_OPEN, _of(workspace, line, but=but, at_most=at_most)).scalars())


def in_doubt_in_line(conn: Connection, workspace: Workspace, line: JobId, at_most: int) -> list[EffectId]:
    """Effects of which it is not known what came."""
    return list(conn.execute(_IN_DOUBT, _of(workspace, line, at_most=at_most)).scalars())


def versions_in_line(conn: Connection, row: ReceiptRow) -> list[Digest]:
    """The digests of the plugin versions that its jobs ran."""
    return list(conn.execute(_VERSIONS, _of(row.workspace, line_of(row))).scalars())


def done_in_line(conn: Connection, row: ReceiptRow, digests: Collection[Digest]) -> JobId | None:
    """Another job of the line in which one of these actions took effect."""
    return (
        conn.execute(_DONE, _of(row.workspace, line_of(row), but=row.job_id, digests=list(digests))).scalars().first()
    )


def people_of_line(conn: Connection, row: ReceiptRow) -> list[Part]:
    found: list[Part] = []
    for principal, submitted_by, initiator in conn.execute(_PEOPLE, _of(row.workspace, line_of(row))):
        part = Part(principal, submitted_by, None if initiator is None else Initiator.model_validate(initiator))
        if part not in found:
            found.append(part)
    return found


def _of(workspace: Workspace, line: JobId, **more: Any) -> dict[str, Any]:
    return {"of_workspace": workspace, "of_line": line, **more}
