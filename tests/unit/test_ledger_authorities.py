"""Execution authorities in the ledger: renewed while they stand, taken away once and for ever, counted while open."""

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import Connection

from gateway.ledger.authorities import (
    AuthorityRow,
    find_authority,
    insert_authority,
    mark_ended,
    mark_open,
    open_authorities,
    principals_expired,
    renew_authority,
    replace_authority,
    revoke_authority,
)
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import insert_grant, revoke_grant
from gateway.ledger.receipts import reserve
from tests.rig.waiting import wait_until
from tests.unit.ledger_rows import APP, AT, DEMO, JOB, OPERATOR, REFUND, SECOND, authority, grant, receipt
from workflows.contract.ids import JobId, PluginName, PrincipalId, Workspace

OTHER = Workspace("other")


async def minted(ledger: Ledger, job_id: str = JOB, workspace: Workspace = DEMO, **changed: Any) -> None:
    of_job = {"job_id": JobId(job_id), "workspace": workspace}
    await ledger.write(lambda conn: reserve(conn, receipt(**of_job)))
    await ledger.write(lambda conn: insert_authority(conn, authority(**of_job, **changed)))


async def found(ledger: Ledger, job_id: str = JOB) -> AuthorityRow:
    row = await ledger.read(lambda conn: find_authority(conn, DEMO, JobId(job_id)))
    assert row is not None
    return row


async def revoke(ledger: Ledger, reason: str = "grant", after: int = 0) -> bool:
    return await ledger.write(lambda conn: revoke_authority(conn, DEMO, JOB, reason=reason, at=AT + after * SECOND))


async def test_an_authority_comes_back_as_it_was_minted(ledger: Ledger) -> None:
    new = authority(limits={"max_steps": 3, "max_cost_usd": "0.10"}, credential="key_1", seen_change=2**40)
    await minted(ledger, **{name: getattr(new, name) for name in ("limits", "credential", "seen_change")})
    row = await found(ledger)
    assert {name: getattr(row, name) for name in vars(new)} == vars(new)
    assert (row.revoked_at, row.revoked_reason, row.ended_at) == (None, None, None)
    assert await ledger.read(lambda conn: find_authority(conn, OTHER, JOB)) is None


async def test_the_first_authority_of_a_job_stands_until_its_key_is_reserved_anew(ledger: Ledger) -> None:
    await minted(ledger)
    other = authority(principal=PrincipalId("eve"), snapshot=receipt().fingerprint)
    await ledger.write(lambda conn: insert_authority(conn, other))
    assert (await found(ledger)).principal == APP
    await revoke(ledger)
    await ledger.write(lambda conn: mark_ended(conn, [(DEMO, JOB)], AT))
    await ledger.write(lambda conn: replace_authority(conn, other))
    row = await found(ledger)
    assert (row.principal, row.revoked_at, row.revoked_reason, row.ended_at) == ("eve", None, None, None)


async def test_replacing_touches_no_other_job(ledger: Ledger) -> None:
    await minted(ledger)
    await minted(ledger, "k-2")
    await ledger.write(lambda conn: replace_authority(conn, authority(principal=PrincipalId("eve"))))
    assert (await found(ledger, "k-2")).principal == APP


async def test_a_renewal_moves_the_end_on_and_never_back(ledger: Ledger) -> None:
    await minted(ledger)
    end = (await found(ledger)).expires_at
    await ledger.write(lambda conn: renew_authority(conn, DEMO, JOB, end + SECOND))
    await ledger.write(lambda conn: renew_authority(conn, DEMO, JOB, end))
    assert (await found(ledger)).expires_at == end + SECOND


async def test_what_was_revoked_is_neither_renewed_nor_revoked_again(ledger: Ledger) -> None:
    await minted(ledger)
    end = (await found(ledger)).expires_at
    assert await revoke(ledger, "grant")
    assert not await revoke(ledger, "key", after=9)
    await ledger.write(lambda conn: renew_authority(conn, DEMO, JOB, end + SECOND))
    await ledger.write(lambda conn: mark_open(conn, DEMO, JOB))
    await ledger.write(lambda conn: insert_grant(conn, grant()))
    row = await found(ledger)
    assert (row.revoked_at, row.revoked_reason, row.expires_at) == (AT, "grant", end)


async def test_there_is_nothing_to_revoke_without_an_authority(ledger: Ledger) -> None:
    assert not await revoke(ledger)


