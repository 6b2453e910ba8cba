"""Trouble of SQLite's own: a file that is locked, gone, replaced or full, and the file itself after a crash.

The same promises on PostgreSQL are in test_ledger_postgres.py.
"""

import asyncio
import resource
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gateway.ledger.engine import Ledger
from gateway.ledger.migrate import migrate
from tests.unit.test_ledger import assert_unavailable, note, noted, run_and_kill
from workflows.contract.errors import Refused


@pytest.fixture
async def ledger(sqlite_url: str) -> AsyncIterator[Ledger]:
    opened = Ledger.open(sqlite_url)
    yield opened
    await opened.close()


@contextmanager
def locked(url: str) -> Generator[None]:
    """Another process holds the writer's lock."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def test_a_refused_commit_is_every_members_refusal(ledger: Ledger, sqlite_url: str) -> None:
    with locked(sqlite_url):
        results = await asyncio.gather(
            *(ledger.write_grouped(note(key), key=key) for key in "abc"), return_exceptions=True
        )
    for result in results:
        assert isinstance(result, Refused)
        assert_unavailable(result)
    assert await ledger.write(noted) == 0


async def test_a_locked_ledger_does_not_stop_readers(ledger: Ledger, sqlite_url: str) -> None:
    with locked(sqlite_url):
        assert await ledger.read(noted) == 0


@pytest.mark.alone
@pytest.mark.parametrize("how", ["write", "grouped"])
async def test_a_caller_out_of_time_is_answered_in_time(ledger: Ledger, sqlite_url: str, how: str) -> None:
    call = ledger.write(note("late")) if how == "write" else ledger.write_grouped(note("late"), key="late")
    with locked(sqlite_url):
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await call
        assert time.monotonic() - started < 0.5


async def test_a_ledger_out_of_reach_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").mkdir()
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    for call in (ledger.read(noted), ledger.write(noted), ledger.write_grouped(noted, key="k")):
        with pytest.raises(Refused) as refused:
            await call
        assert_unavailable(refused.value)
    await ledger.close()


def test_the_file_is_sound_after_its_writer_was_killed(sqlite_url: str) -> None:
    assert run_and_kill(sqlite_url) > 0
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as left:
        assert left.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


async def every_answer(ledger: Ledger) -> list[object]:
    calls = (ledger.read(noted), ledger.write(note("w")), ledger.write_grouped(note("g"), key="g"))
    return list(await asyncio.gather(*calls, return_exceptions=True))


def assert_all_unavailable(answers: list[object]) -> None:
    for answer in answers:
        assert isinstance(answer, Refused)
        assert_unavailable(answer)


async def test_a_ledger_that_was_moved_away_takes_nothing_and_is_there_when_it_is_back(
    ledger: Ledger, sqlite_url: str
) -> None:
    """Connections that stand would go on writing into the moved file, and new ones would make an empty one."""
    assert await ledger.write(note("before")) == "before"
    assert await ledger.read(noted) == 1
    file = file_of(sqlite_url)
    away = file.rename(file.with_name("away.db"))
    for _ in range(2):
        assert_all_unavailable(await every_answer(ledger))
    assert not file.exists()
    away.rename(file)
    assert await ledger.read(noted) == 1
    assert await ledger.write(note("after")) == "after"


def test_the_mutant_a_plain_connection_takes_writes_that_nobody_sees(sqlite_url: str) -> None:
    file = file_of(sqlite_url)
    with closing(sqlite3.connect(file, isolation_level=None)) as plain:
        plain.execute("CREATE TABLE mutant (x)")
        file.rename(file.with_name("away.db"))
        plain.execute("INSERT INTO mutant VALUES (1)")
        assert plain.execute("SELECT count(*) FROM mutant").fetchone() == (1,)
    with closing(sqlite3.connect(file)):
        assert file.exists()


async def test_a_ledger_in_whose_place_another_was_put_is_that_one(ledger: Ledger, sqlite_url: str) -> None:
    """What was deleted would go on being read and written until the processes end."""
    assert await ledger.write(note("lost")) == "lost"
    assert await ledger.read(noted) == 1
    file = file_of(sqlite_url)
    restored = file.with_name("restored.db")
    migrate(f"sqlite:///{restored}")
    for leftover in file.parent.glob(f"{file.name}*"):
        leftover.unlink()
    assert_all_unavailable(await every_answer(ledger))
    restored.rename(file)
    assert await ledger.read(noted) == 0
    assert await ledger.write(note("new")) == "new"


@pytest.mark.skipif(sys.platform != "linux", reason="limits of a process that runs are Linux's")
async def test_a_full_disk_takes_nothing_and_leaves_readers_alone(ledger: Ledger) -> None:
    assert await ledger.write(note("before")) == "before"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        refused = await asyncio.gather(
            ledger.write(note("w")), ledger.write_grouped(note("g"), key="g"), return_exceptions=True
        )
        read = await ledger.read(noted)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_all_unavailable(list(refused))
    assert read == 1
    _, *written = await every_answer(ledger)
    assert written == ["w", "g"]
    assert await ledger.read(noted) == 3
