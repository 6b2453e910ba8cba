"""The call gateway: permit -> resolve credential -> inject -> send -> scrub -> record. The only way to a tool.

Principal, snapshot, deadline and decision come from the ledger and the verified snapshot; of an activity's input only
the tool's name and the reference of the arguments count, and both are bound by the action digest. A write takes its
permit when the connection stands. Its outcome is in the ledger before anybody hears of it.
"""

from collections.abc import Mapping

from pydantic import JsonValue

from gateway.actions import action_digest, load_args
from gateway.blobs import Blobs
from gateway.calls.attempts import Attempt, current_attempt, name_job
from gateway.calls.callbacks import WaysBack
from gateway.calls.egress import BeforeBytes, NotSent, ReplyLost
from gateway.calls.http_tool import ToolOutcome
from gateway.calls.kinds import Kinds, Prepared, Stamp, may_be_planned
from gateway.calls.permits import Permits
from gateway.calls.replies import OUTCOME_OF, answers_later, result_bytes, sentence
from gateway.calls.standing import spent_on_call
from gateway.calls.values import fitted
from gateway.calls.writes import Writes
from gateway.cedar import Verdict, compile_policy
from gateway.ledger.effects import Intent
from gateway.ledger.receipts import ReceiptRow
from gateway.manifest import Tool
from gateway.snapshots import Snapshot, SnapshotMismatch, Snapshots
from workflows.contract.errors import StepCode, StepError
from workflows.contract.ids import Digest, ToolName, effect_id
from workflows.contract.job import EffectClass
from workflows.contract.steps import ToolInput, ToolOutput


