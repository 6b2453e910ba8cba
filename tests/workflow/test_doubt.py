"""A write whose outcome is not known: a tool finds it, a person settles it, or the job ends; it is never sent again.

Each as the whole log and as the list of what ran.
"""

import pytest

from tests.workflow.hands import Fault, Hands, Held, Reply, blob, call, done, final, turn
from tests.workflow.jobs import Job, Jobs
from workflows.contract.errors import StepCode
from workflows.contract.steps import ReconcileOutput, ToolOutput

REFUND = call(0, "refunds.create", "write")
UNKNOWN = ToolOutput(outcome="unknown", message="")
FOUND = ReconcileOutput(outcome="happened", by="tool", result_ref=blob("found"))
ABSENT = ReconcileOutput(outcome="did_not_happen", by="tool", result_ref=blob("absent"))
OPENING = ["job.queued", "job.started", "step.started turn 1", "step.finished turn 1: 1 calls"]
DOUBT = [*OPENING, "tool.started refunds.create #0", "effect.unknown refunds.create #0"]
ASKED = [*DOUBT, "request.opened r1 reconciliation refunds.create"]
GOES_ON = ["step.started turn 2", "step.finished turn 2: 0 calls", "job.succeeded"]


async def in_doubt(jobs: Jobs, *known: ReconcileOutput | Fault, ends_in: float = 3600) -> Job:
    hands = Hands(model=[turn(1, REFUND), final(2)], tools={"refunds.create": [UNKNOWN]}, effects=[*known])
    return await jobs.start(hands, ends_in=ends_in)


def sent(job: Job) -> int:
    return sum(line.startswith("refunds.create ") for line in job.hands.ran)


async def test_a_tool_that_finds_the_effect_lets_the_job_go_on(jobs: Jobs) -> None:
    job = await in_doubt(jobs, FOUND)
    ended = await job.end()
    assert ended.story == [
        *DOUBT,
        "effect.reconciled refunds.create happened",
        "tool.finished refunds.create #0 ok",
        *GOES_ON,
    ]
    assert job.hands.ran == ["model 1.1", "refunds.create 1", "reconcile refunds.create tool", "model 2.1"]
    [result] = job.hands.asked_model[1].results
    assert (result.outcome, result.result_ref) == ("ok", FOUND.result_ref)
    assert ended.view.executed == "yes"


async def test_what_is_not_found_twice_did_not_happen(skipping_jobs: Jobs) -> None:
    job = await in_doubt(skipping_jobs, ABSENT, ABSENT)
    ended = await job.end()
    assert ended.story == [
        *DOUBT,
        "effect.reconciled refunds.create did_not_happen",
        "tool.finished refunds.create #0 error",
        *GOES_ON,
    ]
    assert job.hands.ran[2:4] == ["reconcile refunds.create tool", "reconcile refunds.create believe_tool"]
    asked, told = ended.record.events[5:7]
    assert (told.at - asked.at).total_seconds() >= 19, "not before the write's own 20 s are over"
    assert sent(job) == 1


async def test_what_is_found_at_the_second_look_happened(skipping_jobs: Jobs) -> None:
    ended = await (await in_doubt(skipping_jobs, ABSENT, FOUND)).end()
    assert ended.story[6] == "effect.reconciled refunds.create happened"


@pytest.mark.parametrize(
    "known",
    [[], [Fault(StepCode.REJECTED)], [Fault(StepCode.SNAPSHOT_MISMATCH)]],
    ids=["no tool", "refused", "damaged"],
)
@pytest.mark.parametrize("answer", ["happened", "did_not_happen"])
async def test_a_person_settles_what_no_tool_can_tell(jobs: Jobs, known: list[Fault], answer: str) -> None:
    job = await in_doubt(jobs, *known)
    [request] = await job.pending(1)
    view = (await job.look()).view
    assert (view.status, view.executed, view.recovery) == ("waiting_for_human", "unknown", "needs_person")
    assert view.requests[0].effect_id == job.hands.asked_tool[0].effect_id
    settled: ReconcileOutput = ReconcileOutput.model_validate({"outcome": answer, "by": "ledger"})
    job.hands.effects.append(settled)
    await job.decide(request, "settle", answer=answer)
    ended = await job.end()
    assert ended.story == [
        *ASKED,
        "request.decided r1 settle",
        f"effect.reconciled refunds.create {answer}",
        f"tool.finished refunds.create #0 {'ok' if answer == 'happened' else 'error'}",
        *GOES_ON,
    ]
    assert job.hands.ran[-2:] == ["reconcile refunds.create ledger", "model 2.1"]
    assert sent(job) == 1


async def test_the_ledgers_word_counts_and_not_the_persons(jobs: Jobs) -> None:
    job = await in_doubt(jobs)
    [request] = await job.pending(1)
    job.hands.effects.append(ReconcileOutput(outcome="happened"))
    await job.decide(request, "settle", answer="did_not_happen")
    assert "effect.reconciled refunds.create happened" in (await job.end()).story


async def test_stop_ends_the_job_with_the_effect_unknown(jobs: Jobs) -> None:
    job = await in_doubt(jobs)
    [request] = await job.pending(1)
    await job.decide(request, "settle", answer="stop")
    ended = await job.end()
    assert ended.story == [*ASKED, "request.decided r1 settle", "job.failed effect_unknown"]
    assert (ended.view.executed, ended.view.recovery) == ("unknown", "needs_person")


async def test_a_forged_hint_settles_nothing(jobs: Jobs) -> None:
    job = await in_doubt(jobs)
    [request] = await job.pending(1)
    await job.hint(request)
    await job.until("decision.refused")
    assert (await job.look()).view.status == "waiting_for_human"
    await job.decide(request, "settle", answer="stop")
    assert (await job.end()).story[-1] == "job.failed effect_unknown"


