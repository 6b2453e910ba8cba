"""Receipts, grants and the journals: each transaction function keeps its promise."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import Connection

from gateway.ledger.engine import Ledger
from gateway.ledger.grants import grants_of, insert_grant, list_grants, revoke_grant, revoke_principal
from gateway.ledger.journal import latest_change, read_audit
from gateway.ledger.receipts import (
    ReceiptFilter,
    ReceiptRow,
    accept,
    find_receipt,
    list_receipts,
    lock_job,
    mark_refused,
    reserve,
    reserve_anew,
)
from tests.unit.ledger_rows import (
    APP,
    AT,
    DEMO,
    JOB,
    OPERATOR,
    REFUND,
    SECOND,
    grant,
    receipt,
)
from workflows.contract.ids import JobId, PluginName, Workspace, sha256_of

T = TypeVar("T")
OTHER = Workspace("other")


async def found(ledger: Ledger, job_id: str = JOB) -> ReceiptRow:
    row = await ledger.read(lambda conn: find_receipt(conn, DEMO, JobId(job_id)))
    assert row is not None
    return row


async def test_a_receipt_comes_back_to_the_byte_and_to_the_microsecond(ledger: Ledger) -> None:
    new = receipt()
    made = await ledger.write(lambda conn: reserve(conn, new))
    assert made.created
    row = await found(ledger)
    assert row == made.row
    assert {name: getattr(row, name) for name in vars(new)} == vars(new)
    assert row.reserved_at.tzinfo is not None
    assert not row.accepted


async def test_of_racing_reservations_one_creates_and_all_see_its_row(ledger: Ledger, ledger_url: str) -> None:
    other = Ledger.open(ledger_url)

    def attempt(number: int) -> Callable[[Connection], tuple[bool, bytes]]:
        def run(conn: Connection) -> tuple[bool, bytes]:
            made = reserve(conn, receipt(receipt=b"%d" % number))
            return made.created, made.row.receipt

        return run

    answers = await asyncio.gather(
        *((ledger if number % 2 else other).write_grouped(attempt(number), key=JOB) for number in range(30))
    )
    await other.close()
    assert [created for created, _ in answers].count(True) == 1
    assert len({kept for _, kept in answers}) == 1


async def test_acceptance_is_recorded_once_and_its_time_stays(ledger: Ledger) -> None:
    await ledger.write(lambda conn: reserve(conn, receipt()))
    assert await ledger.write(lambda conn: accept(conn, DEMO, JOB, AT))
    assert not await ledger.write(lambda conn: accept(conn, DEMO, JOB, AT + SECOND))
    assert not await ledger.write(lambda conn: accept(conn, OTHER, JOB, AT))
    assert (await found(ledger)).confirmed_at == AT


async def test_an_accepted_receipt_can_not_be_refused(ledger: Ledger) -> None:
    await ledger.write(lambda conn: reserve(conn, receipt()))
    await ledger.write(lambda conn: accept(conn, DEMO, JOB, AT))
    assert not await ledger.write(lambda conn: mark_refused(conn, DEMO, JOB, AT))
    assert (await found(ledger)).refused_at is None


async def test_an_acceptance_after_a_refusal_wins(ledger: Ledger) -> None:
    await ledger.write(lambda conn: reserve(conn, receipt()))
    assert await ledger.write(lambda conn: mark_refused(conn, DEMO, JOB, AT))
    assert await ledger.write(lambda conn: accept(conn, DEMO, JOB, AT + SECOND))
    row = await found(ledger)
    assert (row.accepted, row.refused_at) == (True, None)


async def test_a_refused_key_is_reserved_anew_once_for_the_same_content(ledger: Ledger) -> None:
    await ledger.write(lambda conn: reserve(conn, receipt()))
    again = receipt(receipt=b"second", reserved_at=AT + SECOND)
    assert await ledger.write(lambda conn: reserve_anew(conn, again)) is None
    await ledger.write(lambda conn: mark_refused(conn, DEMO, JOB, AT))
    other = replace(again, fingerprint=sha256_of(b"other content"))
    assert await ledger.write(lambda conn: reserve_anew(conn, other)) is None
    row = await ledger.write(lambda conn: reserve_anew(conn, again))
    assert row is not None
    assert (row.receipt, row.reserved_at, row.refused_at) == (b"second", AT + SECOND, None)
    assert await ledger.write(lambda conn: reserve_anew(conn, again)) is None


async def test_only_a_job_with_a_receipt_can_be_locked(ledger: Ledger) -> None:
    assert not await ledger.write(lambda conn: lock_job(conn, DEMO, JOB))
    await ledger.write(lambda conn: reserve(conn, receipt()))
    assert await ledger.write(lambda conn: lock_job(conn, DEMO, JOB))
    assert not await ledger.write(lambda conn: lock_job(conn, OTHER, JOB))


async def test_pages_hold_each_receipt_once_while_one_arrives(ledger: Ledger) -> None:
    for number in range(7):
        await ledger.write(lambda conn, n=number: reserve(conn, receipt(f"k-{n}")))
    await ledger.write(lambda conn: reserve(conn, receipt("k-1", workspace=OTHER)))
    await ledger.write(lambda conn: mark_refused(conn, DEMO, JobId("k-3"), AT))
    seen: list[str] = []
    before: int | None = None

    def next_page(conn: Connection) -> list[ReceiptRow]:
        return list_receipts(conn, DEMO, ReceiptFilter(), before_seq=before, limit=2)

    while page := await ledger.read(next_page):
        seen += [row.job_id for row in page]
        before = page[-1].seq
        await ledger.write(lambda conn: reserve(conn, receipt("k-late")))
    assert seen == ["k-6", "k-5", "k-4", "k-2", "k-1", "k-0"]


async def test_a_list_holds_what_was_asked_for_and_no_plugin_without_a_grant(ledger: Ledger) -> None:
    await ledger.write(lambda conn: reserve(conn, receipt("a", session="s1")))
    await ledger.write(lambda conn: reserve(conn, receipt("b", plugin=PluginName("feedback"))))

    async def listed(wanted: ReceiptFilter) -> list[str]:
        rows = await ledger.read(lambda conn: list_receipts(conn, DEMO, wanted, before_seq=None, limit=10))
        return [row.job_id for row in rows]

    assert await listed(ReceiptFilter(session="s1")) == ["a"]
    assert await listed(ReceiptFilter(plugin=PluginName("feedback"))) == ["b"]
    assert await listed(ReceiptFilter(plugins=frozenset({REFUND}))) == ["a"]
    assert await listed(ReceiptFilter(plugins=frozenset())) == []


async def test_a_grant_counts_until_it_expires_or_is_revoked(ledger: Ledger) -> None:
    await ledger.write(lambda conn: insert_grant(conn, grant("g-1")))
    await ledger.write(lambda conn: insert_grant(conn, grant("g-2", expires_at=AT + SECOND)))
    await ledger.write(lambda conn: insert_grant(conn, grant("g-3", workspace=OTHER)))
    assert not await ledger.write(lambda conn: insert_grant(conn, grant("g-1", actions=("*",))))

    async def valid(after: int) -> list[str]:
        rows = await ledger.read(lambda conn: grants_of(conn, DEMO, APP, AT + after * SECOND))
        assert all(row.actions == ("jobs:submit",) for row in rows)
        return [row.grant_id for row in rows]

    assert await valid(0) == ["g-1", "g-2"]
    assert await valid(1) == ["g-1"]
    assert await ledger.write(lambda conn: revoke_grant(conn, OTHER, "g-1", by=OPERATOR, at=AT)) is None
    assert await ledger.write(lambda conn: revoke_grant(conn, DEMO, "g-1", by=OPERATOR, at=AT)) is not None
    assert await ledger.write(lambda conn: revoke_grant(conn, DEMO, "g-1", by=OPERATOR, at=AT)) is None
    assert await valid(1) == []
    assert [row.grant_id for row in await ledger.read(lambda conn: list_grants(conn, DEMO))] == ["g-1", "g-2"]


async def test_revoking_a_principal_ends_every_grant_it_has_here(ledger: Ledger) -> None:
    for number in range(3):
        await ledger.write(lambda conn, n=number: insert_grant(conn, grant(f"g-{n}")))
    await ledger.write(lambda conn: insert_grant(conn, grant("g-9", principal=OPERATOR)))
    before = await ledger.read(lambda conn: latest_change(conn, DEMO))
    revoked = await ledger.write(lambda conn: revoke_principal(conn, DEMO, APP, by=OPERATOR, at=AT))
    assert len(revoked) == 3
    assert await ledger.read(lambda conn: grants_of(conn, DEMO, APP, AT)) == ()
    assert len(await ledger.read(lambda conn: grants_of(conn, DEMO, OPERATOR, AT))) == 1
    assert await ledger.read(lambda conn: latest_change(conn, DEMO)) == before + 3


async def test_the_audit_names_who_did_what_and_stays_in_its_workspace(ledger: Ledger) -> None:
    await ledger.write(lambda conn: insert_grant(conn, grant()))
    await ledger.write(lambda conn: revoke_grant(conn, DEMO, "g-1", by="eve", at=AT + SECOND))
    lines = await ledger.read(lambda conn: read_audit(conn, DEMO, after=0, limit=10))
    assert [(line.actor, line.action, line.subject) for line in lines] == [
        (OPERATOR, "grant.added", APP),
        ("eve", "grant.revoked", APP),
    ]
    assert await ledger.read(lambda conn: read_audit(conn, DEMO, after=lines[0].audit_no, limit=10)) == lines[1:]
    assert await ledger.read(lambda conn: read_audit(conn, OTHER, after=0, limit=10)) == []
