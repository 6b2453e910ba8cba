"""What histories tell: progress of the newest step, the record at a job's end, when something changed, who tried what.

Reads of the engine alone, bounded by their callers' clocks. Trouble is `Refused(ENGINE_UNAVAILABLE)`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Literal, TypeVar

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, HistoryEventFilterType, TaskQueueType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    CountWorkflowExecutionsRequest,
    DescribeTaskQueueRequest,
    DescribeWorkerDeploymentRequest,
    DescribeWorkerDeploymentResponse,
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryReverseRequest,
    ListWorkflowExecutionsRequest,
)
from temporalio.service import RPCError, RPCStatusCode, WorkflowService

from gateway.inspections import Inspection, RecordedAttempt, attempts_of, continued_from, run_of, trace_id_of
from gateway.records import end_record_of, ended_for_stop, newest_progress, task_failed
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import JobId, Workspace, workflow_id
from workflows.contract.job import EndRecord, Progress

T = TypeVar("T")

LONG_POLL_S = 25.0
SILENT_AFTER_S = 2.0
QueueKind = Literal["workflow", "activity"]
_QUEUE_KINDS: Mapping[QueueKind, "TaskQueueType.ValueType"] = MappingProxyType(
    {"workflow": TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, "activity": TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY}
)
INSPECTED_EVENTS = 20_000
"""So many events of a job are read for its attempts, newest run first."""


class Histories:
    def __init__(self, service: WorkflowService, namespace: str) -> None:
        self._service = service
        self.namespace = namespace

    async def newest_progress(self, workspace: Workspace, job_id: JobId) -> Progress | None:
        """The progress in the input of the newest scheduled step, from the last page of the history."""
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self.namespace,
            execution=WorkflowExecution(workflow_id=workflow_id(workspace, job_id)),
            maximum_page_size=20,
        )
        async with trouble(ignore=RPCStatusCode.NOT_FOUND):
            page = await self._service.get_workflow_execution_history_reverse(request)
            return newest_progress(page.history.events)
        return None

    async def end_record(self, workspace: Workspace, job_id: JobId) -> EndRecord | None:
        """The record in the close event of a completed or failed execution."""
        event = await self._close_event(workspace, job_id)
        return None if event is None else end_record_of(event)

    async def ended_for_stop(self, workspace: Workspace, job_id: JobId) -> bool:
        """Of a terminated execution: whether that was Jobgate's own end of a canceled job."""
        event = await self._close_event(workspace, job_id)
        return event is not None and ended_for_stop(event)

    async def task_failed(self, workspace: Workspace, job_id: JobId) -> bool:
        """Whether the job's newest workflow task failed in a worker."""
        return task_failed(await self.newest_events(workspace, job_id, 20))

    async def _close_event(self, workspace: Workspace, job_id: JobId) -> HistoryEvent | None:
        request = GetWorkflowExecutionHistoryRequest(
            namespace=self.namespace,
            execution=WorkflowExecution(workflow_id=workflow_id(workspace, job_id)),
            history_event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT,
        )
        async with trouble(ignore=RPCStatusCode.NOT_FOUND):
            page = await self._service.get_workflow_execution_history(request)
            if page.history.events:
                return page.history.events[-1]
        return None

    async def changes(self, workspace: Workspace, job_id: JobId) -> AsyncIterator[None]:
        """Yields when a workflow task was done (nothing else changes a view), one long poll at a time; follows
        roll-overs; ends with the execution."""
        execution = WorkflowExecution(workflow_id=workflow_id(workspace, job_id))
        token = b""
        while True:
            request = GetWorkflowExecutionHistoryRequest(
                namespace=self.namespace,
                execution=execution,
                maximum_page_size=1000,
                next_page_token=token,
                wait_new_event=True,
            )
            try:
                page = await self._service.get_workflow_execution_history(
                    request, timeout=timedelta(seconds=LONG_POLL_S)
                )
            except RPCError as error:
                if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
                    continue
                if error.status is RPCStatusCode.NOT_FOUND:
                    return
                raise unavailable() from None
            events, token = page.history.events, page.next_page_token
            if any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED for event in events):
                yield
            if not token:
                rolled_over = events and events[-1].event_type == (
                    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
                )
                if not rolled_over:
                    return

    async def inspection(self, workspace: Workspace, job_id: JobId, within_s: float) -> Inspection | None:
        """Every attempt of the current run and of the runs that rolled over into it, as far as `within_s` allows."""
        until = asyncio.get_running_loop().time() + within_s
        execution = WorkflowExecution(workflow_id=workflow_id(workspace, job_id))
        async with trouble(ignore=RPCStatusCode.NOT_FOUND):
            question = DescribeWorkflowExecutionRequest(namespace=self.namespace, execution=execution)
            run = run_of(await self._service.describe_workflow_execution(question))
            attempts: list[RecordedAttempt] = []
            trace_id, seen, run_id, pending = None, 0, run.run_id, run.pending
            while run_id is not None:
                execution = WorkflowExecution(workflow_id=execution.workflow_id, run_id=run_id)
                events, whole = await self._events(execution, INSPECTED_EVENTS - seen, until)
                attempts = attempts_of(run_id, events, pending) + attempts
                if not whole:
                    return Inspection(run, tuple(attempts), trace_id, complete=False)
                trace_id, seen = trace_id_of(events[0]) or trace_id, seen + len(events)
                run_id, pending = continued_from(events[0]), ()
            return Inspection(run, tuple(attempts), trace_id, complete=True)
        return None

    async def _events(
        self, execution: WorkflowExecution, at_most: int, until: float
    ) -> tuple[list[HistoryEvent], bool]:
        """The events of one run, and whether that is all of them. Retention may have taken a run that rolled over."""
        events: list[HistoryEvent] = []
        token = b""
        async with trouble(ignore=RPCStatusCode.NOT_FOUND):
            while len(events) < at_most and asyncio.get_running_loop().time() < until:
                page = await self._service.get_workflow_execution_history(
                    GetWorkflowExecutionHistoryRequest(
                        namespace=self.namespace, execution=execution, maximum_page_size=1000, next_page_token=token
                    )
                )
                events, token = [*events, *page.history.events], page.next_page_token
                if not token:
                    return events, True
        return events, False

    async def described(self, workspace: Workspace, job_id: JobId) -> DescribeWorkflowExecutionResponse | None:
        """The current run as the engine has it, whoever started it; None where it knows none."""
        execution = WorkflowExecution(workflow_id=workflow_id(workspace, job_id))
        async with trouble(ignore=RPCStatusCode.NOT_FOUND):
            return await self._service.describe_workflow_execution(
                DescribeWorkflowExecutionRequest(namespace=self.namespace, execution=execution)
            )
        return None

    async def newest_events(self, workspace: Workspace, job_id: JobId, at_most: int) -> list[HistoryEvent]:
        """The last events of the current run, newest first; one page."""
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self.namespace,
            execution=WorkflowExecution(workflow_id=workflow_id(workspace, job_id)),
            maximum_page_size=at_most,
        )
        async with trouble(ignore=RPCStatusCode.NOT_FOUND):
            return list((await self._service.get_workflow_execution_history_reverse(request)).history.events)
        return []

    async def listed(self, query: str, at_most: int) -> tuple[list[WorkflowExecutionInfo], int]:
        """One page of what visibility lists, and how many it counts; both may lag by a second or two."""
        async with trouble():
            found = await self._service.list_workflow_executions(
                ListWorkflowExecutionsRequest(namespace=self.namespace, query=query, page_size=at_most)
            )
            counted = await self._service.count_workflow_executions(
                CountWorkflowExecutionsRequest(namespace=self.namespace, query=query)
            )
            return list(found.executions), counted.count
        return [], 0

    async def polling(self, task_queue: str, *kinds: QueueKind) -> list[PollerInfo]:
        """Who asked this queue lately for work of these kinds, of both if none is named; records outlive a dead worker
        by minutes."""
        found: list[PollerInfo] = []
        async with trouble():
            for kind in kinds or _QUEUE_KINDS:
                question = DescribeTaskQueueRequest(
                    namespace=self.namespace,
                    task_queue=TaskQueue(name=task_queue),
                    task_queue_type=_QUEUE_KINDS[kind],
                )
                found += (await self._service.describe_task_queue(question)).pollers
        return found

    async def current_build(self, deployment: str) -> str:
        """The build that new jobs go to; empty: they go to workers that are not versioned."""
        async with trouble(ignore=RPCStatusCode.NOT_FOUND):
            question = DescribeWorkerDeploymentRequest(namespace=self.namespace, deployment_name=deployment)
            return current_of(await self._service.describe_worker_deployment(question))
        return ""

    async def unknown_attributes(self, names: Iterable[str]) -> list[str]:
        """Which of these search attributes the namespace does not have; each is named in a query that finds nothing."""
        missing: list[str] = []
        for name in names:
            query = f"WorkflowId = 'no job has this id' AND {name} IS NOT NULL"
            async with trouble(ignore=RPCStatusCode.INVALID_ARGUMENT):
                await self._service.count_workflow_executions(
                    CountWorkflowExecutionsRequest(namespace=self.namespace, query=query)
                )
                continue
            missing.append(name)
        return missing


def current_of(found: DescribeWorkerDeploymentResponse) -> str:
    return found.worker_deployment_info.routing_config.current_deployment_version.build_id


def unavailable() -> Refused:
    return Refused(
        ProblemCode.ENGINE_UNAVAILABLE, "The workflow engine does not answer. Try again shortly.", retry_after_s=1
    )


@asynccontextmanager
async def trouble(ignore: RPCStatusCode | None = None) -> AsyncGenerator[None]:
    """Turn the engine's trouble into a refusal; `ignore` is swallowed, for the caller to answer after the block."""
    try:
        yield
    except RPCError as error:
        if error.status is not ignore:
            raise unavailable() from None
    except RuntimeError:  # the client connects on first use, and this is how it says that it could not
        raise unavailable() from None


async def unless_silent(answer: Awaitable[T]) -> T | None:
    """None where the engine does not answer in time, for whoever can say that it is not known."""
    try:
        async with asyncio.timeout(SILENT_AFTER_S):
            return await answer
    except TimeoutError:
        return None
    except Refused as refusal:
        if refusal.code != ProblemCode.ENGINE_UNAVAILABLE:
            raise
        return None
