"""A job is told that its authority may be gone, looks at the ledger, and believes that alone."""

from tests.workflow.hands import Fault, Hands, Held, Reply, call, done, final, turn
from tests.workflow.jobs import Jobs
from tests.workflow.test_gate import CANARY
from workflows.contract.errors import StepCode
from workflows.contract.steps import AuthorityOutput, GateOutput

REFUND = call(0, "refunds.create", "write", ask=True)
WRITE = call(0, "refunds.create", "write")
READ = call(0, "invoices.get")
GONE = AuthorityOutput(revoked=True, reason="The grants that this job ran on were revoked.")
END = ["authority.revoked authority_revoked", "job.failed authority_revoked"]


async def test_a_waiting_job_ends_with_its_authority_and_its_request_is_void(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[turn(1, REFUND)], authorities=[GONE]))
    [request] = await job.pending(1)
    await job.handle.signal("authority")
    ended = await job.end()
    assert ended.story[-3:] == [END[0], "request.voided r1", END[1]]
    assert ended.record.view.failure is not None
    assert ended.record.view.failure.message == GONE.reason
    assert job.hands.ran == ["model 1.1", "read_authority", f"read_decision {request} void"]


async def test_a_hint_that_the_ledger_does_not_bear_out_changes_nothing(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[turn(1, REFUND), final(2)]))
    [request] = await job.pending(1)
    await job.handle.signal("authority")
    await job.until_ran("read_authority")
    assert await job.pending(1) == [request]
    await job.decide(request, "approve")
    ended = await job.end()
    assert ended.story[-1] == "job.succeeded"
    assert not [line for line in ended.story if line.startswith("authority")]


async def test_a_read_in_the_air_is_cut_off_and_a_write_is_awaited(jobs: Jobs) -> None:
    for tool, outcome in (("invoices.get", []), ("refunds.create", ["tool.finished refunds.create #0 ok"])):
        held = Held(done())
        what = READ if tool == "invoices.get" else WRITE
        job = await jobs.start(Hands(model=[turn(1, what)], tools={tool: [held]}, authorities=[GONE]))
        await held.entered.wait()
        await job.handle.signal("authority")
        await job.until("authority.revoked authority_revoked")
        held.go.set()
        assert (await job.end()).story[-2 - len(outcome) :] == [END[0], *outcome, END[1]]


async def test_calls_that_are_refused_together_say_once_that_the_authority_is_gone(jobs: Jobs) -> None:
    first, second = Held(Fault(StepCode.AUTHORITY_REVOKED)), Held(Fault(StepCode.AUTHORITY_REVOKED))
    tools: dict[str, list[Reply]] = {"invoices.get": [first], "orders.get": [second]}
    job = await jobs.start(Hands(model=[turn(1, READ, call(1, "orders.get"))], tools=tools, authorities=[GONE]))
    await first.entered.wait()
    await second.entered.wait()
    first.go.set()
    second.go.set()
    await job.handle.signal("authority")
    assert (await job.end()).story[-2:] == END
    assert (await job.end()).story.count(END[0]) == 1


async def test_a_hint_before_the_first_task_is_kept(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[Held(final(1))], authorities=[GONE]), queue="late-authority")
    await job.handle.signal("authority")
    async with jobs.worker("late-authority"):
        assert (await job.end()).story == ["job.queued", "job.started", "step.started turn 1", *END]


async def test_a_held_job_ends_with_its_authority(jobs: Jobs) -> None:
    job = await jobs.start(Hands(authorities=[GONE]), facts=CANARY)
    await job.until("job.held awaiting_promotion")
    await job.handle.signal("authority")
    assert (await job.end()).story == ["job.queued", "job.held awaiting_promotion", *END]


async def test_a_gate_that_finds_no_authority_ends_the_job(jobs: Jobs) -> None:
    job = await jobs.start(Hands(gates=[GateOutput(open=False, revoked=True)]), facts=CANARY)
    await job.until("job.held awaiting_promotion")
    await job.handle.signal("gate")
    assert (await job.end()).story[-2:] == END


async def test_a_dry_run_that_is_told_runs_no_activity(jobs: Jobs) -> None:
    job = await jobs.start(Hands(authorities=[GONE]), mode="dry_run", facts=CANARY, queue="late-dry-run")
    await job.handle.signal("authority")
    async with jobs.worker("late-dry-run"):
        ended = await job.end()
    assert ended.story == ["job.queued", "job.succeeded"]
    assert job.hands.ran == []


async def test_a_cancel_and_a_revocation_at_once_end_it_once(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[turn(1, REFUND)], authorities=[GONE]))
    await job.pending(1)
    await job.handle.signal("authority")
    await job.handle.cancel()
    ended = await job.end()
    assert ended.story[-1] in ("job.canceled", END[1])
    assert len([line for line in ended.story if line.startswith(("job.canceled", "job.failed"))]) == 1
