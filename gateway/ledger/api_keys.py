"""API keys: what a caller without signed tokens proves itself by. Only a hash is kept; a revoked key stays revoked."""

from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, Row, bindparam, select, update

from gateway.ledger.authority_tables import api_keys
from gateway.ledger.journal import announce, record
from gateway.ledger.tables import columns_of, insert_if_absent
from workflows.contract.ids import PrincipalId, Workspace


@dataclass(frozen=True)
class NewApiKey:
    """`secret_hash` is SHA-256 in hexadecimal; the secret has 256 random bits, so no slow hash is needed."""

    key_id: str
    workspace: Workspace
    principal: PrincipalId
    secret_hash: str
    scopes: tuple[str, ...]
    groups: tuple[str, ...]
    expires_at: datetime | None
    by: PrincipalId
    at: datetime


@dataclass(frozen=True)
class ApiKeyRow(NewApiKey):
    revoked_at: datetime | None


_COLUMNS = columns_of(ApiKeyRow, api_keys)
_INSERT = insert_if_absent(api_keys)
_FIND = select(*_COLUMNS).where(api_keys.c.key_id == bindparam("of_key"))
_LIST = (
    select(*_COLUMNS)
    .where(api_keys.c.workspace == bindparam("of_workspace"))
    .order_by(api_keys.c.at, api_keys.c.key_id)
)
_REVOKE = (
    update(api_keys)
    .where(api_keys.c.workspace == bindparam("of_workspace"), api_keys.c.revoked_at.is_(None))
    .values(revoked_at=bindparam("now"))
    .returning(*_COLUMNS)
)
_REVOKE_ONE = _REVOKE.where(api_keys.c.key_id == bindparam("of_key"))
_REVOKE_ALL = _REVOKE.where(api_keys.c.principal == bindparam("of_principal"))


def insert_api_key(conn: Connection, new: NewApiKey) -> None:
    conn.execute(_INSERT, vars(new))
    record(
        conn, new.workspace, at=new.at, actor=new.by, action="api_key.added", subject=new.principal, key_id=new.key_id
    )


def find_api_key(conn: Connection, key_id: str) -> ApiKeyRow | None:
    """Revoked and expired ones too."""
    row = conn.execute(_FIND, {"of_key": key_id}).first()
    return None if row is None else _api_key(row)


def list_api_keys(conn: Connection, workspace: Workspace) -> list[ApiKeyRow]:
    """Oldest first."""
    return [_api_key(row) for row in conn.execute(_LIST, {"of_workspace": workspace})]


def revoke_api_key(conn: Connection, workspace: Workspace, key_id: str, *, by: str, at: datetime) -> ApiKeyRow | None:
    """The key as revoked now; None when there is none of this id, or it was revoked before."""
    rows = conn.execute(_REVOKE_ONE, {"of_workspace": workspace, "of_key": key_id, "now": at})
    revoked = [_api_key(row) for row in rows]
    _tell(conn, revoked, by=by, at=at)
    return revoked[0] if revoked else None


def revoke_api_keys_of(
    conn: Connection, workspace: Workspace, principal: PrincipalId, *, by: str, at: datetime
) -> list[ApiKeyRow]:
    """Every key of the principal that was not revoked yet."""
    rows = conn.execute(_REVOKE_ALL, {"of_workspace": workspace, "of_principal": principal, "now": at})
    revoked = [_api_key(row) for row in rows]
    _tell(conn, revoked, by=by, at=at)
    return revoked


def _tell(conn: Connection, revoked: list[ApiKeyRow], *, by: str, at: datetime) -> None:
    for key in revoked:
        record(conn, key.workspace, at=at, actor=by, action="api_key.revoked", subject=key.principal, key_id=key.key_id)
        announce(conn, key.workspace, at=at, kind="key", subject=key.key_id)


def _api_key(row: Row[tuple[object, ...]]) -> ApiKeyRow:
    key = ApiKeyRow(*row)  # pyright: ignore[reportArgumentType]  # the columns are the fields
    return replace(key, scopes=tuple(key.scopes), groups=tuple(key.groups))
