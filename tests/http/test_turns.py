"""People and the scripted model on a real worker: what a decision lets run, and what a script's faults become."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest_asyncio

from gateway.ledger.decisions import VoteRow, cast_vote
from gateway.ledger.effects import list_effects
from tests.rig.doorstep import DEMO, Doorstep
from tests.rig.effect_log import EffectLog
from tests.rig.plugins import ASK_ALL, call, final, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from workflows.contract.errors import FailureCode
from workflows.contract.events import EventType
from workflows.contract.ids import JobId, PrincipalId, workflow_id
from workflows.contract.job import EndRecord, OpenRequest, Status
from workflows.contract.steps import DecisionHint


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def doorstep(stack: Stack) -> AsyncGenerator[Doorstep]:
    opened = await Doorstep.open(stack.settings)
    yield opened
    await opened.close()


def failure(record: EndRecord) -> FailureCode | None:
    return record.view.failure.code if record.view.failure else None


async def open_request(doorstep: Doorstep, job: JobId) -> OpenRequest:
    async def pending() -> OpenRequest | None:
        execution = await doorstep.engine.describe(DEMO, job)
        shown: Sequence[OpenRequest] = execution.recorded.view.requests if execution and execution.recorded else ()
        return next((request for request in shown if request.state == "pending"), None)

    return await wait_until(pending, 20, what=f"a request of {job}")


async def decide(
    doorstep: Doorstep, job: JobId, decision: Any, *, answer: Any = None, reason: str | None = None
) -> None:
    request = await open_request(doorstep, job)
    vote = VoteRow(
        DEMO,
        job,
        request.request_id,
        PrincipalId("approver"),
        decision,
        request.action_digest,
        reason,
        datetime.now(UTC),
    )
    await doorstep.ledger.write(lambda conn: cast_vote(conn, vote, quorum=1, answer=answer))
    await doorstep.engine.hint_decision(DEMO, job, DecisionHint(request_id=request.request_id))


async def test_an_approved_write_runs_once(doorstep: Doorstep, effects: EffectLog) -> None:
    plugin = await doorstep.publish(
        [turn(call("t", {"n": 1})), final()], tools=[tool("t", "write")], tools_url=effects.url, policy=ASK_ALL
    )
    job = await doorstep.start(plugin)
    await decide(doorstep, job, "approve")
    assert (await doorstep.end(job)).view.status is Status.SUCCEEDED
    (row,) = await doorstep.ledger.read(lambda conn: list_effects(conn, DEMO, job))
    assert row.request_id is not None
    assert len(effects.calls("t")) == 1


async def test_a_rejected_write_has_no_result_and_its_reason_is_in_no_history(
    doorstep: Doorstep, effects: EffectLog
) -> None:
    plugin = await doorstep.publish(
        [turn(call("t", {"n": 1})), final({"got": "{{ results['t'] is defined }}"})],
        tools=[tool("t", "write")],
        tools_url=effects.url,
    )
    job = await doorstep.start(plugin)
    await decide(doorstep, job, "reject", reason="CANARY of a person")
    assert await doorstep.result(job) == {"got": False}
    history = await doorstep.client.get_workflow_handle(workflow_id(DEMO, job)).fetch_history()
    assert "CANARY" not in history.to_json()
    assert effects.calls() == []


async def test_an_answer_is_the_bare_result_of_ask_human(doorstep: Doorstep) -> None:
    plugin = await doorstep.publish(
        [turn(call("ask_human", {"question": "Which team?"})), final({"team": "{{ results['ask_human'] }}"})]
    )
    job = await doorstep.start(plugin)
    assert (await open_request(doorstep, job)).title == "Which team?"
    await decide(doorstep, job, "answer", answer="billing")
    assert await doorstep.result(job) == {"team": "billing"}


async def test_a_script_that_fails_is_asked_again(doorstep: Doorstep) -> None:
    plugin = await doorstep.publish([final({"at": "{{ attempt }}"}, fail={"status": 500, "times": 1})])
    assert await doorstep.result(await doorstep.start(plugin)) == {"at": 2}
    plugin = await doorstep.publish([final(fail={"status": 400, "times": 9})])
    record = await doorstep.end(await doorstep.start(plugin))
    assert failure(record) is FailureCode.MODEL_FAILED
    assert EventType.ATTEMPT_REPLACED not in [event.type for event in record.events]


async def test_a_final_answer_that_does_not_fit_ends_the_job_after_a_few(doorstep: Doorstep) -> None:
    plugin = await doorstep.publish(
        [final({"sum": "{{ turn if turn > 1 else 'one' }}"})],
        manifest={"output_schema": {"type": "object", "properties": {"sum": {"type": "integer"}}}},
    )
    assert await doorstep.result(await doorstep.start(plugin)) == {"sum": 2}
    plugin = await doorstep.publish(
        [final({"sum": "CANARY"})],
        manifest={"output_schema": {"type": "object", "properties": {"sum": {"type": "integer"}}}},
    )
    record = await doorstep.end(await doorstep.start(plugin))
    assert failure(record) is FailureCode.MODEL_FAILED
    assert "CANARY" not in record.model_dump_json()


async def test_a_cancel_reaches_a_model_that_takes_its_time(doorstep: Doorstep) -> None:
    plugin = await doorstep.publish([final(delay_seconds=50)])
    job = await doorstep.start(plugin)

    async def thinking() -> bool:
        execution = await doorstep.engine.describe(DEMO, job)
        return execution is not None and any(step.progress for step in execution.pending)

    await wait_until(thinking, 20)
    await doorstep.engine.cancel(DEMO, job)
    async with asyncio.timeout(8):
        assert (await doorstep.end(job)).view.status is Status.CANCELED
