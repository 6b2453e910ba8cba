"""The stories of writes whose outcome is not known: found by a tool, settled by a person, known late, or given up."""

from tests.workflow.hands import Fault, Hands, blob, call, final, turn
from tests.workflow.jobs import Job, Jobs
from workflows.contract.errors import StepCode
from workflows.contract.ids import RequestId
from workflows.contract.steps import ReconcileOutput, ToolOutput

WRITE = call(0, "refunds.create", "write")
UNKNOWN = ToolOutput(outcome="unknown", message="")
FOUND = ReconcileOutput(outcome="happened", by="tool", result_ref=blob("found"))
ABSENT = ReconcileOutput(outcome="did_not_happen", by="tool", result_ref=blob("absent"))


async def _in_doubt(jobs: Jobs, name: str, *known: ReconcileOutput) -> Job:
    hands = Hands(model=[turn(1, WRITE), final(2)], tools={"refunds.create": [UNKNOWN]}, effects=[*known])
    return await jobs.start(hands, job_id=name)


async def _asked(jobs: Jobs, name: str) -> tuple[Job, RequestId]:
    job = await _in_doubt(jobs, name)
    [request] = await job.pending(1)
    return job, request


async def doubt_found(jobs: Jobs, name: str) -> Job:
    return await _in_doubt(jobs, name, FOUND)


async def doubt_not_found(jobs: Jobs, name: str) -> Job:
    return await _in_doubt(jobs, name, ABSENT, ABSENT)


async def doubt_settled(jobs: Jobs, name: str) -> Job:
    job, request = await _asked(jobs, name)
    job.hands.effects.append(ReconcileOutput(outcome="happened"))
    await job.decide(request, "settle", answer="happened")
    return job


async def doubt_stopped(jobs: Jobs, name: str) -> Job:
    job, request = await _asked(jobs, name)
    await job.decide(request, "settle", answer="stop")
    return job


async def doubt_known_late(jobs: Jobs, name: str) -> Job:
    job, request = await _asked(jobs, name)
    await job.hint(request)
    await job.until("decision.refused not_in_ledger")
    job.hands.effects.append(ReconcileOutput(outcome="did_not_happen"))
    await job.hint(request)
    return job


async def doubt_canceled(jobs: Jobs, name: str) -> Job:
    job, _ = await _asked(jobs, name)
    await job.handle.cancel()
    return job


async def given_up_in_doubt(jobs: Jobs, name: str) -> Job:
    put = call(0, "notes.put", "idempotent_write")
    lost = [Fault(StepCode.UNAVAILABLE) for _ in range(4)]
    return await jobs.start(Hands(model=[turn(1, put)], tools={"notes.put": [*lost]}), job_id=name)


DOUBT = (
    doubt_found,
    doubt_not_found,
    doubt_settled,
    doubt_stopped,
    doubt_known_late,
    doubt_canceled,
    given_up_in_doubt,
)
