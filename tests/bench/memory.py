"""What waiting costs: the worker's memory with many jobs that wait for people, the API's with many open streams.

Memory is the resident set of the one process (`VmRSS`), in megabytes of 10^6 bytes, after everything has settled.
"""

import asyncio
import gc
import json
from contextlib import AsyncExitStack
from pathlib import Path

from tests.bench.caller import Caller
from tests.bench.figures import Figure, Round, Target
from tests.bench.stage import INPUT, Bench, burst, publish_asking
from tests.rig.client import fresh_key
from tests.rig.process import Process
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

PARKED = 2000
STREAMS = 500


async def measure_memory(bench: Bench) -> list[Figure]:
    """One round: memory does not average. The streams are of as many different waiting jobs."""
    async with bench.stack(workers=1) as stack, AsyncExitStack() as opened:
        worker, api = stack.workers[0], stack.apis[0]
        plugin = await publish_asking(stack)
        idle_worker, idle_api = _megabytes(worker), _megabytes(api)
        bench.say(f"at the start: worker {idle_worker:.0f} MB, API {idle_api:.0f} MB")
        keys = await _parked(bench, stack, plugin, bench.size(PARKED))
        parked = await _settled(worker)
        bench.say(f"{len(keys)} jobs wait for a person: worker {parked:.0f} MB")
        before = await _settled(api)
        token = stack.token("app")
        watched = keys[: bench.size(STREAMS)]
        readers = [await _stream(opened, api.url, token, key) for key in watched]
        streaming = await _settled(api)
        assert not any(reader.done() for reader in readers), "a stream ended"
        bench.say(f"{len(readers)} open streams: API {streaming:.0f} MB, before them {before:.0f} MB")
    jobs, streams = f"{len(keys)} parked jobs", f"{len(readers)} open streams"
    return [
        Figure(
            f"worker memory, {jobs}", "MB", (Round(parked),), Target("ours", "at most", 400), f"idle {idle_worker:.0f}"
        ),
        Figure(
            f"API memory, {streams}", "MB", (Round(streaming),), Target("ours", "at most", 250), f"idle {idle_api:.0f}"
        ),
    ]


async def _parked(bench: Bench, stack: Stack, plugin: str, count: int) -> list[str]:
    body = json.dumps({"plugin": plugin, "input": INPUT}).encode()
    engine = await stack.engine()
    keys: list[str] = []
    async with AsyncExitStack() as open_callers:
        callers = [
            await open_callers.enter_async_context(Caller(stack.apis[0].url, stack.token("app"))) for _ in range(4)
        ]

        async def submit(caller: Caller) -> None:
            keys.append((await caller.submit(fresh_key(), body))["job_id"])

        bench.say(f"submitting {count} jobs that will wait")
        await burst([lambda caller=caller: submit(caller) for caller in callers], count)

    async def waiting() -> bool:
        return (await engine.count_workflows("JobgateStatus = 'waiting_for_human'")).count >= count

    await wait_until(waiting, 600, every=1.0, what=f"{count} jobs wait")
    return keys


async def _stream(opened: AsyncExitStack, url: str, token: str, key: str) -> "asyncio.Task[None]":
    """A reader that takes whatever comes, from its first byte on, until the bench ends."""
    caller = await opened.enter_async_context(Caller(url, token))
    await caller.open(f"/v1/jobs/{key}/events?after=0")
    first = await caller.read()
    assert first, "the stream brought nothing"

    async def drain() -> None:
        while await caller.read():
            pass

    reader = asyncio.create_task(drain())
    opened.callback(reader.cancel)
    return reader


async def _settled(process: Process) -> float:
    """Memory once two looks, five seconds apart, agree within one percent."""
    gc.collect()
    seen = [_megabytes(process)]

    async def same() -> float | None:
        seen.append(_megabytes(process))
        return seen[-1] if abs(seen[-1] - seen[-2]) <= 0.01 * seen[-1] else None

    return await wait_until(same, 60, every=5, what=f"{process.name} has settled")


def _megabytes(process: Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024 / 1e6
