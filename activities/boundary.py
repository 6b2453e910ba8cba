"""The outermost wrapper of every activity: heartbeats inside, and one typed failure outside, whatever went wrong.

It is an interceptor of the worker, so no activity can be registered without it. A failure carries a StepCode and a
sentence of ours; causes and implicit contexts would reach the history, so none is kept. A worker that is stopped makes
its attempts lost, never canceled: a deploy is no cancel.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from gateway.blobs import BlobCorrupt, BlobMissing
from gateway.calls.attempts import begin, current_attempt, name_job
from gateway.calls.engine_clock import EngineClock
from gateway.ledger.engine import Ledger
from gateway.ledger.receipts import find_receipt
from gateway.metrics import Metrics
from gateway.telemetry import bind, log
from workflows.contract.errors import RETRYABLE_STEPS, ProblemCode, Refused, StepCode, StepError
from workflows.contract.job import Progress
from workflows.contract.steps import StepFailure

BEATS_PER_TIMEOUT = 3
FIRST_BEAT_S = 0.1
"""A shorter step sends none: at once, three beats were a tenth of the CPU that a job of three short steps costs."""
STEP_OF_REFUSAL: Mapping[str, StepCode] = MappingProxyType(
    {
        ProblemCode.LEDGER_UNAVAILABLE: StepCode.LEDGER_UNAVAILABLE,
        ProblemCode.BLOBS_UNAVAILABLE: StepCode.BLOBS_UNAVAILABLE,
        ProblemCode.ENGINE_UNAVAILABLE: StepCode.CONNECT_REFUSED,
    }
)
"""The engine is asked before anything is sent, so its silence is an attempt that left nothing."""


def failure_of(error: BaseException) -> StepError:
    """The StepError that tells of `error`; anything unforeseen is `internal` and its text stays here."""
    match error:
        case StepError():
            return error
        case Refused() if error.code in STEP_OF_REFUSAL:
            return StepError(STEP_OF_REFUSAL[error.code], error.detail, retry_after_s=error.retry_after_s)
        case BlobMissing() | BlobCorrupt():
            return StepError(StepCode.INTERNAL, "A stored text of this job is missing or damaged.")
        case _:
            return StepError(StepCode.INTERNAL, "The step failed inside Jobgate.")


class Boundary(Interceptor):
    """`ledger` tells whose job a step is that failed before it was admitted."""

    def __init__(self, metrics: Metrics, ledger: Ledger) -> None:
        self._metrics = metrics
        self._ledger = ledger
        self._clock = EngineClock()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Outermost(next, self._metrics, self._ledger, self._clock)


class _Outermost(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, metrics: Metrics, ledger: Ledger, clock: EngineClock) -> None:
        super().__init__(next)
        self._metrics = metrics
        self._ledger = ledger
        self._clock = clock

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        begin(self._clock)
        info = activity.info()
        began = time.monotonic()
        with bind(job=info.workflow_id, activity=info.activity_type):
            try:
                result = await _beating(self.next, input)
            except asyncio.CancelledError:
                error = _canceled()
            except Exception as failure:  # noqa: BLE001  # the boundary: every failure leaves as one of ours
                error = failure_of(failure)
                await _name_job(self._ledger)
                if error.step_code is StepCode.INTERNAL:
                    log.error("step failed", exc_info=failure)
            else:
                self._count("ok")
                return result
            outcome = "canceled" if error is None else error.step_code.value
            self._count(outcome)
            log.info("step ended", outcome=outcome, seconds=round(time.monotonic() - began, 3))
        if error is None:
            raise asyncio.CancelledError
        raise ApplicationError(
            error.detail,
            StepFailure(retry_after_s=error.retry_after_s),
            type=error.step_code.value,
            # The engine repeats only reads of the ledger; other steps have one attempt anyway.
            non_retryable=info.heartbeat_timeout is not None or error.step_code not in RETRYABLE_STEPS,
            # It was logged above, as loud as it is: else the SDK warns of every refusal, and no smoke would be green.
            category=ApplicationErrorCategory.BENIGN,
        )

    def _count(self, outcome: str) -> None:
        self._metrics.steps.add(1, {"kind": activity.info().activity_type, "outcome": outcome})


async def _name_job(ledger: Ledger) -> None:
    """What is not known of the job now is left out: the line is written all the same."""
    if "principal" in structlog.contextvars.get_contextvars():
        return
    with contextlib.suppress(StepError, Refused):
        attempt = current_attempt()
        row = await ledger.read(lambda conn: find_receipt(conn, attempt.workspace, attempt.job_id))
        if row is not None:
            name_job(row)


def _canceled() -> StepError | None:
    """None: the engine asked for the cancel. Anything else (a deploy, a heartbeat that failed) loses the attempt."""
    details = activity.cancellation_details()
    if details is not None and not details.worker_shutdown:
        return None
    return StepError(StepCode.LOST, "The attempt's process was stopped before the step ended.")


async def _beating(next: ActivityInboundInterceptor, input: ExecuteActivityInput) -> Any:
    """Runs the step while its heartbeats tell readers what it is doing; a heartbeat that fails stops it."""
    timeout = activity.info().heartbeat_timeout
    progress: Progress | None = getattr(input.args[0], "progress", None) if input.args else None
    if timeout is None or progress is None:
        return await next.execute_activity(input)
    beat = asyncio.create_task(_beat(progress, timeout.total_seconds() / BEATS_PER_TIMEOUT))
    step = asyncio.current_task()
    if step is not None:
        beat.add_done_callback(lambda ended: None if ended.cancelled() else step.cancel() and None)
    try:
        return await next.execute_activity(input)
    finally:
        beat.cancel()


async def _beat(progress: Progress, every_s: float) -> None:
    await asyncio.sleep(min(FIRST_BEAT_S, every_s))
    while True:
        activity.heartbeat(progress)
        await asyncio.sleep(every_s)
