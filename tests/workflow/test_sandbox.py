"""The loop also runs in the SDK's sandbox, with the deterministic half and pydantic passed through."""

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from tests.workflow.hands import Hands, call, final, turn
from tests.workflow.jobs import Jobs

PASSED_THROUGH = SandboxRestrictions.default.with_passthrough_modules("workflows", "pydantic", "pydantic_core")


async def test_job_runs_in_the_sandbox(jobs: Jobs) -> None:
    ask = call(0, "refunds.create", "write", ask=True)
    job = await jobs.start(Hands(model=[turn(1, ask), final(2)]), queue="sandboxed")
    async with jobs.worker("sandboxed", SandboxedWorkflowRunner(restrictions=PASSED_THROUGH)):
        [request] = await job.pending(1)
        await job.decide(request, "approve")
        ended = await job.end()
    assert ended.story[-1] == "job.succeeded"
