"""Attempts at model, reads and writes: how many, how far apart, and what the log says of each."""

from itertools import pairwise

import pytest

from tests.workflow.hands import Fault, Hands, call, done, final, turn
from tests.workflow.jobs import Jobs
from workflows.contract.errors import StepCode
from workflows.contract.job import EffectClass
from workflows.contract.steps import ToolOutput

OPENING = ["job.queued", "job.started", "step.started turn 1"]
TOOL = {"read": "invoices.get", "idempotent_write": "notes.put", "write": "refunds.create"}


def one_call(effect: EffectClass, *replies: Fault | ToolOutput | Exception) -> Hands:
    tool = TOOL[effect]
    return Hands(model=[turn(1, call(0, tool, effect)), final(2)], tools={tool: [*replies]})


async def test_model_gets_four_attempts_one_two_and_four_seconds_apart(skipping_jobs: Jobs) -> None:
    faults = [Fault(StepCode.UNAVAILABLE) for _ in range(5)]
    job = await skipping_jobs.start(Hands(model=[*faults]))
    ended = await job.end()
    assert ended.story == [
        *OPENING,
        "attempt.replaced attempt 2: unavailable, 1 s",
        "attempt.replaced attempt 3: unavailable, 2 s",
        "attempt.replaced attempt 4: unavailable, 4 s",
        "job.failed model_failed",
    ]
    assert job.hands.ran == ["model 1.1", "model 1.2", "model 1.3", "model 1.4"]
    told = [event.at for event in ended.record.events[3:]]
    apart = [round((late - early).total_seconds()) for early, late in pairwise(told)]
    assert apart == [1, 2, 4]


async def test_retry_after_is_honoured_where_it_fits_the_deadline(skipping_jobs: Jobs) -> None:
    job = await skipping_jobs.start(Hands(model=[Fault(StepCode.RATE_LIMITED, retry_after_s=30), final(1)]))
    ended = await job.end()
    assert ended.story == [
        *OPENING,
        "attempt.replaced attempt 2: rate_limited, 30 s",
        "step.finished turn 1: 0 calls",
        "job.succeeded",
    ]
    waited = (ended.record.events[4].at - ended.record.events[3].at).total_seconds()
    assert 29.5 <= waited < 32


async def test_retry_after_past_the_deadline_ends_the_step_at_once(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[Fault(StepCode.RATE_LIMITED, retry_after_s=3700)]), ends_in=3600)
    ended = await job.end()
    assert ended.story == [*OPENING, "job.failed model_failed"]


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (StepCode.REJECTED, "model_failed"),
        (StepCode.NO_RECEIPT, "input_rejected"),
        (StepCode.SNAPSHOT_MISMATCH, "snapshot_mismatch"),
        (StepCode.RESULT_TOO_LARGE, "result_too_large"),
        (StepCode.INTERNAL, "internal"),
        (StepCode.DEADLINE, "deadline_exceeded"),
    ],
)
async def test_final_fault_of_the_model_is_one_attempt_and_a_typed_failure(
    jobs: Jobs, code: StepCode, failure: str
) -> None:
    job = await jobs.start(Hands(model=[Fault(code)]))
    ended = await job.end()
    assert ended.story == [*OPENING, f"job.failed {failure}"]
    assert job.hands.ran == ["model 1.1"]


@pytest.mark.parametrize("code", [StepCode.AUTHORITY_REVOKED, StepCode.PHASE_CLOSED])
@pytest.mark.parametrize("where", ["model", "tool"])
async def test_revoked_authority_stops_the_job_and_says_so(jobs: Jobs, code: StepCode, where: str) -> None:
    hands = Hands(model=[Fault(code)]) if where == "model" else one_call("write", Fault(code))
    job = await jobs.start(hands)
    ended = await job.end()
    assert ended.story[-2:] == [f"authority.revoked {code}", "job.failed authority_revoked"]
    assert len(job.hands.ran) == (1 if where == "model" else 2)


async def test_unnamed_exception_of_an_activity_fails_the_job_without_its_text(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[RuntimeError("a stack and a secret")]))
    ended = await job.end()
    assert ended.story == [*OPENING, "job.failed internal"]
    assert "secret" not in ended.record.model_dump_json()


