"""The blob store: bytes named by their own digest, apart for each workspace; a folder, or S3 by URL.

A blob is written once and verified whenever it is read, so whoever holds a digest holds the content. Nothing here
knows what the bytes mean or who may see them.
"""

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, ObjectStoreMethods, S3Store

from gateway.seams import Flag, refuse
from workflows.contract.errors import JobgateError, ProblemCode, Refused
from workflows.contract.ids import DIGEST, WORKSPACE, Digest, Workspace

Stamp = tuple[int, int, int]
"""Inode, time of the last writing (nanoseconds) and size (bytes) of a blob's file."""
CACHE_BYTES = 64 * 1024 * 1024
CACHED_BLOB_BYTES = 1024 * 1024
COUNTED_BLOBS = 200_000
"""A listing of S3 has a thousand a page; a count that says "more" is enough."""
_HASH_ASIDE_BYTES = 1024 * 1024
"""Above this, hashing takes longer than an event loop should be held up."""


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
        self._cache = _Verified(cache_bytes)

    @classmethod
    def open(cls, url: str, *, cache_bytes: int = CACHE_BYTES) -> Self:
        """`file:///FOLDER` (made if missing) or `s3://BUCKET/PREFIX` with the AWS_* environment; else ValueError."""
        return cls(_store_at(url), cache_bytes=cache_bytes)

    async def put(self, workspace: Workspace, data: bytes) -> Digest:
        """Keeps `data` and returns its digest; a blob that is there already stays as it is."""
        refuse(Flag.STATE_MUTATED)
        digest = await _digest(data)
        key = _key(workspace, digest)
        try:
            await self._store.put_async(key, data, mode="create")
        except AlreadyExistsError:
            pass
        except (BaseError, OSError, ValueError) as error:
            raise _unavailable() from error
        self._cache.add(key, data)
        return digest

    async def mend(self, workspace: Workspace, data: bytes) -> Digest:
        """As `put`; a blob that is there with other bytes than its own is written anew."""
        digest = await self.put(workspace, data)
        try:
            await self.verify(workspace, digest)
        except BlobCorrupt:
            try:
                await self._store.put_async(_key(workspace, digest), data, mode="overwrite")
            except (BaseError, OSError, ValueError) as error:
                raise _unavailable() from error
        return digest

    async def get(self, workspace: Workspace, digest: Digest) -> bytes:
        """The bytes, verified. Raises `BlobMissing` or `BlobCorrupt`."""
        cached = self._cache.find(_key(workspace, digest))
        return cached if cached is not None else await self.verify(workspace, digest)

    async def verify(self, workspace: Workspace, digest: Digest) -> bytes:
        """As `get`, but read from the store even where the bytes are in memory."""
        key = _key(workspace, digest)
        try:
            data = bytes(await (await self._store.get_async(key)).bytes_async())
        except FileNotFoundError:
            raise BlobMissing from None
        except (BaseError, OSError, ValueError) as error:
            raise _unavailable() from error
        if await _digest(data) != digest:
            raise BlobCorrupt
        self._cache.add(key, data)
        return data

    def stamps(self, workspace: Workspace, digests: Sequence[Digest]) -> tuple[Stamp, ...] | None:
        """Of each blob what changes when somebody writes its file; None for a store behind a network, where asking
        costs as much as reading. Every admission asks, so it is a plain `stat` (2 microseconds). Raises `BlobMissing`.
        """
        if not isinstance(self._store, LocalStore) or self._store.prefix is None:
            return None
        try:
            files = [os.stat(os.path.join(self._store.prefix, _key(workspace, digest))) for digest in digests]
        except FileNotFoundError:
            raise BlobMissing from None
        except OSError as error:
            raise _unavailable() from error
        return tuple((file.st_ino, file.st_mtime_ns, file.st_size) for file in files)

    async def stock(self, workspace: Workspace) -> "Stock":
        """How much there is; nothing is read of it."""
        count = size = 0
        try:
            listing = self._store.list_async(f"{workspace}/", chunk_size=1000)  # pyright: ignore[reportUnknownMemberType]  # arrow's
            async for chunk in listing:
                count += len(chunk)
                size += sum(blob["size"] for blob in chunk)
                if count >= COUNTED_BLOBS:
                    return Stock(count, size, whole=False)
        except FileNotFoundError:  # no folder yet
            pass
        except (BaseError, OSError, ValueError) as error:
            raise _unavailable() from error
        return Stock(count, size, whole=True)

    async def exists(self, workspace: Workspace, digest: Digest) -> bool:
        """Asks the store itself; says nothing about the bytes."""
        try:
            await self._store.head_async(_key(workspace, digest))
        except FileNotFoundError:
            return False
        except (BaseError, OSError, ValueError) as error:
            raise _unavailable() from error
        return True


class _Verified:
    """The blobs used last whose bytes were verified, bounded in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._blobs: OrderedDict[str, bytes] = OrderedDict()

    def find(self, key: str) -> bytes | None:
        data = self._blobs.get(key)
        if data is not None:
            self._blobs.move_to_end(key)
        return data

    def add(self, key: str, data: bytes) -> None:
        if len(data) >= CACHED_BLOB_BYTES or len(data) > self._limit or key in self._blobs:
            return
        self._blobs[key] = data
        self._held += len(data)
        while self._held > self._limit:
            self._held -= len(self._blobs.popitem(last=False)[1])


def _store_at(url: str) -> ObjectStoreMethods:
    if url.startswith("file:///"):
        return LocalStore.from_url(url, mkdir=True)
    if url.startswith("s3://"):
        return S3Store.from_url(
            url,
            client_options={"timeout": "15s", "connect_timeout": "3s"},
            retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=10)},
        )
    raise ValueError("the blob store's URL must begin with file:/// or s3://")


def _key(workspace: Workspace, digest: Digest) -> str:
    """`{workspace}/{64 hex digits}`: neither part can name another folder."""
    if not WORKSPACE.fullmatch(workspace) or not DIGEST.fullmatch(digest):
        raise BlobMissing
    return f"{workspace}/{digest.removeprefix('sha256:')}"


async def _digest(data: bytes) -> Digest:
    if len(data) > _HASH_ASIDE_BYTES:
        hexadecimal = (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()
    else:
        hexadecimal = hashlib.sha256(data).hexdigest()
    return Digest(f"sha256:{hexadecimal}")


def _unavailable() -> Refused:
    return Refused(ProblemCode.BLOBS_UNAVAILABLE, "The blob store does not answer now.", retry_after_s=1)
