"""What a job is bound to: a plugin bundle and a deployment, as blobs whose keys are their digests.

A bundle is stored as its index (RFC 8785 `{path: digest}`, whose digest is the bundle's) and one blob a file; a
deployment as its canonical JSON; a snapshot as `{plugin, deployment}`. So every byte is verified by the name it is
asked for. Pinned dependencies are bundles too. Parsed snapshots are kept in memory; on every load the store is asked
whether their blobs are still the same (a folder), and all bytes are read and verified again after a second.
"""

import asyncio
import json
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from gateway.blobs import BlobCorrupt, BlobMissing, Blobs, Stamp
from gateway.bundles import Bundle, DigestMismatch, load_bundle, snapshot_digest
from gateway.deployments import Deployment, check_deployment, effective_limits, price_known
from gateway.manifest import Tool
from gateway.strictjson import canonical
from workflows.contract.errors import JobgateError, Refused
from workflows.contract.ids import BlobRef, Digest, ToolName, Workspace, sha256_of
from workflows.contract.job import ApprovalRule, Limits, ToolRow

KEPT = 256
VERIFIED_FOR_S = 1.0
ASK_HUMAN = ToolName("ask_human")


class SnapshotMismatch(JobgateError):
    """A blob of the snapshot is missing, is not what its digest says, or no longer fits together."""

    def __init__(self) -> None:
        super().__init__("snapshot_mismatch", "The stored bundle or deployment does not match its digest.")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`limits` are the plugin's, narrowed by the deployment's; `table` is the dispatch table of its jobs."""

    digest: Digest
    bundle: Bundle
    deployment: Deployment
    dependencies: tuple[Bundle, ...]
    """In the order of plugin.yaml."""
    limits: Limits
    table: dict[ToolName, ToolRow]
    refs: tuple[BlobRef, ...]
    """Every blob it consists of."""

    @property
    def price_known(self) -> bool:
        deployment = self.deployment
        return deployment.script_file is not None or deployment.price is not None or price_known(deployment.model)


@dataclass(frozen=True, slots=True)
class _Kept:
    """When its bytes were verified (monotonic, in seconds), and what its files were like then."""

    snapshot: Snapshot
    stamps: tuple[Stamp, ...] | None
    at: float


_BROKEN = (BlobMissing, BlobCorrupt, DigestMismatch, KeyError, TypeError, ValueError)


class Snapshots:
    """One per process. Raises SnapshotMismatch, or Refused(BLOBS_UNAVAILABLE) where the store does not answer."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._kept: OrderedDict[tuple[Workspace, Digest], _Kept] = OrderedDict()

    async def put_bundle(self, workspace: Workspace, bundle: Bundle) -> None:
        """Store a bundle; idempotent, and what is damaged is mended."""
        for text in bundle.files.values():
            await self._blobs.mend(workspace, text.encode())
        await self._blobs.mend(workspace, index_of(bundle))

    async def put_deployment(self, workspace: Workspace, body: Any) -> Digest:
        return await self._blobs.mend(workspace, canonical(body))

    async def put(self, workspace: Workspace, plugin: Digest, deployment: Digest) -> Digest:
        """Store the pair that a job is to be bound to, and return its digest; idempotent."""
        digest = snapshot_digest(plugin, deployment)
        if (workspace, digest) not in self._kept:
            await self._blobs.put(workspace, canonical({"plugin": plugin, "deployment": deployment}))
        return digest

    async def assemble(self, workspace: Workspace, plugin: Digest, deployment: Digest) -> Snapshot:
        """What `put` and `load` would give, and nothing is stored: for whoever only wants to know."""
        digest = snapshot_digest(plugin, deployment)
        if (workspace, digest) in self._kept or await self._blobs.exists(workspace, digest):
            return await self.load(workspace, digest)
        try:
            return await self._join(workspace, digest, plugin, deployment)
        except _BROKEN:
            raise SnapshotMismatch from None

    async def load(self, workspace: Workspace, digest: Digest) -> Snapshot:
        """The snapshot, verified against its digests."""
        key = (workspace, digest)
        kept, now = self._kept.get(key), time.monotonic()
        try:
            stamps = None if kept is None else self._blobs.stamps(workspace, kept.snapshot.refs)
            if kept is not None and stamps == kept.stamps and now - kept.at < VERIFIED_FOR_S:
                return kept.snapshot
            if kept is not None:
                snapshot = kept.snapshot
                await asyncio.gather(*(self._blobs.verify(workspace, ref) for ref in snapshot.refs))
            else:
                snapshot = await self._read(workspace, digest)
                stamps = self._blobs.stamps(workspace, snapshot.refs)
        except _BROKEN:
            self._kept.pop(key, None)
            raise SnapshotMismatch from None
        self._kept[key] = _Kept(snapshot, stamps, now)
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return snapshot

    async def load_bundle(self, workspace: Workspace, digest: Digest) -> Bundle:
        """One published bundle, verified. Raises SnapshotMismatch."""
        try:
            bundle, _ = await self._read_bundle(workspace, digest)
        except _BROKEN:
            raise SnapshotMismatch from None
        return bundle

    async def _read(self, workspace: Workspace, digest: Digest) -> Snapshot:
        pair = json.loads(await self._blobs.verify(workspace, digest))
        return await self._join(workspace, digest, Digest(pair["plugin"]), Digest(pair["deployment"]))

    async def _join(self, workspace: Workspace, digest: Digest, plugin: Digest, deployed: Digest) -> Snapshot:
        bundle, refs = await self._read_bundle(workspace, plugin)
        body = json.loads(await self._blobs.verify(workspace, deployed))
        try:
            deployment = check_deployment(body, bundle)
        except Refused:
            raise SnapshotMismatch from None
        pins = bundle.manifest.dependencies
        pinned = await asyncio.gather(*(self._read_bundle(workspace, Digest(pin.digest)) for pin in pins))
        if any((pin.plugin, pin.version) != it.manifest.identity for pin, (it, _) in zip(pins, pinned, strict=True)):
            raise SnapshotMismatch
        own = [BlobRef(digest), BlobRef(deployed), *refs]
        return Snapshot(
            digest=digest,
            bundle=bundle,
            deployment=deployment,
            dependencies=tuple(dependency for dependency, _ in pinned),
            limits=effective_limits(bundle.manifest, deployment),
            table=dispatch_table(bundle),
            refs=tuple(dict.fromkeys([*own, *(ref for _, refs in pinned for ref in refs)])),
        )

    async def _read_bundle(self, workspace: Workspace, digest: Digest) -> tuple[Bundle, tuple[BlobRef, ...]]:
        """A bundle, and the blobs that it consists of; read from the store even where the bytes are in memory."""
        index: dict[str, str] = json.loads(await self._blobs.verify(workspace, digest))
        texts = await asyncio.gather(*(self._blobs.verify(workspace, Digest(ref)) for ref in index.values()))
        files = {path: text.decode() for path, text in zip(index, texts, strict=True)}
        bundle = load_bundle(canonical({"digest": digest, "files": files}), digest)
        return bundle, (BlobRef(digest), *(BlobRef(Digest(ref)) for ref in index.values()))


def index_of(bundle: Bundle) -> bytes:
    """The bytes whose digest is the bundle's digest."""
    return canonical({path: sha256_of(text.encode()) for path, text in bundle.files.items()})


def dispatch_table(bundle: Bundle) -> dict[ToolName, ToolRow]:
    """What the loop may know of each tool, and of `ask_human`, which every job has."""
    table = {tool.name: _row(tool) for tool in bundle.manifest.tools}
    table[ASK_HUMAN] = ToolRow(kind="builtin", effect="read", timeout_s=10.0)
    return table


def _row(tool: Tool) -> ToolRow:
    return ToolRow(
        kind="http" if tool.http else "mcp" if tool.mcp else "python",
        effect=tool.effect,
        timeout_s=tool.timeout_seconds,
        approval=ApprovalRule(
            groups=tool.approval.groups,
            quorum=tool.approval.quorum,
            expires_in_seconds=tool.approval.expires_in_seconds,
        ),
        reconcile=tool.reconcile,
        event=tool.event,
        hidden=tool.hidden,
    )
