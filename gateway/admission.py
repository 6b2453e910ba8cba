"""Admission: from a body and a key to a receipt. Accepted means kept; one key, one job, for ever.

The order is the protocol (design.md section 5 and 6): parse, fingerprint, receipt look-up (found: replay or 422, and
nothing else is evaluated), resolve and judge, reserve, start, answer, accept. No model or tool is reachable from here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from facade.reader import Execution
from gateway.admissible import Admissible, as_started
from gateway.changes import accept_job
from gateway.jobrequest import JobRequest, RetryIn, fingerprint, fingerprint_of_retry, read_job_request
from gateway.judging import Judge
from gateway.known import look
from gateway.ledger.authorities import mark_ended
from gateway.ledger.engine import Ledger
from gateway.ledger.receipts import NewReceipt, ReceiptRow, Reservation, adopt, find_receipt, mark_refused
from gateway.metrics import Metrics
from gateway.reserving import StillOpen, reserve_job, reserve_job_anew
from gateway.retrying import again, look_at_source
from gateway.scopes import Caller
from gateway.telemetry import log
from gateway.temporal import Engine, StartRefused
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import Digest, JobId, Workspace
from workflows.contract.job import JobStart
from workflows.contract.steps import Hint

RESERVATION_S = 600
"""How long a reservation that is not accepted may still start its job."""
LOOKED_AT_ONCE = 64
"""Of jobs that stand in a new one's way, how many are asked for; the oldest, which are the likeliest to have ended."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """`receipt` is the exact body of every answer for this key; `created` tells 202 from a replay's 200."""

    job_id: JobId
    receipt: bytes
    created: bool


class Admission:
    def __init__(
        self,
        ledger: Ledger,
        judge: Judge,
        engine: Engine,
        metrics: Metrics,
        workspace_open_jobs: int | None = None,
    ) -> None:
        self._workspace_open_jobs = workspace_open_jobs
        self._ledger = ledger
        self._judge = judge
        self._engine = engine
        self._metrics = metrics
        self._background: set[asyncio.Task[Any]] = set()

    async def admit(self, caller: Caller, key: JobId, body: bytes, until: float) -> Admitted:
        """Admit one job by the request clock's end `until` (event loop time). Raises Refused, and then says whether
        anything may have started: 504 nothing did, 503 `admission-unknown` it may and the same key resolves it."""
        asked = read_job_request(body)
        print_ = fingerprint(caller.principal, asked)
        return await self._in_time(lambda sent: self._admit(caller, key, asked, print_, sent), until)

    async def retry(self, caller: Caller, key: JobId, source: str, asked: RetryIn, until: float) -> Admitted:
        """Admit a job that has ended once more, under a key of its own. Raises Refused as `admit` does, and NOT_FOUND,
        NOT_PERMITTED, JOB_NOT_ENDED, EFFECT_UNRECONCILED."""
        print_ = fingerprint_of_retry(caller.principal, JobId(source), asked)
        return await self._in_time(lambda sent: self._retry(caller, key, JobId(source), asked, print_, sent), until)

    async def _in_time(self, admitting: Callable[[asyncio.Event], Awaitable[Admitted]], until: float) -> Admitted:
        sent = asyncio.Event()
        try:
            async with asyncio.timeout_at(until):
                return await admitting(sent)
        except TimeoutError:
            if sent.is_set():
                raise unknown() from None
            raise Refused(
                ProblemCode.HTTP_DEADLINE_EXCEEDED,
                "The request clock ran out before the job was started: nothing started. Send the same key again.",
            ) from None

    async def close(self) -> None:
        """Let acceptances that follow their answers reach the ledger."""
        if self._background:
            await asyncio.wait(self._background, timeout=3)

    async def _retry(
        self, caller: Caller, key: JobId, source: JobId, asked: RetryIn, print_: Digest, sent: asyncio.Event
    ) -> Admitted:
        row, repeated = await self._ledger.read(partial(look_at_source, caller, key, source))
        if row is not None and not (row.refused_at and not row.accepted):
            return await self._replay(row, print_, sent)
        if repeated is None:
            raise Refused(ProblemCode.NOT_FOUND, "There is no such job.")
        if not repeated.accepted and await self._engine.describe(caller.workspace, source) is None:
            raise unknown()
        return await self._admit(caller, key, again(repeated, asked), print_, sent)

    async def _admit(
        self, caller: Caller, key: JobId, asked: JobRequest, print_: Digest, sent: asyncio.Event
    ) -> Admitted:
        known = await self._ledger.read(partial(look, caller, key, asked))
        if known.row is not None and not (known.row.refused_at and not known.row.accepted):
            return await self._replay(known.row, print_, sent)
        if known.row is not None and known.row.fingerprint != print_:
            raise reused()
        new = await self._judge.judge(caller, key, asked, print_, known)
        if known.row is not None:
            row = await self._reserve_refused(new)
            return await self._replay(row, print_, sent)
        reservation = await self._reserve(new)
        if not reservation.created:
            return await self._replay(reservation.row, print_, sent)
        return await self._start(reservation.row, new.start, sent)

    # ---- a key that is free

    async def _reserve(self, new: Admissible) -> Reservation:
        """Once more where jobs that the ledger took for open turn out to have ended. Raises Refused."""
        fn = partial(reserve_job, asked=new, workspace_open_jobs=self._workspace_open_jobs)
        write = partial(self._ledger.write_grouped, fn, key=f"{new.start.workspace}.{new.start.job_id}")
        if new.start.retry_of is not None:  # it locks other jobs' rows, so it has no companions that may hold one
            write = partial(self._ledger.write, fn)
        try:
            return await write()
        except StillOpen as full:
            if not await self._note_ends(new.start.workspace, full.jobs):
                raise
            return await write()

    async def _note_ends(self, workspace: Workspace, jobs: Sequence[JobId]) -> bool:
        """Whether any of these jobs has ended; those that have are open no more."""
        now = datetime.now(UTC)
        looked = await asyncio.gather(*(self._ended(workspace, job_id) for job_id in jobs[:LOOKED_AT_ONCE]))
        ended = [(workspace, job_id) for job_id, over in zip(jobs, looked, strict=False) if over]
        if ended:
            await self._ledger.write(lambda conn: mark_ended(conn, ended, now))
        return bool(ended)

    async def _ended(self, workspace: Workspace, job_id: JobId) -> bool:
        """A reservation that may still start is open; one that the engine refused is not, nor is a job it forgot."""
        # The ledger first: a job that starts between the two looks is then found, and not taken for a forgotten one.
        row = await self._ledger.read(lambda conn: find_receipt(conn, workspace, job_id))
        execution = await self._engine.describe(workspace, job_id)
        if execution is not None:
            return execution.ending is not None
        if row is None or row.accepted or row.refused_at is not None:
            return True
        return datetime.now(UTC) - row.reserved_at > timedelta(seconds=RESERVATION_S)

    # ---- a key that is known

    async def _replay(self, row: ReceiptRow, print_: Digest, sent: asyncio.Event) -> Admitted:
        """The first receipt again, byte for byte; where the first call died, bring its start to an end first."""
        if row.fingerprint != print_:
            self._metrics.admissions.add(1, {"outcome": "reused"})
            raise reused()
        if row.accepted:
            self._metrics.admissions.add(1, {"outcome": "replayed"})
            return Admitted(row.job_id, row.receipt, created=False)
        if datetime.now(UTC) - row.reserved_at <= timedelta(seconds=RESERVATION_S):
            return await self._start(row, JobStart.model_validate_json(row.start_input), sent)
        if not await self._engine.holds(row.workspace, row.job_id):
            raise Refused(
                ProblemCode.ADMISSION_EXPIRED,
                "This key was reserved, but its job never started, and the reservation expired. Use a new key.",
            )
        return await self._found(row)

    async def _reserve_refused(self, new: Admissible) -> ReceiptRow:
        """A key whose start the engine refused is reserved anew, once the engine surely holds no such job. Where it
        holds one, or somebody was first, the row as it stands: its start tells whose job that is."""
        workspace, job_id = new.start.workspace, new.start.job_id
        if not await self._engine.holds(workspace, job_id):
            row = await self._ledger.write(
                partial(reserve_job_anew, asked=new, workspace_open_jobs=self._workspace_open_jobs)
            )
            if row is not None:
                return row
        return await self._row(new.receipt)

    # ---- start and accept

    async def _start(self, row: ReceiptRow, start: JobStart, sent: asyncio.Event) -> Admitted:
        sent.set()
        try:
            started = await self._engine.start(row.start_input, start)
        except StartRefused:
            await self._ledger.write_grouped(
                lambda conn: mark_refused(conn, row.workspace, row.job_id, datetime.now(UTC)), key=_lock(row)
            )
            self._metrics.admissions.add(1, {"outcome": "refused"})
            raise Refused(
                ProblemCode.ENGINE_UNAVAILABLE,
                "The workflow engine refused the job: nothing started. An operator must run `jobgate setup`.",
                retry_after_s=5,
            ) from None
        except Refused:
            raise unknown() from None
        if started.outcome == "exists":
            return await self._found(row)
        self._accept(row, started.first_run)
        self._metrics.admissions.add(1, {"outcome": "accepted"})
        return Admitted(row.job_id, row.receipt, created=True)

    async def _found(self, row: ReceiptRow) -> Admitted:
        """The engine holds the job already. A ledger that was put back to an older state does not remember it: the
        reservation then says what the job's own receipt said, to the byte, before it is accepted."""
        execution = await self._ours(row)
        if execution.memo.accepted_at != row.reserved_at:
            first = as_started(row, execution.memo)
            row = await self._ledger.write(lambda conn: adopt(conn, first)) or await self._row(row)
            log.warning("admission.receipt_restored", job=row.job_id, workspace=row.workspace)
        self._accept(row, execution.first_run)
        self._metrics.admissions.add(1, {"outcome": "replayed"})
        return Admitted(row.job_id, row.receipt, created=False)

    async def _row(self, of: NewReceipt) -> ReceiptRow:
        row = await self._ledger.read(lambda conn: find_receipt(conn, of.workspace, of.job_id))
        assert row is not None, "rows are never deleted"
        return row

    async def _ours(self, row: ReceiptRow) -> Execution:
        """An execution holds this id: it is this job only if it carries this fingerprint."""
        found = await self._engine.describe(row.workspace, row.job_id)
        if found is not None and found.memo.fingerprint == row.fingerprint:
            return found
        if found is None and not await self._engine.holds(row.workspace, row.job_id):
            raise unknown()
        log.error("admission.key_taken_outside", job=row.job_id, workspace=row.workspace)
        self._metrics.keys_taken_outside.add(1)
        raise Refused(
            ProblemCode.KEY_TAKEN_OUTSIDE, "A workflow that Jobgate did not start holds this key. Use a new key."
        )

    def _accept(self, row: ReceiptRow, first_run: str | None) -> None:
        """Record that the engine knows the job. May follow the answer: every later reader converges."""

        async def record() -> None:
            hints = await self._ledger.write_grouped(
                lambda conn: accept_job(conn, row, datetime.now(UTC), first_run), key=_lock(row)
            )
            if Hint.AUTHORITY in hints:
                await self._engine.hint_authority(row.workspace, row.job_id)
            if Hint.GATE in hints:
                await self._engine.hint_gate(row.workspace, row.job_id)

        self._later(record())

    def _later(self, work: Coroutine[Any, Any, Any]) -> None:
        async def quietly() -> None:
            try:
                await work
            except Refused as refused:
                log.warning("admission.accept_postponed", code=refused.code)

        task = asyncio.create_task(quietly())
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _lock(row: ReceiptRow) -> str:
    return f"{row.workspace}.{row.job_id}"


def reused() -> Refused:
    return Refused(
        ProblemCode.IDEMPOTENCY_KEY_REUSED,
        "This Idempotency-Key was used with other content. Nothing was changed; use a new key for a new job.",
    )


def unknown() -> Refused:
    return Refused(
        ProblemCode.ADMISSION_UNKNOWN,
        "It is not yet known whether the job started. Send the same request with the same key again.",
        retry_after_s=1,
    )
