"""Callbacks outlive what dies meanwhile: the worker that sent the call, the API that heard the answer, the engine."""

import asyncio
from collections.abc import AsyncGenerator

import httpx2
import pytest
import pytest_asyncio

from tests.rig.client import problem
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.stack import Stack
from tests.rig.vendors import callback_stack, effects_of, nothing_pending, plugin_of, post, waiting, way_back
from tests.rig.waiting import wait_until


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def vendors(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    """Whoever breaks a part of it mends it."""
    own = Stack(tmp_path_factory.mktemp("callbacks"), settings={"JOBGATE_HEARTBEAT_TIMEOUT_S": "2"})
    try:
        await callback_stack(own)
        yield own
    finally:
        await own.close()


async def settled(stack: Stack, job: str) -> bool:
    return (await effects_of(stack, job))[0][0] == "confirmed"


async def test_an_api_that_dies_between_commit_and_hint_loses_no_answer(vendors: Stack) -> None:
    job, sent = await waiting(vendors, "write")
    api = vendors.apis[0]
    vendors.temporal.freeze()
    posting = asyncio.create_task(post(way_back(sent), {"n": 1}))
    await wait_until(lambda: settled(vendors, job), 10, what="the answer is in the ledger")
    assert not posting.done()
    api.kill()
    vendors.temporal.resume()
    api.start()
    await vendors.until_ready(api)
    try:
        await posting
        raise AssertionError("the first answer was acknowledged")
    except httpx2.HTTPError:
        pass
    assert (await vendors.client().until_ended(job))["status"] == "succeeded", "whoever is up tells the job"
    assert problem(await post(way_back(sent), {"n": 2})) == (409, "callback-answered")
    assert (await vendors.client().get(f"/v1/jobs/{job}/result"))["got"] == {"n": 1}


async def test_an_answer_is_kept_while_the_engine_is_down(vendors: Stack) -> None:
    job, sent = await waiting(vendors, "write")
    vendors.temporal.kill()
    answered = await post(way_back(sent), {"n": 1})
    assert (answered.status_code, await effects_of(vendors, job)) == (200, [("confirmed", 1)])
    await vendors.start_temporal()
    assert problem(await post(way_back(sent), {"n": 2})) == (409, "callback-answered")
    assert (await vendors.client().until_ended(job, 60))["status"] == "succeeded"


async def test_a_wait_outlives_its_worker(vendors: Stack) -> None:
    job, sent = await waiting(vendors, "write")
    vendors.workers[0].kill()
    assert (await post(way_back(sent), {"n": 1})).status_code == 200
    vendors.workers[0].start()
    assert (await vendors.client().until_ended(job, 60))["status"] == "succeeded"
    assert len(vendors.effects.calls("t", job=job)) == 1


async def test_a_deploy_during_a_wait_is_no_end_of_it(vendors: Stack) -> None:
    """SIGTERM while no step runs: there is nothing to lose, nothing is sent again, and the vendor's answer counts."""
    job, sent = await waiting(vendors, "write")
    vendors.workers[0].stop()
    assert (await vendors.client().status(job))["status"] == "running"
    vendors.workers[0].start()
    await vendors.until_polling(vendors.workers[0])
    assert (await post(way_back(sent), {"n": 1})).status_code == 200
    assert (await vendors.client().until_ended(job, 60))["status"] == "succeeded"
    types = await vendors.client().event_types(job)
    assert not {"attempt.replaced", "effect.unknown", "cancel.requested"} & set(types)
    assert (len(vendors.effects.calls("t", job=job)), await effects_of(vendors, job)) == (1, [("confirmed", 1)])


async def test_a_worker_that_dies_before_it_tells_of_the_202_leaves_the_callback_standing(vendors: Stack) -> None:
    name = await plugin_of(vendors, "write")
    vendors.effects.set_behaviour("t", Behaviour(answer=Answer.HOLD, status=202, times=1))
    job = await vendors.client().accepted(name)
    [sent] = await vendors.effects.wait_for_calls("t", job=job)
    vendors.workers[0].kill()
    vendors.effects.release("t")
    vendors.workers[0].start()
    await vendors.client().until_event(job, "attempt.replaced")
    await nothing_pending(vendors, job)
    assert (await post(way_back(sent), {"n": 1})).status_code == 200
    assert (await vendors.client().until_ended(job))["status"] == "succeeded"
    assert (len(vendors.effects.calls("t", job=job)), await effects_of(vendors, job)) == (1, [("confirmed", 1)])
