"""A tool's result that is no HTTP reply: a JSON value as an outcome, scrubbed and bounded like any other, and whether a
result fits the schema that was declared for it."""

import json
from dataclasses import replace

from pydantic import JsonValue

from gateway.calls.http_tool import ToolOutcome
from gateway.calls.outbound import OutboundReply, ReplyTooLarge
from gateway.calls.replies import MAX_RESULT_BYTES, outcome_of, outcome_too_large
from gateway.credentials import Scrubber
from gateway.schemas import SchemaInvalid, validate
from workflows.contract.job import EffectClass

_HEADERS = {"content-type": "application/json"}


def outcome_of_value(
    effect: EffectClass, value: object, scrubber: Scrubber, *, failed: bool = False, message: str | None = None
) -> ToolOutcome:
    """`failed`: the tool itself says that it did not succeed. `message` is a fixed sentence about the result."""
    status = 400 if failed else 200
    try:
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    except (TypeError, ValueError, RecursionError):
        body = b"NaN"  # what `outcome_of` takes for something that is not JSON
    if len(body) > MAX_RESULT_BYTES:
        return outcome_too_large(effect, ReplyTooLarge("", status=status))
    outcome = outcome_of(effect, OutboundReply(status, _HEADERS, body), scrubber)
    return replace(outcome, message=message) if failed else outcome


def without_result(effect: EffectClass, message: str, *, failed: bool = False) -> ToolOutcome:
    """What came can not be kept: of a write it is known that it happened (or failed), and no more."""
    outcome = outcome_of_value(effect, None, Scrubber(()), failed=failed)
    told = replace(outcome, result={"error": message}, message=message)
    return replace(told, state="error") if outcome.state == "ok" else told


def fitted(effect: EffectClass, outcome: ToolOutcome, schema: JsonValue, whose: str) -> ToolOutcome:
    """A result that does not fit is an error where the call only read; a write that took effect stays confirmed, and
    the model is told instead of shown."""
    if outcome.state not in ("ok", "confirmed"):
        return outcome
    try:
        reasons = validate(schema, outcome.result)
    except SchemaInvalid:
        reasons = ["the schema can not be read"]
    if not reasons:
        return outcome
    message = f"Its result does not fit {whose}."
    told: JsonValue = {"error": message, "reasons": list[JsonValue](reasons)}
    return replace(outcome, state="error" if effect == "read" else "confirmed", result=told, message=message)
