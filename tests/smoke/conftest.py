"""A stack of the smokes' own, quiet but for what a test does, and an API inside the test's process on it."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from tests.rig.client import Client
from tests.rig.stack import Stack
from tests.smoke.inside import Inside, inside


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def quiet(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    """Temporal, one API and one worker."""
    own = Stack(tmp_path_factory.mktemp("quiet"))
    try:
        await own.start()
        yield own
    finally:
        await own.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def inner(quiet: Stack) -> AsyncGenerator[Inside]:
    async with inside(quiet) as one:
        yield one


@pytest.fixture
def app(quiet: Stack) -> Client:
    return quiet.client("app")


@pytest.fixture
def operator(quiet: Stack) -> Client:
    return quiet.client("operator")
