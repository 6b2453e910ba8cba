"""The blob store: bytes named by their own digest, apart for each workspace; a folder, or S3 by URL.

A blob is written once and verified whenever it is read, so whoever holds a digest holds the content. What belongs to
one job (or is one upload) lies in a folder of its own, so that erasing it is erasing a folder and takes nothing from
anybody else (ADR 11). Nothing here knows what the bytes mean or who may see them.
"""

import asyncio
import contextlib
import hashlib
import os
import re
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import IO, Self

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, ObjectStoreMethods, S3Store

from gateway.blob_cache import Verified
from gateway.blob_folder import BlobFolder, blobs_unavailable
from gateway.seams import Flag, refuse
from workflows.contract.errors import JobgateError
from workflows.contract.ids import DIGEST, WORKSPACE, BlobRef, Digest, JobId, Workspace

Stamp = tuple[int, int, int]
"""Inode, time of the last writing (nanoseconds) and size (bytes) of a blob's file."""
CACHE_BYTES = 64 * 1024 * 1024
COUNTED_BLOBS = 200_000
"""A listing of S3 has a thousand a page; a count that says "more" is enough."""
_HASH_ASIDE_BYTES = 1024 * 1024
"""Above this, hashing takes longer than an event loop should be held up."""
PARTS_AT_ONCE = 2
"""Parts of 5 MiB that one upload may hold in memory while they are written; obstore's own choice is twelve."""
CHUNK_BYTES, SENT_BYTES = 1024 * 1024, 64 * 1024
"""Pieces that are hashed, and pieces that are sent: a reader of 15 kB a second takes one within the send timeout."""
_PROBE_WORKSPACE = Workspace("readyz")
_PROBE_BLOB = Digest("sha256:" + "0" * 64)
_FOLDER = re.compile(r"(job|upload)-[0-9a-f]{24}")


@dataclass(frozen=True, slots=True)
class Stock:
    """How many blobs a workspace has, and how many bytes they are; not `whole`: there are more."""

    count: int
    size: int
    whole: bool


class BlobMissing(JobgateError):
    """The store has no such blob in this workspace."""

    def __init__(self) -> None:
        super().__init__("blob-missing", "A stored blob is missing.")


class BlobCorrupt(JobgateError):
    """The store's bytes are not the ones that were put there; they are not returned."""

    def __init__(self) -> None:
        super().__init__("blob-corrupt", "A stored blob does not match its digest.")


