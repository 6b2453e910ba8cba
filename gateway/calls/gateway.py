"""The call gateway: permit -> resolve credential -> inject -> send -> scrub -> record. The only way to a tool.

Principal, snapshot, deadline and decision come from the ledger and the verified snapshot; of an activity's input only
the tool's name and the reference of the arguments count, and both are bound by the action digest. A write takes its
permit when the connection stands. Its outcome is in the ledger before anybody hears of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import JsonValue

from gateway.actions import action_digest, load_args
from gateway.allowlist import CredentialPolicy
from gateway.blobs import Blobs
from gateway.calls.attempts import Attempt, current_attempt
from gateway.calls.credentials import Scrubber, resolve_credential
from gateway.calls.egress import BeforeBytes, Door, NotSent, OutboundCall, ReplyLost, ReplyTooLarge
from gateway.calls.http_tool import ToolOutcome, ToolRequest, build_request
from gateway.calls.permits import Permits
from gateway.calls.replies import MAX_RESULT_BYTES, OUTCOME_OF, outcome_of, outcome_too_large, result_bytes, sentence
from gateway.calls.writes import Writes
from gateway.cedar import compile_policy
from gateway.deployments import Connection
from gateway.ledger.effects import Intent
from gateway.ledger.receipts import ReceiptRow
from gateway.manifest import HttpCall, Tool
from gateway.snapshots import Snapshot, SnapshotMismatch, Snapshots
from gateway.telemetry import traceparent
from workflows.contract.errors import StepCode, StepError
from workflows.contract.ids import BlobRef, Digest, RequestId, effect_id
from workflows.contract.steps import ToolInput, ToolOutput


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that may be made, as it will leave; `request_id` is set where the policy asks a person."""

    attempt: Attempt
    receipt: ReceiptRow
    tool: Tool
    http: HttpCall
    connection: Connection
    request: ToolRequest
    digest: Digest
    request_id: RequestId | None


class CallGateway:
    """One per process. `call` raises StepError, or Refused where a store does not answer."""

    def __init__(
        self,
        door: Door,
        permits: Permits,
        writes: Writes,
        snapshots: Snapshots,
        blobs: Blobs,
        credentials: CredentialPolicy,
    ) -> None:
        self._door = door
        self._permits = permits
        self._writes = writes
        self._snapshots = snapshots
        self._blobs = blobs
        self._credentials = credentials

    async def call(self, asked: ToolInput) -> ToolOutput:
        attempt = current_attempt()
        receipt = await self._permits.admit(attempt)
        prepared = await self._prepare(attempt, receipt, asked)
        if prepared.tool.effect == "read":
            if prepared.request_id is not None:
                await self._permits.need_decision(attempt, prepared.request_id, prepared.digest)
            return await self._read(prepared)
        intent = self._intent(prepared, asked)

        async def send(epoch: int, before_bytes: BeforeBytes) -> ToolOutcome:
            headers = {"Idempotency-Key": intent.effect_id, "Jobgate-Epoch": str(epoch)}
            return await self._exchange(prepared, headers, before_bytes)

        return await self._writes.run(attempt, intent, send, timeout_s=prepared.tool.timeout_seconds)

    async def _prepare(self, attempt: Attempt, receipt: ReceiptRow, asked: ToolInput) -> Prepared:
        snapshot = await load_snapshot(self._snapshots, receipt)
        tool = snapshot.bundle.manifest.tool(asked.tool)
        if tool is None or tool.http is None or tool.effect != asked.effect:
            raise StepError(StepCode.REJECTED, "The plugin has no such tool.")
        args = await load_args(self._blobs, attempt.workspace, asked.args_ref)
        digest = _digest(tool, snapshot, args)
        if digest != asked.action_digest:
            raise StepError(StepCode.REJECTED, "The call is not the one that was proposed.")
        policy = compile_policy(policy_text(snapshot), snapshot.bundle.manifest.effects)
        verdict = policy.evaluate(receipt.principal, attempt.workspace, tool.name, tool.effect, args)
        if verdict.verdict == "refuse":
            raise StepError(StepCode.REJECTED, verdict.reason)
        if verdict.verdict == "ask" and asked.request_id is None:
            raise StepError(StepCode.REJECTED, "The policy asks a person first, and nobody was asked.")
        connection = snapshot.deployment.connections[tool.http.connection]
        return Prepared(
            attempt=attempt,
            receipt=receipt,
            tool=tool,
            http=tool.http,
            connection=connection,
            request=build_request(tool.http.method, tool.http.path, connection.base_url, args),
            digest=digest,
            request_id=asked.request_id if verdict.verdict == "ask" else None,
        )

    def _intent(self, prepared: Prepared, asked: ToolInput) -> Intent:
        attempt, tool = prepared.attempt, prepared.tool
        assert tool.effect != "read"
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
            effect=tool.effect,
            action_digest=prepared.digest,
            request_id=prepared.request_id,
            attempt=asked.attempt,
        )

    # ---- sending

    async def _read(self, prepared: Prepared) -> ToolOutput:
        try:
            outcome = await self._exchange(prepared, {}, None)
        except NotSent as failure:
            raise StepError(StepCode.CONNECT_REFUSED, failure.reason) from None
        except ReplyLost as failure:
            raise StepError(StepCode.UNAVAILABLE, failure.reason) from None
        ref = BlobRef(await self._blobs.put(prepared.attempt.workspace, result_bytes(outcome)))
        message = sentence(prepared.tool.name, outcome.state, outcome.message)
        return ToolOutput(outcome=OUTCOME_OF[outcome.state], result_ref=ref, message=message)

    async def _exchange(
        self, prepared: Prepared, more_headers: Mapping[str, str], before_bytes: BeforeBytes | None
    ) -> ToolOutcome:
        """The credential enters here and nowhere else, and what comes back is free of it."""
        tool, credential = prepared.tool, prepared.connection.credential
        headers = {"Jobgate-Job": prepared.attempt.job_id, **more_headers}
        if (parent := traceparent()) is not None:
            headers["traceparent"] = parent
        if prepared.request.body is not None:
            headers["Content-Type"] = "application/json"
        scrubber = Scrubber(())
        if credential is not None:
            secret = resolve_credential(
                self._credentials,
                credential.ref,
                workspace=prepared.attempt.workspace,
                base_url=prepared.connection.base_url,
            )
            injected = credential.prefix + secret.reveal()
            scrubber = Scrubber([secret], [injected])
            headers[credential.header] = injected
        left_s = (prepared.receipt.deadline_at - datetime.now(UTC)).total_seconds()
        call = OutboundCall(
            method=prepared.http.method,
            url=prepared.request.url,
            headers=headers,
            body=prepared.request.body,
            allow_private=prepared.connection.allow_private,
            timeout_s=max(min(tool.timeout_seconds, left_s), 0.0),
            max_bytes=MAX_RESULT_BYTES,
        )
        try:
            reply = await self._door.send(call, before_bytes=before_bytes)
        except ReplyTooLarge as failure:
            return outcome_too_large(tool.effect, failure)
        return outcome_of(tool.effect, reply, scrubber)


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


def _digest(tool: Tool, snapshot: Snapshot, args: Mapping[str, JsonValue]) -> Digest:
    try:
        return action_digest(tool.name, snapshot.bundle.digest, dict(args))
    except ValueError:
        raise StepError(StepCode.REJECTED, "The call's arguments can not be read.") from None
