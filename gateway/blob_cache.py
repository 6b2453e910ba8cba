"""Blobs that a process read lately, by their keys: bytes whose digest was verified, bounded in bytes.

What lies in a folder of a job may be erased by any other process, so it is forgotten after a minute; who may still see
it, readers ask the ledger.
"""

import math
import time
from collections import OrderedDict

CACHED_BLOB_BYTES = 1024 * 1024
CONTENT_CACHED_S = 60.0


class Verified:
    """The blobs used last."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._blobs: OrderedDict[str, bytes] = OrderedDict()
        self._until: dict[str, float] = {}

    def find(self, key: str) -> bytes | None:
        data = self._blobs.get(key)
        if data is None:
            return None
        if self._until.get(key, math.inf) < time.monotonic():
            self._drop(key)
            return None
        self._blobs.move_to_end(key)
        return data

    def forget(self, prefix: str) -> None:
        for key in [key for key in self._blobs if key.startswith(prefix)]:
            self._drop(key)

    def add(self, key: str, data: bytes) -> None:
        if len(data) >= CACHED_BLOB_BYTES or len(data) > self._limit or key in self._blobs:
            return
        self._blobs[key] = data
        self._held += len(data)
        if key.count("/") > 1:
            self._until[key] = time.monotonic() + CONTENT_CACHED_S
        while self._held > self._limit:
            self._drop(next(iter(self._blobs)))

    def _drop(self, key: str) -> None:
        self._held -= len(self._blobs.pop(key))
        self._until.pop(key, None)
