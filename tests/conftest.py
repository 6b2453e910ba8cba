"""What every test may ask for: one shared running stack for http tests, stacks of one's own for recovery tests.

The shared one is started once and never broken: a test that kills, freezes or restarts a process takes `fresh_stack`.
"""

import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.rig.client import Client
from tests.rig.effect_log import EffectLog
from tests.rig.overheard import EAR
from tests.rig.postgres import Postgres
from tests.rig.stack import Stack

# Whoever runs the tests may have a Jobgate or a Temporal of their own in the environment; no test may reach it.
# Only the knobs of the tests themselves (JOBGATE_TEST_*) stay.
for _name in [name for name in os.environ if name.startswith(("JOBGATE_", "TEMPORAL_"))]:
    if not _name.startswith("JOBGATE_TEST_"):
        del os.environ[_name]
os.environ["TEMPORAL_CONFIG_FILE"] = os.devnull

FreshStack = Callable[..., Awaitable[Stack]]
_CRASHED = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """What must not outlive the run, also where a process of it is killed, lies in one folder, open to other users."""
    if not hasattr(config, "workerinput"):
        os.environ["TESTS_FOLDER"] = tempfile.mkdtemp(prefix="jobgate-tests-")
        os.chmod(os.environ["TESTS_FOLDER"], 0o711)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        # Not strict: a server that was just killed may still be writing there.
        shutil.rmtree(os.environ["TESTS_FOLDER"], ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """One of the processes that run the tests (pytest-xdist) ended; an error says that it was not told to."""
    if error is not None:
        node.config.stash[_CRASHED] = True


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """After crashes the rest may not have been run, so `--last-failed` has to run everything."""
    if session.config.stash.get(_CRASHED, False) and session.config.pluginmanager.hasplugin("cacheprovider"):
        session.config.cache.set("cache/lastfailed", {})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that was answered what no app may be told fails, whatever else it says."""
    try:
        return (yield)
    finally:
        EAR.fail()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        EAR.fail()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    """Temporal, one API and one worker, shared by the whole run."""
    shared = Stack(tmp_path_factory.mktemp("stack"))
    try:
        await shared.start()
        yield shared
    finally:
        await shared.close()


@pytest.fixture(scope="session")
def postgres() -> Generator[Postgres]:
    """One PostgreSQL server, shared by the whole run; a test has databases of its own in it."""
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def own_postgres() -> Generator[Postgres]:
    """A server of this test's own, to be killed, frozen and restarted."""
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest_asyncio.fixture(loop_scope="session")
async def fresh_stack(tmp_path: Path) -> AsyncGenerator[FreshStack]:
    """`await fresh_stack(apis=2, workers=0, settings={...})`: a stack of this test's own; all are closed after it.

    `ledger_url` is another ledger than the folder's SQLite file.
    """
    made: list[Stack] = []

    async def make(
        *, apis: int = 1, workers: int = 1, settings: dict[str, str] | None = None, ledger_url: str | None = None
    ) -> Stack:
        own = Stack(tmp_path / f"stack-{len(made)}", settings=settings, ledger_url=ledger_url)
        made.append(own)
        await own.start(apis=apis, workers=workers)
        return own

    try:
        yield make
    finally:
        for own in made:
            await own.close()


@pytest.fixture
def effects(stack: Stack) -> EffectLog:
    """The shared stack's effect log, emptied."""
    stack.effects.reset()
    return stack.effects


@pytest.fixture
def app(stack: Stack) -> Client:
    return stack.client("app")


@pytest.fixture
def operator(stack: Stack) -> Client:
    return stack.client("operator")


@pytest.fixture
def approver(stack: Stack) -> Client:
    """Of the finance group, which the example's refunds ask for."""
    return stack.client("approver", groups=["finance"])
