"""A canary runs once, reads only what its packet names, and proves something only by succeeding; whatever happens."""

import asyncio

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from tests.conftest import FreshStack
from tests.http.ladder import (
    MISSING_PACKET,
    activities_of,
    approve,
    boss_of,
    canary_plugin,
    demote,
    held_job,
    packet_state,
    phase_of,
    propose,
    run_by_packet,
    url_of,
)
from tests.http.submissions import execution, refused
from tests.rig.client import Client, Json, fresh_key
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import call, final, fresh_name, promote, publish_plugin, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

LOOK, PEEK, PAY = call("look", {"n": 1}), call("peek", {"n": 1}), call("pay", {"n": 1})


@pytest.mark.parametrize(
    ("calls", "tools", "max_steps", "why"),
    [
        ((PAY,), ("look",), 10, "It would call pay, which its packet does not allow; nothing of that ran."),
        ((LOOK, PAY), ("look",), 10, "It would call pay, which its packet does not allow; nothing of that ran."),
        ((LOOK, PEEK), ("look",), 10, "It would call peek, which its packet does not allow; nothing of that ran."),
        ((LOOK,), (), 10, "It would call look, which its packet does not allow; nothing of that ran."),
        ((LOOK,), ("look",), 2, "(budget_exceeded)"),
    ],
    ids=["writes", "reads and writes", "another tool", "no tool at all", "too many steps"],
)
async def test_a_canary_that_is_inconclusive_leaves_the_phase_where_it_was(
    stack: Stack,
    operator: Client,
    app: Client,
    calls: tuple[Json, ...],
    tools: tuple[str, ...],
    max_steps: int,
    why: str,
) -> None:
    plugin, boss = await canary_plugin(stack, operator, calls=calls), await boss_of(stack, operator)
    job = await held_job(app, plugin)
    packet = await run_by_packet(operator, boss, job, *tools, max_steps=max_steps)
    view = await app.until_ended(job)
    assert (view["status"], view["failure"]["code"]) == ("failed", "canary_inconclusive")
    assert why in view["failure"]["message"]
    assert view["next_action"] == {"code": "ask_operator", "message": "An operator must look at the canary run."}
    shown = await operator.get(f"/v1/packets/{packet}")
    assert (shown["state"], shown["proof"]["status"], shown["proof"]["result_digest"]) == (
        "inconclusive",
        "failed",
        None,
    )
    assert [one.tool for one in stack.effects.calls(job=job) if one.tool != "look"] == []
    assert (await phase_of(operator, plugin)) == "live_canary"
    missing = refused(await operator.http.post(url_of(plugin), json={"to": "live"}), 409, "gate-not-met")["missing"]
    assert missing == [MISSING_PACKET]


async def test_a_canary_whose_tool_fails_proves_nothing(stack: Stack, operator: Client, app: Client) -> None:
    name, boss = fresh_name("broken"), await boss_of(stack, operator)
    broken = fresh_name("gone")
    stack.effects.set_behaviour(broken, *[Behaviour(status=503) for _ in range(4)])
    await publish_plugin(
        operator, name, [turn(call(broken)), final()], tools=[tool(broken)], tools_url=stack.effects.url, phase=None
    )
    await promote(operator, name, "1.0.0", to="live_canary")
    job = await held_job(app, name)
    packet = await run_by_packet(operator, boss, job, broken)
    failure = (await app.until_ended(job))["failure"]
    assert (failure["code"], "(tool_failed)" in failure["message"]) == ("canary_inconclusive", True)
    shown = await operator.get(f"/v1/packets/{packet}")
    assert (shown["state"], shown["proof"]["tools"]) == ("inconclusive", [broken])


