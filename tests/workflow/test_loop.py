"""The loop: turns, parallel reads, writes one at a time, budgets, results."""

from decimal import Decimal

from tests.workflow.hands import Fault, Hands, Held, call, done, final, turn
from tests.workflow.jobs import Jobs
from workflows.contract.errors import StepCode
from workflows.contract.ids import effect_id
from workflows.contract.job import INLINE_RESULT_BYTES, Limits
from workflows.contract.steps import ModelOutput


def limits(**less: object) -> Limits:
    return Limits.model_validate({"max_steps": 1000, "max_duration_seconds": 3600, "max_tokens": 10**6, **less})


async def test_read_then_final(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[turn(1, call(0, "invoices.get")), final(2)]))
    ended = await job.end()
    assert ended.story == [
        "job.queued",
        "job.started",
        "step.started turn 1",
        "step.finished turn 1: 1 calls",
        "tool.started invoices.get #0",
        "tool.finished invoices.get #0 ok",
        "step.started turn 2",
        "step.finished turn 2: 0 calls",
        "job.succeeded",
    ]
    assert ended.view.result_ref is not None
    assert (ended.view.executed, ended.view.recovery, ended.view.usage.steps) == ("yes", "none", 3)
    second = job.hands.asked_model[1]
    assert (second.turn, second.step, second.conversation) == (2, 3, turn(1).conversation)


async def test_script_that_skips_a_turn_moves_the_count_on(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[turn(3, call(0, "invoices.get")), final(4)]))
    ended = await job.end()
    assert ended.story[2:4] == ["step.started turn 1", "step.finished turn 3: 1 calls"]
    assert ended.story[-3:] == ["step.started turn 4", "step.finished turn 4: 0 calls", "job.succeeded"]


async def test_reads_of_one_turn_run_in_parallel_and_keep_their_order(jobs: Jobs) -> None:
    slow, quick = Held(done("slow")), Held(done("quick"))
    hands = Hands(
        model=[turn(1, call(0, "invoices.get"), call(1, "orders.get")), final(2)],
        tools={"invoices.get": [slow], "orders.get": [quick]},
    )
    job = await jobs.start(hands)
    await slow.entered.wait()
    await quick.entered.wait()
    quick.go.set()
    await job.until("tool.finished orders.get #1")
    slow.go.set()
    ended = await job.end()
    assert ended.story[4:8] == [
        "tool.started invoices.get #0",
        "tool.started orders.get #1",
        "tool.finished orders.get #1 ok",
        "tool.finished invoices.get #0 ok",
    ]
    assert [result.tool for result in hands.asked_model[1].results] == ["invoices.get", "orders.get"]


async def test_writes_run_one_at_a_time_in_the_order_they_become_permitted(jobs: Jobs) -> None:
    asked = call(0, "refunds.create", "write", ask=True)
    first, second = Held(done()), Held(done())
    hands = Hands(
        model=[turn(1, asked, call(1, "notes.put", "idempotent_write"), call(2, "notes.put", "idempotent_write"))],
        tools={"notes.put": [first, second]},
    )
    hands.model.append(final(2))
    job = await jobs.start(hands)
    await first.entered.wait()
    [request] = await job.pending(1)
    await job.decide(request, "approve")
    await job.until("request.decided")
    assert not second.entered.is_set()
    first.go.set()
    await second.entered.wait()
    second.go.set()
    ended = await job.end()
    assert ended.story[4:12] == [
        "request.opened r1 approval refunds.create",
        "tool.started notes.put #1",
        "request.decided r1 approve",
        "tool.finished notes.put #1 ok",
        "tool.started notes.put #2",
        "tool.finished notes.put #2 ok",
        "tool.started refunds.create #0",
        "tool.finished refunds.create #0 ok",
    ]


async def test_refused_call_is_told_to_the_model_and_spares_its_siblings(jobs: Jobs) -> None:
    calls = [call(0, "refunds.create", "write", refuse="not allowed"), call(1, "invoices.get")]
    job = await jobs.start(Hands(model=[turn(1, *calls), final(2)]))
    ended = await job.end()
    assert ended.story[4:7] == [
        "tool.refused refunds.create #0",
        "tool.started invoices.get #1",
        "tool.finished invoices.get #1 ok",
    ]
    refused, ok = job.hands.asked_model[1].results
    assert (refused.outcome, refused.note, ok.outcome) == ("refused", "not allowed", "ok")


