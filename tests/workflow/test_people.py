"""Requests to people: approved, rejected, answered, expired, voted; each as the whole log."""

from tests.workflow.hands import Hands, call, final, turn
from tests.workflow.jobs import TOOLS, Jobs
from workflows.contract.ids import PrincipalId, ToolName
from workflows.contract.job import ApprovalRule, ToolRow
from workflows.contract.steps import Ruling

REFUND = call(0, "refunds.create", "write", ask=True)
APPROVED = Ruling(verdict="approve", decided_by=(PrincipalId("ann"),))


def with_rule(rule: ApprovalRule) -> dict[ToolName, ToolRow]:
    """The dispatch table with this approval rule for refunds."""
    name = ToolName("refunds.create")
    return {**TOOLS, name: TOOLS[name].model_copy(update={"approval": rule})}


async def test_approved_call_runs_and_the_job_goes_on(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[turn(1, REFUND), final(2)]))
    [request] = await job.pending(1)
    await job.decide(request, "approve")
    ended = await job.end()
    assert ended.story == [
        "job.queued",
        "job.started",
        "step.started turn 1",
        "step.finished turn 1: 1 calls",
        "request.opened r1 approval refunds.create",
        "request.decided r1 approve",
        "tool.started refunds.create #0",
        "tool.finished refunds.create #0 ok",
        "step.started turn 2",
        "step.finished turn 2: 0 calls",
        "job.succeeded",
    ]
    assert job.hands.asked_tool[0].request_id == request


async def test_rejected_call_never_runs_and_the_model_is_told(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[turn(1, REFUND), final(2)]))
    [request] = await job.pending(1)
    await job.decide(request, "reject", reason="too much")
    ended = await job.end()
    assert ended.story[4:] == [
        "request.opened r1 approval refunds.create",
        "request.decided r1 reject",
        "step.started turn 2",
        "step.finished turn 2: 0 calls",
        "job.succeeded",
    ]
    assert job.hands.ran == ["model 1.1", f"read_decision {request}", "model 2.1"]
    assert [result.outcome for result in job.hands.asked_model[1].results] == ["rejected"]
    [closed] = ended.view.requests
    assert (closed.state, closed.decided_by) == ("rejected", ("ann",))


async def test_answered_question_reaches_the_model_as_a_reference(jobs: Jobs) -> None:
    question = call(0, "ask_human", ask=True, kind="question")
    job = await jobs.start(Hands(model=[turn(1, question), final(2)]))
    [request] = await job.pending(1)
    await job.decide(request, "answer", answer_ref="sha256:answer")
    ended = await job.end()
    assert ended.story[4:6] == ["request.opened r1 question ask_human", "request.decided r1 answer"]
    assert job.hands.ran == ["model 1.1", f"read_decision {request}", "model 2.1"]
    [result] = job.hands.asked_model[1].results
    assert (result.outcome, result.result_ref) == ("answered", "sha256:answer")


async def test_silence_expires_after_a_warning_and_is_never_yes(skipping_jobs: Jobs) -> None:
    rule = ApprovalRule(expires_in_seconds=100)
    job = await skipping_jobs.start(Hands(model=[turn(1, REFUND), final(2)]), tools=with_rule(rule), ends_in=3600)
    [request] = await job.pending(1)
    ended = await job.end()
    assert ended.story[4:] == [
        "request.opened r1 approval refunds.create",
        "request.expiring r1",
        "request.expired r1",
        "step.started turn 2",
        "step.finished turn 2: 0 calls",
        "job.succeeded",
    ]
    opened, expiring, expired = ended.record.events[4:7]
    assert round((expiring.at - opened.at).total_seconds()) == 80
    assert round((expired.at - opened.at).total_seconds()) == 100
    assert job.hands.ran == ["model 1.1", f"read_decision {request} close", "model 2.1"]
    assert job.hands.asked_model[1].results[0].outcome == "expired"


