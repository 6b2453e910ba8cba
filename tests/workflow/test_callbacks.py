"""Calls that are answered later: waited for with no step running, by expiry and deadline, and believed from the ledger
alone; each as the whole log."""

from datetime import timedelta
from typing import Any

from temporalio.client import WorkflowExecutionStatus

from tests.workflow.hands import Fault, Hands, Held, Reply, call, done, final, later, turn
from tests.workflow.jobs import Job, Jobs
from tests.workflow.vendors import call_back, hint_callback
from workflows.contract.errors import StepCode
from workflows.contract.steps import CallbackOutput, Hint, PlannedCall

READ = call(0, "invoices.get")
WRITE = call(0, "refunds.create", "write")
OPENING = ["job.queued", "job.started", "step.started turn 1", "step.finished turn 1: 1 calls"]
CLOSING = ["step.started turn 2", "step.finished turn 2: 0 calls", "job.succeeded"]


async def waiting(jobs: Jobs, planned: PlannedCall = READ, *, until_s: float | None = 600, **fields: Any) -> Job:
    """A job whose one call was taken and waits for its callback."""
    until = None if until_s is None else await jobs.now() + timedelta(seconds=until_s)
    hands = Hands(model=[turn(1, planned), final(2)], tools={planned.tool: [later(until)]})
    job = await jobs.start(hands, **fields)
    await job.until_ran(f"{planned.tool} 1")
    await job.until("tool.started")
    return job


async def nothing_pending(job: Job) -> None:
    """Until no activity is scheduled: the wait holds no process."""
    while (await job.handle.describe()).raw_description.pending_activities:
        await job.glance()


async def test_an_answer_goes_to_the_model_as_a_reference(jobs: Jobs) -> None:
    job = await waiting(jobs)
    await nothing_pending(job)
    assert (await job.look()).view.status == "running"
    await call_back(job, 1, 0)
    ended = await job.end()
    assert ended.story == [*OPENING, "tool.started invoices.get #0", "tool.finished invoices.get #0 ok", *CLOSING]
    assert job.hands.ran == ["model 1.1", "invoices.get 1", "read_callback 1.0", "model 2.1"]
    [result] = job.hands.asked_model[1].results
    assert (result.outcome, result.result_ref) == ("ok", job.hands.callbacks[1, 0].result_ref)
    assert ended.view.executed == "yes"


async def test_an_answer_that_it_did_not_succeed_is_an_error_to_the_model(jobs: Jobs) -> None:
    job = await waiting(jobs, WRITE)
    await call_back(job, 1, 0, ok=False)
    ended = await job.end()
    assert ended.story[4:] == ["tool.started refunds.create #0", "tool.finished refunds.create #0 error", *CLOSING]
    assert ended.record.events[5].message == "refunds.create answered that it did not succeed."


async def test_an_answer_before_the_202_is_kept(jobs: Jobs) -> None:
    taking = Held(later())
    job = await jobs.start(Hands(model=[turn(1, WRITE), final(2)], tools={"refunds.create": [taking]}))
    await taking.entered.wait()
    await call_back(job, 1, 0)
    taking.go.set()
    ended = await job.end()
    assert ended.story[4:] == ["tool.started refunds.create #0", "tool.finished refunds.create #0 ok", *CLOSING]
    assert job.hands.ran == ["model 1.1", "refunds.create 1", "read_callback 1.0", "model 2.1"]


async def test_a_forged_hint_answers_nothing(jobs: Jobs) -> None:
    job = await waiting(jobs)
    for _ in range(2):
        ran = job.hands.ran.count("read_callback 1.0")
        await hint_callback(job, 1, 0)
        await job.until_ran("read_callback 1.0", times=ran + 1)
    await hint_callback(job, 1, 7)
    await job.handle.signal(Hint.CALLBACK, {"step": "no", "call": []})
    await job.until("decision.refused malformed_signal")
    assert not any(line.startswith("tool.finished") for line in await job.story())
    await call_back(job, 1, 0)
    assert "tool.finished invoices.get #0 ok" in (await job.end()).story


async def test_silence_is_an_error_to_the_model_where_the_call_only_read(skipping_jobs: Jobs) -> None:
    job = await waiting(skipping_jobs, until_s=100)
    ended = await job.end()
    assert ended.story[4:] == ["tool.started invoices.get #0", "tool.finished invoices.get #0 error", *CLOSING]
    started, finished = ended.record.events[4:6]
    assert 98 <= (finished.at - started.at).total_seconds() <= 101
    assert finished.message == "invoices.get did not answer in time."
    assert job.hands.ran == ["model 1.1", "invoices.get 1", "read_callback 1.0 close", "model 2.1"]


async def test_silence_is_an_unknown_effect_where_it_wrote(skipping_jobs: Jobs) -> None:
    job = await waiting(skipping_jobs, WRITE, until_s=100)
    assert skipping_jobs.clock is not None
    await skipping_jobs.clock.sleep(101)
    [request] = await job.pending(1)
    assert (await job.look()).view.executed == "unknown"
    await job.decide(request, "settle", answer="stop")
    ended = await job.end()
    assert ended.story[4:] == [
        "tool.started refunds.create #0",
        "effect.unknown refunds.create #0",
        "request.opened r1 reconciliation refunds.create",
        "request.decided r1 settle",
        "job.failed effect_unknown",
    ]
    assert ended.view.executed == "unknown"
    assert job.hands.ran[:3] == ["model 1.1", "refunds.create 1", "read_callback 1.0 close"]


