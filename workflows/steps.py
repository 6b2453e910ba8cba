"""One typed method per activity: the only place that schedules activities, and the only layer that tries again.

Every activity has one attempt, a heartbeat and the job's remaining time as its bound. Temporal's own retries are off
because they never wake the workflow, so they could give no event, no epoch and no count.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, TimeoutType
from temporalio.exceptions import TimeoutError as EngineTimeoutError
from temporalio.workflow import ActivityCancellationType

from workflows.contract.errors import JobgateError, StepCode, StepError
from workflows.contract.events import Event
from workflows.contract.ids import BlobRef, Digest
from workflows.contract.job import EffectClass
from workflows.contract.steps import (
    Activity,
    ArchiveInput,
    AuthorityOutput,
    CallbackInput,
    CallbackOutput,
    DecisionInput,
    GateOutput,
    ModelInput,
    ModelOutput,
    PublishInput,
    PublishOutput,
    ReconcileInput,
    ReconcileOutput,
    Ruling,
    StepFailure,
    ToolInput,
    ToolOutput,
)
from workflows.policy.attempts import next_delay

In = TypeVar("In")
Out = TypeVar("Out")

CALLING = (Activity.TOOL, Activity.RECONCILE)
"""Steps that call tools: they run on the lane that has what the plugin requires."""
ONCE = RetryPolicy(maximum_attempts=1)
LEDGER_READ = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10))
"""Reads of the ledger and archiving have no effect and no cost: the engine may repeat them until the deadline."""


class Steps:
    """`may_start` raises where nothing may start any more; it is asked before every attempt."""

    def __init__(
        self, deadline: datetime, heartbeat_s: float, may_start: Callable[[], None], tool_queue: str | None = None
    ) -> None:
        self._deadline = deadline
        self._heartbeat = timedelta(seconds=heartbeat_s)
        self._may_start = may_start
        self._tool_queue = tool_queue

    async def model(
        self, make: Callable[[int], ModelInput], replaced: Callable[[int, StepError, float], None], summary: str
    ) -> ModelOutput:
        """Ask the model. Raises StepError when no further attempt is allowed."""
        return await self._attempts(Activity.MODEL, "model", make, ModelOutput, replaced, summary)

    async def tool(
        self,
        effect: EffectClass,
        make: Callable[[int], ToolInput],
        replaced: Callable[[int, StepError, float], None],
        summary: str,
    ) -> ToolOutput:
        """Run one call. A `write` whose attempt was lost is tried again only to learn what the ledger knows of it."""
        return await self._attempts(Activity.TOOL, effect, make, ToolOutput, replaced, summary)

    async def reconcile(
        self, make: Callable[[int], ReconcileInput], replaced: Callable[[int, StepError, float], None], summary: str
    ) -> ReconcileOutput:
        """What came of a write: of the ledger, else of the tool's reconciling read."""
        return await self._attempts(Activity.RECONCILE, "read", make, ReconcileOutput, replaced, summary)

    async def publish(
        self, make: Callable[[int], PublishInput], replaced: Callable[[int, StepError, float], None]
    ) -> PublishOutput:
        """Publish the result; it is content-addressed, so another attempt makes nothing twice."""
        return await self._attempts(Activity.PUBLISH, "idempotent_write", make, PublishOutput, replaced, "publish")

    async def read_decision(self, asked: DecisionInput, within: timedelta | None = None) -> Ruling:
        """`within`: instead of the job's remaining time, for a job that is ending."""
        return await self._read(Activity.READ_DECISION, asked, Ruling, f"decision on {asked.request_id}", within)

    async def read_gate(self) -> GateOutput:
        return await self._read(Activity.READ_GATE, None, GateOutput, "is the gate open?")

    async def read_authority(self) -> AuthorityOutput:
        return await self._read(Activity.READ_AUTHORITY, None, AuthorityOutput, "may the job go on?")

    async def read_callback(self, asked: CallbackInput) -> CallbackOutput:
        return await self._read(Activity.READ_CALLBACK, asked, CallbackOutput, f"answer to call {asked.call}")

    async def archive(self, events: tuple[Event, ...]) -> BlobRef:
        ref = await self._read(Activity.ARCHIVE_EVENTS, ArchiveInput(events=events), str, "archive events")
        return BlobRef(Digest(ref))

    async def _attempts(
        self,
        activity: Activity,
        kind: Literal["model"] | EffectClass,
        make: Callable[[int], In],
        returns: type[Out],
        replaced: Callable[[int, StepError, float], None],
        summary: str,
    ) -> Out:
        attempt = 1
        while True:
            self._may_start()
            try:
                told = await workflow.execute_activity(
                    activity,
                    make(attempt),
                    result_type=RawValue,
                    task_queue=self._tool_queue if activity in CALLING else None,
                    schedule_to_close_timeout=self._left(),
                    heartbeat_timeout=self._heartbeat,
                    retry_policy=ONCE,
                    cancellation_type=ActivityCancellationType.TRY_CANCEL,
                    summary=summary[:200],
                )
                return read_answer(told, returns)
            except ActivityError as error:
                if isinstance(error.cause, CancelledError):
                    self._may_start()  # our own cancellation comes back as this error: go on being canceled
                failure = read_failure(error)
            except StepError as unreadable:
                failure = unreadable
            delay = next_delay(kind, failure.step_code, attempt, failure.retry_after_s, self._left().total_seconds())
            if delay is None or self.over():
                raise failure  # also where another attempt would be due: whoever ends the job hears how this one ended
            attempt += 1
            replaced(attempt, failure, delay)
            await self.pause(delay)

    async def pause(self, delay: float) -> None:
        """Sleep so many seconds, or until nothing may start any more; no cancel reaches a write."""
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(self.over, timeout=delay)

    def may_go_on(self) -> None:
        """Raises what `over` only tells."""
        self._may_start()

    def over(self) -> bool:
        """Whether nothing may start any more."""
        try:
            self._may_start()
        except (asyncio.CancelledError, JobgateError):
            return True
        return False

    async def _read(
        self, activity: Activity, asked: object, returns: type[Out], summary: str, within: timedelta | None = None
    ) -> Out:
        try:
            told = await workflow.execute_activity(
                activity,
                args=[] if asked is None else [asked],
                result_type=RawValue,
                schedule_to_close_timeout=within or self._left(),
                start_to_close_timeout=timedelta(seconds=10),
                retry_policy=LEDGER_READ,
                cancellation_type=ActivityCancellationType.TRY_CANCEL,
                summary=summary,
            )
        except ActivityError as error:
            raise read_failure(error) from None
        return read_answer(told, returns)

    def _left(self) -> timedelta:
        """The job's remaining time; never zero, because the engine reads zero as no bound."""
        return max(self._deadline - workflow.now(), timedelta(milliseconds=1))


