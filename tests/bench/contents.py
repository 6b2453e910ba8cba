"""What travels in the measured job: the inputs and outputs of its three activities, as small and as large as real ones.

The bare workflow sends and gets the same bytes, so that only what Jobgate adds around them differs.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from tests.bench.stage import READ, THREE_STEPS
from workflows.contract.events import Event, EventType
from workflows.contract.ids import BlobRef, ToolName, sha256_of
from workflows.contract.job import CallResult, Progress, Usage
from workflows.contract.steps import ModelInput, ModelOutput, PlannedCall, ToolInput, ToolOutput

BARE_QUEUE = "bench-bare"
BARE_THREE_STEPS = "BenchThreeSteps"
BARE_SIGNALED = "BenchSignaled"

_DIGEST = sha256_of(b"a blob")
_REF = BlobRef(_DIGEST)
_TOOL = ToolName(READ)


def script_text() -> str:
    return json.dumps(list(THREE_STEPS))


def model_input(turn: int) -> ModelInput:
    results = (CallResult(call=0, tool=_TOOL, outcome="ok", result_ref=_REF),)
    return ModelInput(
        step=turn,
        turn=turn,
        attempt=1,
        conversation=_REF if turn > 1 else None,
        results=results if turn > 1 else (),
        progress=_progress(EventType.STEP_STARTED, "Turn 1: asking the model.", {"turn": turn, "attempt": 1}),
    )


def model_output(turn: int) -> ModelOutput:
    if turn > 1:
        return ModelOutput(turn=turn, conversation=_REF, final_ref=_REF, final_bytes=19)
    call = PlannedCall(
        call=0,
        tool=_TOOL,
        verdict="run",
        effect="read",
        action_digest=_DIGEST,
        args_ref=_REF,
        message="Calling notes.read",
    )
    return ModelOutput(turn=turn, conversation=_REF, say="Reading.", calls=(call,))


def tool_input() -> ToolInput:
    data = {"tool": READ, "call": 0, "effect": "read", "effect_id": None, "attempt": 1}
    return ToolInput(
        step=1,
        call=0,
        attempt=1,
        tool=_TOOL,
        effect="read",
        action_digest=_DIGEST,
        args_ref=_REF,
        effect_id=None,
        request_id=None,
        timeout_s=30,
        progress=_progress(EventType.TOOL_STARTED, "Calling notes.read", data),
    )


def tool_output() -> ToolOutput:
    return ToolOutput(outcome="ok", result_ref=_REF, message="notes.read answered 200.")


def _progress(type: EventType, message: str, data: Mapping[str, object]) -> Progress:
    event = Event(seq=3, at=datetime(2026, 1, 1, tzinfo=UTC), type=type, message=message, data=data)
    return Progress(event=event, usage=Usage(steps=1))
