"""Of racing jobs one opens a session and one goes on with it; a session knows its jobs and their inputs."""

import asyncio
from dataclasses import replace

import pytest

from gateway.ledger.engine import Ledger
from gateway.ledger.receipts import reserve
from gateway.ledger.sessions import (
    NewSession,
    SessionRow,
    continue_session,
    find_session,
    inputs_of,
    open_session,
    session_jobs,
)
from tests.unit.ledger_rows import APP, AT, DEMO, JOB, REFUND, receipt
from workflows.contract.ids import JobId, Workspace, sha256_of

OTHER = Workspace("other")
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


async def go_on(ledger: Ledger, after: str, job: str) -> bool:
    return await ledger.write(lambda conn: continue_session(conn, DEMO, "s1", after=JobId(after), job_id=JobId(job)))


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


async def test_a_session_knows_its_jobs_and_their_inputs(ledger: Ledger) -> None:
    listed = await ledger.read(lambda conn: session_jobs(conn, DEMO, "s1"))
    assert [job.job_id for job in listed] == ["k-1", "k-2", "k-3"]
    assert await ledger.read(lambda conn: session_jobs(conn, OTHER, "s1")) == []
    wanted = [JobId("k-2"), JobId("unknown")]
    assert await ledger.read(lambda conn: inputs_of(conn, DEMO, wanted)) == {"k-2": b"2"}
    assert await ledger.read(lambda conn: inputs_of(conn, OTHER, wanted)) == {}
    assert await ledger.read(lambda conn: inputs_of(conn, DEMO, [])) == {}