def read_answer(told: RawValue | None, returns: type[Out]) -> Out:
    """What an activity answered. Somebody may have completed it in the Temporal UI with whatever they typed: decoded by
    the engine's client that would be a failing workflow task for ever, so here it is an attempt that was lost."""
    try:
        if told is not None:
            return workflow.payload_converter().from_payload(told.payload, returns)
    except Exception:  # noqa: BLE001 - whatever a foreign payload raises, the job goes on
        pass
    raise StepError(StepCode.LOST, "The step ended with an answer that can not be read.")


def read_failure(error: ActivityError) -> StepError:
    """The StepError behind a failed attempt; an attempt that somebody canceled in the Temporal UI counts as lost."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        code = StepCode(cause.type) if cause.type in set(StepCode) else StepCode.INTERNAL
        try:
            details = StepFailure.model_validate(cause.details[0]) if cause.details else StepFailure()
        except ValueError:  # somebody failed it in the Temporal UI, with details of their own
            details = StepFailure()
        return StepError(
            code,
            cause.message if code is not StepCode.INTERNAL else "The step failed inside Jobgate.",
            retry_after_s=details.retry_after_s,
        )
    if isinstance(cause, EngineTimeoutError):
        if cause.type in (TimeoutType.HEARTBEAT, TimeoutType.START_TO_CLOSE):
            return StepError(StepCode.LOST, "The attempt's process was not heard of in time.")
        return StepError(StepCode.DEADLINE, "The deadline came before the step ended.")
    return StepError(StepCode.LOST, "The attempt was stopped from outside.")


async def uninterrupted(work: Coroutine[Any, Any, Any]) -> None:
    """Await to the end even if a cancellation arrives meanwhile: the caller is ending already."""
    task = asyncio.create_task(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue
