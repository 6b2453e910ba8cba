"""Connections of one process are bounded: what is beyond is dropped at once, what is there is served on."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from gateway.wire import Wire
from tests.rig.waiting import wait_until


async def hello(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(most: int) -> AsyncGenerator[tuple[int, ServerState]]:
    config = uvicorn.Config(hello, http=Wire, limit_concurrency=most, log_config=None)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: Wire(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1], state
    finally:
        server.close()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """What comes back for one request; empty where the connection was dropped."""
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        return await reader.readuntil(b"ok")
    except (OSError, asyncio.IncompleteReadError):
        return b""


async def test_connections_beyond_the_limit_are_dropped_and_the_others_served() -> None:
    async with serving(2) as (port, state):
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await wait_until(lambda: len(state.connections) == 2)
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await answer(reader, writer) == b""
            writer.close()
        for reader, writer in kept:
            assert (await answer(reader, writer)).startswith(b"HTTP/1.1 200 OK")
        kept[0][1].close()
        await wait_until(lambda: len(state.connections) == 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert (await answer(reader, writer)).startswith(b"HTTP/1.1 200 OK")
        for opened in (writer, kept[1][1]):
            opened.close()
