"""The leave to call, judged against what is true now: for every call the ledger, for a write the engine as well.

`admit` is one read of the ledger; model, read and write begin with it. `take` is a permit to send one write: one engine
read and one transaction that ends with the next epoch. A permit lives 250 ms: it is taken when the connection stands.
Every refusal is a StepError and means that nothing was sent.
"""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy import Connection

from gateway.authority import Action, granted
from gateway.authority import Denied as Ungranted
from gateway.calls.attempts import Attempt
from gateway.changes import accept_job
from gateway.ledger import effects
from gateway.ledger.authorities import AuthorityRow, find_authority, mark_open, renew_authority
from gateway.ledger.decisions import find_decision
from gateway.ledger.effects import Intent
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import grants_of
from gateway.ledger.phases import resolve
from gateway.ledger.receipts import ReceiptRow, find_receipt, lock_job
from gateway.ledger.sessions import move_head
from gateway.ledger.spending import Spent, record_spent
from gateway.ledger.stops import find_stop
from gateway.metrics import Metrics
from gateway.temporal import Engine
from workflows.contract.errors import StepCode, StepError
from workflows.contract.ids import BlobRef, Digest, PrincipalId, RequestId

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


@dataclass(frozen=True, slots=True)
class Standing:
    """A job that may call now, and the authority that it calls on."""

    receipt: ReceiptRow
    authority: AuthorityRow


def examine(
    conn: Connection, attempt: Attempt, now: datetime, *, hold: bool = False, gated: bool = True
) -> Standing | Denied:
    """Whether the job may call anything at all now. The first reason that matches is the answer. `hold`: its authority
    stays as it was found until the transaction ends. `gated` False: for a job that is held, and calls nothing yet."""
    row = find_receipt(conn, attempt.workspace, attempt.job_id)
    if row is None or row.mode != "live":
        return NO_RECEIPT
    authority = find_authority(conn, attempt.workspace, attempt.job_id, hold=hold)
    if authority is None:
        return NO_RECEIPT
    if find_stop(conn, attempt.workspace, attempt.job_id) is not None:
        return STOPPED
    if now >= row.deadline_at:
        return Denied(StepCode.DEADLINE, "The deadline has passed; nothing was sent.")
    if authority.revoked_at is not None:
        return Denied(StepCode.AUTHORITY_REVOKED, authority.revoked_reason or "The job's authority was revoked.")
    version = resolve(conn, row.workspace, row.plugin, row.version)
    if version is None or version.plugin_digest != row.plugin_digest:
        return Denied(StepCode.SNAPSHOT_MISMATCH, "The published version is not the one the job was admitted with.")
    if version.withdrawn:
        return Denied(StepCode.PHASE_CLOSED, "This version was withdrawn; nothing was sent.")
    if gated and not version.version_phase == version.runtime_phase == "live":
        return Denied(StepCode.PHASE_CLOSED, "This version (or the runtime) is not live any more; nothing was sent.")
    grants = grants_of(conn, row.workspace, row.principal, now)
    if isinstance(granted(grants, Action.JOBS_SUBMIT, row.plugin, now), Ungranted):
        return Denied(StepCode.AUTHORITY_REVOKED, "The principal's grant on this plugin is not valid any more.")
    return Standing(row, authority)


def decided(
    conn: Connection, job: ReceiptRow, request_id: RequestId | None, action: Digest, now: datetime
) -> Denied | None:
    """Whether people approved this very action, and may still decide; the decision must exist where the policy asks."""
    if request_id is None:
        return Denied(StepCode.REJECTED, "The policy asks a person first, and nobody was asked.")
    decision = find_decision(conn, job.workspace, job.job_id, request_id)
    if decision is None or decision.decision != "approve" or decision.action_digest != action:
        return Denied(StepCode.REJECTED, "No approval covers this call.")
    for person in decision.decided_by:
        if not may_decide(conn, job, person, now):
            return Denied(StepCode.AUTHORITY_REVOKED, "Somebody who approved this call may not decide any more.")
    return None


def spent_on_call(receipt: ReceiptRow, step: int, call: int, attempt: int, now: datetime) -> Spent:
    """A tool call is a step on the principal's bill, and costs no tokens."""
    return Spent(
        workspace=receipt.workspace,
        job_id=receipt.job_id,
        step=step,
        call=call,
        attempt=attempt,
        principal=receipt.principal,
        plugin=receipt.plugin,
        kind="tool",
        input_tokens=0,
        output_tokens=0,
        cost_usd=Decimal(0),
        estimated=False,
        at=now,
    )


def may_decide(conn: Connection, job: ReceiptRow, person: PrincipalId, now: datetime) -> bool:
    """Whether this person's grants still let them decide about jobs of this plugin."""
    grants = grants_of(conn, job.workspace, person, now)
    return not isinstance(granted(grants, Action.JOBS_DECIDE, job.plugin, now), Ungranted)