class Blobs:
    """`put` and `get`; trouble of the store is `Refused(BLOBS_UNAVAILABLE)`. Used from one event loop."""

    def __init__(self, store: ObjectStoreMethods, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._store = store
        self._folder = BlobFolder(store.prefix if isinstance(store, LocalStore) else None)
        self._cache = Verified(cache_bytes)

    @classmethod
    def open(cls, url: str, *, cache_bytes: int = CACHE_BYTES) -> Self:
        """`file:///FOLDER` (made if missing) or `s3://BUCKET/PREFIX` with the AWS_* environment; else ValueError."""
        return cls(_store_at(url), cache_bytes=cache_bytes)

    async def put(self, workspace: Workspace, data: bytes) -> Digest:
        """Keeps `data` and returns its digest; a blob that is there already stays as it is."""
        digest = await _digest(data)
        await self._create(workspace, _key(workspace, digest), data)
        return digest

    async def keep(self, workspace: Workspace, job_id: JobId, data: bytes) -> BlobRef:
        """As `put`, for what belongs to a job and goes with its content."""
        ref = BlobRef(f"{job_folder(job_id)}/{await _digest(data)}")
        await self._create(workspace, _key(workspace, ref), data)
        return ref

    async def _create(self, workspace: Workspace, key: str, data: bytes) -> None:
        refuse(Flag.STATE_MUTATED)
        self._folder.need(workspace)
        try:
            await self._store.put_async(key, data, mode="create")
        except AlreadyExistsError:
            pass
        except (BaseError, OSError, ValueError) as error:
            raise blobs_unavailable() from error
        self._cache.add(key, data)

    async def store(
        self, workspace: Workspace, ref: BlobRef, data: IO[bytes] | bytes, headers: Mapping[str, str]
    ) -> None:
        """Writes bytes that are meant to be downloaded, whose digest the caller took; `headers` are what S3 answers
        a signed URL with (a folder keeps none). Written whole or not at all; a file is read piece by piece."""
        refuse(Flag.STATE_MUTATED)
        self._folder.need(workspace)
        attributes = None if isinstance(self._store, LocalStore) else dict(headers)
        try:
            await self._store.put_async(
                _key(workspace, ref), data, attributes=attributes, mode="overwrite", max_concurrency=PARTS_AT_ONCE
            )
        except (BaseError, OSError, ValueError) as error:
            raise blobs_unavailable() from error

    async def label(self, workspace: Workspace, ref: BlobRef, headers: Mapping[str, str]) -> None:
        """Makes what is there one that is meant to be downloaded. Raises `BlobMissing` or `BlobCorrupt`."""
        if not isinstance(self._store, LocalStore):
            await self.store(workspace, ref, await self.verify(workspace, ref), headers)

    async def mend(self, workspace: Workspace, data: bytes) -> Digest:
        """As `put`; a blob that is there with other bytes than its own is written anew."""
        digest = await self.put(workspace, data)
        try:
            await self.verify(workspace, digest)
        except BlobCorrupt:
            try:
                await self._store.put_async(_key(workspace, digest), data, mode="overwrite")
            except (BaseError, OSError, ValueError) as error:
                raise blobs_unavailable() from error
        return digest

    async def get(self, workspace: Workspace, ref: Digest | BlobRef) -> bytes:
        """The bytes, verified. Raises `BlobMissing` or `BlobCorrupt`."""
        cached = self._cache.find(_key(workspace, ref))
        return cached if cached is not None else await self.verify(workspace, ref)

    async def verify(self, workspace: Workspace, ref: Digest | BlobRef) -> bytes:
        """As `get`, but read from the store even where the bytes are in memory."""
        key = _key(workspace, ref)
        self._folder.need(workspace)
        with self._reading(workspace):
            data = bytes(await (await self._store.get_async(key)).bytes_async())
        if await _digest(data) != digest_in(ref):
            raise BlobCorrupt
        self._cache.add(key, data)
        return data

    async def stream(self, workspace: Workspace, ref: BlobRef, piece_bytes: int = SENT_BYTES) -> AsyncGenerator[bytes]:
        """The bytes piece by piece, as they are: `check` them before. Raises `BlobMissing` with the first piece."""
        with self._reading(workspace):
            found = await self._store.get_async(_key(workspace, ref))
            async for piece in found.stream(min_chunk_size=piece_bytes):
                yield bytes(piece)

    async def check(self, workspace: Workspace, ref: BlobRef) -> int:
        """Reads the bytes piece by piece and returns how many they are. Raises `BlobMissing` or `BlobCorrupt`."""
        seen, size = hashlib.sha256(), 0
        async for piece in self.stream(workspace, ref, CHUNK_BYTES):
            await asyncio.to_thread(seen.update, piece)
            size += len(piece)
        if f"sha256:{seen.hexdigest()}" != digest_in(ref):
            raise BlobCorrupt
        return size

    async def size(self, workspace: Workspace, ref: BlobRef) -> int:
        """In bytes, as the store says. Raises `BlobMissing`."""
        with self._reading(workspace):
            return (await self._store.head_async(_key(workspace, ref)))["size"]

    async def signed_url(self, workspace: Workspace, ref: BlobRef, ttl: timedelta) -> str | None:
        """Where the bytes can be had without any other proof for so long; None for a folder, which serves nothing."""
        if not isinstance(self._store, S3Store):
            return None
        try:
            return await obstore.sign_async(self._store, "GET", _key(workspace, ref), ttl)
        except (BaseError, OSError, ValueError) as error:
            raise blobs_unavailable() from error

    async def erase(self, workspace: Workspace, folder: str) -> None:
        """Deletes all that a folder (`job_folder`, `upload_folder`) holds; what is gone already is fine."""
        refuse(Flag.STATE_MUTATED)
        if not WORKSPACE.fullmatch(workspace) or not _FOLDER.fullmatch(folder):
            raise ValueError("no folder of a job or an upload")
        prefix = f"{workspace}/{folder}/"
        self._cache.forget(prefix)
        self._folder.need(workspace)
        with contextlib.suppress(BlobMissing), self._reading(workspace):  # there may be no folder
            listing = self._store.list_async(prefix, chunk_size=1000)  # pyright: ignore[reportUnknownMemberType]  # arrow's
            async for chunk in listing:
                paths = [blob["path"] for blob in chunk]
                try:
                    await self._store.delete_async(paths)
                except FileNotFoundError:  # somebody else erases, too: one by one
                    for path in paths:
                        with contextlib.suppress(FileNotFoundError):
                            await self._store.delete_async(path)

    def stamps(self, workspace: Workspace, refs: Sequence[Digest | BlobRef]) -> tuple[Stamp, ...] | None:
        """Of each blob what changes when somebody writes its file; None for a store behind a network, where asking
        costs as much as reading. Every admission asks, so it is a plain `stat` (2 microseconds). Raises `BlobMissing`.
        """
        if not isinstance(self._store, LocalStore) or self._store.prefix is None:
            return None
        with self._reading(workspace):
            files = [os.stat(os.path.join(self._store.prefix, _key(workspace, ref))) for ref in refs]
        return tuple((file.st_ino, file.st_mtime_ns, file.st_size) for file in files)

    async def stock(self, workspace: Workspace) -> Stock:
        """How much there is; nothing is read of it."""
        count = size = 0
        with contextlib.suppress(BlobMissing), self._reading(workspace):  # there may be no folder yet
            listing = self._store.list_async(f"{workspace}/", chunk_size=1000)  # pyright: ignore[reportUnknownMemberType]  # arrow's
            async for chunk in listing:
                count += len(chunk)
                size += sum(blob["size"] for blob in chunk)
                if count >= COUNTED_BLOBS:
                    return Stock(count, size, whole=False)
        return Stock(count, size, whole=True)

    async def exists(self, workspace: Workspace, digest: Digest) -> bool:
        """Asks the store itself; says nothing about the bytes."""
        try:
            with self._reading(workspace):
                await self._store.head_async(_key(workspace, digest))
        except BlobMissing:
            return False
        return True

    async def reachable(self) -> None:
        """Raises Refused(BLOBS_UNAVAILABLE) unless the store is there. Asks for a blob that nobody has."""
        await asyncio.to_thread(self._folder.need_all)
        await self.exists(_PROBE_WORKSPACE, _PROBE_BLOB)

    @contextlib.contextmanager
    def _reading(self, workspace: Workspace) -> Generator[None]:
        """Raises `BlobMissing` where the store is there and the blob is not."""
        try:
            yield
        except FileNotFoundError:
            self._folder.need(workspace)
            raise BlobMissing from None
        except (BaseError, OSError, ValueError) as error:
            raise blobs_unavailable() from error


def _store_at(url: str) -> ObjectStoreMethods:
    if url.startswith("file:///"):
        return LocalStore.from_url(url, mkdir=True)
    if url.startswith("s3://"):
        return S3Store.from_url(
            url,
            client_options={"timeout": "15s", "connect_timeout": "3s", "allow_http": _plain_http()},
            retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=10)},
        )
    raise ValueError("the blob store's URL must begin with file:/// or s3://")


