"""Who gives out API keys and who takes them back.

A key can stand for anybody of the workspace, so it needs `grants:write` on every plugin, and it never carries a scope
that its maker's own credential lacks; groups are the maker's word, and on record. Revoking a key takes the authority of
the open jobs that it submitted in the same transaction, for good.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from sqlalchemy import Connection

from gateway.apikeys import KEY_ID, Minted, mint_api_key
from gateway.authority import EVERY
from gateway.changes import withdraw_credential
from gateway.doors import Doors, need_scope, permit
from gateway.ledger.api_keys import (
    ApiKeyRow,
    NewApiKey,
    find_api_key,
    insert_api_key,
    list_api_keys,
    revoke_api_key,
)
from gateway.scopes import Action, Caller
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import JobId, PluginName, PrincipalId


async def issue(
    doors: Doors,
    caller: Caller,
    principal: PrincipalId,
    *,
    scopes: Iterable[str] | None,
    groups: Iterable[str],
    expires_at: datetime | None,
) -> tuple[Minted, NewApiKey]:
    """A new key; `scopes` None: those of the caller's own credential. Raises Refused: 403, 422 for one that is over."""
    need_scope(caller, Action.GRANTS_WRITE)
    asked = caller.scopes if scopes is None else frozenset(scopes)
    if not asked <= caller.scopes:
        raise Refused(ProblemCode.NOT_PERMITTED, "The key would have a scope that the caller's own credential lacks.")
    now = datetime.now(UTC)
    if expires_at is not None and expires_at <= now:
        raise Refused(ProblemCode.INPUT_INVALID, "expires_at: This is in the past; a key ends later, or is null.")
    minted = mint_api_key()
    new = NewApiKey(
        key_id=minted.key_id,
        workspace=caller.workspace,
        principal=principal,
        secret_hash=minted.secret_hash,
        scopes=tuple(sorted(asked)),
        groups=tuple(sorted(set(groups))),
        expires_at=expires_at,
        by=caller.principal,
        at=now,
    )

    def write(conn: Connection) -> None:
        _permit(caller, conn)
        insert_api_key(conn, new)

    await doors.ledger.write(write)
    return minted, new


async def issued(doors: Doors, caller: Caller) -> list[ApiKeyRow]:
    """Every key of the workspace, oldest first; revoked and expired ones too."""
    need_scope(caller, Action.GRANTS_WRITE)

    def look(conn: Connection) -> list[ApiKeyRow]:
        _permit(caller, conn)
        return list_api_keys(conn, caller.workspace)

    return await doors.ledger.read(look)


async def revoke(doors: Doors, caller: Caller, key_id: str) -> ApiKeyRow:
    """The key as revoked, by this call or by the first one. Raises Refused(NOT_FOUND)."""
    need_scope(caller, Action.GRANTS_WRITE)
    now = datetime.now(UTC)

    def write(conn: Connection) -> tuple[ApiKeyRow, list[JobId]]:
        _permit(caller, conn)
        if not KEY_ID.fullmatch(key_id):
            raise _unknown()
        revoked = revoke_api_key(conn, caller.workspace, key_id, by=caller.principal, at=now)
        if revoked is not None:
            return revoked, withdraw_credential(conn, caller.workspace, key_id, by=caller.principal, at=now)
        found = find_api_key(conn, key_id)
        if found is None or found.workspace != caller.workspace:
            raise _unknown()
        return found, []

    row, jobs = await doors.ledger.write(write)
    await doors.changes.settled(caller.workspace, jobs)
    return row


def _permit(caller: Caller, conn: Connection) -> None:
    permit(caller, conn, Action.GRANTS_WRITE, PluginName(EVERY))


def _unknown() -> Refused:
    return Refused(ProblemCode.NOT_FOUND, "There is no such API key.")
