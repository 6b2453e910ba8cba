"""Addresses of this API that give out one artifact's bytes for a minute, without any other proof.

For blob stores that serve nothing themselves (a folder). The key lies in the data folder, so an address made by one
API process is good at every other one of that folder, and at no other. Whether somebody may have an address is judged
where it is asked for.
"""

import base64
import contextlib
import hashlib
import hmac
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from uuid import uuid4

KEY = "artifacts.key"
KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class SignedPaths:
    _key: bytes = field(repr=False)

    @classmethod
    def load(cls, data: Path) -> Self:
        """With the folder's key; made once, readable by its owner only, also when two processes come together."""
        path = data / "keys" / KEY
        if not path.exists():
            _create(path)
        return cls(path.read_bytes())

    def sign(self, artifact_id: str, expires: int) -> str:
        """The path with its query; `expires` in seconds since the epoch."""
        return (
            f"/v1/artifacts/{artifact_id}/content?expires={expires}&signature={self._signature(artifact_id, expires)}"
        )

    def proves(self, artifact_id: str, expires: str, signature: str, now: float) -> bool:
        """Whether this very path was signed here, and its time is not over."""
        if not (expires.isascii() and expires.isdigit() and len(expires) <= 12) or not signature.isascii():
            return False
        ours = self._signature(artifact_id, int(expires))
        return hmac.compare_digest(ours, signature) and now < int(expires)

    def _signature(self, artifact_id: str, expires: int) -> str:
        text = f"GET artifact\n{artifact_id}\n{expires}".encode()
        return base64.urlsafe_b64encode(hmac.digest(self._key, text, hashlib.sha256)).decode().rstrip("=")


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        # Linking, unlike renaming, never replaces: the first process's key is everybody's.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
