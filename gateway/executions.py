"""The engine's side of a census: the executions of one workspace, what waits in them, and who polls the lanes.

Visibility lags by up to two seconds, so it is asked only for what the ledger does not know: executions that somebody
started past it. The jobs are the receipts', and each open one is described. Read only, and bounded.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse

from gateway.histories import Histories
from gateway.inspections import run_of
from gateway.records import TELLING
from workflows.contract.ids import JobId, Workspace

AT_ONCE = 16
LISTED = 500
"""So many executions of one listing are told apart."""
NEW_EVENTS = 200
"""So many events at a history's end are looked at, where it grew."""


@dataclass(frozen=True, slots=True)
class Execution:
    """`parked`: open, and nothing is under way in it: no activity and no workflow task. `attempts`: what the pending
    activities have tried."""

    run: str
    status: str
    length: int
    attempts: int
    parked: bool


@dataclass(frozen=True, slots=True)
class Growth:
    """What was added to a history: steps that were scheduled, signals and cancellations from outside, and whether only
    its own clock woke it."""

    steps: int
    signals: int
    own_clock: bool


async def look_at(histories: Histories, workspace: Workspace, jobs: Iterable[JobId]) -> dict[JobId, Execution]:
    """Each of these jobs as the engine has it; those it does not know are left out."""
    at_once = asyncio.Semaphore(AT_ONCE)

    async def look(job: JobId) -> tuple[JobId, DescribeWorkflowExecutionResponse | None]:
        async with at_once:
            return job, await histories.described(workspace, job)

    found = await asyncio.gather(*(look(job) for job in jobs))
    return {job: _execution(described) for job, described in found if described is not None}


def _execution(found: DescribeWorkflowExecutionResponse) -> Execution:
    run = run_of(found)
    open_ = found.workflow_execution_info.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
    return Execution(
        run=run.run_id,
        status=run.status,
        length=run.history_length,
        attempts=sum(max(pending.attempt, 1) for pending in run.pending),
        parked=open_ and not run.pending and not found.HasField("pending_workflow_task"),
    )


@dataclass(frozen=True, slots=True)
class Listing:
    """What visibility lists since some moment, by run id: workflow id and beginning. `total`: of any age; not `whole`:
    more began since than are listed."""

    began: Mapping[str, tuple[str, datetime]]
    total: int
    whole: bool


async def listed_since(histories: Histories, workspace: Workspace, since: datetime, queues: Iterable[str]) -> Listing:
    """Of the workspace: by its name, by its ids, or, of any type, for our workers and of no workspace at all."""
    by_hand = " OR ".join(f"TaskQueue = '{queue}'" for queue in queues)
    named = f"JobgateWorkspace = '{workspace}' OR WorkflowId STARTS_WITH '{workspace}.'"
    of = f"({named} OR (JobgateWorkspace IS NULL AND ({by_hand})))"
    recent, count = await histories.listed(f"{of} AND StartTime >= '{since:%Y-%m-%dT%H:%M:%S.%fZ}'", LISTED)
    _, total = await histories.listed(of, 1)
    began = {one.execution.run_id: (one.execution.workflow_id, one.start_time.ToDatetime(tzinfo=UTC)) for one in recent}
    return Listing(began, total, whole=count <= len(began))


async def growth_of(histories: Histories, workspace: Workspace, job: JobId, seen: Execution) -> Growth:
    """What came after `seen`; of another run, all that its last page holds."""
    newest = await histories.newest_events(workspace, job, NEW_EVENTS)
    now = await histories.described(workspace, job)
    same = now is not None and run_of(now).run_id == seen.run
    return told_by([event for event in newest if not same or event.event_id > seen.length])


def told_by(events: Sequence[HistoryEvent]) -> Growth:
    signals = sum(
        event.HasField("workflow_execution_signaled_event_attributes")
        or event.HasField("workflow_execution_cancel_requested_event_attributes")
        or event.HasField("workflow_execution_terminated_event_attributes")
        for event in events
    )
    timers = any(
        event.HasField("timer_fired_event_attributes")
        or event.HasField("workflow_execution_timed_out_event_attributes")
        for event in events
    )
    steps = sum(event.activity_task_scheduled_event_attributes.activity_type.name in TELLING for event in events)
    return Growth(steps, signals, own_clock=timers and not signals)


async def polling(histories: Histories, queues: Mapping[str, str]) -> Mapping[str, frozenset[str]]:
    """Per lane, who has asked it for work in the last minutes. `queues`: lane -> task queue."""
    found = await asyncio.gather(*(histories.polling(queue) for queue in queues.values()))
    return {lane: frozenset(poller.identity for poller in pollers) for lane, pollers in zip(queues, found, strict=True)}