async def test_the_proof_is_what_the_app_reads(stack: Stack, operator: Client, app: Client) -> None:
    plugin, boss = await canary_plugin(stack, operator, calls=(LOOK, PEEK)), await boss_of(stack, operator)
    job = await held_job(app, plugin)
    packet = await propose(operator, job, "look", "peek")
    assert (await operator.get(f"/v1/packets/{packet}"))["proof"] is None
    await approve(boss, packet)
    view = await app.until_ended(job)
    proof = (await operator.get(f"/v1/packets/{packet}"))["proof"]
    volatile = {"as_of", "source"}
    seen = {name: value for name, value in view.items() if name not in volatile}
    assert {name: value for name, value in proof["read_back"].items() if name not in volatile} == seen
    assert (proof["status"], proof["tools"]) == ("succeeded", ["look", "peek"])
    other = await held_job(app, plugin)
    again = await run_by_packet(operator, boss, other, "look", "peek")
    await app.until_ended(other)
    twin = (await operator.get(f"/v1/packets/{again}"))["proof"]
    assert twin["result_digest"] == proof["result_digest"], "the same result has the same digest"


async def test_a_canary_survives_the_death_of_its_worker_and_is_redeemed_once(fresh_stack: FreshStack) -> None:
    own = await fresh_stack(settings={"JOBGATE_HEARTBEAT_TIMEOUT_S": "1.5"})
    operator, app = own.client("operator"), own.client("app")
    plugin, boss = await canary_plugin(own, operator), await boss_of(own, operator)
    own.effects.set_behaviour("look", Behaviour(answer=Answer.HOLD, times=1))
    job = await held_job(app, plugin)
    packet = await run_by_packet(operator, boss, job, "look")
    await own.effects.wait_for_calls("look", job=job)
    own.workers[0].kill()
    await own.until_polling(own.add_worker())
    assert (await app.until_ended(job, timeout=60))["status"] == "succeeded"
    assert await packet_state(operator, packet) == "redeemed"
    assert len(own.effects.calls("look", job=job)) == 2, "a read may be repeated"


async def test_a_long_canary_stays_in_one_run_where_other_jobs_roll_over(fresh_stack: FreshStack) -> None:
    own = await fresh_stack(settings={"JOBGATE_ROLL_OVER_AFTER_EVENTS": "20"})
    operator, app = own.client("operator"), own.client("app")
    name, boss = fresh_name("long"), await boss_of(own, operator)
    script = [*(turn(call("look", {"n": n})) for n in range(6)), final({"seen": 6})]
    await publish_plugin(operator, name, script, tools=[tool("look")], tools_url=own.effects.url, phase=None)
    await promote(operator, name, "1.0.0", to="live_canary")
    job = await held_job(app, name)
    packet = await run_by_packet(operator, boss, job, "look", max_steps=20)
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert await packet_state(operator, packet) == "redeemed"
    assert len(own.effects.calls("look", job=job)) == 6
    await promote(operator, name, "1.0.0")
    other = await app.accepted(name)
    assert (await app.until_ended(other))["status"] == "succeeded"
    first = [
        (await (await execution(own, one)).describe()).raw_description.workflow_execution_info for one in (job, other)
    ]
    assert [info.execution.run_id == info.first_run_id for info in first] == [True, False]


