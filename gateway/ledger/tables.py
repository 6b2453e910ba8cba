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
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import Insert, insert

from gateway.ledger.column_types import Instant, JsonText, Serial, Words

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def key(name: str) -> Column[str]:
    return Column(name, Words, primary_key=True)


def words(name: str, *, null: bool = False) -> Column[str]:
    return Column(name, Words, nullable=null)


def instant(name: str, *, null: bool = False) -> Column[datetime]:
    return Column(name, Instant, nullable=null)


def json(name: str, *, null: bool = False) -> Column[Any]:
    return Column(name, JsonText, nullable=null)


def of_a_job() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["workspace", "job_id"], ["receipts.workspace", "receipts.job_id"])


receipts = Table(
    "receipts",
    metadata,
    Column("seq", Serial, primary_key=True, autoincrement=True),
    words("workspace"),
    words("job_id"),
    words("fingerprint"),
    words("principal"),
    words("plugin"),
    words("version"),
    words("plugin_digest"),
    words("snapshot"),
    words("mode"),
    words("session", null=True),
    words("retry_of", null=True),
    Column("receipt", LargeBinary, nullable=False),
    Column("job_input", LargeBinary, nullable=False),
    Column("start_input", LargeBinary, nullable=False),
    json("labels"),
    json("initiator", null=True),
    instant("deadline_at"),
    instant("reserved_at"),
    instant("confirmed_at", null=True),
    instant("refused_at", null=True),
    instant("erased_at", null=True),
    instant("emptied_at", null=True),
    # The engine's run that the job began with; what was started by hand under its id begins with another.
    words("first_run", null=True),
    # Of a retry: the first job of its line.
    words("line", null=True),
    UniqueConstraint("workspace", "job_id"),
    Index(None, "workspace", "seq"),
    Index(
        None,
        "workspace",
        "session",
        "seq",
        sqlite_where=text("session IS NOT NULL"),
        postgresql_where=text("session IS NOT NULL"),
    ),
    Index(
        None,
        "workspace",
        "line",
        "seq",
        sqlite_where=text("line IS NOT NULL"),
        postgresql_where=text("line IS NOT NULL"),
    ),
    Index(
        None,
        "erased_at",
        sqlite_where=text("erased_at IS NOT NULL AND emptied_at IS NULL"),
        postgresql_where=text("erased_at IS NOT NULL AND emptied_at IS NULL"),
    ),
    sqlite_autoincrement=True,
)

stops = Table(
    "stops",
    metadata,
    key("workspace"),
    key("job_id"),
    instant("requested_at"),
    words("by"),
    of_a_job(),
)

votes = Table(
    "votes",
    metadata,
    key("workspace"),
    key("job_id"),
    key("request_id"),
    key("principal"),
    words("decision"),
    words("action_digest"),
    words("reason", null=True),
    instant("at"),
    of_a_job(),
)

decisions = Table(
    "decisions",
    metadata,
    key("workspace"),
    key("job_id"),
    key("request_id"),
    words("decision"),
    words("action_digest"),
    json("answer", null=True),
    words("reason", null=True),
    json("decided_by"),
    instant("decided_at"),
    # The request as it was shown, so that it can be read when the job has forgotten it.
    json("shown", null=True),
    # Whether the job has taken the verdict; once it was told again of one, when that is due the next time.
    instant("due_at", null=True),
    instant("taken_at", null=True),
    of_a_job(),
    Index(None, "decided_at", sqlite_where=text("taken_at IS NULL"), postgresql_where=text("taken_at IS NULL")),
)

effects = Table(
    "effects",
    metadata,
    key("effect_id"),
    words("workspace"),
    words("job_id"),
    Column("step", Integer, nullable=False),
    Column("call", Integer, nullable=False),
    words("tool"),
    words("effect"),
    words("action_digest"),
    words("state"),
    Column("epoch", Integer, nullable=False),
    instant("sent_at", null=True),
    instant("finished_at", null=True),
    words("outcome_ref", null=True),
    words("request_id", null=True),
    Column("attempt", Integer, nullable=False),
    of_a_job(),
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

sessions = Table(
    "sessions",
    metadata,
    key("workspace"),
    key("session"),
    words("plugin"),
    words("version"),
    words("plugin_digest"),
    words("snapshot"),
    words("by"),
    instant("at"),
    words("last_job"),
    words("conversation", null=True),
    Column("head_step", Integer, nullable=False),
    Column("head_attempt", Integer, nullable=False),
    ForeignKeyConstraint(["workspace", "last_job"], ["receipts.workspace", "receipts.job_id"]),
)

callbacks = Table(
    "callbacks",
    metadata,
    key("token_hash"),
    words("workspace"),
    words("job_id"),
    Column("step", Integer, nullable=False),
    Column("call", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    words("tool"),
    words("effect_id", null=True),
    Column("epoch", Integer, nullable=True),
    instant("opened_at"),
    instant("expires_at"),
    instant("answered_at", null=True),
    instant("closed_at", null=True),
    words("outcome", null=True),
    words("result_ref", null=True),
    of_a_job(),
    Index(None, "workspace", "job_id", "step", "call"),
)

changes = Table(
    "changes",
    metadata,
    Column("change_no", Serial, primary_key=True, autoincrement=True),
    words("workspace", null=True),
    words("kind"),
    words("subject"),
    instant("at"),
    instant("delivered_at", null=True),
    Index(None, "workspace", "change_no"),
    Index(None, "delivered_at"),
    sqlite_autoincrement=True,
)

audit = Table(
    "audit",
    metadata,
    Column("audit_no", Serial, primary_key=True, autoincrement=True),
    words("workspace", null=True),
    instant("at"),
    words("actor"),
    words("action"),
    words("subject"),
    json("detail"),
    Index(None, "workspace", "audit_no"),
    sqlite_autoincrement=True,
)


processes = Table(
    "processes",
    metadata,
    key("process_id"),
    words("kind"),
    words("identity"),
    words("lane", null=True),
    Column("pid", Integer, nullable=False),
    words("host"),
    words("build"),
    words("config"),
    json("tools"),
    instant("started_at"),
    instant("seen_at"),
    instant("good_until"),
    Column("warnings", Integer, nullable=False),
    words("last_warning", null=True),
    instant("stopped_at", null=True),
    Index(None, "good_until"),
)


def insert_if_absent(table: Table) -> Insert:
    """`INSERT .. ON CONFLICT DO NOTHING`: add `.returning(..)` and no row back means that the key was taken.

    PostgreSQL's construct without a conflict target is also SQLite's text, so one statement serves both.
    """
    return insert(table).on_conflict_do_nothing()


def columns_of(row_type: type, table: Table) -> list[Column[Any]]:
    """The columns that fill a dataclass of rows, in the order of its fields."""
    return [table.c[field.name] for field in fields(row_type)]
