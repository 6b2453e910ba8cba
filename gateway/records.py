"""What the engine's records say: describes, memos, heartbeats and close events, decoded into facts.

Pure: protobufs in, facts out. What is absent or not ours reads as None, because anybody may start a workflow with any
memo and any result.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any, Literal, TypeVar

from temporalio.api.common.v1 import Memo, Payload
from temporalio.api.enums.v1 import (
    PendingActivityState,
    VersioningBehavior,
    WorkflowExecutionStatus,
    WorkflowTaskFailedCause,
)
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.contrib.pydantic import pydantic_data_converter

from facade.reader import Ending, Execution, Pending
from workflows.contract.job import (
    MEMO_REQUESTS,
    MEMO_START,
    MEMO_STATE,
    EndRecord,
    MemoStart,
    OpenRequest,
    Progress,
)
from workflows.contract.steps import WORKFLOW_TYPE, Activity

T = TypeVar("T")
Standing = Literal["current", "stale", "stopped", "closed"]
"""An attempt as the engine sees it: only `current` may act."""

TELLING = frozenset({Activity.MODEL, Activity.TOOL, Activity.RECONCILE, Activity.PUBLISH})
ENDINGS: Mapping[int, Ending] = {
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED: "completed",
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_FAILED: "failed",
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CANCELED: "canceled",
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED: "terminated",
    WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TIMED_OUT: "timed_out",
}
TASK_ATTEMPTS = 2
"""A workflow task that is tried more often than this is looked at: a worker that died costs one."""
STOPPED = "Jobgate: canceled; no worker could end it"
"""The reason of such a termination. Anybody with access to Temporal can write it; they could cancel the job as well."""
_IN_A_WORKER = frozenset(
    {
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR,
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE,
    }
)
_BEGUN = frozenset(
    {
        PendingActivityState.PENDING_ACTIVITY_STATE_STARTED,
        PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED,
        PendingActivityState.PENDING_ACTIVITY_STATE_PAUSE_REQUESTED,
    }
)


def execution_of(found: DescribeWorkflowExecutionResponse) -> Execution | None:
    """None for a workflow that Jobgate did not start."""
    info, extended = found.workflow_execution_info, found.workflow_extended_info
    memo = memo_of(info.memo, MEMO_START, MemoStart)
    if memo is None or info.type.name != WORKFLOW_TYPE:
        return None
    return Execution(
        ending=ENDINGS.get(info.status),
        closed_at=info.close_time.ToDatetime(tzinfo=UTC) if info.HasField("close_time") else None,
        memo=memo,
        recorded=recorded_of(info.memo),
        pending=tuple(_pending(pending) for pending in found.pending_activities),
        history_length=info.history_length,
        workflow_task_failing=found.HasField("pending_workflow_task")
        and found.pending_workflow_task.attempt > TASK_ATTEMPTS,
        first_run=info.first_run_id or None,
        reset_at=extended.last_reset_time.ToDatetime(tzinfo=UTC) if extended.HasField("last_reset_time") else None,
    )


def memo_of(memo: Memo, name: str, type_hint: type[T]) -> T | None:
    return decoded([memo.fields[name]], type_hint) if name in memo.fields else None


def recorded_of(memo: Memo) -> EndRecord | None:
    """What the workflow told of itself last, with the requests in their place."""
    record = memo_of(memo, MEMO_STATE, EndRecord)
    if record is None or not record.requests_apart:
        return record
    requests = tuple(memo_of(memo, MEMO_REQUESTS, list[OpenRequest]) or ())
    view = record.view.model_copy(update={"requests": requests})
    return record.model_copy(update={"view": view, "requests_apart": False})


def standing_of(found: DescribeWorkflowExecutionResponse, run_id: str, activity_id: str, attempt: int) -> Standing:
    """Whether the engine still waits for this attempt at this activity of this run."""
    info = found.workflow_execution_info
    if info.status != WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING:
        return "closed"
    if found.workflow_extended_info.cancel_requested:
        return "stopped"
    waited_for = any(
        (pending.activity_id, pending.attempt, pending.state)
        == (activity_id, attempt, PendingActivityState.PENDING_ACTIVITY_STATE_STARTED)
        for pending in found.pending_activities
    )
    return "current" if waited_for and info.execution.run_id == run_id else "stale"


def newest_progress(newest_first: Sequence[HistoryEvent]) -> Progress | None:
    """The progress in the input of the newest scheduled step."""
    for event in newest_first:
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name in TELLING:
            told = decoded(scheduled.input.payloads, dict[str, Any])
            return Progress.model_validate(told["progress"]) if told and "progress" in told else None
    return None


def end_record_of(event: HistoryEvent) -> EndRecord | None:
    """Of a close event: the record in the result or in the failure's details."""
    if event.HasField("workflow_execution_completed_event_attributes"):
        return decoded(event.workflow_execution_completed_event_attributes.result.payloads, EndRecord)
    if event.HasField("workflow_execution_failed_event_attributes"):
        details = event.workflow_execution_failed_event_attributes.failure.application_failure_info.details
        return decoded(details.payloads, EndRecord)
    return None


def ended_for_stop(event: HistoryEvent) -> bool:
    """Of a close event: whether it is Jobgate's own end of a canceled job that no worker could end."""
    return event.workflow_execution_terminated_event_attributes.reason == STOPPED


def task_failed(newest_first: Sequence[HistoryEvent]) -> bool:
    """Whether the newest workflow task that the history tells of failed in a worker. Only the first of a row of failed
    tasks is an event; one that timed out, because its worker died, is none."""
    for event in newest_first:
        if event.HasField("workflow_task_failed_event_attributes"):
            return event.workflow_task_failed_event_attributes.cause in _IN_A_WORKER
        if event.HasField("workflow_task_completed_event_attributes"):
            return False
    return False


def pinned_build(found: DescribeWorkflowExecutionResponse) -> str | None:
    """The build that an open execution waits for; None where any current worker may take it."""
    versioning = found.workflow_execution_info.versioning_info
    pinned = versioning.behavior == VersioningBehavior.VERSIONING_BEHAVIOR_PINNED
    if not pinned or versioning.HasField("versioning_override"):
        return None
    return versioning.deployment_version.build_id or None


def decoded(payloads: Sequence[Payload], type_hint: type[T]) -> T | None:
    """The first payload as this type, or None."""
    if not payloads:
        return None
    try:
        return pydantic_data_converter.payload_converter.from_payload(payloads[0], type_hint)
    except (RuntimeError, ValueError, TypeError, KeyError):
        return None


def _pending(info: PendingActivityInfo) -> Pending:
    told = decoded(info.heartbeat_details.payloads, Progress) if info.activity_type.name in TELLING else None
    return Pending(info.activity_type.name, info.state in _BEGUN or info.HasField("last_started_time"), told)
