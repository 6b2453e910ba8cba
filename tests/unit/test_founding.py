"""The first grant of a workspace: given once, never again, and never more than an admin's."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection

from gateway.authority import ADMIN_ACTIONS
from gateway.founding import found
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import NewGrant, grants_of, insert_grant, list_grants, revoke_grant
from gateway.ledger.journal import read_audit
from workflows.contract.ids import PrincipalId, Workspace

ACME, DANA = Workspace("acme"), PrincipalId("dana")


def granted(actions: tuple[str, ...], plugins: tuple[str, ...] = ("*",)) -> NewGrant:
    now = datetime.now(UTC)
    return NewGrant("grant_1", ACME, DANA, actions, plugins, {}, None, "root", now)


async def test_the_first_admin_gets_every_action_but_deciding_and_it_is_on_record(ledger: Ledger) -> None:
    assert await found(ledger, ACME, DANA) == "given"
    (grant,) = await ledger.read(lambda conn: list_grants(conn, ACME))
    assert (grant.principal, grant.actions, grant.plugins, grant.limits) == (DANA, ADMIN_ACTIONS, ("*",), {})
    assert "jobs:decide" not in grant.actions
    lines = await ledger.read(lambda conn: read_audit(conn, ACME, after=0, limit=10))
    assert [(line.actor, line.action, line.subject) for line in lines] == [
        ("setup", "workspace.created", ACME),
        ("setup", "grant.added", DANA),
    ]


async def test_founding_again_changes_nothing(ledger: Ledger) -> None:
    await found(ledger, ACME, DANA)

    def all_there_is(conn: Connection) -> object:
        return list_grants(conn, ACME), read_audit(conn, ACME, after=0, limit=10)

    before = await ledger.read(all_there_is)
    assert await found(ledger, ACME, DANA) == "present"
    assert await ledger.read(all_there_is) == before


async def test_founding_again_does_not_undo_a_revocation(ledger: Ledger) -> None:
    await found(ledger, ACME, DANA)
    (grant,) = await ledger.read(lambda conn: list_grants(conn, ACME))
    now = datetime.now(UTC)
    await ledger.write(lambda conn: revoke_grant(conn, ACME, grant.grant_id, by="root", at=now))
    assert await found(ledger, ACME, DANA) == "over"
    assert await ledger.read(lambda conn: grants_of(conn, ACME, DANA, now)) == ()
    assert await found(ledger, ACME, PrincipalId("erin")) == "given"


@pytest.mark.parametrize(
    ("has", "outcome"),
    [
        (granted(("*",)), "present"),
        (granted(ADMIN_ACTIONS), "present"),
        (granted(ADMIN_ACTIONS, ("support-refund",)), "given"),
        (granted(("jobs:read",)), "given"),
    ],
)
async def test_an_admin_made_otherwise_needs_no_second_grant(ledger: Ledger, has: NewGrant, outcome: str) -> None:
    await ledger.write(lambda conn: insert_grant(conn, has))
    assert await found(ledger, ACME, DANA) == outcome
