"""Whether a folder of blobs is there at all: what is missing from a folder that vanished is not a missing blob.

A mount that went away leaves nothing, or an empty folder in its place. Read as missing, everything would look damaged
and jobs would end for it; written to, it would take what nobody finds again once the mount is back.
"""

import os
from pathlib import Path

from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import Workspace


class BlobFolder:
    """`root` None: the store is no folder, and says by itself when it is gone."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._seen: set[Workspace] = set()

    def need(self, workspace: Workspace) -> None:
        """Raises Refused(BLOBS_UNAVAILABLE) where the folder, or what this process saw in it, is gone. A plain `stat`
        (2 microseconds)."""
        if self._root is None:
            return
        if (self._root / workspace).is_dir():
            self._seen.add(workspace)
        elif workspace in self._seen or not self._root.is_dir():
            raise blobs_unavailable()

    def need_all(self) -> None:
        """The same for all that was seen."""
        if self._root is not None and not os.access(self._root, os.R_OK | os.W_OK | os.X_OK):
            raise blobs_unavailable()
        for workspace in tuple(self._seen):
            self.need(workspace)


def blobs_unavailable() -> Refused:
    return Refused(ProblemCode.BLOBS_UNAVAILABLE, "The blob store does not answer now.", retry_after_s=1)
