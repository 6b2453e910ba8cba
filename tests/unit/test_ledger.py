"""The ledger as an engine: transactions, group commit, crashes and migrations, the same on both databases.

What only one of them can suffer is in test_ledger_sqlite.py and test_ledger_postgres.py.
"""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, event, func, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from gateway.ledger import authority_tables, catalog_tables
from gateway.ledger.engine import Ledger
from gateway.ledger.journal import announce, latest_change, read_audit, record
from gateway.ledger.migrate import migrate
from gateway.ledger.tables import audit, changes, metadata
from tests.rig.waiting import wait_until
from tests.unit.ledger_rows import AT, DEMO
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import Workspace

__all__ = ["authority_tables", "catalog_tables"]  # importing them puts their tables into the metadata


def note(subject: str) -> Callable[[Connection], str]:
    def write(conn: Connection) -> str:
        announce(conn, DEMO, at=AT, kind="note", subject=subject)
        return subject

    return write


def noted(conn: Connection) -> int:
    return latest_change(conn, DEMO)


def assert_unavailable(error: BaseException | None) -> None:
    assert isinstance(error, Refused)
    assert error.code == ProblemCode.LEDGER_UNAVAILABLE


async def test_the_migrated_schema_is_the_metadata(ledger: Ledger) -> None:
    def differences(conn: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(conn, opts={"compare_type": True}), metadata))

    assert await ledger.read(differences) == []


async def test_migrating_again_changes_nothing(ledger: Ledger, ledger_url: str) -> None:
    await ledger.write(note("kept"))
    migrate(ledger_url)
    assert await ledger.read(noted) == 1


def test_processes_may_migrate_at_the_same_time(empty_url: str) -> None:
    program = "import sys; from gateway.ledger.migrate import migrate; migrate(sys.argv[1])"
    running = [subprocess.Popen([sys.executable, "-c", program, empty_url]) for _ in range(3)]
    assert [process.wait(timeout=60) for process in running] == [0, 0, 0]


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://host/db", "postgresql://host/db"])
def test_a_database_that_can_not_hold_a_ledger_is_named(url: str) -> None:
    with pytest.raises(ValueError, match="ledger"):
        Ledger.open(url)


async def test_a_read_can_not_write(ledger: Ledger) -> None:
    with pytest.raises(Refused) as refused:
        await ledger.read(note("never"))
    assert isinstance(refused.value.__cause__, DBAPIError)
    assert await ledger.read(noted) == 0


async def test_a_write_is_all_or_nothing(ledger: Ledger) -> None:
    def half(conn: Connection) -> None:
        note("half")(conn)
        raise KeyError("the other half")

    with pytest.raises(KeyError):
        await ledger.write(half)
    assert await ledger.read(noted) == 0


async def test_a_group_is_few_commits_and_each_member_has_its_own_result(ledger: Ledger) -> None:
    commits: list[Connection] = []

    def count(conn: Connection) -> None:
        commits.append(conn)

    event.listen(Engine, "commit", count)
    try:
        results = await asyncio.gather(
            *(ledger.write_grouped(note(f"job-{number}"), key=f"job-{number}") for number in range(100))
        )
    finally:
        event.remove(Engine, "commit", count)
    assert results == [f"job-{number}" for number in range(100)]
    assert len(commits) <= 3


async def test_a_member_that_fails_takes_no_companion_down(ledger: Ledger) -> None:
    def fail(conn: Connection) -> str:
        note("half")(conn)
        raise KeyError("mine alone")

    results = await asyncio.gather(
        ledger.write_grouped(note("a"), key="a"),
        ledger.write_grouped(fail, key="b"),
        ledger.write_grouped(note("c"), key="c"),
        return_exceptions=True,
    )
    assert results[0] == "a"
    assert isinstance(results[1], KeyError)
    assert results[2] == "c"
    assert await ledger.read(lambda conn: conn.execute(select(changes.c.subject)).scalars().all()) == ["a", "c"]


