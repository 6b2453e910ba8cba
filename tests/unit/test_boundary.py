"""Whatever goes wrong in a step leaves as one typed failure without its cause."""

import asyncio
import io
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from activities.boundary import Boundary, failure_of
from gateway.blobs import BlobMissing
from gateway.ledger.engine import Ledger
from gateway.ledger.migrate import migrate
from gateway.ledger.receipts import reserve
from gateway.metrics import Metrics
from tests.unit import ledger_rows
from tests.unit.test_telemetry import lines
from workflows.contract.errors import ProblemCode, Refused, StepCode, StepError
from workflows.contract.events import Event, EventType
from workflows.contract.job import Progress, Usage

__all__ = ["lines"]

CANARY = "canary-in-a-cause"


class Step(ActivityInboundInterceptor):
    """The innermost part: what an activity does, as the interceptor sees it."""

    def __init__(self, work: Any) -> None:
        self._work = work

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        return await self._work()


@pytest_asyncio.fixture(loop_scope="session")
async def metrics() -> AsyncGenerator[Metrics]:
    opened = Metrics()
    yield opened
    opened.close()


async def run(metrics: Metrics, work: Any, environment: ActivityEnvironment | None = None, *args: Any) -> Any:
    ledger = Ledger.open("sqlite:////nowhere/ledger.db")  # of what is no job nothing is asked
    outermost = Boundary(metrics, ledger).intercept_activity(Step(work))
    given = ExecuteActivityInput(fn=work, args=args, executor=None, headers={})
    try:
        return await (environment or ActivityEnvironment()).run(outermost.execute_activity, given)
    finally:
        await ledger.close()


def chain(error: BaseException) -> list[BaseException]:
    """The error and all that the history would show behind it."""
    behind = error.__cause__ or error.__context__
    return [error, *(chain(behind) if behind is not None else [])]


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (StepError(StepCode.UNAVAILABLE, "The tool is down."), StepCode.UNAVAILABLE),
        (Refused(ProblemCode.LEDGER_UNAVAILABLE, "x"), StepCode.LEDGER_UNAVAILABLE),
        (Refused(ProblemCode.BLOBS_UNAVAILABLE, "x"), StepCode.BLOBS_UNAVAILABLE),
        (Refused(ProblemCode.ENGINE_UNAVAILABLE, "x"), StepCode.CONNECT_REFUSED),
        (Refused(ProblemCode.INPUT_INVALID, CANARY), StepCode.INTERNAL),
        (BlobMissing(), StepCode.INTERNAL),
        (ValueError(CANARY), StepCode.INTERNAL),
    ],
)
async def test_every_failure_is_typed_and_has_no_cause(metrics: Metrics, raised: Exception, code: StepCode) -> None:
    async def work() -> None:
        try:
            raise ValueError(CANARY)
        except ValueError as cause:
            raise raised from cause

    with pytest.raises(ApplicationError) as caught:
        await run(metrics, work)
    assert caught.value.type == code
    assert [type(error) for error in chain(caught.value)] == [ApplicationError]
    assert CANARY not in str(caught.value)


async def test_retry_after_travels_in_the_details(metrics: Metrics) -> None:
    async def work() -> None:
        raise StepError(StepCode.RATE_LIMITED, "Too many.", retry_after_s=3)

    with pytest.raises(ApplicationError) as caught:
        await run(metrics, work)
    assert caught.value.details[0].retry_after_s == 3


async def test_a_cancel_by_the_engine_stays_a_cancel(metrics: Metrics) -> None:
    environment = ActivityEnvironment()

    async def work() -> None:
        environment.cancel(activity.ActivityCancellationDetails(cancel_requested=True))
        await asyncio.sleep(30)

    with pytest.raises(asyncio.CancelledError) as caught:
        await run(metrics, work, environment)
    assert [type(error) for error in chain(caught.value)] == [asyncio.CancelledError]


async def test_a_stopped_worker_loses_the_attempt(metrics: Metrics) -> None:
    environment = ActivityEnvironment()

    async def work() -> None:
        environment.cancel(activity.ActivityCancellationDetails(worker_shutdown=True))
        await asyncio.sleep(30)

    with pytest.raises(ApplicationError) as caught:
        await run(metrics, work, environment)
    assert caught.value.type == StepCode.LOST


class Asked:
    """An input that carries progress."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress


def progress() -> Progress:
    event = Event.model_validate(
        {"seq": 3, "at": "2030-01-01T00:00:00Z", "type": EventType.STEP_STARTED, "message": "Turn 1."}
    )
    return Progress(event=event, usage=Usage(steps=1))


def beating_environment(beats: list[Any]) -> ActivityEnvironment:
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, heartbeat_timeout=timedelta(seconds=0.06))
    environment.on_heartbeat = lambda *details: beats.append(details)
    return environment


async def test_heartbeats_repeat_the_progress_while_a_step_runs(metrics: Metrics) -> None:
    beats: list[Any] = []
    told = progress()
    enough = asyncio.Event()

    async def work() -> str:
        await enough.wait()
        return "done"

    environment = beating_environment(beats)
    beat = environment.on_heartbeat

    def count(*details: Any) -> None:
        beat(*details)
        if len(beats) == 3:
            enough.set()

    environment.on_heartbeat = count
    assert await run(metrics, work, environment, Asked(told)) == "done"
    assert beats == [(told,)] * 3


async def test_a_heartbeat_that_fails_stops_the_step(metrics: Metrics) -> None:
    environment = beating_environment([])

    def broken(*_details: Any) -> None:
        raise RuntimeError(CANARY)

    environment.on_heartbeat = broken
    stopped = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            stopped.set()
            raise

    with pytest.raises(ApplicationError) as caught:
        await run(metrics, work, environment, Asked(progress()))
    assert caught.value.type == StepCode.LOST
    assert stopped.is_set()


def test_an_unforeseen_error_shows_nothing_of_itself() -> None:
    assert CANARY not in str(failure_of(RuntimeError(CANARY)))


async def test_a_step_that_failed_before_it_was_admitted_is_named_too(
    metrics: Metrics, tmp_path: Path, lines: io.StringIO
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate(url)
    ledger = Ledger.open(url)
    await ledger.write(lambda conn: reserve(conn, ledger_rows.receipt()))

    async def refused() -> None:
        raise StepError(StepCode.AUTHORITY_REVOKED, "The grants are gone.")

    given = ExecuteActivityInput(fn=refused, args=(), executor=None, headers={})
    for workflow_id, workflow_type in (("demo.k-1", "JobWorkflow"), ("demo.k-2", "JobWorkflow"), ("demo.k-1", "Other")):
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, workflow_id=workflow_id, workflow_type=workflow_type)
        with pytest.raises(ApplicationError):
            await environment.run(Boundary(metrics, ledger).intercept_activity(Step(refused)).execute_activity, given)
    await ledger.close()
    named, unknown, foreign = [json.loads(line) for line in lines.getvalue().splitlines()]
    facts = {"principal": "app", "workspace": "demo", "initiator": "user:cust_9", "plugin": "support-refund@1.0.0"}
    assert named | facts == named
    assert named["job"] == "demo.k-1"
    # The mutant: of what no admitted job is, nothing is said.
    assert not facts.keys() & unknown.keys()
    assert not facts.keys() & foreign.keys()
