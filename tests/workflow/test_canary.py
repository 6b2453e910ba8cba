"""A job that a packet lets run: so many steps, the read-only tools it names; anything but success proves nothing."""

from tests.workflow.hands import Fault, Hands, call, final, turn
from tests.workflow.jobs import Jobs
from tests.workflow.test_gate import CANARY
from workflows.contract.errors import StepCode
from workflows.contract.gates import PacketTerms
from workflows.contract.ids import ToolName
from workflows.contract.steps import GateOutput

READ = call(0, "invoices.get")
WRITE = call(0, "refunds.create", "write")
ASKED = call(0, "refunds.create", "write", ask=True)
QUESTION = call(0, "ask_human", ask=True, kind="question")


def terms(*tools: str, steps: int = 20) -> list[GateOutput]:
    packet = PacketTerms(tools=tuple(ToolName(name) for name in tools), max_steps=steps)
    return [GateOutput(open=True, packet=packet)]


async def test_a_canary_that_reads_and_answers_succeeds(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[turn(1, READ), final(2)], gates=terms("invoices.get")), facts=CANARY)
    await job.until("job.held awaiting_promotion")
    await job.handle.signal("gate")
    ended = await job.end()
    assert ended.story[1:3] == ["job.held awaiting_promotion", "job.released"]
    assert ended.story[-1] == "job.succeeded"
    assert job.hands.ran == ["read_gate", "model 1.1", "invoices.get 1", "model 2.1"]


async def test_a_canary_that_would_write_or_call_another_tool_proves_nothing(jobs: Jobs) -> None:
    for wanted in (WRITE, ASKED, call(0, "orders.get")):
        job = await jobs.start(Hands(model=[turn(1, wanted)], gates=terms("invoices.get")), facts=CANARY)
        await job.until("job.held awaiting_promotion")
        await job.handle.signal("gate")
        ended = await job.end()
        assert ended.story[-1] == "job.failed canary_inconclusive"
        assert job.hands.ran == ["read_gate", "model 1.1"]


async def test_what_the_policy_refuses_is_no_call(jobs: Jobs) -> None:
    refused = call(0, "refunds.create", "write", refuse="no")
    job = await jobs.start(Hands(model=[turn(1, refused), final(2)], gates=terms()), facts=CANARY)
    await job.until("job.held awaiting_promotion")
    await job.handle.signal("gate")
    assert (await job.end()).story[-1] == "job.succeeded"


async def test_a_canary_that_fails_says_inconclusive_and_why(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[Fault(StepCode.REJECTED)], gates=terms("invoices.get")), facts=CANARY)
    await job.until("job.held awaiting_promotion")
    await job.handle.signal("gate")
    failure = (await job.end()).record.view.failure
    assert failure is not None
    assert failure.code == "canary_inconclusive"
    assert failure.message.startswith("The canary proves nothing (model_failed).")


async def test_a_canary_has_so_many_steps_as_its_packet_says(jobs: Jobs) -> None:
    hands = Hands(forever=lambda n: turn(n, READ), gates=terms("invoices.get", steps=3))
    job = await jobs.start(hands, facts=CANARY)
    await job.until("job.held awaiting_promotion")
    await job.handle.signal("gate")
    ended = await job.end()
    assert ended.story[-1] == "job.failed canary_inconclusive"
    assert ended.record.view.usage.steps == 3


async def test_a_canary_stays_in_the_run_that_redeemed_its_packet(jobs: Jobs) -> None:
    for gate, rolls in ((terms("invoices.get", steps=40), False), ([GateOutput(open=True)], True)):
        hands = Hands(model=[*(turn(n, READ) for n in range(1, 6)), final(6)], gates=gate)
        job = await jobs.start(hands, facts=CANARY, roll_over_after=30)
        await job.until("job.held awaiting_promotion")
        await job.handle.signal("gate")
        assert (await job.end()).story[-1] == "job.succeeded"
        assert (len(await job.runs()) > 1) is rolls


async def test_a_canary_may_ask_a_person_a_question(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[turn(1, QUESTION), final(2)], gates=terms()), facts=CANARY)
    await job.until("job.held awaiting_promotion")
    await job.handle.signal("gate")
    [request] = await job.pending(1)
    await job.decide(request, "answer")
    assert (await job.end()).story[-1] == "job.succeeded"


async def test_a_canary_that_nobody_finishes_in_time_proves_nothing(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[turn(1, QUESTION)], gates=terms()), facts=CANARY, ends_in=3)
    await job.until("job.held awaiting_promotion")
    await job.handle.signal("gate")
    assert (await job.end()).story[-1] == "job.failed canary_inconclusive"


async def test_a_canary_that_is_canceled_is_canceled(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[turn(1, QUESTION)], gates=terms()), facts=CANARY)
    await job.until("job.held awaiting_promotion")
    await job.handle.signal("gate")
    await job.pending(1)
    await job.handle.cancel()
    assert (await job.end()).story[-1] == "job.canceled"
