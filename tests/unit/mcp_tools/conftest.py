"""One real MCP server for a module's tests, and a caller with a door of its own."""

from collections.abc import AsyncGenerator, Generator

import pytest
import pytest_asyncio

from gateway.calls.egress import Door
from tests.rig.mcp_log import McpLog
from tests.unit.mcp_tools.calls import CANARY, Caller


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[McpLog]:
    log = McpLog(tmp_path_factory.mktemp("mcp"))
    log.start()
    yield log
    log.stop()


@pytest_asyncio.fixture
async def caller(server: McpLog, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Caller]:
    monkeypatch.setenv("MCP_CANARY", CANARY)
    server.tell({"t": {}})
    async with Door() as door:
        yield Caller(door, server.url)
