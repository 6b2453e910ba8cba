"""From what a model asked for to calls with a verdict: known tool, fitting arguments, then the plugin's policy.

`ask_human` is built in and outside the policy: it always asks. A call that can not be judged is refused with reasons
that hold no values. Nothing runs here, and the call gateway judges again before anything is sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from gateway.actions import action_digest, keep_args
from gateway.blobs import Blobs
from gateway.calls.gateway import verdict_on
from gateway.calls.kinds import Kinds, Proposed
from gateway.calls.permits import Permits
from gateway.calls.standing import Standing
from gateway.manifest import Tool
from gateway.questions import compile_question
from gateway.schemas import SchemaInvalid, validate
from gateway.snapshots import ASK_HUMAN, Snapshot
from gateway.templates import MAX_TEXT, render, title_of
from workflows.contract.errors import RETRYABLE_STEPS, StepError
from workflows.contract.ids import BlobRef, Digest, ToolName
from workflows.contract.job import EffectClass
from workflows.contract.steps import PlannedCall
from workflows.contract.text import clean_text

NAME = 64
REASON = 500
ASK_HUMAN_SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "required": ["question"],
    "additionalProperties": False,
    "properties": {
        "question": {"type": "string", "minLength": 1, "maxLength": 4000, "description": "What to ask the person."},
        "schema": {"description": "A JSON Schema that the answer must fit; leave it out for a free text."},
    },
}


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call as the model made it. `args` None: they were no JSON object."""

    tool: str
    args: Mapping[str, JsonValue] | None


@dataclass(frozen=True, slots=True)
class _Action:
    """Call `number` of a turn with its arguments kept and its digest made."""

    number: int
    tool: ToolName
    digest: Digest
    args_ref: BlobRef

    def refused(self, reason: str, effect: EffectClass = "read") -> PlannedCall:
        return PlannedCall(
            call=self.number,
            tool=self.tool,
            verdict="refuse",
            reason=clean_text(reason, REASON),
            effect=effect,
            action_digest=self.digest,
            args_ref=self.args_ref,
            message=f"Refused: {self.tool}",
        )


class Planner:
    """Plans the calls of one job."""

    def __init__(self, blobs: Blobs, job: Standing, snapshot: Snapshot, kinds: Kinds, permits: Permits) -> None:
        self._permits = permits
        self._blobs = blobs
        self._job = job
        self._receipt = job.receipt
        self._snapshot = snapshot
        self._plugin = snapshot.bundle
        self._kinds = kinds

    async def plan(self, number: int, asked: AskedCall) -> PlannedCall:
        """`number` counts the calls of the turn from 1."""
        try:
            action = await self._action(number, asked)
        except (ValueError, RecursionError):
            asked = AskedCall(asked.tool, None)
            action = await self._action(number, asked)
        if asked.args is None:
            return action.refused("The arguments are not a JSON object that can be kept exactly.")
        if action.tool == ASK_HUMAN:
            return _question(action, asked.args)
        tool = self._plugin.manifest.tool(asked.tool)
        if tool is None or tool.hidden:
            return action.refused("There is no such tool.")
        if not self._job.allows(tool.name):
            return action.refused("The grants that this job runs on do not give this tool.", tool.effect)
        return await self._call(action, tool, asked.args)

    async def _action(self, number: int, asked: AskedCall) -> _Action:
        name = ToolName(clean_text(asked.tool, NAME) or "?")
        args: JsonValue = None if asked.args is None else dict(asked.args)
        digest = action_digest(name, self._plugin.digest, args)
        return _Action(
            number, name, digest, await keep_args(self._blobs, self._receipt.workspace, self._receipt.job_id, args)
        )

    async def _call(self, action: _Action, tool: Tool, args: Mapping[str, JsonValue]) -> PlannedCall:
        reasons = validate(tool.input_schema, dict(args))
        if reasons:
            return action.refused("; ".join(reasons), tool.effect)
        try:
            effect = await self._effect(tool, args)
        except StepError as unfit:
            return action.refused(unfit.detail, tool.effect)
        verdict = verdict_on(self._snapshot, self._receipt, tool, effect, args)
        if verdict.verdict == "refuse":
            return action.refused(verdict.reason, effect)
        before = await self._permits.done_before(self._receipt, tool.name, effect, args)
        title = title_of(tool, args)
        return PlannedCall(
            call=action.number,
            tool=tool.name,
            verdict=verdict.verdict if before is None else "ask",
            effect=effect,
            action_digest=action.digest,
            args_ref=action.args_ref,
            message=render(tool.event, args) if tool.event is not None else f"Calling {tool.name}",
            title=title if before is None else clean_text(f"Again, after job {before}: {title}", MAX_TEXT),
        )

    async def _effect(self, tool: Tool, args: Mapping[str, JsonValue]) -> EffectClass:
        """Raises StepError where no such call can be made. A server that can not be asked now is asked again before the
        call, so the call is planned as it was declared."""
        proposed = Proposed(self._receipt, tool, args, self._snapshot.deployment.connections)
        try:
            return await self._kinds.of(tool).judge(proposed)
        except StepError as failure:
            if failure.step_code not in RETRYABLE_STEPS:
                raise
            return tool.effect


def _question(action: _Action, args: Mapping[str, JsonValue]) -> PlannedCall:
    reasons = validate(ASK_HUMAN_SCHEMA, dict(args))
    if not reasons and "schema" in args:
        try:
            compile_question(args["schema"])
        except SchemaInvalid as broken:
            reasons = [f"schema: {broken}"]
    if reasons:
        return action.refused("; ".join(reasons))
    return PlannedCall(
        call=action.number,
        tool=ASK_HUMAN,
        verdict="ask",
        kind="question",
        effect="read",
        action_digest=action.digest,
        args_ref=action.args_ref,
        message="Asking a person",
        title=clean_text(str(args["question"]), MAX_TEXT),
    )
