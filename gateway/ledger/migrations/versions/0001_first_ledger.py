"""The first ledger: receipts, catalog, promotions, grants, stops, decisions, effects, changes, audit."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

    op.create_table(
        "audit",
        sa.Column("audit_no", serial, autoincrement=True, nullable=False),
        sa.Column("workspace", sa.Text(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("audit_no", name="pk_audit"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_workspace_audit_no", "audit", ["workspace", "audit_no"], unique=False)

    op.create_table(
        "changes",
        sa.Column("change_no", serial, autoincrement=True, nullable=False),
        sa.Column("workspace", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("change_no", name="pk_changes"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_changes_workspace_change_no", "changes", ["workspace", "change_no"], unique=False)

    op.create_table(
        "deployments",
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("plugin", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("workspace", "plugin", "revision", name="pk_deployments"),
    )

    op.create_table(
        "grants",
        sa.Column("grant_id", sa.Text(), nullable=False),
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("actions", sa.Text(), nullable=False),
        sa.Column("plugins", sa.Text(), nullable=False),
        sa.Column("limits", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("grant_id", name="pk_grants"),
    )
    op.create_index("ix_grants_workspace_principal", "grants", ["workspace", "principal"], unique=False)

    op.create_table(
        "plugin_versions",
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("published_by", sa.Text(), nullable=False),
        sa.Column("published_at", sa.BigInteger(), nullable=False),
        sa.Column("withdrawn_at", sa.BigInteger(), nullable=True),
        sa.Column("withdrawn_reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("workspace", "name", "version", name="pk_plugin_versions"),
    )

    op.create_table(
        "promotions",
        sa.Column("revision", serial, autoincrement=True, nullable=False),
        sa.Column("promotion_id", sa.Text(), nullable=False),
        sa.Column("workspace", sa.Text(), nullable=True),
        sa.Column("plugin", sa.Text(), nullable=True),
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("approved_by", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("break_glass", sa.Boolean(), nullable=False),
        sa.Column("release_held", sa.Boolean(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("revision", name="pk_promotions"),
        sa.UniqueConstraint("promotion_id", "state", name="uq_promotions_promotion_id_state"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_promotions_workspace_plugin_version_revision",
        "promotions",
        ["workspace", "plugin", "version", "revision"],
        unique=False,
    )

    op.create_table(
        "receipts",
        sa.Column("seq", serial, autoincrement=True, nullable=False),
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("plugin", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("plugin_digest", sa.Text(), nullable=False),
        sa.Column("snapshot", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("session", sa.Text(), nullable=True),
        sa.Column("retry_of", sa.Text(), nullable=True),
        sa.Column("receipt", sa.LargeBinary(), nullable=False),
        sa.Column("job_input", sa.LargeBinary(), nullable=False),
        sa.Column("start_input", sa.LargeBinary(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("initiator", sa.Text(), nullable=True),
        sa.Column("deadline_at", sa.BigInteger(), nullable=False),
        sa.Column("reserved_at", sa.BigInteger(), nullable=False),
        sa.Column("confirmed_at", sa.BigInteger(), nullable=True),
        sa.Column("refused_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_receipts"),
        sa.UniqueConstraint("workspace", "job_id", name="uq_receipts_workspace_job_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_receipts_workspace_seq", "receipts", ["workspace", "seq"], unique=False)

    op.create_table(
        "decisions",
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("action_digest", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("decided_by", sa.Text(), nullable=False),
        sa.Column("decided_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace", "job_id"], ["receipts.workspace", "receipts.job_id"], name="fk_decisions_receipts"
        ),
        sa.PrimaryKeyConstraint("workspace", "job_id", "request_id", name="pk_decisions"),
    )

    op.create_table(
        "effects",
        sa.Column("effect_id", sa.Text(), nullable=False),
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("call", sa.Integer(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("effect", sa.Text(), nullable=False),
        sa.Column("action_digest", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("sent_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome_ref", sa.Text(), nullable=True),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace", "job_id"], ["receipts.workspace", "receipts.job_id"], name="fk_effects_receipts"
        ),
        sa.PrimaryKeyConstraint("effect_id", name="pk_effects"),
    )
    op.create_index("ix_effects_workspace_job_id", "effects", ["workspace", "job_id"], unique=False)
    op.create_index(
        "uq_effects_workspace_job_id_request_id",
        "effects",
        ["workspace", "job_id", "request_id"],
        unique=True,
        sqlite_where=sa.text("request_id IS NOT NULL"),
        postgresql_where=sa.text("request_id IS NOT NULL"),
    )

    op.create_table(
        "releases",
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("plugin", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("previous", sa.Text(), nullable=True),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace", "plugin", "version"],
            ["plugin_versions.workspace", "plugin_versions.name", "plugin_versions.version"],
            name="fk_releases_plugin_versions",
        ),
        sa.PrimaryKeyConstraint("workspace", "plugin", "revision", name="pk_releases"),
    )

    op.create_table(
        "stops",
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("requested_at", sa.BigInteger(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace", "job_id"], ["receipts.workspace", "receipts.job_id"], name="fk_stops_receipts"
        ),
        sa.PrimaryKeyConstraint("workspace", "job_id", name="pk_stops"),
    )

    op.create_table(
        "votes",
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("action_digest", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace", "job_id"], ["receipts.workspace", "receipts.job_id"], name="fk_votes_receipts"
        ),
        sa.PrimaryKeyConstraint("workspace", "job_id", "request_id", "principal", name="pk_votes"),
    )
