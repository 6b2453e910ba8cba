"""The same questions as in test_trouble_and_every_verb.py, with PostgreSQL as the ledger: its server dies and comes
back, and somebody holds the rows of every table.

`slow` (each is a stack and a server of its own): tests/http/test_postgres.py asks the first verbs of it in every run.
"""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import psycopg
import pytest
import pytest_asyncio

from gateway.ledger.tables import metadata
from tests.recovery.verbs import converged, made, tried_again, unfit
from tests.rig.postgres import Postgres
from tests.rig.stack import Stack

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    own = Postgres()
    try:
        own.start()
        yield own
    finally:
        own.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(server: Postgres, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    own = Stack(tmp_path_factory.mktemp("verbs-postgres"), ledger_url=server.create_database("verbs"))
    try:
        await own.start()
        yield own
    finally:
        await own.close()


@asynccontextmanager
async def stopped(server: Postgres, _stack: Stack) -> AsyncGenerator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


@asynccontextmanager
async def frozen(server: Postgres, _stack: Stack) -> AsyncGenerator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.resume()


@asynccontextmanager
async def rows_locked(_server: Postgres, stack: Stack) -> AsyncGenerator[None]:
    """Another session may write to every table, and nobody else."""
    url = stack.settings.ledger_url.replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(url) as holder:
        for table in metadata.sorted_tables:
            holder.execute(f"LOCK TABLE {table.name} IN EXCLUSIVE MODE".encode())
        yield
        holder.rollback()


Trouble = Callable[[Postgres, Stack], AbstractAsyncContextManager[None]]
WRITES = frozenset({"submit", "retry", "decision", "cancel", "upload", "publish"})


@pytest.mark.parametrize(
    ("trouble", "refused", "answered"),
    [
        (stopped, WRITES | {"replay", "read", "list"}, frozenset[str]()),
        (frozen, WRITES | {"replay", "read", "list"}, frozenset[str]()),
        (rows_locked, WRITES, {"replay", "read", "page", "list", "inbox"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_every_verb_is_answered_in_time_and_all_converges(
    ground: Stack, server: Postgres, trouble: Trouble, refused: frozenset[str], answered: frozenset[str]
) -> None:
    world = await made(ground)
    async with trouble(server, ground):
        ground.effects.release(world.held)
        answers = await world.ask_all()
    assert unfit(answers) == {}
    assert tried_again(answers) >= refused
    assert tried_again(answers) & answered == set()
    await converged(world)
