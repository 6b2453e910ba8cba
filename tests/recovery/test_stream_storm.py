"""Five hundred readers who come and go in every rude way leave nothing: no task, no connection, no memory, no work."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from tests.conftest import FreshStack
from tests.http.jobs import waiting_job, waiting_plugin
from tests.http.test_limits import figure
from tests.rig.client import Client
from tests.rig.process import Process
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from tests.rig.wire_client import begun

STREAMS = 500
JOBS = 10
TIGHT_BYTES = 4096
GROWTH_BYTES = 24 * 1024 * 1024
"""What a second storm may add: less than a tenth of what so many leaked streams would hold."""
IDLE = 0.3
"""Of one core. What a hundred leaked tasks that poll would take is more."""


def resident(process: Process) -> int:
    """Bytes of memory."""
    text = Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii")
    return int(text.split()[1]) * os.sysconf("SC_PAGESIZE")


def connections(process: Process) -> int:
    """Sockets it holds."""
    held = Path(f"/proc/{process.pid}/fd")
    return sum(os.readlink(one).startswith("socket:") for one in held.iterdir() if one.is_symlink())


def busy(process: Process) -> Callable[[], bool]:
    """Whether it works since the last look."""
    last: list[tuple[float, float]] = []

    def look() -> bool:
        fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        last.append((time.monotonic(), used))
        return len(last) < 2 or last[-1][1] - last[-2][1] > IDLE * (last[-1][0] - last[-2][0])

    return look


async def open_streams(stack: Stack, operator: Client, app: Client, jobs: list[str]) -> tuple[float, int]:
    """A storm; the readers and connections at its height. A third leaves before the first byte, a third in the midst,
    and a third never reads."""
    async with AsyncExitStack() as opened:

        async def one(number: int) -> None:
            path = f"/v1/jobs/{jobs[number % JOBS]}/events"
            buffer = TIGHT_BYTES if number % 3 == 2 else 65_536
            stream = await opened.enter_async_context(begun(app.url, app.token, "GET", path, buffer=buffer))
            if number % 3 == 0:
                stream.leave()
            elif number % 3 == 1:
                await stream.reader.readuntil(b"event: request.opened")

        for start in range(0, STREAMS, 50):
            await asyncio.gather(*(one(number) for number in range(start, start + 50)))
        staying = STREAMS - len(range(0, STREAMS, 3))
        await wait_until(lambda: _readers_are(operator, staying), 60, every=0.2, what=f"{staying} streams are open")
        return await figure(operator, "jobgate_requests_at_work", kind="streams"), connections(stack.apis[0])


async def _readers_are(operator: Client, count: int) -> bool:
    text = (await operator.http.get("/metrics")).text
    shown = [line for line in text.splitlines() if line.startswith("jobgate_stream_readers ")]
    return bool(shown) and float(shown[0].split()[1]) == count


async def calm(stack: Stack, operator: Client, at_rest: int) -> None:
    """Nothing of the storm is left: readers, places, watches of jobs, connections, work."""
    api = stack.apis[0]
    works = busy(api)
    looks: list[tuple[str, Callable[[], Awaitable[bool]]]] = [
        ("no reader", lambda: _readers_are(operator, 0)),
        ("no place", lambda: _is(operator, "jobgate_requests_at_work", kind="streams")),
        ("no watch", lambda: _is(operator, "jobgate_upstream_watchers")),
    ]
    for what, look in looks:
        await wait_until(look, 30, every=0.2, what=what)
    await wait_until(lambda: connections(api) <= at_rest, 30, every=0.2, what="no connection")
    await wait_until(lambda: not works(), 30, every=1.0, what="no work")


async def _is(operator: Client, name: str, **labels: str) -> bool:
    text = (await operator.http.get("/metrics")).text
    shown = "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}" if labels else ""
    return any(line == f"{name}{shown} 0.0" for line in text.splitlines())


async def test_five_hundred_streams_that_were_dropped_leave_nothing(fresh_stack: FreshStack) -> None:
    stack = await fresh_stack()
    operator, app = stack.client("operator"), stack.client("app")
    plugin = await waiting_plugin(stack, operator)
    jobs = [(await waiting_job(app, plugin))[0] for _ in range(JOBS)]
    await operator.status(jobs[0])
    at_rest = connections(stack.apis[0])
    # The first storm fills what a process keeps for later, and shows that all measures see what is there.
    streams, held = await open_streams(stack, operator, app, jobs)
    assert streams >= STREAMS // 2
    assert held >= at_rest + STREAMS // 2
    await calm(stack, operator, at_rest)
    before = resident(stack.apis[0])
    await open_streams(stack, operator, app, jobs)
    await calm(stack, operator, at_rest)
    assert resident(stack.apis[0]) - before < GROWTH_BYTES
    assert '"level": "error"' not in stack.apis[0].output
    assert '"level": "warning"' not in stack.apis[0].output
    # And it serves on.
    async with app.stream(jobs[0]) as events:
        assert (await anext(events)).type == "job.queued"
