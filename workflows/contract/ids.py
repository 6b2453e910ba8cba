"""The identifiers of the contract: their types, their alphabets, and how one is derived from another.

The job id *is* the caller's idempotency key; a workspace name holds no dot, so the first dot of a workflow id
splits it without doubt. Nothing here is random: an id is asked for, or derived.
"""

import hashlib
import re
from typing import NewType

Workspace = NewType("Workspace", str)
JobId = NewType("JobId", str)
PrincipalId = NewType("PrincipalId", str)
PluginName = NewType("PluginName", str)
ToolName = NewType("ToolName", str)
RequestId = NewType("RequestId", str)
EffectId = NewType("EffectId", str)
Digest = NewType("Digest", str)
"""`sha256:` and 64 hexadecimal digits."""
BlobRef = NewType("BlobRef", str)
"""Names stored bytes by their `Digest`; what belongs to one job names its folder too (`FOLDER/sha256:..`). The
workspace is known from the context that holds the reference. Opaque to workflows."""

WORKSPACE = re.compile(r"[a-z0-9-]{1,40}")
KEY = re.compile(r"(?=.*[A-Za-z0-9])[A-Za-z0-9._~-]{1,200}")
PLUGIN_NAME = re.compile(r"[a-z0-9-]{1,60}")
PLUGIN_VERSION = re.compile(r"[A-Za-z0-9._+-]{1,60}")
TOOL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
PRINCIPAL = re.compile(r"[A-Za-z0-9._:@/+-]{1,120}")
SESSION = re.compile(r"[A-Za-z0-9._-]{1,64}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def sha256_of(data: bytes) -> Digest:
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


def workflow_id(workspace: Workspace, job_id: JobId) -> str:
    return f"{workspace}.{job_id}"


def split_workflow_id(value: str) -> tuple[Workspace, JobId] | None:
    """The workspace and job of a workflow id of ours, or None for any other text."""
    workspace, dot, job_id = value.partition(".")
    if not dot or not WORKSPACE.fullmatch(workspace) or not KEY.fullmatch(job_id):
        return None
    return Workspace(workspace), JobId(job_id)


def request_id(number: int, action_digest: Digest) -> RequestId:
    """`r{n}-{first 6 hex digits of the action digest}` (design.md section 6, Decisions)."""
    return RequestId(f"r{number}-{action_digest.removeprefix('sha256:')[:6]}")


def effect_id(workspace: Workspace, job_id: JobId, step: int, call: int, action_digest: Digest) -> EffectId:
    """The same on every attempt and after a reset: no run id enters (design.md section 6, Effects)."""
    text = "\n".join((workspace, job_id, str(step), str(call), action_digest))
    return EffectId("eff_" + hashlib.sha256(text.encode()).hexdigest()[:32])
