"""Stories of long and large jobs, and of decisions that a job hears of at its very end."""

from tests.workflow.hands import Hands, call, final, turn
from tests.workflow.jobs import Job, Jobs
from workflows.contract.ids import PrincipalId
from workflows.contract.steps import Ruling


async def archived_by_bytes(jobs: Jobs, name: str) -> Job:
    refused = [call(n, "invoices.get", refuse="💸" * 500) for n in range(70)]
    return await jobs.start(Hands(model=[turn(1, *refused), final(2)]), job_id=name)


async def decided_at_the_end(jobs: Jobs, name: str) -> Job:
    refunds = [call(n, "refunds.create", "write", ask=True) for n in range(2)]
    job = await jobs.start(Hands(model=[turn(1, *refunds)]), job_id=name)
    first, _ = await job.pending(2)
    digest = refunds[0].action_digest
    job.hands.ledger[first] = Ruling(verdict="approve", action_digest=digest, decided_by=(PrincipalId("ann"),))
    await job.handle.cancel()
    return job


LONG = (archived_by_bytes, decided_at_the_end)
