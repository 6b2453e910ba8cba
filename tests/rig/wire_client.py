"""One HTTP/1.1 request as exact bytes on a socket of its own: for what a well-behaved client can not send.

It can leave without reading the answer, promise more bytes than it sends, send chunks, and stay half said.
"""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.rig.answers import Answer
from tests.rig.overheard import EAR


@dataclass(frozen=True, slots=True)
class Begun:
    """A request of which not all was sent, or whose answer is not read."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def finish(self, rest: bytes = b"", timeout: float = 20.0) -> tuple[int, Any]:
        """Sends the rest; status and JSON of the answer, which ends with the connection."""
        self.writer.write(rest)
        async with asyncio.timeout(timeout):
            head, _, payload = (await self.reader.read()).partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), json.loads(payload)

    def leave(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def begun(
    url: str,
    token: str | None,
    method: str,
    target: str,
    headers: Mapping[str, str] | None = None,
    *,
    promised: int | None = None,
    body: bytes = b"",
    buffer: int = 65_536,
) -> AsyncGenerator[Begun]:
    """The head, `body` and no more, although it said that `promised` bytes come. `buffer`: of what waits to be read."""
    address = urlsplit(url)
    lines = {"Host": address.netloc, "Connection": "close", **(headers or {})}
    if token is not None:
        lines["Authorization"] = f"Bearer {token}"
    if promised is not None:
        lines |= {"Content-Length": str(promised), "Content-Type": lines.get("Content-Type", "application/json")}
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    line.setblocking(False)
    await asyncio.get_running_loop().sock_connect(line, (address.hostname, address.port))
    reader, writer = await asyncio.open_connection(sock=line, limit=buffer)
    try:
        writer.write(head.encode("latin-1") + b"\r\n" + body)
        await writer.drain()
        yield Begun(reader, writer)
    finally:
        writer.transport.abort()


async def speak(
    url: str,
    token: str | None,
    method: str,
    target: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    promised: int | None = None,
    chunked: bool = False,
    answer: bool = True,
    timeout: float = 20.0,
) -> tuple[int, Any]:
    """Status and JSON (or other text) of the answer.

    `answer` False: cut the connection as soon as the request is written; (0, None).
    `promised` is the Content-Length, if not the truth. Units: bytes, seconds.
    """
    address = urlsplit(url)
    lines = {"Host": address.netloc, "Content-Type": "application/json", "Connection": "close", **(headers or {})}
    if token is not None:
        lines["Authorization"] = f"Bearer {token}"
    if chunked:
        lines["Transfer-Encoding"] = "chunked"
        half = len(body) // 2
        body = (
            b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part) + b"0\r\n\r\n"
        )
    else:
        lines["Content-Length"] = str(len(body) if promised is None else promised)
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(head.encode("latin-1") + b"\r\n" + body)
        await writer.drain()
        if not answer:
            writer.transport.abort()
            return 0, None
        async with asyncio.timeout(timeout):
            status_line, _, rest = (await reader.read()).partition(b"\r\n")
        head_bytes, _, payload = rest.partition(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" not in head_bytes.lower()
        heard = _answer(method, target, int(status_line.split()[1]), head_bytes, payload)
        EAR.hear(address.netloc, heard)
        is_json = b"json" in head_bytes.lower()
        return int(status_line.split()[1]), json.loads(payload) if is_json else payload.decode()
    finally:
        writer.transport.abort()


def _answer(method: str, target: str, status: int, head: bytes, payload: bytes) -> Answer:
    lines = (line.decode("latin-1").partition(":") for line in head.split(b"\r\n"))
    headers = tuple((name, value.strip()) for name, _, value in lines)
    return Answer(method, target.partition("?")[0], status, headers, payload)
