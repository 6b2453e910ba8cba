"""Uploads for the input of jobs: streamed, whole or not at all, and readable by who uploaded them."""

import asyncio
import hashlib
import os
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx2
import pytest
from sqlalchemy import func, select

from gateway.ledger.catalog_tables import artifacts
from tests.http.submissions import ledger_of, refused
from tests.http.test_artifacts import located
from tests.rig.client import Client, Json
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

MIB = 1024 * 1024
MOST = 50 * MIB


async def upload(who: Client, content: bytes | AsyncIterator[bytes], name: str = "", **headers: str) -> httpx2.Response:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return await who.http.post("/v1/artifacts", params={"name": name} if name else {}, content=content, headers=named)


async def kept(who: Client, content: bytes, name: str = "", **headers: str) -> Json:
    answer = await upload(who, content, name, **headers)
    assert answer.status_code == 201, answer.text
    assert answer.headers["Location"] == answer.json()["url"]
    return answer.json()


async def downloaded(stack: Stack, who: Client, artifact: Json) -> httpx2.Response:
    answer = await located(who, artifact["url"])
    assert answer.status_code == 302, answer.text
    # What a caller uploaded may hold anything, so it is not judged for leaks.
    async with httpx2.AsyncClient(base_url=stack.apis[0].url, timeout=60) as plain:
        return await plain.get(answer.headers["Location"])


async def left(stack: Stack) -> tuple[int, Sequence[str]]:
    """Registered artifacts, and the files of uploads, finished or not."""
    async with ledger_of(stack) as ledger:
        count = await ledger.read(lambda conn: conn.execute(select(func.count()).select_from(artifacts)).scalar_one())
    blobs = stack.data / "blobs"
    files = sorted(str(path.relative_to(blobs)) for path in blobs.glob("*/upload-*/*"))
    return count, files + sorted(path.name for path in stack.data.iterdir() if path.name.startswith("tmp"))


