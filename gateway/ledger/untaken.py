"""Whether a job has taken the verdict on its request: marked when it reads it, else it is told of once more.

Each telling is an event of a history, and a job may never take what it is told (an operator's reset forgot the
request), so the pause before the next is as long as the verdict is old. Verdicts: gateway/ledger/decisions.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, and_, bindparam, or_, select, update

from gateway.ledger.authority_tables import authorities
from gateway.ledger.tables import decisions
from workflows.contract.ids import JobId, RequestId, Workspace

TAKEN_WITHIN = timedelta(seconds=4)
"""A verdict that its job has not read by then is told of once more."""


@dataclass(frozen=True, slots=True)
class Untaken:
    workspace: Workspace
    job_id: JobId
    request_id: RequestId
    decided_at: datetime


_OF_REQUEST = (
    decisions.c.workspace == bindparam("of_workspace"),
    decisions.c.job_id == bindparam("of_job"),
    decisions.c.request_id == bindparam("of_request"),
)
_TAKE = update(decisions).where(*_OF_REQUEST, decisions.c.taken_at.is_(None)).values(taken_at=bindparam("at"))
_DUE = and_(
    decisions.c.taken_at.is_(None),
    decisions.c.decided_at < bindparam("before"),
    or_(decisions.c.due_at.is_(None), decisions.c.due_at < bindparam("now")),
)
_UNTAKEN = (
    select(decisions.c.workspace, decisions.c.job_id, decisions.c.request_id, decisions.c.decided_at)
    .join(
        authorities, and_(authorities.c.workspace == decisions.c.workspace, authorities.c.job_id == decisions.c.job_id)
    )
    .where(_DUE, authorities.c.ended_at.is_(None))
    .order_by(decisions.c.decided_at, decisions.c.request_id)
    .limit(bindparam("at_most"))
)
_CLAIM = update(decisions).where(*_OF_REQUEST, _DUE).values(due_at=bindparam("next")).returning(decisions.c.job_id)


def take_decision(conn: Connection, workspace: Workspace, job_id: JobId, request_id: RequestId, at: datetime) -> None:
    """The job has read the verdict, so nobody needs to tell it; without a verdict nothing happens."""
    conn.execute(_TAKE, {"of_workspace": workspace, "of_job": job_id, "of_request": request_id, "at": at})


def untaken_decisions(conn: Connection, now: datetime, limit: int) -> Sequence[Untaken]:
    """Verdicts that an open job has not read and that are due to be told of; the oldest first."""
    due = {"before": now - TAKEN_WITHIN, "now": now, "at_most": limit}
    return [Untaken(*row) for row in conn.execute(_UNTAKEN, due)]


def claim_telling(conn: Connection, one: Untaken, now: datetime) -> bool:
    """Of several processes that find the same verdict untaken one tells its job."""
    of = {"of_workspace": one.workspace, "of_job": one.job_id, "of_request": one.request_id}
    due = {"before": now - TAKEN_WITHIN, "now": now, "next": now + (now - one.decided_at)}
    return conn.execute(_CLAIM, {**of, **due}).first() is not None
