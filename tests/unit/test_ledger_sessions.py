"""Sessions in the ledger: one first job, one next job, and a conversation that only its last job moves on."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.ledger.engine import Ledger
from gateway.ledger.receipts import reserve
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
from tests.unit.ledger_rows import APP, AT, DEMO, JOB, REFUND, receipt
from workflows.contract.ids import BlobRef, JobId, Workspace, sha256_of

OTHER = Workspace("other")
HEADS = [BlobRef(sha256_of(b"%d" % number)) for number in range(9)]
FIRST = NewSession(
    workspace=DEMO,
    session="s1",
    plugin=REFUND,
    version="1.0.0",
    plugin_digest=sha256_of(b"plugin"),
    snapshot=sha256_of(b"snapshot"),
    by=APP,
    at=AT,
    last_job=JOB,
)


@pytest.fixture(autouse=True)
async def jobs(ledger: Ledger) -> None:
    for number in range(1, 9):
        new = receipt(f"k-{number}", session="s1" if number < 4 else None, job_input=b"%d" % number)
        await ledger.write(lambda conn, new=new: reserve(conn, new))


async def the_session(ledger: Ledger) -> SessionRow:
    row = await ledger.read(lambda conn: find_session(conn, DEMO, "s1"))
    assert row is not None
    return row


async def go_on(ledger: Ledger, after: str, job: str, **seen: Any) -> bool:
    return await ledger.write(
        lambda conn: continue_session(conn, DEMO, "s1", after=JobId(after), job_id=JobId(job), **seen)
    )


async def move(ledger: Ledger, job: str, step: int, attempt: int, head: int) -> BlobRef | None:
    await ledger.write(
        lambda conn: move_head(
            conn, DEMO, "s1", job_id=JobId(job), step=step, attempt=attempt, conversation=HEADS[head]
        )
    )
    return (await the_session(ledger)).conversation


async def test_the_first_job_binds_the_session_for_ever(ledger: Ledger) -> None:
    assert await ledger.write(lambda conn: open_session(conn, FIRST))
    other = replace(FIRST, snapshot=sha256_of(b"other"), last_job=JobId("k-2"))
    assert not await ledger.write(lambda conn: open_session(conn, other))
    row = await the_session(ledger)
    assert {name: getattr(row, name) for name in vars(FIRST)} == vars(FIRST)
    assert (row.conversation, row.head_step, row.head_attempt) == (None, 0, 0)
    assert await ledger.read(lambda conn: find_session(conn, OTHER, "s1")) is None


async def test_of_racing_first_jobs_one_opens_the_session(ledger: Ledger, ledger_url: str) -> None:
    other = Ledger.open(ledger_url)
    news = [replace(FIRST, last_job=JobId(f"k-{number}")) for number in range(1, 9)]
    said = await asyncio.gather(
        *((ledger, other)[n % 2].write(lambda conn, new=new: open_session(conn, new)) for n, new in enumerate(news))
    )
    await other.close()
    assert said.count(True) == 1
    assert (await the_session(ledger)).last_job == news[said.index(True)].last_job


async def test_of_racing_next_jobs_one_goes_on(ledger: Ledger, ledger_url: str) -> None:
    await ledger.write(lambda conn: open_session(conn, FIRST))
    other = Ledger.open(ledger_url)
    said = await asyncio.gather(*(go_on((ledger, other)[n % 2], "k-1", f"k-{n}") for n in range(2, 9)))
    await other.close()
    assert said.count(True) == 1
    assert (await the_session(ledger)).last_job == f"k-{said.index(True) + 2}"


async def test_a_job_goes_on_only_after_the_last_one_and_keeps_the_conversation(ledger: Ledger) -> None:
    await ledger.write(lambda conn: open_session(conn, FIRST))
    await move(ledger, "k-1", 4, 2, 0)
    assert not await go_on(ledger, "k-7", "k-2")
    assert await go_on(ledger, "k-1", "k-2")
    assert not await go_on(ledger, "k-1", "k-3")
    row = await the_session(ledger)
    assert (row.last_job, row.conversation, row.head_step, row.head_attempt) == ("k-2", HEADS[0], 0, 0)


async def test_a_job_that_starts_with_an_older_conversation_does_not_go_on(ledger: Ledger) -> None:
    await ledger.write(lambda conn: open_session(conn, FIRST))
    empty = await the_session(ledger)
    assert await go_on(ledger, "k-1", "k-2", seen=empty)
    await move(ledger, "k-2", 1, 1, 0)
    assert not await go_on(ledger, "k-2", "k-3", seen=empty)
    assert await go_on(ledger, "k-2", "k-3", seen=await the_session(ledger))


async def test_the_head_moves_on_and_never_back(ledger: Ledger) -> None:
    await ledger.write(lambda conn: open_session(conn, FIRST))
    assert await move(ledger, "k-1", 1, 1, 0) == HEADS[0]
    assert await move(ledger, "k-1", 1, 2, 1) == HEADS[1]
    assert await move(ledger, "k-1", 1, 1, 2) == HEADS[1]
    assert await move(ledger, "k-1", 3, 1, 3) == HEADS[3]
    assert await move(ledger, "k-1", 2, 9, 4) == HEADS[3]
    assert await move(ledger, "k-1", 3, 1, 5) == HEADS[5], "the same attempt again is the same answer"


async def test_only_the_last_job_moves_the_head(ledger: Ledger) -> None:
    await ledger.write(lambda conn: open_session(conn, FIRST))
    assert await move(ledger, "k-2", 9, 9, 0) is None
    await move(ledger, "k-1", 1, 1, 1)
    await go_on(ledger, "k-1", "k-2")
    assert await move(ledger, "k-1", 9, 9, 2) == HEADS[1]
    assert await move(ledger, "k-2", 1, 1, 3) == HEADS[3]


async def test_a_session_knows_its_jobs_and_their_inputs(ledger: Ledger) -> None:
    listed = await ledger.read(lambda conn: session_jobs(conn, DEMO, "s1"))
    assert [job.job_id for job in listed] == ["k-1", "k-2", "k-3"]
    assert await ledger.read(lambda conn: session_jobs(conn, OTHER, "s1")) == []
    wanted = [JobId("k-2"), JobId("unknown")]
    assert await ledger.read(lambda conn: inputs_of(conn, DEMO, wanted)) == {"k-2": b"2"}
    assert await ledger.read(lambda conn: inputs_of(conn, OTHER, wanted)) == {}
    assert await ledger.read(lambda conn: inputs_of(conn, DEMO, [])) == {}
