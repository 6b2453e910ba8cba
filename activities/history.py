"""A conversation as messages for a model provider: instructions, inputs, answers and what came of their calls.

Call ids are derived from job, turn and call, so the same history is the same request on every attempt. What a tool
answered is shown up to a bound, and so is what all calls of a turn were answered; a person's reason is shown as theirs.
Every call gets a result, as providers demand: one that a job of a session left open, because it ended, is said to be
open.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from activities.toolnames import spelled
from gateway.blobs import Blobs
from gateway.conversation import Asked, Came, Entry, Said, SaidCall, Told
from gateway.snapshots import Snapshot
from workflows.contract.ids import BlobRef, JobId, Workspace
from workflows.contract.job import CallResult

SHOWN_RESULT_BYTES, SHOWN_TURN_BYTES = 32 * 1024, 256 * 1024
CUT_NOTE = " [cut: the answer is longer than what is shown]"
LEFT_OPEN = "The job ended before the result of this call was known. It may have taken effect, or not."
ERASED = "(This input was erased.)"


def instructions_of(snapshot: Snapshot) -> str:
    """The plugin's own instructions and skills, then the skills of each dependency, in the order of plugin.yaml."""
    own, manifest = snapshot.bundle, snapshot.bundle.manifest
    texts = [own.files[path] for path in (manifest.instructions, *manifest.skills)]
    texts += [bundle.files[path] for bundle in snapshot.dependencies for path in bundle.manifest.skills]
    return "\n\n".join(text.strip() for text in texts)


@dataclass(slots=True)
class _Since:
    """What is told to the model after its answer `said`: a result for each of its calls first, then prompts."""

    said: Said | None = None
    job: int = 0
    returned: dict[int, ToolReturnPart] = field(default_factory=dict[int, ToolReturnPart])
    prompts: list[ModelRequestPart] = field(default_factory=list[ModelRequestPart])

    @property
    def parts(self) -> list[ModelRequestPart]:
        return [*self.returned.values(), *self.prompts]


class History:
    """Rebuilds the messages of a job, or of its session until then. `input_of` tells what a job was asked."""

    def __init__(
        self,
        blobs: Blobs,
        workspace: Workspace,
        offered: Mapping[str, str],
        input_of: Callable[[JobId], Awaitable[bytes | None]],
    ) -> None:
        self._blobs = blobs
        self._workspace = workspace
        self._offered = offered
        self._input_of = input_of

    async def size(self, entry: Entry) -> int:
        """About how many bytes of a request an entry is."""
        match entry:
            case Asked():
                texts = [await self._asked(entry)]
            case Said():
                texts = [str(part) for part in (await self._response(entry, 0)).parts]
            case Came():
                texts = await self._answers(entry)
            case Told():
                texts = [entry.text]
        return sum(len(text.encode()) for text in texts)

    async def messages(self, instructions: str, entries: Iterable[Entry]) -> list[ModelMessage]:
        messages: list[ModelMessage] = []
        since = _Since()
        for entry in entries:
            match entry:
                case Asked():
                    self._close(since)
                    since.job += 1
                    since.prompts.append(UserPromptPart(await self._asked(entry)))
                case Said():
                    messages += [ModelRequest(since.parts, instructions=instructions)]
                    messages += [await self._response(entry, since.job)]
                    since = _Since(entry, since.job)
                    for call in entry.calls:
                        if call.note is not None:
                            self._return(since, call, call.note)
                case Came():
                    texts = await self._answers(entry)
                    calls = {} if since.said is None else {call.call: call for call in since.said.calls}
                    for result, text in zip(entry.results, texts, strict=True):
                        if result.call in calls:
                            self._return(since, calls[result.call], text)
                case Told():
                    since.prompts.append(UserPromptPart(entry.text))
        return [*messages, ModelRequest(since.parts, instructions=instructions)]

    async def _asked(self, entry: Asked) -> str:
        return (await self._input_of(entry.job_id) or ERASED.encode()).decode()

    async def _answers(self, came: Came) -> list[str]:
        shown = min(SHOWN_RESULT_BYTES, SHOWN_TURN_BYTES // max(len(came.results), 1))
        return await asyncio.gather(*(self._told(result, shown) for result in came.results))

    async def _response(self, said: Said, job: int) -> ModelResponse:
        text = said.text if said.text_ref is None else (await self._bytes(said.text_ref)).decode()
        parts: list[ModelResponsePart] = [TextPart(text)] if text else []
        for call in said.calls:
            args = (await self._bytes(call.args_ref)).decode()
            parts.append(ToolCallPart(self._name(call), args if args != "null" else "{}", _call_id(job, said, call)))
        return ModelResponse(parts or [TextPart("(no text)")])

    def _close(self, since: _Since) -> None:
        for call in since.said.calls if since.said is not None else ():
            if call.call not in since.returned:
                self._return(since, call, LEFT_OPEN)

    def _return(self, since: _Since, call: SaidCall, text: str) -> None:
        assert since.said is not None
        part = ToolReturnPart(self._name(call), text, _call_id(since.job, since.said, call))
        since.returned[call.call] = part

    def _name(self, call: SaidCall) -> str:
        return self._offered.get(call.tool) or spelled(call.tool)

    async def _told(self, result: CallResult, shown: int) -> str:
        text = "" if result.result_ref is None else _shown(await self._bytes(result.result_ref), shown)
        match result.outcome:
            case "ok" | "answered":
                return text or "null"
            case "error":
                return f"The call did not succeed. {text}".rstrip()
            case "refused":
                return f"The call was refused and did not run. {result.note or ''}".rstrip()
            case "rejected":
                reason = f" Their reason: {json.loads(text)}" if text and not text.endswith(CUT_NOTE) else ""
                return f"A person rejected the call, and it did not run.{reason}"
            case "expired":
                return "Nobody decided in time, so the call did not run."

    async def _bytes(self, ref: BlobRef) -> bytes:
        return await self._blobs.get(self._workspace, ref)


def _call_id(job: int, said: Said, call: SaidCall) -> str:
    """Unique in a session, whose jobs are counted from 1."""
    return f"call_{said.turn}_{call.call}" if job == 1 else f"call_{job}_{said.turn}_{call.call}"


def _shown(data: bytes, at_most: int) -> str:
    return data.decode() if len(data) <= at_most else data[:at_most].decode(errors="ignore") + CUT_NOTE