async def test_of_racing_revocations_one_counts(ledger: Ledger, ledger_url: str) -> None:
    await minted(ledger)
    other = Ledger.open(ledger_url)
    said = await asyncio.gather(*(revoke((ledger, other)[n % 2], f"r{n}", n) for n in range(12)))
    await other.close()
    assert said.count(True) == 1
    assert (await found(ledger)).revoked_reason == f"r{said.index(True)}"


@pytest.mark.parametrize("hold", [True, False])
async def test_a_held_authority_is_not_taken_away_before_the_holder_is_done(
    ledger: Ledger, ledger_url: str, hold: bool
) -> None:
    await minted(ledger)
    found_it, order = threading.Event(), list[str]()

    def use(conn: Connection) -> None:
        find_authority(conn, DEMO, JOB, hold=hold)
        found_it.set()
        threading.Event().wait(0.3)
        order.append("used")

    using = asyncio.create_task(ledger.write(use))
    await wait_until(found_it.is_set)
    assert await revoke(ledger)
    order.append("revoked")
    await using
    # SQLite has one writer at a time, held or not.
    in_turn = hold or ledger_url.startswith("sqlite")
    assert order == (["used", "revoked"] if in_turn else ["revoked", "used"])


async def test_open_jobs_are_listed_oldest_first_until_they_end_and_again_after_a_reset(ledger: Ledger) -> None:
    for number, job in enumerate(("k-3", "k-1", "k-2")):
        await minted(ledger, job, minted_at=AT + number * SECOND)
    await ledger.write(lambda conn: mark_ended(conn, [(DEMO, JobId("k-1")), (DEMO, JobId("unknown"))], AT))
    await ledger.write(lambda conn: mark_ended(conn, [(DEMO, JobId("k-1"))], AT + SECOND))

    async def listed(**wanted: Any) -> list[str]:
        return [row.job_id for row in await ledger.read(lambda conn: open_authorities(conn, DEMO, **wanted))]

    assert await listed() == ["k-3", "k-2"]
    assert await listed(limit=1) == ["k-3"]
    assert (await found(ledger, "k-1")).ended_at == AT
    await ledger.write(lambda conn: mark_open(conn, DEMO, JobId("k-1")))
    assert await listed() == ["k-3", "k-1", "k-2"]


@pytest.mark.parametrize(
    ("wanted", "jobs"),
    [
        ({}, ["a", "b", "c", "d", "e"]),
        ({"principal": PrincipalId("eve")}, ["b"]),
        ({"credential": "key_1"}, ["c"]),
        ({"plugin": PluginName("feedback")}, ["d"]),
        ({"plugin": REFUND, "version": "2.0.0"}, ["e"]),
        ({"principal": PrincipalId("nobody")}, []),
    ],
)
async def test_open_jobs_are_those_that_a_change_concerns(
    ledger: Ledger, wanted: dict[str, Any], jobs: list[str]
) -> None:
    await minted(ledger, "a")
    await minted(ledger, "b", principal=PrincipalId("eve"))
    await minted(ledger, "c", credential="key_1")
    await minted(ledger, "d", plugin=PluginName("feedback"))
    await minted(ledger, "e", version="2.0.0")
    await minted(ledger, "z", OTHER)
    rows = await ledger.read(lambda conn: open_authorities(conn, DEMO, **wanted))
    assert [row.job_id for row in rows] == jobs
    everywhere = await ledger.read(lambda conn: open_authorities(conn, None, **wanted))
    assert [row.job_id for row in everywhere if row.workspace == DEMO] == jobs


async def test_whose_grants_ran_out_is_known_once_each(ledger: Ledger) -> None:
    for number, after in enumerate((0, 1, 1, 2, 3)):
        ends = AT + after * SECOND
        await ledger.write(lambda conn, n=number, e=ends: insert_grant(conn, grant(f"g-{n}", expires_at=e)))
    await ledger.write(lambda conn: insert_grant(conn, grant("g-x", principal=OPERATOR, expires_at=AT + SECOND)))
    await ledger.write(lambda conn: insert_grant(conn, grant("g-y", workspace=OTHER, expires_at=AT + SECOND)))
    await ledger.write(lambda conn: revoke_grant(conn, OTHER, "g-y", by=OPERATOR, at=AT))

    async def expired(since: int, until: int) -> list[tuple[Workspace, PrincipalId]]:
        of = {"since": AT + since * SECOND, "until": AT + until * SECOND}
        return list(await ledger.read(lambda conn: principals_expired(conn, **of)))

    assert await expired(0, 1) == [(DEMO, APP), (DEMO, OPERATOR)]
    assert await expired(1, 2) == [(DEMO, APP)]
    assert await expired(3, 9) == []
