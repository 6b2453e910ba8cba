"""Grants: which principal may do what, with which plugins, until when. Revoked rows stay, and say when.

The rows are facts; `gateway.authority` judges them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, or_, select, update

from gateway.ledger.authority_tables import grants
from gateway.ledger.journal import announce, record
from gateway.ledger.tables import columns_of, insert_if_absent
from workflows.contract.ids import PrincipalId, Workspace


@dataclass(frozen=True)
class NewGrant:
    """`actions` are scope names or `*`, `plugins` plugin names or `*`; `limits` may be empty."""

    grant_id: str
    workspace: Workspace
    principal: PrincipalId
    actions: tuple[str, ...]
    plugins: tuple[str, ...]
    limits: Mapping[str, Any]
    expires_at: datetime | None
    by: str
    at: datetime


@dataclass(frozen=True)
class GrantRow(NewGrant):
    revoked_at: datetime | None


_COLUMNS = columns_of(GrantRow, grants)
_OF_PRINCIPAL = (grants.c.workspace == bindparam("of_workspace"), grants.c.principal == bindparam("of_principal"))
_VALID = (
    select(*_COLUMNS)
    .where(
        *_OF_PRINCIPAL,
        grants.c.revoked_at.is_(None),
        or_(grants.c.expires_at.is_(None), grants.c.expires_at > bindparam("now", type_=grants.c.at.type)),
    )
    .order_by(grants.c.at, grants.c.grant_id)
)
_LIST = (
    select(*_COLUMNS).where(grants.c.workspace == bindparam("of_workspace")).order_by(grants.c.at, grants.c.grant_id)
)
_FIND = select(*_COLUMNS).where(
    grants.c.workspace == bindparam("of_workspace"), grants.c.grant_id == bindparam("of_grant")
)
_EVER = select(*_COLUMNS).where(*_OF_PRINCIPAL).order_by(grants.c.at, grants.c.grant_id)
_INSERT = insert_if_absent(grants).returning(grants.c.grant_id)
_REVOKE = update(grants).where(grants.c.revoked_at.is_(None)).values(revoked_at=bindparam("now")).returning(*_COLUMNS)
_REVOKE_ONE = _REVOKE.where(grants.c.workspace == bindparam("of_workspace"), grants.c.grant_id == bindparam("of_grant"))
_REVOKE_ALL = _REVOKE.where(*_OF_PRINCIPAL)


def grants_of(conn: Connection, workspace: Workspace, principal: PrincipalId, now: datetime) -> tuple[GrantRow, ...]:
    """The grants that are valid at `now`."""
    rows = conn.execute(_VALID, {"of_workspace": workspace, "of_principal": principal, "now": now})
    return tuple(_grant(row) for row in rows)


def list_grants(conn: Connection, workspace: Workspace) -> list[GrantRow]:
    """All of them, oldest first; revoked and expired ones too."""
    return [_grant(row) for row in conn.execute(_LIST, {"of_workspace": workspace})]


def find_grant(conn: Connection, workspace: Workspace, grant_id: str) -> GrantRow | None:
    """Revoked and expired ones too."""
    row = conn.execute(_FIND, {"of_workspace": workspace, "of_grant": grant_id}).first()
    return None if row is None else _grant(row)


def grants_ever_of(conn: Connection, workspace: Workspace, principal: PrincipalId) -> list[GrantRow]:
    """All that the principal was ever given, oldest first."""
    rows = conn.execute(_EVER, {"of_workspace": workspace, "of_principal": principal})
    return [_grant(row) for row in rows]


def insert_grant(conn: Connection, new: NewGrant) -> bool:
    """False when a grant of this id is there already, whatever it says; it stays as it is."""
    if conn.execute(_INSERT, vars(new)).first() is None:
        return False
    record(
        conn,
        new.workspace,
        at=new.at,
        actor=new.by,
        action="grant.added",
        subject=new.principal,
        grant_id=new.grant_id,
        actions=new.actions,
        plugins=new.plugins,
    )
    announce(conn, new.workspace, at=new.at, kind="grant", subject=new.principal)
    return True


def revoke_grant(conn: Connection, workspace: Workspace, grant_id: str, *, by: str, at: datetime) -> GrantRow | None:
    """The grant as revoked now; None when there is none of this id, or it was revoked before."""
    of = {"of_workspace": workspace, "of_grant": grant_id, "now": at}
    revoked = [_grant(row) for row in conn.execute(_REVOKE_ONE, of)]
    _tell(conn, revoked, by=by, at=at)
    return revoked[0] if revoked else None


def revoke_principal(
    conn: Connection, workspace: Workspace, principal: PrincipalId, *, by: str, at: datetime
) -> list[GrantRow]:
    """Every grant of the principal that was not revoked yet."""
    of = {"of_workspace": workspace, "of_principal": principal, "now": at}
    revoked = [_grant(row) for row in conn.execute(_REVOKE_ALL, of)]
    _tell(conn, revoked, by=by, at=at)
    return revoked


def _tell(conn: Connection, revoked: list[GrantRow], *, by: str, at: datetime) -> None:
    for grant in revoked:
        record(
            conn,
            grant.workspace,
            at=at,
            actor=by,
            action="grant.revoked",
            subject=grant.principal,
            grant_id=grant.grant_id,
        )
        announce(conn, grant.workspace, at=at, kind="revocation", subject=grant.principal)


def _grant(row: Row[Any]) -> GrantRow:
    grant = GrantRow(*row)
    limits = {name: tuple(value) if isinstance(value, list) else value for name, value in grant.limits.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # JSON
    return replace(grant, actions=tuple(grant.actions), plugins=tuple(grant.plugins), limits=limits)