@pytest.mark.parametrize("to", ["its start", "its last step"])
async def test_a_reset_of_the_canarys_run_does_not_redeem_again(
    stack: Stack, operator: Client, app: Client, to: str
) -> None:
    plugin, boss = await canary_plugin(stack, operator), await boss_of(stack, operator)
    job = await held_job(app, plugin)
    packet = await run_by_packet(operator, boss, job, "look")
    await app.until_ended(job)
    before = await operator.get(f"/v1/packets/{packet}")
    handle = await execution(stack, job)
    history = await handle.fetch_history()
    tasks = [e.event_id for e in history.events if e.HasField("workflow_task_completed_event_attributes")]
    engine = await stack.engine()
    await engine.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=engine.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=(await handle.describe()).run_id),
            reason="a test",
            workflow_task_finish_event_id=tasks[0] if to == "its start" else tasks[-2],
            request_id=fresh_key(),
        )
    )

    async def looked() -> bool:
        described = await handle.describe()
        return "read_gate" in await activities_of(stack, job) and not described.raw_description.pending_activities

    if to == "its start":
        await wait_until(looked, 20, what="the new run has looked at its gate")
        await app.until_ended(await app.accepted(plugin, mode="dry_run"))
        assert (await app.status(job))["status"] == "queued"
        goes_on = await app.get(f"/v1/jobs/{job}/preview")
        assert (goes_on["projected_status"], goes_on["would_execute"]) == ("queued", False)
    else:
        assert (await app.until_ended(job))["failure"]["code"] in ("authority_revoked", "canary_inconclusive")
    assert len(stack.effects.calls(job=job)) == 1, "nothing is called again"
    assert (await operator.get(f"/v1/packets/{packet}"))["redeemed_at"] == before["redeemed_at"]
    await app.cancel(job)


async def test_of_a_cancel_and_an_approval_that_race_the_job_ends_and_calls_at_most_once(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin, boss = await canary_plugin(stack, operator), await boss_of(stack, operator)
    jobs = [await held_job(app, plugin) for _ in range(8)]
    packets = [await propose(operator, job, "look") for job in jobs]
    answers = await asyncio.gather(*(approve(boss, packet) for packet in packets), *(app.cancel(job) for job in jobs))
    assert {answer.status_code for answer in answers[:8]} <= {200, 409}
    assert {answer.status_code for answer in answers[8:]} <= {200, 202}
    for job, packet in zip(jobs, packets, strict=True):
        view = await app.until_ended(job)
        assert view["status"] in ("canceled", "succeeded")
        assert len(stack.effects.calls(job=job)) <= 1
        state = await packet_state(operator, packet)
        assert (
            state in {"canceled": ("proposed", "approved", "inconclusive"), "succeeded": ("redeemed",)}[view["status"]]
        )


async def test_a_canceled_canary_proves_nothing(stack: Stack, operator: Client, app: Client) -> None:
    slow, name, boss = fresh_name("slow"), fresh_name("canceled"), await boss_of(stack, operator)
    stack.effects.set_behaviour(slow, Behaviour(answer=Answer.HOLD))
    await publish_plugin(
        operator, name, [turn(call(slow)), final()], tools=[tool(slow)], tools_url=stack.effects.url, phase=None
    )
    await promote(operator, name, "1.0.0", to="live_canary")
    job = await held_job(app, name)
    packet = await run_by_packet(operator, boss, job, slow)
    await stack.effects.wait_for_calls(slow, job=job)
    await app.cancel(job)
    stack.effects.release(slow)
    assert (await app.until_ended(job))["status"] == "canceled"
    assert await packet_state(operator, packet) == "inconclusive"


async def test_a_demotion_stops_a_canary_before_its_next_call(fresh_stack: FreshStack) -> None:
    own = await fresh_stack()
    operator, app = own.client("operator"), own.client("app")
    plugin, boss = await canary_plugin(own, operator), await boss_of(own, operator)
    job = await held_job(app, plugin)
    own.workers[0].kill()
    packet = await run_by_packet(operator, boss, job, "look")
    await demote(operator, plugin, "stateful_noop")
    await own.until_polling(own.add_worker())
    other = await canary_plugin(own, operator, phase="live")
    await app.until_ended(await app.accepted(other))  # so the worker works, and has taken what was there before
    assert (await app.status(job))["status"] == "queued"
    assert await packet_state(operator, packet) == "approved"
    assert own.effects.calls(job=job) == []
    await promote(operator, plugin, "1.0.0", to="live_canary")
    assert (await app.until_ended(job))["status"] == "succeeded", "a packet that was not used is still good"
    assert (await activities_of(own, job))[-3:] == ["model", "tool", "model"]
