"""A verdict that its job has not read is told of by one process at a time, and ever more seldom."""

import pytest

from gateway.ledger.authorities import insert_authority, mark_ended
from gateway.ledger.decisions import cast_vote, close_request
from gateway.ledger.engine import Ledger
from gateway.ledger.receipts import reserve
from gateway.ledger.untaken import TAKEN_WITHIN, Untaken, claim_telling, take_decision, untaken_decisions
from tests.unit.ledger_rows import ACTION, AT, DEMO, JOB, REQUEST, SECOND, authority, receipt, vote

SOON = AT + TAKEN_WITHIN + SECOND


@pytest.fixture(autouse=True)
async def admitted(ledger: Ledger) -> None:
    await ledger.write(lambda conn: reserve(conn, receipt()))
    await ledger.write(lambda conn: insert_authority(conn, authority()))


async def untaken(ledger: Ledger, after_s: float) -> list[Untaken]:
    return list(await ledger.read(lambda conn: untaken_decisions(conn, AT + after_s * SECOND, 9)))


async def claimed(ledger: Ledger, one: Untaken, after_s: float) -> bool:
    return await ledger.write(lambda conn: claim_telling(conn, one, AT + after_s * SECOND))


async def test_a_verdict_is_due_after_a_while_to_one_process_and_then_ever_later(ledger: Ledger) -> None:
    await ledger.write(lambda conn: cast_vote(conn, vote("ann"), quorum=1))
    assert await untaken(ledger, 3) == []
    [one] = await untaken(ledger, 5)
    assert (one.job_id, one.request_id, one.decided_at) == (JOB, REQUEST, AT)
    assert [await claimed(ledger, one, 5), await claimed(ledger, one, 5)] == [True, False]
    assert [len(await untaken(ledger, after)) for after in (6, 9.9, 10.1)] == [0, 0, 1]
    assert await claimed(ledger, one, 40)
    assert [len(await untaken(ledger, after)) for after in (41, 79, 81)] == [0, 0, 1]


async def test_a_job_that_has_ended_is_told_nothing(ledger: Ledger) -> None:
    await ledger.write(lambda conn: cast_vote(conn, vote("ann"), quorum=1))
    await ledger.write(lambda conn: mark_ended(conn, [(DEMO, JOB)], AT))
    assert await untaken(ledger, 60) == []


async def test_a_verdict_that_was_read_is_told_of_no_more(ledger: Ledger) -> None:
    await ledger.write(lambda conn: cast_vote(conn, vote("ann"), quorum=1))
    [one] = await untaken(ledger, 60)
    await ledger.write(lambda conn: take_decision(conn, DEMO, JOB, REQUEST, SOON))
    assert await untaken(ledger, 60) == []
    assert not await claimed(ledger, one, 60)


async def test_what_the_job_itself_closed_is_taken(ledger: Ledger) -> None:
    await ledger.write(
        lambda conn: close_request(conn, DEMO, JOB, REQUEST, verdict="expired", action_digest=ACTION, at=AT)
    )
    assert await untaken(ledger, 60) == []
