"""Trouble of SQLite's own: a locked file, a folder in the file's place, and the file itself after a crash.

The same promises on PostgreSQL are in test_ledger_postgres.py.
"""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gateway.ledger.engine import Ledger
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
