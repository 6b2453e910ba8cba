"""Erasing what a job holds in the ledger: its input, people's own words, and where its session goes on.

Receipt, audit, decisions, effects and usage stay: who did what, with digests and without content. `erased_at` is when a
job's content went; `emptied_at` when its blobs were looked for once more, after everything that ran had ended. Whether
a job may be erased is judged elsewhere.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Text, and_, bindparam, null, select, update

from facade.project import ERASED_TITLE
from gateway.ledger.artifacts import job_artifacts_gone
from gateway.ledger.authority_tables import authorities
from gateway.ledger.journal import record
from gateway.ledger.receipts import ReceiptRow, accept
from gateway.ledger.tables import decisions, receipts, sessions, votes
from workflows.contract.ids import BlobRef, JobId, Workspace

Job = tuple[Workspace, JobId]

_THIS = (receipts.c.workspace == bindparam("of_workspace"), receipts.c.job_id == bindparam("of_job"))
_ERASE = (
    update(receipts)
    .where(*_THIS, receipts.c.erased_at.is_(None))
    .values(job_input=b"", erased_at=bindparam("gone_at"))
    .returning(receipts.c.seq)
)
_VOTES = (
    update(votes)
    .where(votes.c.workspace == bindparam("of_workspace"), votes.c.job_id == bindparam("of_job"))
    .values(reason=None)
)
_OF_JOB = and_(decisions.c.workspace == bindparam("of_workspace"), decisions.c.job_id == bindparam("of_job"))
_WORDS = update(decisions).where(_OF_JOB).values(answer=null(), reason=None)
_SHOWN = select(decisions.c.request_id, decisions.c.shown).where(_OF_JOB, decisions.c.shown.is_not(None))
_RETITLE = (
    update(decisions).where(_OF_JOB, decisions.c.request_id == bindparam("of_request")).values(shown=bindparam("told"))
)
_HEAD_BACK = (
    update(sessions)
    .where(
        sessions.c.workspace == bindparam("of_workspace"),
        sessions.c.session == bindparam("of_session"),
        sessions.c.conversation.is_not_distinct_from(bindparam("seen", type_=Text)),
    )
    .values(conversation=bindparam("back_to"))
)
_ENDED_BEFORE = (
    select(receipts.c.workspace, receipts.c.job_id, authorities.c.ended_at)
    .join(authorities, and_(authorities.c.workspace == receipts.c.workspace, authorities.c.job_id == receipts.c.job_id))
    .where(
        authorities.c.ended_at < bindparam("before"),
        authorities.c.ended_at > bindparam("since"),
        receipts.c.erased_at.is_(None),
    )
    .order_by(authorities.c.ended_at, receipts.c.seq)
    .limit(bindparam("at_most"))
)
_UNEMPTIED = (
    select(receipts.c.workspace, receipts.c.job_id)
    .where(receipts.c.erased_at < bindparam("before"), receipts.c.emptied_at.is_(None))
    .order_by(receipts.c.erased_at)
    .limit(bindparam("at_most"))
)
_EMPTIED = update(receipts).where(*_THIS).values(emptied_at=bindparam("at"))


def erase_job(
    conn: Connection, row: ReceiptRow, *, by: str, at: datetime, head: tuple[BlobRef, BlobRef | None] | None
) -> bool:
    """False where it was erased before. `head`: the session's conversation as it was seen, where that is the job's, and
    what it goes back to."""
    of = {"of_workspace": row.workspace, "of_job": row.job_id}
    if conn.execute(_ERASE, {**of, "gone_at": at}).first() is None:
        return False
    accept(conn, row.workspace, row.job_id, at)  # it has run, so its key is never started again
    conn.execute(_VOTES, of)
    conn.execute(_WORDS, of)
    for request_id, shown in conn.execute(_SHOWN, of).all():
        told: dict[str, Any] = {**shown, "title": ERASED_TITLE}
        conn.execute(_RETITLE, {**of, "of_request": request_id, "told": told})
    job_artifacts_gone(conn, row.workspace, row.job_id, at)
    if head is not None and row.session is not None:
        seen, back_to = head
        moved = {"of_workspace": row.workspace, "of_session": row.session, "seen": seen, "back_to": back_to}
        conn.execute(_HEAD_BACK, moved)
    record(conn, row.workspace, at=at, actor=by, action="job.erased", subject=row.job_id)
    return True


def ended_before(conn: Connection, *, before: datetime, since: datetime, limit: int) -> list[tuple[Job, datetime]]:
    """Jobs that ended between the two instants and still have their content, the oldest first."""
    asked = {"before": before, "since": since, "at_most": limit}
    return [((workspace, job_id), ended) for workspace, job_id, ended in conn.execute(_ENDED_BEFORE, asked)]


def unemptied(conn: Connection, *, before: datetime, limit: int) -> list[Job]:
    """Jobs erased before then whose blobs were not looked for again."""
    return [(workspace, job_id) for workspace, job_id in conn.execute(_UNEMPTIED, {"before": before, "at_most": limit})]


def mark_emptied(conn: Connection, workspace: Workspace, job_id: JobId, at: datetime) -> None:
    conn.execute(_EMPTIED, {"of_workspace": workspace, "of_job": job_id, "at": at})
