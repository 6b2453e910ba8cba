"""Lanes: tool calls run where the plugin's capabilities are, wait visibly while nobody is there, and keep the rules."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from tests.http.submissions import NONE, refused, traces
from tests.http.test_inspect import inspect
from tests.rig.client import Client, Json, fresh_key
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import ALLOW_ALL, ASK_ALL, call, final, fresh_name, publish_plugin, tool, turn
from tests.rig.process import Process
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

LANES = {
    "default": {"task_queue": "jobgate-default"},
    "gpu": {"task_queue": "jobgate-gpu", "capabilities": ["gpu", "cuda"]},
    "remote": {"task_queue": "jobgate-remote", "capabilities": ["gpu", "eu"]},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def laned(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    """A stack with three lanes, of which only the default one has a worker; tests add others and take them away."""
    own = Stack(tmp_path_factory.mktemp("lanes"), settings={"JOBGATE_LANES": json.dumps(LANES)})
    try:
        await own.start()
        yield own
    finally:
        await own.close()


@pytest.fixture
def operator(laned: Stack) -> Client:
    return laned.client("operator")


@pytest.fixture
def app(laned: Stack) -> Client:
    return laned.client("app")


async def lane_plugin(stack: Stack, operator: Client, name: str, effect: str, *requires: str, **more: Any) -> str:
    """Its jobs call the tool `name` once."""
    await publish_plugin(
        operator,
        name,
        [turn(call(name, {"n": 1})), final({"done": True})],
        tools=[tool(name, effect)],
        tools_url=stack.effects.url,
        policy=more.pop("policy", ALLOW_ALL),
        manifest={"requires": list(requires)},
        **more,
    )
    return name


@asynccontextmanager
async def gpu_worker(stack: Stack) -> AsyncGenerator[Process]:
    """A worker that serves the gpu lane, and is gone afterwards."""
    worker = stack.add_worker({"JOBGATE_LANE": "gpu"})
    engine, kind = await stack.engine(), TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    asked = DescribeTaskQueueRequest(
        namespace=engine.namespace, task_queue=TaskQueue(name="jobgate-gpu"), task_queue_type=kind
    )

    async def polls() -> bool:
        assert worker.running, worker.output[-3000:]
        seen = await engine.workflow_service.describe_task_queue(asked)
        return any(poller.identity.startswith(f"{worker.pid}@") for poller in seen.pollers)

    try:
        await wait_until(polls, 60, what="the gpu lane has a worker")
        yield worker
    finally:
        worker.stop()


def tool_attempts(shown: Json) -> list[Json]:
    return [each for each in shown["attempts"] if each["activity"] == "tool"]


async def until_it_waits(operator: Client, job: str) -> Json:
    """The attempt of a tool that is scheduled, and that no worker has."""

    async def waits() -> Json | None:
        return next((one for one in tool_attempts(await inspect(operator, job)) if one["ended_at"] is None), None)

    return await wait_until(waits, 20, what=f"{job} waits for a lane")


async def test_a_call_waits_visibly_for_its_lane_and_runs_there_when_a_worker_comes(
    laned: Stack, operator: Client, app: Client
) -> None:
    name = await lane_plugin(laned, operator, fresh_name("gpu"), "read", "gpu")
    job = await app.accepted(name)
    attempt = await until_it_waits(operator, job)
    assert (attempt["task_queue"], attempt["worker"], attempt["started_at"]) == ("jobgate-gpu", None, None)
    view = await app.status(job)
    assert (view["status"], view["executed"], view["overdue"], view["failure"]) == ("running", "yes", False, None)
    assert (view["last_event"]["type"], view["last_event"]["message"]) == ("tool.started", f"Calling {name}")
    assert (await app.status(job, after="0"))["events"][-1]["type"] == "tool.started"
    lanes = {lane["lane"]: lane for lane in (await inspect(operator, job))["lanes"]}
    assert (lanes["gpu"]["task_queue"], lanes["gpu"]["pollers"]) == ("jobgate-gpu", [])
    assert laned.effects.calls(name) == []
    async with gpu_worker(laned) as worker:
        view = await app.until_ended(job)
    assert (view["status"], view["result"]) == ("succeeded", {"done": True})
    shown = await inspect(operator, job)
    queues = {each["activity"]: each["task_queue"] for each in shown["attempts"]}
    assert queues == {"model": "jobgate-default", "tool": "jobgate-gpu"}
    assert [each["worker"].startswith(f"{worker.pid}@") for each in tool_attempts(shown)] == [True]
    assert shown["attempts"][0]["worker"].startswith(f"{laned.workers[0].pid}@")


async def test_a_job_without_requirements_stays_on_its_own_lane(laned: Stack, operator: Client, app: Client) -> None:
    name = await lane_plugin(laned, operator, fresh_name("plain"), "read")
    job = await app.accepted(name)
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert {each["task_queue"] for each in (await inspect(operator, job))["attempts"]} == {"jobgate-default"}


async def test_what_no_lane_offers_is_local_only_and_leaves_no_trace(
    laned: Stack, operator: Client, app: Client
) -> None:
    key = fresh_key()
    for requires in (["quantum"], ["cuda", "eu"]):
        name = await lane_plugin(laned, operator, fresh_name("unmet"), "read", *requires)
        document = refused(await app.submit(name, key=key), 409, "local-only")
        assert (document["eligibility"], document["blocker"], document["executed"]) == (
            "local_only",
            "capability_unavailable",
            "no",
        )
        assert document["not_yet"].startswith("Not yet: ")
        assert await traces(laned, key) == NONE
        rehearsed = await app.accepted(name, mode="dry_run")
        assert (await app.until_ended(rehearsed))["status"] == "succeeded"


async def test_a_write_keeps_its_permit_and_its_approval_on_another_lane(
    laned: Stack, operator: Client, app: Client
) -> None:
    name = await lane_plugin(laned, operator, fresh_name("pay"), "write", "gpu", "cuda", policy=ASK_ALL)
    job = await app.accepted(name)
    [request] = await app.until_request(job)
    async with gpu_worker(laned):
        assert laned.effects.calls(name) == []
        await laned.client("approver").decide(job, request, "approve")
        assert (await app.until_ended(job))["status"] == "succeeded"
    [sent] = laned.effects.calls(name, job=job)
    [effect] = (await inspect(operator, job))["effects"]
    assert (effect["state"], effect["epoch"], effect["effect_id"]) == ("confirmed", 1, sent.idempotency_key)
    assert (sent.epoch, sent.authorized) == (1, True)


async def test_a_cancel_names_what_another_lane_has_in_flight_and_waits_for_its_word(
    laned: Stack, operator: Client, app: Client
) -> None:
    name = await lane_plugin(laned, operator, fresh_name("slow"), "write", "gpu")
    laned.effects.set_behaviour(name, Behaviour(answer=Answer.HOLD))
    async with gpu_worker(laned):
        job = await app.accepted(name)
        await laned.effects.wait_for_calls(name, job=job)
        answer = await app.cancel(job)
        assert [one["tool"] for one in answer.json()["in_flight"]] == [name]
        laned.effects.release(name)
        assert (await app.until_ended(job))["status"] == "canceled"
    assert [one["state"] for one in (await inspect(operator, job))["effects"]] == ["confirmed"]


@pytest.mark.parametrize("effect", ["read", "write"])
async def test_what_was_canceled_while_it_waited_for_a_lane_is_not_sent_when_a_worker_comes(
    laned: Stack, operator: Client, app: Client, effect: str
) -> None:
    name = await lane_plugin(laned, operator, fresh_name("absent"), effect, "gpu", "cuda")
    job = await app.accepted(name)
    await until_it_waits(operator, job)
    assert (await app.cancel(job)).json()["in_flight"] == []
    if effect == "read":
        assert (await app.until_ended(job))["status"] == "canceled"
    other = await lane_plugin(laned, operator, fresh_name("after"), "read", "gpu", "cuda")
    async with gpu_worker(laned):
        assert (await app.until_ended(await app.accepted(other)))["status"] == "succeeded"
        assert (await app.until_ended(job))["status"] == "canceled"
    assert laned.effects.calls(name) == []


@pytest.mark.parametrize("effect", ["read", "write"])
async def test_the_deadline_ends_what_waits_for_a_lane(
    laned: Stack, operator: Client, app: Client, effect: str
) -> None:
    name = await lane_plugin(laned, operator, fresh_name("late"), effect, "gpu", "cuda")
    job = await app.accepted(name, timeout_seconds=4)
    view = await app.until_ended(job)
    assert (view["status"], view["failure"]["code"]) == ("failed", "deadline_exceeded")
    assert laned.effects.calls(name) == []
