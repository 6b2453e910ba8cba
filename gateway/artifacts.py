"""Published bytes: results that are too large for a status, and uploads. Stored, registered, read back, given out.

Who may have an artifact is asked anew each time an address for it is asked for: of a job's, whoever may read the job;
of an upload, who uploaded it, and whoever may read every job of the workspace. Names are text for people and never part
of a path.
"""

import asyncio
import contextlib
import hashlib
import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TypeVar
from urllib.parse import quote
from uuid import uuid4

from sqlalchemy import Connection

from facade.project import content_erased
from gateway.authority import EVERY, Allowed, granted
from gateway.blobs import BlobMissing, Blobs, Stamp, digest_in, upload_folder
from gateway.ledger.artifacts import ArtifactRow, NewArtifact, find_artifact, register
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import grants_of
from gateway.ledger.receipts import ReceiptRow, find_receipt
from gateway.scopes import Action, Caller
from gateway.signed_paths import SignedPaths
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import BlobRef
from workflows.contract.text import clean_text

T = TypeVar("T")

ARTIFACT_BYTES = 50 * 1024 * 1024
URL_S = 60
REMEMBERED = 1_000
LEDGER_S = 4.0
"""The long clock of an upload is for its bytes: the ledger is waited for no longer than by any other request."""
PIECE_S = 10.0
"""How long an upload may send nothing."""
WRITE_BYTES = 1024 * 1024
NAME_CHARS = 200
UNNAMED = "upload"
ANY_BYTES = "application/octet-stream"
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,60}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,60}")
_ARTIFACT_ID = re.compile(r"art_[0-9a-f]{32}")
NO_STORE = "private, no-store"


def download_headers(row: NewArtifact) -> dict[str, str]:
    """Saved and never shown by a browser, whatever it is said to be; under a name without any path (RFC 6266)."""
    name = re.sub(r"[/\\:]", "_", row.name)
    plain = re.sub(r"[^A-Za-z0-9 ._()-]", "_", name).strip(". ") or "artifact"
    return {
        "Content-Type": ANY_BYTES,
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
        "Cache-Control": NO_STORE,
    }


@dataclass(frozen=True, slots=True)
class _Spooled:
    file: IO[bytes]
    bytes: int
    sha256: str


class Artifacts:
    """One per API process. `folder`: where uploads wait until they are whole; nothing in it outlives its request."""

    def __init__(self, ledger: Ledger, blobs: Blobs, paths: SignedPaths, folder: Path) -> None:
        self._ledger = ledger
        self._blobs = blobs
        self._paths = paths
        self._folder = folder
        self._sound: dict[BlobRef, tuple[Stamp, ...]] = {}
        """What the files of artifacts that were found whole looked like then, those asked for last."""

    async def upload(self, caller: Caller, name: str, media_type: str, pieces: AsyncIterator[bytes]) -> ArtifactRow:
        """Keeps and registers what comes, or nothing of it. Raises Refused; its body's limit is the envelope's."""
        await _soon(self._ledger.read(lambda conn: _may_upload(conn, caller)))
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                return await self._keep(caller, name, media_type, await _spool(file, pieces))
        except OSError as error:
            raise Refused(
                ProblemCode.BLOBS_UNAVAILABLE, "There is no room for uploads now.", retry_after_s=5
            ) from error

    async def _keep(self, caller: Caller, name: str, media_type: str, spooled: _Spooled) -> ArtifactRow:
        artifact_id, digest = f"art_{uuid4().hex}", f"sha256:{spooled.sha256}"
        ref = BlobRef(f"{upload_folder(artifact_id)}/{digest}")
        new = NewArtifact(
            artifact_id=artifact_id,
            workspace=caller.workspace,
            job_id=None,
            by=caller.principal,
            name=clean_text(name, NAME_CHARS) or UNNAMED,
            media_type=media_type if _MEDIA_TYPE.fullmatch(media_type) else ANY_BYTES,
            bytes=spooled.bytes,
            digest=digest_in(ref),
            ref=ref,
            at=datetime.now(UTC),
        )
        await self._blobs.store(caller.workspace, ref, spooled.file, download_headers(new))
        if await self._blobs.check(caller.workspace, ref) != spooled.bytes:
            raise Refused(ProblemCode.BLOBS_UNAVAILABLE, "The upload could not be read back.", retry_after_s=1)
        return await self._register(new)

    async def _register(self, new: NewArtifact) -> ArtifactRow:
        """A refusal leaves no bytes behind; of a transaction that may still commit they stay."""
        try:
            return await _soon(self._ledger.write(lambda conn: register(conn, new)))
        except LedgerSilent:
            raise
        except Refused:
            with contextlib.suppress(Refused):
                await self._blobs.erase(new.workspace, upload_folder(new.artifact_id))
            raise

    async def address(self, caller: Caller, artifact_id: str) -> str:
        """Where its bytes can be had for a minute, for this caller now. Raises Refused."""
        row = await self._ledger.read(lambda conn: _admitted(conn, caller, artifact_id))
        signed = await self._blobs.signed_url(row.workspace, row.ref, timedelta(seconds=URL_S))
        return signed or self._paths.sign(row.artifact_id, int(time.time()) + URL_S)

    async def behind(self, artifact_id: str, expires: str, signature: str) -> tuple[ArtifactRow, AsyncIterator[bytes]]:
        """The bytes behind an address that was signed here, checked before the first of them goes out."""
        if not self._paths.proves(artifact_id, expires, signature, time.time()):
            raise Refused(ProblemCode.NOT_PERMITTED, "This address is not good (any more).")
        row = await self._ledger.read(lambda conn: find_artifact(conn, artifact_id))
        if row is None or row.erased_at is not None:
            raise _unknown()
        try:
            await self._check(row)
        except BlobMissing:  # just erased
            raise _unknown() from None
        return row, self._blobs.stream(row.workspace, row.ref)

    async def _check(self, row: ArtifactRow) -> None:
        """Reads it whole, unless its file is as it was when that was last done: every address may be asked many times.
        Raises BlobMissing or BlobCorrupt."""
        stamps = self._blobs.stamps(row.workspace, [row.ref])
        if stamps is None or self._sound.pop(row.ref, None) != stamps:
            await self._blobs.check(row.workspace, row.ref)
        if stamps is not None:
            self._sound[row.ref] = stamps
            if len(self._sound) > REMEMBERED:
                del self._sound[next(iter(self._sound))]


