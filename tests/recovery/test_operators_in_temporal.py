"""What else an operator does in Temporal: cancels, pauses a step, resets a job that has rolled over."""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from tests.recovery.grounds import READS_RUN_WRITES_ASK, published, running_stack
from tests.recovery.operators import described, numbers, on_job, reset
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import call, final, fresh_name, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

BUSY_S, RACES = 90.0, 100


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


async def test_a_cancel_in_temporal_and_an_approval_at_the_same_instant_agree(ground: Stack) -> None:
    """A hundred times: what was refused did not run, what stood ran once at most, and each job has one end."""
    app, approver, engine = ground.client(), ground.client("approver"), await ground.engine()
    plugin = await published(
        ground, [turn(call("raced-here")), final()], tool("raced-here", "write"), policy=READS_RUN_WRITES_ASK
    )
    jobs = await asyncio.gather(*(app.accepted(plugin) for _ in range(RACES)))
    opened = {job: (await app.until_request(job, BUSY_S))[0] for job in jobs}
    gate, order = asyncio.Semaphore(5), random.Random(29)
    ends: Counter[tuple[str, int]] = Counter()

    async def race(job: str) -> None:
        digest = (await approver.request(job, opened[job]))["action_digest"]
        lead_s = order.uniform(-0.15, 0.02)  # an approval takes longer to reach its tool

        async def cancel() -> None:
            await asyncio.sleep(max(-lead_s, 0))
            await engine.get_workflow_handle(f"demo.{job}").cancel()

        async def approve() -> int:
            await asyncio.sleep(max(lead_s, 0))
            return (await approver.decide(job, opened[job], "approve", digest=digest)).status_code

        _, verdict = await asyncio.gather(cancel(), approve())
        end = await app.until_ended(job, BUSY_S)
        sent = len(ground.effects.calls("raced-here", job=job))
        shown = await approver.request(job, opened[job])
        facts = (verdict, end["status"], sent, shown["state"])
        assert verdict in (200, 202, 409), facts
        assert shown["state"] == ("voided" if verdict == 409 else "approved"), facts
        assert sent <= (0 if verdict == 409 else 1), facts
        assert end["status"] == "canceled" or sent == 1, facts
        assert end["pending"] == [], facts
        ends[end["status"], sent] += 1

    async def one(job: str) -> None:
        async with gate:
            await race(job)

    await asyncio.gather(*map(one, jobs))
    sys.stdout.write(f"{dict(ends)}\n")
    assert ends.total() == RACES


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


@pytest.mark.parametrize(
    "how",
    [
        ("complete", "--result", "null"),
        ("complete", "--result", '{"outcome": "confirmed"}'),
        ("complete", "--result", "[1]"),
        ("fail", "--detail", '"x"'),
    ],
    ids=["null", "another shape", "a list", "failed with a text"],
)
@pytest.mark.parametrize("effect", ["read", "write"])
async def test_a_step_that_is_ended_by_hand_with_any_answer_wedges_no_job(
    ground: Stack, effect: str, how: tuple[str, ...]
) -> None:
    """The engine's client fails the workflow task for an answer that it can not read, and would for ever."""
    app, name = ground.client(), fresh_name("by-hand")
    ground.effects.set_behaviour(name, Behaviour(answer=Answer.HOLD, times=1))
    job = await app.accepted(await published(ground, [turn(call(name)), final()], tool(name, effect)))
    await ground.effects.wait_for_calls(name, 1, BUSY_S, job=job)
    [step] = (await described(ground, job)).raw_description.pending_activities
    await on_job(ground, job, "activity", *how, "--activity-id", step.activity_id)
    ground.effects.release(name)
    view = await app.until_ended(job, BUSY_S)
    sent = len(ground.effects.calls(name, job=job))
    if effect == "write":  # what came of it is in the ledger
        assert (view["status"], sent) == ("succeeded", 1)
    elif how[0] == "fail":
        assert (view["failure"]["code"], sent) == ("internal", 1)
    else:
        assert (view["status"], sent) == ("succeeded", 2)


async def test_an_answer_that_comes_while_people_are_asked_ends_the_question(ground: Stack) -> None:
    """The attempt that an operator failed still waits for the tool; its job gave the write up, as the ledger says."""
    app, name = ground.client(), fresh_name("given-up")
    ground.effects.set_behaviour(name, Behaviour(answer=Answer.HOLD, times=1))
    job = await app.accepted(await published(ground, [turn(call(name)), final()], tool(name, "write")))
    await ground.effects.wait_for_calls(name, 1, BUSY_S, job=job)
    [step] = (await described(ground, job)).raw_description.pending_activities
    await on_job(ground, job, "activity", "fail", "--detail", '"x"', "--activity-id", step.activity_id)
    [request] = await app.until_request(job, BUSY_S)
    [effect] = (await ground.client("operator").get(f"/v1/operator/jobs/{job}"))["effects"]
    assert effect["state"] == "unknown"
    ground.effects.release(name)
    view = await app.until_ended(job, BUSY_S)
    assert (view["status"], len(ground.effects.calls(name, job=job))) == ("succeeded", 1)
    assert (await app.request(job, request))["state"] == "voided"
