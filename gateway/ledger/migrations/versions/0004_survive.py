"""Retries know the line of jobs that they belong to."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_index(
        "ix_receipts_workspace_retry_of",
        "receipts",
        ["workspace", "retry_of"],
        unique=False,
        sqlite_where=sa.text("retry_of IS NOT NULL"),
        postgresql_where=sa.text("retry_of IS NOT NULL"),
    )
