"""Who may do what: workspaces, API keys, authorities, usage, sessions, callbacks; delivery of changes; shown requests."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_index(
        "ix_receipts_workspace_session_seq",
        "receipts",
        ["workspace", "session", "seq"],
        unique=False,
        sqlite_where=sa.text("session IS NOT NULL"),
        postgresql_where=sa.text("session IS NOT NULL"),
    )

    op.create_table(
        "workspaces",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_workspaces"),
    )

    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("secret_hash", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("groups", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key_id", name="pk_api_keys"),
    )
    op.create_index("ix_api_keys_workspace_principal", "api_keys", ["workspace", "principal"], unique=False)

    op.create_table(
        "authorities",
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("submitted_by", sa.Text(), nullable=False),
        sa.Column("credential", sa.Text(), nullable=True),
        sa.Column("plugin", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("snapshot", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("limits", sa.Text(), nullable=False),
        sa.Column("seen_change", sa.BigInteger(), nullable=False),
        sa.Column("minted_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_reason", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["workspace", "job_id"], ["receipts.workspace", "receipts.job_id"], name="fk_authorities_receipts"
        ),
        sa.PrimaryKeyConstraint("workspace", "job_id", name="pk_authorities"),
    )
    op.create_index(
        "ix_authorities_workspace_principal_ended_at",
        "authorities",
        ["workspace", "principal", "ended_at"],
        unique=False,
    )
    op.create_index("ix_authorities_ended_at", "authorities", ["ended_at"], unique=False)
    # Jobs admitted by the first release go on: they hold what the permit finds true at each call.
    op.execute(
        "INSERT INTO authorities (workspace, job_id, principal, submitted_by, plugin, version, snapshot, model, limits,"
        " seen_change, minted_at, expires_at)"
        " SELECT workspace, job_id, principal, principal, plugin, version, snapshot, '', '{}', 0, reserved_at,"
        " deadline_at FROM receipts"
    )

    op.create_table(
        "usage",
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("call", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("plugin", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_usd", sa.Text(), nullable=False),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace", "job_id"], ["receipts.workspace", "receipts.job_id"], name="fk_usage_receipts"
        ),
        sa.PrimaryKeyConstraint("workspace", "job_id", "step", "call", "attempt", name="pk_usage"),
    )
    op.create_index("ix_usage_workspace_principal_at", "usage", ["workspace", "principal", "at"], unique=False)

    op.create_table(
        "sessions",
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("plugin", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("plugin_digest", sa.Text(), nullable=False),
        sa.Column("snapshot", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("last_job", sa.Text(), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=True),
        sa.Column("head_step", sa.Integer(), nullable=False),
        sa.Column("head_attempt", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace", "last_job"], ["receipts.workspace", "receipts.job_id"], name="fk_sessions_receipts"
        ),
        sa.PrimaryKeyConstraint("workspace", "session", name="pk_sessions"),
    )

    op.create_table(
        "callbacks",
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("call", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("effect_id", sa.Text(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("answered_at", sa.BigInteger(), nullable=True),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("result_ref", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["workspace", "job_id"], ["receipts.workspace", "receipts.job_id"], name="fk_callbacks_receipts"
        ),
        sa.PrimaryKeyConstraint("token_hash", name="pk_callbacks"),
    )
    op.create_index(
        "ix_callbacks_workspace_job_id_step_call", "callbacks", ["workspace", "job_id", "step", "call"], unique=False
    )

    op.add_column("decisions", sa.Column("shown", sa.Text(), nullable=True))
    op.add_column("changes", sa.Column("delivered_at", sa.BigInteger(), nullable=True))
    op.create_index("ix_changes_delivered_at", "changes", ["delivered_at"], unique=False)
    # What changed before this release concerns no job that still waits to be told.
    op.execute("UPDATE changes SET delivered_at = at")
