"""The leave to call, judged against what is true now: for every call the ledger, for a write the engine as well.

`admit` is one read of the ledger; model, read and write begin with it. `take` is a permit to send one write: one engine
read and one transaction that ends with the next epoch. A permit lives 250 ms: it is taken when the connection stands.
Every refusal is a StepError and means that nothing was sent.
"""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection

from gateway import authority
from gateway.calls.attempts import Attempt
from gateway.ledger import effects
from gateway.ledger.decisions import find_decision
from gateway.ledger.effects import Intent
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import grants_of
from gateway.ledger.phases import resolve
from gateway.ledger.receipts import ReceiptRow, accept, find_receipt, lock_job
from gateway.ledger.stops import find_stop
from gateway.metrics import Metrics
from gateway.temporal import Engine
from workflows.contract.errors import StepCode, StepError
from workflows.contract.ids import Digest, RequestId

PERMIT_LIVES_S = 0.25


@dataclass(frozen=True, slots=True)
class Granted:
    """`at` is of the monotonic clock, in seconds, taken before the transaction ended."""

    epoch: int
    at: float


@dataclass(frozen=True, slots=True)
class Denied:
    code: StepCode
    reason: str

    def error(self) -> StepError:
        return StepError(self.code, self.reason)


NO_RECEIPT = Denied(StepCode.NO_RECEIPT, "This was not started by an admitted job; nothing was called.")
STOPPED = Denied(StepCode.STOPPED, "The job is being canceled; nothing was sent.")
STALE = Denied(StepCode.STALE, "This attempt is not the current one any more; nothing was sent.")


def examine(conn: Connection, attempt: Attempt, now: datetime) -> ReceiptRow | Denied:
    """The job's receipt, if the job may call anything at all now. The first reason that matches is the answer."""
    row = find_receipt(conn, attempt.workspace, attempt.job_id)
    if row is None or row.mode != "live":
        return NO_RECEIPT
    if find_stop(conn, attempt.workspace, attempt.job_id) is not None:
        return STOPPED
    if now >= row.deadline_at:
        return Denied(StepCode.DEADLINE, "The deadline has passed; nothing was sent.")
    version = resolve(conn, row.workspace, row.plugin, row.version)
    if version is None or version.plugin_digest != row.plugin_digest:
        return Denied(StepCode.SNAPSHOT_MISMATCH, "The published version is not the one the job was admitted with.")
    if not version.version_phase == version.runtime_phase == "live":
        return Denied(StepCode.PHASE_CLOSED, "This version (or the runtime) is not live any more; nothing was sent.")
    grants = grants_of(conn, row.workspace, row.principal, now)
    if isinstance(authority.granted(grants, authority.Action.JOBS_SUBMIT, row.plugin, now), authority.Denied):
        return Denied(StepCode.AUTHORITY_REVOKED, "The principal's grant on this plugin is not valid any more.")
    return row


def decided(conn: Connection, attempt: Attempt, request_id: RequestId | None, action: Digest) -> Denied | None:
    """Whether a person approved this very action; the decision must exist where the policy asks."""
    if request_id is None:
        return Denied(StepCode.REJECTED, "The policy asks a person first, and nobody was asked.")
    decision = find_decision(conn, attempt.workspace, attempt.job_id, request_id)
    if decision is None or decision.decision != "approve" or decision.action_digest != action:
        return Denied(StepCode.REJECTED, "No approval covers this call.")
    return None


def permit(
    conn: Connection, attempt: Attempt, intent: Intent, seen_epoch: int, *, now: datetime | None = None
) -> Granted | Denied:
    """One transaction, with the job's row held: every check again, then epoch + 1 and `sent_at`.

    `intent.request_id` is set where the policy asks. `seen_epoch` is what the caller's headers were built on.
    """
    lock_job(conn, attempt.workspace, attempt.job_id)
    now = now or datetime.now(UTC)  # with the row held, so that times of permits and stops are in the order of commits
    row = examine(conn, attempt, now)
    if isinstance(row, Denied):
        return row
    if not row.accepted:
        return NO_RECEIPT
    if intent.request_id is not None:
        refusal = decided(conn, attempt, intent.request_id, intent.action_digest)
        if refusal is not None:
            return refusal
        spent = effects.spent_on(conn, attempt.workspace, attempt.job_id, intent.request_id)
        if spent not in (None, intent.effect_id):
            return Denied(StepCode.REJECTED, "The approval was used for another effect.")
    epoch = effects.mark_sent(conn, intent, seen_epoch=seen_epoch, at=now)
    return STALE if epoch is None else Granted(epoch, time.monotonic())


