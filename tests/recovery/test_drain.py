"""SIGTERM: what is open ends well within the grace, nothing new is taken, and whoever asks is told where not to go."""

import asyncio

import httpx2
import pytest

from tests.conftest import FreshStack
from tests.http.jobs import waiting_job, waiting_plugin
from tests.http.submissions import BOTH, NONE, body_with, publish_brisk, refused, submit_bytes, traces
from tests.http.test_limits import half_a_submission, until_at_work
from tests.rig.client import Client, StreamEvent, fresh_key
from tests.rig.waiting import wait_until

READERS = 20
GRACE_S = 20


async def test_a_process_that_is_stopped_ends_what_it_has_and_takes_nothing_new(fresh_stack: FreshStack) -> None:
    stack = await fresh_stack(apis=2, settings={"JOBGATE_API_GRACE_S": str(GRACE_S)})
    app, other, operator = stack.client("app"), stack.client("app", api=1), stack.client("operator", api=1)
    brisk = await publish_brisk(operator, "drained")
    body = body_with(brisk).encode()
    job, request = await waiting_job(app, await waiting_plugin(stack, operator))
    cursor = (await app.status(job))["next_cursor"]
    read: list[list[StreamEvent]] = [[] for _ in range(READERS)]

    async def reader(frames: list[StreamEvent]) -> None:
        """Raises where the server breaks the stream off instead of ending it."""
        async with app.stream(job) as events:
            frames.extend([event async for event in events])

    polling = asyncio.create_task(app.status(job, after=cursor, wait=60))
    reading = [asyncio.create_task(reader(frames)) for frames in read]
    kept, late = fresh_key(), fresh_key()
    async with half_a_submission(app, kept, body) as slow:
        await until_at_work(stack, "streams", READERS + 1)
        await until_at_work(stack, "submissions", 1)
        stopping = asyncio.create_task(asyncio.to_thread(stack.apis[0].stop, GRACE_S + 10))
        async with Client(app.url, None) as nobody:
            told = refused(await wait_until(lambda: _not_ready(nobody), 10, what="it says so"), 503, "stopping")
            assert (await nobody.http.get("/livez")).status_code == 200
        assert told["ready"] is False
        assert {rung["rung"]: rung["ok"] for rung in told["rungs"]}["process"] is False
        for answer in (
            await submit_bytes(app, body, late),
            await app.http.get(f"/v1/jobs/{job}/events"),
            await app.http.get(f"/v1/jobs/{job}"),
        ):
            assert refused(answer, 503, "stopping")["retry_after_s"] == 1
            assert answer.headers["Connection"] == "close"
        assert await traces(stack, late) == NONE
        # Streams and polls end, so that whoever reads goes on elsewhere; the submission that was taken has its time.
        await asyncio.gather(*reading)
        assert (await polling)["events"] == []
        assert not stopping.done()
        assert (await slow.finish(body[5:]))[0] == 202
    assert await stopping == 0
    with pytest.raises(httpx2.ConnectError):
        await app.http.get("/livez")
    assert await traces(stack, kept) == BOTH
    assert (await submit_bytes(other, body, late)).status_code == 202
    assert all(frames == read[0] for frames in read)
    rest = asyncio.create_task(other.streamed(job, last_event_id=read[0][-1].id))
    assert (await stack.client("approver", api=1).decide(job, request, "approve")).status_code == 200
    assert [frame.event for frame in read[0] + await rest] == await other.events(job)


async def _not_ready(nobody: Client) -> httpx2.Response | None:
    answer = await nobody.http.get("/readyz")
    return answer if answer.status_code == 503 else None


async def test_a_process_whose_clients_do_not_end_ends_with_its_grace(fresh_stack: FreshStack) -> None:
    stack = await fresh_stack(settings={"JOBGATE_API_GRACE_S": "1"}, workers=0)
    app, key = stack.client("app"), fresh_key()
    async with half_a_submission(app, key) as slow:
        await until_at_work(stack, "submissions", 1)
        assert await asyncio.to_thread(stack.apis[0].stop, 15) == 0
        slow.leave()
    assert await traces(stack, key) == NONE