class LedgerSilent(Refused):
    """What was asked of it may still be done."""

    def __init__(self) -> None:
        super().__init__(
            ProblemCode.LEDGER_UNAVAILABLE, "The ledger does not answer now. Upload again.", retry_after_s=1
        )


async def _soon(asked: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(LEDGER_S):
            return await asked
    except TimeoutError:
        raise LedgerSilent from None


async def _spool(file: IO[bytes], pieces: AsyncIterator[bytes]) -> _Spooled:
    """Counts and hashes while it writes; more than a piece or so is never in memory."""
    seen, size, waiting = hashlib.sha256(), 0, bytearray()

    def flush() -> None:
        seen.update(waiting)
        file.write(waiting)

    try:
        while True:
            async with asyncio.timeout(PIECE_S):
                piece = await anext(pieces, None)
            waiting += piece or b""
            size += len(piece or b"")
            if piece is None or len(waiting) >= WRITE_BYTES:
                await asyncio.to_thread(flush)
                waiting.clear()
            if piece is None:
                break
    except TimeoutError:
        raise Refused(ProblemCode.HTTP_DEADLINE_EXCEEDED, "The upload stood still: nothing was kept.") from None
    await asyncio.to_thread(file.seek, 0)
    return _Spooled(file, size, seen.hexdigest())


def _may_upload(conn: Connection, caller: Caller) -> None:
    grants = grants_of(conn, caller.workspace, caller.principal, datetime.now(UTC))
    if not isinstance(granted(grants, Action.JOBS_SUBMIT, None, datetime.now(UTC)), Allowed):
        raise Refused(ProblemCode.NOT_PERMITTED, "This needs a grant of jobs:submit.")


def _admitted(conn: Connection, caller: Caller, artifact_id: str) -> ArtifactRow:
    row = find_artifact(conn, artifact_id) if _ARTIFACT_ID.fullmatch(artifact_id) else None
    if row is None or row.workspace != caller.workspace:
        raise _unknown()
    job = None if row.job_id is None else find_receipt(conn, row.workspace, row.job_id)
    if not _may_read(conn, caller, row, job):
        raise Refused(ProblemCode.NOT_PERMITTED, "This needs the scope and a grant of jobs:read.")
    if job is not None and job.erased_at is not None:
        raise content_erased(job.receipt)
    if row.erased_at is not None:
        raise _unknown()
    return row


def _may_read(conn: Connection, caller: Caller, row: ArtifactRow, job: ReceiptRow | None) -> bool:
    if job is None and row.by == caller.principal and Action.JOBS_SUBMIT in caller.scopes:
        return True
    now = datetime.now(UTC)
    grants = grants_of(conn, caller.workspace, caller.principal, now)
    if job is None:
        grants = [grant for grant in grants if EVERY in grant.plugins]
    allowed = granted(grants, Action.JOBS_READ, None if job is None else job.plugin, now)
    return Action.JOBS_READ in caller.scopes and isinstance(allowed, Allowed)


def _unknown() -> Refused:
    return Refused(ProblemCode.NOT_FOUND, "There is no such artifact.")
