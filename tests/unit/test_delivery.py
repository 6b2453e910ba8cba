"""Publishing a result: of its own job alone, at most 50 MiB, once whatever the attempt, and read back."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select
from temporalio.testing import ActivityEnvironment

from activities.delivery import Delivery
from gateway.artifacts import ARTIFACT_BYTES
from gateway.blobs import BlobCorrupt, BlobMissing, Blobs, job_folder
from gateway.ledger.artifacts import find_artifact
from gateway.ledger.catalog_tables import artifacts
from gateway.ledger.engine import Ledger
from gateway.ledger.erasures import erase_job
from gateway.ledger.migrate import migrate
from gateway.ledger.receipts import find_receipt, reserve
from tests.unit.ledger_rows import AT, DEMO, JOB, receipt
from workflows.contract.errors import StepCode, StepError
from workflows.contract.events import Event, EventType
from workflows.contract.ids import BlobRef, JobId, sha256_of
from workflows.contract.job import ArtifactRef, Progress, Usage
from workflows.contract.steps import WORKFLOW_TYPE, PublishInput

OTHER = JobId("k-2")
PROGRESS = Progress(event=Event(seq=1, at=AT, type=EventType.JOB_QUEUED, message="", data={}), usage=Usage())


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate(url)
    opened = Ledger.open(url)
    for job in (JOB, OTHER):
        await opened.write(lambda conn, job=job: reserve(conn, receipt(job)))
    yield opened
    await opened.close()


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs.open((tmp_path / "blobs").as_uri())


async def publish(ledger: Ledger, blobs: Blobs, ref: BlobRef, *, job: str = JOB, attempt: int = 1) -> ArtifactRef:
    environment = ActivityEnvironment()
    environment.info = replace(
        environment.info,
        workflow_id=f"{DEMO}.{job}",
        workflow_type=WORKFLOW_TYPE,
        workflow_run_id="run-1",
        attempt=attempt,
    )
    asked = PublishInput(ref=ref, name="result.json", bytes=1, attempt=attempt, progress=PROGRESS)
    return (await environment.run(Delivery(ledger, blobs).publish, asked)).artifact


async def registered(ledger: Ledger) -> int:
    return await ledger.read(lambda conn: conn.execute(select(func.count()).select_from(artifacts)).scalar_one())


async def test_every_attempt_publishes_the_same_artifact(ledger: Ledger, blobs: Blobs) -> None:
    ref = await blobs.keep(DEMO, JOB, b'{"n":1}')
    first = await publish(ledger, blobs, ref)
    assert (first.name, first.bytes, first.digest) == ("result.json", 7, sha256_of(b'{"n":1}'))
    assert await publish(ledger, blobs, ref, attempt=2) == first
    assert await registered(ledger) == 1
    row = await ledger.read(lambda conn: find_artifact(conn, first.artifact_id))
    assert row is not None
    assert (row.workspace, row.job_id, row.ref) == (DEMO, JOB, ref)


async def test_equal_bytes_of_two_jobs_are_two_artifacts(ledger: Ledger, blobs: Blobs) -> None:
    one = await publish(ledger, blobs, await blobs.keep(DEMO, JOB, b"1"))
    two = await publish(ledger, blobs, await blobs.keep(DEMO, OTHER, b"1"), job=OTHER)
    assert one.artifact_id != two.artifact_id


async def test_over_50_mib_nothing_is_published(ledger: Ledger, blobs: Blobs) -> None:
    just = await blobs.keep(DEMO, JOB, b"\0" * ARTIFACT_BYTES)
    over = await blobs.keep(DEMO, JOB, b"\0" * (ARTIFACT_BYTES + 1))
    with pytest.raises(StepError) as refusal:
        await publish(ledger, blobs, over)
    assert refusal.value.step_code is StepCode.RESULT_TOO_LARGE
    assert await registered(ledger) == 0
    assert (await publish(ledger, blobs, just)).bytes == ARTIFACT_BYTES


async def test_bytes_of_another_job_or_of_the_workspace_are_not_published(ledger: Ledger, blobs: Blobs) -> None:
    for ref in (await blobs.keep(DEMO, OTHER, b"theirs"), BlobRef(await blobs.put(DEMO, b"a bundle's"))):
        with pytest.raises(StepError) as refusal:
            await publish(ledger, blobs, ref)
        assert refusal.value.step_code is StepCode.REJECTED
    assert await registered(ledger) == 0


async def test_a_job_without_a_receipt_or_content_publishes_nothing(ledger: Ledger, blobs: Blobs) -> None:
    unknown = JobId("k-9")
    row = await ledger.read(lambda conn: find_receipt(conn, DEMO, OTHER))
    assert row is not None
    await ledger.write(lambda conn: erase_job(conn, row, by="op", at=AT + timedelta(hours=2), head=None))
    for job in (unknown, OTHER):
        ref = await blobs.keep(DEMO, job, b"1")
        with pytest.raises(StepError) as refusal:
            await publish(ledger, blobs, ref, job=job)
        assert refusal.value.step_code is StepCode.NO_RECEIPT
    assert await registered(ledger) == 0


async def test_damaged_or_missing_bytes_are_not_published(ledger: Ledger, blobs: Blobs, tmp_path: Path) -> None:
    ref = await blobs.keep(DEMO, JOB, b"sound")
    file = tmp_path / "blobs" / DEMO / ref.replace("sha256:", "")
    file.write_bytes(b"damaged")
    with pytest.raises(BlobCorrupt):
        await publish(ledger, blobs, ref)
    file.unlink()
    with pytest.raises(BlobMissing):
        await publish(ledger, blobs, ref)
    assert await registered(ledger) == 0


async def test_erasing_a_folder_takes_that_jobs_bytes_and_no_others(blobs: Blobs) -> None:
    mine, theirs = await blobs.keep(DEMO, JOB, b"same"), await blobs.keep(DEMO, OTHER, b"same")
    shared = await blobs.put(DEMO, b"same")
    await blobs.erase(DEMO, job_folder(JOB))
    await blobs.erase(DEMO, job_folder(JOB))
    with pytest.raises(BlobMissing):
        await blobs.get(DEMO, mine)
    assert await blobs.get(DEMO, theirs) == await blobs.get(DEMO, shared) == b"same"


@pytest.mark.parametrize("folder", ["", "..", "job-", "job-../..", "job-" + "A" * 24, "job-" + "0" * 25, "/"])
async def test_nothing_but_a_folder_of_ours_is_erased(blobs: Blobs, folder: str) -> None:
    kept = await blobs.put(DEMO, b"kept")
    with pytest.raises(ValueError, match="no folder"):
        await blobs.erase(DEMO, folder)
    assert await blobs.get(DEMO, kept) == b"kept"
    with pytest.raises(BlobMissing):
        await blobs.get(DEMO, BlobRef(f"{folder}/{kept}"))