@pytest.mark.parametrize("how", ["read", "write", "grouped"])
async def test_a_stuck_ledger_refuses_at_once_when_the_line_is_full(ledger_url: str, how: str) -> None:
    ledger = Ledger.open(ledger_url, waiting_limit=8)
    release = threading.Event()

    def hang(_conn: Connection) -> None:
        release.wait(20)

    async def call() -> None:
        if how == "grouped":
            await ledger.write_grouped(hang, key="k")
        else:
            await (ledger.read(hang) if how == "read" else ledger.write(hang))

    calls = [asyncio.create_task(call()) for _ in range(30)]
    done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert len(waiting) >= 8
    for refused in done:
        assert_unavailable(refused.exception())
    release.set()
    await asyncio.gather(*waiting)
    await ledger.close()


async def test_a_closed_ledger_has_committed_left_no_thread_and_refuses(ledger_url: str) -> None:
    before = set(threading.enumerate())
    ledger = Ledger.open(ledger_url)
    writes = [asyncio.create_task(ledger.write_grouped(note(key), key=key)) for key in "abcdef"]
    await asyncio.sleep(0)
    await ledger.close()
    assert await asyncio.gather(*writes) == list("abcdef")
    await wait_until(lambda: set(threading.enumerate()) <= before)
    for call in (ledger.read(noted), ledger.write(noted), ledger.write_grouped(noted, key="k")):
        with pytest.raises(Refused) as refused:
            await call
        assert_unavailable(refused.value)


async def test_errors_of_statements_do_not_repeat_their_parameters(ledger: Ledger) -> None:
    with pytest.raises(IntegrityError) as failed:
        await ledger.write(lambda conn: conn.execute(insert(audit), {"actor": "s3cret"}))
    assert "s3cret" not in str(failed.value)


@pytest.mark.parametrize("how", ["write", "grouped"])
async def test_a_text_with_a_nul_is_the_callers_fault_and_not_an_outage(ledger: Ledger, how: str) -> None:
    bad, good = note("s3cret\0"), note("sound")
    if how == "grouped":
        calls = [ledger.write_grouped(bad, key="a"), ledger.write_grouped(good, key="b")]
    else:
        calls = [ledger.write(bad), ledger.write(good)]
    refused, sound = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(refused, Refused)
    assert refused.code == ProblemCode.INPUT_INVALID
    assert "s3cret" not in str(refused)
    assert sound == "sound"


async def test_a_search_for_a_nul_is_refused_and_a_document_may_hold_one(ledger: Ledger) -> None:
    with pytest.raises(Refused) as refused:
        await ledger.read(lambda conn: latest_change(conn, Workspace("de\0mo")))
    assert refused.value.code == ProblemCode.INPUT_INVALID
    await ledger.write(lambda conn: record(conn, DEMO, at=AT, actor="a", action="b", subject="c", said="\0"))
    (line,) = await ledger.read(lambda conn: read_audit(conn, DEMO, after=0, limit=9))
    assert line.detail == {"said": "\0"}


WRITE_FOR_EVER = """
import asyncio, sys
from tests.unit.test_ledger import note
from gateway.ledger.engine import Ledger

async def main():
    ledger = Ledger.open(sys.argv[1])
    number = 0
    while True:
        names = [f"n{number + i}" for i in range(5)]
        await asyncio.gather(*(ledger.write_grouped(note(name), key=name) for name in names))
        number += 5
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()

asyncio.run(main())
"""


def run_and_kill(url: str) -> int:
    """How many notes a writer told of before it was killed by signal 9."""
    with subprocess.Popen([sys.executable, "-c", WRITE_FOR_EVER, url], stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        told = [int(it.stdout.readline()) for _ in range(20)]
        it.kill()
        told += [int(line) for line in it.stdout.read().splitlines() if line]
    return told[-1]


async def test_what_was_committed_survives_kill_9_of_the_writer(ledger: Ledger, ledger_url: str) -> None:
    told = run_and_kill(ledger_url)
    kept = await ledger.read(lambda conn: conn.execute(select(func.count()).select_from(changes)).scalar_one())
    assert kept >= told
