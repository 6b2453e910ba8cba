"""Reserving a key: receipt, authority and the session's place in one transaction, or nothing of it.

What the transaction finds in the way, it says by `StillOpen`: jobs that the ledger takes for open. Whether they are is
asked of the engine, outside of it.
"""

from collections.abc import Iterable
from typing import NoReturn

from sqlalchemy import Connection

from gateway.admissible import Admissible
from gateway.ledger.authorities import find_authority, insert_authority, open_authorities, replace_authority
from gateway.ledger.lines import hold_line, in_doubt_in_line, open_in_line
from gateway.ledger.receipts import ReceiptRow, Reservation, reserve, reserve_anew
from gateway.ledger.sessions import NewSession, continue_session, open_session
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import JobId

NAMED = 5
"""So many effects a refusal names."""
LOOKED_AT = 50
"""So many jobs of a line are asked after before a retry of it."""


class StillOpen(Refused):
    """As long as any of these jobs is open, this is the answer; the oldest come first."""

    def __init__(self, code: ProblemCode, detail: str, jobs: Iterable[JobId]) -> None:
        super().__init__(code, detail, retry_after_s=1)
        self.jobs = tuple(jobs)


def reserve_job(conn: Connection, asked: Admissible, workspace_open_jobs: int | None) -> Reservation:
    """Takes the key if it is free; a key that is taken stays with its first row, whatever limits say. Raises StillOpen,
    and then nothing is kept."""
    reservation = reserve(conn, asked.receipt)
    if reservation.created:
        _follow_alone(conn, asked)
        _make_room(conn, asked, workspace_open_jobs)
        insert_authority(conn, asked.authority)
        _take_session(conn, asked)
    return reservation


def reserve_job_anew(conn: Connection, asked: Admissible, workspace_open_jobs: int | None) -> ReceiptRow | None:
    """The same for a key whose start the engine refused; None when somebody else was first."""
    row = reserve_anew(conn, asked.receipt)
    if row is not None:
        _follow_alone(conn, asked)
        _make_room(conn, asked, workspace_open_jobs)
        replace_authority(conn, asked.authority)
        _take_session(conn, asked)
    return row


def _follow_alone(conn: Connection, asked: Admissible) -> None:
    """A retry follows a line of jobs that have all ended and whose effects are all known: of two that run at the same
    time each would not know what the other does. Raises StillOpen, or Refused(EFFECT_UNRECONCILED)."""
    start = asked.start
    if start.retry_of is None:
        return
    line, own = asked.receipt.line, start.job_id
    assert line is not None, "a retry is of a line"
    hold_line(conn, start.workspace, line, own)
    if jobs := open_in_line(conn, start.workspace, line, own, LOOKED_AT):
        raise StillOpen(ProblemCode.JOB_NOT_ENDED, "The job, or another retry of it, has not ended yet.", jobs)
    if unknown := in_doubt_in_line(conn, start.workspace, line, NAMED):
        raise Refused(
            ProblemCode.EFFECT_UNRECONCILED,
            "It is not known whether a write of the job took effect; a retry could repeat it. First somebody "
            f"finds out and settles it: {', '.join(unknown)}.",
        )


def _make_room(conn: Connection, asked: Admissible, workspace_open_jobs: int | None) -> None:
    workspace, principal, own = asked.authority.workspace, asked.authority.principal, asked.authority.job_id
    for bound, whose, of in (
        (asked.max_open, "This principal", principal),
        (workspace_open_jobs, "The workspace", None),
    ):
        if bound is None:
            continue
        found = open_authorities(conn, workspace, principal=of, limit=bound + 1)
        jobs = [row.job_id for row in found if row.job_id != own]
        if len(jobs) >= bound:
            detail = f"{whose} may have {bound} open jobs at a time. Try again when one has ended."
            raise StillOpen(ProblemCode.TOO_MANY_JOBS, detail, jobs)


def _take_session(conn: Connection, asked: Admissible) -> None:
    start, session = asked.start, asked.session
    if start.session is None:
        return
    if session is None:
        new = NewSession(
            workspace=start.workspace,
            session=start.session,
            plugin=start.plugin.name,
            version=start.plugin.version,
            plugin_digest=start.plugin.digest,
            snapshot=start.snapshot,
            by=asked.authority.submitted_by,
            at=start.accepted_at,
            last_job=start.job_id,
        )
        if not open_session(conn, new):
            _busy([])
        return
    if session.last_job == start.job_id:
        return
    last = find_authority(conn, session.workspace, session.last_job)
    if last is not None and last.ended_at is None:
        _busy([session.last_job])
    if not continue_session(
        conn, session.workspace, session.session, after=session.last_job, job_id=start.job_id, seen=session
    ):
        _busy([])


def _busy(jobs: list[JobId]) -> NoReturn:
    raise StillOpen(ProblemCode.SESSION_BUSY, "The session has an open job. Try again when it has ended.", jobs)
