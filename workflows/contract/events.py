"""The job's own log: event types, the data keys each may carry, and the one way to write an event as text.

An event is `{seq, at, type, message, data}`; seq starts at 1 and has no gaps. `data` never holds secrets or full
arguments: only the keys listed in `EVENT_DATA`, which is also what the documentation prints.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainSerializer


class EventType(StrEnum):
    JOB_QUEUED = "job.queued"
    JOB_HELD = "job.held"
    JOB_RELEASED = "job.released"
    JOB_STARTED = "job.started"
    JOB_RECOVERED = "job.recovered"
    JOB_SUCCEEDED = "job.succeeded"
    JOB_FAILED = "job.failed"
    JOB_CANCELED = "job.canceled"
    STEP_STARTED = "step.started"
    STEP_FINISHED = "step.finished"
    TOOL_STARTED = "tool.started"
    TOOL_FINISHED = "tool.finished"
    TOOL_REFUSED = "tool.refused"
    REQUEST_OPENED = "request.opened"
    REQUEST_VOTED = "request.voted"
    REQUEST_DECIDED = "request.decided"
    REQUEST_EXPIRING = "request.expiring"
    REQUEST_EXPIRED = "request.expired"
    REQUEST_VOIDED = "request.voided"
    DECISION_REFUSED = "decision.refused"
    CANCEL_REQUESTED = "cancel.requested"
    ATTEMPT_REPLACED = "attempt.replaced"
    EFFECT_UNKNOWN = "effect.unknown"
    EFFECT_RECONCILED = "effect.reconciled"
    AUTHORITY_REVOKED = "authority.revoked"
    BUDGET_WARNING = "budget.warning"
    ARTIFACT_PUBLISHED = "artifact.published"


EVENT_DATA: Mapping[EventType, frozenset[str]] = MappingProxyType(
    {
        EventType.JOB_QUEUED: frozenset({"plugin", "version", "digest", "mode", "principal", "initiator"}),
        EventType.JOB_HELD: frozenset({"blocker"}),
        EventType.JOB_RELEASED: frozenset(),
        EventType.JOB_STARTED: frozenset(),
        EventType.JOB_RECOVERED: frozenset({"reason"}),
        EventType.JOB_SUCCEEDED: frozenset({"planned"}),
        EventType.JOB_FAILED: frozenset({"code"}),
        EventType.JOB_CANCELED: frozenset(),
        EventType.STEP_STARTED: frozenset({"turn", "attempt"}),
        EventType.STEP_FINISHED: frozenset({"turn", "calls", "input_tokens", "output_tokens", "estimated"}),
        EventType.TOOL_STARTED: frozenset({"tool", "call", "effect", "effect_id", "attempt"}),
        EventType.TOOL_FINISHED: frozenset({"tool", "call", "effect", "effect_id", "outcome"}),
        EventType.TOOL_REFUSED: frozenset({"tool", "call", "reason"}),
        EventType.REQUEST_OPENED: frozenset({"request_id", "kind", "tool", "call", "expires_at"}),
        EventType.REQUEST_VOTED: frozenset({"request_id", "votes", "quorum"}),
        EventType.REQUEST_DECIDED: frozenset({"request_id", "decision", "decided_by"}),
        EventType.REQUEST_EXPIRING: frozenset({"request_id", "expires_at"}),
        EventType.REQUEST_EXPIRED: frozenset({"request_id"}),
        EventType.REQUEST_VOIDED: frozenset({"request_id"}),
        EventType.DECISION_REFUSED: frozenset({"reason"}),
        EventType.CANCEL_REQUESTED: frozenset(),
        EventType.ATTEMPT_REPLACED: frozenset({"step", "tool", "attempt", "reason", "retry_in_s"}),
        EventType.EFFECT_UNKNOWN: frozenset({"tool", "call", "effect_id"}),
        EventType.EFFECT_RECONCILED: frozenset({"tool", "effect_id", "outcome"}),
        EventType.AUTHORITY_REVOKED: frozenset({"reason"}),
        EventType.BUDGET_WARNING: frozenset({"budget", "used", "limit"}),
        EventType.ARTIFACT_PUBLISHED: frozenset({"artifact_id", "name", "bytes"}),
    }
)


def timestamp(value: datetime) -> str:
    """RFC 3339 in UTC with `Z`, microseconds only where there are any; the one spelling of every answer."""
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


Timestamp = Annotated[datetime, PlainSerializer(timestamp, return_type=str, when_used="json")]
"""An aware datetime that is written as `timestamp` writes it."""


class Event(BaseModel):
    """One entry of a job's log. `seq` is None only for the end that the facade derives for an engine-ended job."""

    model_config = ConfigDict(frozen=True)

    seq: int | None
    at: Timestamp
    type: EventType
    message: str
    data: Mapping[str, Any] = {}


TERMINAL_EVENTS = frozenset({EventType.JOB_SUCCEEDED, EventType.JOB_FAILED, EventType.JOB_CANCELED})
