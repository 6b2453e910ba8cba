"""What is on the wire before any route: heads without end, heads that never end, and what is no HTTP at all."""

import asyncio
import json
from typing import Any

import pytest

from gateway.wire import HEAD_S
from tests.rig.stack import Stack


async def answered(stack: Stack, *pieces: bytes, within: float = 10.0, then: bytes = b"") -> bytes:
    """All that comes back on one connection until the server closes it. `then` is sent once an answer has come."""
    host, port = stack.apis[0].url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(within):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            answer = await reader.readuntil(b"}") if then else b""
            writer.write(then)
            return answer + await reader.read()
    finally:
        writer.close()


def document(answer: bytes, status: int) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"content-type: application/problem+json" in head
    value = json.loads(body)
    assert value["status"] == status
    assert value["instance"].encode() in head
    return value


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"CANARY / HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: a\r\nX-A: canary\x00\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n",
    ],
)
async def test_what_is_no_http_gets_a_problem(stack: Stack, request_bytes: bytes) -> None:
    answer = await answered(stack, request_bytes)
    assert document(answer, 400)["code"] == "input-invalid"
    assert b"canary" not in answer.lower()


async def test_a_head_without_end_is_refused(stack: Stack) -> None:
    """In one piece or in many, whole or not: what counts is its size."""
    begun, lines = b"GET /livez HTTP/1.1\r\nHost: a\r\n", [b"X-A: " + b"a" * 8000 + b"\r\n"] * 12
    for pieces in ([begun, *lines], [begun + b"".join(lines) + b"\r\n"]):
        answer = await answered(stack, *pieces)
        assert document(answer, 431)["code"] == "payload-too-large"
    allowed = begun + b"Connection: close\r\n" + b"".join(lines[:7]) + b"\r\n"
    assert (await answered(stack, allowed)).startswith(b"HTTP/1.1 200 ")


async def test_a_head_that_never_ends_loses_its_connection(stack: Stack) -> None:
    """Nor does a connection live on by a body that was answered already, whether the rest of it comes or not."""
    refused = b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n1"
    ended = await asyncio.gather(
        answered(stack, b"", within=HEAD_S + 10),
        answered(stack, b"GET /livez HTTP/1.1\r\nHost: a\r\nX-A: ", within=HEAD_S + 10),
        answered(stack, refused, within=HEAD_S + 10, then=b"2"),
        answered(stack, refused, within=HEAD_S + 10, then=b"23"),
    )
    assert ended[:2] == [b"", b""]
    assert all(answer.startswith(b"HTTP/1.1 401 ") for answer in ended[2:])


async def test_a_long_body_is_no_head(stack: Stack) -> None:
    begun = b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n"
    rest = [b"x" * 50_000] * 4
    after = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answer = await answered(stack, begun, *rest, after)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert answer.endswith(b'{"live":true}')
