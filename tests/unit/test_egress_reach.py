"""What the door may reach, what it refuses to send, and the clients that it hands to SDKs."""

import asyncio
import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from openai import APIConnectionError, AsyncOpenAI

from gateway.calls.egress import Door, NotSent, OutboundReply, ReplyLost
from tests.rig.raw_servers import (
    OK,
    Veto,
    answers,
    call,
    drips,
    resolves_to,
    vetoes,
    wire,
)


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
