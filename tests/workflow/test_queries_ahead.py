"""A query that overtakes a workflow task changes nothing for the run that answers it.

Everything here is the SDK and the engine but the runner. The queries of `Busy` hold the worker until both a query and a
task of `Job` wait for it; which of the two it takes first is the engine's, so it is done until it was the query.
"""

import asyncio
import contextlib
import itertools
import threading
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker, WorkflowRunner

from activities.accepted import AcceptedOnly
from tests.rig.waiting import wait_until
from tests.workflow.jobs import Jobs

QUEUE = "queries-ahead"
ROUNDS = 25
BUSY = 8
HELD_AT_MOST_S = 1.2
"""Well below the two seconds that the SDK calls a deadlock."""

free = threading.Event()
tokens: dict[tuple[str, str], bytes] = {}


@workflow.defn
class Busy:
    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(60)

    @workflow.query
    def hold(self) -> None:
        free.wait(HELD_AT_MOST_S)


@workflow.defn
class Job:
    """Tells of its steps once a task has settled, as jobs do: so its commands differ with what came in one task."""

    def __init__(self) -> None:
        self.done: list[str] = []

    @workflow.run
    async def run(self) -> list[str]:
        steps = [asyncio.create_task(self._step(name)) for name in ("first", "second")]
        await workflow.wait_condition(lambda: bool(self.done))
        workflow.upsert_memo({"done": len(self.done)})
        await workflow.wait(steps)
        return self.done

    async def _step(self, name: str) -> None:
        await workflow.execute_activity(answered_by_hand, name, schedule_to_close_timeout=timedelta(seconds=60))
        self.done.append(name)
        if name == "second":
            workflow.patched("second")

    @workflow.query
    def so_far(self) -> list[str]:
        return self.done


@activity.defn
async def answered_by_hand(name: str) -> None:
    tokens[activity.info().workflow_id or "", name] = activity.info().task_token
    activity.raise_complete_async()


class Counting(AcceptedOnly):
    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[str] = []

    def evict(self, run_id: str) -> None:
        self.evicted.append(run_id)
        super().evict(run_id)


def worker_of(client: Client, runner: WorkflowRunner) -> Worker:
    worker = Worker(
        client,
        task_queue=QUEUE,
        workflows=[Busy, Job],
        activities=[answered_by_hand],
        workflow_runner=runner,
        max_concurrent_workflow_tasks=2,
        max_concurrent_workflow_task_polls=2,
    )
    return runner.serves(worker) if isinstance(runner, AcceptedOnly) else worker


async def by_the_queue(client: Client, *handles: WorkflowHandle[Any, Any]) -> None:
    """Their next queries come with the whole history, as they do where a worker was away for a while."""
    for handle in handles:
        execution = WorkflowExecution(workflow_id=handle.id)
        request = ResetStickyTaskQueueRequest(namespace=client.namespace, execution=execution)
        await client.workflow_service.reset_sticky_task_queue(request)


async def overtaken(client: Client, name: str) -> tuple[list[str], list[str], WorkflowHistory]:
    """What a query said that may have overtaken a step's end, what the job said (nothing: stuck), and its history."""
    free.clear()
    job = await client.start_workflow(Job.run, id=name, task_queue=QUEUE)
    first, second = (name, "first"), (name, "second")
    await wait_until(lambda: tokens.keys() >= {first, second}, 20, what="both steps run")
    busy = [await client.start_workflow(Busy.run, id=f"{name}-{n}", task_queue=QUEUE) for n in range(BUSY)]
    for one in busy:
        await one.query("__temporal_workflow_metadata", result_type=dict)
    await by_the_queue(client, job, *busy[::2])
    holding = [asyncio.create_task(one.query(Busy.hold)) for one in busy]
    await asyncio.sleep(0.3)  # until they hold the worker; where they do not yet, the round shows nothing
    asked = asyncio.create_task(job.query(Job.so_far))
    await asyncio.sleep(0.3)  # until the engine has the query, likewise
    await client.get_async_activity_handle(task_token=tokens[first]).complete()
    free.set()
    so_far = await asked
    await client.get_async_activity_handle(task_token=tokens[second]).complete()
    done: list[str] = []
    with contextlib.suppress(TimeoutError):  # stuck
        done = await asyncio.wait_for(job.result(), 40)
    await asyncio.gather(*holding)
    for one in busy:
        await one.terminate()
    return so_far, done, await job.fetch_history()


async def replays(history: WorkflowHistory) -> bool:
    replayer = Replayer(workflows=[Job], workflow_runner=UnsandboxedWorkflowRunner())
    return (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure is None


async def test_a_query_that_overtakes_a_task_is_answered_as_of_the_last_one(real_jobs: Jobs) -> None:
    client, runner = real_jobs.client, Counting()
    async with worker_of(client, runner):
        for n in range(ROUNDS):
            before = len(runner.evicted)
            so_far, done, history = await overtaken(client, f"ahead-{n}")
            assert sorted(done) == ["first", "second"]
            assert await replays(history)
            if len(runner.evicted) > before:
                assert so_far == []
                return
    raise AssertionError("no query overtook a task")


async def test_without_the_runner_such_a_run_does_not_replay(real_jobs: Jobs) -> None:
    """The fault that the runner is for is still there, and this test would see it."""
    async with worker_of(real_jobs.client, UnsandboxedWorkflowRunner()):
        for n in itertools.count():
            assert n < ROUNDS, "every run replays: the SDK may have been mended, and the runner be dropped"
            if not await replays((await overtaken(real_jobs.client, f"plain-{n}"))[2]):
                return
