"""A stack that the tests of one file share and break in turn: whoever ends a worker leaves another one polling."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.rig.client import Json
from tests.rig.plugins import ALLOW_ALL, fresh_name, publish_plugin
from tests.rig.process import Process
from tests.rig.stack import Stack

READS_RUN_WRITES_ASK = 'permit (principal, action, resource) when { resource.effect == "read" };\n' + (
    'permit (principal, action == Action::"call", resource);\n'
)


@asynccontextmanager
async def running_stack(
    folder: Path, *, apis: int = 1, workers: int = 1, settings: Mapping[str, str] | None = None
) -> AsyncGenerator[Stack]:
    own = Stack(folder, settings=settings)
    try:
        await own.start(apis=apis, workers=workers)
        yield own
    finally:
        await own.close()


def kill_workers(stack: Stack) -> None:
    for worker in stack.workers:
        worker.kill()


async def new_worker(stack: Stack) -> Process:
    """One more worker that polls."""
    worker = stack.add_worker()
    await stack.until_polling(worker)
    return worker


async def published(
    stack: Stack,
    script: Sequence[Json],
    *tools: Json,
    policy: str = ALLOW_ALL,
    max_steps: int = 20,
    max_duration_seconds: int = 3600,
) -> str:
    """The name of a live plugin whose tools are the effect log's."""
    name = fresh_name("survive")
    await publish_plugin(
        stack.client("operator"),
        name,
        script,
        tools=tools,
        tools_url=stack.effects.url if tools else "",
        policy=policy,
        limits={"max_steps": max_steps, "max_duration_seconds": max_duration_seconds, "max_tokens": 1_000_000},
    )
    return name
