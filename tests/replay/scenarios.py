"""The named stories whose histories are kept: each drives one job to its end on a real server and returns it."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from tests.replay.doubt import DOUBT
from tests.replay.ladder import LADDER
from tests.replay.long import LONG
from tests.workflow.hands import Fault, Hands, Held, call, done, final, later, turn
from tests.workflow.jobs import TOOLS, Job, Jobs
from tests.workflow.vendors import call_back
from workflows.contract.errors import StepCode
from workflows.contract.gates import EligibilityFacts
from workflows.contract.ids import ToolName
from workflows.contract.job import ApprovalRule, Limits, ToolRow
from workflows.contract.steps import AuthorityOutput, GateOutput, ToolOutput

READ = call(0, "invoices.get")
WRITE = call(0, "refunds.create", "write")
REFUND = call(0, "refunds.create", "write", ask=True)
CANARY = EligibilityFacts(version_phase="live_canary", runtime_phase="live")

Scenario = Callable[[Jobs, str], Awaitable[Job]]


def with_rule(rule: ApprovalRule) -> dict[ToolName, ToolRow]:
    name = ToolName("refunds.create")
    return {**TOOLS, name: TOOLS[name].model_copy(update={"approval": rule})}


async def read_then_final(jobs: Jobs, name: str) -> Job:
    return await jobs.start(Hands(model=[turn(1, READ), final(2)]), job_id=name)


async def approved(jobs: Jobs, name: str) -> Job:
    job = await jobs.start(Hands(model=[turn(1, REFUND), final(2)]), job_id=name)
    [request] = await job.pending(1)
    await job.decide(request, "approve")
    return job


async def rejected(jobs: Jobs, name: str) -> Job:
    job = await jobs.start(Hands(model=[turn(1, REFUND), final(2)]), job_id=name)
    [request] = await job.pending(1)
    await job.decide(request, "reject")
    return job


async def answered(jobs: Jobs, name: str) -> Job:
    question = call(0, "ask_human", ask=True, kind="question")
    job = await jobs.start(Hands(model=[turn(1, question), final(2)]), job_id=name)
    [request] = await job.pending(1)
    await job.decide(request, "answer")
    return job


async def expired(jobs: Jobs, name: str) -> Job:
    tools = with_rule(ApprovalRule(expires_in_seconds=2))
    return await jobs.start(Hands(model=[turn(1, REFUND), final(2)]), job_id=name, tools=tools)


async def quorum_of_two(jobs: Jobs, name: str) -> Job:
    tools = with_rule(ApprovalRule(quorum=2))
    job = await jobs.start(Hands(model=[turn(1, REFUND), final(2)]), job_id=name, tools=tools)
    [request] = await job.pending(1)
    await job.decide(request, None, votes=1)
    await job.until("request.voted")
    await job.decide(request, "approve", votes=2)
    return job


async def three_requests(jobs: Jobs, name: str) -> Job:
    calls = [call(n, "notes.put", "idempotent_write", ask=True) for n in range(3)]
    job = await jobs.start(Hands(model=[turn(1, *calls), final(2)]), job_id=name)
    first, second, third = await job.pending(3)
    await job.decide(third, "approve")
    await job.until("tool.finished")
    await job.decide(second, "reject")
    await job.decide(first, "approve")
    return job


async def parallel_reads(jobs: Jobs, name: str) -> Job:
    calls = [call(0, "invoices.get"), call(1, "orders.get"), call(2, "refunds.create", "write", refuse="no")]
    return await jobs.start(Hands(model=[turn(1, *calls), final(2)]), job_id=name)


async def writes_in_order(jobs: Jobs, name: str) -> Job:
    calls = [call(n, "notes.put", "idempotent_write") for n in range(3)]
    return await jobs.start(Hands(model=[turn(1, *calls), final(2)]), job_id=name)


async def canceled_in_queue(jobs: Jobs, name: str) -> Job:
    job = await jobs.start(Hands(), job_id=name, queue=f"{name}-late-worker")
    await job.handle.cancel()
    async with jobs.worker(f"{name}-late-worker"):
        await job.end()
    return job


async def canceled_in_model(jobs: Jobs, name: str) -> Job:
    thinking = Held(final(1))
    job = await jobs.start(Hands(model=[thinking]), job_id=name)
    await thinking.entered.wait()
    await job.handle.cancel()
    return job


async def canceled_in_read(jobs: Jobs, name: str) -> Job:
    reading = Held(done())
    job = await jobs.start(Hands(model=[turn(1, READ)], tools={"invoices.get": [reading]}), job_id=name)
    await reading.entered.wait()
    await job.handle.cancel()
    return job


async def canceled_in_human_wait(jobs: Jobs, name: str) -> Job:
    job = await jobs.start(Hands(model=[turn(1, REFUND)]), job_id=name)
    await job.pending(1)
    await job.handle.cancel()
    return job


async def canceled_in_write(jobs: Jobs, name: str) -> Job:
    writing = Held(done())
    job = await jobs.start(Hands(model=[turn(1, WRITE)], tools={"refunds.create": [writing]}), job_id=name)
    await writing.entered.wait()
    await job.handle.cancel()
    await job.until("cancel.requested")
    await job.handle.cancel()
    writing.go.set()
    return job


async def canceled_in_back_off(jobs: Jobs, name: str) -> Job:
    limited = Fault(StepCode.RATE_LIMITED, retry_after_s=60)
    put = call(0, "notes.put", "idempotent_write")
    job = await jobs.start(Hands(model=[turn(1, put)], tools={"notes.put": [limited]}), job_id=name)
    await job.until("attempt.replaced")
    await job.handle.cancel()
    return job


async def deadline_in_read(jobs: Jobs, name: str) -> Job:
    hung = Held(done())
    return await jobs.start(Hands(model=[turn(1, READ)], tools={"invoices.get": [hung]}), job_id=name, ends_in=2)


async def deadline_in_human_wait(jobs: Jobs, name: str) -> Job:
    return await jobs.start(Hands(model=[turn(1, REFUND)]), job_id=name, ends_in=2)


async def deadline_in_write(jobs: Jobs, name: str) -> Job:
    hung = Held(done())
    return await jobs.start(Hands(model=[turn(1, WRITE)], tools={"refunds.create": [hung]}), job_id=name, ends_in=2)


async def model_failed(jobs: Jobs, name: str) -> Job:
    return await jobs.start(Hands(model=[Fault(StepCode.UNAVAILABLE) for _ in range(4)]), job_id=name)


async def write_tried_again(jobs: Jobs, name: str) -> Job:
    replies = [Fault(StepCode.CONNECT_REFUSED), Fault(StepCode.LOST), done()]
    return await jobs.start(Hands(model=[turn(1, WRITE), final(2)], tools={"refunds.create": [*replies]}), job_id=name)


async def effect_unknown(jobs: Jobs, name: str) -> Job:
    unknown = ToolOutput(outcome="unknown", message="")
    return await jobs.start(Hands(model=[turn(1, WRITE)], tools={"refunds.create": [unknown]}), job_id=name)


async def authority_revoked(jobs: Jobs, name: str) -> Job:
    revoked = Fault(StepCode.AUTHORITY_REVOKED)
    return await jobs.start(Hands(model=[turn(1, WRITE)], tools={"refunds.create": [revoked]}), job_id=name)


async def revoked_while_waiting(jobs: Jobs, name: str) -> Job:
    gone = AuthorityOutput(revoked=True, reason="The grants that this job ran on were revoked.")
    job = await jobs.start(Hands(model=[turn(1, REFUND)], authorities=[gone]), job_id=name)
    await job.pending(1)
    await job.handle.signal("authority")
    return job


async def revoked_while_held(jobs: Jobs, name: str) -> Job:
    job = await jobs.start(Hands(gates=[GateOutput(open=False, revoked=True)]), job_id=name, facts=CANARY)
    await job.until("job.held")
    await job.handle.signal("gate")
    return job


async def stopped(jobs: Jobs, name: str) -> Job:
    job = await jobs.start(Hands(model=[Fault(StepCode.STOPPED)]), job_id=name)
    await job.until_ran("model 1.1")
    await job.handle.cancel()
    return job


async def budget_exceeded(jobs: Jobs, name: str) -> Job:
    limits = Limits(max_steps=5, max_duration_seconds=3600, max_tokens=10**6)
    return await jobs.start(Hands(forever=lambda n: turn(n, READ)), job_id=name, limits=limits)


async def wrong_signals(jobs: Jobs, name: str) -> Job:
    job = await jobs.start(Hands(model=[turn(1, REFUND), final(2)]), job_id=name)
    [request] = await job.pending(1)
    await job.handle.signal("nonsense", args=[1, 2])
    await job.handle.signal("decision", 7)
    await job.handle.signal("decision", None)
    await job.hint("r9-000000")
    await job.hint(request)
    await job.until("decision.refused not_in_ledger")
    await job.decide(request, "approve")
    return job


async def dry_run(jobs: Jobs, name: str) -> Job:
    return await jobs.start(Hands(), job_id=name, mode="dry_run", facts=CANARY)


async def held_and_released(jobs: Jobs, name: str) -> Job:
    job = await jobs.start(Hands(model=[final(1)], gates=[GateOutput(open=True)]), job_id=name, facts=CANARY)
    await job.until("job.held")
    await job.handle.signal("gate")
    return job


async def rolled_over(jobs: Jobs, name: str) -> Job:
    hands = Hands(model=[*(turn(n, READ) for n in range(1, 4)), final(4)])
    return await jobs.start(hands, job_id=name, roll_over_after=15)


async def archived(jobs: Jobs, name: str) -> Job:
    hands = Hands(model=[*(turn(n, READ) for n in range(1, 126)), final(126)])
    return await jobs.start(hands, job_id=name)


async def called_back(jobs: Jobs, name: str) -> Job:
    job = await jobs.start(Hands(model=[turn(1, READ), final(2)], tools={"invoices.get": [later()]}), job_id=name)
    await job.until_ran("invoices.get 1")
    await call_back(job, 1, 0)
    return job


async def callback_expired(jobs: Jobs, name: str) -> Job:
    until = datetime.now(UTC) + timedelta(seconds=2)
    return await jobs.start(Hands(model=[turn(1, WRITE)], tools={"refunds.create": [later(until)]}), job_id=name)


async def canceled_in_callback_wait(jobs: Jobs, name: str) -> Job:
    job = await jobs.start(Hands(model=[turn(1, WRITE)], tools={"refunds.create": [later()]}), job_id=name)
    await job.until_ran("refunds.create 1")
    await job.handle.cancel()
    return job


async def result_too_large(jobs: Jobs, name: str) -> Job:
    return await jobs.start(Hands(model=[final(1, 40_000)]), job_id=name)


SCENARIOS: tuple[Scenario, ...] = (
    read_then_final,
    approved,
    rejected,
    answered,
    expired,
    quorum_of_two,
    three_requests,
    parallel_reads,
    writes_in_order,
    canceled_in_queue,
    canceled_in_model,
    canceled_in_read,
    canceled_in_human_wait,
    canceled_in_write,
    canceled_in_back_off,
    deadline_in_read,
    deadline_in_human_wait,
    deadline_in_write,
    model_failed,
    write_tried_again,
    effect_unknown,
    authority_revoked,
    revoked_while_waiting,
    revoked_while_held,
    stopped,
    budget_exceeded,
    wrong_signals,
    dry_run,
    held_and_released,
    rolled_over,
    archived,
    called_back,
    callback_expired,
    canceled_in_callback_wait,
    result_too_large,
    *LADDER,
    *DOUBT,
    *LONG,
)
