"""Admission against the SDK's own `start_workflow`, and a status read against a bare `describe`; no worker anywhere.

Both sides start on the same server, with the same id and reuse policies, on a queue that nobody polls, so what is
measured is the way in alone. The bare side is the SDK in this process; ours is the cheap HTTP caller in this process.
"""

import json
from datetime import timedelta
from statistics import median

from temporalio.client import Client as EngineClient
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from tests.bench.caller import Caller
from tests.bench.figures import Figure, Target
from tests.bench.stage import INPUT, Bench, burst, fresh, publish_three_steps
from tests.rig.stack import Stack

BARE_QUEUE = "bench-parked"


async def measure_admission(bench: Bench) -> list[Figure]:
    """Concurrency 1 (median latency of a round) and 20 (jobs accepted per second of a round)."""
    async with bench.stack() as stack:
        plugin = await publish_three_steps(stack)
        engine = await stack.engine()
        callers = [Caller(stack.apis[0].url, stack.token("app")) for _ in range(20)]
        for caller in callers:
            await caller.__aenter__()
        try:
            body = json.dumps({"plugin": plugin, "input": INPUT}).encode()
            ours = [lambda caller=caller: caller.submit(fresh("k"), body) for caller in callers]
            bare = [lambda: start_bare(engine)] * len(callers)

            async def rate_of_ours() -> float:
                return (await burst(ours, bench.size(400))).per_second

            async def rate_of_bare() -> float:
                return (await burst(bare, bench.size(400))).per_second

            async def latency_of_ours() -> float:
                return median((await burst(ours[:1], bench.size(100))).latencies_ms)

            async def latency_of_bare() -> float:
                return median((await burst(bare[:1], bench.size(100))).latencies_ms)

            bench.say("warming up both sides")
            await burst(ours, bench.size(100))
            await burst(bare, bench.size(100))
            latency = await bench.in_turn("admission, one at a time", "ms", latency_of_ours, latency_of_bare)
            rate = await bench.in_turn("admission, 20 at a time", "jobs/s", rate_of_ours, rate_of_bare)
        finally:
            for caller in callers:
                await caller.__aexit__()
    return [
        Figure("admission latency, concurrency 1", "ms", latency, Target("ratio", "at most", 2.5)),
        Figure("admission throughput, concurrency 20", "jobs/s", rate, Target("ratio", "at least", 0.70)),
    ]


async def start_bare(engine: EngineClient, queue: str = BARE_QUEUE, workflow: str = "BenchParked") -> str:
    """What a service that uses the SDK alone would do with the same input."""
    key = fresh("bare")
    await engine.start_workflow(
        workflow,
        INPUT,
        id=key,
        task_queue=queue,
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        execution_timeout=timedelta(hours=1),
    )
    return key


async def measure_status(bench: Bench) -> list[Figure]:
    """Reads of one parked job, one after the other: median latency of a round."""
    async with bench.stack() as stack:
        engine = await stack.engine()
        key, handle = await _parked(stack), engine.get_workflow_handle(await start_bare(engine))
        async with Caller(stack.apis[0].url, stack.token("app")) as caller:

            async def ours() -> float:
                return median((await burst([lambda: caller.get(f"/v1/jobs/{key}")], bench.size(300))).latencies_ms)

            async def bare() -> float:
                return median((await burst([handle.describe], bench.size(300))).latencies_ms)

            await ours()
            await bare()
            rounds = await bench.in_turn("status of a parked job", "ms", ours, bare)
    return [Figure("status read with no worker", "ms", rounds, Target("ratio", "at most", 2.5))]


async def _parked(stack: Stack) -> str:
    plugin = await publish_three_steps(stack)
    return await stack.client("app").accepted(plugin, INPUT)
