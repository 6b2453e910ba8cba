"""Whether an answer ends the job: the final value as it is judged by the output schema. Pure.

With an output schema a real model ends the job by calling `final_answer`, alone; a text is then no final answer. What
was not accepted is told to the model as the result of that call, or as a sentence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from activities.answers import FINAL_ANSWER, WRAPPED, Answer, Final
from gateway.schemas import validate

Schema = dict[str, JsonValue]
ALONE = "final_answer must be called once and alone. It was not taken; the other calls were."


@dataclass(frozen=True, slots=True)
class FinalVerdict:
    """`final` ends the job. `fault`: an end was meant and not accepted. `notes` answer calls of `final_answer`."""

    final: Final | None = None
    fault: str | None = None
    notes: Mapping[int, str] = field(default_factory=dict[int, str])


def offered_schema(output: Schema) -> Schema:
    """The parameters of `final_answer`: providers take objects only."""
    if output.get("type") == "object":
        return dict(output)
    return {"type": "object", "required": [WRAPPED], "properties": {WRAPPED: output}}


def judge_final(answer: Answer, schema: Schema | None) -> FinalVerdict:
    if schema is None:
        return FinalVerdict(final=answer.final)
    finals = [number for number, call in enumerate(answer.calls, 1) if call.tool == FINAL_ANSWER]
    if answer.final is not None:
        return _judged(answer.final.value, schema, None)
    if len(finals) == len(answer.calls) == 1:
        return _judged(_unwrapped(answer.calls[0].args, schema), schema, 1)
    notes = dict.fromkeys(finals, ALONE)
    if len(finals) < len(answer.calls):
        return FinalVerdict(notes=notes)
    return FinalVerdict(fault="Call final_answer, once and alone, to end the job.", notes=notes)


def _judged(value: JsonValue, schema: Schema, call: int | None) -> FinalVerdict:
    reasons = validate(schema, value)
    if not reasons:
        return FinalVerdict(final=Final(value))
    fault = "; ".join(reasons)
    return FinalVerdict(fault=fault, notes={} if call is None else {call: f"Not accepted: {fault}"})


def _unwrapped(args: Mapping[str, JsonValue] | None, schema: Schema) -> JsonValue:
    if args is None:
        return None
    return dict(args) if schema.get("type") == "object" else args.get(WRAPPED)
