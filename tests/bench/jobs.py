"""Jobs per second, and what a job adds to its history, against a bare workflow with the same three activities.

Jobs are put in line while the worker stands still (SIGSTOP), then it goes on: how fast they were put in line does not
count. The end is the server's own close time of the last job. One worker process at a time has anything to do.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from temporalio.client import Client as EngineClient

from tests.bench.admission import start_bare
from tests.bench.caller import Caller
from tests.bench.contents import BARE_QUEUE, BARE_THREE_STEPS
from tests.bench.figures import Figure, Round, Target
from tests.bench.stage import INPUT, Bench, burst, cpu_ms, fresh, publish_three_steps
from tests.rig.client import fresh_key
from tests.rig.plugins import call, final, publish_plugin, tool, turn
from tests.rig.process import Process
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

Put = Callable[[], Awaitable[object]]


@asynccontextmanager
async def bare_worker(stack: Stack, *, lane: bool = False) -> AsyncGenerator[Process]:
    """The bare side's process, polling; with `lane` it also serves Jobgate's lane with stand-in activities."""
    queue = stack.settings.lanes[stack.settings.lane].task_queue
    where = ["--address", stack.address, "--namespace", stack.settings.namespace, "--tools", stack.effects.url]
    command = ["-m", "tests.bench.bare_worker", *where, *(["--lane", queue] if lane else [])]
    worker = Process("bare-worker", command, stack.folder, environment=stack.environment)
    worker.start()
    try:
        engine = await stack.engine()
        probe = await engine.execute_workflow(BARE_THREE_STEPS, INPUT, id=fresh("probe"), task_queue=BARE_QUEUE)
        assert probe == {"message": "Read."}, worker.output
        yield worker
    finally:
        worker.resume()
        worker.stop()


async def measure_jobs(bench: Bench) -> list[Figure]:
    """Twice: with the same activity functions on both sides, and with Jobgate's own worker on ours."""
    figures: list[Figure] = []
    async with bench.stack() as stack, bare_worker(stack, lane=True) as worker:
        target = Target("ratio", "at least", 0.75)
        figures += await _rounds(bench, stack, "jobs, same three activities", worker, worker, target)
    async with bench.stack(workers=1) as stack, bare_worker(stack) as worker:
        figures += await _rounds(bench, stack, "jobs, whole path", stack.workers[0], worker)
    return figures


async def _rounds(
    bench: Bench, stack: Stack, what: str, ours: Process, bare: Process, target: Target | None = None
) -> list[Figure]:
    """The rate, and what one job makes the server and the worker compute."""
    plugin = await publish_three_steps(stack)
    engine, count = await stack.engine(), bench.size(150)
    body = json.dumps({"plugin": plugin, "input": INPUT}).encode()
    costs: dict[str, list[float]] = {"ours": [], "bare": []}
    async with Caller(stack.apis[0].url, stack.token("app")) as caller:

        async def put_ours() -> None:
            await caller.submit(fresh_key(), body)

        async def put_bare() -> None:
            await start_bare(engine, BARE_QUEUE, BARE_THREE_STEPS)

        async def rate_of_ours() -> float:
            rate, cost = await _drained(stack, ours, "JobWorkflow", put_ours, count)
            costs["ours"].append(cost)
            return rate

        async def rate_of_bare() -> float:
            rate, cost = await _drained(stack, bare, BARE_THREE_STEPS, put_bare, count)
            costs["bare"].append(cost)
            return rate

        bench.say(f"{what}: warming up both sides")
        await rate_of_ours()
        await rate_of_bare()
        for seen in costs.values():
            seen.clear()
        rounds = await bench.in_turn(what, "jobs/s", rate_of_ours, rate_of_bare)
    computed = tuple(Round(*pair) for pair in zip(costs["ours"], costs["bare"], strict=True))
    return [
        Figure(what, "jobs/s", rounds, target),
        Figure(f"{what}: computing", "CPU ms/job", computed),
    ]


async def _drained(stack: Stack, worker: Process, kind: str, put: Put, count: int) -> tuple[float, float]:
    """Jobs per second from the moment the worker goes on to the last close time, and CPU milliseconds per job."""
    engine, busy = await stack.engine(), [stack.temporal.pid, worker.pid]
    asked = f"WorkflowType = '{kind}' AND ExecutionStatus = 'Completed'"
    before = (await engine.count_workflows(asked)).count
    worker.freeze()
    try:
        await burst([put], count)
    finally:
        began, computed = datetime.now(UTC), cpu_ms(busy)
        worker.resume()

    async def all_done() -> bool:
        return (await engine.count_workflows(asked)).count >= before + count

    await wait_until(all_done, 120, every=0.2, what=f"{count} {kind} done")
    computed = cpu_ms(busy) - computed
    closed = [row.close_time async for row in engine.list_workflows(asked, limit=count)]
    last = max(time for time in closed if time is not None)
    return count / (last - began).total_seconds(), computed / count


async def measure_history(bench: Bench) -> list[Figure]:
    """Events and bytes of one job against the bare workflow's, and what one more turn of a long job adds."""
    turns = bench.size(50)
    async with bench.stack(workers=1) as stack, bare_worker(stack):
        engine, app = await stack.engine(), stack.client("app")
        plugin = await publish_three_steps(stack)
        script = [*[turn(call("notes.read", {"id": f"n-{number}"})) for number in range(turns)], final()]
        await publish_plugin(
            stack.client("operator"),
            "long",
            script,
            tools=[tool("notes.read")],
            tools_url=stack.effects.url,
            limits={"max_steps": 10 * turns},
        )
        events: list[Round] = []
        sizes: list[Round] = []
        for _ in range(bench.rounds):
            bare = await start_bare(engine, BARE_QUEUE, BARE_THREE_STEPS)
            await engine.get_workflow_handle(bare).result()
            job = await app.accepted(plugin, INPUT)
            assert (await app.until_ended(job))["status"] == "succeeded"
            mine, theirs = await _history(engine, f"demo.{job}"), await _history(engine, bare)
            events.append(Round(mine[0], theirs[0]))
            sizes.append(Round(mine[1], theirs[1]))
            bench.say(f"history of a job: {mine[0]} events, {mine[1]} bytes; bare {theirs[0]} and {theirs[1]}")
        bench.say(f"history of a job of {turns} turns")
        job = await app.accepted("long", INPUT)
        assert (await app.until_ended(job, timeout=120))["status"] == "succeeded"
        length, size = await _history(engine, f"demo.{job}")
    steps = 2 * turns + 1
    return [
        Figure("history events of a job of three steps", "events", tuple(events), Target("difference", "at most", 6)),
        Figure("history bytes of a job of three steps", "bytes", tuple(sizes)),
        Figure("history events per step, long job", "events", (Round(length / steps),)),
        Figure("history bytes per step, long job", "bytes", (Round(size / steps),), Target("ours", "at most", 5000)),
    ]


async def _history(engine: EngineClient, workflow: str) -> tuple[int, int]:
    history = await engine.get_workflow_handle(workflow).fetch_history()
    return len(history.events), sum(event.ByteSize() for event in history.events)
