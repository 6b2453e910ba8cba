"""B42: SIGTERM lets a step end in its grace, or hands the job over under the same effect id; it is never a cancel."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from tests.recovery.grounds import published, running_stack
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import call, final, tool, turn
from tests.rig.process import Process
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

BUSY_S, STARTS_S = 60.0, 180.0
JOBS = 50
IMPATIENT = {"JOBGATE_WORKER_GRACE_S": "0.2"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("shutdown"), workers=0) as stack:
        yield stack


async def one_more(stack: Stack, settings: dict[str, str] | None = None) -> Process:
    """One more worker that polls."""
    worker = stack.add_worker(settings)
    await stack.until_polling(worker, STARTS_S)
    return worker


async def alone(stack: Stack, settings: dict[str, str] | None = None) -> Process:
    """A worker, and no other."""
    for worker in stack.workers:
        await stopped(worker)
    return await one_more(stack, settings)


async def stopped(worker: Process) -> int | None:
    """SIGTERM and the exit code, while the test goes on."""
    return await asyncio.to_thread(worker.stop, BUSY_S)


async def test_a_write_that_was_sent_ends_in_the_grace_and_is_recorded(ground: Stack) -> None:
    ground.effects.set_behaviour("slow", Behaviour(delay_seconds=5))
    busy = await alone(ground)
    app = ground.client()
    job = await app.accepted(await published(ground, [turn(call("slow")), final()], tool("slow", "write")))
    await ground.effects.wait_for_calls("slow", job=job)
    await one_more(ground)
    assert await stopped(busy) == 0
    end = await app.until_ended(job, BUSY_S)
    assert (end["status"], end["cancel_requested_at"]) == ("succeeded", None)
    types = await app.event_types(job)
    assert not {"attempt.replaced", "effect.unknown", "cancel.requested"} & set(types)
    assert len(ground.effects.calls("slow", job=job)) == 1


async def test_a_step_that_outlasts_the_grace_goes_on_elsewhere_under_the_same_effect(ground: Stack) -> None:
    """Under a longer grace it would not be handed over, which the test before shows."""
    ground.effects.set_behaviour("put", Behaviour(answer=Answer.HOLD, times=1))
    busy = await alone(ground, IMPATIENT)
    app = ground.client()
    job = await app.accepted(await published(ground, [turn(call("put")), final()], tool("put", "idempotent_write")))
    await ground.effects.wait_for_calls("put", job=job)
    await one_more(ground)
    assert await stopped(busy) == 0
    assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
    first, second = ground.effects.calls("put", job=job)
    assert first.idempotency_key == second.idempotency_key
    assert [first.epoch, second.epoch] == [1, 2]
    replaced = await app.until_event(job, "attempt.replaced")
    assert replaced["data"]["reason"] == "lost"
    assert "cancel.requested" not in await app.event_types(job)


async def test_a_write_that_outlasts_the_grace_is_asked_after_and_not_sent_again(ground: Stack) -> None:
    ground.effects.set_behaviour("once", Behaviour(answer=Answer.HOLD))
    ground.effects.set_behaviour("found", Behaviour(answer=Answer.FIND))
    busy = await alone(ground, IMPATIENT)
    app = ground.client()
    tools = tool("once", "write", reconcile="found"), tool("found", hidden=True)
    job = await app.accepted(await published(ground, [turn(call("once")), final()], *tools))
    await ground.effects.wait_for_calls("once", job=job)
    await one_more(ground)
    assert await stopped(busy) == 0
    assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
    assert "effect.reconciled" in await app.event_types(job)
    ground.effects.release("once")
    assert len(ground.effects.calls("once", job=job)) == 1


@pytest.mark.parametrize("effect", ["write", "idempotent_write"])
async def test_a_second_sigterm_hurries_nobody(ground: Stack, effect: str) -> None:
    """An impatient operator, or a process manager that tells the whole group: the step still ends in its grace."""
    name = f"twice-{effect}"
    ground.effects.set_behaviour(name, Behaviour(answer=Answer.HOLD))
    busy = await alone(ground)
    app = ground.client()
    job = await app.accepted(await published(ground, [turn(call(name)), final()], tool(name, effect)))
    await ground.effects.wait_for_calls(name, job=job)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        os.kill(busy.pid, number)
        await wait_until(lambda: "draining" in busy.output, BUSY_S, what="it drains")
    ground.effects.release(name)
    assert await asyncio.to_thread(busy.wait, BUSY_S) == 0
    await one_more(ground)
    assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
    assert not {"attempt.replaced", "effect.unknown", "cancel.requested"} & set(await app.event_types(job))
    assert len(ground.effects.calls(name, job=job)) == 1


async def test_a_model_that_thinks_longer_than_the_grace_is_asked_again_elsewhere(ground: Stack) -> None:
    """The budget counts the turn once, and what was written before is not written again."""
    busy = await alone(ground, IMPATIENT)
    app = ground.client()
    script = [turn(call("noted")), final(delay_seconds=6)]
    job = await app.accepted(await published(ground, script, tool("noted", "write")))
    await app.until_event(job, "step.started", BUSY_S, count=2)
    assert await stopped(busy) == 0
    await one_more(ground)
    end = await app.until_ended(job, BUSY_S)
    assert (end["status"], end["usage"]["steps"]) == ("succeeded", 3)
    replaced = await app.until_event(job, "attempt.replaced")
    assert (replaced["data"]["reason"], replaced["data"]["attempt"]) == ("lost", 2)
    assert len(ground.effects.calls("noted", job=job)) == 1


async def test_a_rolling_restart_under_many_jobs_loses_and_repeats_no_write(ground: Stack) -> None:
    ground.effects.set_behaviour("roll", Behaviour(delay_seconds=0.5))
    leaving_in_turn = [await alone(ground), await one_more(ground)]
    script = [turn(call("roll", {"n": n})) for n in range(4)] + [final()]
    app = ground.client()
    plugin = await published(ground, script, tool("roll", "write"))
    jobs: list[str] = []
    for leaving in leaving_in_turn:
        done = len(ground.effects.calls("roll"))
        jobs += [await app.accepted(plugin) for _ in range(JOBS // 2)]
        await ground.effects.wait_for_calls("roll", done + 5, BUSY_S)
        assert await stopped(leaving) == 0
        await one_more(ground)
    ends = [await app.until_ended(job, BUSY_S) for job in jobs]
    assert Counter(end["status"] for end in ends) == {"succeeded": JOBS}
    sent = Counter((one.job, one.args["n"]) for one in ground.effects.calls("roll"))
    assert sent == {(job, n): 1 for job in jobs for n in range(4)}
    for job in jobs:
        assert not {"effect.unknown", "cancel.requested"} & set(await app.event_types(job))
