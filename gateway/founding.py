"""The first grant of a workspace where nobody may give one yet: `jobgate setup --workspace NAME --admin PRINCIPAL`.

Whoever can write the ledger may found; over HTTP it is `gateway.granting`. It only adds what was never there: a grant
once revoked or expired stays so, because set-up runs again with every upgrade.
"""

import hashlib
from datetime import UTC, datetime
from typing import Literal

from sqlalchemy import Connection

from gateway.authority import ADMIN_ACTIONS, EVERY
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import GrantRow, NewGrant, grants_ever_of, grants_of, insert_grant
from gateway.ledger.workspaces import insert_workspace
from workflows.contract.ids import PrincipalId, Workspace

SETUP = PrincipalId("setup")

Founded = Literal["given", "present", "over"]
"""Of the admin's grant: made now; in force before; revoked or expired before, and left so."""


async def found(ledger: Ledger, workspace: Workspace, admin: PrincipalId) -> Founded:
    """The workspace, where it is missing, and in it every action but `jobs:decide` on every plugin for `admin`."""
    now = datetime.now(UTC)
    grant = NewGrant(
        grant_id=f"grant_{hashlib.sha256(f'setup {workspace} {admin}'.encode()).hexdigest()[:32]}",
        workspace=workspace,
        principal=admin,
        actions=ADMIN_ACTIONS,
        plugins=(EVERY,),
        limits={},
        expires_at=None,
        by=SETUP,
        at=now,
    )

    def write(conn: Connection) -> Founded:
        insert_workspace(conn, workspace, admin=admin, of=workspace, by=SETUP, at=now)
        if not any(map(_covers, grants_ever_of(conn, workspace, admin))) and insert_grant(conn, grant):
            return "given"
        return "present" if any(map(_covers, grants_of(conn, workspace, admin, now))) else "over"

    return await ledger.write(write)


def _covers(grant: GrantRow) -> bool:
    return EVERY in grant.plugins and (EVERY in grant.actions or set(ADMIN_ACTIONS) <= set(grant.actions))
