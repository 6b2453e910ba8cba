"""Starts jobs on a real server with stub hands, drives them, and reads their whole log at the end."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType as HistoryType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError
from temporalio.worker import Worker, WorkflowRunner

from activities.accepted import AcceptedOnly
from gateway.records import recorded_of
from tests.rig.waiting import wait_until
from tests.workflow.hands import Hands, Stubs
from workflows.contract.events import Event, EventType
from workflows.contract.gates import EligibilityFacts
from workflows.contract.ids import Digest, JobId, PluginName, PrincipalId, RequestId, ToolName, Workspace, sha256_of
from workflows.contract.job import MEMO_START, EndRecord, JobStart, JobView, Limits, PluginRef, ToolRow
from workflows.contract.steps import VIEW_QUERY, WORKFLOW_TYPE, DecisionHint, Hint, Ruling, ViewInput, ViewOutput
from workflows.job import JobWorkflow
from workflows.opening import memo_of, queued_view
from workflows.policy.deadline import EXECUTION_GRACE
from workflows.resets import Resets

STATUS = SearchAttributeKey.for_keyword("JobgateStatus")
PENDING = SearchAttributeKey.for_int("JobgatePending")
SEARCH_ATTRIBUTES: Mapping[str, str] = {
    "JobgateStatus": "Keyword",
    "JobgatePending": "Int",
    "JobgateWorkspace": "Keyword",
    "JobgatePrincipal": "Keyword",
    "JobgatePlugin": "Keyword",
    "JobgateDeadline": "Datetime",
}
CACHED = 0 if os.environ.get("JOBGATE_TEST_CACHE_OFF") == "1" else 100
"""How many workflows a worker keeps in memory; 0 replays each job from its first event in every workflow task."""

LIVE = EligibilityFacts(version_phase="live", runtime_phase="live")

TOOLS: Mapping[ToolName, ToolRow] = {
    ToolName("invoices.get"): ToolRow(kind="http", effect="read", timeout_s=30),
    ToolName("orders.get"): ToolRow(kind="http", effect="read", timeout_s=30),
    ToolName("refunds.create"): ToolRow(kind="http", effect="write", timeout_s=20),
    ToolName("notes.put"): ToolRow(kind="http", effect="idempotent_write", timeout_s=20),
    ToolName("ask_human"): ToolRow(kind="builtin", effect="read", timeout_s=20),
    ToolName("refunds.find"): ToolRow(kind="http", effect="read", timeout_s=30, hidden=True),
}
"""The dispatch table of every test job; a test that needs another approval rule replaces one row."""


class Clock(Protocol):
    """The time of the server, which a time-skipping one may move."""

    async def get_current_time(self) -> datetime: ...

    async def sleep(self, duration: timedelta | float) -> None: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """A closed job as its record tells it."""

    status: WorkflowExecutionStatus
    record: EndRecord
    story: list[str]

    @property
    def view(self) -> JobView:
        return self.record.view


@dataclass(frozen=True, slots=True)
class Job:
    """One started job: its handle, its hands and its start input."""

    client: Client
    handle: WorkflowHandle[Any, Any]
    hands: Hands
    start: JobStart

    async def look(self, after: int = 0, limit: int = 10_000) -> ViewOutput:
        return await self.handle.query(VIEW_QUERY, ViewInput(after=after, limit=limit), result_type=ViewOutput)

    async def glance(self) -> ViewOutput | None:
        """A look, or None: a time-skipping server never answers a query that meets a roll-over."""
        try:
            return await self.handle.query(
                VIEW_QUERY, ViewInput(limit=10_000), result_type=ViewOutput, rpc_timeout=timedelta(seconds=2)
            )
        except RPCError:
            return None

    async def story(self) -> list[str]:
        return story((await self.look()).events)

    async def until(self, event: str, times: int = 1) -> ViewOutput:
        """The job's view once its log holds a line that starts with `event`."""

        async def seen() -> ViewOutput | None:
            if (output := await self.glance()) is None:
                return None
            lines = story(output.events)
            return output if sum(line.startswith(event) for line in lines) >= times else None

        return await wait_until(seen, 20, what=f"{event} x{times} in {self.handle.id}")

    async def until_ran(self, line: str, times: int = 1) -> None:
        """Wait until the hands recorded `line` so often."""
        await wait_until(lambda: self.hands.ran.count(line) >= times, 20, what=f"{line} x{times}")

    async def pending(self, count: int, newest: str = "") -> list[RequestId]:
        """The ids of the open requests once there are `count`, as the memo tells them: no query meets a roll-over."""

        async def opened() -> list[RequestId] | None:
            ids = [r.request_id for r in (await self.memo()).view.requests if r.state == "pending"]
            return ids if len(ids) == count and (not newest or ids[-1].startswith(f"{newest}-")) else None

        return await wait_until(opened, 20, what=f"{count} pending requests")

    async def hint(self, request: str) -> None:
        await self.handle.signal(Hint.DECISION, DecisionHint(request_id=RequestId(request)))

    async def decide(self, request: RequestId, verdict: Any, **more: Any) -> None:
        """Write the ruling to the ledger of the stub and send the hint, as the gateway does."""
        asked = next(r for r in (await self.memo()).view.requests if r.request_id == request)
        fields: dict[str, Any] = {"decided_by": (PrincipalId("ann"),), "action_digest": asked.action_digest, **more}
        self.hands.ledger[request] = Ruling(verdict=verdict, **fields)
        await self.hint(request)

    async def end(self) -> Ended:
        """Wait for the end (a time-skipping server skips), and check what every end record must hold."""
        try:
            record = await self.handle.result()
        except WorkflowFailureError as error:
            match error.cause:
                case CancelledError():
                    record = await self.memo()
                case ApplicationError(details=[record]):
                    record = EndRecord.model_validate(record)
                case other:
                    raise AssertionError(f"ended by {other!r}") from error
        described = await self.handle.describe()
        assert described.status is not None
        seqs = [event.seq for event in record.events]
        first = record.segments[-1].last + 1 if record.segments else 1
        assert seqs == list(range(first, first + len(seqs))), "seq has a gap"
        assert record.view.last_event == record.events[-1]
        assert (await self.memo()).view == record.view, "memo and end record differ"
        assert described.typed_search_attributes.get(STATUS) == record.view.status
        assert not described.typed_search_attributes.get(PENDING)
        assert not [r for r in record.view.requests if r.state == "pending"]
        return Ended(described.status, record, story(record.events))

    async def memo(self) -> EndRecord:
        """What readers without a worker see; before the first task that is the opening."""
        described = await self.handle.describe()
        opening = EndRecord(view=queued_view(memo_of(self.start)))
        return recorded_of(described.raw_description.workflow_execution_info.memo) or opening

    async def runs(self) -> list[str]:
        """The run ids of the job, first to last."""
        run = self.handle.first_execution_run_id
        ids: list[str] = []
        while run:
            ids.append(run)
            history = await self.client.get_workflow_handle(self.handle.id, run_id=run).fetch_history()
            run = history.events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
        return ids

    async def history_types(self) -> list[str]:
        """The names of all history events, in order."""
        history = await self.handle.fetch_history()
        return [HistoryType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history.events]


