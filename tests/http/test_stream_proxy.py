"""Behind a proxy that keeps answers back until they are whole, events still arrive one by one: the head sees to it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.http.jobs import waiting_job, waiting_plugin
from tests.rig.client import Client
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until


@dataclass
class Proxy:
    """Passes on an answer piece by piece where its head says `X-Accel-Buffering: no`, else at its end. `deaf`: always
    at its end. One request for each connection."""

    port: int
    deaf: bool = False
    url: str = ""
    held: bytearray = field(default_factory=bytearray)
    """What came from behind and was not passed on."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, to_behind = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            asked = await reader.readuntil(b"\r\n\r\n")
            to_behind.write(asked[:-2].replace(b"Connection: keep-alive\r\n", b"") + b"Connection: close\r\n\r\n")
            head = await behind.readuntil(b"\r\n\r\n")
            buffers = self.deaf or b"\r\nx-accel-buffering: no\r\n" not in head.lower()
            self.held += head
            while True:
                if not buffers:
                    writer.write(self.held)
                    await writer.drain()
                    self.held.clear()
                if not (piece := await behind.read(65_536)):
                    break
                self.held += piece
            writer.write(self.held)
        finally:
            to_behind.close()
            writer.close()


@asynccontextmanager
async def proxy(stack: Stack, *, deaf: bool = False) -> AsyncGenerator[Proxy]:
    made = Proxy(int(stack.apis[0].url.rpartition(":")[2]), deaf)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await made.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.url = "http://{}:{}".format(*server.sockets[0].getsockname())
    try:
        yield made
    finally:
        server.close()


async def test_events_arrive_through_a_buffering_proxy_while_the_job_goes_on(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, request = await waiting_job(app, await waiting_plugin(stack, operator))
    async with (
        proxy(stack) as fair,
        proxy(stack, deaf=True) as deaf,
        Client(fair.url, app.token) as through,
        Client(deaf.url, app.token) as kept_from,
    ):
        nothing = asyncio.create_task(kept_from.streamed(job))
        async with through.stream(job) as events, asyncio.timeout(20):
            seen = [await anext(events)]
            while seen[-1].type != "request.opened":
                seen.append(await anext(events))
            # The mutant: a proxy that does not look at the head has the same events, and its reader has none.
            await wait_until(lambda: b"event: request.opened" in deaf.held, 20)
            assert not nothing.done()
            assert (await approver.decide(job, request, "approve")).status_code == 200
            seen += [event async for event in events]
        assert seen[-1].type == "job.succeeded"
        assert await nothing == seen