def permit(
    conn: Connection,
    attempt: Attempt,
    intent: Intent,
    seen_epoch: int,
    *,
    authority_ttl: timedelta = timedelta(minutes=5),
    now: datetime | None = None,
) -> Granted | Denied:
    """One transaction, with the job's row held: every check again, then epoch + 1 and `sent_at`.

    `intent.request_id` is set where the policy asks. `seen_epoch` is what the caller's headers were built on.
    """
    lock_job(conn, attempt.workspace, attempt.job_id)
    now = now or datetime.now(UTC)  # with the row held, so that times of permits and stops are in the order of commits
    standing = examine(conn, attempt, now, hold=True)
    if isinstance(standing, Denied):
        return standing
    if not standing.receipt.accepted:
        return NO_RECEIPT
    if intent.request_id is not None:
        refusal = decided(conn, standing.receipt, intent.request_id, intent.action_digest, now)
        if refusal is not None:
            return refusal
        spent = effects.spent_on(conn, attempt.workspace, attempt.job_id, intent.request_id)
        if spent not in (None, intent.effect_id):
            return Denied(StepCode.REJECTED, "The approval was used for another effect.")
    epoch = effects.mark_sent(conn, intent, seen_epoch=seen_epoch, at=now)
    if epoch is None:
        return STALE
    record_spent(conn, spent_on_call(standing.receipt, intent.step, intent.call, intent.attempt, now))
    if standing.authority.expires_at <= now:
        renew_authority(conn, attempt.workspace, attempt.job_id, now + authority_ttl)
    return Granted(epoch, time.monotonic())


class Permits:
    """One per process."""

    def __init__(self, ledger: Ledger, engine: Engine, metrics: Metrics, authority_ttl_s: float = 300.0) -> None:
        self._ledger = ledger
        self._engine = engine
        self._metrics = metrics
        self._ttl = timedelta(seconds=authority_ttl_s)

    async def admit(self, attempt: Attempt) -> ReceiptRow:
        """The job's receipt, its authority renewed where less than half of its time is left. Raises StepError where the
        job may not call anything now."""
        standing = await self._ledger.read(lambda conn: examine(conn, attempt, datetime.now(UTC)))
        if not isinstance(standing, Denied) and not standing.receipt.accepted:
            await self._confirm(attempt, standing.receipt)
            standing = await self._ledger.read(lambda conn: examine(conn, attempt, datetime.now(UTC)))
        if isinstance(standing, Denied):
            raise await self.refuse(attempt, standing)
        authority = standing.authority
        if authority.ended_at is not None or authority.expires_at - datetime.now(UTC) < self._ttl / 2:
            await self._renew(attempt)
        return standing.receipt

    async def settle(
        self, attempt: Attempt, receipt: ReceiptRow, spent: Spent, conversation: BlobRef | None = None
    ) -> None:
        """An answer has arrived: record what it cost and, of a session, where its conversation stands; then look again
        whether the job may still use it. Raises StepError where its authority is gone."""

        def write(conn: Connection) -> Standing | Denied:
            record_spent(conn, spent)
            if receipt.session is not None and conversation is not None:
                move_head(
                    conn,
                    receipt.workspace,
                    receipt.session,
                    job_id=receipt.job_id,
                    step=spent.step,
                    attempt=spent.attempt,
                    conversation=conversation,
                )
            return examine(conn, attempt, datetime.now(UTC))

        standing = await self._ledger.write_grouped(write, key=attempt.key)
        if isinstance(standing, Denied):
            raise await self.refuse(attempt, standing)

    async def look_again(self, attempt: Attempt) -> None:
        """Just before the bytes of a call without a permit leave. Raises StepError."""
        standing = await self._ledger.read(lambda conn: examine(conn, attempt, datetime.now(UTC)))
        if isinstance(standing, Denied):
            raise await self.refuse(attempt, standing)

    async def need_decision(self, attempt: Attempt, request_id: RequestId | None, action: Digest) -> None:
        """For a call without an effect row that the policy asks about."""

        def look(conn: Connection) -> Denied | None:
            row = find_receipt(conn, attempt.workspace, attempt.job_id)
            return NO_RECEIPT if row is None else decided(conn, row, request_id, action, datetime.now(UTC))

        refusal = await self._ledger.read(look)
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
            lambda conn: permit(conn, attempt, intent, seen_epoch, authority_ttl=self._ttl), key=attempt.key
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
        await self._ledger.write_grouped(lambda conn: accept_job(conn, row, datetime.now(UTC)), key=attempt.key)

    async def _renew(self, attempt: Attempt) -> None:
        """Its grants were found valid a moment ago; a job that calls is open, whatever was known of it."""

        def write(conn: Connection) -> None:
            mark_open(conn, attempt.workspace, attempt.job_id)
            renew_authority(conn, attempt.workspace, attempt.job_id, datetime.now(UTC) + self._ttl)

        await self._ledger.write_grouped(write, key=attempt.key)