class Jobs:
    """Starts jobs on one server; `worker` serves a task queue with the stubs."""

    def __init__(self, client: Client, clock: Clock | None, queue: str, *, cached: int) -> None:
        self.client = client
        self.stubs = Stubs()
        self.queue = queue
        self.clock = clock
        self._cached = cached
        self._count = 0

    def worker(
        self, queue: str | None = None, runner: WorkflowRunner | None = None, workflow: type[Any] = JobWorkflow
    ) -> AbstractAsyncContextManager[Any]:
        ours = AcceptedOnly()
        worker = Worker(
            self.client,
            task_queue=queue or self.queue,
            identity="stub worker",
            workflows=[workflow],
            activities=self.stubs.activities(),
            interceptors=[Resets()],
            workflow_runner=runner or ours,
            max_cached_workflows=self._cached,
            max_heartbeat_throttle_interval=timedelta(milliseconds=20),
            default_heartbeat_throttle_interval=timedelta(milliseconds=20),
        )
        return ours.serves(worker)

    async def now(self) -> datetime:
        return await self.clock.get_current_time() if self.clock else datetime.now(UTC)

    def plan(self, now: datetime, *, ends_in: float = 3600, limits: Limits | None = None, **fields: Any) -> JobStart:
        """A start input that admission could have made. Units: seconds."""
        self._count += 1
        base: dict[str, Any] = {
            "workspace": Workspace("demo"),
            "job_id": JobId(f"{self.queue}-{self._count}"),
            "principal": PrincipalId("app"),
            "plugin": PluginRef(name=PluginName("support-refund"), version="1.0.0", digest=digest("plugin")),
            "snapshot": digest("snapshot"),
            "mode": "live",
            "facts": LIVE,
            "fingerprint": digest("fingerprint"),
            "accepted_at": now,
            "deadline": now + timedelta(seconds=ends_in),
            "limits": limits or Limits(max_steps=1000, max_duration_seconds=86400, max_tokens=1_000_000),
            "tools": TOOLS,
        }
        return JobStart(**(base | fields))

    async def start(self, hands: Hands, *, queue: str | None = None, job_id: str | None = None, **fields: Any) -> Job:
        """Start a job as admission does: memo with the opening, execution timeout just after the deadline."""
        now = await self.now()
        if job_id is not None:
            fields["job_id"] = JobId(job_id)
        start = self.plan(now, **fields)
        workflow_id = f"{start.workspace}.{start.job_id}"
        self.stubs.of[workflow_id] = hands
        handle = await self.client.start_workflow(
            WORKFLOW_TYPE,
            start,
            id=workflow_id,
            task_queue=queue or self.queue,
            execution_timeout=start.deadline - now + EXECUTION_GRACE,
            memo={MEMO_START: memo_of(start)},
            result_type=EndRecord,
        )
        return Job(self.client, handle, hands, start)

    async def start_raw(self, args: Sequence[Any]) -> WorkflowHandle[Any, Any]:
        """Start the workflow by hand, with whatever input."""
        self._count += 1
        return await self.client.start_workflow(
            WORKFLOW_TYPE, args=args, id=f"by-hand-{self.queue}-{self._count}", task_queue=self.queue
        )


