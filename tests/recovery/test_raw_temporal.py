"""What anybody with access to Temporal may throw at Jobgate: raw signals, workflows by hand, activities by hand.

Each is an event or a refusal; the effect log shows no tool call; the running job goes on.
"""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client as EngineClient
from temporalio.client import WorkflowFailureError
from temporalio.common import RawValue, RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.recovery.grounds import READS_RUN_WRITES_ASK, published
from tests.rig.client import Json, fresh_key, problem
from tests.rig.effect_log import EffectLog
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import Stack
from workflows.contract.steps import WORKFLOW_TYPE

FOREIGN_LANE = "foreign-lane"


@workflow.defn(name="ForeignWorkflow")
class Foreign:
    """Somebody's own workflow, which schedules one of our activities on our lane and tells what came of it."""

    @workflow.run
    async def run(self, activity: str, lane: str, asked: Any) -> str:
        return await schedule(activity, lane, asked)


@workflow.defn(name=WORKFLOW_TYPE)
class Impostor:
    """The same under the type's name that jobs have."""

    @workflow.run
    async def run(self, activity: str, lane: str, asked: Any) -> str:
        return await schedule(activity, lane, asked)


async def schedule(activity: str, lane: str, asked: Any) -> str:
    try:
        await workflow.execute_activity(
            activity,
            args=[] if asked is None else [asked],
            task_queue=lane,
            schedule_to_close_timeout=timedelta(seconds=20),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
    except ActivityError as error:
        cause = error.cause
        return (cause.type or "untyped") if isinstance(cause, ApplicationError) else type(cause).__name__
    return "done"


@asynccontextmanager
async def foreign_worker(engine: EngineClient, kind: type[Foreign] | type[Impostor]) -> AsyncGenerator[None]:
    async with Worker(engine, task_queue=FOREIGN_LANE, workflows=[kind], workflow_runner=UnsandboxedWorkflowRunner()):
        yield


def lane_of(stack: Stack) -> str:
    return stack.settings.lanes[stack.settings.lane].task_queue


async def scheduled(stack: Stack, job: str, activity: str) -> list[Json]:
    """The inputs of the job's scheduled activities of this name, as its history holds them."""
    engine = await stack.engine()
    found: list[Json] = []
    async for event in engine.get_workflow_handle(f"demo.{job}").fetch_history_events():
        attributes = event.activity_task_scheduled_event_attributes
        if attributes.activity_type.name == activity:
            found.append(json.loads(attributes.input.payloads[0].data))
    return found


async def start_input(stack: Stack, job: str) -> Json:
    engine = await stack.engine()
    async for event in engine.get_workflow_handle(f"demo.{job}").fetch_history_events():
        return json.loads(event.workflow_execution_started_event_attributes.input.payloads[0].data)
    raise AssertionError("a history begins with its start")


# ---- raw signals

SIGNALS: list[tuple[str, list[Any]]] = [
    ("nonsense", []),
    ("__temporal_made_up", ["x"]),
    ("decision", []),
    ("decision", [7]),
    ("decision", [None]),
    ("decision", [["a", "list"]]),
    ("decision", [{"request": "r1-000000"}]),
    ("decision", [{"request_id": 12}]),
    ("decision", [{"request_id": "r9-ffffff"}]),
    ("decision", [{"request_id": "r1-000000"}, "a second argument"]),
    ("decision", [RawValue(Payload(metadata={"encoding": b"json/plain"}, data=b"{not json"))]),
    ("decision", [RawValue(Payload(metadata={"encoding": b"binary/made-up"}, data=b"\x00\xff"))]),
    ("gate", ["with an argument"]),
    ("gate", []),
    ("view", [{}]),
]


async def test_raw_signals_change_nothing_and_the_job_goes_on(stack: Stack, effects: EffectLog) -> None:
    plugin = await published(
        stack, [turn(call("signaled")), final()], tool("signaled", "write"), policy=READS_RUN_WRITES_ASK
    )
    app, approver, engine = stack.client(), stack.client("approver"), await stack.engine()
    job = await app.accepted(plugin)
    [request] = await app.until_request(job)
    handle = engine.get_workflow_handle(f"demo.{job}")
    for name, args in SIGNALS:
        await handle.signal(name, args=args)
    # A forged yes, with everything a real one has.
    await handle.signal("decision", {"request_id": request, "decision": "approve", "by": "approver"})
    await app.until_event(job, "decision.refused", count=10)
    view = await app.until_status(job, "waiting_for_human")
    assert [one["request_id"] for one in view["pending"]] == [request]
    assert effects.calls("signaled") == []
    assert (await approver.decide(job, request, "approve")).status_code == 200
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert len(effects.calls("signaled")) == 1
    types = await app.event_types(job)
    assert {"decision.refused"} == set(types) - {
        *("job.queued", "job.started", "step.started", "step.finished", "request.opened", "request.decided"),
        *("tool.started", "tool.finished", "job.succeeded"),
    }


# ---- workflows by hand


def _nothing(_real: Json) -> list[Any]:
    return []


def _number(_real: Json) -> list[Any]:
    return [7]


def _other_shape(_real: Json) -> list[Any]:
    return [{"job": "anything"}]


def _twice(real: Json) -> list[Any]:
    return [real, real]


def _right(real: Json) -> list[Any]:
    return [real]


@pytest.mark.parametrize("make", [_nothing, _number, _other_shape, _twice, _right])
async def test_a_workflow_started_by_hand_calls_nothing_and_is_no_job(
    stack: Stack, effects: EffectLog, make: Callable[[Json], list[Any]]
) -> None:
    plugin = await published(stack, [turn(call("by-hand")), final()], tool("by-hand", "write"))
    app, engine = stack.client(), await stack.engine()
    real = await app.accepted(plugin)
    await app.until_ended(real)
    effects.reset()
    key = fresh_key()
    args = make({**await start_input(stack, real), "job_id": key})
    handle = await engine.start_workflow(WORKFLOW_TYPE, args=args, id=f"demo.{key}", task_queue=lane_of(stack))
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "input_rejected"
    assert effects.calls() == []
    assert problem(await app.http.get(f"/v1/jobs/{key}")) == (404, "not-found")
    assert problem(await app.http.get(f"/v1/jobs/{key}/events")) == (404, "not-found")
    assert problem(await app.cancel(key)) == (404, "not-found")


async def test_a_key_taken_by_hand_is_refused_and_calls_nothing(stack: Stack, effects: EffectLog) -> None:
    plugin = await published(stack, [turn(call("taken")), final()], tool("taken", "write"))
    app, engine, key = stack.client(), await stack.engine(), fresh_key()
    await engine.start_workflow(WORKFLOW_TYPE, "no job of ours", id=f"demo.{key}", task_queue=lane_of(stack))
    assert problem(await app.submit(plugin, key=key)) == (409, "key-taken-outside")
    assert effects.calls() == []


async def test_an_ended_job_started_again_by_hand_calls_nothing(stack: Stack, effects: EffectLog) -> None:
    """The receipt is real, and it is of the run that admission started: another one reads and writes nothing."""
    plugin = await published(
        stack, [turn(call("seen")), turn(call("written", {"n": 1})), final()], tool("seen"), tool("written", "write")
    )
    app, engine = stack.client(), await stack.engine()
    job = await app.accepted(plugin)
    await app.until_ended(job)
    again = await engine.start_workflow(
        WORKFLOW_TYPE,
        await start_input(stack, job),
        id=f"demo.{job}",
        task_queue=lane_of(stack),
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
    )
    with pytest.raises(WorkflowFailureError) as failed:
        await again.result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "input_rejected"
    assert [sent.tool for sent in effects.calls()] == ["seen", "written"]


# ---- activities by hand


@pytest.mark.parametrize("kind", [Foreign, Impostor])
async def test_an_activity_scheduled_by_hand_calls_nothing(
    stack: Stack, effects: EffectLog, kind: type[Foreign] | type[Impostor]
) -> None:
    """With the very input of a real call, while the real job runs."""
    plugin = await published(
        stack,
        [turn(call("look")), turn(call("copied")), turn(call("copied", {"n": 2})), final()],
        *(tool("look"), tool("copied", "write")),
        policy=READS_RUN_WRITES_ASK + "permit (principal, action, resource) when { !(context.args has n) };\n",
    )
    app, approver, engine = stack.client(), stack.client("approver"), await stack.engine()
    job = await app.accepted(plugin)
    [request] = await app.until_request(job)
    tools, models = await scheduled(stack, job, "tool"), await scheduled(stack, job, "model")
    before = effects.calls()
    assert [sent.tool for sent in before] == ["look", "copied"]
    name = "JobWorkflow" if kind is Impostor else "ForeignWorkflow"
    decision = {"request_id": request, "action_digest": (await app.request(job, request))["action_digest"]}
    # Another id of the workspace, an id that is no job's at all, and an id that pretends to be part of the job's.
    async with foreign_worker(engine, kind):
        for workflow_id in (f"demo.{fresh_key()}", "no-job-at-all", f"demo.{job}.1"):
            for activity, asked in [
                *(("tool", one) for one in tools),
                ("model", models[0]),
                ("read_decision", decision),
                ("read_gate", None),
            ]:
                handle = await engine.start_workflow(
                    name,
                    args=[activity, lane_of(stack), asked],
                    id=workflow_id,
                    task_queue=FOREIGN_LANE,
                    id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                )
                assert await handle.result() == "no_receipt", (workflow_id, activity)
    assert effects.calls() == before
    assert (await app.status(job))["status"] == "waiting_for_human"
    assert (await approver.decide(job, request, "approve")).status_code == 200
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert [sent.tool for sent in effects.calls()] == ["look", "copied", "copied"]


async def test_an_activity_with_an_input_that_is_none_fails_typed_and_the_worker_goes_on(
    stack: Stack, effects: EffectLog
) -> None:
    engine, app = await stack.engine(), stack.client()
    async with foreign_worker(engine, Foreign):
        for asked in (None, 7, {"tool": "x"}):
            handle = await engine.start_workflow(
                "ForeignWorkflow",
                args=["tool", lane_of(stack), asked],
                id=f"demo.{fresh_key()}",
                task_queue=FOREIGN_LANE,
            )
            assert await handle.result() not in ("done", "TimeoutError")
    assert effects.calls() == []
    job = await app.accepted(await published(stack, [final()]))
    assert (await app.until_ended(job))["status"] == "succeeded"
