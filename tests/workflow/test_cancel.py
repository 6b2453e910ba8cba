"""Cancel goes all the way down: nothing starts after it, and a write that may have left is awaited."""

import pytest
from temporalio.client import WorkflowExecutionStatus

from tests.workflow.hands import Fault, Hands, Held, call, done, final, turn
from tests.workflow.jobs import Jobs
from workflows.contract.errors import StepCode
from workflows.contract.ids import Digest, PrincipalId
from workflows.contract.steps import Ruling

ANN = PrincipalId("ann")
READ = call(0, "invoices.get")
WRITE = call(0, "refunds.create", "write")
OPENING = ["job.queued", "job.started", "step.started turn 1"]
CANCELED = ["cancel.requested", "job.canceled"]


async def test_cancel_before_the_first_task_runs_nothing(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[final(1)]), queue="cancel-late-worker")
    await job.handle.cancel()
    async with jobs.worker("cancel-late-worker"):
        ended = await job.end()
    assert ended.status is WorkflowExecutionStatus.CANCELED
    assert ended.story == ["job.queued", *CANCELED]
    assert job.hands.ran == []
    assert ended.view.executed == "no"


async def test_cancel_while_the_model_thinks(jobs: Jobs) -> None:
    thinking = Held(final(1))
    job = await jobs.start(Hands(model=[thinking]))
    await thinking.entered.wait()
    await job.handle.cancel()
    ended = await job.end()
    assert ended.story == [*OPENING, *CANCELED]
    await thinking.canceled.wait()


async def test_cancel_during_a_read_does_not_wait_for_it(jobs: Jobs) -> None:
    reading = Held(done())
    job = await jobs.start(Hands(model=[turn(1, READ), final(2)], tools={"invoices.get": [reading]}))
    await reading.entered.wait()
    await job.handle.cancel()
    ended = await job.end()
    assert ended.story == [
        *OPENING,
        "step.finished turn 1: 1 calls",
        "tool.started invoices.get #0",
        *CANCELED,
    ]
    await reading.canceled.wait()
    assert job.hands.ran == ["model 1.1", "invoices.get 1"]


async def test_cancel_while_waiting_for_people_voids_the_requests(jobs: Jobs) -> None:
    asks = [call(n, "notes.put", "idempotent_write", ask=True) for n in range(2)]
    job = await jobs.start(Hands(model=[turn(1, *asks), final(2)]))
    await job.pending(2)
    await job.handle.cancel()
    ended = await job.end()
    assert ended.story[4:] == [
        "request.opened r1 approval notes.put",
        "request.opened r2 approval notes.put",
        "cancel.requested",
        "request.voided r1",
        "request.voided r2",
        "job.canceled",
    ]
    assert {request.state for request in ended.view.requests} == {"voided"}
    assert job.hands.asked_tool == []


async def test_what_was_decided_before_a_job_ends_is_in_its_log_even_without_a_hint(jobs: Jobs) -> None:
    asks = [call(n, "notes.put", "idempotent_write", ask=True) for n in range(2)]
    job = await jobs.start(Hands(model=[turn(1, *asks), final(2)]))
    first, second = await job.pending(2)
    for request, action in ((first, asks[0].action_digest), (second, "of another call")):
        job.hands.ledger[request] = Ruling(verdict="approve", action_digest=Digest(action), decided_by=(ANN,))
    await job.handle.cancel()
    ended = await job.end()
    assert ended.story[6:] == ["request.decided r1 approve", "cancel.requested", "request.voided r2", "job.canceled"]
    assert [request.state for request in ended.view.requests] == ["approved", "voided"]
    assert job.hands.asked_tool == []


async def test_cancel_during_a_write_awaits_its_word(jobs: Jobs) -> None:
    writing = Held(done("Refunded."))
    calls = [WRITE, call(1, "refunds.create", "write")]
    job = await jobs.start(Hands(model=[turn(1, *calls), final(2)], tools={"refunds.create": [writing]}))
    await writing.entered.wait()
    await job.handle.cancel()
    view = (await job.until("cancel.requested")).view
    assert (view.status, writing.canceled.is_set()) == ("canceling", False)
    writing.go.set()
    ended = await job.end()
    assert ended.status is WorkflowExecutionStatus.CANCELED
    assert ended.story == [
        *OPENING,
        "step.finished turn 1: 2 calls",
        "tool.started refunds.create #0",
        "cancel.requested",
        "tool.finished refunds.create #0 ok",
        "job.canceled",
    ]
    assert job.hands.ran == ["model 1.1", "refunds.create 1"]
    assert ended.view.executed == "yes"


async def test_cancel_during_a_write_that_is_lost_says_unknown(jobs: Jobs) -> None:
    writing = Held(Fault(StepCode.EFFECT_UNKNOWN))
    job = await jobs.start(Hands(model=[turn(1, WRITE), final(2)], tools={"refunds.create": [writing]}))
    await writing.entered.wait()
    await job.handle.cancel()
    await job.until("cancel.requested")
    writing.go.set()
    ended = await job.end()
    assert ended.story[5:] == ["cancel.requested", "effect.unknown refunds.create #0", "job.canceled"]
    assert ended.view.executed == "unknown"


@pytest.mark.parametrize("code", [StepCode.UNAVAILABLE, StepCode.RATE_LIMITED, StepCode.LOST])
async def test_cancel_during_an_idempotent_write_that_is_lost_says_unknown_and_tries_no_more(
    jobs: Jobs, code: StepCode
) -> None:
    writing, put = Held(Fault(code)), call(0, "notes.put", "idempotent_write")
    job = await jobs.start(Hands(model=[turn(1, put), final(2)], tools={"notes.put": [writing]}))
    await writing.entered.wait()
    await job.handle.cancel()
    await job.until("cancel.requested")
    writing.go.set()
    ended = await job.end()
    assert ended.story[5:] == ["cancel.requested", "effect.unknown notes.put #0", "job.canceled"]
    assert ended.view.executed == "unknown"
    assert job.hands.ran == ["model 1.1", "notes.put 1"]


