"""Servers and workers for the workflow tests; `JOBGATE_TEST_CACHE_OFF=1` keeps no workflow cached."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest_asyncio
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from tests.workflow.jobs import CACHED, SEARCH_ATTRIBUTES, Jobs

ROOT = Path(__file__).parents[2]
TEST_SERVER = ROOT / ".venv/bin/temporal-test-server"


@asynccontextmanager
async def time_skipping_server() -> AsyncGenerator[WorkflowEnvironment]:
    """A server whose time moves only while somebody awaits a result, or by its `sleep`."""
    env = await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(TEST_SERVER), data_converter=pydantic_data_converter
    )
    async with env:
        wanted = {
            name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}")
            for name, kind in SEARCH_ATTRIBUTES.items()
        }
        await env.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=env.client.namespace, search_attributes=wanted)
        )
        yield env


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def jobs() -> AsyncGenerator[Jobs]:
    """Jobs on one shared server."""
    async with time_skipping_server() as env:
        rig = Jobs(env.client, env, "workflow-tests", cached=CACHED)
        async with rig.worker():
            yield rig


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def real_jobs() -> AsyncGenerator[Jobs]:
    """Jobs on the real development server, for whatever rolls over: around a roll-over the time-skipping one loses a
    cancel now and then, and a job that is queried there may never go on (240 cancels on the real one: none lost)."""
    attributes = [part for name, kind in SEARCH_ATTRIBUTES.items() for part in ("--search-attribute", f"{name}={kind}")]
    async with await WorkflowEnvironment.start_local(  # pyright: ignore[reportUnknownMemberType] - SDK's own kwargs
        dev_server_existing_path=str(ROOT / ".venv/bin/temporal"),
        dev_server_extra_args=attributes,
        dev_server_log_level="never",
        data_converter=pydantic_data_converter,
    ) as env:
        rig = Jobs(env.client, None, "real-tests", cached=CACHED)
        async with rig.worker():
            yield rig


@pytest_asyncio.fixture(loop_scope="session")
async def skipping_jobs() -> AsyncGenerator[Jobs]:
    """Jobs on a server of this test's own: an activity that was canceled or hangs keeps a shared one from skipping."""
    async with time_skipping_server() as env:
        rig = Jobs(env.client, env, "skipping-tests", cached=CACHED)
        async with rig.worker():
            yield rig
