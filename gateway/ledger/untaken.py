"""Whether a job has taken the verdict on its request: marked when it reads it, else it is told of once more.

The verdict itself: gateway/ledger/decisions.py.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, func, select, update

from gateway.ledger.authority_tables import authorities
from gateway.ledger.tables import decisions
from workflows.contract.ids import JobId, RequestId, Workspace

_OF_REQUEST = (
    decisions.c.workspace == bindparam("of_workspace"),
    decisions.c.job_id == bindparam("of_job"),
    decisions.c.request_id == bindparam("of_request"),
)
_TAKE = update(decisions).where(*_OF_REQUEST, decisions.c.taken_at.is_(None)).values(taken_at=bindparam("at"))
_UNHEARD = and_(
    decisions.c.taken_at.is_(None), func.coalesce(decisions.c.told_at, decisions.c.decided_at) < bindparam("before")
)
_UNTAKEN = (
    select(decisions.c.workspace, decisions.c.job_id, decisions.c.request_id)
    .join(
        authorities, and_(authorities.c.workspace == decisions.c.workspace, authorities.c.job_id == decisions.c.job_id)
    )
    .where(_UNHEARD, authorities.c.ended_at.is_(None))
    .order_by(decisions.c.decided_at, decisions.c.request_id)
    .limit(bindparam("at_most"))
)
_CLAIM = update(decisions).where(*_OF_REQUEST, _UNHEARD).values(told_at=bindparam("at")).returning(decisions.c.job_id)


def take_decision(conn: Connection, workspace: Workspace, job_id: JobId, request_id: RequestId, at: datetime) -> None:
    """The job has read the verdict, so nobody needs to tell it; without a verdict nothing happens."""
    conn.execute(_TAKE, {**_named(workspace, job_id, request_id), "at": at})


def untaken_decisions(
    conn: Connection, *, before: datetime, limit: int
) -> Sequence[tuple[Workspace, JobId, RequestId]]:
    """Verdicts that an open job has not read, and was not told of since `before`; the oldest first."""
    return [(row[0], row[1], row[2]) for row in conn.execute(_UNTAKEN, {"before": before, "at_most": limit})]


def claim_telling(
    conn: Connection, workspace: Workspace, job_id: JobId, request_id: RequestId, *, before: datetime, at: datetime
) -> bool:
    """Of several processes that find the same verdict untaken one tells its job."""
    of = {**_named(workspace, job_id, request_id), "before": before, "at": at}
    return conn.execute(_CLAIM, of).first() is not None


def _named(workspace: Workspace, job_id: JobId, request_id: RequestId) -> dict[str, Any]:
    return {"of_workspace": workspace, "of_job": job_id, "of_request": request_id}
