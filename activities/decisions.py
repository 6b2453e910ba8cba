"""Reads of the ledger that the loop believes instead of signals, and the archive of its events.

People's own words (answers, reasons) leave the ledger as blobs, so that no history holds them; a settlement is one of
three words and no text of theirs. Expiry is written by
compare-and-set: a decision that was first stands.
"""

import contextlib
import json

from pydantic import JsonValue
from pydantic_core import to_json
from sqlalchemy import Connection
from temporalio import activity

from gateway.blobs import Blobs
from gateway.calls.attempts import Attempt, current_attempt
from gateway.calls.standing import NO_RECEIPT, RETRIED, Denied, examine, retried
from gateway.deciders import may_still_decide
from gateway.ledger.authorities import find_authority, mark_open
from gateway.ledger.decisions import DecisionRow, close_request, find_decision, list_votes
from gateway.ledger.engine import Ledger
from gateway.ledger.gates import held_job_released, redeem_for
from gateway.ledger.packets import packets_of
from gateway.ledger.receipts import ReceiptRow, find_receipt, lock_job
from gateway.ledger.untaken import take_decision
from workflows.contract.errors import Refused, StepCode
from workflows.contract.gates import PacketTerms
from workflows.contract.ids import BlobRef, ToolName
from workflows.contract.steps import Activity, ArchiveInput, AuthorityOutput, DecisionInput, GateOutput, Ruling


class LedgerActivities:
    def __init__(self, ledger: Ledger, blobs: Blobs) -> None:
        self._ledger = ledger
        self._blobs = blobs

    @activity.defn(name=Activity.READ_DECISION)
    async def read_decision(self, asked: DecisionInput) -> Ruling:
        """What the ledger rules on a request; `close`: nobody decided in time, unless somebody did; `void`: nobody can
        any more."""
        attempt = current_attempt()

        def stands(conn: Connection) -> tuple[DecisionRow | None, int]:
            receipt, now = _receipt(conn, attempt), attempt.clock.now()
            of = (attempt.workspace, attempt.job_id, asked.request_id)
            votes = [vote for vote in list_votes(conn, *of) if vote.decision == "approve"]
            counted = sum(
                may_still_decide(conn, attempt.workspace, vote.principal, receipt.plugin, vote.at, now)
                for vote in votes
            )
            return find_decision(conn, *of), counted

        def closed(conn: Connection) -> DecisionRow | None:
            _receipt(conn, attempt)
            of = (attempt.workspace, attempt.job_id, asked.request_id)
            shown = None if asked.shown is None else asked.shown.model_dump(mode="json")
            now = attempt.clock.now()
            decision = close_request(
                conn,
                *of,
                verdict="voided" if asked.void else "expired",
                action_digest=asked.action_digest,
                at=now,
                shown=shown,
            )
            take_decision(conn, *of, now)
            return decision

        if asked.close or asked.void:
            decision, votes = await self._ledger.write(closed), 0
        else:
            decision, votes = await self._ledger.read(stands)
            if decision is not None and decision.taken_at is None:
                of = (attempt.workspace, attempt.job_id, asked.request_id)
                now = attempt.clock.now()
                with contextlib.suppress(Refused):  # then it is told of once more
                    await self._ledger.write_grouped(lambda conn: take_decision(conn, *of, now), key=attempt.key)
        return Ruling(verdict=None, votes=votes) if decision is None else await self._ruling(attempt, decision)

    @activity.defn(name=Activity.READ_GATE)
    async def read_gate(self) -> GateOutput:
        attempt = current_attempt()

        def look(conn: Connection) -> tuple[GateOutput, bool]:
            standing = examine(conn, attempt, attempt.clock.now(), gated=False)
            if standing is NO_RECEIPT:
                raise NO_RECEIPT.error()
            if isinstance(standing, Denied):
                return GateOutput(open=False, revoked=standing.code is StepCode.AUTHORITY_REVOKED), False
            if held_job_released(conn, standing.receipt):
                return GateOutput(open=True), False
            return GateOutput(open=False), any(one.approved_at for one in packets_of(conn, *job))

        def redeem(conn: Connection) -> GateOutput:
            lock_job(conn, *job)
            packet = redeem_for(conn, attempt.run_id, _receipt(conn, attempt), attempt.clock.now())
            if packet is None:
                return GateOutput(open=False)
            tools = tuple(ToolName(name) for name in packet.allowed_tools)
            return GateOutput(open=True, packet=PacketTerms(tools=tools, max_steps=packet.max_steps))

        job = (attempt.workspace, attempt.job_id)
        gate, may_redeem = await self._ledger.read(look)
        return await self._ledger.write(redeem) if may_redeem else gate

    @activity.defn(name=Activity.READ_AUTHORITY)
    async def read_authority(self) -> AuthorityOutput:
        """Whether the job may go on. Only its authority ends a job here: a gate that closes refuses the next call.

        A job that asks is open, whatever was known of it: after an operator's reset it is told of changes again, and a
        stop that it had before is carried out again (`gateway.stranded`)."""
        attempt = current_attempt()

        def look(conn: Connection) -> tuple[AuthorityOutput, bool]:
            standing = examine(conn, attempt, attempt.clock.now(), gated=False)
            if standing is NO_RECEIPT:
                raise NO_RECEIPT.error()
            authority = find_authority(conn, attempt.workspace, attempt.job_id)
            closed = authority is not None and authority.ended_at is not None
            if isinstance(standing, Denied) and standing.code is StepCode.AUTHORITY_REVOKED:
                return AuthorityOutput(revoked=True, reason=standing.reason), closed
            if not isinstance(standing, Denied) and retried(conn, standing.receipt):
                return AuthorityOutput(revoked=True, reason=RETRIED.reason), closed
            return AuthorityOutput(revoked=False), closed

        ruling, closed = await self._ledger.read(look)
        if closed:
            await self._ledger.write(lambda conn: mark_open(conn, attempt.workspace, attempt.job_id))
        return ruling

    @activity.defn(name=Activity.ARCHIVE_EVENTS)
    async def archive_events(self, asked: ArchiveInput) -> str:
        """The blob of a segment: the events as a JSON array. Events outlive the job's content."""
        attempt = current_attempt()
        await self._ledger.read(lambda conn: _receipt(conn, attempt))
        return await self._blobs.put(attempt.workspace, to_json(asked.events))

    async def _ruling(self, attempt: Attempt, decision: DecisionRow) -> Ruling:
        """A voided request is over without a yes, as an expired one is."""
        words: JsonValue = decision.answer if decision.decision in ("answer", "settle") else decision.reason
        ref: BlobRef | None = None
        if words is not None or decision.decision == "answer":
            data = json.dumps(words, ensure_ascii=False, separators=(",", ":")).encode()
            ref = await self._blobs.keep(attempt.workspace, attempt.job_id, data)
        return Ruling(
            verdict="expired" if decision.decision == "voided" else decision.decision,
            action_digest=decision.action_digest,
            decided_by=decision.decided_by,
            decided_at=decision.decided_at,
            votes=len(decision.decided_by),
            answer_ref=ref,
            answer=str(decision.answer) if decision.decision == "settle" else None,
        )


def _receipt(conn: Connection, attempt: Attempt) -> ReceiptRow:
    receipt = find_receipt(conn, attempt.workspace, attempt.job_id)
    if receipt is None:
        raise NO_RECEIPT.error()
    return receipt
