"""What is kept of a tool's reply: scrubbed JSON as a blob, a bounded size, and a fixed sentence for the job's log."""

import json
from dataclasses import replace
from datetime import datetime
from typing import Literal

from pydantic import JsonValue

from gateway.calls.egress import OutboundReply, ReplyTooLarge
from gateway.calls.http_tool import State, ToolOutcome, in_utf8, read_outcome
from gateway.credentials import Scrubber
from gateway.ledger.effects import Outcome
from workflows.contract.ids import ToolName
from workflows.contract.job import EffectClass
from workflows.contract.steps import ToolOutput

MAX_RESULT_BYTES = 1024 * 1024
TOO_LARGE = "The tool's answer is larger than 1 MiB and was not kept."

OUTCOME_OF: dict[State, Literal["ok", "error", "unknown", "pending"]] = {
    "ok": "ok",
    "confirmed": "ok",
    "error": "error",
    "failed": "error",
    "unknown": "unknown",
    "pending": "pending",
}
RECORDED_AS: dict[State, Outcome] = {
    "ok": "confirmed",
    "confirmed": "confirmed",
    "error": "failed",
    "failed": "failed",
    "unknown": "unknown",
}
"""How the ledger writes a state: an `idempotent_write` that came to an end is known, whatever the tool said. What is
pending has come to none, and stays `sent`."""


def outcome_of(effect: EffectClass, reply: OutboundReply, scrubber: Scrubber) -> ToolOutcome:
    """Scrubbed before it is read (and cut), and once more after: escapes hide a text from a search in bytes.

    Raises StepError as `read_outcome` does.
    """
    headers, body = in_utf8(reply.headers, reply.body)
    outcome = read_outcome(effect, reply.status, scrubber.scrub_headers(headers), scrubber.scrub_bytes(body))
    return replace(outcome, result=scrubber.scrub_json(outcome.result))


def outcome_too_large(effect: EffectClass, failure: ReplyTooLarge) -> ToolOutcome:
    """The status still tells what happened; of a read the model learns that the answer could not be kept."""
    outcome = read_outcome(effect, failure.status or 500, {}, b"")
    state: State = "error" if outcome.state == "ok" else outcome.state
    return replace(outcome, state=state, result={"error": TOO_LARGE}, message=TOO_LARGE)


def result_bytes(outcome: ToolOutcome) -> bytes:
    """The JSON that the model sees; an empty error is told as a sentence."""
    result: JsonValue = outcome.result
    if result is None and outcome.message is not None:
        result = {"error": outcome.message}
    return json.dumps(result, ensure_ascii=False, separators=(",", ":")).encode()


def sentence(tool: str, state: State, message: str | None) -> str:
    """For the event that ends the call."""
    match OUTCOME_OF[state]:
        case "ok":
            return f"{tool} is done."
        case "error":
            return f"{tool} did not succeed. {message or ''}".rstrip()
        case "unknown":
            return f"It is not known whether {tool} took effect."
        case "pending":
            return f"{tool} took the call and answers later."


def answers_later(tool: ToolName, until: datetime, epoch: int | None = None) -> ToolOutput:
    """The step's reply for a call whose callback is waited for."""
    message = sentence(tool, "pending", None)
    return ToolOutput(outcome="pending", callback_until=until, message=message, epoch=epoch)
