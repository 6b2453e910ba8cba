"""A client that costs little: one keep-alive HTTP/1.1 connection, made anew after the API closed an idle one.

The bench shares two cores with what it measures; a full client would cost as much as the API's own part. It knows just
the answers the API gives to these requests: a status line, `Content-Length`, a body.
"""

import asyncio
import json
from typing import Any, Self
from urllib.parse import urlsplit


class Caller:
    """`async with Caller(url, token) as caller`; one request at a time."""

    def __init__(self, url: str, token: str) -> None:
        where = urlsplit(url)
        self._host, self._port = where.hostname or "", where.port or 80
        self._heads = f"Host: {where.netloc}\r\nAuthorization: Bearer {token}\r\n"
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def get(self, path: str) -> Any:
        """The JSON of a 200."""
        return await self._answer(f"GET {path} HTTP/1.1\r\n{self._heads}\r\n".encode(), 200)

    async def submit(self, key: str, body: bytes) -> Any:
        """The receipt of a new job."""
        return await self.post("/v1/jobs", body, 202, f"Idempotency-Key: {key}\r\n")

    async def post(self, path: str, body: bytes, expect: int, heads: str = "") -> Any:
        lead = f"POST {path} HTTP/1.1\r\n{self._heads}{heads}"
        framing = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return await self._answer(f"{lead}{framing}".encode() + body, expect)

    async def open(self, path: str) -> bytes:
        """Begins a stream: the head of its answer, which must be a 200; then see `read`."""
        self._writer.write(f"GET {path} HTTP/1.1\r\n{self._heads}Accept: text/event-stream\r\n\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.split(b" ", 2)[1] == b"200", head[:500]
        return head

    async def read(self) -> bytes:
        """Whatever came of the stream; empty at its end."""
        return await self._reader.read(65536)

    async def _connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def _answer(self, request: bytes, expect: int) -> Any:
        if self._reader.at_eof():
            self._writer.close()
            await self._connect()
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        body = await self._reader.readexactly(length)
        assert int(head.split(b" ", 2)[1]) == expect, (head + body)[:800]
        return json.loads(body)
