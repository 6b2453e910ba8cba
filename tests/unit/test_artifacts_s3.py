"""Blobs on S3: results and uploads are given out by addresses of S3's own, signed for a minute, and erased there."""

import os
from collections.abc import AsyncIterator, Generator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from gateway.artifacts import Artifacts
from gateway.blobs import BlobMissing, Blobs, job_folder
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import NewGrant, insert_grant
from gateway.ledger.migrate import migrate
from gateway.ledger.receipts import reserve
from gateway.scopes import EVERY_SCOPE, Caller
from gateway.signed_paths import SignedPaths
from tests.rig.bucket import Bucket
from tests.unit.ledger_rows import APP, DEMO, JOB, receipt
from tests.unit.test_delivery import publish

CALLER = Caller(principal=APP, workspace=DEMO, scopes=frozenset(EVERY_SCOPE), groups=frozenset(), token_id="t")
GRANT = NewGrant(
    grant_id="g",
    workspace=DEMO,
    principal=APP,
    actions=("*",),
    plugins=("*",),
    limits={},
    expires_at=None,
    by="test",
    at=datetime(2020, 1, 1, tzinfo=UTC),
)


@pytest.fixture(scope="module")
def bucket() -> Generator[Bucket]:
    with Bucket() as own:
        yield own


@pytest.fixture
def blobs(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Blobs:
    for name, value in bucket.settings.items():
        monkeypatch.setenv(name, value)
    return Blobs.open(bucket.settings["JOBGATE_BLOBS_URL"])


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate(url)
    opened = Ledger.open(url)
    await opened.write(lambda conn: reserve(conn, receipt()))
    await opened.write(lambda conn: insert_grant(conn, GRANT))
    yield opened
    await opened.close()


@pytest.fixture
def artifacts(ledger: Ledger, blobs: Blobs, tmp_path: Path) -> Artifacts:
    return Artifacts(ledger, blobs, SignedPaths.load(tmp_path), tmp_path)


async def fetched(address: str) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=60) as plain:
        return await plain.get(address)


async def test_a_result_is_given_out_by_s3_for_a_minute_until_it_is_erased(
    ledger: Ledger, blobs: Blobs, artifacts: Artifacts, bucket: Bucket
) -> None:
    ref = await blobs.keep(DEMO, JOB, b'{"n":1}')
    published = await publish(ledger, blobs, ref)
    assert await publish(ledger, blobs, ref, attempt=2) == published
    address = await artifacts.address(CALLER, published.artifact_id)
    assert address.startswith(bucket.url)
    assert parse_qs(urlsplit(address).query)["X-Amz-Expires"] == ["60"]
    got = await fetched(address)
    assert got.content == b'{"n":1}'
    assert got.headers["Content-Disposition"].startswith('attachment; filename="result.json"')
    assert got.headers["Content-Type"] == "application/octet-stream"
    assert got.headers["Cache-Control"] == "private, no-store"
    shared = await blobs.put(DEMO, b'{"n":1}')
    await blobs.erase(DEMO, job_folder(JOB))
    assert (await fetched(address)).status_code == 404
    with pytest.raises(BlobMissing):
        await blobs.get(DEMO, ref)
    assert await blobs.get(DEMO, shared) == b'{"n":1}'
    assert not [key for key in bucket.objects() if job_folder(JOB) in key]


async def test_an_upload_of_many_parts_comes_back_to_the_byte(artifacts: Artifacts) -> None:
    content = os.urandom(11 * 1024 * 1024 + 1)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 65_536):
            yield content[start : start + 65_536]

    row = await artifacts.upload(CALLER, "../scan.pdf", "application/pdf", pieces())
    assert (row.name, row.media_type, row.bytes) == ("../scan.pdf", "application/pdf", len(content))
    got = await fetched(await artifacts.address(CALLER, row.artifact_id))
    assert got.content == content
    assert got.headers["Content-Disposition"].startswith('attachment; filename="_scan.pdf"')


async def test_an_upload_that_fails_leaves_no_object(artifacts: Artifacts, bucket: Bucket) -> None:
    before = bucket.objects()

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * (6 * 1024 * 1024)
        raise OSError("the line broke")

    with pytest.raises(Exception, match="room"):
        await artifacts.upload(CALLER, "", "", broken())
    assert bucket.objects() == before
