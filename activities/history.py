"""A conversation as messages for a model provider: instructions, the input, answers and what came of their calls.

Call ids are derived from turn and call, so the same history is the same request on every attempt. What a tool answered
is shown up to a bound; a person's reason is shown as theirs.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping

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

from activities.conversation import Came, Said, SaidCall, Told
from activities.toolnames import spelled
from gateway.blobs import Blobs
from gateway.bundles import Bundle
from workflows.contract.ids import BlobRef, Workspace
from workflows.contract.job import CallResult

SHOWN_RESULT_BYTES = 32 * 1024
CUT_NOTE = " [cut: the answer is longer than what is shown]"


def instructions_of(bundle: Bundle) -> str:
    manifest = bundle.manifest
    return "\n\n".join(bundle.files[path].strip() for path in (manifest.instructions, *manifest.skills))


class History:
    """Rebuilds the messages of one job."""

    def __init__(self, blobs: Blobs, workspace: Workspace, offered: Mapping[str, str]) -> None:
        self._blobs = blobs
        self._workspace = workspace
        self._offered = offered

    async def messages(
        self, instructions: str, job_input: bytes, entries: Iterable[Said | Came | Told]
    ) -> list[ModelMessage]:
        messages: list[ModelMessage] = []
        parts: list[ModelRequestPart] = [UserPromptPart(job_input.decode())]
        said: Said | None = None
        for entry in entries:
            match entry:
                case Said():
                    messages += [ModelRequest(parts, instructions=instructions), await self._response(entry)]
                    parts = [self._returned(entry, call, call.note) for call in entry.calls if call.note is not None]
                    said = entry
                case Came():
                    texts = await asyncio.gather(*(self._told(result) for result in entry.results))
                    calls = {} if said is None else {call.call: call for call in said.calls}
                    for result, text in zip(entry.results, texts, strict=True):
                        if said is not None and result.call in calls:
                            parts.append(self._returned(said, calls[result.call], text))
                case Told():
                    parts.append(UserPromptPart(entry.text))
        return [*messages, ModelRequest(parts, instructions=instructions)]

    async def _response(self, said: Said) -> ModelResponse:
        text = said.text if said.text_ref is None else (await self._bytes(said.text_ref)).decode()
        parts: list[ModelResponsePart] = [TextPart(text)] if text else []
        for call in said.calls:
            args = (await self._bytes(call.args_ref)).decode()
            parts.append(ToolCallPart(self._name(call), args if args != "null" else "{}", _call_id(said, call)))
        return ModelResponse(parts or [TextPart("(no text)")])

    def _returned(self, said: Said, call: SaidCall, text: str) -> ToolReturnPart:
        return ToolReturnPart(self._name(call), text, _call_id(said, call))

    def _name(self, call: SaidCall) -> str:
        return self._offered.get(call.tool) or spelled(call.tool)

    async def _told(self, result: CallResult) -> str:
        text = "" if result.result_ref is None else _shown(await self._bytes(result.result_ref))
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


def _call_id(said: Said, call: SaidCall) -> str:
    return f"call_{said.turn}_{call.call}"


def _shown(data: bytes) -> str:
    if len(data) <= SHOWN_RESULT_BYTES:
        return data.decode()
    return data[:SHOWN_RESULT_BYTES].decode(errors="ignore") + CUT_NOTE
