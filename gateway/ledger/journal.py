"""Two journals that only grow: `audit` (who did what) and `changes` (what running jobs must be told of).

Whoever changes a fact writes its entry in the same transaction, so neither journal ever says more or less than the
ledger. A row without a workspace concerns the runtime, and so every workspace.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, or_, select, update

from gateway.ledger.tables import audit, changes, columns_of
from workflows.contract.ids import Workspace


@dataclass(frozen=True)
class AuditRow:
    audit_no: int
    workspace: Workspace | None
    at: datetime
    actor: str
    action: str
    subject: str
    detail: Mapping[str, Any]


_COLUMNS = columns_of(AuditRow, audit)
_AUDIT = insert(audit)
_CHANGE = insert(changes).returning(changes.c.change_no)
_IN_ORDER = select(func.pg_advisory_xact_lock(0x6A6F6268))
_NEWEST = select(func.max(changes.c.change_no))
# Two ends of one index: with OR the database would read every change there ever was, at every admission.
_LATEST = select(
    _NEWEST.where(changes.c.workspace == bindparam("of_workspace")).scalar_subquery(),
    _NEWEST.where(changes.c.workspace.is_(None)).scalar_subquery(),
)


def record(
    conn: Connection,
    workspace: Workspace | None,
    *,
    at: datetime,
    actor: str,
    action: str,
    subject: str,
    **detail: Any,
) -> None:
    """One line of audit. `detail` is JSON and holds no secret and no input of a job."""
    conn.execute(
        _AUDIT,
        {
            "workspace": workspace,
            "at": at,
            "actor": actor,
            "action": action,
            "subject": subject,
            "detail": detail,
        },
    )


def one_at_a_time(conn: Connection) -> None:
    """Until the transaction ends nobody else announces a change, so what is read from here on stays as it is where
    every change of it is announced. (SQLite has one writer at a time anyway.)"""
    if conn.dialect.name == "postgresql":
        conn.execute(_IN_ORDER)


def announce(conn: Connection, workspace: Workspace | None, *, at: datetime, kind: str, subject: str) -> int:
    """Something that may concern running jobs changed; returns the change's number.

    On PostgreSQL a number is handed out before its row can be seen, so announcing is one at a time there: whoever has
    seen a number has seen every lower one.
    """
    one_at_a_time(conn)
    return conn.execute(_CHANGE, {"workspace": workspace, "at": at, "kind": kind, "subject": subject}).scalar_one()


def latest_change(conn: Connection, workspace: Workspace) -> int:
    """0 when nothing ever changed. Admission reads it before and after a start."""
    own, of_all = conn.execute(_LATEST, {"of_workspace": workspace}).one()
    return max(own or 0, of_all or 0)


@dataclass(frozen=True)
class ChangeRow:
    change_no: int
    workspace: Workspace | None
    kind: str
    subject: str
    at: datetime


_CHANGES = columns_of(ChangeRow, changes)
_UNDELIVERED = (
    select(*_CHANGES).where(changes.c.delivered_at.is_(None)).order_by(changes.c.change_no).limit(bindparam("at_most"))
)
_SINCE = select(*_CHANGES).where(
    changes.c.change_no > bindparam("seen"),
    or_(changes.c.workspace == bindparam("of_workspace"), changes.c.workspace.is_(None)),
)
_DELIVERED = (
    update(changes)
    .where(changes.c.change_no == bindparam("of_change"), changes.c.delivered_at.is_(None))
    .values(delivered_at=bindparam("now"))
)


def undelivered_changes(conn: Connection, *, limit: int) -> list[ChangeRow]:
    """Changes that the jobs they concern may not know of yet, oldest first."""
    return [ChangeRow(*row) for row in conn.execute(_UNDELIVERED, {"at_most": limit})]


def changes_since(conn: Connection, workspace: Workspace, seen: int) -> list[ChangeRow]:
    """What changed in the workspace (or for all) after the change numbered `seen`."""
    return [ChangeRow(*row) for row in conn.execute(_SINCE, {"of_workspace": workspace, "seen": seen})]


def mark_delivered(conn: Connection, change_no: int, at: datetime) -> None:
    conn.execute(_DELIVERED, {"of_change": change_no, "now": at})


def read_audit(conn: Connection, workspace: Workspace, *, after: int, limit: int) -> list[AuditRow]:
    """The workspace's own lines and the runtime's, oldest first, after the line numbered `after`."""
    query = (
        select(*_COLUMNS)
        .where(audit.c.audit_no > after, or_(audit.c.workspace == workspace, audit.c.workspace.is_(None)))
        .order_by(audit.c.audit_no)
        .limit(limit)
    )
    return [AuditRow(*row) for row in conn.execute(query)]