class CallGateway:
    """One per process. `call` raises StepError, or Refused where a store does not answer."""

    def __init__(
        self,
        kinds: Kinds,
        permits: Permits,
        writes: Writes,
        snapshots: Snapshots,
        blobs: Blobs,
        ways_back: WaysBack,
    ) -> None:
        self._kinds = kinds
        self._ways_back = ways_back
        self._permits = permits
        self._writes = writes
        self._snapshots = snapshots
        self._blobs = blobs

    async def call(self, asked: ToolInput) -> ToolOutput:
        attempt = current_attempt()
        standing = await self._permits.standing(attempt)
        receipt = standing.receipt
        name_job(receipt)
        if not (standing.allows(asked.tool) and standing.names(asked.tool)):
            raise StepError(
                StepCode.REJECTED, "This job may not call the tool: its grants or its packet do not name it."
            )
        prepared = await self._prepare(attempt, receipt, asked)
        output = await self._called(prepared, asked)
        if output.outcome != "pending":
            await self._ways_back.close(prepared)
        return output

    async def _called(self, prepared: Prepared, asked: ToolInput) -> ToolOutput:
        attempt = prepared.attempt
        if prepared.effect == "read":
            if prepared.request_id is not None:
                await self._permits.need_decision(attempt, prepared.request_id, prepared.digest)
            return await self._read(prepared)
        intent = self._intent(prepared, asked)

        async def send(epoch: int, before_bytes: BeforeBytes) -> ToolOutcome:
            return await self._exchange(prepared, Stamp(intent.effect_id, epoch), before_bytes)

        return await self._writes.run(attempt, intent, send, timeout_s=prepared.tool.timeout_seconds)

    async def _prepare(self, attempt: Attempt, receipt: ReceiptRow, asked: ToolInput) -> Prepared:
        snapshot = await load_snapshot(self._snapshots, receipt)
        tool = snapshot.bundle.manifest.tool(asked.tool)
        if tool is None or not may_be_planned(tool, asked.effect):
            raise StepError(StepCode.REJECTED, "The plugin has no such tool.")
        args = await load_args(self._blobs, attempt.workspace, asked.args_ref)
        digest = _digest(tool, snapshot, args)
        if digest != asked.action_digest:
            raise StepError(StepCode.REJECTED, "The call is not the one that was proposed.")
        verdict = verdict_on(snapshot, receipt, tool, asked.effect, args)
        if verdict.verdict == "refuse":
            raise StepError(StepCode.REJECTED, verdict.reason)
        asks = (
            verdict.verdict == "ask"
            or await self._permits.done_before(receipt, tool.name, asked.effect, args) is not None
        )
        if asks and asked.request_id is None:
            raise StepError(StepCode.REJECTED, "A person has to be asked first, and nobody was.")
        return Prepared(
            attempt=attempt,
            receipt=receipt,
            tool=tool,
            effect=asked.effect,
            args=args,
            connections=snapshot.deployment.connections,
            digest=digest,
            request_id=asked.request_id if asks else None,
            step=asked.step,
            call=asked.call,
            asked_attempt=asked.attempt,
            model_connection=snapshot.deployment.model_connection,
        )

    def _intent(self, prepared: Prepared, asked: ToolInput) -> Intent:
        attempt, tool = prepared.attempt, prepared.tool
        assert prepared.effect != "read"
        effect = effect_id(attempt.workspace, attempt.job_id, asked.step, asked.call, prepared.digest)
        if effect != asked.effect_id:
            raise StepError(StepCode.REJECTED, "The effect is not the one that was proposed.")
        return Intent(
            effect_id=effect,
            workspace=attempt.workspace,
            job_id=attempt.job_id,
            step=asked.step,
            call=asked.call,
            tool=tool.name,
            effect=prepared.effect,
            action_digest=prepared.digest,
            request_id=prepared.request_id,
            attempt=asked.attempt,
        )

    async def _exchange(self, prepared: Prepared, stamp: Stamp, before_bytes: BeforeBytes | None) -> ToolOutcome:
        exchange = await self._kinds.of(prepared.tool).ready(prepared)
        outcome = await exchange(stamp, before_bytes)
        schema = prepared.tool.output_schema
        return outcome if schema is None else fitted(prepared.effect, outcome, schema, "the tool's output_schema")

    async def _read(self, prepared: Prepared) -> ToolOutput:
        async def look_again() -> None:
            await self._permits.look_again(prepared.attempt)

        try:
            outcome = await self._exchange(prepared, Stamp(), look_again)
        except NotSent as failure:
            raise StepError(StepCode.CONNECT_REFUSED, failure.reason) from None
        except ReplyLost as failure:
            raise StepError(StepCode.UNAVAILABLE, failure.reason) from None
        receipt, at = prepared.receipt, (prepared.step, prepared.call, prepared.asked_attempt)
        await self._permits.settle(prepared.attempt, receipt, spent_on_call(receipt, *at, prepared.attempt.clock.now()))
        if outcome.until is not None:
            return answers_later(prepared.tool.name, outcome.until)
        ref = await self._blobs.keep(prepared.attempt.workspace, prepared.attempt.job_id, result_bytes(outcome))
        message = sentence(prepared.tool.name, outcome.state, outcome.message)
        return ToolOutput(outcome=OUTCOME_OF[outcome.state], result_ref=ref, message=message)


async def load_snapshot(snapshots: Snapshots, receipt: ReceiptRow) -> Snapshot:
    """What the job is bound to, verified. Raises StepError `snapshot_mismatch`."""
    try:
        return await snapshots.load(receipt.workspace, receipt.snapshot)
    except SnapshotMismatch as mismatch:
        raise StepError(StepCode.SNAPSHOT_MISMATCH, mismatch.detail) from None


def policy_text(snapshot: Snapshot) -> str | None:
    """The text of policy.cedar; None: reads run and writes ask."""
    file = snapshot.bundle.manifest.policy
    return None if file is None else snapshot.bundle.files[file]


def verdict_on(
    snapshot: Snapshot, receipt: ReceiptRow, tool: Tool, effect: EffectClass, args: Mapping[str, JsonValue]
) -> Verdict:
    """The plugin's policy on this call, by the effect that the call has: the declared class or a stricter one."""
    effects: dict[ToolName, EffectClass] = {**snapshot.bundle.manifest.effects, tool.name: effect}
    policy = compile_policy(policy_text(snapshot), effects)
    return policy.evaluate(receipt.principal, receipt.workspace, tool.name, effect, args)


def _digest(tool: Tool, snapshot: Snapshot, args: Mapping[str, JsonValue]) -> Digest:
    try:
        return action_digest(tool.name, snapshot.bundle.digest, dict(args))
    except ValueError:
        raise StepError(StepCode.REJECTED, "The call's arguments can not be read.") from None
