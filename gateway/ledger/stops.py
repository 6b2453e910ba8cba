"""Stops: a job's `cancel_requested_at`, written once and never moved. No permit is given past one."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, and_, bindparam, select

from gateway.ledger.authority_tables import authorities
from gateway.ledger.journal import record
from gateway.ledger.receipts import lock_job
from gateway.ledger.tables import columns_of, insert_if_absent, stops
from workflows.contract.ids import JobId, PrincipalId, Workspace


@dataclass(frozen=True)
class StopRow:
    workspace: Workspace
    job_id: JobId
    requested_at: datetime
    by: PrincipalId


_COLUMNS = columns_of(StopRow, stops)
_STOP = insert_if_absent(stops).returning(*_COLUMNS)
_FIND = select(*_COLUMNS).where(stops.c.workspace == bindparam("workspace"), stops.c.job_id == bindparam("job_id"))

_OPEN = (
    select(*_COLUMNS)
    .join(authorities, and_(authorities.c.workspace == stops.c.workspace, authorities.c.job_id == stops.c.job_id))
    .where(
        authorities.c.ended_at.is_(None), stops.c.requested_at < bindparam("before", type_=stops.c.requested_at.type)
    )
    .order_by(stops.c.requested_at)
    .limit(bindparam("limit"))
)


def find_stop(conn: Connection, workspace: Workspace, job_id: JobId) -> StopRow | None:
    row = conn.execute(_FIND, {"workspace": workspace, "job_id": job_id}).first()
    return None if row is None else StopRow(*row)


def open_stops(conn: Connection, *, before: datetime, limit: int) -> list[StopRow]:
    """Stops from before then of jobs that are not known to have ended, the oldest first."""
    return [StopRow(*row) for row in conn.execute(_OPEN, {"before": before, "limit": limit})]


def stop_job(conn: Connection, workspace: Workspace, job_id: JobId, *, by: PrincipalId, at: datetime) -> StopRow | None:
    """The job's first stop, be it this one or an earlier one; None when there is no such job."""
    if not lock_job(conn, workspace, job_id):
        return None
    row = conn.execute(_STOP, {"workspace": workspace, "job_id": job_id, "requested_at": at, "by": by}).first()
    if row is None:
        return find_stop(conn, workspace, job_id)
    record(conn, workspace, at=at, actor=by, action="job.stopped", subject=job_id)
    return StopRow(*row)
