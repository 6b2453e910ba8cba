"""Trouble of PostgreSQL's own: a server stopped, frozen or restarted, a locked row, numbers handed out early.

The same promises on SQLite are in test_ledger_sqlite.py.
"""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import Connection, insert, select

from gateway.ledger.effects import hold_effect, mark_sent, record_outcome
from gateway.ledger.engine import Ledger
from gateway.ledger.journal import announce, changes_since, latest_change
from gateway.ledger.migrate import migrate
from gateway.ledger.receipts import find_receipt, lock_job, reserve
from gateway.ledger.stops import stop_job
from gateway.ledger.tables import changes
from tests.rig.postgres import Postgres
from tests.rig.waiting import wait_until
from tests.unit.ledger_rows import APP, AT, DEMO, JOB, receipt
from tests.unit.test_effects import WRITE
from tests.unit.test_ledger import assert_unavailable, note, noted
from workflows.contract.errors import Refused


@pytest.fixture
async def ledger(postgres_url: str) -> AsyncIterator[Ledger]:
    opened = Ledger.open(postgres_url)
    yield opened
    await opened.close()


@pytest.fixture
async def mortal(own_postgres: Postgres) -> AsyncIterator[Ledger]:
    """A ledger on a server of this test's own, with connections that stand."""
    url = own_postgres.create_database("mortal")
    migrate(url)
    opened = Ledger.open(url)
    assert await opened.write(noted) == await opened.read(noted) == 0
    yield opened
    await opened.close()


async def every_answer(ledger: Ledger) -> list[object]:
    calls = (ledger.read(noted), ledger.write(note("w")), ledger.write_grouped(note("g"), key="g"))
    return list(await asyncio.gather(*calls, return_exceptions=True))


def assert_all_unavailable(answers: list[object]) -> None:
    for answer in answers:
        assert isinstance(answer, Refused)
        assert_unavailable(answer)


@pytest.mark.alone
async def test_a_killed_server_is_unavailable_at_once_and_back_when_it_is_back(
    mortal: Ledger, own_postgres: Postgres
) -> None:
    assert await mortal.write(note("kept")) == "kept"
    own_postgres.kill()
    for _ in range(2):
        started = time.monotonic()
        assert_all_unavailable(await every_answer(mortal))
        assert time.monotonic() - started < 3
    own_postgres.start()
    assert await mortal.read(lambda conn: conn.execute(select(changes.c.subject)).scalars().all()) == ["kept"]
    assert await every_answer(mortal) == [1, "w", "g"]


@pytest.mark.alone
async def test_a_frozen_server_delays_no_answer_and_goes_on_when_it_is_resumed(
    mortal: Ledger, own_postgres: Postgres
) -> None:
    own_postgres.freeze()
    for call in (mortal.read(noted), mortal.write(note("w")), mortal.write_grouped(note("g"), key="g")):
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await call
        assert time.monotonic() - started < 1
    own_postgres.resume()
    assert await mortal.write(note("after")) == "after"


async def test_a_server_frozen_before_it_was_known_is_unavailable(own_postgres: Postgres) -> None:
    ledger = Ledger.open(own_postgres.create_database("unknown"))
    own_postgres.freeze()
    assert_all_unavailable(await every_answer(ledger))
    own_postgres.resume()
    await ledger.close()


async def test_a_locked_row_stops_neither_readers_nor_other_jobs(ledger: Ledger) -> None:
    await ledger.write(lambda conn: reserve(conn, receipt()))
    await ledger.write(lambda conn: reserve(conn, receipt("k-2")))
    held, release = threading.Event(), threading.Event()

    def hold(conn: Connection) -> None:
        lock_job(conn, DEMO, JOB)
        held.set()
        release.wait(30)

    holding = asyncio.create_task(ledger.write(hold))
    await wait_until(held.is_set)
    waiting = asyncio.create_task(ledger.write(lambda conn: stop_job(conn, DEMO, JOB, by=APP, at=AT)))
    assert await ledger.read(lambda conn: find_receipt(conn, DEMO, JOB)) is not None
    other = receipt("k-2").job_id
    assert await ledger.write(lambda conn: stop_job(conn, DEMO, other, by=APP, at=AT)) is not None
    assert not waiting.done()
    release.set()
    await holding
    assert await waiting is not None


async def test_a_row_locked_for_too_long_is_unavailable(ledger: Ledger) -> None:
    await ledger.write(lambda conn: reserve(conn, receipt()))
    held, release = threading.Event(), threading.Event()

    def hold(conn: Connection) -> None:
        lock_job(conn, DEMO, JOB)
        held.set()
        release.wait(30)

    holding = asyncio.create_task(ledger.write(hold))
    await wait_until(held.is_set)
    with pytest.raises(Refused) as refused:
        await ledger.write(lambda conn: stop_job(conn, DEMO, JOB, by=APP, at=AT))
    release.set()
    await holding
    assert_unavailable(refused.value)


