"""An action: the exact tool, plugin version and arguments that are shown to people, permitted and run.

One function makes its digest, so that what was approved and what is sent can be compared by it. The arguments' bytes
are their RFC 8785 form, kept as a blob of the job.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from gateway.blobs import BlobCorrupt, BlobMissing, Blobs
from gateway.strictjson import canonical, digest_of
from workflows.contract.errors import StepCode, StepError
from workflows.contract.ids import BlobRef, Digest, JobId, ToolName, Workspace


def action_digest(tool: ToolName, version: Digest, args: JsonValue) -> Digest:
    """SHA-256 of RFC 8785 `{tool, version, args}`; `version` is the plugin's digest. Raises ValueError for arguments
    without a canonical form."""
    return digest_of({"tool": tool, "version": version, "args": args})


async def keep_args(blobs: Blobs, workspace: Workspace, job_id: JobId, args: JsonValue) -> BlobRef:
    """Stores the arguments with the job. Raises ValueError for arguments without a canonical form."""
    return await blobs.keep(workspace, job_id, canonical(args))


async def load_args(blobs: Blobs, workspace: Workspace, ref: BlobRef) -> Mapping[str, JsonValue]:
    """The arguments behind `ref`. Raises StepError `rejected` where they are not there any more or no object."""
    try:
        args: Any = json.loads(await blobs.get(workspace, ref))
    except (BlobMissing, BlobCorrupt, ValueError):
        args = None
    if not isinstance(args, dict):
        raise StepError(StepCode.REJECTED, "The call's arguments can not be read.")
    return args  # pyright: ignore[reportUnknownVariableType]  # json.loads is untyped
