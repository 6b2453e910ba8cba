"""The ledger's tables, once: SQLAlchemy Core metadata that SQLite and PostgreSQL both keep.

Rows are facts and are never deleted; most tables only ever gain rows. Times are aware UTC `datetime`s in Python and
integer microseconds in the row; JSON columns are text that we serialise here. Anything that must stay the same to the
byte (a receipt, a job's input) is bytes and passes through no encoder. Migrations restate these shapes; a test
compares the two. No query lives here.
"""

from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import Insert, insert

from gateway.ledger.column_types import Instant, JsonText, Serial

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _key(name: str) -> Column[str]:
    return Column(name, Text, primary_key=True)


def _text(name: str, *, null: bool = False) -> Column[str]:
    return Column(name, Text, nullable=null)


def _instant(name: str, *, null: bool = False) -> Column[datetime]:
    return Column(name, Instant, nullable=null)


def _json(name: str, *, null: bool = False) -> Column[Any]:
    return Column(name, JsonText, nullable=null)


def _of_a_job() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["workspace", "job_id"], ["receipts.workspace", "receipts.job_id"])


receipts = Table(
    "receipts",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    _text("workspace"),
    _text("job_id"),
    _text("fingerprint"),
    _text("principal"),
    _text("plugin"),
    _text("version"),
    _text("plugin_digest"),
    _text("snapshot"),
    _text("mode"),
    _text("session", null=True),
    _text("retry_of", null=True),
    Column("receipt", LargeBinary, nullable=False),
    Column("job_input", LargeBinary, nullable=False),
    Column("start_input", LargeBinary, nullable=False),
    _json("labels"),
    _json("initiator", null=True),
    _instant("deadline_at"),
    _instant("reserved_at"),
    _instant("confirmed_at", null=True),
    _instant("refused_at", null=True),
    UniqueConstraint("workspace", "job_id"),
    Index(None, "workspace", "seq"),
    sqlite_autoincrement=True,
)

plugin_versions = Table(
    "plugin_versions",
    metadata,
    _key("workspace"),
    _key("name"),
    _key("version"),
    _text("digest"),
    _json("manifest"),
    _text("published_by"),
    _instant("published_at"),
    _instant("withdrawn_at", null=True),
    _text("withdrawn_reason", null=True),
)

deployments = Table(
    "deployments",
    metadata,
    _key("workspace"),
    _key("plugin"),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    _text("digest"),
    _json("body"),
    _text("by"),
    _instant("at"),
)

releases = Table(
    "releases",
    metadata,
    _key("workspace"),
    _key("plugin"),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    _text("version"),
    _text("previous", null=True),
    _text("by"),
    _instant("at"),
    ForeignKeyConstraint(
        ["workspace", "plugin", "version"],
        ["plugin_versions.workspace", "plugin_versions.name", "plugin_versions.version"],
    ),
)

promotions = Table(
    "promotions",
    metadata,
    Column("revision", Serial, primary_key=True, autoincrement=True),
    _text("promotion_id"),
    _text("workspace", null=True),
    _text("plugin", null=True),
    _text("version", null=True),
    _text("digest", null=True),
    _text("phase"),
    _text("state"),
    _text("by"),
    _text("approved_by", null=True),
    _text("reason"),
    Column("break_glass", Boolean, nullable=False),
    Column("release_held", Boolean, nullable=False),
    _instant("at"),
    # Without a workspace: the runtime's. The approval of a proposal is a second row; the latest row done is the phase.
    UniqueConstraint("promotion_id", "state"),
    Index(None, "workspace", "plugin", "version", "revision"),
    sqlite_autoincrement=True,
)

grants = Table(
    "grants",
    metadata,
    _key("grant_id"),
    _text("workspace"),
    _text("principal"),
    _json("actions"),
    _json("plugins"),
    _json("limits"),
    _instant("expires_at", null=True),
    _text("by"),
    _instant("at"),
    _instant("revoked_at", null=True),
    Index(None, "workspace", "principal"),
)

stops = Table(
    "stops",
    metadata,
    _key("workspace"),
    _key("job_id"),
    _instant("requested_at"),
    _text("by"),
    _of_a_job(),
)

votes = Table(
    "votes",
    metadata,
    _key("workspace"),
    _key("job_id"),
    _key("request_id"),
    _key("principal"),
    _text("decision"),
    _text("action_digest"),
    _text("reason", null=True),
    _instant("at"),
    _of_a_job(),
)

decisions = Table(
    "decisions",
    metadata,
    _key("workspace"),
    _key("job_id"),
    _key("request_id"),
    _text("decision"),
    _text("action_digest"),
    _json("answer", null=True),
    _text("reason", null=True),
    _json("decided_by"),
    _instant("decided_at"),
    _of_a_job(),
)

effects = Table(
    "effects",
    metadata,
    _key("effect_id"),
    _text("workspace"),
    _text("job_id"),
    Column("step", Integer, nullable=False),
    Column("call", Integer, nullable=False),
    _text("tool"),
    _text("effect"),
    _text("action_digest"),
    _text("state"),
    Column("epoch", Integer, nullable=False),
    _instant("sent_at", null=True),
    _instant("finished_at", null=True),
    _text("outcome_ref", null=True),
    _text("request_id", null=True),
    Column("attempt", Integer, nullable=False),
    _of_a_job(),
    Index(None, "workspace", "job_id"),
    # A decision permits one effect, for ever.
    Index(
        "uq_effects_workspace_job_id_request_id",
        "workspace",
        "job_id",
        "request_id",
        unique=True,
        sqlite_where=text("request_id IS NOT NULL"),
        postgresql_where=text("request_id IS NOT NULL"),
    ),
)

changes = Table(
    "changes",
    metadata,
    Column("change_no", Serial, primary_key=True, autoincrement=True),
    _text("workspace", null=True),
    _text("kind"),
    _text("subject"),
    _instant("at"),
    Index(None, "workspace", "change_no"),
    sqlite_autoincrement=True,
)

audit = Table(
    "audit",
    metadata,
    Column("audit_no", Serial, primary_key=True, autoincrement=True),
    _text("workspace", null=True),
    _instant("at"),
    _text("actor"),
    _text("action"),
    _text("subject"),
    _json("detail"),
    Index(None, "workspace", "audit_no"),
    sqlite_autoincrement=True,
)


def insert_if_absent(table: Table) -> Insert:
    """`INSERT .. ON CONFLICT DO NOTHING`: add `.returning(..)` and no row back means that the key was taken.

    PostgreSQL's construct without a conflict target is also SQLite's text, so one statement serves both.
    """
    return insert(table).on_conflict_do_nothing()


def columns_of(row_type: type, table: Table) -> list[Column[Any]]:
    """The columns that fill a dataclass of rows, in the order of its fields."""
    return [table.c[field.name] for field in fields(row_type)]