async def test_a_group_that_waits_in_a_ring_runs_again_and_every_member_has_its_own_answer(
    ledger: Ledger, postgres_url: str
) -> None:
    """A companion's error has the group run member by member; the ring closes there, and is nobody's error."""
    second = receipt("k-2").job_id
    for row in (receipt(), receipt("k-2")):
        await ledger.write(lambda conn, row=row: reserve(conn, row))
    other = Ledger.open(postgres_url)
    runs, has_first, has_second = 0, threading.Event(), threading.Event()

    def crossing(conn: Connection) -> int:
        nonlocal runs
        runs += 1
        if runs > 1:
            lock_job(conn, DEMO, JOB)
            has_first.set()
            assert has_second.wait(30)
            lock_job(conn, DEMO, second)
        return runs

    def fails(_conn: Connection) -> None:
        raise ValueError("its own")

    def opposite(conn: Connection) -> None:
        lock_job(conn, DEMO, second)
        has_second.set()
        assert has_first.wait(30)
        time.sleep(0.4)  # the group waits first, so it is the one that the server gives up
        lock_job(conn, DEMO, JOB)

    blocker = asyncio.create_task(ledger.write_grouped(lambda _: time.sleep(0.2), key="first"))
    await asyncio.sleep(0.05)  # the two below wait together for it
    group = [ledger.write_grouped(crossing, key="a"), ledger.write_grouped(fails, key="b")]
    *answers, _ = await asyncio.gather(*group, other.write(opposite), return_exceptions=True)
    await blocker
    await other.close()
    assert answers[0] == runs == 3
    assert isinstance(answers[1], ValueError)


async def two_changes(ledger: Ledger, *, announced: bool) -> list[int]:
    """What a reader sees after the change that it saw first, when the lower number was taken by a slow writer."""
    taken, release = threading.Event(), threading.Event()

    def add(conn: Connection) -> None:
        if announced:
            announce(conn, DEMO, at=AT, kind="note", subject="s")
        else:
            conn.execute(insert(changes), {"workspace": DEMO, "at": AT, "kind": "note", "subject": "s"})

    def slow(conn: Connection) -> None:
        add(conn)
        taken.set()
        release.wait(30)

    slow_one = asyncio.create_task(ledger.write(slow))
    await wait_until(taken.is_set)
    quick_one = asyncio.create_task(ledger.write(add))
    if announced:
        await wait_until(lambda: ledger.read(_waits_for_a_lock))
    else:
        await quick_one
    seen = await ledger.read(lambda conn: latest_change(conn, DEMO))
    release.set()
    await asyncio.gather(slow_one, quick_one)
    return [row.change_no for row in await ledger.read(lambda conn: changes_since(conn, DEMO, seen))]


def _waits_for_a_lock(conn: Connection) -> bool:
    return bool(conn.exec_driver_sql("SELECT 1 FROM pg_locks WHERE NOT granted").first())


async def test_whoever_saw_a_change_has_seen_every_earlier_one(ledger: Ledger) -> None:
    assert await two_changes(ledger, announced=True) == [1, 2]


async def test_without_announcing_one_at_a_time_a_change_would_be_missed(ledger: Ledger) -> None:
    assert await two_changes(ledger, announced=False) == []


async def test_whoever_changes_an_effect_by_what_it_was_has_seen_what_became_of_it(ledger: Ledger) -> None:
    """A job gives a write up while its outcome comes: one of the two sees the other, so the job hears of it."""
    await ledger.write(lambda conn: reserve(conn, receipt()))
    await ledger.write(lambda conn: mark_sent(conn, WRITE, seen_epoch=0, at=AT))
    held = threading.Event()

    def give_up(conn: Connection) -> None:
        assert hold_effect(conn, WRITE.effect_id) is not None
        held.set()
        ends = time.monotonic() + 5
        while not _waits_for_a_lock(conn) and time.monotonic() < ends:
            time.sleep(0.02)
        record_outcome(conn, WRITE.effect_id, 1, "unknown", None, at=AT)

    def outcome(conn: Connection) -> str | None:
        row = hold_effect(conn, WRITE.effect_id)
        assert record_outcome(conn, WRITE.effect_id, 1, "confirmed", None, at=AT)
        return None if row is None else row.state

    giving_up = asyncio.create_task(ledger.write(give_up))
    await wait_until(held.is_set)
    seen = await ledger.write(outcome)
    await giving_up
    assert seen == "unknown"


def test_a_missing_driver_is_named() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None; from gateway.ledger.engine import Ledger; Ledger.open(sys.argv[1])"
    )
    url = "postgresql+psycopg://user:s3cret@127.0.0.1/db"
    ended = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, check=False)
    assert "ValueError: a ledger on PostgreSQL needs the driver: pip install 'jobgate[postgres]'" in ended.stderr
    assert "s3cret" not in ended.stderr