async def test_read_out_of_attempts_ends_the_job(skipping_jobs: Jobs) -> None:
    job = await skipping_jobs.start(one_call("read", *[Fault(StepCode.UNAVAILABLE) for _ in range(4)]))
    ended = await job.end()
    assert ended.story[3:] == [
        "step.finished turn 1: 1 calls",
        "tool.started invoices.get #0",
        "attempt.replaced attempt 2: unavailable, 1 s",
        "attempt.replaced attempt 3: unavailable, 2 s",
        "attempt.replaced attempt 4: unavailable, 4 s",
        "job.failed tool_failed",
    ]
    assert [asked.attempt for asked in job.hands.asked_tool] == [1, 2, 3, 4]


async def test_idempotent_write_keeps_its_effect_id_on_every_attempt(skipping_jobs: Jobs) -> None:
    job = await skipping_jobs.start(one_call("idempotent_write", Fault(StepCode.UNAVAILABLE), done()))
    ended = await job.end()
    assert ended.story[-1] == "job.succeeded"
    first, second = job.hands.asked_tool
    assert first.effect_id is not None
    assert first.effect_id == second.effect_id


@pytest.mark.parametrize("code", [StepCode.CONNECT_REFUSED, StepCode.STALE, StepCode.LOST])
async def test_write_that_left_nothing_or_asks_the_ledger_is_tried_again(skipping_jobs: Jobs, code: StepCode) -> None:
    job = await skipping_jobs.start(one_call("write", Fault(code), done()))
    ended = await job.end()
    assert ended.story[4:] == [
        "tool.started refunds.create #0",
        f"attempt.replaced attempt 2: {code}, 1 s",
        "tool.finished refunds.create #0 ok",
        "step.started turn 2",
        "step.finished turn 2: 0 calls",
        "job.succeeded",
    ]
    assert len({asked.effect_id for asked in job.hands.asked_tool}) == 1


@pytest.mark.parametrize("code", [StepCode.UNAVAILABLE, StepCode.RATE_LIMITED, StepCode.REJECTED])
async def test_write_that_was_answered_badly_is_sent_once(jobs: Jobs, code: StepCode) -> None:
    job = await jobs.start(one_call("write", Fault(code)))
    ended = await job.end()
    assert ended.story[4:] == ["tool.started refunds.create #0", "job.failed tool_failed"]


@pytest.mark.parametrize(
    "reply",
    [ToolOutput(outcome="unknown", message=""), Fault(StepCode.EFFECT_UNKNOWN), Fault(StepCode.INTERNAL)],
    ids=["said so", "code", "fault inside"],
)
async def test_write_whose_outcome_is_not_known_ends_the_job_and_is_not_repeated(
    jobs: Jobs, reply: ToolOutput | Fault
) -> None:
    job = await jobs.start(one_call("write", reply))
    [request] = await job.pending(1)
    await job.decide(request, "settle", answer="stop")
    ended = await job.end()
    assert ended.story[4:] == [
        "tool.started refunds.create #0",
        "effect.unknown refunds.create #0",
        "request.opened r1 reconciliation refunds.create",
        "request.decided r1 settle",
        "job.failed effect_unknown",
    ]
    assert (ended.view.executed, ended.view.recovery) == ("unknown", "needs_person")
    assert job.hands.ran == [
        "model 1.1",
        "refunds.create 1",
        "reconcile refunds.create tool",
        f"read_decision {request}",
    ]


async def test_write_lost_four_times_is_unknown(skipping_jobs: Jobs) -> None:
    job = await skipping_jobs.start(one_call("write", *[Fault(StepCode.LOST) for _ in range(4)]))
    [request] = await job.pending(1)
    await job.decide(request, "settle", answer="stop")
    ended = await job.end()
    assert "effect.unknown refunds.create #0" in ended.story
    assert ended.story[-1] == "job.failed effect_unknown"
    assert ended.view.executed == "unknown"


async def test_error_result_of_a_tool_is_for_the_model_to_see(jobs: Jobs) -> None:
    job = await jobs.start(one_call("read", ToolOutput(outcome="error", message="404")))
    ended = await job.end()
    assert ended.story[5:] == [
        "tool.finished invoices.get #0 error",
        "step.started turn 2",
        "step.finished turn 2: 0 calls",
        "job.succeeded",
    ]
    assert job.hands.asked_model[1].results[0].outcome == "error"
