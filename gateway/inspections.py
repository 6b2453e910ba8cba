"""What the engine recorded of a job's attempts: which process tried which step when, and what became of it.

Pure: protobufs in, facts out. Taken are times, places, identities and codes; inputs, results and texts of failures stay
behind, so what an operator is shown of a history holds no content of a job.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import PendingActivityState, TimeoutType, WorkflowExecutionStatus
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse

from gateway.records import TELLING, decoded, pinned_build
from gateway.tracing import HEADER
from workflows.contract.errors import StepCode

AttemptOutcome = Literal["scheduled", "running", "completed", "failed", "timed_out", "canceled"]
_CODES = frozenset(StepCode)


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """`step` and `attempt` are the workflow's numbers; None for a read of the ledger, which the engine repeats.
    `code` is a StepCode, or the kind of a time-out; of a failure that is not ours, `internal`."""

    run_id: str
    activity: str
    step: int | None
    call: int | None
    attempt: int | None
    tool: str | None
    task_queue: str
    worker: str | None
    scheduled_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    outcome: AttemptOutcome
    code: str | None


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """`status` is the engine's word for the current run. `build`: of the workers that it goes on with alone; None: of
    whatever workers there are."""

    run_id: str
    status: str
    started_at: datetime
    closed_at: datetime | None
    task_queue: str
    history_length: int
    build: str | None
    pending: tuple[PendingActivityInfo, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """Attempts in the order in which they were scheduled. `complete` False: older ones than these were left out."""

    run: RecordedRun
    attempts: tuple[RecordedAttempt, ...]
    trace_id: str | None
    complete: bool


def run_of(found: DescribeWorkflowExecutionResponse) -> RecordedRun:
    info = found.workflow_execution_info
    name = WorkflowExecutionStatus.Name(info.status).removeprefix("WORKFLOW_EXECUTION_STATUS_")
    return RecordedRun(
        run_id=info.execution.run_id,
        status=name.lower(),
        started_at=_at(info.start_time),
        closed_at=_at(info.close_time) if info.HasField("close_time") else None,
        task_queue=found.execution_config.task_queue.name,
        history_length=info.history_length,
        build=pinned_build(found),
        pending=tuple(found.pending_activities),
    )


def attempts_of(
    run_id: str, events: Iterable[HistoryEvent], pending: Sequence[PendingActivityInfo] = ()
) -> list[RecordedAttempt]:
    """The attempts of one run. `pending`: what describe says of those that the history does not tell of yet."""
    found: dict[int, RecordedAttempt] = {}
    by_activity: dict[str, int] = {}
    for event in events:
        if event.HasField("activity_task_scheduled_event_attributes"):
            found[event.event_id] = _scheduled(run_id, event)
            by_activity[event.activity_task_scheduled_event_attributes.activity_id] = event.event_id
        elif event.HasField("activity_task_started_event_attributes"):
            told = event.activity_task_started_event_attributes
            _change(
                found,
                told.scheduled_event_id,
                worker=told.identity or None,
                started_at=_at(event.event_time),
                outcome="running",
            )
        else:
            _ended(found, event)
    for waiting in pending:
        _still(found, by_activity.get(waiting.activity_id, 0), waiting)
    return list(found.values())


def continued_from(first: HistoryEvent) -> str | None:
    """The run before the one that begins with this event, where that one rolled over."""
    return first.workflow_execution_started_event_attributes.continued_execution_run_id or None


def trace_id_of(first: HistoryEvent) -> str | None:
    """The W3C trace of the request that started the job, from the header of its first event."""
    fields = first.workflow_execution_started_event_attributes.header.fields
    carried = decoded([fields[HEADER]], dict[str, Any]) if HEADER in fields else None
    parts = str((carried or {}).get("traceparent", "")).split("-")
    return parts[1] if len(parts) == 4 and len(parts[1]) == 32 else None


def _scheduled(run_id: str, event: HistoryEvent) -> RecordedAttempt:
    told = event.activity_task_scheduled_event_attributes
    name = told.activity_type.name
    given: Mapping[str, Any] = (decoded(told.input.payloads, dict[str, Any]) or {}) if name in TELLING else {}
    return RecordedAttempt(
        run_id=run_id,
        activity=name,
        step=_number(given, "step"),
        call=_number(given, "call"),
        attempt=_number(given, "attempt"),
        tool=str(given["tool"]) if "tool" in given else None,
        task_queue=told.task_queue.name,
        worker=None,
        scheduled_at=_at(event.event_time),
        started_at=None,
        ended_at=None,
        outcome="scheduled",
        code=None,
    )


def _ended(found: dict[int, RecordedAttempt], event: HistoryEvent) -> None:
    at = _at(event.event_time)
    if event.HasField("activity_task_completed_event_attributes"):
        told = event.activity_task_completed_event_attributes
        _change(found, told.scheduled_event_id, ended_at=at, outcome="completed")
    elif event.HasField("activity_task_failed_event_attributes"):
        failed = event.activity_task_failed_event_attributes
        _change(found, failed.scheduled_event_id, ended_at=at, outcome="failed", code=_code(failed.failure))
    elif event.HasField("activity_task_timed_out_event_attributes"):
        late = event.activity_task_timed_out_event_attributes
        kind = TimeoutType.Name(late.failure.timeout_failure_info.timeout_type).removeprefix("TIMEOUT_TYPE_").lower()
        _change(found, late.scheduled_event_id, ended_at=at, outcome="timed_out", code=kind)
    elif event.HasField("activity_task_canceled_event_attributes"):
        stopped = event.activity_task_canceled_event_attributes
        _change(found, stopped.scheduled_event_id, ended_at=at, outcome="canceled")


def _still(found: dict[int, RecordedAttempt], scheduled_event: int, waiting: PendingActivityInfo) -> None:
    begun = waiting.state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    if begun:
        _change(
            found,
            scheduled_event,
            outcome="running",
            worker=waiting.last_worker_identity or None,
            started_at=_at(waiting.last_started_time) if waiting.HasField("last_started_time") else None,
        )


def _change(found: dict[int, RecordedAttempt], scheduled_event: int, **told: Any) -> None:
    if scheduled_event in found:
        found[scheduled_event] = replace(found[scheduled_event], **told)


def _code(failure: Failure) -> str:
    code = failure.application_failure_info.type
    return code if code in _CODES else StepCode.INTERNAL.value


def _number(given: Mapping[str, Any], name: str) -> int | None:
    value = given.get(name)
    return value if isinstance(value, int) else None


def _at(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)
