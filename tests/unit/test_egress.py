"""The door against real local servers: what left, what came back, and what is known about it."""

import asyncio
import contextlib
import datetime
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpcore2
import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from openai import APIConnectionError, AsyncOpenAI

from gateway.calls.egress import BeforeBytes, Door, NotSent, OutboundCall, OutboundReply, ReplyLost, ReplyTooLarge

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


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with Door() as opened:
        yield opened


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


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f.1", "2130706433", "[::ffff:7f00:1]"])
async def test_every_spelling_of_loopback_is_refused_unless_private_is_allowed(door: Door, host: str) -> None:
    async with wire(answers(OK)) as server:
        with pytest.raises(NotSent) as refused:
            await door.send(call(server.url(host=host), allow_private=False))
        assert refused.value.reason == "The host resolves to an address that may not be reached."
        assert server.received == []
        assert (await door.send(call(server.url(host=host)))).status == 200


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "::1", "fd00::1", "100.64.1.1", "::ffff:192.168.0.1"])
async def test_a_name_that_resolves_to_a_private_address_is_refused(address: str) -> None:
    async with Door(resolve=resolves_to("93.184.215.14", address)) as door:
        with pytest.raises(NotSent) as refused:
            await door.send(call("https://rebind.test/", allow_private=False))
    assert refused.value.reason == "The host resolves to an address that may not be reached."


@pytest.mark.parametrize("address", ["169.254.169.254", "169.254.1.1", "fd00:ec2::254", "fe80::1%1", "0.0.0.0"])
async def test_allow_private_never_opens_link_local_or_metadata(address: str) -> None:
    async with Door(resolve=resolves_to(address)) as door:
        with pytest.raises(NotSent) as refused:
            await door.send(call("http://metadata.test/latest/meta-data"))
    assert refused.value.reason == "The host resolves to an address that may not be reached."


async def test_the_address_that_was_checked_is_the_one_connected_to() -> None:
    asked: list[str] = []
    async with wire(answers(OK)) as server, Door(resolve=resolves_to("127.0.0.1", asked=asked)) as door:
        assert (await door.send(call(server.url(host="shop.test")))).status == 200
    assert asked == ["shop.test"]
    assert f"host: shop.test:{server.port}".encode() in server.received[0]


async def test_the_next_address_is_tried_where_one_refuses() -> None:
    async with wire(answers(OK)) as server, Door(resolve=resolves_to("127.0.0.2", "127.0.0.1")) as door:
        assert (await door.send(call(server.url(host="shop.test")))).status == 200


async def test_a_name_without_an_address_left_nothing() -> None:
    async with Door(resolve=resolves_to()) as door:
        with pytest.raises(NotSent) as unknown:
            await door.send(call("http://shop.test/"))
    assert unknown.value.reason == "The host has no address."


async def test_what_one_call_may_reach_is_no_way_in_for_another(door: Door) -> None:
    async with wire(answers(OK)) as server:
        await door.send(call(server.url(), "GET", body=None))  # leaves an idle connection
        with pytest.raises(NotSent):
            await door.send(call(server.url(), "GET", body=None, allow_private=False))


async def test_no_proxy_of_the_environment_is_used(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    async with wire(answers(OK)) as server, wire(answers(OK)) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url(""))
        await door.send(call(server.url()))
        async with door.client(allow_private=True, timeout_s=5) as client:
            await client.get(server.url())
        assert proxy.received == []


@pytest.mark.parametrize(
    "headers", [{"X": "a\r\nY: b"}, {"X\n": "a"}, {"X": "é"}, {"Host": "other"}, {"content-length": "0"}, {"X": " a"}]
)
async def test_a_header_that_may_not_be_sent_spends_no_leave(door: Door, headers: dict[str, str]) -> None:
    async with wire(answers(OK)) as server:
        with pytest.raises(NotSent):
            await door.send(call(server.url(), headers=headers), before_bytes=vetoes(Veto()))
        assert server.received == []


