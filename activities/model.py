"""The `model` activity: one turn of a job's model, its answer kept as a conversation and planned as calls.

The same checks as for a call come first. What the model wants is judged here (tool, arguments, policy) and never run; a
final answer that does not fit the output schema is no final answer, and the model is told why, a few times.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import JsonValue
from temporalio import activity

from activities.answers import FINAL_ANSWER, Answer, Final
from activities.conversation import INLINE_TEXT, Came, Conversation, Said, SaidCall, Told
from activities.finals import FinalVerdict, judge_final
from activities.history import History, instructions_of
from activities.planning import AskedCall, Planner
from activities.providers import Providers
from activities.scripted import play
from activities.toolnames import provider_names
from gateway.blobs import Blobs
from gateway.calls.attempts import current_attempt
from gateway.calls.gateway import load_snapshot
from gateway.calls.permits import Permits
from gateway.ledger.receipts import ReceiptRow
from gateway.script import parse_script
from gateway.snapshots import ASK_HUMAN, Snapshot, Snapshots
from workflows.contract.errors import StepCode, StepError
from workflows.contract.ids import BlobRef, ToolName, Workspace
from workflows.contract.steps import Activity, ModelInput, ModelOutput, PlannedCall
from workflows.contract.text import clean_text

MAX_CALLS = 100
MAX_REFUSED_FINALS = 3
SAID_IN_EVENTS = 500


class ModelActivity:
    def __init__(self, permits: Permits, snapshots: Snapshots, blobs: Blobs, providers: Providers) -> None:
        self._permits = permits
        self._snapshots = snapshots
        self._blobs = blobs
        self._providers = providers

    @activity.defn(name=Activity.MODEL)
    async def model(self, asked: ModelInput) -> ModelOutput:
        attempt = current_attempt()
        receipt = await self._permits.admit(attempt)
        snapshot = await load_snapshot(self._snapshots, receipt)
        conversation = await Conversation.load(self._blobs, receipt.workspace, asked.conversation)
        if asked.results:
            conversation = conversation.add(Came(results=asked.results))
        if snapshot.deployment.script_file is not None:
            answer = await self._play(asked, receipt, snapshot, conversation.head.results)
        else:
            answer = await self._ask(asked, receipt, snapshot, conversation)
        if len(answer.calls) > MAX_CALLS:
            raise StepError(StepCode.REJECTED, f"The model asked for more than {MAX_CALLS} calls in one turn.")
        return await self._settle(answer, receipt, snapshot, conversation)

    async def _play(
        self, asked: ModelInput, receipt: ReceiptRow, snapshot: Snapshot, refs: Mapping[ToolName, BlobRef]
    ) -> Answer:
        file = snapshot.deployment.script_file
        assert file is not None
        script = parse_script(snapshot.bundle.files[file], file)
        values = await asyncio.gather(*(self._json(receipt.workspace, ref) for ref in refs.values()))
        reply = play(
            script,
            asked.turn,
            input=json.loads(receipt.job_input),
            results=dict(zip(refs, values, strict=True)),
            attempt=asked.attempt,
        )
        await asyncio.sleep(reply.delay_seconds)
        skipped = reply.turn_used - min(asked.turn, len(script.entries))
        return Answer(
            turn=asked.turn + skipped,
            say=reply.say,
            calls=tuple(AskedCall(tool, args) for tool, args in reply.calls),
            final=None if reply.calls else Final(reply.final),
            input_tokens=reply.usage.input_tokens,
            output_tokens=reply.usage.output_tokens,
            cost_usd=reply.usage.cost_usd,
        )

    async def _ask(
        self, asked: ModelInput, receipt: ReceiptRow, snapshot: Snapshot, conversation: Conversation
    ) -> Answer:
        manifest = snapshot.bundle.manifest
        offered = provider_names([ASK_HUMAN, FINAL_ANSWER, *(tool.name for tool in manifest.tools if not tool.hidden)])
        history = History(self._blobs, receipt.workspace, offered)
        messages = await history.messages(
            instructions_of(snapshot.bundle), receipt.job_input, await conversation.entries()
        )
        return await self._providers.ask(
            snapshot.deployment,
            messages,
            manifest,
            offered,
            workspace=receipt.workspace,
            turn=asked.turn,
            left_s=(receipt.deadline_at - datetime.now(UTC)).total_seconds(),
        )

    async def _settle(
        self, answer: Answer, receipt: ReceiptRow, snapshot: Snapshot, conversation: Conversation
    ) -> ModelOutput:
        """The answer as the loop gets it; it is in the conversation before anything comes of it."""
        verdict = judge_final(answer, snapshot.bundle.manifest.output_schema)
        fault = verdict.fault
        refused_finals = conversation.head.refused_finals + 1 if fault else 0
        if refused_finals >= MAX_REFUSED_FINALS:
            raise StepError(StepCode.REJECTED, f"The final answer does not fit the output schema: {fault}")
        planner = Planner(self._blobs, receipt, snapshot)
        planned = [await planner.plan(number, call) for number, call in enumerate(answer.calls, 1)]
        entries: list[Said | Told] = [await self._said(answer, planned, verdict, receipt.workspace)]
        if fault and not verdict.notes:
            entries.append(Told(text=f"The final answer was not accepted. {fault}"))
        grown = conversation.add(*entries, refused_finals=refused_finals)
        final = None if verdict.final is None else _json_bytes(verdict.final.value)
        return ModelOutput(
            turn=answer.turn,
            conversation=await grown.store(),
            say=clean_text(answer.say, SAID_IN_EVENTS),
            calls=() if final is not None else tuple(call for call in planned if call.call not in verdict.notes),
            final_ref=None if final is None else BlobRef(await self._blobs.put(receipt.workspace, final)),
            final_bytes=0 if final is None else len(final),
            final_invalid=fault,
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
            cost_usd=answer.cost_usd,
            estimated=answer.estimated,
        )

    async def _said(
        self, answer: Answer, planned: Sequence[PlannedCall], verdict: FinalVerdict, workspace: Workspace
    ) -> Said:
        calls = tuple(
            SaidCall(call=call.call, tool=call.tool, args_ref=call.args_ref, note=verdict.notes.get(call.call))
            for call in planned
        )
        if len(answer.say) <= INLINE_TEXT:
            return Said(turn=answer.turn, text=answer.say, calls=calls)
        ref = BlobRef(await self._blobs.put(workspace, answer.say.encode(errors="replace")))
        return Said(turn=answer.turn, text_ref=ref, calls=calls)

    async def _json(self, workspace: Workspace, ref: BlobRef) -> JsonValue:
        value: Any = json.loads(await self._blobs.get(workspace, ref))
        return value


def _json_bytes(value: JsonValue) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        raise StepError(StepCode.REJECTED, "The final answer can not be written as JSON.") from None
