"""Erasing a job's content, on request and after the time that `JOBGATE_CONTENT_RETENTION_DAYS` says.

First the ledger forgets in one transaction, from which no read shows anything any more; then the job's folder of blobs
is deleted, and once more after a while, because what still ran may have written late. Each step can be repeated, and
the sweep of the workers finishes what a process that died has begun. Receipt and audit stay.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from gateway.blobs import BlobMissing, Blobs, job_folder, upload_folder
from gateway.conversation import read_chunk
from gateway.ledger.artifacts import ArtifactRow, old_uploads, upload_gone
from gateway.ledger.engine import Ledger
from gateway.ledger.erasures import ended_before, erase_job, mark_emptied, unemptied
from gateway.ledger.receipts import ReceiptRow, find_receipt
from gateway.ledger.sessions import find_session
from gateway.telemetry import log
from gateway.temporal import Engine
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import BlobRef, JobId, Workspace

A_SWEEP = 50
"""So many jobs, and so many uploads, are looked at in one go."""
EMPTIED_AFTER = timedelta(minutes=10)
"""By then nothing of an ended job runs any more."""
RETENTION = "retention"
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Eraser:
    """One per process that erases."""

    ledger: Ledger
    blobs: Blobs
    engine: Engine

    async def erase(self, row: ReceiptRow, by: str) -> datetime:
        """Since when the content is gone, by this call or by the first. Raises Refused(JOB_NOT_ENDED)."""
        at = row.erased_at
        if at is None:
            if not await has_ended(self.engine, row):
                raise Refused(ProblemCode.JOB_NOT_ENDED, "The job has not ended; cancel it first.", retry_after_s=1)
            head = await self._head_of(row)
            now = datetime.now(UTC)
            await self.ledger.write(lambda conn: erase_job(conn, row, by=by, at=now, head=head))
            known = await self.ledger.read(lambda conn: find_receipt(conn, row.workspace, row.job_id))
            at = now if known is None or known.erased_at is None else known.erased_at
            log.info("content was erased", job=row.job_id, workspace=row.workspace, by=by)
        await self.blobs.erase(row.workspace, job_folder(row.job_id))
        return at

    async def _head_of(self, row: ReceiptRow) -> tuple[BlobRef, BlobRef | None] | None:
        """Where the session's conversation ends with this job: its head, and what was said before the job."""
        session = row.session
        if session is None:
            return None
        found = await self.ledger.read(lambda conn: find_session(conn, row.workspace, session))
        head = None if found is None else found.conversation
        before = head
        try:
            while before is not None:
                chunk = await read_chunk(self.blobs, row.workspace, before)
                if chunk.job != row.job_id:
                    break
                before = chunk.prev
        except BlobMissing:
            before = None
        return None if head is None or before == head else (head, before)


async def has_ended(engine: Engine, row: ReceiptRow) -> bool:
    """A job that the engine forgot has ended. Raises Refused for one that never started or may not have."""
    execution = await engine.describe(row.workspace, row.job_id)
    if execution is not None:
        return execution.ending is not None
    if row.refused_at is not None and not row.accepted:
        raise Refused(ProblemCode.NOT_FOUND, "There is no such job.")
    if not row.accepted:
        raise Refused(ProblemCode.ADMISSION_UNKNOWN, "It is not known whether the job started.", retry_after_s=1)
    return True


class Retention:
    """The sweep of one worker process; every one of them sweeps, and nothing is erased twice."""

    def __init__(self, eraser: Eraser, days: int | None, every_s: float) -> None:
        self._eraser = eraser
        self._kept = None if days is None else timedelta(days=days)
        self._every_s = every_s
        self._since = BEGINNING

    async def run(self) -> None:
        while True:
            try:
                await self.sweep(datetime.now(UTC))
            except Refused as refused:
                log.warning("the sweep of old content was put off", code=refused.code)
            except Exception as error:  # noqa: BLE001 - the next sweep tries again; a silent end would tell nobody
                log.error("the sweep of old content failed", exc_info=error)
            await asyncio.sleep(self._every_s)

    async def sweep(self, now: datetime) -> None:
        """Bounded; whoever is left is next."""
        await self._finish(now)
        if self._kept is not None:
            await self._erase_jobs(now - self._kept)
            await self._erase_uploads(now - self._kept, now)

    async def _finish(self, now: datetime) -> None:
        """Once more over what was erased a while ago, and for the first time where its process died in between."""
        ledger = self._eraser.ledger
        for workspace, job_id in await ledger.read(
            lambda conn: unemptied(conn, before=now - EMPTIED_AFTER, limit=A_SWEEP)
        ):
            await self._eraser.blobs.erase(workspace, job_folder(job_id))
            await ledger.write(_emptied(workspace, job_id, now))

    async def _erase_jobs(self, before: datetime) -> None:
        since, ledger = self._since, self._eraser.ledger
        ended = await ledger.read(lambda conn: ended_before(conn, before=before, since=since, limit=A_SWEEP))
        for (workspace, job_id), at in ended:
            row = await ledger.read(_receipt(workspace, job_id))
            if row is not None:
                await self._erase(row)
            # The next sweep begins with whoever ended at that very time, too.
            self._since = at - timedelta(microseconds=1)
        if len(ended) < A_SWEEP:
            self._since = BEGINNING

    async def _erase(self, row: ReceiptRow) -> None:
        """A job that an operator has reset meanwhile is open again, and keeps what it holds."""
        try:
            await self._eraser.erase(row, RETENTION)
        except Refused as refused:
            if refused.problem.status >= 500:
                raise

    async def _erase_uploads(self, before: datetime, now: datetime) -> None:
        ledger = self._eraser.ledger
        for row in await ledger.read(lambda conn: old_uploads(conn, before=before, limit=A_SWEEP)):
            await self._eraser.blobs.erase(row.workspace, upload_folder(row.artifact_id))
            await ledger.write(_upload_gone(row, now))


def _receipt(workspace: Workspace, job_id: JobId) -> Callable[[Connection], ReceiptRow | None]:
    return lambda conn: find_receipt(conn, workspace, job_id)


def _emptied(workspace: Workspace, job_id: JobId, at: datetime) -> Callable[[Connection], None]:
    return lambda conn: mark_emptied(conn, workspace, job_id, at)


def _upload_gone(row: ArtifactRow, at: datetime) -> Callable[[Connection], None]:
    return lambda conn: upload_gone(conn, row.artifact_id, at)
