"""Event streams on a real stack: exact, cheap, ended in time, and gone when nobody reads."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from tests.conftest import FreshStack
from tests.http.jobs import history_length, plugin_of, terminate, waiting_job, waiting_plugin
from tests.rig.client import Client, StreamEvent, problem
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import Stack


async def gauge(operator: Client, name: str) -> float:
    """A figure of /metrics; 0 before its first observation."""
    text = (await operator.http.get("/metrics")).text
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0.0)


async def test_a_stream_and_a_poll_show_the_same_events(stack: Stack, operator: Client, app: Client) -> None:
    script = [turn(call("look")), turn(call("look")), final()]
    job = await app.accepted(await plugin_of(stack, operator, script, tool("look")))
    frames = await app.streamed(job)
    assert [frame.event for frame in frames] == await app.events(job)
    assert [frame.id for frame in frames] == [str(seq) for seq in range(1, len(frames) + 1)]
    assert [frame.type for frame in frames] == await app.event_types(job)
    for after in range(len(frames) + 1):
        assert await app.streamed(job, after=str(after)) == frames[after:]
        assert await app.streamed(job, after="0", last_event_id=str(after)) == frames[after:]


async def test_the_headers_let_events_through_proxies(stack: Stack, operator: Client, app: Client) -> None:
    job, _ = await waiting_job(app, await waiting_plugin(stack, operator))
    async with app.http.stream("GET", f"/v1/jobs/{job}/events") as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["X-Accel-Buffering"] == "no"
        assert response.headers["X-Request-Id"]
        assert "retry: 2000" in await anext(response.aiter_text())


async def test_sixty_streams_and_a_hundred_polls_leave_the_history_alone(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, request = await waiting_job(app, await waiting_plugin(stack, operator))
    poller = stack.client("app")  # one client holds at most 100 connections
    before = await history_length(stack, job)
    cursor = (await app.status(job))["next_cursor"]
    streams = [asyncio.create_task(app.streamed(job)) for _ in range(60)]
    polls = [asyncio.create_task(poller.status(job, after=cursor, wait=60)) for _ in range(50)]
    async with asyncio.timeout(30):
        while await gauge(operator, "jobgate_stream_readers") < 60:
            await asyncio.sleep(0.05)
    pages = await asyncio.gather(*(operator.status(job, after="0") for _ in range(50)))
    assert all(page == {**pages[0], "as_of": page["as_of"]} for page in pages)
    assert await history_length(stack, job) == before
    assert await gauge(operator, "jobgate_upstream_watchers") == 1
    assert (await approver.decide(job, request, "approve")).status_code == 200
    assert all(page["events"][0]["type"] == "request.decided" for page in await asyncio.gather(*polls))
    seen = await asyncio.gather(*streams)
    assert all(frames == seen[0] for frames in seen)
    assert [frame.event for frame in seen[0]] == await app.events(job)


@pytest.mark.parametrize("how", ["succeeded", "canceled", "terminated", "failed", "done before"])
async def test_every_stream_ends_with_a_terminal_event(
    stack: Stack, operator: Client, app: Client, approver: Client, how: str
) -> None:
    if how == "failed":
        job = await app.accepted(await plugin_of(stack, operator, [{"fail": {"status": 400, "times": 9}}]))
        frames = await app.streamed(job)
    else:
        job, request = await waiting_job(app, await waiting_plugin(stack, operator))
        reading = asyncio.create_task(app.streamed(job))
        if how == "canceled":
            await app.cancel(job)
        elif how == "terminated":
            await terminate(stack, job)
        else:
            await approver.decide(job, request, "approve")
        frames = await reading
        if how == "done before":
            frames = await app.streamed(job)
    view = await app.status(job)
    assert frames[-1].type == f"job.{view['status']}"
    assert frames[-1] == StreamEvent(view["next_cursor"], view["last_event"]["type"], view["last_event"])
    assert (frames[-1].id == "end") is (how == "terminated")


async def test_an_unknown_job_is_a_problem_and_not_a_stream(app: Client) -> None:
    assert problem(await app.http.get("/v1/jobs/nothing-here/events")) == (404, "not-found")


async def test_streams_that_were_dropped_leave_nothing(stack: Stack, operator: Client, app: Client) -> None:
    job, _ = await waiting_job(app, await waiting_plugin(stack, operator))
    for _ in range(3):
        opened = [asyncio.create_task(app.streamed(job)) for _ in range(20)]
        async with app.stream(job) as events:
            await anext(events)
            async with asyncio.timeout(20):
                while await gauge(operator, "jobgate_stream_readers") < len(opened) + 1:
                    await asyncio.sleep(0.05)
        for task in opened:
            task.cancel()
        await asyncio.gather(*opened, return_exceptions=True)
    async with asyncio.timeout(20):
        while await gauge(operator, "jobgate_stream_readers") or await gauge(operator, "jobgate_upstream_watchers"):
            await asyncio.sleep(0.05)


@asynccontextmanager
async def stalled(url: str, path: str, token: str) -> AsyncGenerator[socket.socket]:
    """A reader with a tiny buffer that asks for a stream and then never reads."""
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(reader, (host, int(port)))
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n"
        await loop.sock_sendall(reader, head.encode())
        yield reader


async def test_a_stalled_reader_is_dropped_and_others_are_not(fresh_stack: FreshStack) -> None:
    stack = await fresh_stack(settings={"JOBGATE_STREAM_SEND_TIMEOUT_S": "1"})
    app, operator = stack.client("app"), stack.client("operator")
    script = [turn(*(call("look") for _ in range(20)), say="x" * 200) for _ in range(6)]
    plugin = await plugin_of(stack, operator, [*script, turn(call("pay"))], tool("look"), tool("pay", "write"))
    job = await app.accepted(plugin)
    await app.until_event(job, "tool.finished", count=100)
    assert app.token is not None
    async with (
        stalled(stack.apis[0].url, f"/v1/jobs/{job}/events", app.token),
        app.stream(job) as events,
    ):
        await anext(events)
        async with asyncio.timeout(20):
            while await gauge(operator, "jobgate_stream_readers") != 1:
                await asyncio.sleep(0.05)
        assert (await anext(events)).id == "2"
    assert '"level": "error"' not in stack.apis[0].output  # it is the reader's doing


async def test_a_stream_is_resumed_at_another_process(fresh_stack: FreshStack) -> None:
    stack = await fresh_stack(apis=2)
    app, other = stack.client("app"), stack.client("app", api=1)
    job, request = await waiting_job(app, await waiting_plugin(stack, stack.client("operator")))
    read: list[list[StreamEvent]] = [[] for _ in range(21)]
    caught_up = asyncio.Semaphore(0)

    async def reader(frames: list[StreamEvent]) -> None:
        async with app.stream(job) as events:
            async for frame in events:
                frames.append(frame)
                if frame.type == "request.opened":
                    caught_up.release()

    reading = [asyncio.create_task(reader(frames)) for frames in read]
    # All have what there is: where no stream is open yet, a process that ends just closes the connection.
    async with asyncio.timeout(60):
        for _ in read:
            await caught_up.acquire()
    first = read[0]
    assert await asyncio.to_thread(stack.apis[0].stop) == 0
    await asyncio.gather(*reading)
    assert all(frames == first for frames in read)
    rest = asyncio.create_task(other.streamed(job, last_event_id=first[-1].id))
    assert (await stack.client("approver", api=1).decide(job, request, "approve")).status_code == 200
    frames = first + await rest
    assert [frame.event for frame in frames] == await other.events(job)


@pytest.mark.alone
async def test_events_arrive_soon(stack: Stack, operator: Client, app: Client, approver: Client) -> None:
    job, request = await waiting_job(app, await waiting_plugin(stack, operator))
    async with app.stream(job, after=(await app.status(job))["next_cursor"]) as events:
        decided = await approver.decide(job, request, "approve")
        async with asyncio.timeout(2):
            frame = await anext(events)
        assert (decided.status_code, frame.type) == (200, "request.decided")
