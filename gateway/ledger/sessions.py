"""Sessions: a line of jobs that share one snapshot and one conversation; one of them is open at a time.

The first job that names a session creates it and binds its snapshot for ever. `last_job` moves by compare-and-set from
a job that has ended to the next one, so of racing submissions one wins. The head of the conversation moves on with the
last job's model steps only.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Text, and_, bindparam, or_, select, update

from gateway.ledger.tables import columns_of, insert_if_absent, receipts, sessions
from workflows.contract.ids import BlobRef, Digest, JobId, PluginName, PrincipalId, Workspace
from workflows.contract.job import Mode


@dataclass(frozen=True)
class NewSession:
    workspace: Workspace
    session: str
    plugin: PluginName
    version: str
    plugin_digest: Digest
    snapshot: Digest
    by: PrincipalId
    at: datetime
    last_job: JobId


@dataclass(frozen=True)
class SessionRow(NewSession):
    """`conversation` is the head of the chain; None until the first answer of a model."""

    conversation: BlobRef | None
    head_step: int
    head_attempt: int


@dataclass(frozen=True)
class SessionJob:
    """A job of a session, without what it holds. `seq` orders the jobs; the engine did not refuse it."""

    seq: int
    job_id: JobId
    mode: Mode
    reserved_at: datetime
    confirmed_at: datetime | None
    erased_at: datetime | None


_COLUMNS = columns_of(SessionRow, sessions)
_JOBS = (
    select(*columns_of(SessionJob, receipts))
    .where(
        receipts.c.workspace == bindparam("of_workspace"),
        receipts.c.session == bindparam("of_session"),
        receipts.c.refused_at.is_(None),
    )
    .order_by(receipts.c.seq)
)
_INPUTS = select(receipts.c.job_id, receipts.c.job_input).where(
    receipts.c.workspace == bindparam("of_workspace"), receipts.c.job_id.in_(bindparam("jobs", expanding=True))
)
_INSERT = insert_if_absent(sessions).returning(sessions.c.session)
_THIS = (sessions.c.workspace == bindparam("of_workspace"), sessions.c.session == bindparam("of_session"))
_FIND = select(*_COLUMNS).where(*_THIS)
_NEXT = (
    update(sessions)
    .where(*_THIS, sessions.c.last_job == bindparam("expected"))
    .values(last_job=bindparam("next_job"), head_step=0, head_attempt=0)
    .returning(sessions.c.session)
)
_UNMOVED = _NEXT.where(sessions.c.conversation.is_not_distinct_from(bindparam("seen_head", type_=Text)))
_HEAD = (
    update(sessions)
    .where(
        *_THIS,
        sessions.c.last_job == bindparam("of_job"),
        or_(
            sessions.c.head_step < bindparam("step"),
            and_(sessions.c.head_step == bindparam("step"), sessions.c.head_attempt <= bindparam("attempt")),
        ),
    )
    .values(conversation=bindparam("head"), head_step=bindparam("step"), head_attempt=bindparam("attempt"))
)


def find_session(conn: Connection, workspace: Workspace, session: str) -> SessionRow | None:
    row = conn.execute(_FIND, {"of_workspace": workspace, "of_session": session}).first()
    return None if row is None else SessionRow(*row)


def open_session(conn: Connection, new: NewSession) -> bool:
    """Creates the session with its first job; False when there is one of this name already."""
    values = {**vars(new), "conversation": None, "head_step": 0, "head_attempt": 0}
    return conn.execute(_INSERT, values).first() is not None


def continue_session(
    conn: Connection,
    workspace: Workspace,
    session: str,
    *,
    after: JobId,
    job_id: JobId,
    seen: SessionRow | None = None,
) -> bool:
    """Makes `job_id` the session's job in place of `after`, which has ended; False when another was first.

    `seen`: the row whose conversation the next job starts with; False too where that has moved on since.
    """
    of = {"of_workspace": workspace, "of_session": session, "expected": after, "next_job": job_id}
    if seen is None:
        return conn.execute(_NEXT, of).first() is not None
    return conn.execute(_UNMOVED, {**of, "seen_head": seen.conversation}).first() is not None


def move_head(
    conn: Connection,
    workspace: Workspace,
    session: str,
    *,
    job_id: JobId,
    step: int,
    attempt: int,
    conversation: BlobRef,
) -> None:
    """The conversation as of this attempt's answer; an older step or attempt, or a job that is not the last, moves
    nothing."""
    of = {
        "of_workspace": workspace,
        "of_session": session,
        "of_job": job_id,
        "step": step,
        "attempt": attempt,
        "head": conversation,
    }
    conn.execute(_HEAD, of)


def session_jobs(conn: Connection, workspace: Workspace, session: str) -> list[SessionJob]:
    """Oldest first."""
    rows = conn.execute(_JOBS, {"of_workspace": workspace, "of_session": session})
    return [SessionJob(*row) for row in rows]


def inputs_of(conn: Connection, workspace: Workspace, jobs: Collection[JobId]) -> Mapping[JobId, bytes]:
    """The inputs of these jobs of the workspace, as JSON."""
    rows = conn.execute(_INPUTS, {"of_workspace": workspace, "jobs": list(jobs)})
    return {row.job_id: row.job_input for row in rows}
