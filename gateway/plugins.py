"""Publishing, deploying and releasing: who may, and what becomes of it in ledger and blobs.

Bytes go to the blob store first and the row that names them last, so a crash in between leaves unnamed bytes and
nothing half done. Every change is recorded with its author in the same transaction.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import JsonValue
from sqlalchemy import Connection

from gateway.bundles import Bundle, parse_bundle
from gateway.dependencies import check_dependencies
from gateway.deployments import check_deployment
from gateway.doors import Doors, need_scope, permit
from gateway.ledger.catalog import (
    DeploymentRow,
    NewPluginVersion,
    PluginVersionRow,
    ReleaseConflict,
    ReleaseRow,
    current_release,
    find_plugin_version,
    insert_deployment,
    insert_plugin_version,
    insert_release,
    list_plugin_versions,
    list_releases,
)
from gateway.ledger.phases import phase_of
from gateway.scopes import Action, Caller
from gateway.snapshots import SnapshotMismatch, dispatch_table
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.gates import Phase
from workflows.contract.ids import PLUGIN_NAME, PluginName
from workflows.contract.job import DISPATCH_TABLE_BYTES

T = TypeVar("T")


async def publish(doors: Doors, caller: Caller, files: dict[str, str]) -> tuple[bool, Bundle]:
    """Whether this call published it, and the bundle. The same version with other content is `version-exists`."""
    need_scope(caller, Action.PLUGINS_PUBLISH)
    bundle = await asyncio.to_thread(parse_bundle, files)
    name, version = bundle.manifest.name, bundle.manifest.version
    _check_table(bundle)

    def look(conn: Connection) -> None:
        permit(caller, conn, Action.PLUGINS_PUBLISH, name)
        known = find_plugin_version(conn, caller.workspace, name, version)
        if known is None or known.digest != bundle.digest:  # what is published stays so, whatever became of its pins
            check_dependencies(conn, caller.workspace, bundle)

    await doors.ledger.read(look)
    await doors.snapshots.put_bundle(caller.workspace, bundle)

    def write(conn: Connection) -> tuple[bool, PluginVersionRow]:
        look(conn)
        new = NewPluginVersion(
            workspace=caller.workspace,
            name=name,
            version=version,
            digest=bundle.digest,
            manifest=bundle.manifest.model_dump(mode="json"),
            published_by=caller.principal,
            published_at=datetime.now(UTC),
        )
        return insert_plugin_version(conn, new)

    created, row = await doors.ledger.write(write)
    if row.digest != bundle.digest:
        raise Refused(ProblemCode.VERSION_EXISTS, "This version is published with other content; raise the version.")
    return created, bundle


async def deploy(doors: Doors, caller: Caller, plugin: PluginName, body: JsonValue) -> DeploymentRow:
    """A new revision, checked against the released version or, before a release, the newest one."""

    def look(conn: Connection) -> PluginVersionRow | None:
        permit(caller, conn, Action.RELEASES_WRITE, plugin)
        released = current_release(conn, caller.workspace, plugin)
        if released is not None:
            return find_plugin_version(conn, caller.workspace, plugin, released.version)
        return next(reversed(list_plugin_versions(conn, caller.workspace, plugin)), None)

    version = await _of_plugin(doors, caller, Action.RELEASES_WRITE, plugin, look)
    if version is None:
        raise plugin_unknown()
    try:
        bundle = await doors.snapshots.load_bundle(caller.workspace, version.digest)
    except SnapshotMismatch as broken:
        raise Refused(ProblemCode.BLOCKED, broken.detail, blocker="snapshot_mismatch", executed="no") from None
    deployment = await asyncio.to_thread(check_deployment, body, bundle)
    if deployment.plugin != plugin:
        raise Refused(ProblemCode.INPUT_INVALID, "plugin: The deployment names another plugin than the address.")
    digest = await doors.snapshots.put_deployment(caller.workspace, body)

    def write(conn: Connection) -> DeploymentRow:
        permit(caller, conn, Action.RELEASES_WRITE, plugin)
        stored = body if isinstance(body, dict) else {}
        return insert_deployment(
            conn, caller.workspace, plugin, digest=digest, body=stored, by=caller.principal, at=datetime.now(UTC)
        )

    return await doors.ledger.write(write)


async def release(
    doors: Doors, caller: Caller, plugin: PluginName, version: str, expected_current: str | None
) -> ReleaseRow:
    def write(conn: Connection) -> ReleaseRow | ReleaseConflict:
        permit(caller, conn, Action.RELEASES_WRITE, plugin)
        if find_plugin_version(conn, caller.workspace, plugin, version) is None:
            raise plugin_unknown()
        return insert_release(
            conn,
            caller.workspace,
            plugin,
            version,
            expected_current=expected_current,
            by=caller.principal,
            at=datetime.now(UTC),
        )

    _check(caller, Action.RELEASES_WRITE, plugin)
    done = await doors.ledger.write(write)
    if isinstance(done, ReleaseConflict):
        raise Refused(
            ProblemCode.RELEASE_CONFLICT,
            "The current release is not the expected one; look at it and decide again.",
            current=None if done.current is None else done.current.version,
        )
    return done


async def versions(doors: Doors, caller: Caller, plugin: PluginName) -> list[tuple[PluginVersionRow, Phase]]:
    """Oldest first, each with its phase; `plugin-unknown` where there are none."""

    def look(conn: Connection) -> list[tuple[PluginVersionRow, Phase]]:
        permit(caller, conn, Action.OPERATOR_READ, plugin)
        rows = list_plugin_versions(conn, caller.workspace, plugin)
        return [(row, phase_of(conn, caller.workspace, plugin, row.version)) for row in rows]

    found = await _of_plugin(doors, caller, Action.OPERATOR_READ, plugin, look)
    if not found:
        raise plugin_unknown()
    return found


async def releases(doors: Doors, caller: Caller, plugin: PluginName) -> list[ReleaseRow]:
    """Newest first."""

    def look(conn: Connection) -> list[ReleaseRow]:
        permit(caller, conn, Action.OPERATOR_READ, plugin)
        return list_releases(conn, caller.workspace, plugin)

    return await _of_plugin(doors, caller, Action.OPERATOR_READ, plugin, look)


def plugin_unknown() -> Refused:
    return Refused(ProblemCode.PLUGIN_UNKNOWN, "There is no such plugin or version in this workspace.")


def plugin_name(text: str) -> PluginName:
    """The name in an address; one that no plugin can have is an unknown plugin."""
    if not PLUGIN_NAME.fullmatch(text):
        raise plugin_unknown()
    return PluginName(text)


def _check(caller: Caller, action: Action, plugin: PluginName) -> None:
    need_scope(caller, action)
    plugin_name(plugin)


async def _of_plugin(
    doors: Doors, caller: Caller, action: Action, plugin: PluginName, look: Callable[[Connection], T]
) -> T:
    _check(caller, action, plugin)
    return await doors.ledger.read(look)


def _check_table(bundle: Bundle) -> None:
    size = sum(len(name) + len(row.model_dump_json()) for name, row in dispatch_table(bundle).items())
    if size > DISPATCH_TABLE_BYTES:
        raise Refused(
            ProblemCode.INPUT_INVALID,
            f"tools: The tools' table has {size} bytes; at most {DISPATCH_TABLE_BYTES} fit a job. Declare fewer tools.",
        )