def digest(text: str) -> Digest:
    return sha256_of(text.encode())


KEY_DATA: Mapping[EventType, Callable[[Mapping[str, Any]], str]] = {
    EventType.JOB_HELD: lambda d: d["blocker"],
    EventType.JOB_FAILED: lambda d: d["code"],
    EventType.STEP_STARTED: lambda d: f"turn {d['turn']}",
    EventType.STEP_FINISHED: lambda d: f"turn {d['turn']}: {d['calls']} calls",
    EventType.TOOL_STARTED: lambda d: f"{d['tool']} #{d['call']}",
    EventType.TOOL_FINISHED: lambda d: f"{d['tool']} #{d['call']} {d['outcome']}",
    EventType.TOOL_REFUSED: lambda d: f"{d['tool']} #{d['call']}",
    EventType.REQUEST_OPENED: lambda d: f"{d['request_id'].split('-')[0]} {d['kind']} {d['tool']}",
    EventType.REQUEST_VOTED: lambda d: f"{d['request_id'].split('-')[0]} {d['votes']}/{d['quorum']}",
    EventType.REQUEST_DECIDED: lambda d: f"{d['request_id'].split('-')[0]} {d['decision']}",
    EventType.REQUEST_EXPIRING: lambda d: d["request_id"].split("-")[0],
    EventType.REQUEST_EXPIRED: lambda d: d["request_id"].split("-")[0],
    EventType.REQUEST_VOIDED: lambda d: d["request_id"].split("-")[0],
    EventType.DECISION_REFUSED: lambda d: d["reason"],
    EventType.EFFECT_RECONCILED: lambda d: f"{d['tool']} {d['outcome']}",
    EventType.ATTEMPT_REPLACED: lambda d: f"attempt {d['attempt']}: {d['reason']}, {d['retry_in_s']:g} s",
    EventType.EFFECT_UNKNOWN: lambda d: f"{d['tool']} #{d['call']}",
    EventType.AUTHORITY_REVOKED: lambda d: d["reason"],
    EventType.BUDGET_WARNING: lambda d: f"{d['budget']} {d['used']}/{d['limit']}",
}


def story(events: Sequence[Event]) -> list[str]:
    """One line per event: its type and the data that tells it from others of the type."""
    return [f"{e.type} {KEY_DATA[e.type](e.data)}" if e.type in KEY_DATA else str(e.type) for e in events]


def payload(data: bytes, encoding: str = "json/plain") -> Payload:
    return Payload(metadata={"encoding": encoding.encode()}, data=data)
