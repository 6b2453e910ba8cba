"""An operator's reset, as a job hears of it: a new random seed is the engine's only sign inside a workflow.

A reset run replays what is left of the old one and goes on with another seed. Where the very first task was reset, the
seed is there before the workflow object is, so an interceptor listens. Code before the reset never sees it.
"""

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from workflows.job import JobWorkflow


class Resets(Interceptor):
    """For every worker that runs jobs."""

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        return _Listening


class _Listening(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        self._seeds: list[int] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        workflow.register_random_seed_callback(self._note)
        super().init(outbound)

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        self._loop = asyncio.get_running_loop()
        self._tell()
        return await super().execute_workflow(input)

    def _note(self, seed: int) -> None:
        """Called outside of the workflow's own loop, before anything else of the task."""
        self._seeds.append(seed)
        if self._loop is not None:
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        seeds, self._seeds = self._seeds, []
        job = workflow.instance()
        for seed in seeds:
            if isinstance(job, JobWorkflow):
                job.recovered(f"{seed & 0xFFFFFFFF:08x}")
