"""Retries know the line of jobs that they belong to; artifacts are registered; content can be erased."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("receipts", sa.Column("first_run", sa.Text(), nullable=True))
    op.create_index(
        "ix_receipts_workspace_retry_of",
        "receipts",
        ["workspace", "retry_of"],
        unique=False,
        sqlite_where=sa.text("retry_of IS NOT NULL"),
        postgresql_where=sa.text("retry_of IS NOT NULL"),
    )
    op.add_column("receipts", sa.Column("erased_at", sa.BigInteger(), nullable=True))
    op.add_column("receipts", sa.Column("emptied_at", sa.BigInteger(), nullable=True))
    op.create_index(
        "ix_receipts_erased_at",
        "receipts",
        ["erased_at"],
        unique=False,
        sqlite_where=sa.text("erased_at IS NOT NULL AND emptied_at IS NULL"),
        postgresql_where=sa.text("erased_at IS NOT NULL AND emptied_at IS NULL"),
    )
    op.create_table(
        "artifacts",
        sa.Column("artifact_id", sa.Text(), nullable=False),
        sa.Column("workspace", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("erased_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["workspace", "job_id"], ["receipts.workspace", "receipts.job_id"], name="fk_artifacts_receipts"
        ),
        sa.PrimaryKeyConstraint("artifact_id", name="pk_artifacts"),
        sa.UniqueConstraint(
            "workspace", "job_id", "digest", "name", name="uq_artifacts_workspace_job_id_digest_name"
        ),
    )
    op.create_index("ix_artifacts_at", "artifacts", ["at"], unique=False)
