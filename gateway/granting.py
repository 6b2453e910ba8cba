"""Who gives authority away, and who takes it back: grants, principals as a whole, and workspaces.

Whoever gives or takes needs `grants:write` on every plugin that the grant names, so a granter of one plugin reaches no
other; with `*` it is the root of its workspace. Taking away and the end of what ran on it are one transaction; nothing
here gives a job back what it lost. What a grant allows is `gateway.authority`'s to judge.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection

from gateway.authority import ADMIN_ACTIONS, EVERY
from gateway.changes import withdraw_authority, withdraw_credential
from gateway.doors import Doors, need_scope, permit
from gateway.ledger.api_keys import ApiKeyRow, list_api_keys, revoke_api_keys_of
from gateway.ledger.grants import (
    GrantRow,
    NewGrant,
    find_grant,
    grants_ever_of,
    insert_grant,
    list_grants,
    revoke_grant,
    revoke_principal,
)
from gateway.ledger.journal import record
from gateway.ledger.workspaces import insert_workspace
from gateway.scopes import DEMO, Action, Caller
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import PRINCIPAL, JobId, PluginName, PrincipalId, Workspace


@dataclass(frozen=True)
class Principal:
    """All that a principal was ever given in a workspace; after a revocation every row says since when it is gone."""

    principal: PrincipalId
    grants: tuple[GrantRow, ...]
    api_keys: tuple[ApiKeyRow, ...]


async def give(
    doors: Doors,
    caller: Caller,
    principal: PrincipalId,
    *,
    actions: tuple[str, ...],
    plugins: tuple[str, ...],
    limits: dict[str, Any],
    expires_at: datetime | None,
) -> GrantRow:
    """A new grant, whatever others there are: grants add up."""
    need_scope(caller, Action.GRANTS_WRITE)
    now = datetime.now(UTC)
    if expires_at is not None and expires_at <= now:
        raise Refused(ProblemCode.INPUT_INVALID, "expires_at: This is in the past; a grant ends later, or is null.")
    new = NewGrant(
        grant_id=f"grant_{uuid4().hex}",
        workspace=caller.workspace,
        principal=principal,
        actions=actions,
        plugins=plugins,
        limits=limits,
        expires_at=expires_at,
        by=caller.principal,
        at=now,
    )

    def write(conn: Connection) -> None:
        _permit_on(caller, conn, plugins)
        insert_grant(conn, new)

    await doors.ledger.write(write)
    doors.changes.wake()
    return GrantRow(**vars(new), revoked_at=None)


async def grants(doors: Doors, caller: Caller) -> list[GrantRow]:
    """Every grant of the workspace, oldest first; revoked and expired ones too."""
    need_scope(caller, Action.GRANTS_WRITE)

    def look(conn: Connection) -> list[GrantRow]:
        permit(caller, conn, Action.GRANTS_WRITE)
        return list_grants(conn, caller.workspace)

    return await doors.ledger.read(look)


async def take_back(doors: Doors, caller: Caller, grant_id: str) -> GrantRow:
    """The grant as revoked, by this call or by the first one. Raises Refused(NOT_FOUND)."""
    need_scope(caller, Action.GRANTS_WRITE)
    now = datetime.now(UTC)

    def write(conn: Connection) -> tuple[GrantRow, list[JobId]]:
        permit(caller, conn, Action.GRANTS_WRITE)
        found = find_grant(conn, caller.workspace, grant_id)
        if found is None:
            raise Refused(ProblemCode.NOT_FOUND, "There is no such grant.")
        _permit_on(caller, conn, found.plugins)
        revoked = revoke_grant(conn, caller.workspace, grant_id, by=caller.principal, at=now)
        if revoked is None:
            return found, []
        return revoked, withdraw_authority(conn, caller.workspace, found.principal, by=caller.principal, at=now)

    row, jobs = await doors.ledger.write(write)
    await doors.changes.settled(caller.workspace, jobs)
    return row


async def banish(doors: Doors, caller: Caller, name: str) -> Principal:
    """Revokes every grant and API key of a principal; repeating it changes nothing and answers the same."""
    need_scope(caller, Action.GRANTS_WRITE)
    now = datetime.now(UTC)

    def write(conn: Connection) -> tuple[Principal, list[JobId]]:
        _permit_on(caller, conn, (EVERY,))
        principal = PrincipalId(name)
        known = _principal(conn, caller.workspace, principal) if PRINCIPAL.fullmatch(name) else None
        if known is None or not (known.grants or known.api_keys):
            raise Refused(ProblemCode.NOT_FOUND, "There is no such principal: nothing was ever granted to this name.")
        if any(row.revoked_at is None for row in (*known.grants, *known.api_keys)):
            record(conn, caller.workspace, at=now, actor=caller.principal, action="principal.revoked", subject=name)
        revoke_principal(conn, caller.workspace, principal, by=caller.principal, at=now)
        keys = revoke_api_keys_of(conn, caller.workspace, principal, by=caller.principal, at=now)
        by_key = [withdraw_credential(conn, caller.workspace, key.key_id, by=caller.principal, at=now) for key in keys]
        jobs = withdraw_authority(conn, caller.workspace, principal, by=caller.principal, at=now)
        return _principal(conn, caller.workspace, principal), [*jobs, *chain.from_iterable(by_key)]

    gone, jobs = await doors.ledger.write(write)
    await doors.changes.settled(caller.workspace, jobs)
    return gone


async def found_workspace(doors: Doors, caller: Caller, name: Workspace, admin: PrincipalId) -> GrantRow:
    """A new workspace, and its admin's grant. Raises Refused(WORKSPACE_EXISTS)."""
    need_scope(caller, Action.GRANTS_WRITE)
    now = datetime.now(UTC)
    new = NewGrant(
        grant_id=f"grant_{uuid4().hex}",
        workspace=name,
        principal=admin,
        actions=ADMIN_ACTIONS,
        plugins=(EVERY,),
        limits={},
        expires_at=None,
        by=f"{caller.workspace}:{caller.principal}",  # a stranger to the new workspace, whoever has this name there
        at=now,
    )

    def write(conn: Connection) -> None:
        _permit_on(caller, conn, (EVERY,))
        made = name != DEMO and insert_workspace(
            conn, name, admin=admin, of=caller.workspace, by=caller.principal, at=now
        )
        if not made:
            raise Refused(ProblemCode.WORKSPACE_EXISTS, "There is a workspace of this name; choose another one.")
        insert_grant(conn, new)

    await doors.ledger.write(write)
    return GrantRow(**vars(new), revoked_at=None)


def _permit_on(caller: Caller, conn: Connection, plugins: Iterable[str]) -> None:
    for plugin in plugins:
        permit(caller, conn, Action.GRANTS_WRITE, PluginName(plugin))


def _principal(conn: Connection, workspace: Workspace, principal: PrincipalId) -> Principal:
    keys = tuple(key for key in list_api_keys(conn, workspace) if key.principal == principal)
    return Principal(principal, tuple(grants_ever_of(conn, workspace, principal)), keys)