def _plain_http() -> bool:
    """Options that are given hide this one of the environment; a store on a private network may have no TLS."""
    return os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")


def job_folder(job_id: JobId) -> str:
    """Where a job's content lies: job ids may hold what file systems do not tell apart."""
    return f"job-{hashlib.sha256(job_id.encode()).hexdigest()[:24]}"


def upload_folder(artifact_id: str) -> str:
    return f"upload-{hashlib.sha256(artifact_id.encode()).hexdigest()[:24]}"


def belongs_to_another(ref: BlobRef, job_id: JobId) -> bool:
    """Whether these bytes are another job's, and may be erased while this one goes on."""
    return ref.rpartition("/")[0] != job_folder(job_id)


def digest_in(ref: Digest | BlobRef) -> Digest:
    return Digest(ref.rpartition("/")[2])


def _key(workspace: Workspace, ref: Digest | BlobRef) -> str:
    """`{workspace}/{64 hex digits}` or `{workspace}/{folder}/{64 hex digits}`: no part can name another folder."""
    folder, slash, digest = ref.rpartition("/")
    named = bool(_FOLDER.fullmatch(folder)) if slash else True
    if not WORKSPACE.fullmatch(workspace) or not named or not DIGEST.fullmatch(digest):
        raise BlobMissing
    return f"{workspace}/{folder}{slash}{digest.removeprefix('sha256:')}"


async def _digest(data: bytes) -> Digest:
    if len(data) > _HASH_ASIDE_BYTES:
        hexadecimal = (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()
    else:
        hexadecimal = hashlib.sha256(data).hexdigest()
    return Digest(f"sha256:{hexadecimal}")
