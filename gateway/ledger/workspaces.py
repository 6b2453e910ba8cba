"""Workspaces: who made which one, and when. A name once taken stays taken.

Everything else in a workspace is its own rows; this table only keeps two people from being given the same name.
"""

from datetime import datetime

from sqlalchemy import Connection, bindparam, select

from gateway.ledger.authority_tables import grants, workspaces
from gateway.ledger.journal import record
from gateway.ledger.tables import insert_if_absent
from workflows.contract.ids import PrincipalId, Workspace

_INSERT = insert_if_absent(workspaces).returning(workspaces.c.name)
_GRANTED = select(grants.c.grant_id).where(grants.c.workspace == bindparam("of_workspace")).limit(1)


def insert_workspace(
    conn: Connection, name: Workspace, *, admin: PrincipalId, of: Workspace, by: PrincipalId, at: datetime
) -> bool:
    """False when the name is taken: by a row, or by grants that stand in a workspace without one (`demo`).

    `of` is the workspace of whoever makes it; the line of audit is there.
    """
    if conn.execute(_GRANTED, {"of_workspace": name}).first() is not None:
        return False
    if conn.execute(_INSERT, {"name": name, "by": by, "at": at}).first() is None:
        return False
    record(conn, of, at=at, actor=by, action="workspace.created", subject=name, admin=admin)
    return True
