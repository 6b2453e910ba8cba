"""The catalog: published plugin versions, deployments and releases. Versions never change; pointers only move on.

A deployment or release is a new row with the next revision, taken by compare-and-set; the current one is the row with
the highest. What a version may do is its phase, which `gateway.ledger.phases` owns; bundles are blobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from gateway.ledger.catalog_tables import deployments, plugin_versions, releases
from gateway.ledger.journal import announce, record
from gateway.ledger.tables import columns_of, insert_if_absent
from workflows.contract.ids import Digest, PluginName, PrincipalId, Workspace

ATTEMPTS = 10
"""How often a revision is taken anew when other writers were quicker, before the caller is told to come back."""


@dataclass(frozen=True)
class NewPluginVersion:
    workspace: Workspace
    name: PluginName
    version: str
    digest: Digest
    manifest: Mapping[str, Any]
    published_by: PrincipalId
    published_at: datetime


@dataclass(frozen=True)
class PluginVersionRow(NewPluginVersion):
    withdrawn_at: datetime | None
    withdrawn_reason: str | None


@dataclass(frozen=True)
class DeploymentRow:
    workspace: Workspace
    plugin: PluginName
    revision: int
    digest: Digest
    body: Mapping[str, Any]
    by: PrincipalId
    at: datetime


@dataclass(frozen=True)
class ReleaseRow:
    workspace: Workspace
    plugin: PluginName
    revision: int
    version: str
    previous: str | None
    by: PrincipalId
    at: datetime


@dataclass(frozen=True)
class ReleaseConflict:
    """The release is not what the caller expected it to be; `current` is what it is (None: there is none)."""

    current: ReleaseRow | None


_VERSION = columns_of(PluginVersionRow, plugin_versions)
_DEPLOYMENT = columns_of(DeploymentRow, deployments)
_RELEASE = columns_of(ReleaseRow, releases)

_PUBLISH = insert_if_absent(plugin_versions).returning(*_VERSION)
_VERSIONS = (
    select(*_VERSION)
    .where(plugin_versions.c.workspace == bindparam("workspace"), plugin_versions.c.name == bindparam("plugin"))
    .order_by(plugin_versions.c.published_at, plugin_versions.c.version)
)
_FIND_VERSION = select(*_VERSION).where(
    plugin_versions.c.workspace == bindparam("workspace"),
    plugin_versions.c.name == bindparam("plugin"),
    plugin_versions.c.version == bindparam("version"),
)
_WITHDRAW = (
    update(plugin_versions)
    .where(
        plugin_versions.c.workspace == bindparam("of_workspace"),
        plugin_versions.c.name == bindparam("of_plugin"),
        plugin_versions.c.version == bindparam("of_version"),
        plugin_versions.c.withdrawn_at.is_(None),
    )
    .values(withdrawn_at=bindparam("at"), withdrawn_reason=bindparam("reason"))
    .returning(*_VERSION)
)
_CURRENT_DEPLOYMENT = (
    select(*_DEPLOYMENT)
    .where(deployments.c.workspace == bindparam("workspace"), deployments.c.plugin == bindparam("plugin"))
    .order_by(deployments.c.revision.desc())
    .limit(1)
)
_DEPLOY = insert_if_absent(deployments).returning(*_DEPLOYMENT)
_RELEASES = (
    select(*_RELEASE)
    .where(releases.c.workspace == bindparam("workspace"), releases.c.plugin == bindparam("plugin"))
    .order_by(releases.c.revision.desc())
)
_CURRENT_RELEASE = _RELEASES.limit(1)
_SET_RELEASE = insert_if_absent(releases).returning(*_RELEASE)


def insert_plugin_version(conn: Connection, new: NewPluginVersion) -> tuple[bool, PluginVersionRow]:
    """Whether this call published it, and the row that stands; other content shows in the row's digest."""
    row = conn.execute(_PUBLISH, vars(new)).first()
    if row is None:
        standing = find_plugin_version(conn, new.workspace, new.name, new.version)
        if standing is None:
            raise LookupError("a version that conflicts must be there: rows are never deleted")
        return False, standing
    record(
        conn,
        new.workspace,
        at=new.published_at,
        actor=new.published_by,
        action="plugin.published",
        subject=f"{new.name}@{new.version}",
        digest=new.digest,
    )
    return True, PluginVersionRow(*row)


