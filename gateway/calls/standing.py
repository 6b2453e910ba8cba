"""Whether a job may call now, and on what: the checks of every call and of every permit, against one ledger connection.

The first reason that matches is the answer, and every denial is a value. Nothing is sent and nobody is told from here.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import Connection

from gateway.authority import Action, granted
from gateway.authority import Denied as Ungranted
from gateway.calls.attempts import Attempt
from gateway.deciders import may_still_decide
from gateway.ledger import effects
from gateway.ledger.authorities import AuthorityRow, find_authority, renew_authority
from gateway.ledger.decisions import find_decision
from gateway.ledger.effects import Intent
from gateway.ledger.grants import grants_of
from gateway.ledger.lines import newer_in_line
from gateway.ledger.packets import PacketRow, packets_of
from gateway.ledger.phases import resolve
from gateway.ledger.receipts import ReceiptRow, find_receipt, lock_job
from gateway.ledger.spending import Spent, record_spent
from gateway.ledger.stops import find_stop
from workflows.contract.errors import StepCode, StepError
from workflows.contract.gates import PHASES, Phase
from workflows.contract.ids import Digest, RequestId
from workflows.policy.eligibility import lower


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
RETRIED = Denied(StepCode.AUTHORITY_REVOKED, "The job was retried: its retry goes on in its place.")
STALE = Denied(StepCode.STALE, "This attempt is not the current one any more; nothing was sent.")


@dataclass(frozen=True, slots=True)
class Standing:
    """A job that may call now, and the authority that it calls on."""

    receipt: ReceiptRow
    authority: AuthorityRow
    packet: PacketRow | None = None
    """Set where not the phase but a packet lets the job run: then it writes nothing."""

    def allows(self, tool: str) -> bool:
        """Whether the grants that the job was admitted on let it call this tool; without a list, any."""
        tools: Sequence[str] | None = self.authority.limits.get("tools")
        return tools is None or tool in tools

    def names(self, tool: str) -> bool:
        """Whether the packet that the job runs by names the tool; without a packet any is."""
        return self.packet is None or tool in self.packet.allowed_tools


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
    if row.erased_at is not None:  # an operator's reset brought it back
        return Denied(StepCode.AUTHORITY_REVOKED, "The job's content was erased; it can not run any more.")
    if now >= row.deadline_at:
        return Denied(StepCode.DEADLINE, "The deadline has passed; nothing was sent.")
    if authority.revoked_at is not None:
        return Denied(StepCode.AUTHORITY_REVOKED, authority.revoked_reason or "The job's authority was revoked.")
    version = resolve(conn, row.workspace, row.plugin, row.version)
    if version is None or version.plugin_digest != row.plugin_digest:
        return Denied(StepCode.SNAPSHOT_MISMATCH, "The published version is not the one the job was admitted with.")
    if version.withdrawn:
        return Denied(StepCode.PHASE_CLOSED, "This version was withdrawn; nothing was sent.")
    packet: PacketRow | None = None
    if gated and not version.version_phase == version.runtime_phase == "live":
        packet = usable_packet(conn, attempt, lower(version.version_phase, version.runtime_phase))
        if packet is None:
            return Denied(StepCode.PHASE_CLOSED, "This version (or the runtime) is not live; nothing was sent.")
    grants = grants_of(conn, row.workspace, row.principal, now)
    if isinstance(granted(grants, Action.JOBS_SUBMIT, row.plugin, now), Ungranted):
        return Denied(StepCode.AUTHORITY_REVOKED, "The principal's grant on this plugin is not valid any more.")
    return Standing(row, authority, packet)


def retried(conn: Connection, row: ReceiptRow) -> bool:
    """Whether a later job of its line has taken over; asked before a write, and of a job that an operator reset."""
    return newer_in_line(conn, row) is not None


def usable_packet(conn: Connection, attempt: Attempt, phase: Phase) -> PacketRow | None:
    """The packet that this very run of the job redeemed, while the phase is high enough for a canary."""
    if PHASES.index(phase) < PHASES.index("live_canary"):
        return None
    redeemed = [
        one for one in packets_of(conn, attempt.workspace, attempt.job_id) if one.redeemed_run == attempt.run_id
    ]
    return redeemed[0] if redeemed else None


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
        if not may_still_decide(conn, job.workspace, person, job.plugin, decision.decided_at, now):
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
    now = (
        now or attempt.clock.now()
    )  # with the row held, so that times of permits and stops are in the order of commits
    standing = examine(conn, attempt, now, hold=True)
    if isinstance(standing, Denied):
        return standing
    if not standing.receipt.accepted:
        return NO_RECEIPT
    if retried(conn, standing.receipt):
        return RETRIED
    if standing.packet is not None:
        return Denied(StepCode.PHASE_CLOSED, "A job that runs by a packet writes nothing; nothing was sent.")
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