@pytest.mark.parametrize(
    "url", ["ftp://h/", "//h/", "/x", "http://", "http://u:p@h/", "http://h:99999/", "http://[/", ""]
)
async def test_an_address_that_is_no_plain_url_left_nothing(door: Door, url: str) -> None:
    with pytest.raises(NotSent):
        await door.send(call(url))


# TLS


def _identity(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context for `name`, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(
        now + datetime.timedelta(days=1)
    )
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    certificate = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(
        key, hashes.SHA256()
    )
    pem, encoding = folder / f"{name}.pem", serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    pem.write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain) + certificate.public_bytes(encoding)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cadata=certificate.public_bytes(encoding).decode())


async def test_the_tls_server_name_is_the_host_name(tmp_path: Path) -> None:
    server_tls, client_tls = _identity(tmp_path, "shop.test")
    names: list[str | None] = []
    server_tls.sni_callback = lambda _socket, name, _context: names.append(name)
    door = Door(resolve=resolves_to("127.0.0.1"), tls=client_tls)
    async with wire(answers(OK), server_tls) as server, door:
        for host in ("shop.test", "shop.test."):
            assert (await door.send(call(server.url(host=host, scheme="https")))).status == 200
    assert names == ["shop.test", "shop.test"]


async def test_a_certificate_for_another_name_or_from_nowhere_left_nothing(tmp_path: Path) -> None:
    server_tls, client_tls = _identity(tmp_path, "shop.test")
    async with wire(answers(OK), server_tls) as server:
        for tls, host in ((client_tls, "other.test"), (None, "shop.test")):
            async with Door(resolve=resolves_to("127.0.0.1"), tls=tls) as door:
                with pytest.raises(NotSent) as refused:
                    await door.send(call(server.url(host=host, scheme="https")), before_bytes=vetoes(Veto()))
            assert refused.value.reason == "The other side's certificate or TLS handshake was refused."
    assert not any(server.received)


# The SDKs' client


async def test_a_client_follows_no_redirect_and_keeps_no_cookie(door: Door) -> None:
    head = b"HTTP/1.1 302 Go\r\nLocation: /y\r\nSet-Cookie: a=b; Path=/\r\nContent-Length: 0\r\n\r\n"
    async with wire(answers(head)) as server, door.client(allow_private=True, timeout_s=5) as client:
        for _ in range(2):
            assert (await client.get(server.url())).status_code == 302
        assert b"/y" not in server.received[0]
        assert b"cookie" not in server.received[0].lower()
        assert server.received[0].count(b"accept-encoding: identity") == 2


async def test_a_client_reaches_no_private_address_unless_allowed(door: Door) -> None:
    async with wire(answers(OK)) as server, door.client(allow_private=False, timeout_s=5) as client:
        with pytest.raises(NotSent):
            await client.get(server.url())
        assert server.received == []


async def test_a_clients_time_covers_its_streamed_reply(door: Door) -> None:
    async with wire(drips) as server, door.client(allow_private=True, timeout_s=0.3) as client:
        async with client.stream("POST", server.url(), json={}) as response:
            with pytest.raises(ReplyLost):
                await response.aread()
        await server.ended.wait()


async def test_an_sdk_call_says_why_it_failed(door: Door) -> None:
    async with wire(answers(OK)) as server:
        gone = server.url("/v1")
    async with door.client(allow_private=True, timeout_s=5) as client:
        sdk = AsyncOpenAI(api_key="sentinel-1234", base_url=gone, http_client=client, max_retries=0)
        with pytest.raises(APIConnectionError) as failed:
            await sdk.models.list()
    assert isinstance(failed.value.__cause__, NotSent)


async def test_calls_in_parallel_do_not_wait_for_each_other(door: Door) -> None:
    arrived: list[OutboundReply] = []
    gate = asyncio.Event()

    async def waits(writer: asyncio.StreamWriter) -> None:
        if len(server.received) == 30:
            gate.set()
        await gate.wait()
        writer.write(OK)

    async with wire(waits) as server, asyncio.TaskGroup() as group:

        async def one() -> None:
            arrived.append(await door.send(call(server.url(), "GET", body=None)))

        for _ in range(30):
            group.create_task(one())
    assert len(arrived) == 30
