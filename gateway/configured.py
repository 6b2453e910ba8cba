"""The first rung: whether what is stored and set fits together, for a plugin version and for the runtime.

Everything is read back and held against its digest, as admission would; nothing is stored on the way.
"""

from datetime import datetime

from sqlalchemy import Connection

from gateway.authority import Denied, granted
from gateway.dependencies import dependency_withdrawn
from gateway.doors import Doors
from gateway.histories import unless_silent
from gateway.ledger.catalog import DeploymentRow, PluginVersionRow, ReleaseRow
from gateway.ledger.grants import grants_of
from gateway.rungs import Rung
from gateway.scopes import Action
from gateway.settings import load_stack
from gateway.snapshots import SnapshotMismatch
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import PrincipalId


async def of_version(
    doors: Doors,
    row: PluginVersionRow,
    deployment: DeploymentRow | None,
    release: ReleaseRow | None,
    now: datetime,
) -> Rung:
    try:
        faults = [*_ledger_faults(row, deployment, release), *await _stored_faults(doors, row, deployment, now)]
    except Refused as refusal:
        if refusal.code != ProblemCode.BLOBS_UNAVAILABLE:
            raise
        return Rung("configured", False, "Not known: the blob store does not answer.", None)
    if faults:
        return Rung("configured", False, "; ".join(faults) + ".", now)
    assert deployment is not None
    assert release is not None
    current = "this version" if release.version == row.version else release.version
    said = f"{row.digest[:19]} verifies; deployment revision {deployment.revision}; {current} is released."
    return Rung("configured", True, said, now)


def _ledger_faults(row: PluginVersionRow, deployment: DeploymentRow | None, release: ReleaseRow | None) -> list[str]:
    faults: list[str] = []
    if row.withdrawn_at is not None:
        faults.append("this version was withdrawn")
    if deployment is None:
        faults.append("no deployment: jobgate deploy FILE")
    if release is None:
        faults.append(f"no release: jobgate release set {row.name} {row.version}")
    return faults


async def _stored_faults(
    doors: Doors, row: PluginVersionRow, deployment: DeploymentRow | None, now: datetime
) -> list[str]:
    """Of bundle and deployment, read back and held against their digests."""
    workspace = row.workspace
    try:
        await doors.snapshots.load_bundle(workspace, row.digest)
    except SnapshotMismatch:
        return ["the stored files do not match their digest: publish the version again"]
    if deployment is None:
        return []
    try:
        snapshot = await doors.snapshots.assemble(workspace, row.digest, deployment.digest)
    except SnapshotMismatch:
        return ["the deployment or a pinned dependency does not fit or does not match its digest: deploy it again"]
    manifest, identity = snapshot.bundle.manifest, snapshot.deployment.identity

    def look(conn: Connection) -> list[str]:
        faults: list[str] = []
        if dependency_withdrawn(conn, workspace, manifest):
            faults.append("a pinned dependency was withdrawn")
        if identity != "caller":
            grants = grants_of(conn, workspace, PrincipalId(identity), now)
            if isinstance(granted(grants, Action.JOBS_SUBMIT, row.name, now), Denied):
                faults.append(f"{identity} has no grant to submit jobs of this plugin")
        return faults

    faults = await doors.ledger.read(look)
    if not doors.judge.references_allowed(workspace, snapshot):
        faults.append("a credential reference is not on the allowlist for its host")
    return faults


async def of_runtime(doors: Doors, now: datetime, *, migrated: bool) -> Rung:
    histories, settings = doors.engine.histories, doors.settings
    wanted = load_stack(settings.stack_file).search_attributes
    missing = await unless_silent(histories.unknown_attributes(wanted))
    if missing is None:
        said = f"Not known: the workflow engine does not answer for namespace {histories.namespace}."
        return Rung("configured", False, said, None)
    faults = [f"search attributes missing: {', '.join(missing)}"] if missing else []
    if not migrated:
        faults.append("the ledger has another schema than this build")
    if faults:
        return Rung("configured", False, "; ".join(faults) + ": jobgate setup.", now)
    lanes = ", ".join(sorted(settings.lanes))
    said = f"Namespace {histories.namespace} with its search attributes; ledger schema current; lanes {lanes}."
    return Rung("configured", True, said, now)