async def test_decision_that_stands_wins_over_the_expiry_that_finds_it(skipping_jobs: Jobs) -> None:
    rule = ApprovalRule(expires_in_seconds=100)
    job = await skipping_jobs.start(Hands(model=[turn(1, REFUND), final(2)]), tools=with_rule(rule))
    [request] = await job.pending(1)
    asked = (await job.look()).view.requests[0]
    job.hands.ledger[request] = job.hands.ledger.get(request, APPROVED).model_copy(
        update={"action_digest": asked.action_digest}
    )  # decided in the ledger; its hint is lost
    ended = await job.end()
    assert ended.story[5:8] == ["request.expiring r1", "request.decided r1 approve", "tool.started refunds.create #0"]


async def test_quorum_of_two_says_each_vote(jobs: Jobs) -> None:
    rule = ApprovalRule(quorum=2)
    job = await jobs.start(Hands(model=[turn(1, REFUND), final(2)]), tools=with_rule(rule))
    [request] = await job.pending(1)
    await job.decide(request, None, votes=1)
    await job.until("request.voted")
    await job.decide(request, "approve", decided_by=("ann", "bob"), votes=2)
    ended = await job.end()
    assert ended.story[4:8] == [
        "request.opened r1 approval refunds.create",
        "request.voted r1 1/2",
        "request.decided r1 approve",
        "tool.started refunds.create #0",
    ]
    assert ended.view.requests[0].decided_by == ("ann", "bob")


async def test_three_requests_of_a_turn_open_together_and_settle_alone(jobs: Jobs) -> None:
    calls = [call(n, "notes.put", "idempotent_write", ask=True) for n in range(3)]
    job = await jobs.start(Hands(model=[turn(1, *calls), final(2)]))
    first, second, third = await job.pending(3)
    assert (await job.look()).view.status == "waiting_for_human"
    await job.decide(third, "approve")
    await job.until("tool.finished notes.put #2")
    await job.decide(second, "reject")
    await job.until("request.decided", times=2)
    await job.decide(first, "approve")
    ended = await job.end()
    assert ended.story[4:] == [
        "request.opened r1 approval notes.put",
        "request.opened r2 approval notes.put",
        "request.opened r3 approval notes.put",
        "request.decided r3 approve",
        "tool.started notes.put #2",
        "tool.finished notes.put #2 ok",
        "request.decided r2 reject",
        "request.decided r1 approve",
        "tool.started notes.put #0",
        "tool.finished notes.put #0 ok",
        "step.started turn 2",
        "step.finished turn 2: 0 calls",
        "job.succeeded",
    ]
    assert [result.outcome for result in job.hands.asked_model[1].results] == ["ok", "rejected", "ok"]


async def test_the_same_call_is_proposed_to_people_three_times_at_most(jobs: Jobs) -> None:
    again = call(0, "refunds.create", "write", ask=True, action="the same")
    job = await jobs.start(Hands(model=[*(turn(n, again) for n in range(1, 6)), final(6)]))
    for number in range(1, 4):
        [request] = await job.pending(1)
        assert request.startswith(f"r{number}-")
        await job.decide(request, "reject")
        await job.until("request.decided", times=number)
    ended = await job.end()
    asked = [line for line in ended.story if line.startswith(("request.", "tool."))]
    assert asked == [
        *(
            line
            for n in (1, 2, 3)
            for line in (f"request.opened r{n} approval refunds.create", f"request.decided r{n} reject")
        ),
        "tool.refused refunds.create #0",
        "tool.refused refunds.create #0",
    ]


async def test_ruling_on_another_action_counts_for_nothing(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[turn(1, REFUND), final(2)]))
    [request] = await job.pending(1)
    await job.decide(request, "approve", action_digest="sha256:" + "0" * 64)
    await job.until("decision.refused")
    assert await job.pending(1) == [request]
    assert not job.hands.asked_tool
    await job.handle.cancel()
    await job.end()
