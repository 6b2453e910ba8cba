"""The door against real local servers: what left, what came back, and what is known about it."""

import asyncio

import httpcore2
import httpx2
import pytest

from gateway.calls.egress import Door, NotSent, ReplyLost, ReplyTooLarge
from tests.rig.raw_servers import (
    OK,
    Behave,
    Veto,
    answers,
    answers_and_closes,
    call,
    drips,
    resets,
    says_nothing,
    vetoes,
    wire,
)


async def test_a_call_goes_out_as_it_was_built_and_comes_back_whole(door: Door) -> None:
    reply_head = b"HTTP/1.1 201 Created\r\nX-Two: a\r\nx-two: b\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with wire(answers(reply_head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")) as server:
        headers = {"Idempotency-Key": "eff_1", "Authorization": "Bearer sentinel-1234"}
        sent = call(server.url("/a%2Fb?q=%20"), body=b'{"a":1}', headers=headers)
        reply = await door.send(sent)
    assert (reply.status, reply.body, reply.headers["x-two"]) == (201, b"abcde", "a, b")
    assert server.received == [
        b"POST /a%2Fb?q=%20 HTTP/1.1\r\n"
        + f"host: 127.0.0.1:{server.port}\r\n".encode()
        + b"accept-encoding: identity\r\nuser-agent: jobgate\r\nidempotency-key: eff_1\r\n"
        + b'authorization: Bearer sentinel-1234\r\ncontent-length: 7\r\n\r\n{"a":1}'
    ]
    assert "sentinel" not in repr(sent)


@pytest.mark.parametrize(
    "error", [Veto("no"), TimeoutError(), httpcore2.WriteError(), httpcore2.ConnectError(), httpx2.ReadError("x")]
)
async def test_a_veto_comes_out_unchanged_and_no_byte_left(door: Door, error: Exception) -> None:
    async with wire(answers(OK)) as server:
        with pytest.raises(type(error)) as vetoed:
            await door.send(call(server.url()), before_bytes=vetoes(error))
        await server.ended.wait()
    assert vetoed.value is error
    assert server.received == [b""]


async def test_a_veto_on_a_reused_connection_sends_nothing_either(door: Door) -> None:
    async with wire(answers(OK)) as server:
        await door.send(call(server.url(), "GET", body=None))
        first = server.received[0]
        with pytest.raises(Veto):
            await door.send(call(server.url(), "GET", body=None), before_bytes=vetoes(Veto()))
        await server.ended.wait()
        assert server.received == [first]
        assert (await door.send(call(server.url(), "GET", body=None))).status == 200


async def test_leave_is_asked_once_when_the_connection_stands(door: Door) -> None:
    seen: list[list[bytes]] = []

    async with wire(answers(OK)) as server:

        async def before_bytes() -> None:
            await server.connected.wait()
            seen.append(list(server.received))

        await door.send(call(server.url()), before_bytes=before_bytes)
    assert seen == [[b""]]
    assert server.received[0].startswith(b"POST ")


async def test_time_that_runs_out_before_leave_is_given_sends_nothing(door: Door) -> None:
    async with wire(answers(OK)) as server:
        with pytest.raises(NotSent):
            await door.send(call(server.url(), timeout_s=0.1), before_bytes=asyncio.Event().wait)  # pyright: ignore[reportArgumentType]  # its True is not looked at
        await server.ended.wait()
    assert server.received == [b""]


async def test_reads_reuse_a_connection_and_writes_never_do(door: Door) -> None:
    async with wire(answers(OK)) as server:
        for _ in range(3):
            await door.send(call(server.url(), "GET", body=None))
        assert len(server.received) == 1
        for _ in range(3):
            await door.send(call(server.url(), "POST"))
        assert len(server.received) == 4


async def test_a_connection_closed_while_idle_is_not_used_again(door: Door) -> None:
    async with wire(answers_and_closes(OK)) as server:
        for _ in range(5):
            assert (await door.send(call(server.url(), "GET", body=None))).status == 200
            await server.ended.wait()
        assert len(server.received) == 5


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_answer_and_not_followed(door: Door, status: int) -> None:
    async with wire(says_nothing) as target:
        location = f"HTTP/1.1 {status} Go\r\nLocation: {target.url()}\r\nContent-Length: 0\r\n\r\n"
        async with wire(answers(location.encode())) as server:
            reply = await door.send(call(server.url()))
        assert reply.status == status
        assert target.received == []


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
)
async def test_a_reply_over_the_limit_is_given_up_while_it_is_read(door: Door, head: bytes) -> None:
    async with wire(answers(head + b"x" * 1001)) as server:  # and then stays open: nobody waits for its end
        with pytest.raises(ReplyTooLarge) as lost:
            await door.send(call(server.url()))
        await server.ended.wait()
    assert lost.value.status == 200


async def test_a_reply_at_the_limit_is_read(door: Door) -> None:
    async with wire(answers(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000)) as server:
        assert len((await door.send(call(server.url()))).body) == 1000


async def test_endless_reply_headers_are_given_up(door: Door) -> None:
    async with wire(answers(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000)) as server:
        with pytest.raises(ReplyLost):
            await door.send(call(server.url()))


async def test_a_slow_drip_ends_at_the_time_limit(door: Door) -> None:
    async with wire(drips) as server:
        with pytest.raises(ReplyLost) as lost:
            await door.send(call(server.url(), timeout_s=0.3, max_bytes=10_000_000))
        await server.ended.wait()
    assert (lost.value.reason, lost.value.status) == ("No complete reply came in time.", 200)


@pytest.mark.parametrize(
    ("behave", "status"),
    [
        (resets, None),
        (says_nothing, None),
        (answers_and_closes(b""), None),
        (answers_and_closes(b"HTTP/1.1 200"), None),
        (answers_and_closes(b"SSH-2.0-nonsense\r\n\r\n"), None),
        (answers_and_closes(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"), 200),
        (answers_and_closes(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), 200),
        (answers(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b"), 200),
    ],
)
async def test_after_bytes_left_every_broken_reply_is_lost_and_nothing_is_sent_again(
    door: Door, behave: Behave, status: int | None
) -> None:
    async with wire(behave) as server:
        with pytest.raises(ReplyLost) as lost:
            await door.send(call(server.url(), timeout_s=0.5))
        await server.ended.wait()
    assert lost.value.status == status
    assert "nonsense" not in lost.value.reason
    assert len(server.received) == 1
    assert server.received[0].count(b"POST ") == 1


async def test_a_refused_connection_left_nothing(door: Door) -> None:
    async with wire(answers(OK)) as server:
        gone = server.url()
    with pytest.raises(NotSent) as refused:
        await door.send(call(gone))
    assert refused.value.reason == "No connection could be made."
