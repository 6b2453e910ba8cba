"""The `publish` activity: a result too large for a status becomes an artifact before its job calls itself done.

Whose result it is, the engine says and never the input: only bytes of the job's own folder are published. The same
bytes under the same name are one artifact, on whatever attempt, and it is read back before anybody hears of it.
"""

from uuid import uuid4

from temporalio import activity

from gateway.artifacts import ARTIFACT_BYTES, NAME_CHARS, download_headers
from gateway.blobs import Blobs, belongs_to_another, digest_in
from gateway.calls.attempts import current_attempt, name_job
from gateway.calls.standing import NO_RECEIPT
from gateway.ledger.artifacts import NewArtifact, find_artifact, register
from gateway.ledger.engine import Ledger
from gateway.ledger.receipts import find_receipt
from workflows.contract.errors import StepCode, StepError
from workflows.contract.job import ArtifactRef
from workflows.contract.steps import Activity, PublishInput, PublishOutput
from workflows.contract.text import clean_text

RESULT_TYPE = "application/json"


class Delivery:
    def __init__(self, ledger: Ledger, blobs: Blobs) -> None:
        self._ledger = ledger
        self._blobs = blobs

    @activity.defn(name=Activity.PUBLISH)
    async def publish(self, asked: PublishInput) -> PublishOutput:
        """Raises StepError: result_too_large over 50 MiB, rejected for what is not the job's."""
        attempt, ref = current_attempt(), asked.ref
        receipt = await self._ledger.read(lambda conn: find_receipt(conn, attempt.workspace, attempt.job_id))
        if receipt is None or receipt.erased_at is not None:
            raise NO_RECEIPT.error()
        name_job(receipt)
        if belongs_to_another(ref, attempt.job_id):
            raise StepError(StepCode.REJECTED, "The result is not this job's; nothing was published.")
        size = await self._blobs.size(attempt.workspace, ref)
        if size > ARTIFACT_BYTES:
            raise StepError(StepCode.RESULT_TOO_LARGE, f"The result has more than {ARTIFACT_BYTES // 1024**2} MiB.")
        await self._blobs.check(attempt.workspace, ref)
        new = NewArtifact(
            artifact_id=f"art_{uuid4().hex}",
            workspace=attempt.workspace,
            job_id=attempt.job_id,
            by=receipt.principal,
            name=clean_text(asked.name, NAME_CHARS) or "result",
            media_type=RESULT_TYPE,
            bytes=size,
            digest=digest_in(ref),
            ref=ref,
            at=attempt.clock.now(),
        )
        await self._blobs.label(attempt.workspace, ref, download_headers(new))
        artifact_id = (await self._ledger.write(lambda conn: register(conn, new))).artifact_id
        kept = await self._ledger.read(lambda conn: find_artifact(conn, artifact_id))
        if kept is None or await self._blobs.check(attempt.workspace, kept.ref) != kept.bytes:
            raise StepError(StepCode.BLOBS_UNAVAILABLE, "The published result could not be read back.")
        artifact = ArtifactRef(
            artifact_id=artifact_id,
            name=kept.name,
            bytes=kept.bytes,
            media_type=kept.media_type,
            digest=kept.digest,
        )
        return PublishOutput(artifact=artifact)
