"""The `model` activity: one turn of a job's model, its answer kept as a conversation and planned as calls.

The same checks as for a call come first. What the model wants is judged here (tool, arguments, policy) and never run; a
final answer that does not fit the output schema is no final answer, and the model is told why, a few times.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from pydantic import JsonValue
from temporalio import activity

from activities.answers import FINAL_ANSWER, Answer, Final
from activities.finals import FinalVerdict, judge_final
from activities.history import History, instructions_of
from activities.planning import AskedCall, Planner
from activities.providers import Providers
from activities.scripted import play
from activities.toolnames import provider_names
from gateway.blobs import BlobMissing, Blobs, belongs_to_another
from gateway.calls.attempts import Attempt, current_attempt, name_job, now
from gateway.calls.gateway import load_snapshot
from gateway.calls.kinds import Kinds
from gateway.calls.permits import Permits
from gateway.calls.standing import Standing
from gateway.conversation import INLINE_TEXT, Asked, Came, Conversation, Entry, Said, SaidCall, Told
from gateway.ledger.engine import Ledger
from gateway.ledger.receipts import ReceiptRow
from gateway.ledger.sessions import inputs_of, session_jobs
from gateway.ledger.spending import Spent
from gateway.script import parse_script
from gateway.snapshots import ASK_HUMAN, Snapshot, Snapshots
from workflows.contract.errors import StepCode, StepError
from workflows.contract.ids import BlobRef, JobId, ToolName, Workspace
from workflows.contract.job import INLINE_RESULT_BYTES
from workflows.contract.steps import Activity, ModelInput, ModelOutput, PlannedCall
from workflows.contract.text import clean_text

MAX_CALLS = 100
MAX_REFUSED_FINALS = 3
SAID_IN_EVENTS = 500
TAKEN = "Taken: the job is done."


class ModelActivity:
    def __init__(
        self,
        permits: Permits,
        ledger: Ledger,
        snapshots: Snapshots,
        blobs: Blobs,
        providers: Providers,
        kinds: Kinds,
        sees_bytes: int,
    ) -> None:
        """`sees_bytes`: so much of its conversation a real model is shown."""
        self._permits = permits
        self._ledger = ledger
        self._snapshots = snapshots
        self._blobs = blobs
        self._providers = providers
        self._kinds = kinds
        self._sees_bytes = sees_bytes

    @activity.defn(name=Activity.MODEL)
    async def model(self, asked: ModelInput) -> ModelOutput:
        attempt = current_attempt()
        job = await self._permits.standing(attempt)
        receipt = job.receipt
        name_job(receipt)
        snapshot = await load_snapshot(self._snapshots, receipt)
        conversation = await self._heard(receipt, asked.conversation)
        if asked.results:
            conversation = conversation.add(Came(results=asked.results))
        if snapshot.deployment.script_file is not None:
            answer = await self._play(asked, receipt, snapshot, conversation.head.results)
        else:
            answer = await self._ask(attempt, asked, receipt, snapshot, conversation)
        spent = _spent(attempt, asked, answer, receipt)
        try:
            output = await self._keep(answer, job, snapshot, conversation)
        except StepError:
            await self._permits.settle(attempt, receipt, spent)  # an answer of no use costs as much
            raise
        await self._permits.settle(attempt, receipt, spent, output.conversation)
        return output

    async def _heard(self, receipt: ReceiptRow, head: BlobRef | None) -> Conversation:
        """The conversation so far, which in a session begins with what earlier jobs left of it."""
        if receipt.session is not None and head is not None and belongs_to_another(head, receipt.job_id):
            try:
                conversation = await Conversation.load(self._blobs, receipt.workspace, head)
            except BlobMissing:
                return Conversation.after_erased(self._blobs, receipt.workspace, head).begin(receipt.job_id)
        else:
            conversation = await Conversation.load(self._blobs, receipt.workspace, head)
        if receipt.session is None or conversation.head.job == receipt.job_id:
            return conversation
        unheard = await self._unheard(receipt, receipt.session, conversation.head.job)
        return conversation.begin(receipt.job_id, unheard)

    async def _unheard(self, receipt: ReceiptRow, session: str, last: JobId | None) -> list[JobId]:
        """The jobs between `last`, whose part ends the conversation, and this one: they ended without an answer."""
        jobs = await self._ledger.read(lambda conn: session_jobs(conn, receipt.workspace, session))
        since = max((job.seq for job in jobs if job.job_id == last), default=0)
        return [
            job.job_id
            for job in jobs
            if since < job.seq < receipt.seq and job.mode == "live" and job.confirmed_at is not None
        ]

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
        self,
        attempt: Attempt,
        asked: ModelInput,
        receipt: ReceiptRow,
        snapshot: Snapshot,
        conversation: Conversation,
    ) -> Answer:
        manifest = snapshot.bundle.manifest
        offered = provider_names([ASK_HUMAN, FINAL_ANSWER, *(tool.name for tool in manifest.tools if not tool.hidden)])
        history = History(self._blobs, receipt.workspace, offered, self._inputs(receipt))
        entries = await conversation.recent(self._sees_bytes, history.size)
        if Asked(job_id=receipt.job_id) not in entries:  # it is in no blob, or too far back to be shown with the rest
            entries = [Asked(job_id=receipt.job_id), *entries]
        messages = await history.messages(instructions_of(snapshot), entries)
        await self._permits.look_again(attempt)  # a long conversation takes its time to be read
        return await self._providers.ask(
            snapshot.deployment,
            messages,
            manifest,
            offered,
            workspace=receipt.workspace,
            turn=asked.turn,
            left_s=(receipt.deadline_at - attempt.clock.now()).total_seconds(),
        )

    def _inputs(self, receipt: ReceiptRow) -> Callable[[JobId], Awaitable[bytes | None]]:
        """Of the job and, in a session, of those before it; each is read once."""
        known: dict[JobId, bytes | None] = {receipt.job_id: receipt.job_input}

        async def input_of(job: JobId) -> bytes | None:
            if job not in known:
                found = await self._ledger.read(lambda conn: inputs_of(conn, receipt.workspace, [job]))
                known[job] = found.get(job)
            return known[job]

        return input_of

    async def _keep(self, answer: Answer, job: Standing, snapshot: Snapshot, conversation: Conversation) -> ModelOutput:
        """The answer as the loop gets it; it is in the conversation before anything comes of it."""
        receipt = job.receipt
        if len(answer.calls) > MAX_CALLS:
            raise StepError(StepCode.REJECTED, f"The model asked for more than {MAX_CALLS} calls in one turn.")
        verdict = judge_final(answer, snapshot.bundle.manifest.output_schema)
        fault = verdict.fault
        refused_finals = conversation.head.refused_finals + 1 if fault else 0
        if refused_finals >= MAX_REFUSED_FINALS:
            raise StepError(StepCode.REJECTED, f"The final answer does not fit the output schema: {fault}")
        planner = Planner(self._blobs, job, snapshot, self._kinds, self._permits)
        planned = [await planner.plan(number, call) for number, call in enumerate(answer.calls, 1)]
        final = None if verdict.final is None else _json_bytes(verdict.final.value)
        final_ref = None if final is None else await self._blobs.keep(receipt.workspace, receipt.job_id, final)
        said = await self._said(answer, planned, verdict, receipt)
        if final is not None and len(final) <= INLINE_RESULT_BYTES:
            repeats = answer.final is not None and answer.final.value in (answer.say, {"message": answer.say})
            said = said.model_copy(update={"final_ref": final_ref, "final_repeats": repeats})
        entries: list[Entry] = [said]
        if fault and not verdict.notes:
            entries.append(Told(text=f"The final answer was not accepted. {fault}"))
        grown = conversation.add(*entries, refused_finals=refused_finals)
        return ModelOutput(
            turn=answer.turn,
            conversation=await grown.store(receipt.job_id),
            say=clean_text(answer.say, SAID_IN_EVENTS),
            calls=() if final is not None else tuple(call for call in planned if call.call not in verdict.notes),
            final_ref=final_ref,
            final_bytes=0 if final is None else len(final),
            final_invalid=fault,
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
            cost_usd=answer.cost_usd,
            estimated=answer.estimated,
        )

    async def _said(
        self, answer: Answer, planned: Sequence[PlannedCall], verdict: FinalVerdict, receipt: ReceiptRow
    ) -> Said:
        taken = None if verdict.final is None else TAKEN
        calls = tuple(
            SaidCall(call=call.call, tool=call.tool, args_ref=call.args_ref, note=verdict.notes.get(call.call, taken))
            for call in planned
        )
        at = now()
        if len(answer.say) <= INLINE_TEXT:
            return Said(turn=answer.turn, text=answer.say, calls=calls, at=at)
        ref = await self._blobs.keep(receipt.workspace, receipt.job_id, answer.say.encode(errors="replace"))
        return Said(turn=answer.turn, text_ref=ref, calls=calls, at=at)

    async def _json(self, workspace: Workspace, ref: BlobRef) -> JsonValue:
        value: Any = json.loads(await self._blobs.get(workspace, ref))
        return value


def _spent(attempt: Attempt, asked: ModelInput, answer: Answer, receipt: ReceiptRow) -> Spent:
    return Spent(
        workspace=attempt.workspace,
        job_id=attempt.job_id,
        step=asked.step,
        call=0,
        attempt=asked.attempt,
        principal=receipt.principal,
        plugin=receipt.plugin,
        kind="model",
        input_tokens=answer.input_tokens,
        output_tokens=answer.output_tokens,
        cost_usd=answer.cost_usd or Decimal(0),
        estimated=answer.estimated,
        at=attempt.clock.now(),
    )


def _json_bytes(value: JsonValue) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        raise StepError(StepCode.REJECTED, "The final answer can not be written as JSON.") from None