async def test_an_upload_comes_back_to_the_byte(stack: Stack, app: Client) -> None:
    content = os.urandom(3 * MIB + 17)
    artifact = await kept(app, content, "scan.pdf", Content_Type="application/pdf; version=1")
    assert artifact["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert (artifact["bytes"], artifact["name"]) == (len(content), "scan.pdf")
    assert artifact["media_type"] == "application/pdf"
    got = await downloaded(stack, app, artifact)
    assert got.content == content
    assert got.headers["Content-Type"] == "application/octet-stream"


async def test_an_empty_upload_and_one_without_a_name_are_kept(stack: Stack, app: Client) -> None:
    artifact = await kept(app, b"")
    assert (artifact["bytes"], artifact["name"], artifact["media_type"]) == (0, "upload", "application/octet-stream")
    assert (await downloaded(stack, app, artifact)).content == b""


async def test_the_same_bytes_twice_are_two_uploads(app: Client) -> None:
    first, second = await kept(app, b"same"), await kept(app, b"same")
    assert first["digest"] == second["digest"]
    assert first["artifact_id"] != second["artifact_id"]


async def test_50_mib_are_kept_without_being_in_memory(stack: Stack, app: Client) -> None:
    await kept(app, b"\0" * (8 << 20))  # what a process takes once for its first upload: threads and their arenas
    before = _resident(stack)
    artifact = await kept(app, b"\0" * MOST)
    assert artifact["bytes"] == MOST
    got = await downloaded(stack, app, artifact)
    assert len(got.content) == MOST
    assert _resident(stack) - before < MOST // 2


async def test_one_byte_more_than_50_mib_is_refused_and_leaves_nothing(stack: Stack, app: Client) -> None:
    before = await left(stack)
    refused(await upload(app, b"\0" * (MOST + 1)), 413, "payload-too-large")

    async def unannounced() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"\0" * MIB
        yield b"\0"

    refused(await upload(app, unannounced()), 413, "payload-too-large")
    assert await left(stack) == before


async def test_an_upload_that_breaks_off_leaves_nothing(stack: Stack, app: Client) -> None:
    before = await left(stack)
    where = urlsplit(app.url)
    for sent in (b"", b"x" * 100, b"x" * (2 * MIB)):
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        head = f"POST /v1/artifacts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {app.token}\r\n"
        writer.write(f"{head}Content-Length: {3 * MIB}\r\n\r\n".encode() + sent)
        await writer.drain()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.close()
        del reader
    after = await kept(app, b"whole")  # sent later, and so answered after what broke off was dropped

    async def settled() -> bool:
        count, files = await left(stack)
        return count == before[0] + 1 and len(files) == len(before[1]) + 1

    await wait_until(settled, 20, what=f"nothing but {after['artifact_id']} is left")
    assert "a request crashed" not in stack.apis[0].output


async def test_the_check_for_leftovers_sees_an_upload(stack: Stack, app: Client) -> None:
    before = await left(stack)
    await kept(app, b"seen")
    count, files = await left(stack)
    assert (count, len(files)) == (before[0] + 1, len(before[1]) + 1)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", "../../etc/passwd"),
        ("..\\..\\win.ini", "..\\..\\win.ini"),
        ("C:\\x.exe", "C:\\x.exe"),
        ("\u202egnp.exe", "gnp.exe"),
        ("a\r\nSet-Cookie: x=1.txt", "a Set-Cookie: x=1.txt"),
        ('"; filename=evil.exe', '"; filename=evil.exe'),
        ("\0", "upload"),
        ("na\u00efve \u65e5\u672c.txt", "na\u00efve \u65e5\u672c.txt"),
        ("x" * 300, "x" * 199 + "\u2026"),
        (".", "."),
    ],
)
async def test_names_are_text_and_never_a_path_or_a_header(stack: Stack, app: Client, name: str, shown: str) -> None:
    answer = await app.http.post(f"/v1/artifacts?name={quote(name, safe='')}", content=b"x")
    assert answer.status_code == 201, answer.text
    artifact = answer.json()
    assert artifact["name"] == shown
    headers = (await downloaded(stack, app, artifact)).headers
    disposition = headers["Content-Disposition"]
    plain = disposition.removeprefix('attachment; filename="').partition('"')[0]
    assert plain
    assert not set(plain) & set('/\\:"\r\n')
    encoded = disposition.partition("filename*=UTF-8''")[2]
    assert encoded.isascii()
    assert not set(encoded) & set('/\\:"; \r\n')
    assert "Set-Cookie" not in headers


async def test_a_form_is_refused_and_says_what_to_send(app: Client) -> None:
    answer = await upload(app, b"--x--", Content_Type="multipart/form-data; boundary=x")
    assert "body" in refused(answer, 415, "unsupported-media-type")["detail"]


async def test_a_media_type_that_is_none_is_not_kept(app: Client) -> None:
    artifact = await kept(app, b"x", Content_Type="text/html<script>")
    assert artifact["media_type"] == "application/octet-stream"


async def test_an_upload_is_its_uploaders_and_theirs_who_read_every_job(stack: Stack, app: Client) -> None:
    artifact = await kept(app, b"mine")
    assert (await downloaded(stack, stack.client("operator"), artifact)).content == b"mine"
    refused(await located(stack.client("approver"), artifact["url"]), 403, "not-permitted")
    refused(await located(stack.client("app", workspace="elsewhere"), artifact["url"]), 404, "not-found")


async def test_who_may_not_submit_uploads_nothing(stack: Stack) -> None:
    before = await left(stack)
    refused(await upload(stack.client("approver"), b"x"), 403, "not-permitted")
    refused(await upload(stack.client("app", scopes=["jobs:read"]), b"x"), 403, "not-permitted")
    async with Client(stack.apis[0].url, None) as nobody:
        refused(await upload(nobody, b"x"), 401, "unauthenticated")
    assert await left(stack) == before


def _resident(stack: Stack) -> int:
    """Bytes of memory of the API process."""
    text = Path(f"/proc/{stack.apis[0].pid}/statm").read_text(encoding="ascii")
    return int(text.split()[1]) * os.sysconf("SC_PAGESIZE")
