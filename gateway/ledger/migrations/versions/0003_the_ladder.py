"""The ladder: evidence that the system recorded, packets that each let one canary job run, and which processes live."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

    op.create_table(
        "evidence",
        sa.Column("evidence_no", serial, autoincrement=True, nullable=False),
        sa.Column("workspace", sa.Text(), nullable=True),
        sa.Column("plugin", sa.Text(), nullable=True),
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("green", sa.Boolean(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("evidence_no", name="pk_evidence"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_evidence_workspace_plugin_version_kind_evidence_no",
        "evidence",
        ["workspace", "plugin", "version", "kind", "evidence_no"],
        unique=False,
    )

    op.create_table(
        "packets",
        sa.Column("packet_id", sa.Text(), nullable=False),
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("plugin", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("allowed_tools", sa.Text(), nullable=False),
        sa.Column("max_steps", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("approved_by", sa.Text(), nullable=True),
        sa.Column("approved_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_by", sa.Text(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("redeemed_run", sa.Text(), nullable=True),
        sa.Column("redeemed_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["workspace", "job_id"], ["receipts.workspace", "receipts.job_id"], name="fk_packets_receipts"
        ),
        sa.PrimaryKeyConstraint("packet_id", name="pk_packets"),
    )
    op.create_index("ix_packets_workspace_job_id", "packets", ["workspace", "job_id"], unique=False)
    op.create_index("ix_packets_workspace_plugin_version", "packets", ["workspace", "plugin", "version"], unique=False)

    op.create_table(
        "processes",
        sa.Column("process_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("build", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("tools", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("good_until", sa.BigInteger(), nullable=False),
        sa.Column("warnings", sa.Integer(), nullable=False),
        sa.Column("last_warning", sa.Text(), nullable=True),
        sa.Column("stopped_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("process_id", name="pk_processes"),
    )
    op.create_index("ix_processes_good_until", "processes", ["good_until"], unique=False)
