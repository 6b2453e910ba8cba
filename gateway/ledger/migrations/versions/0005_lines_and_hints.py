"""A line of retries is known by its first job; a verdict says whether its job has taken it."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("receipts", sa.Column("line", sa.Text(), nullable=True))
    op.execute(
        """
        WITH RECURSIVE chain (workspace, job_id, first) AS (
            SELECT workspace, job_id, job_id FROM receipts WHERE retry_of IS NULL
            UNION ALL
            SELECT receipts.workspace, receipts.job_id, chain.first FROM receipts
            JOIN chain ON receipts.workspace = chain.workspace AND receipts.retry_of = chain.job_id
        )
        UPDATE receipts SET line = (
            SELECT first FROM chain WHERE chain.workspace = receipts.workspace AND chain.job_id = receipts.job_id
        ) WHERE retry_of IS NOT NULL
        """
    )
    op.drop_index("ix_receipts_workspace_retry_of", "receipts")
    op.create_index(
        "ix_receipts_workspace_line_seq",
        "receipts",
        ["workspace", "line", "seq"],
        unique=False,
        sqlite_where=sa.text("line IS NOT NULL"),
        postgresql_where=sa.text("line IS NOT NULL"),
    )
    op.add_column("decisions", sa.Column("due_at", sa.BigInteger(), nullable=True))
    op.add_column("decisions", sa.Column("taken_at", sa.BigInteger(), nullable=True))
    op.execute("UPDATE decisions SET taken_at = decided_at")
    op.create_index(
        "ix_decisions_decided_at",
        "decisions",
        ["decided_at"],
        unique=False,
        sqlite_where=sa.text("taken_at IS NULL"),
        postgresql_where=sa.text("taken_at IS NULL"),
    )
