"""Every stream ends with a typed event and then closes, whenever it was opened and however its job ends (B46).

How jobs end while a worker runs, and that an unknown one is no stream, is in `test_stream`.
"""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from tests.http.jobs import plugin_of, terminate, waiting_job, waiting_plugin
from tests.http.submissions import publish_brisk
from tests.recovery.grounds import running_stack
from tests.rig.client import Client, Json, StreamEvent
from tests.rig.effect_log import Answer, Behaviour, EffectLog
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from tests.rig.wire_client import Begun, begun

LAST = timedelta(milliseconds=50)
OPENED_LATE = 100
EVERY_S = 0.008
JOBS_AT_MOST = 80


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def quiet(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    """No worker, and pings that need no patience."""
    settings = {"JOBGATE_STREAM_PING_S": "0.2"}
    async with running_stack(tmp_path_factory.mktemp("ends"), workers=0, settings=settings) as stack:
        yield stack


async def test_streams_of_jobs_that_end_without_a_worker_end_too(quiet: Stack) -> None:
    """Terminated, out of time, and canceled while queued: for the last a worker must come, and readers wait for it."""
    app, operator = quiet.client("app"), quiet.client("operator")
    brisk = await publish_brisk(operator, "ends")
    canceled, terminated, late = [await app.accepted(brisk, timeout_seconds=s) for s in (600, 600, 1)]
    reading = {job: asyncio.create_task(app.streamed(job)) for job in (canceled, terminated, late)}
    async with begun(app.url, app.token, "GET", f"/v1/jobs/{canceled}/events") as raw:
        assert b"event: job.queued" in await raw.reader.readuntil(b"event: job.queued")
        await terminate(quiet, terminated)
        assert (await app.cancel(canceled)).json()["status"] == "canceling"
        ends = {job: (await reading[job])[-1] for job in (terminated, late)}
        assert [(end.id, end.type) for end in ends.values()] == [("end", "job.failed")] * 2
        codes = [end.event["data"]["code"] for end in ends.values()]
        assert codes == ["ended_by_operator", "deadline_exceeded"]
        # Meanwhile the third is quiet and alive: comments without an id.
        assert await pings(raw, 5) == [b": ping\n"] * 5
        assert not reading[canceled].done()
        quiet.add_worker()
        rest = await raw.reader.read()
    assert rest.endswith(b"\r\n0\r\n\r\n")
    frames = await reading[canceled]
    assert frames[-1].type == "job.canceled"
    for job in reading:
        assert await app.streamed(job) == await reading[job]  # what is done replays and closes


async def test_a_job_that_waits_keeps_its_readers_by_comments_that_have_no_id(quiet: Stack) -> None:
    if not quiet.workers:
        quiet.add_worker()
    app = quiet.client("app")
    job, request = await waiting_job(app, await waiting_plugin(quiet, quiet.client("operator")))
    async with begun(app.url, app.token, "GET", f"/v1/jobs/{job}/events") as raw:
        await raw.reader.readuntil(b"event: request.opened")
        assert await pings(raw, 10) == [b": ping\n"] * 10
        assert (await quiet.client("approver").decide(job, request, "approve")).status_code == 200
        rest = await raw.reader.read()
    assert rest.count(b"event: job.succeeded") == 1
    assert rest.endswith(b"\r\n0\r\n\r\n")


async def pings(stream: Begun, count: int) -> list[bytes]:
    """So many lines that are neither empty nor framing, from the first ping on."""
    seen: list[bytes] = []
    async with asyncio.timeout(30):
        while len(seen) < count:
            line = await stream.reader.readline()
            assert line, "the stream ended"
            if line.startswith(b": ping") or (seen and line[:1].isalpha() and b":" in line):
                seen.append(line)
    return seen


async def test_streams_opened_in_the_last_moments_of_a_job_have_its_end(
    stack: Stack, operator: Client, app: Client, effects: EffectLog
) -> None:
    """A reader every few milliseconds, from when the last step may go on until one has seen the end."""
    plugin = await plugin_of(stack, operator, [turn(call("held")), final()], tool("held"))
    opened_late = 0
    for _ in range(JOBS_AT_MOST):
        effects.set_behaviour("held", Behaviour(answer=Answer.HOLD, times=1))
        job = await app.accepted(plugin)
        await effects.wait_for_calls("held", job=job)
        await asyncio.to_thread(effects.release, "held")
        seen = await readers_until_the_end(app, job)
        view = await app.until_ended(job)
        events: list[Json] = await app.events(job)
        assert view["status"] == "succeeded"
        for _, frames in seen:
            assert [frame.event for frame in frames] == events
        ended = datetime.fromisoformat(view["finished_at"])
        opened_late += sum(ended - LAST <= at <= ended for at, _ in seen)
        if opened_late >= OPENED_LATE:
            return
    raise AssertionError(f"only {opened_late} streams were opened in the last moments")


async def readers_until_the_end(app: Client, job: str) -> list[tuple[datetime, list[StreamEvent]]]:
    """When each was opened, and its frames; the last one is opened when another has seen the end."""
    opened: list[tuple[datetime, asyncio.Task[list[StreamEvent]]]] = []

    def one_has_ended() -> bool:
        opened.append((datetime.now(UTC), asyncio.create_task(app.streamed(job))))
        return any(task.done() for _, task in opened)

    await wait_until(one_has_ended, 30, every=EVERY_S)
    return [(at, await task) for at, task in opened]
