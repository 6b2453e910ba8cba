"""What else an operator does in Temporal: cancels, pauses a step, resets a job that has rolled over."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from tests.recovery.grounds import READS_RUN_WRITES_ASK, published, running_stack
from tests.recovery.operators import described, numbers, on_job, reset
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

BUSY_S = 90.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    """Histories roll over after 30 events."""
    folder = tmp_path_factory.mktemp("operators")
    async with running_stack(folder, settings={"JOBGATE_ROLL_OVER_AFTER_EVENTS": "30"}) as stack:
        yield stack


async def test_a_roll_over_names_no_course_and_a_reset_after_it_does(ground: Stack) -> None:
    app, approver = ground.client(), ground.client("approver")
    script = [*(turn(call("rolled", {"n": n})) for n in range(6)), turn(call("rolled-pay")), final()]
    plugin = await published(ground, script, tool("rolled"), tool("rolled-pay", "write"), policy=READS_RUN_WRITES_ASK)
    job = await app.accepted(plugin)
    [old] = await app.until_request(job, BUSY_S)
    info = (await described(ground, job)).raw_description.workflow_execution_info
    assert info.execution.run_id != info.first_run_id  # the mutant: without roll-overs this says nothing
    before = await app.events(job)
    cursor = (await app.status(job, after="0", limit=500))["next_cursor"]
    assert cursor == str(before[-1]["seq"])
    await reset(ground, job, -1)
    await app.until_event(job, "job.recovered", BUSY_S)
    later = (await app.status(job, after=cursor, limit=500))["events"]
    assert later[0]["type"] == "job.recovered"
    log = await app.events(job)
    assert numbers(log) == list(range(1, len(log) + 1))
    pending = [one["request_id"] for one in (await app.status(job))["pending"]]
    assert old not in pending
    assert (await approver.decide(job, pending[0], "approve")).status_code in (200, 202)
    assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
    assert [len(ground.effects.calls(name, job=job)) for name in ("rolled", "rolled-pay")] == [6, 1]


async def test_a_cancel_in_temporal_is_a_cancel(ground: Stack) -> None:
    app = ground.client()
    plugin = await published(
        ground, [turn(call("stopped")), final()], tool("stopped", "write"), policy=READS_RUN_WRITES_ASK
    )
    job = await app.accepted(plugin)
    await app.until_request(job, BUSY_S)
    await on_job(ground, job, "workflow", "cancel")
    view = await app.until_ended(job, BUSY_S)
    assert (view["status"], view["pending"]) == ("canceled", [])
    assert view["cancel_requested_at"] is not None
    assert (await app.event_types(job))[-1] == "job.canceled"
    assert ground.effects.calls("stopped") == []


async def test_a_paused_step_waits_for_its_operator_and_goes_on(ground: Stack) -> None:
    ground.effects.set_behaviour("paused", Behaviour(answer=Answer.HOLD, times=1))
    app = ground.client()
    job = await app.accepted(await published(ground, [turn(call("paused")), final()], tool("paused")))
    await ground.effects.wait_for_calls("paused", 1, BUSY_S, job=job)
    [step] = (await described(ground, job)).raw_description.pending_activities
    await on_job(ground, job, "activity", "pause", "--activity-id", step.activity_id, "--reason", "a test")
    view = await app.status(job)
    assert (view["status"], view["executed"]) == ("running", "yes")

    async def paused() -> bool:
        steps = (await described(ground, job)).raw_description.pending_activities
        return any(one.paused for one in steps)

    await wait_until(paused, BUSY_S, what="the step is paused")
    await on_job(ground, job, "activity", "unpause", "--activity-id", step.activity_id)
    ground.effects.release("paused")
    assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