def find_plugin_version(
    conn: Connection, workspace: Workspace, plugin: PluginName, version: str
) -> PluginVersionRow | None:
    row = conn.execute(_FIND_VERSION, {"workspace": workspace, "plugin": plugin, "version": version}).first()
    return None if row is None else PluginVersionRow(*row)


def list_plugin_versions(conn: Connection, workspace: Workspace, plugin: PluginName) -> list[PluginVersionRow]:
    """Oldest first."""
    return [PluginVersionRow(*row) for row in conn.execute(_VERSIONS, {"workspace": workspace, "plugin": plugin})]


def withdraw_version(
    conn: Connection, workspace: Workspace, plugin: PluginName, version: str, *, reason: str, by: str, at: datetime
) -> PluginVersionRow | None:
    """The first withdrawal stands; None when there is no such version."""
    row = conn.execute(
        _WITHDRAW,
        {"of_workspace": workspace, "of_plugin": plugin, "of_version": version, "reason": reason, "at": at},
    ).first()
    if row is None:
        return find_plugin_version(conn, workspace, plugin, version)
    subject = f"{plugin}@{version}"
    record(conn, workspace, at=at, actor=by, action="plugin.withdrawn", subject=subject, reason=reason)
    announce(conn, workspace, at=at, kind="withdrawal", subject=subject)
    return PluginVersionRow(*row)


def current_deployment(conn: Connection, workspace: Workspace, plugin: PluginName) -> DeploymentRow | None:
    row = conn.execute(_CURRENT_DEPLOYMENT, {"workspace": workspace, "plugin": plugin}).first()
    return None if row is None else DeploymentRow(*row)


def insert_deployment(
    conn: Connection,
    workspace: Workspace,
    plugin: PluginName,
    *,
    digest: Digest,
    body: Mapping[str, Any],
    by: PrincipalId,
    at: datetime,
) -> DeploymentRow:
    """The next revision; the same content as the current one again is that one, and no new row."""
    for _ in range(ATTEMPTS):
        current = current_deployment(conn, workspace, plugin)
        if current is not None and current.digest == digest:
            return current
        revision = 1 if current is None else current.revision + 1
        candidate = DeploymentRow(workspace, plugin, revision, digest, body, by, at)
        if (row := conn.execute(_DEPLOY, vars(candidate)).first()) is not None:
            record(conn, workspace, at=at, actor=by, action="plugin.deployed", subject=plugin, revision=revision)
            return DeploymentRow(*row)
    raise LookupError("no revision could be taken: too many writers")


def current_release(conn: Connection, workspace: Workspace, plugin: PluginName) -> ReleaseRow | None:
    row = conn.execute(_CURRENT_RELEASE, {"workspace": workspace, "plugin": plugin}).first()
    return None if row is None else ReleaseRow(*row)


def list_releases(conn: Connection, workspace: Workspace, plugin: PluginName) -> list[ReleaseRow]:
    """Newest first."""
    return [ReleaseRow(*row) for row in conn.execute(_RELEASES, {"workspace": workspace, "plugin": plugin})]


def insert_release(
    conn: Connection,
    workspace: Workspace,
    plugin: PluginName,
    version: str,
    *,
    expected_current: str | None,
    by: PrincipalId,
    at: datetime,
) -> ReleaseRow | ReleaseConflict:
    """Points the plugin to a published version. `expected_current` None is not compared (api.md, PUT release).

    Setting what is current already is that release, and no new row.
    """
    for _ in range(ATTEMPTS):
        current = current_release(conn, workspace, plugin)
        previous = None if current is None else current.version
        if expected_current is not None and expected_current != previous:
            return ReleaseConflict(current)
        if current is not None and current.version == version:
            return current
        revision = 1 if current is None else current.revision + 1
        candidate = ReleaseRow(workspace, plugin, revision, version, previous, by, at)
        if (row := conn.execute(_SET_RELEASE, vars(candidate)).first()) is not None:
            record(conn, workspace, at=at, actor=by, action="release.set", subject=plugin, version=version)
            return ReleaseRow(*row)
    return ReleaseConflict(current_release(conn, workspace, plugin))