async def test_effect_id_names_the_step_that_proposed_the_call(jobs: Jobs) -> None:
    write = call(1, "refunds.create", "write")
    job = await jobs.start(Hands(model=[turn(1, call(0, "invoices.get"), write), final(2)]))
    await job.end()
    [asked] = [asked for asked in job.hands.asked_tool if asked.effect == "write"]
    assert asked.effect_id == effect_id(job.start.workspace, job.start.job_id, 1, 1, write.action_digest)


async def test_step_budget_warns_at_eighty_percent_and_then_ends_the_job(jobs: Jobs) -> None:
    job = await jobs.start(
        Hands(forever=lambda number: turn(number, call(0, "invoices.get"))), limits=limits(max_steps=5)
    )
    ended = await job.end()
    assert ended.story[6:] == [
        "step.started turn 2",
        "step.finished turn 2: 1 calls",
        "tool.started invoices.get #0",
        "tool.finished invoices.get #0 ok",
        "budget.warning steps 4/5",
        "step.started turn 3",
        "step.finished turn 3: 1 calls",
        "job.failed budget_exceeded",
    ]
    assert len(job.hands.ran) == ended.view.usage.steps == 5


async def test_token_budget_counts_what_the_model_reports(jobs: Jobs) -> None:
    def spend(number: int) -> ModelOutput:
        return turn(number, call(0, "invoices.get"), input_tokens=300, output_tokens=100)

    job = await jobs.start(Hands(forever=spend), limits=limits(max_tokens=1000))
    ended = await job.end()
    assert [line for line in ended.story if line.startswith(("budget", "job.failed"))] == [
        "budget.warning tokens 800/1000",
        "job.failed budget_exceeded",
    ]
    assert (ended.view.usage.input_tokens, ended.view.usage.output_tokens) == (900, 300)


async def test_money_budget_counts_exactly(jobs: Jobs) -> None:
    def spend(number: int) -> ModelOutput:
        return turn(number, call(0, "invoices.get"), cost_usd=Decimal("0.1"))

    job = await jobs.start(Hands(forever=spend), limits=limits(max_cost_usd=Decimal("0.3")))
    ended = await job.end()
    assert [line for line in ended.story if line.startswith(("budget", "job.failed"))] == [
        "budget.warning cost_usd 0.3000/0.3000",
        "job.failed budget_exceeded",
    ]
    assert ended.view.usage.cost_usd == Decimal("0.3")
    assert job.hands.ran.count("model 3.1") == 1
    assert "model 4.1" not in job.hands.ran


async def test_result_over_32_kb_is_an_artifact_before_the_job_is_done(jobs: Jobs) -> None:
    just = await jobs.start(Hands(model=[final(1, INLINE_RESULT_BYTES)]))
    over = await jobs.start(Hands(model=[final(1, INLINE_RESULT_BYTES + 1)]))
    ended = await just.end()
    assert (ended.story[-1], ended.view.delivery, ended.view.artifacts) == ("job.succeeded", "none", ())
    ended = await over.end()
    assert ended.story[-2:] == ["artifact.published", "job.succeeded"]
    assert (ended.view.delivery, ended.view.result_ref) == ("delivered", None)
    assert [(one.name, one.bytes) for one in ended.view.artifacts] == [("result.json", INLINE_RESULT_BYTES + 1)]
    assert over.hands.ran == ["model 1.1", "publish result.json"]


async def test_a_result_that_can_not_be_published_is_no_success(jobs: Jobs) -> None:
    hands = Hands(model=[final(1, 40_000)], publishing=[Fault(StepCode.RESULT_TOO_LARGE)])
    ended = await (await jobs.start(hands)).end()
    assert ended.story[-1] == "job.failed result_too_large"
    assert (ended.view.delivery, ended.view.artifacts) == ("pending", ())


async def test_publishing_is_tried_again_while_the_store_is_away(skipping_jobs: Jobs) -> None:
    hands = Hands(model=[final(1, 40_000)], publishing=[Fault(StepCode.BLOBS_UNAVAILABLE)] * 2)
    ended = await (await skipping_jobs.start(hands)).end()
    assert ended.story[-4:] == [
        "attempt.replaced attempt 2: blobs_unavailable, 1 s",
        "attempt.replaced attempt 3: blobs_unavailable, 2 s",
        "artifact.published",
        "job.succeeded",
    ]
