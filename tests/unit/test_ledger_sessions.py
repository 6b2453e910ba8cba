"""A session's row: made once, moved from job to job by one winner, its conversation by its last job's newest answer."""

from typing import Any

import pytest

from gateway.ledger.engine import Ledger
from gateway.ledger.receipts import accept, mark_refused, reserve
from gateway.ledger.sessions import (
    NewSession,
    SessionRow,
    continue_session,
    find_session,
    inputs_of,
    move_head,
    open_session,
    session_jobs,
)
from tests.unit.ledger_rows import APP, AT, DEMO, REFUND, receipt
from workflows.contract.ids import BlobRef, JobId, Workspace, sha256_of

NAME = "cust-9"
FIRST, SECOND = JobId("k-1"), JobId("k-2")


def blob(text: str) -> BlobRef:
    return BlobRef(sha256_of(text.encode()))


async def opened(ledger: Ledger, job: JobId = FIRST) -> bool:
    await ledger.write(lambda conn: reserve(conn, receipt(job, session=NAME)))
    new = NewSession(DEMO, NAME, REFUND, "1.0.0", sha256_of(b"p"), sha256_of(b"s"), APP, AT, job)
    return await ledger.write(lambda conn: open_session(conn, new))


async def row(ledger: Ledger) -> SessionRow:
    found = await ledger.read(lambda conn: find_session(conn, DEMO, NAME))
    assert found is not None
    return found


async def moved(ledger: Ledger, head: str, step: int, attempt: int = 1, job: JobId = FIRST) -> BlobRef | None:
    """The head after this answer."""
    ref = blob(head)
    await ledger.write(
        lambda conn: move_head(conn, DEMO, NAME, job_id=job, step=step, attempt=attempt, conversation=ref)
    )
    return (await row(ledger)).conversation


async def went_on(ledger: Ledger, after: JobId, job: JobId, **seen: Any) -> bool:
    await ledger.write(lambda conn: reserve(conn, receipt(job, session=NAME)))
    return await ledger.write(lambda conn: continue_session(conn, DEMO, NAME, after=after, job_id=job, **seen))


async def test_the_first_job_makes_the_session_and_binds_it_for_ever(ledger: Ledger) -> None:
    assert await opened(ledger)
    assert not await opened(ledger, SECOND)
    found = await row(ledger)
    assert (found.last_job, found.snapshot, found.conversation) == (FIRST, sha256_of(b"s"), None)
    assert await ledger.read(lambda conn: find_session(conn, Workspace("other"), NAME)) is None


async def test_the_next_job_is_the_first_that_follows_the_last(ledger: Ledger) -> None:
    await opened(ledger)
    assert await went_on(ledger, FIRST, SECOND)
    assert not await went_on(ledger, FIRST, JobId("k-3"))
    assert (await row(ledger)).last_job == SECOND


async def test_no_job_goes_on_from_a_conversation_that_has_moved(ledger: Ledger) -> None:
    await opened(ledger)
    before = await row(ledger)
    await moved(ledger, "one", 1)
    assert not await went_on(ledger, FIRST, SECOND, seen=before)
    assert (await row(ledger)).last_job == FIRST
    assert await went_on(ledger, FIRST, SECOND, seen=await row(ledger))


async def test_a_conversation_without_an_answer_may_go_on(ledger: Ledger) -> None:
    await opened(ledger)
    assert await went_on(ledger, FIRST, SECOND, seen=await row(ledger))


@pytest.mark.parametrize(("step", "attempt", "moves"), [(2, 2, True), (2, 3, True), (3, 1, True), (2, 1, False)])
async def test_the_newest_attempt_of_the_newest_step_is_the_head(
    ledger: Ledger, step: int, attempt: int, moves: bool
) -> None:
    await opened(ledger)
    assert await moved(ledger, "first", 2, 2) == blob("first")
    assert await moved(ledger, "late", step, attempt) == blob("late" if moves else "first")


async def test_an_answer_that_comes_after_the_next_job_moves_nothing(ledger: Ledger) -> None:
    await opened(ledger)
    await moved(ledger, "first", 5)
    await went_on(ledger, FIRST, SECOND)
    assert await moved(ledger, "late", 6) == blob("first")
    assert await moved(ledger, "next", 1, job=SECOND) == blob("next")


async def test_jobs_are_listed_oldest_first_without_those_that_the_engine_refused(ledger: Ledger) -> None:
    for name, session in (("k-1", NAME), ("k-2", NAME), ("k-3", NAME), ("k-4", "other"), ("k-5", None)):
        new = receipt(name, session=session)
        await ledger.write(lambda conn, new=new: reserve(conn, new))
    await ledger.write(lambda conn: accept(conn, DEMO, FIRST, AT))
    await ledger.write(lambda conn: mark_refused(conn, DEMO, SECOND, AT))
    jobs = await ledger.read(lambda conn: session_jobs(conn, DEMO, NAME))
    assert [(job.job_id, job.confirmed_at is not None) for job in jobs] == [("k-1", True), ("k-3", False)]
    inputs = await ledger.read(lambda conn: inputs_of(conn, DEMO, [FIRST, JobId("nobody")]))
    assert inputs == {FIRST: b'{"invoice":"inv_17"}'}
    assert await ledger.read(lambda conn: inputs_of(conn, Workspace("other"), [FIRST])) == {}
