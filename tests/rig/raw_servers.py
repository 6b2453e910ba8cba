"""Local servers that do one thing to a connection: answer, drip, reset, stay silent; and calls that reach them."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from gateway.calls.egress import BeforeBytes, OutboundCall

Behave = Callable[[asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@dataclass
class Wire:
    """A server that reads whole requests, keeps every byte, and answers as told."""

    behave: Behave
    port: int = 0
    received: list[bytes] = field(default_factory=list[bytes])
    """Per connection, in order of arrival."""
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """The other side closed a connection."""

    def url(self, path: str = "/x", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = len(self.received)
        self.received.append(b"")
        self.connected.set()
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65536):
                self.received[at] += chunk
                if _complete(self.received[at]):
                    await self.behave(writer)
        self.ended.set()
        writer.close()


def _complete(received: bytes) -> bool:
    head, end, body = received.rpartition(b"\r\n\r\n")
    length = head.rpartition(b"content-length: ")[2].partition(b"\r\n")[0] if b"content-length" in head else b"0"
    return bool(end) and len(body) == int(length)


@contextlib.asynccontextmanager
async def wire(behave: Behave, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Wire]:
    served = Wire(behave)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        await server.wait_closed()


def answers(data: bytes) -> Behave:
    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return behave


def answers_and_closes(data: bytes) -> Behave:
    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        writer.close()

    return behave


async def resets(writer: asyncio.StreamWriter) -> None:
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def says_nothing(writer: asyncio.StreamWriter) -> None:
    return


async def drips(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


def call(
    url: str,
    method: str = "POST",
    *,
    body: bytes | None = b"{}",
    headers: dict[str, str] | None = None,
    allow_private: bool = True,
    timeout_s: float = 5.0,
    max_bytes: int = 1000,
) -> OutboundCall:
    return OutboundCall(method, url, headers or {}, body, allow_private, timeout_s, max_bytes)


def resolves_to(*addresses: str, asked: list[str] | None = None) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    async def resolve(host: str, port: int) -> Sequence[str]:
        if asked is not None:
            asked.append(host)
        return addresses

    return resolve


class Veto(Exception):
    pass


def vetoes(error: Exception) -> BeforeBytes:
    async def before_bytes() -> None:
        raise error

    return before_bytes
