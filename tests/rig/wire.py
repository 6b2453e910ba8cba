"""A small HTTP/1.1 server on h11 that may also misbehave: hang, or cut the connection without an answer.

It owns sockets and framing for the effect log and the model server. What to answer is theirs to say.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import h11


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request as it came in. Times are taken when its head was complete, before the body; units: nanoseconds."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    monotonic_ns: int
    wall_ns: int

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    def header(self, name: str) -> str | None:
        """The first header of this name, or None; names ignore case."""
        return next((value for key, value in self.headers if key == name.lower()), None)


@dataclass(frozen=True, slots=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict[str, str])


class Cut(Exception):
    """Raised by a responder: close the connection now and answer nothing."""


Responder = Callable[[Arrival], Awaitable[Reply]]


class WireServer:
    """Serves one responder on 127.0.0.1 at a free port, in the running loop."""

    def __init__(self, respond: Responder) -> None:
        self._respond = respond
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.url = ""

    async def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = "http://{}:{}".format(*listener.getsockname()[:2])
        self._server = await asyncio.start_server(self._serve, sock=listener)

    async def stop(self) -> None:
        """Closes the port and every connection, hanging ones too."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._converse(reader, writer)
        except (Cut, OSError, h11.RemoteProtocolError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        while True:
            arrival = await _receive(connection, reader)
            if arrival is None:
                return
            reply = await self._until_gone(self._respond(arrival), reader)
            headers = {"Content-Type": "application/json", **reply.headers, "Content-Length": str(len(reply.body))}
            for event in (
                h11.Response(status_code=reply.status, headers=list(headers.items())),
                h11.Data(data=reply.body),
                h11.EndOfMessage(),
            ):
                writer.write(connection.send(event) or b"")
            await writer.drain()
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _until_gone(self, answer: Awaitable[Reply], reader: asyncio.StreamReader) -> Reply:
        """The answer, or Cut as soon as the client has left: nobody is served who does not listen any more."""
        answering = asyncio.ensure_future(answer)
        try:
            while not answering.done():
                await asyncio.wait({answering}, timeout=0.05)
                if reader.at_eof() and not answering.done():
                    raise Cut
            return answering.result()
        finally:
            answering.cancel()


async def _receive(connection: h11.Connection, reader: asyncio.StreamReader) -> Arrival | None:
    """The next request with its whole body, or None when the client closed the connection."""
    head: h11.Request | None = None
    monotonic_ns = wall_ns = 0
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Request):
            head, monotonic_ns, wall_ns = event, time.monotonic_ns(), time.time_ns()
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
            target = head.target.decode("latin-1")
            return Arrival(head.method.decode(), target, headers, bytes(body), monotonic_ns, wall_ns)
        else:
            return None