async def test_cancel_voids_the_question_and_leaves_the_effect_unknown(jobs: Jobs) -> None:
    job = await in_doubt(jobs)
    await job.pending(1)
    await job.handle.cancel()
    ended = await job.end()
    assert ended.story == [*ASKED, "cancel.requested", "request.voided r1", "job.canceled"]
    assert ended.view.executed == "unknown"


@pytest.mark.parametrize(("answer", "executed"), [("stop", "unknown"), ("happened", "yes")])
async def test_a_call_that_ends_meanwhile_does_not_hide_that_an_effect_is_not_known(
    jobs: Jobs, answer: str, executed: str
) -> None:
    reading = Held(done())
    tools: dict[str, list[Reply]] = {"refunds.create": [UNKNOWN], "invoices.get": [reading]}
    job = await jobs.start(Hands(model=[turn(1, REFUND, call(1, "invoices.get")), final(2)], tools=tools))
    [request] = await job.pending(1)
    reading.go.set()
    await job.until("tool.finished invoices.get #1 ok")
    view = (await job.look()).view
    assert (view.status, view.executed, view.recovery) == ("waiting_for_human", "unknown", "needs_person")
    if answer != "stop":
        job.hands.effects.append(ReconcileOutput(outcome="happened"))
    await job.decide(request, "settle", answer=answer)
    assert (await job.end()).view.executed == executed


async def test_the_deadline_ends_the_wait_for_a_person(skipping_jobs: Jobs) -> None:
    job = await in_doubt(skipping_jobs, ends_in=600)
    ended = await job.end()
    assert ended.story == [*ASKED, "request.voided r1", "job.failed deadline_exceeded"]
    assert (ended.view.executed, ended.view.recovery) == ("unknown", "needs_person")


async def test_a_hint_makes_the_job_look_and_what_the_ledger_knows_by_then_ends_the_question(jobs: Jobs) -> None:
    """The first look finds nothing: the mutant of the second one."""
    job = await in_doubt(jobs)
    [request] = await job.pending(1)
    await job.hint(request)
    await job.until("decision.refused not_in_ledger")
    job.hands.effects.append(ReconcileOutput(outcome="happened"))
    await job.hint(request)
    ended = await job.end()
    assert ended.story == [
        *ASKED,
        "decision.refused not_in_ledger",
        "request.voided r1",
        "effect.reconciled refunds.create happened",
        "tool.finished refunds.create #0 ok",
        *GOES_ON,
    ]
    assert sent(job) == 1


@pytest.mark.parametrize("last", [StepCode.UNAVAILABLE, StepCode.LOST, StepCode.CONNECT_REFUSED])
async def test_an_idempotent_write_out_of_attempts_leaves_its_effect_unknown(
    skipping_jobs: Jobs, last: StepCode
) -> None:
    put = call(0, "notes.put", "idempotent_write")
    lost = [Fault(StepCode.UNAVAILABLE) for _ in range(3)]
    hands = Hands(model=[turn(1, put)], tools={"notes.put": [*lost, Fault(last)]})
    ended = await (await skipping_jobs.start(hands)).end()
    assert ended.story[-2:] == ["effect.unknown notes.put #0", "job.failed tool_failed"]
    assert (ended.view.executed, ended.view.recovery) == ("unknown", "needs_person")


async def test_a_write_that_fails_while_its_job_does_is_not_said_to_be_tried_again(jobs: Jobs) -> None:
    writing, reading = Held(Fault(StepCode.UNAVAILABLE)), Held(Fault(StepCode.REJECTED))
    put, read = call(0, "notes.put", "idempotent_write"), call(1, "invoices.get")
    tools: dict[str, list[Reply]] = {"notes.put": [writing], "invoices.get": [reading]}
    asks = call(2, "refunds.create", "write", ask=True)
    job = await jobs.start(Hands(model=[turn(1, put, read, asks)], tools=tools))
    await writing.entered.wait()
    reading.go.set()
    await job.until("request.voided r1")
    writing.go.set()
    ended = await job.end()
    assert ended.story[-3:] == ["request.voided r1", "effect.unknown notes.put #0", "job.failed tool_failed"]
    assert (ended.view.executed, ended.view.recovery) == ("unknown", "needs_person")


async def test_an_idempotent_write_that_never_left_is_in_no_doubt(skipping_jobs: Jobs) -> None:
    put = call(0, "notes.put", "idempotent_write")
    refused = [Fault(StepCode.CONNECT_REFUSED) for _ in range(4)]
    ended = await (await skipping_jobs.start(Hands(model=[turn(1, put)], tools={"notes.put": [*refused]}))).end()
    assert ended.story[-1] == "job.failed tool_failed"
    assert "effect.unknown notes.put #0" not in ended.story
    assert (ended.view.executed, ended.view.recovery) == ("yes", "none")


async def test_a_write_that_may_have_left_is_in_doubt_also_where_its_successor_may_not_look(
    skipping_jobs: Jobs,
) -> None:
    """Its worker died, and the authority was revoked before another one could ask the ledger."""
    replies = [Fault(StepCode.LOST), Fault(StepCode.AUTHORITY_REVOKED)]
    ended = await (
        await skipping_jobs.start(Hands(model=[turn(1, REFUND)], tools={"refunds.create": [*replies]}))
    ).end()
    assert ended.story[-3:] == [
        "effect.unknown refunds.create #0",
        "authority.revoked authority_revoked",
        "job.failed authority_revoked",
    ]
    assert ended.view.executed == "unknown"