@pytest.mark.parametrize(
    ("code", "told"), [(StepCode.LOST, ["effect.unknown refunds.create #0"]), (StepCode.CONNECT_REFUSED, [])]
)
async def test_cancel_during_a_write_that_could_be_tried_again_tries_no_more(
    jobs: Jobs, code: StepCode, told: list[str]
) -> None:
    """What surely left nothing is in no doubt."""
    writing = Held(Fault(code))
    job = await jobs.start(Hands(model=[turn(1, WRITE), final(2)], tools={"refunds.create": [writing]}))
    await writing.entered.wait()
    await job.handle.cancel()
    await job.until("cancel.requested")
    writing.go.set()
    ended = await job.end()
    assert ended.story[5:] == ["cancel.requested", *told, "job.canceled"]
    assert ended.view.executed == ("unknown" if told else "yes")
    assert job.hands.ran == ["model 1.1", "refunds.create 1"]


async def test_cancel_in_a_write_back_off_sends_no_further_attempt(jobs: Jobs) -> None:
    job = await jobs.start(
        Hands(model=[turn(1, WRITE), final(2)], tools={"refunds.create": [Fault(StepCode.CONNECT_REFUSED)]})
    )
    await job.until("attempt.replaced")
    await job.handle.cancel()
    ended = await job.end()
    assert ended.story[4:] == [
        "tool.started refunds.create #0",
        "attempt.replaced attempt 2: connect_refused, 1 s",
        *CANCELED,
    ]
    assert job.hands.ran == ["model 1.1", "refunds.create 1"]


async def test_cancel_in_a_model_back_off_ends_at_once(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[Fault(StepCode.RATE_LIMITED, retry_after_s=60)]))
    await job.until("attempt.replaced")
    await job.handle.cancel()
    ended = await job.end()
    assert ended.story == [*OPENING, "attempt.replaced attempt 2: rate_limited, 60 s", *CANCELED]
    assert (ended.record.events[-1].at - ended.record.events[3].at).total_seconds() < 30


async def test_cancel_in_a_long_back_off_of_an_idempotent_write_ends_at_once(jobs: Jobs) -> None:
    put = call(0, "notes.put", "idempotent_write")
    limited = Fault(StepCode.RATE_LIMITED, retry_after_s=60)
    job = await jobs.start(Hands(model=[turn(1, put), final(2)], tools={"notes.put": [limited]}))
    await job.until("attempt.replaced")
    await job.handle.cancel()
    ended = await job.end()
    assert ended.story[4:] == [
        "tool.started notes.put #0",
        "attempt.replaced attempt 2: rate_limited, 60 s",
        "cancel.requested",
        "effect.unknown notes.put #0",
        "job.canceled",
    ]
    assert (ended.record.events[-1].at - ended.record.events[5].at).total_seconds() < 10


async def test_second_cancel_is_a_no_op(jobs: Jobs) -> None:
    writing = Held(done())
    job = await jobs.start(Hands(model=[turn(1, WRITE), final(2)], tools={"refunds.create": [writing]}))
    await writing.entered.wait()
    await job.handle.cancel()
    first = (await job.until("cancel.requested")).view.cancel_requested_at
    await job.handle.cancel()
    await job.handle.cancel()
    assert (await job.look()).view.cancel_requested_at == first
    assert not writing.canceled.is_set()
    writing.go.set()
    ended = await job.end()
    assert ended.story.count("cancel.requested") == 1
    assert ended.view.cancel_requested_at == first
    assert ended.story[-2:] == ["tool.finished refunds.create #0 ok", "job.canceled"]
    await job.handle.cancel()
    assert (await job.memo()).view == ended.view


async def test_signals_after_the_cancel_change_nothing(jobs: Jobs) -> None:
    writing = Held(done())
    job = await jobs.start(Hands(model=[turn(1, WRITE), final(2)], tools={"refunds.create": [writing]}))
    await writing.entered.wait()
    await job.handle.cancel()
    await job.until("cancel.requested")
    await job.handle.signal("noise")
    await job.hint("r1-000000")
    writing.go.set()
    ended = await job.end()
    assert ended.story[-3:] == ["cancel.requested", "tool.finished refunds.create #0 ok", "job.canceled"]


@pytest.mark.parametrize("kind", ["model", "tool"])
async def test_stop_in_the_ledger_waits_for_the_cancel_that_goes_with_it(jobs: Jobs, kind: str) -> None:
    stopped = Fault(StepCode.STOPPED)
    hands = Hands(model=[stopped]) if kind == "model" else Hands(model=[turn(1, WRITE)])
    hands.tools = {"refunds.create": [stopped]}
    job = await jobs.start(hands)
    await job.until("tool.started" if kind == "tool" else "step.started")
    await job.handle.cancel()
    ended = await job.end()
    assert ended.status is WorkflowExecutionStatus.CANCELED
    assert ended.story[-2:] == CANCELED
    assert ended.story[:3] == OPENING


async def test_stop_without_a_cancel_ends_at_the_deadline(skipping_jobs: Jobs) -> None:
    job = await skipping_jobs.start(Hands(model=[Fault(StepCode.STOPPED)]), ends_in=60)
    ended = await job.end()
    assert ended.story == [*OPENING, "job.failed deadline_exceeded"]
