"""What came of a write whose outcome is not known: the ledger's word, else that of the tool's reconciling read.

The write is never sent from here. One that was not sent is closed, so that no late attempt sends it; one that was is
given up as `unknown`, so that whoever has its answer late tells the job. What a tool tells is written to the effect
before it is believed; one that has not found the effect is believed only when it is asked again: what was sent may
still be on its way.
"""

import json

from pydantic import JsonValue
from sqlalchemy import Connection

from gateway.actions import action_digest
from gateway.blobs import Blobs
from gateway.calls.attempts import Attempt, current_attempt, name_job
from gateway.calls.egress import NotSent, ReplyLost
from gateway.calls.gateway import load_snapshot, verdict_on
from gateway.calls.http_tool import ToolOutcome
from gateway.calls.kinds import Kinds, Prepared, Stamp
from gateway.calls.permits import Permits
from gateway.ledger import effects
from gateway.ledger.effects import HAPPENED, EffectRow, Intent, find_effect, reconcile_effect
from gateway.ledger.engine import Ledger
from gateway.ledger.receipts import ReceiptRow
from gateway.manifest import Tool
from gateway.snapshots import Snapshot, Snapshots
from workflows.contract.errors import StepCode, StepError
from workflows.contract.ids import Digest, effect_id
from workflows.contract.steps import ReconcileInput, ReconcileOutput

NOT_KNOWN = ReconcileOutput(outcome="not_known")


class Reconciling:
    """One per process."""

    def __init__(self, kinds: Kinds, permits: Permits, ledger: Ledger, snapshots: Snapshots, blobs: Blobs) -> None:
        self._kinds = kinds
        self._permits = permits
        self._ledger = ledger
        self._snapshots = snapshots
        self._blobs = blobs

    async def find_out(self, asked: ReconcileInput) -> ReconcileOutput:
        """Raises StepError where the question can not be put, and Refused where a store does not answer."""
        attempt = current_attempt()
        receipt = (await self._permits.standing(attempt)).receipt
        name_job(receipt)
        row = await self._row(attempt, asked)
        if row is None or (row.workspace, row.job_id, row.tool) != (attempt.workspace, attempt.job_id, asked.tool):
            return NOT_KNOWN
        if row.state not in effects.NOT_KNOWN:
            return await self._told(attempt, row)
        snapshot = await load_snapshot(self._snapshots, receipt)
        tool = _reconciler(snapshot, asked)
        if asked.ask == "ledger" or tool is None:
            return NOT_KNOWN
        answer = await self._ask(attempt, receipt, snapshot, tool, asked)
        if answer is None:
            return NOT_KNOWN
        happened, result = answer
        told = result if happened else _word(row, happened=False)
        ref = await self._blobs.keep(attempt.workspace, attempt.job_id, _json(told))
        if happened or asked.ask == "believe_tool":
            await self._ledger.write_grouped(
                lambda conn: reconcile_effect(
                    conn,
                    attempt.workspace,
                    attempt.job_id,
                    asked.effect_id,
                    happened=happened,
                    outcome_ref=ref,
                    at=attempt.clock.now(),
                ),
                key=attempt.key,
            )
            known = await self._row(attempt, asked)
            assert known is not None, "rows are never deleted"
            return await self._told(attempt, known)
        return ReconcileOutput(outcome="did_not_happen", by="tool", result_ref=ref)

    async def _row(self, attempt: Attempt, asked: ReconcileInput) -> EffectRow | None:
        """The effect as it stands. Where no permit is out nothing was sent, and from now on nothing can be; of what was
        sent nobody waits for the answer any more."""
        row = await self._ledger.read(lambda conn: find_effect(conn, asked.effect_id))
        if row is not None and row.state not in ("intended", "sent"):
            return row
        if asked.action_digest is not None:
            return await self._give_up(attempt, asked, asked.action_digest)
        return None if row is None or row.state == "intended" else row

    async def _give_up(self, attempt: Attempt, asked: ReconcileInput, digest: Digest) -> EffectRow | None:
        if effect_id(attempt.workspace, attempt.job_id, asked.step, asked.call, digest) != asked.effect_id:
            raise StepError(StepCode.REJECTED, "The effect is not the one that was proposed.")
        intent = Intent(
            effect_id=asked.effect_id,
            workspace=attempt.workspace,
            job_id=attempt.job_id,
            step=asked.step,
            call=asked.call,
            tool=asked.tool,
            effect="write",
            action_digest=digest,
            request_id=None,
            attempt=asked.attempt,
        )
        at = attempt.clock.now()

        def give_up(conn: Connection) -> EffectRow | None:
            effects.close_unsent(conn, intent, at=at)
            row = effects.hold_effect(conn, asked.effect_id)
            if row is not None and row.state == "sent":
                effects.record_outcome(conn, row.effect_id, row.epoch, "unknown", None, at=at)
            return row

        return await self._ledger.write_grouped(give_up, key=attempt.key)

    async def _told(self, attempt: Attempt, row: EffectRow) -> ReconcileOutput:
        """The ledger's word. A person's settlement has no result of the tool, so the model gets a sentence."""
        happened = row.state in HAPPENED
        word = _json(_word(row, happened=happened))
        ref = row.outcome_ref or await self._blobs.keep(attempt.workspace, attempt.job_id, word)
        return ReconcileOutput(outcome="happened" if happened else "did_not_happen", result_ref=ref)

    async def _ask(
        self, attempt: Attempt, receipt: ReceiptRow, snapshot: Snapshot, tool: Tool, asked: ReconcileInput
    ) -> tuple[bool, JsonValue] | None:
        """Whether the tool has found the effect, and what it tells of it; None where its answer tells neither."""
        args: dict[str, JsonValue] = {"effect_id": asked.effect_id}
        if verdict_on(snapshot, receipt, tool, "read", args).verdict == "refuse":
            raise StepError(StepCode.REJECTED, "The policy does not let the reconciling tool be called.")
        prepared = Prepared(
            attempt=attempt,
            receipt=receipt,
            tool=tool,
            effect="read",
            args=args,
            connections=snapshot.deployment.connections,
            digest=action_digest(tool.name, snapshot.bundle.digest, args),
            request_id=None,
            step=asked.step,
            call=asked.call,
            asked_attempt=asked.attempt,
            model_connection=snapshot.deployment.model_connection,
        )

        async def look_again() -> None:
            await self._permits.look_again(attempt)

        try:
            exchange = await self._kinds.of(tool).ready(prepared)
            outcome = await exchange(Stamp(), look_again)
        except NotSent as failure:
            raise StepError(StepCode.CONNECT_REFUSED, failure.reason) from None
        except ReplyLost as failure:
            raise StepError(StepCode.UNAVAILABLE, failure.reason) from None
        return _read(outcome)


def _reconciler(snapshot: Snapshot, asked: ReconcileInput) -> Tool | None:
    written = snapshot.bundle.manifest.tool(asked.tool)
    name = None if written is None else written.reconcile
    return None if name is None else snapshot.bundle.manifest.tool(name)


def _read(outcome: ToolOutcome) -> tuple[bool, JsonValue] | None:
    """api.md: `{"found": bool, "result": {}}`; anything else tells nothing."""
    result = outcome.result
    if outcome.state != "ok" or not isinstance(result, dict) or not isinstance(result.get("found"), bool):
        return None
    return result["found"] is True, result.get("result")


def _word(row: EffectRow, *, happened: bool) -> JsonValue:
    if happened:
        return {"note": f"{row.tool} took effect; its own answer is not known."}
    return {"error": f"{row.tool} did not take effect."}


def _json(value: JsonValue) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
