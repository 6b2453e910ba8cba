"""The stories of writes whose outcome is not known: found by a tool, settled by a person, known late, or given up."""

from tests.workflow.hands import Fault, Hands, Held, Reply, blob, call, done, final, turn
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


async def canceled_in_a_put_that_is_lost(jobs: Jobs, name: str) -> Job:
    writing, put = Held(Fault(StepCode.UNAVAILABLE)), call(0, "notes.put", "idempotent_write")
    job = await jobs.start(Hands(model=[turn(1, put), final(2)], tools={"notes.put": [writing]}), job_id=name)
    await writing.entered.wait()
    await job.handle.cancel()
    await job.until("cancel.requested")
    writing.go.set()
    return job


async def failed_beside_a_put_that_is_lost(jobs: Jobs, name: str) -> Job:
    writing, reading = Held(Fault(StepCode.UNAVAILABLE)), Held(Fault(StepCode.REJECTED))
    calls = [
        call(0, "notes.put", "idempotent_write"),
        call(1, "invoices.get"),
        call(2, "refunds.create", "write", ask=True),
    ]
    tools: dict[str, list[Reply]] = {"notes.put": [writing], "invoices.get": [reading]}
    job = await jobs.start(Hands(model=[turn(1, *calls)], tools=tools), job_id=name)
    await writing.entered.wait()
    reading.go.set()
    await job.until("request.voided")
    writing.go.set()
    return job


async def doubt_beside_a_read(jobs: Jobs, name: str) -> Job:
    reading = Held(done())
    tools: dict[str, list[Reply]] = {"refunds.create": [UNKNOWN], "invoices.get": [reading]}
    hands = Hands(model=[turn(1, WRITE, call(1, "invoices.get")), final(2)], tools=tools)
    job = await jobs.start(hands, job_id=name)
    [request] = await job.pending(1)
    reading.go.set()
    await job.until("tool.finished invoices.get #1 ok")
    await job.decide(request, "settle", answer="stop")
    return job


DOUBT = (
    canceled_in_a_put_that_is_lost,
    failed_beside_a_put_that_is_lost,
    doubt_beside_a_read,
    doubt_found,
    doubt_not_found,
    doubt_settled,
    doubt_stopped,
    doubt_known_late,
    doubt_canceled,
    given_up_in_doubt,
)