class Permits:
    """One per process."""

    def __init__(self, ledger: Ledger, engine: Engine, metrics: Metrics) -> None:
        self._ledger = ledger
        self._engine = engine
        self._metrics = metrics

    async def admit(self, attempt: Attempt) -> ReceiptRow:
        """The job's receipt. Raises StepError where the job may not call anything now."""
        row = await self._ledger.read(lambda conn: examine(conn, attempt, datetime.now(UTC)))
        if isinstance(row, Denied):
            raise await self.refuse(attempt, row)
        if not row.accepted:
            await self._confirm(attempt, row)
        return row

    async def need_decision(self, attempt: Attempt, request_id: RequestId | None, action: Digest) -> None:
        """For a call without an effect row that the policy asks about."""
        refusal = await self._ledger.read(lambda conn: decided(conn, attempt, request_id, action))
        if refusal is not None:
            raise await self.refuse(attempt, refusal)

    async def take(self, attempt: Attempt, intent: Intent, seen_epoch: int) -> Granted:
        """The permit to send this write now. Raises StepError, and then nothing is sent."""
        stop, standing = await asyncio.gather(
            self._ledger.read(lambda conn: find_stop(conn, attempt.workspace, attempt.job_id)),
            self._engine.standing(
                attempt.workspace,
                attempt.job_id,
                run_id=attempt.run_id,
                activity_id=attempt.activity_id,
                attempt=attempt.number,
            ),
        )
        if standing != "current":
            raise await self.refuse(attempt, STOPPED if standing == "stopped" else STALE)
        given = await self._ledger.write_grouped(
            lambda conn: permit(conn, attempt, intent, seen_epoch), key=attempt.key
        )
        if isinstance(given, Denied):
            raise await self.refuse(attempt, given)
        if stop is not None:  # read apart from the permit, so that it tells on a permit that overlooked it
            self._metrics.writes_after_cancel.add(1)
        if time.monotonic() - given.at > PERMIT_LIVES_S:
            await self.give_back(attempt, intent, given)
            raise await self.refuse(attempt, Denied(StepCode.STALE, "The permit ran out before anything was sent."))
        self._metrics.permits.add(1, {"outcome": "granted"})
        return given

    async def give_back(self, attempt: Attempt, intent: Intent, given: Granted) -> None:
        """Nothing left under this permit: the next attempt may take another one."""
        await self._ledger.write_grouped(
            lambda conn: effects.mark_not_sent(conn, intent.effect_id, given.epoch), key=attempt.key
        )

    async def refuse(self, attempt: Attempt, denied: Denied) -> StepError:
        """The error to raise; a stop also cancels the workflow, because whoever set it may have died before that."""
        self._metrics.permits.add(1, {"outcome": denied.code.value})
        if denied.code is StepCode.STOPPED:
            await self._engine.cancel(attempt.workspace, attempt.job_id)
        return denied.error()

    async def _confirm(self, attempt: Attempt, row: ReceiptRow) -> None:
        """A running job whose acceptance is not recorded yet: the engine knows it, if it is the job of this receipt."""
        execution = await self._engine.describe(attempt.workspace, attempt.job_id)
        if execution is None or execution.memo.fingerprint != row.fingerprint:
            raise await self.refuse(attempt, NO_RECEIPT)
        await self._ledger.write_grouped(
            lambda conn: accept(conn, attempt.workspace, attempt.job_id, datetime.now(UTC)), key=attempt.key
        )
