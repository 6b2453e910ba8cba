"""The bare side's worker process: plain workflows on the plain SDK, with the worker options of Jobgate's own worker.

`BenchThreeSteps` does the outside work of the measured job and nothing else: its activities play the same script and
make the same HTTP call, with inputs and outputs of the same shapes and sizes. They keep no receipt, permit or blob.
With `--lane QUEUE` the same process also runs Jobgate's own workflow on these very activities: what then differs is
the workflow alone. Run: `python -m tests.bench.bare_worker --address HOST:PORT --namespace NAME --tools URL`.
"""

import argparse
import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import httpx2
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.scripted import play
from activities.worker import CONCURRENT_STEPS, HEARTBEATS_AT_LEAST_EVERY
from gateway.script import Script, parse_script
from gateway.settings import load_settings
from tests.bench.contents import (
    BARE_QUEUE,
    BARE_SIGNALED,
    BARE_THREE_STEPS,
    model_input,
    model_output,
    script_text,
    tool_input,
    tool_output,
)
from workflows.contract.steps import Activity, ModelInput, ModelOutput, ToolInput, ToolOutput
from workflows.job import JobWorkflow

ONCE = RetryPolicy(maximum_attempts=1)
TIME = timedelta(hours=1)
HEARTBEAT = timedelta(seconds=load_settings().heartbeat_timeout_s)


class Hands:
    """The bare activities: a model turn and an HTTP call."""

    def __init__(self, http: httpx2.AsyncClient, script: Script) -> None:
        self._http = http
        self._script = script

    @activity.defn(name=Activity.MODEL)
    async def model(self, asked: ModelInput) -> ModelOutput:
        activity.heartbeat(asked.progress)
        play(self._script, asked.turn, input={"id": "n-17"}, results={}, attempt=asked.attempt)
        return model_output(asked.turn)

    @activity.defn(name=Activity.TOOL)
    async def tool(self, asked: ToolInput) -> ToolOutput:
        activity.heartbeat(asked.progress)
        answer = await self._http.get("/tool/notes.read", params={"id": "n-17"})
        answer.raise_for_status()
        answer.json()
        return tool_output()


@workflow.defn(name=BARE_THREE_STEPS)
class ThreeSteps:
    @workflow.run
    async def run(self, given: dict[str, str]) -> dict[str, str]:
        await self._model(1)
        await workflow.execute_activity(
            Activity.TOOL,
            tool_input(),
            result_type=ToolOutput,
            schedule_to_close_timeout=TIME,
            heartbeat_timeout=HEARTBEAT,
            retry_policy=ONCE,
        )
        await self._model(2)
        return {"message": "Read."}

    async def _model(self, turn: int) -> ModelOutput:
        return await workflow.execute_activity(
            Activity.MODEL,
            model_input(turn),
            result_type=ModelOutput,
            schedule_to_close_timeout=TIME,
            heartbeat_timeout=HEARTBEAT,
            retry_policy=ONCE,
        )


@workflow.defn(name=BARE_SIGNALED)
class Signaled:
    """Waits for a signal, then ends."""

    @workflow.init
    def __init__(self, given: dict[str, str]) -> None:
        self._told = False

    @workflow.run
    async def run(self, given: dict[str, str]) -> dict[str, str]:
        await workflow.wait_condition(lambda: self._told)
        return given

    @workflow.query
    def waiting(self) -> bool:
        return not self._told

    @workflow.signal
    def tell(self) -> None:
        self._told = True


async def main(address: str, namespace: str, tools: str, lane: str | None) -> None:
    client = await Client.connect(address, namespace=namespace, data_converter=pydantic_data_converter)
    async with httpx2.AsyncClient(base_url=tools, trust_env=False) as http, AsyncExitStack() as running:
        hands = Hands(http, parse_script(script_text()))
        served: list[tuple[str, list[type]]] = [(BARE_QUEUE, [ThreeSteps, Signaled])]
        served += [(lane, [JobWorkflow])] if lane else []
        for queue, kinds in served:
            await running.enter_async_context(worker_of(client, queue, kinds, [hands.model, hands.tool]))
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        await ended.wait()


def worker_of(client: Client, queue: str, kinds: Sequence[type], hands: Sequence[Callable[..., Any]]) -> Worker:
    """The options are those of activities/worker.py."""
    settings = load_settings()
    return Worker(
        client,
        task_queue=queue,
        workflows=kinds,
        activities=hands,
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=settings.max_cached_workflows,
        max_concurrent_activities=CONCURRENT_STEPS,
        max_heartbeat_throttle_interval=HEARTBEATS_AT_LEAST_EVERY,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=settings.sticky_timeout_s),
        graceful_shutdown_timeout=timedelta(seconds=settings.worker_grace_s),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--tools", required=True)
    parser.add_argument("--lane")
    options = parser.parse_args()
    asyncio.run(main(options.address, options.namespace, options.tools, options.lane))