async def test_an_answer_whose_hint_was_lost_is_found_when_the_wait_ends(skipping_jobs: Jobs) -> None:
    job = await waiting(skipping_jobs, WRITE, until_s=100)
    await call_back(job, 1, 0, hint=False)
    ended = await job.end()
    assert ended.story[4:] == ["tool.started refunds.create #0", "tool.finished refunds.create #0 ok", *CLOSING]


async def test_the_deadline_ends_a_wait_that_would_go_on(skipping_jobs: Jobs) -> None:
    job = await waiting(skipping_jobs, until_s=None, ends_in=100)
    ended = await job.end()
    assert (ended.story[4], ended.story[-1]) == ("tool.started invoices.get #0", "job.failed deadline_exceeded")
    assert job.hands.ran == ["model 1.1", "invoices.get 1"]
    assert (job.start.deadline - ended.record.events[-1].at).total_seconds() < 2


async def test_the_deadline_leaves_a_write_that_waits_unknown(skipping_jobs: Jobs) -> None:
    job = await waiting(skipping_jobs, WRITE, until_s=None, ends_in=100)
    ended = await job.end()
    assert ended.story[4:] == [
        "tool.started refunds.create #0",
        "effect.unknown refunds.create #0",
        "job.failed deadline_exceeded",
    ]


async def test_cancel_ends_a_waiting_read_at_once(jobs: Jobs) -> None:
    job = await waiting(jobs)
    await job.handle.cancel()
    ended = await job.end()
    assert ended.status is WorkflowExecutionStatus.CANCELED
    assert ended.story[4:] == ["tool.started invoices.get #0", "cancel.requested", "job.canceled"]
    assert job.hands.ran == ["model 1.1", "invoices.get 1"]


async def test_cancel_ends_a_waiting_write_at_once_and_calls_it_unknown(jobs: Jobs) -> None:
    job = await waiting(jobs, WRITE)
    await job.handle.cancel()
    ended = await job.end()
    assert ended.status is WorkflowExecutionStatus.CANCELED
    assert sorted(ended.story[5:]) == ["cancel.requested", "effect.unknown refunds.create #0", "job.canceled"]
    assert ended.story[-1] == "job.canceled"
    assert ended.view.executed == "unknown"
    asked, over = (event.at for event in ended.record.events if event.type in ("cancel.requested", "job.canceled"))
    assert (over - asked).total_seconds() < 5


async def test_two_calls_of_a_turn_are_answered_in_any_order(jobs: Jobs) -> None:
    tools: dict[str, list[Reply]] = {"invoices.get": [later()], "orders.get": [later()]}
    calls = [call(0, "invoices.get"), call(1, "orders.get")]
    job = await jobs.start(Hands(model=[turn(1, *calls), final(2)], tools=tools))
    await job.until("tool.started", times=2)
    await job.until_ran("orders.get 1")
    await call_back(job, 1, 1, ok=False)
    await job.until("tool.finished orders.get #1 error")
    await call_back(job, 1, 0)
    ended = await job.end()
    assert ended.story[4:] == [
        "tool.started invoices.get #0",
        "tool.started orders.get #1",
        "tool.finished orders.get #1 error",
        "tool.finished invoices.get #0 ok",
        *CLOSING,
    ]
    assert [result.outcome for result in job.hands.asked_model[1].results] == ["ok", "error"]


async def test_a_job_rolls_over_after_the_answer_and_not_before(real_jobs: Jobs) -> None:
    hands = Hands(
        model=[turn(1, READ), turn(2, READ), turn(3, READ), final(4)],
        tools={"invoices.get": [later(), later(), done()]},
    )
    job = await real_jobs.start(hands, roll_over_after=15)
    for number, step in enumerate((1, 3), 1):
        await job.until_ran("invoices.get 1", times=number)
        await call_back(job, step, 0)
        await job.until("tool.finished invoices.get #0 ok", times=number)
    ended = await job.end()
    assert [line for line in ended.story if line.startswith("tool.")] == [
        "tool.started invoices.get #0",
        "tool.finished invoices.get #0 ok",
    ] * 3
    assert ended.story[-1] == "job.succeeded"
    assert len(await job.runs()) >= 2


async def test_a_write_whose_attempt_was_lost_still_waits_where_the_ledger_says_so(jobs: Jobs) -> None:
    tools: dict[str, list[Reply]] = {"refunds.create": [Fault(StepCode.LOST), later()]}
    job = await jobs.start(Hands(model=[turn(1, WRITE), final(2)], tools=tools))
    await job.until_ran("refunds.create 2")
    job.hands.callbacks[1, 0] = CallbackOutput(outcome="ok")
    await hint_callback(job, 1, 0)
    ended = await job.end()
    assert [line for line in ended.story if line.startswith(("tool.", "effect.", "attempt."))] == [
        "tool.started refunds.create #0",
        "attempt.replaced attempt 2: lost, 1 s",
        "tool.finished refunds.create #0 ok",
    ]
