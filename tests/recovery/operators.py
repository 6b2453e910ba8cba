"""What an operator does from Temporal's own command line: end, reset, pause, delete; nothing of Jobgate is told."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowExecutionDescription
from temporalio.service import RPCError, RPCStatusCode

from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

TEMPORAL = str(Path(sys.executable).with_name("temporal"))


async def temporal(stack: Stack, *words: str) -> str:
    """One command of the `temporal` binary, which must succeed."""
    where = ("--address", stack.address, "--namespace", stack.settings.namespace)
    process = await asyncio.create_subprocess_exec(
        *(TEMPORAL, *words, *where),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate(b"y\n")  # it asks before it deletes
    assert process.returncode == 0, said.decode()
    return said.decode()


async def on_job(stack: Stack, job: str, *words: str) -> str:
    return await temporal(stack, *words, "--workflow-id", f"demo.{job}")


async def described(stack: Stack, job: str) -> WorkflowExecutionDescription:
    return await (await stack.engine()).get_workflow_handle(f"demo.{job}").describe()


async def tasks_of(stack: Stack, job: str) -> list[int]:
    """The events of the current run that a reset can name: its completed workflow tasks."""
    handle = (await stack.engine()).get_workflow_handle(f"demo.{job}")
    return [
        event.event_id
        async for event in handle.fetch_history_events()
        if event.HasField("workflow_task_completed_event_attributes")
    ]


async def reset(stack: Stack, job: str, task: int, *, signals: bool = True) -> None:
    """To one of `tasks_of`, by its place. `signals`: what was sent since then is applied again."""
    before = (await described(stack, job)).run_id
    event = (await tasks_of(stack, job))[task]
    kept = () if signals else ("--reapply-exclude", "All")
    await on_job(stack, job, "workflow", "reset", "--event-id", str(event), "--reason", "a test", *kept)
    await wait_until(lambda: _another_run(stack, job, before), what="the reset run is the current one")


async def _another_run(stack: Stack, job: str, before: str | None) -> bool:
    return (await described(stack, job)).run_id != before


async def delete(stack: Stack, job: str) -> None:
    """As retention would; returns when the engine knows it no more."""
    await on_job(stack, job, "workflow", "delete")

    async def gone() -> bool:
        try:
            await described(stack, job)
        except RPCError as error:
            return error.status is RPCStatusCode.NOT_FOUND
        return False

    await wait_until(gone, 30, what=f"{job} is deleted")


def numbers(events: list[dict[str, Any]]) -> list[int | None]:
    return [event["seq"] for event in events]
