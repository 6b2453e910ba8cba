"""The tables of what may run (published versions, deployments, releases, promotions, their evidence, packets) and of
published bytes."""

from sqlalchemy import BigInteger, Boolean, Column, ForeignKeyConstraint, Index, Integer, Table, UniqueConstraint

from gateway.ledger.column_types import Serial
from gateway.ledger.tables import instant, json, key, metadata, of_a_job, words

plugin_versions = Table(
    "plugin_versions",
    metadata,
    key("workspace"),
    key("name"),
    key("version"),
    words("digest"),
    json("manifest"),
    words("published_by"),
    instant("published_at"),
    instant("withdrawn_at", null=True),
    words("withdrawn_reason", null=True),
)

deployments = Table(
    "deployments",
    metadata,
    key("workspace"),
    key("plugin"),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    words("digest"),
    json("body"),
    words("by"),
    instant("at"),
)

releases = Table(
    "releases",
    metadata,
    key("workspace"),
    key("plugin"),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    words("version"),
    words("previous", null=True),
    words("by"),
    instant("at"),
    ForeignKeyConstraint(
        ["workspace", "plugin", "version"],
        ["plugin_versions.workspace", "plugin_versions.name", "plugin_versions.version"],
    ),
)

promotions = Table(
    "promotions",
    metadata,
    Column("revision", Serial, primary_key=True, autoincrement=True),
    words("promotion_id"),
    words("workspace", null=True),
    words("plugin", null=True),
    words("version", null=True),
    words("digest", null=True),
    words("phase"),
    words("state"),
    words("by"),
    words("approved_by", null=True),
    words("reason"),
    Column("break_glass", Boolean, nullable=False),
    Column("release_held", Boolean, nullable=False),
    instant("at"),
    # Without a workspace: the runtime's. The approval of a proposal is a second row; the latest row done is the phase.
    UniqueConstraint("promotion_id", "state"),
    Index(None, "workspace", "plugin", "version", "revision"),
    sqlite_autoincrement=True,
)

evidence = Table(
    "evidence",
    metadata,
    Column("evidence_no", Serial, primary_key=True, autoincrement=True),
    words("workspace", null=True),
    words("plugin", null=True),
    words("version", null=True),
    words("digest", null=True),
    words("kind"),
    Column("green", Boolean, nullable=False),
    json("detail"),
    words("by"),
    instant("at"),
    # Without a workspace: the runtime's.
    Index(None, "workspace", "plugin", "version", "kind", "evidence_no"),
    sqlite_autoincrement=True,
)

packets = Table(
    "packets",
    metadata,
    key("packet_id"),
    words("workspace"),
    words("job_id"),
    words("plugin"),
    words("version"),
    words("digest"),
    json("allowed_tools"),
    Column("max_steps", Integer, nullable=False),
    instant("expires_at"),
    words("author"),
    instant("at"),
    words("approved_by", null=True),
    instant("approved_at", null=True),
    words("revoked_by", null=True),
    instant("revoked_at", null=True),
    words("redeemed_run", null=True),
    instant("redeemed_at", null=True),
    of_a_job(),
    Index(None, "workspace", "job_id"),
    Index(None, "workspace", "plugin", "version"),
)

artifacts = Table(
    "artifacts",
    metadata,
    key("artifact_id"),
    words("workspace"),
    words("job_id", null=True),
    words("by"),
    words("name"),
    words("media_type"),
    Column("bytes", BigInteger, nullable=False),
    words("digest"),
    words("ref"),
    instant("at"),
    instant("erased_at", null=True),
    of_a_job(),
    UniqueConstraint("workspace", "job_id", "digest", "name"),
    Index(None, "at"),
)
