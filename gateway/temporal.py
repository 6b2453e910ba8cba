"""The engine: the only place that talks to Temporal as a client. Every call is bounded by its caller's clock.

Trouble is `Refused(ENGINE_UNAVAILABLE)`; a definite refusal of a start is `StartRefused`. A describe answers with zero
workers; a query needs one and says None without. Workflows that Jobgate did not start are not jobs: they read as None.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.workflow.v1 import VersioningOverride, WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import UpdateWorkflowExecutionOptionsRequest
from temporalio.client import (
    Client,
    Interceptor,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.common import (
    Priority,
    RawValue,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from facade.reader import Execution, Waiting
from gateway.histories import Histories, trouble, unavailable
from gateway.records import STOPPED, Standing, execution_of, memo_of, recorded_of, standing_of
from gateway.seams import ClientSeam, Flag, refuse
from gateway.settings import Settings
from workflows.contract.errors import JobgateError
from workflows.contract.ids import JobId, Workspace, split_workflow_id, workflow_id
from workflows.contract.job import MEMO_START, JobStart, MemoStart
from workflows.contract.steps import VIEW_QUERY, WORKFLOW_TYPE, CallbackHint, DecisionHint, Hint, ViewInput, ViewOutput
from workflows.opening import memo_of as memo_start_of
from workflows.policy.deadline import EXECUTION_GRACE

DEFINITE = frozenset(["INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED", "FAILED_PRECONDITION"])
"""Answers to a start after which the job surely does not exist (design.md section 6, receipt protocol)."""

ASKED_AT_ONCE = 100
"""So many ids are named in one question to visibility."""

WORKSPACE = SearchAttributeKey.for_keyword("JobgateWorkspace")
STATUS = SearchAttributeKey.for_keyword("JobgateStatus")


class StartRefused(JobgateError):
    """The engine refused the start for good."""

    def __init__(self) -> None:
        super().__init__("start_refused", "The workflow engine refused to start the job.")


@dataclass(frozen=True, slots=True)
class Started:
    """`exists`: some execution has or had this id; compare fingerprints before believing it. `first_run`: of one that
    was created."""

    outcome: Literal["created", "exists"]
    first_run: str | None = None


async def connect(settings: Settings, interceptors: list[Interceptor] | None = None, *, lazy: bool = True) -> Client:
    """A client by `temporal.toml` / `TEMPORAL_*` where they speak, else by the settings. Connects on first use.

    A worker's client may not be lazy: it connects now, and raises Refused(ENGINE_UNAVAILABLE) where nobody answers.
    """
    options = ClientConfig.load_client_connect_config()
    options.setdefault("target_host", settings.temporal_address)
    options.setdefault("namespace", settings.namespace)
    try:
        return await Client.connect(
            **options,
            data_converter=pydantic_data_converter,
            interceptors=[ClientSeam(), *(interceptors or [])],
            lazy=lazy,
        )
    except (RuntimeError, RPCError):
        raise unavailable() from None


class Engine:
    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self.histories = Histories(client.workflow_service, client.namespace)
        self._lane = settings.lanes[settings.lane].task_queue
        self._lanes = {lane.task_queue: name for name, lane in settings.lanes.items()}

    def _handle(self, workspace: Workspace, job_id: JobId) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle(workflow_id(workspace, job_id))

    def lane_of(self, task_queue: str) -> str | None:
        return self._lanes.get(task_queue)

    # ---- changes

    async def start(self, start_input: bytes, start: JobStart) -> Started:
        """Start the job once.

        Raises StartRefused (it surely does not exist) or Refused(ENGINE_UNAVAILABLE) (it may).
        """
        payload = Payload(metadata={"encoding": b"json/plain"}, data=start_input)
        try:
            started = await self._client.start_workflow(
                WORKFLOW_TYPE,
                RawValue(payload),
                id=workflow_id(start.workspace, start.job_id),
                task_queue=self._lane,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                execution_timeout=max(start.deadline + EXECUTION_GRACE - datetime.now(UTC), timedelta(seconds=1)),
                memo={MEMO_START: memo_start_of(start)},
                search_attributes=TypedSearchAttributes(
                    [
                        SearchAttributePair(WORKSPACE, start.workspace),
                        SearchAttributePair(STATUS, "queued"),
                    ]
                ),
                priority=Priority(fairness_key=start.workspace),
                static_summary=f"{start.job_id} · {start.plugin.name} {start.plugin.version}"[:200],
            )
        except WorkflowAlreadyStartedError:
            return Started("exists")
        except RPCError as error:
            if error.status.name in DEFINITE:
                raise StartRefused from None
            raise unavailable() from None
        except RuntimeError:  # the client connects on first use, and this is how it says that it could not
            raise unavailable() from None
        return Started("created", started.first_execution_run_id)

    async def cancel(self, workspace: Workspace, job_id: JobId) -> None:
        """Request the workflow's cancellation; nothing for an execution that is closed or unknown."""
        async with trouble(ignore=RPCStatusCode.NOT_FOUND):
            await self._handle(workspace, job_id).cancel()

    async def end_stopped(self, workspace: Workspace, job_id: JobId) -> None:
        """End a job whose stop stands and whose cancellation no worker can carry out: it reads as canceled."""
        async with trouble(ignore=RPCStatusCode.NOT_FOUND):
            await self._handle(workspace, job_id).terminate(reason=STOPPED)

    async def unpin(self, workspace: Workspace, job_id: JobId) -> None:
        """Let the workers that take new jobs go on with this one, whatever build it began on."""
        refuse(Flag.STATE_MUTATED)
        request = UpdateWorkflowExecutionOptionsRequest(
            namespace=self.histories.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id(workspace, job_id)),
            workflow_execution_options=WorkflowExecutionOptions(
                versioning_override=VersioningOverride(auto_upgrade=True)
            ),
            update_mask=FieldMask(paths=["versioning_override"]),
        )
        async with trouble(ignore=RPCStatusCode.NOT_FOUND):
            await self._client.workflow_service.update_workflow_execution_options(request)

    async def hint_decision(self, workspace: Workspace, job_id: JobId, hint: DecisionHint) -> bool:
        """Tell the job to read a decision; False when the execution is closed or unknown."""
        return await self._signal(workspace, job_id, Hint.DECISION, [hint])

    async def hint_gate(self, workspace: Workspace, job_id: JobId) -> bool:
        return await self._signal(workspace, job_id, Hint.GATE, [])

    async def hint_authority(self, workspace: Workspace, job_id: JobId) -> bool:
        return await self._signal(workspace, job_id, Hint.AUTHORITY, [])

    async def hint_callback(self, workspace: Workspace, job_id: JobId, hint: CallbackHint) -> bool:
        return await self._signal(workspace, job_id, Hint.CALLBACK, [hint])

    async def _signal(
        self, workspace: Workspace, job_id: JobId, name: Hint, args: list[DecisionHint | CallbackHint]
    ) -> bool:
        async with trouble(ignore=RPCStatusCode.NOT_FOUND):
            await self._handle(workspace, job_id).signal(name, args=args)
            return True
        return False

    # ---- reads

    async def describe(self, workspace: Workspace, job_id: JobId) -> Execution | None:
        """The current run; None for an unknown execution and for one that Jobgate did not start."""
        async with trouble(ignore=RPCStatusCode.NOT_FOUND):
            found = await self._handle(workspace, job_id).describe()
            execution = execution_of(found.raw_description)
            return None if execution is None else await self._told(workspace, job_id, execution)
        return None

    async def _told(self, workspace: Workspace, job_id: JobId, execution: Execution) -> Execution:
        """With what only the history tells: whose a termination was, and whether a task failed or its worker."""
        if execution.ending == "terminated" and await self.histories.ended_for_stop(workspace, job_id):
            return replace(execution, ending="canceled")
        if execution.workflow_task_failing and not await self.histories.task_failed(workspace, job_id):
            return replace(execution, workflow_task_failing=False)
        return execution

    async def standing(
        self, workspace: Workspace, job_id: JobId, *, run_id: str, activity_id: str, attempt: int
    ) -> Standing:
        """Whether this very attempt may still act: its run is the current one and open, and waits for it."""
        async with trouble(ignore=RPCStatusCode.NOT_FOUND):
            found = await self._handle(workspace, job_id).describe()
            return standing_of(found.raw_description, run_id, activity_id, attempt)
        return "closed"

    async def first_run(self, workspace: Workspace, job_id: JobId, run_id: str) -> str | None:
        """The run that this one goes back to, over roll-overs and resets; None where the engine does not know it."""
        async with trouble(ignore=RPCStatusCode.NOT_FOUND):
            found = await self._client.get_workflow_handle(workflow_id(workspace, job_id), run_id=run_id).describe()
            return found.raw_description.workflow_execution_info.first_run_id or None
        return None

    async def holds(self, workspace: Workspace, job_id: JobId) -> bool:
        """Whether the engine knows any execution of this id, ours or not."""
        async with trouble(ignore=RPCStatusCode.NOT_FOUND):
            await self._handle(workspace, job_id).describe()
            return True
        return False

    async def query_view(
        self, workspace: Workspace, job_id: JobId, asked: ViewInput, timeout_s: float
    ) -> ViewOutput | None:
        handle = self._handle(workspace, job_id)
        try:
            async with asyncio.timeout(timeout_s):
                return await handle.query(
                    VIEW_QUERY, asked, result_type=ViewOutput, rpc_timeout=timedelta(seconds=timeout_s)
                )
        except (TimeoutError, RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError):
            return None

    async def waiting(self, workspace: Workspace) -> tuple[Waiting, ...]:
        """Open executions with open requests: one visibility list, which may lag by a second or two."""
        found: list[Waiting] = []
        async with trouble():
            listed = self._client.list_workflows(
                f"WorkflowType = '{WORKFLOW_TYPE}' AND ExecutionStatus = 'Running' AND JobgatePending > 0 "
                f"AND JobgateWorkspace = '{workspace}'",
                limit=1000,
            )
            async for row in listed:
                ids = split_workflow_id(row.id)
                memo = memo_of(row.raw_info.memo, MEMO_START, MemoStart)
                recorded = recorded_of(row.raw_info.memo)
                if ids and memo and recorded:
                    found.append(Waiting(ids[1], memo, recorded))
        return tuple(found)

    async def ended_since(self, since: datetime) -> dict[tuple[Workspace, JobId], datetime]:
        """Jobs that closed after `since`, and when, all by the engine's clock (visibility lags by a second or two). A
        run that was replaced by a reset is no end: the job is looked at."""
        found: dict[tuple[Workspace, JobId], datetime] = {}
        async with trouble():
            listed = self._client.list_workflows(
                f"WorkflowType = '{WORKFLOW_TYPE}' AND CloseTime > '{since:%Y-%m-%dT%H:%M:%S.%fZ}' "
                "AND ExecutionStatus != 'ContinuedAsNew'",
                page_size=1000,
            )
            async for row in listed:
                ids = split_workflow_id(row.id)
                if ids is None:
                    continue
                if row.status is WorkflowExecutionStatus.TERMINATED:
                    current = await self.describe(*ids)
                    if current is not None and current.ending is None:
                        continue
                found[ids] = max(row.close_time or since, found.get(ids, since))
        return found

    async def open_among(self, jobs: Iterable[tuple[Workspace, JobId]]) -> set[tuple[Workspace, JobId]]:
        """Those of these jobs that an operator's reset opened again after they had closed (visibility lags)."""
        asked, found = sorted(workflow_id(*job) for job in jobs), set[tuple[Workspace, JobId]]()
        async with trouble():
            for at in range(0, len(asked), ASKED_AT_ONCE):
                these = ", ".join(f"'{one}'" for one in asked[at : at + ASKED_AT_ONCE])
                listed = self._client.list_workflows(f"WorkflowId IN ({these}) AND ExecutionStatus = 'Running'")
                found |= {ids async for row in listed if (ids := split_workflow_id(row.id)) is not None}
        return found

    async def reachable(self) -> None:
        """Raises Refused(ENGINE_UNAVAILABLE) unless the engine answers for our namespace."""
        async with trouble():
            await self._client.count_workflows(f"WorkflowType = '{WORKFLOW_TYPE}' AND JobgatePending > 0")
